"""The one error that a user is meant to read."""


class PcvError(ValueError):
    """What is wrong, where, and what to do, in one line each."""


def in_one_line(error: BaseException) -> str:
    """Another library's error: its type and the first line of what it says.

    >>> in_one_line(KeyError("weight_g"))
    "KeyError: 'weight_g'"
    """
    said = str(error).splitlines()
    return f"{type(error).__name__}{f': {said[0].rstrip(".")}' if said else ''}"
