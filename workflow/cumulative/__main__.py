"""Compare the paper of Fong and Holmes's numbers with ours: results/cumulative/index.html."""

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from cumulative.page import page  # noqa: E402
from pcv.base import process  # noqa: E402
from pcv.base.errors import PcvError  # noqa: E402
from pcv.base.progress import say  # noqa: E402
from pcv.pipeline.config import load  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(prog="python workflow/cumulative", description=__doc__)
    parser.add_argument("config", type=Path, help="such as config/cumulative/quick.yaml")
    config = parser.parse_args().config
    command = f"snakemake --cores all cumulative --configfile {config}"
    try:
        with process.at_once():
            page(load(config), Path("results"), say, command)
    except PcvError as error:
        sys.exit("\n".join(f"error: {line}" for line in str(error).splitlines()))


main()
