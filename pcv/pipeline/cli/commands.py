"""The `pcv` command: all its subcommands, and its exit."""

import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

from pcv.base import process
from pcv.base.errors import PcvError, Stopped
from pcv.pipeline.cli import managing, stages
from pcv.pipeline.graph import STAGES

EXAMPLES = {
    "init": "my_project --frontend pymc",
    "download": "radon",
    "import": "results.parquet config/config.yaml",
    "data": "config/config.yaml --experiment rats",
    "folds": "config/config.yaml --plot",
    "fit": "config/config.yaml --model slopes --cores 4",
    "surrogates": "my_config.yaml --model slopes --cores 4",
    "subsample": "my_config.yaml",
    "evidence": "my_config.yaml --model slopes --cores 4",
    "cut": "my_config.yaml --model slopes",
    "warmup": "config/config.yaml --model slopes --cores 4",
    "sample": "config/config.yaml --model slopes --cores 4",
    "plan": "my_config.yaml --round 1",
    "diagnose": "config/config.yaml --model slopes",
    "devices": "",
    "cache": "",
}
"""arguments of commands that take more than a config"""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Bayesian cross-validation: which model predicts better, how certain that is, and whether "
    "the computation can be trusted. Start with `pcv init DIR`, which writes a working project. "
    "Stages, in order: data, fit, folds, (surrogates, subsample, evidence, cut,) warmup, sample, "
    "diagnose, compare, report.",
    epilog="Example: pcv check config/config.yaml",
)


def _add(name: str, function: Callable[..., None], says: str | None = None) -> None:
    example = f"pcv {name} {EXAMPLES.get(name, 'config/config.yaml')}".rstrip()
    app.command(name, help=says, epilog=f"Example: {example}")(function)


BEFORE: list[Callable[..., None]] = [managing.init, managing.check, managing.download]
AFTER: list[Callable[..., None]] = [
    managing.show,
    managing.devices,
    managing.status,
    managing.clean,
    managing.cache,
]
for command in BEFORE:
    _add(command.__name__, command)
_add("import", managing.import_file)
for name, stage in STAGES.items():
    _add(name, stages.command(name), stage.says)
for command in AFTER:
    _add(command.__name__, command)

UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""typer's error for a wrong or missing command, option or argument"""


def _version(asked: bool) -> bool:
    if asked:
        import pcv

        print(f"pcv {pcv.__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _whole(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command; errors and warnings are one line each, errors exit with non-zero status."""
    if "--debug" not in sys.argv:
        warnings.formatwarning = lambda said, *_, **__: f"warning: {str(said).splitlines()[0]}\n"
    try:
        with process.at_once():
            sys.exit(app(prog_name="pcv", standalone_mode=False))
    except UsageError as error:
        if said := error.format_message():
            command = error.ctx.command_path if error.ctx else "pcv"
            print(f"error: {said.rstrip('.')}; see {command} --help", file=sys.stderr)
        sys.exit(error.exit_code)
    except Stopped as stopped:
        print(f"error: {stopped}", file=sys.stderr)
        sys.exit(stopped.exit_code)
    except Exception as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        known = isinstance(error, PcvError)
        for line in str(error).splitlines() or [""]:
            print(f"error: {line if known else f'{type(error).__name__}: {line}'}", file=sys.stderr)
        if not known and "--debug" not in sys.argv:
            print("This may be a fault of pcv; --debug shows where it happened", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
