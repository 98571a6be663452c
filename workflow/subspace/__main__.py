"""Compare the subspace paper's numbers with ours: results/subspace/index.html."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from paper.command import command  # noqa: E402
from subspace.page import page  # noqa: E402

command("subspace", __doc__, page)
