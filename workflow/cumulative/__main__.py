"""Compare the paper of Fong and Holmes's numbers with ours: results/cumulative/index.html."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from cumulative.page import page  # noqa: E402
from paper.command import command  # noqa: E402

command("cumulative", __doc__, page)
