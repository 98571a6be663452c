r"""Out-of-fold predictions of units, from the replicates that chains keep or that PSIS resamples.

A unit that is tested by a fold is predicted by the fold's draws, whose training set lacks it:

.. math:: \tilde y_{is} \sim p(y_i \mid \theta_{ks}), \qquad
          \theta_{ks} \sim p(\theta \mid y_{\mathrm{train}_k})

Units stand in the order of the data, once for every fold that tests them; units of several rows
once for every row.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Float, Int, Shaped

from pcv.analysis import kept as keeping
from pcv.analysis.kept import Keeps
from pcv.analysis.samples import parts


class Places(NamedTuple):
    """Where the tested units are among the slots of the folds, in the order of the data."""

    fold: Int[np.ndarray, " unit"]
    slot: Int[np.ndarray, " unit"]
    element: Int[np.ndarray, " unit"]
    """among the rows of the unit"""

    def of(self, x: np.ndarray) -> np.ndarray:
        """Values by unit, of an array (fold, slot, …) or (fold, slot, row, …)."""
        return x[self.fold, self.slot]


def places_of(rows: Int[np.ndarray, "fold slot row"]) -> Places:
    """The places of the tested rows.

    Args:
        rows: indices of the rows of each slot, padded with -1.

    >>> places_of(np.array([[[2], [-1]], [[0], [1]]])).fold
    array([1, 1, 0])
    """
    fold, slot, element = np.nonzero(rows >= 0)
    order = np.argsort(rows[fold, slot, element], kind="stable")
    return Places(fold[order], slot[order], element[order])


def predictions(
    samples: Sequence[xr.Dataset],
    rows: Int[np.ndarray, "fold slot row"],
    outcome: Float[np.ndarray, " any_row"],
    unit: Shaped[np.ndarray, " any_row"],
    keeps: Keeps,
    uniform: Float[np.ndarray, " any_row"],
) -> xr.Dataset:
    r"""Replicates and PITs of all tested units.

    .. math:: \mathrm{PIT}_i = F_i(y_i^-) + u_i (F_i(y_i) - F_i(y_i^-)), \qquad
              F_i(y) = E[F(y \mid \theta) \mid y_{\mathrm{train}}]

    with :math:`u_i` uniform, for outcomes that may be equal. The expectation is a mean over draws
    of the conditional distribution function where the model has one, else the share of replicates
    below :math:`y_i`, with one more at random below or above.

    Args:
        samples: of each batch of folds, of all rounds.
        rows: indices of the rows of each slot, padded with -1; one row per unit, mostly.
        outcome: its values by row.
        unit: name of the unit of every row.
        keeps: most draws per chain.
        uniform: :math:`u`, by row.

    Returns:
        ``y_rep`` (chain, draw, unit), ``y``, ``pit`` and ``pit_mcse`` (unit), with coordinates
        ``unit``, ``row`` and ``of_fold``; and ``position`` (sampled_fold, chain, kept, entry), the
        draws of the parameters. Without replicates or positions where these were not kept.
    """
    drawn = [sample for sample in samples if sample.sizes["fold"]]
    names = np.concatenate([sample["fold"].values for sample in drawn]).astype(str)
    each = [_thinned(sample, keeps) for sample in drawn]
    dataset = xr.Dataset(coords={"sampled_fold": names})
    if all("kept_position" in x for x in each):
        number = min(x.sizes["returned"] for x in each)
        position = np.concatenate([x["kept_position"].values[:, :, -number:] for x in each])
        dataset["position"] = (("sampled_fold", "chain", "kept", "entry"), position)
    if all("kept_y_rep" in x for x in each):
        number = min(x.sizes["kept"] for x in each)
        y_rep = np.concatenate([x["kept_y_rep"].values[:, :, -number:] for x in each])
        by_slot = _by_element(np.moveaxis(y_rep, (1, 2), (-2, -1)), rows)
        pit = _pit_of_chains(drawn, rows, uniform)
        dataset = dataset.merge(of_units(by_slot, pit, rows, names, outcome, unit, uniform))
    return dataset


def of_units(
    y_rep: Float[np.ndarray, "fold slot row chain draw"],
    pit: tuple[Float[np.ndarray, "fold slot row"], Float[np.ndarray, "fold slot row"]] | None,
    rows: Int[np.ndarray, "fold slot row"],
    names: Shaped[np.ndarray, " fold"],
    outcome: Float[np.ndarray, " any_row"],
    unit: Shaped[np.ndarray, " any_row"],
    uniform: Float[np.ndarray, " any_row"],
) -> xr.Dataset:
    """Replicates and PITs in the order of the data.

    Args:
        y_rep: replicates.
        pit: from distribution functions, and its MCSE; None: PITs come from replicates.
        rows: indices of the rows, padded with -1.
        names: of the folds.
        outcome, unit, uniform: as for `predictions`.
    """
    place = places_of(rows)
    row, by_unit = rows[place], y_rep[place]
    if pit is None:
        pit_of_unit = pit_of_replicates(by_unit, outcome[row], uniform[row])
    else:
        pit_of_unit = pit[0][place], pit[1][place]
    return xr.Dataset(
        {
            "y_rep": (("chain", "draw", "unit"), np.moveaxis(by_unit, 0, -1)),
            "y": ("unit", outcome[row]),
            **{name: ("unit", x) for name, x in zip(("pit", "pit_mcse"), pit_of_unit)},
        },
        {"unit": unit[row], "row": ("unit", row), "of_fold": ("unit", names[place.fold])},
    )


def merged(
    of_psis: xr.Dataset, sampled: xr.Dataset | None, scored: Shaped[np.ndarray, " fold"]
) -> xr.Dataset:
    """Predictions of folds by PSIS, with those of the sampled folds put in.

    Args:
        of_psis: of all folds, of `pcv.core.psis_predictions.predictions_by_psis`.
        sampled: of `predictions`; None: no fold is sampled.
        scored: names of the folds that count.
    """
    rest = of_psis.isel(unit=np.isin(of_psis["of_fold"].values, scored))
    if sampled is None:
        return rest
    rest = rest.isel(unit=~np.isin(rest["of_fold"].values, sampled["sampled_fold"].values))
    draws = min(rest.sizes["draw"], sampled.sizes["draw"])
    each = [x.isel(draw=slice(x.sizes["draw"] - draws, None)) for x in (rest, sampled)]
    along = [name for name in sampled.variables if "unit" in sampled[name].dims]
    both = {
        name: (each[1][name].dims, np.concatenate([x[name].values for x in each], axis=-1))
        for name in along
    }
    of_fold = pd.Index(scored).get_indexer(both["of_fold"][1])
    order = np.lexsort((of_fold, both["row"][1]))
    coords = {name: both.pop(name) for name in ("unit", "row", "of_fold")}
    units = xr.Dataset(both, coords).isel(unit=order)
    return units.merge(sampled.drop_dims(["unit", "draw"]))


def _thinned(sample: xr.Dataset, keeps: Keeps) -> xr.Dataset:
    names = [x for x in (*keeping.ALONG, "kept_draw", "returned_draw") if x in sample]
    return keeping.thinned(sample[names], sample["n_draws"].values, keeps)


def _by_element(x: np.ndarray, rows: Int[np.ndarray, "fold slot row"]) -> np.ndarray:
    """Values (fold, slot, row, …), of those of slots too where each has one row."""
    return x.reshape(*rows.shape, *x.shape[x.ndim - 2 :])


def _pit_of_chains(
    samples: Sequence[xr.Dataset],
    rows: Int[np.ndarray, "fold slot row"],
    uniform: Float[np.ndarray, " any_row"],
) -> tuple[np.ndarray, np.ndarray] | None:
    """PIT of every row and its MCSE, from chains that averaged the distribution function."""
    if not all("pit_pointwise_below" in x for x in samples):
        return None
    of_parts = parts(samples, "pit_pointwise")
    each = []
    for name in ("below", "up_to"):
        x = of_parts.means[name]
        each.append(np.moveaxis(x, 1, -1).reshape(*rows.shape, x.shape[1]))
    there = (of_parts.reached & (of_parts.log_weight > -np.inf))[:, None, None]
    return pit_of_parts(each[0] + uniform[rows][..., None] * (each[1] - each[0]), there)


def pit_of_parts(
    value: Float[np.ndarray, "..."], there: Bool[np.ndarray, "..."]
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Mean over parts, and its MCSE if they are independent.

    Args:
        value: PIT of each row, last by part of the draws.
        there: which parts count, broadcast with `value`.
    """
    number = np.broadcast_to(there, value.shape).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.sum(value, axis=-1, where=there) / number
        squares = np.sum((value - mean[..., None]) ** 2, axis=-1, where=there)
        return mean, np.sqrt(squares / (number - 1) / number)


def pit_of_replicates(
    y_rep: Float[np.ndarray, "unit chain replicate"],
    y: Float[np.ndarray, " unit"],
    uniform: Float[np.ndarray, " unit"],
) -> tuple[Float[np.ndarray, " unit"], Float[np.ndarray, " unit"]]:
    """PIT of every unit among its replicates, and its MCSE if these are independent.

    Args:
        y_rep: replicates.
        y: outcome.
        uniform: place among replicates that equal the outcome.
    """
    y = y.astype(y_rep.dtype)  # or bounds, at which outcomes are censored, would not be equal
    below = (y_rep < y[:, None, None]).sum((1, 2))
    equal = (y_rep == y[:, None, None]).sum((1, 2))
    number = y_rep[0].size
    pit = (below + uniform * (1 + equal)) / (number + 1)
    return pit, np.sqrt(pit * (1 - pit) / number)
