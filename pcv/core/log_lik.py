"""Log likelihoods of folds that were made elsewhere, in place of a model's fit, warmup and samples.

    LogLik ─▶ import_fit ─▶ import_warmup ─▶ import_samples ─▶ `pcv.core.diagnose.diagnose`

No model is needed, and no formula is new: batches are summed by `pcv.analysis.diagnostics`, and the
other side of folds is found as warmup finds it where scores are sums of units' log likelihoods.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float

from pcv.analysis import samples
from pcv.analysis.diagnostics import batch_sums, crossing
from pcv.analysis.samples import Block
from pcv.base.monitor import Monitor
from pcv.base.storable import storable
from pcv.core import groups
from pcv.core.problem import Problem
from pcv.core.settings import MOST_PER_BATCH, Settings, batch_size_of
from pcv.folds.base import Folds, evenly
from pcv.sampling.fit import fit_checks
from pcv.sampling.fit.draws import Draws
from pcv.sampling.fit.fit_checks import Checks
from pcv.sampling.folds import sides

PILOT = 250
"""draws of each chain from which the shift between both sides is found"""
SHORTEST = 20
"""draws of a batch: of a number of draws without a divisor from here to `MOST_PER_BATCH`, batches
have unequal lengths"""
CHECKED_UNITS = 500
"""units, evenly spaced, by whose log likelihoods chains of the full data are compared"""
UNKNOWN = "no log likelihoods of the full data are given"


class LogLik(NamedTuple):
    """Log likelihoods of units at draws (nats)."""

    folds: tuple[Float[np.ndarray, "chain draw slot"], ...]
    """of each fold's tested units, in the order of its test set, at draws of the fold's posterior;
    numbers of draws may differ"""
    full: Float[np.ndarray, "chain draw unit"] | None
    """of all units, at draws of the full-data posterior; None: unknown"""


def import_fit(problem: Problem, full: Float[np.ndarray, "chain draw unit"] | None) -> xr.DataTree:
    """Take log likelihoods for the full-data fit, and check whether its chains agree on them.

    Args:
        problem: the data.
        full: log likelihoods of all units; None: unknown.

    Returns:
        Groups as of `pcv.core.groups.tree`, without those of parameters. The attribute ``marks``
        lists caveats.
    """
    parts = {"sample_stats": xr.Dataset()}
    checks = Checks(np.empty(0), np.empty(0), np.full(1, np.nan), 0, [], [UNKNOWN])
    names = np.empty(0, str)
    if full is not None:
        index = dict(zip(("chain", "draw"), map(np.arange, full.shape)))
        dims, units = ("chain", "draw", "unit"), problem.data["unit"].values
        terms = xr.Dataset({problem.outcome: (dims, full)}, index | {"unit": units})
        parts |= {"sample_stats": xr.Dataset(coords=index), "log_likelihood": storable(terms)}
        places = evenly(len(units), CHECKED_UNITS)
        places = places[np.ptp(full[..., places], axis=(0, 1)) > 0]
        if places.size:
            names = np.array([f"log_lik[{unit}]" for unit in units[places]])
            checks = _check(full[..., places], names.tolist())
    if problem.outcome in problem.data:
        parts["observed_data"] = storable(problem.data[[problem.outcome]].drop_attrs())
    parts["checks"] = groups.group_checks(checks, names.tolist()).assign(divergences=np.nan)
    tree = xr.DataTree.from_dict(parts)
    tree.attrs["marks"] = [
        f"full-data fit of '{problem.name}' is bad: {x}" for x in checks.problems
    ]
    return tree


def _check(full: Float[np.ndarray, "chain draw unit"], names: list[str]) -> Checks:
    """Check full-data log likelihoods as parameters are checked."""
    lp = full.sum(-1)
    unknown, steps, none = np.full(lp.shape, np.nan), np.zeros(lp.shape, int), np.zeros(lp.shape)
    draws = Draws(full, lp, unknown, none + 1, steps, none.astype(bool))
    return fit_checks.check(draws, names)


def import_warmup(
    problem: Problem,
    log_lik: LogLik,
    fit: xr.DataTree,
    settings: Settings,
    monitor: Monitor,
    folds: Folds | None = None,
) -> xr.Dataset:
    """Find what a warmup would know of folds: the other side of those without a gap.

    Args:
        problem: with all folds.
        log_lik: of all folds and, perhaps, the full data.
        fit: of `import_fit`.
        settings: says whether both sides are used.
        monitor: is asked whether to stop.
        folds: some of the folds; None: all.
    """
    folds = problem.folds if folds is None else folds
    slots, full_draws = folds.test.shape[1], 1
    variables = samples.one_side(len(folds.id), slots)
    two_sided = settings.estimator == "two_sided" and log_lik.full is not None
    if two_sided and not groups.has_few_draws(fit):
        own = _select(log_lik, problem, folds)
        fewest = min(PILOT, *(x.shape[1] for x in own))
        each = [np.linspace(0, x.shape[1] - 1, fewest).round().astype(int) for x in own]
        pilot = np.stack([x[:, some].sum(-1) for x, some in zip(own, each)])
        terms = np.asarray(log_lik.full).reshape(-1, problem.num_units)
        limits = MOST_PER_BATCH, sides.MOST_DRAWS, monitor
        facing = sides.facing_terms(folds, sides.without_gap(folds), pilot, terms, *limits)
        full_draws = facing.num_draws
        values = {
            "shift": facing.shift,
            "full_crossing": facing.crossing,
            "log_bridge_full": facing.bridge,
            "log_bridge_full_sq": facing.bridge_sq,
        }
        variables |= {
            name: (variables[name][0], x) for name, x in values.items() if name in variables
        }
    attributes = {
        "predictive": "either",  # what the units' densities are given is up to who made them
        "integration": "",
        "outcome": problem.outcome,
        "superchains": 0,
        "given_tested": 0,
        "log_lik_alone": 1,
        "full_draws": full_draws,
    }
    return xr.Dataset(variables, {"fold": folds.id}, attributes)


def import_samples(problem: Problem, log_lik: LogLik, warmup: xr.Dataset) -> xr.Dataset:
    """Sum the folds' scores over batches of draws, as `pcv.analysis.samples` describes it.

    Args:
        problem: with all folds.
        log_lik: of all folds.
        warmup: of `import_warmup`, for the folds.
    """
    folds = problem.named(warmup["fold"].values)
    own = _select(log_lik, problem, folds)
    lengths, slots = np.array([x.shape[1] for x in own]), folds.test.shape[1]
    most = max(len(_batches(n)) for n in lengths.tolist())
    parts = []
    for n in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == n)
        pointwise = np.zeros((len(rows), *own[0].shape[:1], n, slots))
        for place, k in zip(pointwise, rows.tolist()):
            place[..., : own[k].shape[2]] = own[k]
        joint, shift = pointwise.sum(-1), warmup["shift"].values[rows]
        batches = [
            samples.batch_of(_block(pointwise[:, :, some], joint[:, :, some], shift), {}, False)
            for some in _batches(n)
        ]
        draws = np.full((*joint.shape[:2], lengths.max()), np.nan)
        draws[..., :n] = joint
        here = warmup.isel(fold=rows)
        last = {
            name: (here[name].dims, here[name].values) for name in samples.OF_FOLDS if name in here
        }
        last["log_joint_draws"] = ("fold", "chain", "draw"), draws
        number = np.full(len(rows), n)
        end = samples.end(folds.id[rows], number, None, last, warmup.attrs)
        parts.append(samples.whole(batches, end, most))
    return xr.concat(parts, "fold").sel(fold=folds.id)


def _batches(draws: int) -> list[np.ndarray]:
    """Split draws into batches: equally long ones where their number allows, else nearly so."""
    size, number = batch_size_of(draws), max(-(-draws // MOST_PER_BATCH), 2)
    if size >= min(SHORTEST, draws // 2):
        number = draws // size
    return np.array_split(np.arange(draws), number)


def _block(
    pointwise: Float[np.ndarray, "fold chain draw slot"],
    joint: Float[np.ndarray, "fold chain draw"],
    shift: Float[np.ndarray, " fold"],
) -> Block:
    """Sum one batch of draws of all chains, of whose sampler nothing is known."""
    number = joint.shape[2]
    scores = {"joint": joint, "pointwise": pointwise}
    if pointwise.shape[3] > 1:
        scores["bridge"] = sides.weigh_by_side(pointwise, joint, shift[:, None, None])
    sums = {
        kind: {name: x[:, :, 0] for name, x in batch_sums(of_kind, number)._asdict().items()}
        for kind, of_kind in scores.items()
    }
    unknown = np.full(joint.shape[:2], np.nan)
    stats = {name: {"total": unknown} for name in ("acceptance", "divergences")}
    stats["energy"] = dict.fromkeys(("count", "mean", "m2", "diff_sq"), unknown)
    crossed = crossing(joint, shift, own=True)
    return Block(sums, joint, crossed, {}, None, stats, number)


def _select(
    log_lik: LogLik, problem: Problem, folds: Folds
) -> Sequence[Float[np.ndarray, "chain draw slot"]]:
    """Select the log likelihoods of some folds."""
    place = {name: k for k, name in enumerate(problem.folds.id.tolist())}
    return [log_lik.folds[place[name]] for name in folds.id.tolist()]
