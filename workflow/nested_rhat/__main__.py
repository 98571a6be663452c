"""Nested R-hat on the paper's targets: results/nested_rhat/index.html."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from nested_rhat.page import page  # noqa: E402
from nested_rhat.settings import load  # noqa: E402
from paper.command import command  # noqa: E402

command("nested_rhat", __doc__, page, load)
