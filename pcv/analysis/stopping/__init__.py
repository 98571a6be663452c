"""When there are enough draws: the `rule`, and its `config`, which needs no NumPy."""
