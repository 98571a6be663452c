"""Numbers as printed in text, tables and figures: with as many digits as their errors allow."""

import numpy as np
from tqdm import tqdm

NOISE = 1e-12
"""errors up to this are rounding ones, as of terms that are all the same"""


def fixed(x: float, error: float, figures: int = 1, thousands: str = "", sign: str = "-") -> str:
    """A number with as many decimals as give its error `figures` + 1 significant figures; at least
    one, and one more where it would round to 0. With sign "+", positive numbers have one too.

    >>> fixed(-14.534, 7.03), fixed(0.3518, 0.3518), fixed(-0.04, 7.03), fixed(float("nan"), 1.0)
    ('-14.5', '0.35', '-0.04', 'nan')
    """
    known = np.isfinite(error) and abs(error) > NOISE
    decimals = max(1, figures - int(np.floor(np.log10(abs(error))))) if known else 1
    decimals += int(x != 0 and round(float(x), decimals) == 0)
    return f"{round(float(x), decimals) + 0.0:{sign}{thousands}.{decimals}f}"


def two_figures(error: float) -> str:
    """An error to two significant figures, and at least one decimal."""
    return fixed(error, error)


def by_error(x: float, error: float) -> str:
    """x to the leading digit of twice its error, and at least one decimal."""
    return fixed(x, 2 * error, 0)


def mcse_in_words(mcse: float, is_bound: bool | np.bool_) -> str:
    """An MCSE to two significant figures, with ">" if it is only a lower bound.

    >>> mcse_in_words(0.2134, False), mcse_in_words(0.2134, True)
    ('0.21', '> 0.21')
    """
    return "> " * bool(is_bound) + two_figures(mcse)


def typeset(x: float, error: float = np.nan) -> str:
    """A number to two significant figures of its error, typeset for a page or a figure.

    >>> typeset(-14.534, 7.03), typeset(1234.5), typeset(float("nan")), typeset(-np.inf)
    ('−14.5', '1,234.5', '–', '−∞')
    """
    if not np.isfinite(x):
        return "–" if np.isnan(x) else "∞" if x > 0 else "−∞"
    error = max(error, 1e-5) if error > 0 else error  # no more than 6 decimals
    return fixed(x, error, thousands=",").replace("-", "\N{MINUS SIGN}")


def percent(p: float) -> str:
    """A probability as a percentage, never 0% or 100%.

    >>> percent(0.0), percent(0.372), percent(0.9994)
    ('<1%', '37%', '>99%')
    """
    if not np.isfinite(p):
        return "n/a"
    return "<1%" if p < 0.01 else ">99%" if p > 0.99 else f"{100 * p:.0f}%"


def in_bytes(size: int) -> str:
    """A number of bytes with its unit.

    >>> in_bytes(1234567)
    '1.23 MB'
    """
    number = tqdm.format_sizeof(size, "", 1000)
    return f"{number} B" if size < 1000 else f"{number[:-1]} {number[-1]}B"
