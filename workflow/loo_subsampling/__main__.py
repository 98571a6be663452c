"""Compare the LOO-SS paper's numbers with ours: results/loo_subsampling/index.html."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from loo_subsampling.page import page  # noqa: E402
from paper.command import command  # noqa: E402

command("loo_subsampling", __doc__, page)
