"""Whether cross-validations can be compared: hashes of their data and folds. No JAX."""

import hashlib
from collections.abc import Mapping

import numpy as np
import xarray as xr

from pcv.analysis.results.summary import is_subsample
from pcv.base.errors import PcvError


def comparable(
    models: Mapping[str, xr.DataTree], joint: bool, call: str = "compare"
) -> dict[str, xr.Dataset]:
    """The diagnostics of cross-validations over the same folds of the same data, named alike.

    Args:
        models: the groups "folds" and "diagnostics" of each, by the models' names; attributes
            ``outcome_print`` and ``folds_print`` are hashes of what they share.
        joint: whether joint scores are compared, or pointwise ones.
        call: what the user calls.

    Raises:
        PcvError: they differ in data or folds, or in what pointwise scores are given.
    """
    diagnosed = {name: tree["diagnostics"].dataset for name, tree in models.items()}
    if not joint and any(is_subsample(d) for d in diagnosed.values()):
        raise PcvError("compare: subsamples have one score, of whole terms; leave joint out")
    if len({is_subsample(d) for d in diagnosed.values()}) > 1:
        raise PcvError(
            "compare: some score all terms, others a subsample; score all models alike, "
            "subsamples with the same m and seed"
        )
    first = next(iter(models))
    for key, what in (("outcome_print", "data"), ("folds_print", "folds")):
        for other, tree in models.items():
            if tree.attrs[key] != models[first].attrs[key]:
                if not (tree.attrs[key] and models[first].attrs[key]):
                    unknown = first if tree.attrs[key] else other
                    raise PcvError(
                        f"{call}: '{unknown}' does not know its data, as the others do; give "
                        "from_log_lik(..., data=..., outcome=...)"
                    )
                alike = "the same folds of the same outcome"
                if is_subsample(diagnosed[first]):
                    alike = "one subsample, of the same m and seed"
                raise PcvError(
                    f"{call}: '{other}' was scored on other {what} than '{first}'; give models "
                    f"over {alike}"
                )
    if not joint:
        _check_lags(diagnosed)
    # Front-ends name units by their own dimensions; they are in the same order.
    names = diagnosed[first]
    return {
        name: d.assign_attrs(model=name)
        .assign_coords(fold=names["fold"].values)
        .assign(unit_name=names["unit_name"].variable)
        for name, d in diagnosed.items()
    }


def _check_lags(diagnosed: Mapping[str, xr.Dataset]) -> None:
    """Refuse pointwise scores of which some are given outcomes that the same fold tests."""
    lags = {name: int(d.attrs["given_tested"]) for name, d in diagnosed.items()}
    lagged, others = (
        [name for name, lag in lags.items() if (lag > 0) == is_] for is_ in (True, False)
    )
    if lagged and others:
        slots = next(iter(diagnosed.values())).sizes["slot"]
        raise PcvError(
            f"compare: pointwise scores of '{lagged[0]}' are given outcomes that the same fold "
            f"tests, through lags, those of '{others[0]}' are not: at most {lags[lagged[0]]} "
            f"step(s) ahead against up to {slots}; compare the joint score (joint=True), or by_step"
        )


def shared_prints(data: xr.Dataset, outcome: str, folds: xr.Dataset) -> dict[str, str]:
    """Hashes of what models must share to be compared."""
    of_folds = [folds[name].values for name in ("test", "held_out", "order") if name in folds]
    return {"outcome_print": outcome_print(data, outcome), "folds_print": _hash(*of_folds)}


def outcome_print(data: xr.Dataset, outcome: str) -> str:
    """A hash of the outcome, and of the units that its rows belong to."""
    return _hash(*(data[name].values for name in (outcome, "unit_of_row") if name in data))


def _hash(*arrays: np.ndarray) -> str:
    """A hash of the arrays' values, whatever their dtype."""
    total = hashlib.sha256()
    for x in arrays:
        total.update(np.ascontiguousarray(x, float).tobytes())
    return total.hexdigest()[:16]
