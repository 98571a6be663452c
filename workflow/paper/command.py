"""The command line of a page: `python workflow/NAME CONFIG`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from pcv.base import process
from pcv.base.errors import PcvError
from pcv.base.monitor import TO_LOG, Monitor, show_messages
from pcv.pipeline.config import load


def command[T](
    name: str,
    described: str | None,
    page: Callable[[T, Path, Monitor, str], None],
    load: Callable[[Path], T] = load,  # type: ignore[assignment]
) -> None:
    """Write a page from the results of what a config asks for; errors in one line each."""
    parser = argparse.ArgumentParser(prog=f"python workflow/{name}", description=described)
    parser.add_argument("config", type=Path, help=f"such as config/{name}/quick.yaml")
    config = parser.parse_args().config
    makes = f"snakemake --cores all {name} --configfile {config}"
    show_messages()
    try:
        with process.at_once():
            page(load(config), Path("results"), TO_LOG.of(name), makes)
    except PcvError as error:
        sys.exit("\n".join(f"error: {line}" for line in str(error).splitlines()))
