"""The one error that a user is meant to read."""


class PcvError(ValueError):
    """What is wrong, where, and what to do, in one line each."""
