"""Means over orders, of log p(y) and of scores at several sizes of the training set."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float, Int
from scipy.stats import sem, trim_mean
from scipy.stats.mstats import mjci, winsorize

from pcv.base.errors import PcvError

TRIMMED = 0.1
"""share of orders left out at each end of a trimmed mean, rounded down"""
MAX_SCORES_APART = 1.0
"""nats between both sets' scores of all other units, beyond which the next unit's score, which the
path approaches in parts, takes their place"""
MOST_SIZES = 100
"""sizes of the training set at which all other units are scored"""
PER_PARAMETER = 10
"""units that train per parameter, where that is less than a tenth of all units"""


class Estimate(NamedTuple):
    """An estimate of log p(y) (nats)."""

    value: float
    mcse: float


class Curve(NamedTuple):
    """Means over orders (nats), at several sizes of the training set."""

    value: Float[np.ndarray, " size"]
    se: Float[np.ndarray, " size"]
    """from the choice of orders, which more of them would shrink"""
    mcse: Float[np.ndarray, " size"]
    each: Float[np.ndarray, "order size"]
    """of which it is the mean"""
    noise: Float[np.ndarray, " size"]
    """the part of the squared MCSE that spreads `each`"""


def evidence(log_evidence: Float[np.ndarray, "*estimate"]) -> Estimate:
    """Log of the mean of unbiased estimates of p(y), with its MCSE by the delta method.

    >>> rng = np.random.default_rng(1)
    >>> found = evidence(rng.normal(-100 - 0.3**2 / 2, 0.3, (64, 2)))
    >>> abs(found.value + 100) < 3 * found.mcse < 0.1
    True
    """
    highest = log_evidence.max()
    share = np.exp(log_evidence - highest).ravel()
    mean, sd = share.mean(), share.std(ddof=1)
    return Estimate(float(np.log(mean) + highest), float(sd / mean / np.sqrt(share.size)))


def gained(
    log_evidence: Float[np.ndarray, "order set knot"],
    first: Int[np.ndarray, " size"],
    last: Int[np.ndarray, " size"],
) -> Curve:
    r"""Means of :math:`\log p(y_{a+1}, \dots, y_b \mid y_1, \dots, y_a)` over orders.

    Args:
        log_evidence: of the first 0, 1, …, n units of each order, by each of two sets.
        first, last: a and b; a = n - P and b = n for S_CCV(P), a = 0 and b = n - P for S_PCV(P).
    """
    begin, end = log_evidence[:, :, first], log_evidence[:, :, last]
    return over_orders(end - begin, (end.var(1, ddof=1) - begin.var(1, ddof=1)) / 2)


def over_orders(
    values: Float[np.ndarray, "order set size"],
    too_low: Float[np.ndarray, "order size"] | float = 0.0,
) -> Curve:
    """The mean over orders of what two sets estimate.

    Args:
        values: the estimates (nats).
        too_low: by how much they are too low on average, as each order tells.
    """
    shift = np.broadcast_to(too_low, values[:, 0].shape)
    noise = values.var(1, ddof=1).mean(0) / values.shape[1] / len(values)
    of_shift = shift.var(0, ddof=1) / len(values)
    return _curve(values.mean(1) + shift.mean(0), noise, of_shift)


def minus(one: Curve, other: Curve) -> Curve:
    """The difference of two models, over the same orders."""
    noise = one.noise + other.noise
    return _curve(one.each - other.each, noise, one.mcse**2 + other.mcse**2 - noise)


def _curve(
    each: Float[np.ndarray, "order size"],
    noise: Float[np.ndarray, " size"],
    of_shift: Float[np.ndarray, " size"],
) -> Curve:
    rest = np.maximum(each.var(0, ddof=1) / len(each) - noise, 0.0)
    return Curve(each.mean(0), np.sqrt(rest), np.sqrt(noise + of_shift), each, noise)


def left_out(num_units: int, num_params: int) -> list[int]:
    """Numbers of units left out, P, at which to show cumulative scores: .5 n, .9 n and
    max(.9 n, n - 10 d), with d parameters (Fong and Holmes, section 3.2).

    >>> left_out(100, 3), left_out(1000, 4)
    ([50, 90], [500, 900, 960])
    """
    most, half = (num_units - round(share * num_units) for share in (0.1, 0.5))
    some = {half, most, max(most, num_units - PER_PARAMETER * num_params)}
    return sorted(p for p in some if 1 <= p < num_units)


def sizes(num_units: int, num_params: int, first: int, prepared: int) -> Int[np.ndarray, " size"]:
    """Sizes of the training set at which all other units are scored, from `first` on; `prepared`
    is one of them."""
    even = np.linspace(first, num_units - 1, min(num_units - first, MOST_SIZES)).astype(int)
    shown = np.append(num_units - np.array(left_out(num_units, num_params), int), prepared)
    return np.union1d(even, shown[shown >= first])


def extent(path: xr.Dataset) -> tuple[int, int]:
    """Numbers of all units, and of those whose score is cumulated."""
    n = path.sizes["trained_units"] - 1
    return n, n - int(path.attrs["prepared"])


def after(path: xr.Dataset, trained: Sequence[int]) -> Curve:
    """Cumulative scores of the units after these numbers of them."""
    log_evidence = path["log_evidence"].values
    return gained(log_evidence, np.array(trained), np.full(len(trained), log_evidence.shape[2] - 1))


def curves(path: xr.Dataset) -> dict[str, Curve]:
    """S_CV(p), S_CCV(P) and S_PCV(P) at the sizes of ``evidence.zarr``."""
    log_evidence, trained = path["log_evidence"].values, path["trained"].values
    ahead = log_evidence[:, :, trained + 1] - log_evidence[:, :, trained]
    apart = np.abs(np.diff(path["score"].values, axis=1)) > MAX_SCORES_APART
    s_cv = over_orders(np.where(apart, ahead, path["score"].values))
    return {"s_cv": s_cv} | _cumulated(path, trained)


def _cumulated(path: xr.Dataset, trained: Int[np.ndarray, " size"]) -> dict[str, Curve]:
    found = {"s_ccv": after(path, trained.tolist())}
    if not path.attrs["improper"]:
        found["s_pcv"] = gained(path["log_evidence"].values, 0 * trained, trained)
    return found


def frame(path: xr.Dataset) -> pd.DataFrame:
    """The curves by the number of units left out."""
    return _in_columns(path, path["trained"].values, curves(path)).sort_index()


def at(path: xr.Dataset, left_out: int) -> pd.Series:
    """The cumulative scores where P units are left out.

    Raises:
        PcvError: P is out of range.
    """
    trained = np.array([trained_by(path, left_out)])
    return _in_columns(path, trained, _cumulated(path, trained)).iloc[0]


def trained_by(path: xr.Dataset, left_out: int) -> int:
    """The number of units that train where P are left out.

    Raises:
        PcvError: P is out of range.
    """
    n, most = extent(path)
    most = most if path.attrs["improper"] else n - 1
    if left_out not in range(1, most + 1):
        raise PcvError(f"P = {left_out!r} units left out: must be a whole number from 1 to {most}")
    return n - int(left_out)


def _in_columns(
    path: xr.Dataset, trained: Int[np.ndarray, " size"], found: dict[str, Curve]
) -> pd.DataFrame:
    n, s_ccv = extent(path)[0], found["s_ccv"]
    columns = {
        f"{name}{end}": getattr(curve, field)
        for name, curve in found.items()
        for end, field in (("", "value"), ("_se", "se"), ("_mcse", "mcse"))
    }
    columns["s_ccv_per_n"] = s_ccv.value * n / (n - trained)
    each = s_ccv.each
    for name, mean, error in (
        ("median", np.median(each, axis=0), _of_median(each)),
        ("trimmed", trim_mean(each, TRIMMED), _of_trimmed(each)),
    ):
        se, mcse = _shares(s_ccv, error)
        columns |= {f"s_ccv_{name}": mean, f"s_ccv_{name}_se": se, f"s_ccv_{name}_mcse": mcse}
    return pd.DataFrame(columns, pd.Index(n - trained, name="left_out"))


def _of_median(each: Float[np.ndarray, "order size"]) -> Float[np.ndarray, " size"]:
    """Its error by Maritz and Jarrett (1978); of two, the median is the mean."""
    if len(each) < 3:
        return np.asarray(sem(each))
    return np.asarray(mjci(each - np.median(each, axis=0), [0.5], axis=0)[0])


def _of_trimmed(each: Float[np.ndarray, "order size"]) -> Float[np.ndarray, " size"]:
    """The error of a trimmed mean by Tukey and McLaughlin (1963)."""
    kept = 1 - 2 * int(TRIMMED * len(each)) / len(each)
    return np.asarray(sem(winsorize(each, (TRIMMED, TRIMMED), axis=0)) / kept)


def _shares(
    curve: Curve, error: Float[np.ndarray, " size"]
) -> tuple[Float[np.ndarray, " size"], Float[np.ndarray, " size"]]:
    """The error of some mean over orders, apart by what spreads these; what shifts all of them is
    Monte Carlo error."""
    whole = curve.each.var(0, ddof=1) / len(curve.each)
    share = np.divide(curve.noise, whole, out=np.zeros_like(whole), where=whole > 0).clip(0, 1)
    of_shift = curve.mcse**2 - curve.noise
    return error * np.sqrt(1 - share), np.sqrt(error**2 * share + of_shift)
