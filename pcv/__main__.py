"""``python -m pcv``: the `pcv` command."""

from pcv.cli import main

main()
