"""Data sets that the repository does not contain, in the folder that `PCV_DATA` names."""

import os
from pathlib import Path


def data_file(name: str) -> Path:
    """Return where a data set is; ends the program in one line where it is not there."""
    path = Path(os.environ.get("PCV_DATA", "")) / name
    if "PCV_DATA" not in os.environ or not path.is_file():
        raise SystemExit(f"{name} is needed: set PCV_DATA to a folder that has it")
    return path
