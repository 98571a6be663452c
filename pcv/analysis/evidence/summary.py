"""The evidence of one model as text, and models side by side by their evidence alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pcv.analysis.evidence.curves import Estimate, extent, frame, left_out
from pcv.analysis.evidence.ways import BRIDGE, GOOD_K, doubts, in_words, number
from pcv.analysis.results.wording import wrapped
from pcv.base.errors import PcvError

COLUMNS = ["s_ccv", "s_ccv_se", "s_ccv_mcse", "s_ccv_per_n", "s_ccv_trimmed", "s_cv"]
"""of the table by the number of units left out"""


def curve_summary(curve: xr.Dataset, name: str) -> str:
    """The evidence of a model along growing training sets, as text."""
    n, most = extent(curve)
    by_size = frame(curve)
    every = sorted({most, *left_out(n, curve.attrs["num_params"])})
    rows = by_size.loc[[p for p in every if p in by_size.index], COLUMNS]
    errors = dict.fromkeys(("s_ccv_se", "s_ccv_mcse"), "{:.2g}".format)
    table = rows.rename_axis(index=None, columns="left out").to_string(
        float_format="{:.2f}".format, formatters=errors
    )
    warnings = [f"{doubt}." for doubt in doubts(curve)] + curve.attrs["marks"]
    first = f"{name}: {curve.sizes['order']} random orders of {n} units, 2 x "
    return "\n".join(
        [
            f"{first}{curve.attrs['particles']} particles along each",
            wrapped(f"{in_words(curve)}."),
            *(wrapped(f"Warning: {warning}") for warning in warnings),
            "",
            table,
        ]
    )


def evidence_summary(
    method: str, estimate: Estimate, khat: float, by_laplace: str, marks: Sequence[str]
) -> str:
    """log p(y) by one way, as text.

    Args:
        method: "bridge" or "laplace".
        estimate: of log p(y).
        khat: of Laplace's approximation.
        by_laplace: what Laplace's approximation gives beside bridge sampling, in words.
        marks: caveats of the full-data fit.
    """
    text = f"log p(y) {number(estimate)} (MCSE {estimate.mcse:.2g}) by "
    if method == "bridge":
        first = ", ".join([text + BRIDGE, *filter(None, [by_laplace])])
        return "\n".join(map(wrapped, [first, *(f"Warning: {mark}" for mark in marks)]))
    text += "Laplace's approximation, "
    text += f"k-hat {khat:.2f}" if np.isfinite(khat) else "whose weights are alike"
    if khat > GOOD_K:
        text += (
            f", above {GOOD_K}: the posterior has heavier tails, so neither can be trusted; leave "
            "out `method`"
        )
    return wrapped(text)


def bayes_factors(estimates: Mapping[str, Estimate], reference: str) -> pd.DataFrame:
    """Evidence of models, best first, and log Bayes factors over a reference (nats)."""
    base = estimates[reference]
    rows = {
        name: {
            "log_evidence": one.value,
            "mcse": one.mcse,
            "log_bf": one.value - base.value,
            "log_bf_mcse": float(np.hypot(one.mcse, base.mcse)) * (name != reference),
        }
        for name, one in estimates.items()
    }
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")
    return frame.sort_values("log_evidence", ascending=False)


def bayes_factor_table(frame: pd.DataFrame, reference: str, warnings: Sequence[str]) -> str:
    """What `bayes_factors` returns, as text."""
    rows = frame.rename_axis(index=None, columns="model")
    errors = dict.fromkeys(("mcse", "log_bf_mcse"), "{:.2g}".format)
    table = rows.to_string(float_format="{:.2f}".format, formatters=errors)
    lines = [wrapped(f"Warning: {warning}") for warning in warnings]
    return "\n".join([f"Log evidence; log Bayes factors over {reference}", table, *lines])


ALIKE = {
    "outcome_print": "set of data",
    "outcome": "outcome",
    "folds_print": "set of orders",
    "prepared": "share that prepares",
}
"""attributes that curves share"""


def check_curves(curves: Mapping[str, xr.Dataset], reference: str | None) -> None:
    """Refuse curves of other data, orders or shares that prepare.

    Raises:
        PcvError: they cannot be compared, or there is no such reference.
    """
    first = next(iter(curves))
    for key, what in ALIKE.items():
        for name, curve in curves.items():
            if curve.attrs[key] != curves[first].attrs[key]:
                raise PcvError(
                    f"compare: '{name}' has another {what} than '{first}'; give the same data, "
                    "splits, prepare and seed"
                )
    _check_reference(curves, reference)


def check_evidences(models: Mapping[str, Any], reference: str | None) -> str:
    """The model that others are compared with, by default the best.

    Raises:
        PcvError: models have other data, or there is no such reference.
    """
    _check_reference(models, reference)
    chosen = reference or max(models, key=lambda name: models[name].log_evidence)
    for name, one in models.items():
        if one.outcome_print != models[chosen].outcome_print:
            raise PcvError(f"compare: '{name}' has another set of data than '{chosen}'")
    return chosen


def _check_reference(models: Mapping[str, Any], reference: str | None) -> None:
    if reference is not None and reference not in models:
        raise PcvError(f"compare: no model '{reference}'; there are {', '.join(models)}")
