"""Pages that are run: each once for a state of `pcv`, and within a limit of time as a whole.

Where one fails, its page shows how, a warning says so, and the site is built all the same. That
page is run again the next time.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from jupyter_cache.executors.utils import ExecutionResult
from myst_nb.core.execute import cache
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_output
from sphinx.application import Sphinx
from sphinx.config import Config

ROOT = Path(__file__).parents[2]
COLOUR = re.compile(r"\x1b\[[\d;]*m")
"""of text on a terminal"""


def state() -> str:
    """A hash of what pages run beside their own cells: code, versions of libraries, data."""
    digest = hashlib.sha256(os.environ.get("PCV_DATA", "").encode())
    read = [
        *(ROOT / "pcv").rglob("*.py"),
        *(ROOT / "resources").glob("*"),
        ROOT / "requirements.lock",
    ]
    for path in sorted(read):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def of_now(app: Sphinx, config: Config) -> None:
    """Outputs of other states are removed."""
    kept = Path(config.nb_execution_cache_path)
    if config.nb_execution_mode == "cache" and kept.name == state() and kept.parent.is_dir():
        for other in set(kept.parent.iterdir()) - {kept}:
            shutil.rmtree(other)


def run(notebook: NotebookNode, cwd: str, timeout: int, **_: Any) -> ExecutionResult:
    """In place of jupyter-cache's own, where every cell has as long as this has for all."""
    began = time.monotonic()
    cells: list[NotebookNode] = []

    def left(cell: NotebookNode) -> int:
        nonlocal began
        if not cells:  # the kernel is up
            began = time.monotonic()
        cells.append(cell)
        return max(ceil(timeout - (time.monotonic() - began)), 1)

    failed, said = None, None
    place = {"metadata": {"path": cwd}}
    client = NotebookClient(notebook, resources=place, timeout_func=left)
    client.record_timing = False  # cells with times in them would not be known again
    try:
        client.execute()
    except CellTimeoutError as error:
        failed = error
        said = f"The page took longer than {timeout} s (nb_execution_timeout in docs/conf.py)."
        cells[-1].outputs.append(new_output("error", ename="", evalue=said, traceback=[said]))
        said += f" It was in this cell:\n{cells[-1].source}"
    except (CellExecutionError, DeadKernelError) as error:
        failed, said = error, COLOUR.sub("", str(error))
    return ExecutionResult(notebook, cwd, time.monotonic() - began, failed, said)


def failed(app: Sphinx, env: Any, *changes: set[str]) -> Sequence[str]:
    pages = getattr(env, "nb_metadata", {})
    runs = {page: found.get("exec_data") for page, found in pages.items()}
    return [page for page, data in runs.items() if data and not data["succeeded"]]


def setup(app: Sphinx) -> dict[str, bool]:
    cache.single_nb_execution = run
    app.connect("config-inited", of_now)
    app.connect("env-get-outdated", failed)
    return {"parallel_read_safe": True}
