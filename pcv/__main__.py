"""The `pcv` command, also as ``python -m pcv``."""

from pcv.pipeline.cli import forkserver


def main() -> None:
    """Run the command, by a fork of what has imported it already where there is one."""
    forkserver.over()
    from pcv.pipeline.cli.commands import main as here

    here()


if __name__ == "__main__":
    main()
