"""Out-of-fold predictions as ArviZ groups and as tables. No JAX.

`predicted` is the content of group ``predictions`` of diagnostics.zarr, of
`pcv.analysis.predictions.predictions`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Float, Int

from pcv.analysis.calibration import Calibration, calibrate
from pcv.analysis.results.scored import predict_of
from pcv.base.errors import PcvError
from pcv.base.storable import storable

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
NO_PREDICTIONS = (
    "there are no predictions: the model cannot draw its outcome; give it one, "
    "pcv.Model(..., predict=...) or, where it has its own `marginal`, marginal_predict=..."
)
LOG_LIK_ALONE = "log likelihoods are all that is known here; this needs the model itself"


def predictions_of(tree: xr.DataTree) -> xr.Dataset:
    """The group ``predictions``; empty if there is none."""
    group = tree.children.get("predictions")
    return xr.Dataset() if group is None else group.to_dataset(inherit=False)


def replicated(tree: xr.DataTree) -> xr.Dataset:
    """The group ``predictions`` of a result, with replicates.

    Raises:
        PcvError: there are none, and why.
    """
    predicted = predictions_of(tree)
    if "y_rep" in predicted:
        return predicted
    if tree["diagnostics"].attrs.get("log_lik_alone"):
        raise PcvError(f"there are no predictions: {LOG_LIK_ALONE}")
    if note := tree["diagnostics"].attrs.get("predictions"):
        raise PcvError(note.removesuffix("."))
    raise PcvError(
        "there are no predictions: none were kept, as `predictions` is 0; cross-validate with "
        "predictions=400"
    )


def groups_of(
    predicted: xr.Dataset, outcome: str, columns: Mapping[str, np.ndarray]
) -> xr.DataTree:
    """Predictions in ArviZ's groups, units in the order of the data.

    Args:
        predicted: with replicates.
        outcome: its name.
        columns: of the data, by row.

    Returns:
        posterior_predictive (chain, draw, unit), observed_data and constant_data (unit), with the
        fold of each unit as a coordinate. Whole numbers are integers.
    """
    row = predicted["row"].values
    units = {
        "unit": ("unit", predicted["unit"].values),
        "fold": ("unit", predicted["of_fold"].values),
    }
    if len(np.unique(row)) == len(row) and len(np.unique(units["unit"][1])) < len(row):
        units["row"] = ("unit", row)
    chains, draws = (np.arange(predicted.sizes[dim]) for dim in ("chain", "draw"))
    each = [predicted[name].values for name in ("y", "y_rep")]
    y, y_rep = (x.astype(int) for x in each) if all(map(are_whole, each)) else each
    replicates = {outcome: (("chain", "draw", "unit"), y_rep)}
    groups = {
        "posterior_predictive": xr.Dataset(replicates, {"chain": chains, "draw": draws, **units}),
        "observed_data": xr.Dataset({outcome: ("unit", y)}, units),
    }
    known = {name: ("unit", x[row]) for name, x in columns.items() if name not in units}
    if known:
        groups["constant_data"] = xr.Dataset(known, units)
    return xr.DataTree.from_dict({name: storable(group) for name, group in groups.items()})


def replicates(predicted: xr.Dataset) -> Float[np.ndarray, "replicate unit"]:
    """The replicates of all chains."""
    return predicted["y_rep"].values.reshape(-1, predicted.sizes["unit"])


def are_whole(x: np.ndarray) -> bool:
    """Whether all values are whole numbers."""
    return bool((x == np.round(x)).all())


def quantiles(predicted: xr.Dataset) -> Float[np.ndarray, "quantile unit"]:
    """`QUANTILES` of the predictive of every unit; of whole numbers, whole numbers."""
    y_rep = replicates(predicted)
    if are_whole(y_rep):
        return np.quantile(y_rep, QUANTILES, axis=0, method="inverted_cdf")
    return np.quantile(y_rep, QUANTILES, axis=0)


def table(predicted: xr.Dataset, diagnostics: xr.Dataset) -> pd.DataFrame:
    """Predictions unit by unit.

    Args:
        predicted: with replicates.
        diagnostics: of the same folds.

    Returns:
        One row per unit, in the order of the data: its fold, the outcome y, mean, standard
        deviation and quantiles of its predictive, PIT, elpd (nats) and the MCSE of elpd. Units of
        several rows have a line for each, without elpd, which is unknown where groups are scored,
        too; those that several folds test have one for each fold. Of models that are given other
        tested outcomes, through lags, ``predict`` says how: "conditional", as observed; "path",
        simulated, so that all but elpd is of paths, and ``log_path`` with its MCSE is their log
        score.
    """
    y_rep = replicates(predicted)
    elpd, mcse = _elpd(predicted, diagnostics)
    of_lags: dict[str, Any] = {}
    given = predict_of(diagnostics, "pointwise", "log_path")
    if given == "path":
        place, known = _places(predicted, diagnostics)
        for name, variable in (("log_path", ""), ("log_path_mcse", "_slot_mcse")):
            by_slot = diagnostics[f"log_path_pointwise{variable}"].values
            of_lags[name] = np.where(known, by_slot[place], np.nan)
    if given != "either" and "mixture" not in diagnostics.attrs:  # which does not know its models'
        of_lags["predict"] = given
    return pd.DataFrame(
        {
            "fold": predicted["of_fold"].values,
            "y": predicted["y"].values,
            "mean": y_rep.mean(0, dtype=float),
            "sd": y_rep.std(0, ddof=1, dtype=float),
            **{f"{100 * p:g}%": x for p, x in zip(QUANTILES, quantiles(predicted))},
            "pit": predicted["pit"].values,
            "elpd": elpd,
            "mcse": mcse,
            **of_lags,
        },
        pd.Index(predicted["unit"].values, name="unit"),
    )


def _elpd(
    predicted: xr.Dataset, diagnostics: xr.Dataset
) -> tuple[Float[np.ndarray, " unit"], Float[np.ndarray, " unit"]]:
    """elpd of each unit and its MCSE, which PSIS has for folds alone; NaN for units of several
    rows."""
    d, (place, known) = diagnostics, _places(predicted, diagnostics)
    alone = (d["unit_name"].values != "").sum(1) == 1
    of_unit = d["pointwise_own_mcse"].values if "pointwise_own_mcse" in d else np.nan
    mcse = np.where(alone[:, None], d["joint_mcse"].values[:, None], of_unit)
    mcse = np.broadcast_to(mcse, d["unit_name"].shape)
    elpd = d["pointwise_elpd"].values[place]
    known &= "group_name" not in d  # whose slots have no elpd of units
    return np.where(known, elpd, np.nan), np.where(known, mcse[place], np.nan)


def _places(
    predicted: xr.Dataset, diagnostics: xr.Dataset
) -> tuple[tuple[Int[np.ndarray, " unit"], Int[np.ndarray, " unit"]], Bool[np.ndarray, " unit"]]:
    """Fold and slot of each row, and whether it is its unit's only one."""
    names = diagnostics["unit_name"].values
    of_fold = pd.Index(diagnostics["fold"].values.astype(str))
    fold = of_fold.get_indexer(predicted["of_fold"].values)
    slot = (names[fold] == predicted["unit"].values[:, None]).argmax(1)
    several = pd.MultiIndex.from_arrays([fold, slot]).duplicated(keep=False)
    return (fold, slot), ~several


def calibration_of(predicted: xr.Dataset) -> Calibration:
    """Calibration of the units' predictives; of a unit that several folds test, the first."""
    first = of_each_row(predicted)
    _, fold = np.unique(first["of_fold"].values, return_inverse=True)
    return calibrate(first["pit"].values, fold)


def of_each_row(predicted: xr.Dataset) -> xr.Dataset:
    """The first prediction of each row; others, by further folds, are alike."""
    _, first = np.unique(predicted["row"].values, return_index=True)
    return predicted.isel(unit=first)


def fold_summary(draws: xr.Dataset, posterior: xr.Dataset) -> pd.DataFrame:
    r"""Parameters in every fold, and how far each fold moves them.

    .. math:: \mathrm{shift}_k = \frac{\bar\theta_k - \bar\theta}{\mathrm{sd}(\theta)}

    with mean and standard deviation of the full-data posterior.

    Args:
        draws: of variables in every fold, of `pcv.core.parameters.parameter_draws`.
        posterior: their draws given the full data.

    Returns:
        One row per parameter and fold: mean, sd, quantiles, shift; for each parameter, the folds
        that move it most come first.
    """
    full, parts = full_data(draws, posterior), []
    for name, x in _elements(draws):
        each = x.stack(sample=("chain", "draw")).transpose("fold", "sample").values
        with np.errstate(divide="ignore", invalid="ignore"):  # of what does not vary
            shift = (each.mean(1) - full[name][0]) / full[name][1]
        of_fold = np.quantile(each, QUANTILES, axis=1)
        rows = pd.DataFrame(
            {
                "parameter": name,
                "fold": x["fold"].values,
                "mean": each.mean(1),
                "sd": each.std(1, ddof=1),
                **{f"{100 * p:g}%": q for p, q in zip(QUANTILES, of_fold)},
                "shift": shift,
            }
        )
        parts.append(rows.iloc[np.argsort(-np.abs(shift), kind="stable")])
    return pd.concat(parts).set_index(["parameter", "fold"])


def full_data(draws: xr.Dataset, posterior: xr.Dataset) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each parameter given the full data.

    Args:
        draws, posterior: as for `fold_summary`.
    """
    chosen = posterior[list(draws.data_vars)]
    return {name: (float(x.mean()), float(x.std(ddof=1))) for name, x in _elements(chosen)}


def _elements(draws: xr.Dataset) -> Iterator[tuple[str, xr.DataArray]]:
    """Every element of the variables, with its name: ``mu``, ``alpha[north]``, ..."""
    for name, x in draws.data_vars.items():
        dims = [dim for dim in x.dims if dim not in ("fold", "chain", "draw")]
        for index in np.ndindex(*(x.sizes[dim] for dim in dims)):
            place = dict(zip(dims, index))
            labels = (str(x[dim].values[i] if dim in x.coords else i) for dim, i in place.items())
            yield f"{name}[{', '.join(labels)}]" if dims else str(name), x.isel(place)


def note(predicted: xr.Dataset, wanted: int) -> str:
    """Why there are no predictions, or fewer than wanted; empty if there is nothing to say.

    Args:
        predicted: of folds that were sampled.
        wanted: number of replicates of each unit that there was not memory for, or 0.
    """
    if "y_rep" not in predicted:
        return f"N{NO_PREDICTIONS.removeprefix('there are n')}."
    number = predicted.sizes["chain"] * predicted.sizes["draw"]
    if number < wanted:
        return f"{number} replicates of each unit are kept: {wanted} would take over 256 MiB."
    return ""
