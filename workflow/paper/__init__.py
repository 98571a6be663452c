"""The paper's figures, tables and numbers beside those of our runs: `python -m paper CONFIG`."""
