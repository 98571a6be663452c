"""The directive `cli`: what `pcv COMMAND --help` says, of the command that it names."""

from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from typer.testing import CliRunner

from pcv.pipeline import graph
from pcv.pipeline.cli import commands as cli

pcv = cli.app

WIDTH = 80
documented: set[str] = set()


class Cli(Directive):
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        command = self.arguments[:1]
        documented.update(command)
        for file in (graph.__file__, *Path(cli.__file__).parent.glob("*.py")):
            self.state.document.settings.env.note_dependency(str(file))
        terminal = {"COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH), "NO_COLOR": "1"}
        said = CliRunner(env=terminal).invoke(pcv, [*command, "--help"], prog_name="pcv")
        if said.exit_code:
            raise self.error(f"cli: pcv {' '.join(command)} --help: {said.output}")
        text = "\n".join(line.rstrip() for line in said.output.strip().splitlines())
        return [nodes.literal_block(text, text, language="text")]


def check(app: Sphinx, env: object) -> None:
    missing = {x.name or x.callback.__name__ for x in pcv.registered_commands} - documented
    if documented and missing:
        raise RuntimeError(f"reference/cli.md lacks {', '.join(sorted(missing))}")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("cli", Cli)
    app.connect("env-updated", check)
    return {"parallel_read_safe": False}
