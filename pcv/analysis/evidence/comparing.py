"""Models side by side, by evidence and by cumulative score."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import norm, t

from pcv.analysis.evidence.curves import Estimate, after, extent, minus, trained_by
from pcv.analysis.evidence.ways import answer, doubts
from pcv.analysis.results.wording import wrapped

CLEAR = 2.0
"""standard errors beyond which a difference counts, more where few orders tell what they are"""


def log_bayes_factor(one: xr.Dataset, other: xr.Dataset) -> Estimate:
    """Of a model's ``evidence.zarr`` and that of the model it is compared with."""
    (_, a), (_, b) = answer(one), answer(other)
    return Estimate(a.value - b.value, float(np.hypot(a.mcse, b.mcse)))


def disagreement(one: xr.Dataset, other: xr.Dataset) -> str:
    """In words, where the Bayes factor and the cumulative score prefer different models."""
    names, factor = (one.attrs["model"], other.attrs["model"]), log_bayes_factor(one, other)
    num_units, left_out = extent(one)
    later = min(num_units - num_units // 2, left_out)
    trained = [num_units - left_out, num_units - later]
    ccv = minus(after(one, trained), after(other, trained))
    value, half = ccv.value
    error, error_half = np.hypot(ccv.se, ccv.mcse)
    clear = abs(factor.value) > CLEAR * factor.mcse and abs(value) > _clear(one) * error
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
    if half * value > 0 and abs(half) > _clear(one) * error_half:
        most, least, likely = (
            num_units + int(np.ceil(abs(factor.value) * later / (abs(half) + by * error_half)))
            for by in (-1, 1, 0)
        )
        words += (
            f" As the later half of the units brings {abs(half) / later:.2g} nats each, they "
            f"would agree after about {likely} units ({least} to {most}, within an SE)."
        )
    return words


def _clear(path: xr.Dataset) -> float:
    return float(t.ppf(norm.cdf(CLEAR), path.sizes["order"] - 1))


def best(paths: Mapping[str, xr.Dataset]) -> str:
    """The model with the highest cumulative score."""
    return max(paths, key=lambda name: after(paths[name], [paths[name].attrs["prepared"]]).value[0])


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
        if abs(apart) < _clear(paths[reference]) * error:
            words = f"'{better}' and '{worse}' cannot be told apart"
        sign = 1 if better == name else -1
        factor = f"; log Bayes factor {sign * row['log_bf']:.2f} (MCSE {row['log_bf_mcse']:.2g})"
        said.append(
            f"{words} once {n - left_out} units have prepared: difference {abs(apart):.2f} nats "
            f"(SE {row['diff_se']:.2g} over orders, MCSE {row['diff_mcse']:.2g})"
            + factor * bool(np.isfinite(row["log_bf"]))
            + "."
        )
    said += [disagreement(path, paths[reference]) for path in paths.values()]
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
    errors = dict.fromkeys(("mcse", "log_bf_mcse", "diff_se", "diff_mcse"), "{:.2g}".format)
    rows = frame_.to_string(float_format="{:.2f}".format, formatters=errors)
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
        (_, found), other = answer(path), paths[reference]
        factor = log_bayes_factor(path, other)
        rows[name] = {
            "log_evidence": found.value,
            "mcse": found.mcse,
            "log_bf": factor.value,
            "log_bf_mcse": factor.mcse * (name != reference),
            **_cumulated(path, other, extent(path)[1]),
        }
    frame_ = pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")
    return frame_.sort_values("s_ccv", ascending=False)


def at(paths: Mapping[str, xr.Dataset], reference: str, left_out: int) -> pd.DataFrame:
    """Cumulative scores of P units, best first, and their differences; arguments as for `table`.

    Raises:
        PcvError: P is out of range.
    """
    rows = {name: _cumulated(path, paths[reference], left_out) for name, path in paths.items()}
    frame_ = pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")
    return frame_.sort_values("s_ccv", ascending=False)


def _cumulated(path: xr.Dataset, other: xr.Dataset, left_out: int) -> dict[str, float]:
    trained = [trained_by(path, left_out)]
    ccv, of_other = after(path, trained), after(other, trained)
    apart, own = minus(ccv, of_other), path is not other
    return {
        "s_ccv": ccv.value[0],
        "s_ccv_per_n": ccv.value[0] * extent(path)[0] / left_out,
        "s_ccv_diff": apart.value[0],
        "diff_se": apart.se[0] * own,
        "diff_mcse": apart.mcse[0] * own,
    }
