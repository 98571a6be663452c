"""The sample artifact: written block by block during sampling, read by the diagnostics.

Variables: ``log_<kind>_<field>``, the sums of the log score with the fields of
`pcv.sampling.accumulate.log_sums`, dims (fold, chain, batch[, slot]), and ``log_joint_m3``, of
`pcv.analysis.diagnostics.third_moments`; ``log_joint_draws`` (fold, chain, draw), or
``log_joint_tail`` (fold, tail), the largest draws of each fold, where draws are not kept; the
fields of `pcv.analysis.diagnostics.Sides` and `UnitSides`: ``shift`` (fold), ``crossing`` (fold,
chain, batch, offset), ``log_bridge_log_sum`` and ``…_sq`` (fold, chain, batch, slot), and for
full-data draws ``full_crossing`` (fold, full_batch, offset), ``log_bridge_full`` and ``…_sq``
(fold, full_batch, slot); ``<score>_<kind>_<field>``, the means of other scores, and
``<score>_<kind>_log_weight``, dims (fold, chain, batch, …) or, for scores that compare chains,
(fold, batch, …); ``acceptance``, ``divergences``, ``energy_<field>`` with the fields of
`pcv.sampling.accumulate.energy_sums`, dims (fold, chain, batch); ``n_draws``, ``n_warmup`` (fold),
per chain; ``forgot`` (fold), whether superchains forgot their starts in warmup.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Int

from pcv.analysis.diagnostics import OFFSETS, LogSums, Sides, third_moments
from pcv.analysis.diagnostics.jackknife import Parts

OF_FOLDS = (
    "integral_gap",
    "forgot",
    "n_warmup",
    "shift",
    "full_crossing",
    "log_bridge_full",
    "log_bridge_full_sq",
)
"""variables that do not depend on the fold's own draws: the same in every round"""


class Block(NamedTuple):
    """One block of draws of all chains, on the host; leading axes (fold, chain)."""

    sums: dict[str, dict[str, np.ndarray]]
    """kind → sums of the log score (fold, chain[, slot])"""
    draws: Float[np.ndarray, "fold chain draw"]
    """of the joint log score"""
    crossing: Float[np.ndarray, "fold chain offset"]
    """of `pcv.analysis.diagnostics.crossing`"""
    means: dict[str, dict[str, np.ndarray]]
    """other score → weighted means and log weights (fold, chain, ...)"""
    y_rep: Float[np.ndarray, "fold chain draw slot"] | None
    """replicates of the test set, where a score needs them"""
    stats: dict[str, dict[str, np.ndarray]]
    """acceptance, divergences, energy → sums (fold, chain)"""
    num_draws: int
    kept: dict[str, Float[np.ndarray, "fold chain kept ..."]] | None = None
    """some draws, in single precision: position (fold, chain, kept, param) and, where the model can
    make them, replicates y_rep of the test set (fold, chain, kept, slot)"""


def block_of(stored: Mapping[str, Any]) -> Block:
    """A block, from its fields as stored in a checkpoint."""
    return Block(
        stored["sums"],
        stored["draws"],
        stored["crossing"],
        stored.get("means", {}),
        stored.get("y_rep"),
        stored["stats"],
        int(stored["num_draws"]),
        stored.get("kept"),
    )


def batch_of(
    block: Block, across: Mapping[str, Mapping[str, np.ndarray]], keep_draws: bool
) -> xr.Dataset:
    """A block as one batch (fold, chain, batch=1, …), with its draws if they are kept.

    Args:
        block: of all chains.
        across: score that compares chains → means over the block (fold, ...).
        keep_draws: whether to store the draws of the joint log score.
    """
    variables: dict[str, tuple] = {}

    def add(name: str, x: np.ndarray, of: tuple[str, ...], rest: tuple[str, ...] = ()) -> None:
        more = rest or tuple(f"{name}_dim_{j}" for j in range(x.ndim - len(of)))
        dims = (*of, "batch", *more[: x.ndim - len(of)])
        variables[name] = (dims, np.expand_dims(x, len(of)))

    for kind, fields in block.sums.items():
        for field, values in fields.items():
            add(f"log_{kind}_{field}", values, ("fold", "chain"), ("slot",))
    add("crossing", block.crossing, ("fold", "chain"), ("offset",))
    add("log_joint_m3", third_moments(block.draws, block.num_draws)[..., 0], ("fold", "chain"))
    for score, means in block.means.items():
        for field, values in means.items():
            add(f"{score}_{field}", values, ("fold", "chain"))
    for score, compared in across.items():
        for field, values in compared.items():
            add(f"{score}_{field}", values, ("fold",))
    stats = {
        "acceptance": block.stats["acceptance"]["total"] / block.num_draws,
        "divergences": block.stats["divergences"]["total"],
        **{f"energy_{field}": x for field, x in block.stats["energy"].items()},
    }
    for name, values in stats.items():
        add(name, values, ("fold", "chain"))
    if keep_draws:
        variables["log_joint_draws"] = (("fold", "chain", "draw"), block.draws)
    return xr.Dataset(variables)


def among_all(batch: xr.Dataset, active: np.ndarray, num_folds: int) -> xr.Dataset:
    """A batch of the active folds expanded to all folds; NaN for those that have ended."""
    if len(active) == num_folds:
        return batch

    def placed(x: xr.DataArray) -> tuple[Any, np.ndarray]:
        values = np.full((num_folds, *x.shape[1:]), np.nan)
        values[active] = x.values
        return x.dims, values

    return xr.Dataset({name: placed(x) for name, x in batch.data_vars.items()})


def end(
    folds: np.ndarray,
    num_draws: Int[np.ndarray, " fold"],
    tail: Float[np.ndarray, "fold tail"] | None,
    known: Mapping[str, tuple],
    attributes: Mapping[str, str | int],
) -> xr.Dataset:
    """What is added at the end: names and lengths of the folds, and the largest draws."""
    last: dict[str, tuple] = {"n_draws": ("fold", num_draws), **known}
    if tail is not None:
        last["log_joint_tail"] = (("fold", "tail"), np.sort(tail))
    return xr.Dataset(last, {"fold": folds}, attributes)


def one_side(num_folds: int, slots: int) -> dict[str, tuple]:
    """What samples have of folds of which nothing but their own draws is known."""
    known: dict[str, tuple] = {
        "n_warmup": ("fold", np.zeros(num_folds, int)),
        "forgot": ("fold", np.ones(num_folds, bool)),
        "shift": ("fold", np.full(num_folds, np.inf)),
        "full_crossing": (
            ("fold", "full_batch", "offset"),
            np.zeros((num_folds, 1, len(OFFSETS))),
        ),
    }
    if slots > 1:
        for name in ("log_bridge_full", "log_bridge_full_sq"):
            nothing = np.full((num_folds, 1, slots), -np.inf)
            known[name] = ("fold", "full_batch", "slot"), nothing
    return known


def whole(batches: Sequence[xr.Dataset], end: xr.Dataset, num_batches: int) -> xr.Dataset:
    """The artifact, from batches kept in memory; NaN in batches that no fold reached."""
    variables: dict[str, tuple] = {}
    for name, x in batches[0].data_vars.items():
        axis = x.dims.index("draw" if "draw" in x.dims else "batch")
        every = [batch[name].values for batch in batches]
        if len(batches) < num_batches:
            shape = list(x.shape)
            shape[axis] *= num_batches - len(batches)
            every.append(np.full(shape, np.nan))
        variables[str(name)] = x.dims, np.concatenate(every, axis)
    return end.assign(variables)


def joined(rounds: Sequence[xr.Dataset], lengths: Sequence[int]) -> xr.Dataset:
    """Concatenate the sampling rounds of a fold batch; NaN where a fold was not part of a round.

    Args:
        rounds: their sample artifacts; later ones may have fewer folds, or none.
        lengths: draws per chain after each round.

    Returns:
        All folds, with the batches and draws of all rounds; a single round unchanged, not loaded.
    """
    if len(rounds) == 1:
        return rounds[0]
    first = rounds[0].load()
    ids = first["fold"].values.tolist()
    wide = [first]
    for r, part in enumerate(rounds[1:], 1):
        if part.sizes["fold"]:
            places = np.array([ids.index(fold) for fold in part["fold"].values])
            wide.append(among_all(part.load(), places, len(ids)))
        else:
            wide.append(_empty_round(first, (lengths[r] - lengths[r - 1]) / lengths[0]))
    variables: dict[str, tuple] = {}
    for name, x in first.data_vars.items():
        for dim in ("batch", "draw", "tail", "kept", "returned"):
            if dim in x.dims:
                of_rounds = [part[name].values for part in wide]
                variables[str(name)] = (x.dims, np.concatenate(of_rounds, x.dims.index(dim)))
    if "log_joint_tail" in variables:
        tail = variables["log_joint_tail"][1]
        largest = np.sort(np.where(np.isnan(tail), -np.inf, tail))
        variables["log_joint_tail"] = (("fold", "tail"), largest[:, -first.sizes["tail"] :])
    for name in OF_FOLDS:
        if name in first:
            variables[name] = first[name].dims, first[name].values
    made = [np.nan_to_num(part["n_draws"].values) for part in wide]
    variables["n_draws"] = ("fold", np.sum(made, axis=0).astype(int))
    return xr.Dataset(variables, {"fold": first["fold"]}, first.attrs)


def _empty_round(first: xr.Dataset, times: float) -> xr.Dataset:
    """A round without any fold, `times` as long as the first."""

    def empty(x: xr.DataArray) -> tuple[Any, np.ndarray]:
        grown = {"batch": times, "draw": times, "kept": 0, "returned": 0}
        shape = [round(n * grown.get(str(dim), 1)) for dim, n in x.sizes.items()]
        return x.dims, np.full(shape, np.nan)

    return xr.Dataset({name: empty(x) for name, x in first.data_vars.items()})


def log_sums(samples: Sequence[xr.Dataset], kind: str) -> LogSums:
    """The stored sums of the log score, concatenated over fold batches."""
    return LogSums(
        *(
            np.concatenate([_with_zero_counts(s[f"log_{kind}_{field}"], field) for s in samples])
            for field in LogSums._fields
        )
    )


def sides_of(samples: Sequence[xr.Dataset]) -> Sides:
    """Both sides of the joint scores, concatenated over fold batches."""
    names = ("shift", "crossing", "full_crossing")
    shift, own, full = (np.concatenate([s[name].values for s in samples]) for name in names)
    return Sides(shift, own, full, int(samples[0].attrs["full_draws"]))


def energy_sums(samples: Sequence[xr.Dataset]) -> dict[str, np.ndarray]:
    """The stored sums of the energy, concatenated over fold batches."""
    fields = ("count", "mean", "m2", "diff_sq")
    return {
        field: np.concatenate([_with_zero_counts(s[f"energy_{field}"], field) for s in samples])
        for field in fields
    }


def _with_zero_counts(x: xr.DataArray, field: str) -> np.ndarray:
    """Values with a count of 0 in batches that a fold did not reach."""
    return np.nan_to_num(x.values) if field == "count" else x.values


def parts(samples: Sequence[xr.Dataset], score: str) -> Parts:
    """Batch means of another score, concatenated over fold batches; dims (fold, part, ...)."""
    prefix = f"{score}_"
    found: dict[str, np.ndarray] = {}
    reached = np.concatenate([s["log_joint_count"].values > 0 for s in samples])
    for name, x in samples[0].data_vars.items():
        field = str(name).removeprefix(prefix)
        if str(name).startswith(prefix) and x.dims[:1] == ("fold",) and "batch" in x.dims:
            values = np.concatenate([s[name].values for s in samples])
            of_chains = "chain" in x.dims
            found[field] = values.reshape(len(values), -1, *values.shape[2 + of_chains :])
    there = reached if of_chains else reached.any(axis=1)
    return Parts(there.reshape(len(there), -1), found.pop("log_weight"), found)
