r"""Evidence and cumulative cross-validation, by estimates along random orders of units. No JAX.

With units taken up in a random order, :math:`\log p(y_1, \dots, y_n)` is a sum of log predictive
densities of each unit given those before it. Its mean over orders separates (Fong and Holmes 2020,
propositions 2 and 3)

.. math::
    \log p(y) &= S_\mathrm{PCV}(P) + S_\mathrm{CCV}(P), \qquad
    S_\mathrm{CCV}(P) = \sum_{p=1}^P S_\mathrm{CV}(p) \\
    S_\mathrm{CV}(p) &= \mathrm E \, \frac1p \sum_{j \in \mathrm{test}}
        \log p(y_j \mid y_\mathrm{train}), \qquad
    S_\mathrm{CCV}(P) = \mathrm E \log p(y_\mathrm{test} \mid y_\mathrm{train}), \qquad
    S_\mathrm{PCV}(P) = \mathrm E \log p(y_\mathrm{train})

where p and P units are left out: the evidence is leave-p-out cross-validation cumulated over all p,
of which small training sets are the part that the prior decides.

Every order is followed twice, by independent sets of particles, so that their differences are Monte
Carlo error, and what remains of the spread over orders is that of the orders. As estimates of p(y)
are unbiased, those of log p(y) are too low, by half their variance; this is made up for.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float, Int
from scipy.stats import trim_mean

from pcv.analysis.results.wording import wrapped

TRIMMED = 0.1
"""share of orders left out at each end of a trimmed mean"""
MAX_SCORES_APART = 1.0
"""nats between both sets' scores of all other units, beyond which the next unit's score, which the
path approaches in parts, takes their place"""
MOST_SIZES = 100
"""sizes of the training set at which all other units are scored"""
CLEAR = 2.0
"""standard errors beyond which a difference counts"""
PER_PARAMETER = 10
"""units that train per parameter, for the least training set besides shares of all units"""


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
    """Numbers of units left out, P, at which to show cumulative scores.

    >>> left_out(100, 3), left_out(332, 4)
    ([50, 70, 90], [166, 292, 299])
    """
    some = {num_units - round(0.1 * num_units), num_units - round(0.5 * num_units)}
    some.add(num_units - PER_PARAMETER * num_params)
    return sorted(p for p in some if 1 <= p < num_units)


def sizes(num_units: int, num_params: int, first: int, prepared: int) -> Int[np.ndarray, " size"]:
    """Sizes of the training set at which all other units are scored, from `first` on; `prepared`
    is one of them."""
    even = np.linspace(first, num_units - 1, min(num_units - first, MOST_SIZES)).astype(int)
    shown = np.append(num_units - np.array(left_out(num_units, num_params), int), prepared)
    return np.union1d(even, shown[shown >= first])


def curves(path: xr.Dataset) -> dict[str, Curve]:
    """S_CV(p), S_CCV(P) and S_PCV(P) at the sizes of ``evidence.zarr``."""
    log_evidence, trained = path["log_evidence"].values, path["trained"].values
    all_ = np.full(trained.size, log_evidence.shape[2] - 1)
    ahead = log_evidence[:, :, trained + 1] - log_evidence[:, :, trained]
    apart = np.abs(np.diff(path["score"].values, axis=1)) > MAX_SCORES_APART
    found = {
        "s_cv": over_orders(np.where(apart, ahead, path["score"].values)),
        "s_ccv": gained(log_evidence, trained, all_),
    }
    if not path.attrs["improper"]:
        found["s_pcv"] = gained(log_evidence, 0 * trained, trained)
    return found


def frame(path: xr.Dataset) -> pd.DataFrame:
    """The curves by the number of units left out."""
    found, n = curves(path), path.sizes["trained_units"] - 1
    columns = {
        f"{name}{end}": getattr(curve, field)
        for name, curve in found.items()
        for end, field in (("", "value"), ("_se", "se"), ("_mcse", "mcse"))
    }
    out = n - path["trained"].values
    each = found["s_ccv"].each
    columns |= {
        "s_ccv_per_n": found["s_ccv"].value * n / out,
        "s_ccv_median": np.median(each, axis=0),
        "s_ccv_trimmed": trim_mean(each, TRIMMED),
    }
    return pd.DataFrame(columns, pd.Index(out, name="left_out")).sort_index()


def of_path(path: xr.Dataset) -> Estimate:
    """log p(y) of a model; NaN where its prior is improper."""
    if path.attrs["improper"]:
        return Estimate(np.nan, np.nan)
    return evidence(path["log_evidence"].values[:, :, -1])


MAX_APART, LEAST_APART = 4.0, 0.05
"""MCSEs, and nats, by which two ways to the evidence may differ"""
MAX_SPREAD = 1.0
"""nats between estimates along one order"""
GOOD_K = 0.7
"""k-hat up to which Laplace's approximation counts"""


def in_words(path: xr.Dataset) -> str:
    """log p(y) by each way, in a line."""
    if wrong := path.attrs["improper"]:
        return (
            f"no evidence, as the prior of '{wrong}' is improper, or `init` does not draw from it"
        )
    found = of_path(path)
    words = [f"log p(y) {found.value:.3f} (MCSE {found.mcse:.2g})"]
    for way in path["way"].values:
        of_way = path.sel(way=way)
        khat = float(of_way["khat"])
        tail = f", k-hat {khat:.2f}" if np.isfinite(khat) else ""
        value, mcse = float(of_way["log_evidence_by"]), float(of_way["mcse_by"])
        said = f"{value:.3f} ({mcse:.2g}{tail})" if np.isfinite(value) else "unknown"
        words.append(f"by {way} {said}")
    return ", ".join(words)


def doubts(path: xr.Dataset) -> list[str]:
    """In words, where estimates are too noisy, or bridge sampling or a good Laplace approximation
    differs."""
    said = []
    whole = path["log_evidence"].values[:, :, -1]
    if (spread := float(np.sqrt(whole.var(1, ddof=1).mean()))) > MAX_SPREAD:
        said.append(
            f"estimates along one order differ by {spread:.1f} nats, too much for their MCSE to be "
            "trusted; use more particles"
        )
    found = of_path(path)
    for way in path["way"].values if "way" in path else []:
        at = path.sel(way=way)
        apart = float(at["log_evidence_by"]) - found.value
        error = float(np.hypot(found.mcse, at["mcse_by"]))
        if abs(apart) > max(MAX_APART * error, LEAST_APART) and not at["khat"] > GOOD_K:
            said.append(
                f"log p(y) by {way} differs by {apart:.2f} nats (MCSE {error:.2g}): `log_prior` "
                "lacks a constant, or one of both did not reach all of the posterior"
            )
            break
    return said


def after(path: xr.Dataset, trained: list[int]) -> Curve:
    """Cumulative scores of the units after these numbers of them."""
    log_evidence = path["log_evidence"].values
    return gained(log_evidence, np.array(trained), np.full(len(trained), log_evidence.shape[2] - 1))


class Difference(NamedTuple):
    """A model's differences from another (nats)."""

    bayes_factor: Estimate
    """log of it"""
    s_ccv: Curve
    """once units have prepared, and after half of all"""
    words: str
    """where the Bayes factor and the cumulative score disagree"""


def difference(one: xr.Dataset, other: xr.Dataset) -> Difference:
    """Of a model's ``evidence.zarr`` and that of the model it is compared with."""
    a, b, (n, left_out) = of_path(one), of_path(other), extent(one)
    factor = Estimate(a.value - b.value, float(np.hypot(a.mcse, b.mcse)))
    trained = [n - left_out, max(n // 2, n - left_out)]
    ccv = minus(after(one, trained), after(other, trained))
    words = _disagree((one.attrs["model"], other.attrs["model"]), factor, ccv, n, left_out)
    return Difference(factor, ccv, words)


def _disagree(
    names: tuple[str, str], factor: Estimate, ccv: Curve, num_units: int, left_out: int
) -> str:
    value, half = ccv.value
    error, error_half = np.hypot(ccv.se, ccv.mcse)
    clear = abs(factor.value) > CLEAR * factor.mcse and abs(value) > CLEAR * error
    if not clear or np.sign(factor.value) == np.sign(value):
        return ""
    by_factor, by_score = (names if x > 0 else names[::-1] for x in (factor.value, value))
    words = (
        f"The Bayes factor prefers '{by_factor[0]}' (by {abs(factor.value):.1f} nats), cumulative "
        f"cross-validation '{by_score[0]}' (by {abs(value):.1f}). The first {num_units - left_out} "
        f"of {num_units} units decide, for which '{by_score[0]}' pays "
        f"{abs(factor.value - value):.1f} nats (S_PCV): a vaguer prior would pay more, however "
        "well it predicts afterwards."
    )
    if half * value > 0 and abs(half) > CLEAR * error_half:
        per_unit = abs(half) / (num_units - max(num_units // 2, num_units - left_out))
        more = int(np.ceil(abs(factor.value) / per_unit))
        words += (
            f" As the later half of the units brings {per_unit:.2g} nats each, they would agree "
            f"after about {num_units + more} units."
        )
    return words


def best(paths: Mapping[str, xr.Dataset]) -> str:
    """The model with the highest cumulative score."""
    return max(paths, key=lambda name: after(paths[name], [paths[name].attrs["prepared"]]).value[0])


def extent(path: xr.Dataset) -> tuple[int, int]:
    """Numbers of all units, and of those whose score is cumulated."""
    n = path.sizes["trained_units"] - 1
    return n, n - int(path.attrs["prepared"])


def about(paths: Mapping[str, xr.Dataset], reference: str) -> str:
    """What was followed, in a line."""
    one = paths[reference]
    n, left_out = extent(one)
    return (
        f"Cumulative score of {left_out} units after {n - left_out} that prepare: "
        f"{one.sizes['order']} random orders, 2 × {one.attrs['particles']} particles along each"
    )


def verdict(paths: Mapping[str, xr.Dataset], reference: str) -> list[str]:
    """Which model predicts better, and what does not fit together, in sentences."""
    rows, (n, left_out) = table(paths, reference), extent(paths[reference])
    said = []
    for name, row in rows.drop(reference).iterrows():
        apart, error = row["s_ccv_diff"], np.hypot(row["diff_se"], row["diff_mcse"])
        better, worse = (name, reference) if apart > 0 else (reference, name)
        words = f"'{better}' scores higher on these data than '{worse}'"
        if abs(apart) < CLEAR * error:
            words = f"'{better}' and '{worse}' cannot be told apart"
        sign = 1 if better == name else -1
        factor = f"; log Bayes factor {sign * row['log_bf']:.2f} (MCSE {row['log_bf_mcse']:.2g})"
        said.append(
            f"{words} once {n - left_out} units have prepared: difference {abs(apart):.2f} nats "
            f"(SE {row['diff_se']:.2g} over orders, MCSE {row['diff_mcse']:.2g})"
            + factor * bool(np.isfinite(row["log_bf"]))
            + "."
        )
    said += [difference(path, paths[reference]).words for path in paths.values()]
    said += [f"'{name}': {words}." for name, path in paths.items() for words in doubts(path)]
    for name, path in paths.items():
        if wrong := path.attrs["improper"]:
            said.append(
                f"'{name}' has no evidence: the prior of '{wrong}' is improper, or `init` does not "
                "draw from it."
            )
    return [words for words in said if words]


def in_table(paths: Mapping[str, xr.Dataset], reference: str) -> str:
    """The comparison as text."""
    frame_ = table(paths, reference).rename_axis(index=None, columns="model")
    rows = frame_.to_string(float_format="{:.2f}".format)
    heading = f"{about(paths, reference)}; differences from {reference}"
    return "\n".join([wrapped(heading), rows, "", *map(wrapped, verdict(paths, reference))])


def table(paths: Mapping[str, xr.Dataset], reference: str) -> pd.DataFrame:
    """Models by cumulative score, best first, and their differences from one of them.

    Args:
        paths: ``evidence.zarr`` of each model, over the same orders.
        reference: the model that others are compared with.
    """
    rows = {}
    for name, path in paths.items():
        (n, left_out), found, own = extent(path), of_path(path), name != reference
        ccv, apart = after(path, [n - left_out]), difference(path, paths[reference])
        rows[name] = {
            "log_evidence": found.value,
            "mcse": found.mcse,
            "log_bf": apart.bayes_factor.value,
            "log_bf_mcse": apart.bayes_factor.mcse * own,
            "s_ccv": ccv.value[0],
            "s_ccv_per_n": ccv.value[0] * n / left_out,
            "s_ccv_diff": apart.s_ccv.value[0],
            "diff_se": apart.s_ccv.se[0] * own,
            "diff_mcse": apart.s_ccv.mcse[0] * own,
        }
    frame_ = pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")
    return frame_.sort_values("s_ccv", ascending=False)
