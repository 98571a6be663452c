"""Compare the paper's numbers with our runs of its examples: results/paper/index.html."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from paper.command import command  # noqa: E402
from paper.run import paper  # noqa: E402

command("paper", __doc__, paper)
