"""Leave-one-out from the full-data fit alone: importance sampling of folds, surrogates of terms."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int

from pcv.analysis import diagnostics
from pcv.analysis.diagnostics.psis import Psis, doubts, psis
from pcv.analysis.results.by_psis import by_psis
from pcv.analysis.subsampling import strata_of
from pcv.base.devices import BY_CHAIN, in_use, shard_mapped
from pcv.base.errors import PcvError
from pcv.base.monitor import Monitor
from pcv.base.section import draws_of_surrogate
from pcv.compile import programs
from pcv.core import groups
from pcv.core.problem import Problem, given_tested, kept, predictive_model, warn_of_leaks
from pcv.core.psis_predictions import predictions_by_psis
from pcv.core.settings import Settings
from pcv.folds.exchangeable import Terms, in_order
from pcv.folds.sections.scheme import FromFullData, Table
from pcv.folds.sections.subsampling import Subsampling
from pcv.models.effects.effects import have_own
from pcv.models.effects.marginal import Scored, integrated
from pcv.models.model import Fold, Model, target
from pcv.models.parameters import flat_target, unit_log_lik, unravel_of
from pcv.sampling.fit import surrogates as surrogate
from pcv.sampling.fit.draws import mixing
from pcv.sampling.hmc import train_mask

MAX_DRAWS = 1000
"""full-data draws at which to evaluate a predictive that the fit does not store"""
INFLUENCE_DRAWS = 100
"""at which to evaluate all terms for their sum's Monte Carlo error, where surrogates need none"""
MAX_BYTES = 2**29
"""of log likelihoods at all draws, where terms cannot be evaluated in chunks"""
NODES_PER_DIM = 256
"""of integrals over a group's own effects: many, as their noise biases the importance weights,
which are their reciprocals"""
FOLDS_AT_ONCE = 50
"""evaluated in parallel"""


def compute_surrogates(
    problem: Problem, fit: xr.DataTree, settings: Settings, monitor: Monitor
) -> xr.DataTree:
    """Score folds from the full-data draws by PSIS, and compute surrogates of a subsample's terms.

    Args:
        problem: with all folds.
        fit: of the full data.
        settings: of the scheme, which says where importance sampling suffices and which surrogates
            a subsample has, and of predictions.
        monitor: takes messages.

    Returns:
        "folds" of `estimate_by_psis`, "predictions" of `predictions_by_psis`, and for a subsample
        "terms" of `approximate_terms`. The attribute ``marks`` lists caveats.
    """
    parts, scheme = {}, settings.folds
    assert isinstance(scheme, FromFullData)
    if isinstance(scheme, Subsampling):
        terms = scheme.terms(Table(problem.data, problem.seed))
        names = scheme.surrogates(len(terms.name), groups.positions(fit).shape[-1])
        parts["terms"] = approximate_terms(problem, fit, terms, names, monitor)
    model = predictive_model(problem)
    draws = _at_full_data(problem, model, fit)
    of_draws = draws.joint, draws.pointwise, problem.folds.test, draws.log_weight
    estimates = psis(*of_draws, surrogate.smoothed_in_chunks)
    number = draws.joint.shape[0] * draws.joint.shape[1]
    parts["folds"] = estimate_by_psis(problem, fit, estimates, number, scheme, monitor)
    replicated = problem.keeps(settings, 1).replicated
    if replicated:
        arranged = settings.cv.chains, replicated
        ess = float(np.fmin(fit["checks"]["ess"].min(), number)) / number
        of_psis = draws.position, estimates.log_weight, ess
        predicted = predictions_by_psis(problem, model, *of_psis, arranged)
        if predicted is not None:
            parts["predictions"] = predicted
    tree = xr.DataTree.from_dict(parts)
    tree.attrs["marks"] = warn_of_leaks(problem)
    return tree


def estimate_by_psis(
    problem: Problem,
    fit: xr.DataTree,
    estimates: Psis,
    number: int,
    scheme: FromFullData,
    monitor: Monitor,
) -> xr.Dataset:
    """Estimates of all folds by Pareto-smoothed importance sampling, and where to trust them.

    Args:
        problem: with all folds.
        fit: of the full data.
        estimates: of all folds.
        number: of draws that they are from.
        scheme: says where importance sampling suffices.
        monitor: takes messages.

    Returns:
        What `pcv.analysis.results.by_psis.by_psis` returns, and ``needs_mcmc`` (fold): whether
        chains have to sample a fold.
    """
    how, folds = predictive_model(problem), problem.folds
    own: Any = False
    if how.predictive == "plain" and isinstance(how.model, Model):
        own = have_own(how.model, problem.arrays, folds)
    limit = scheme.good_k or float(diagnostics.good_k(number))
    units = np.where(folds.test >= 0, problem.data["unit"].values[folds.test], "").astype(str)
    about = {
        "model": problem.name,
        "predictive": how.predictive,
        "integration": how.integration,
        "outcome": str(how.model.outcome),
        "given_tested": given_tested(problem),
    }
    checks = fit["checks"].to_dataset()
    why = doubts(estimates, limit, own)
    estimated = by_psis(estimates, folds.id.astype(str), units, checks, why, limit, number, about)
    fails = np.array(why) != ""
    monitor.log(
        f"PSIS is not trusted in {fails.sum()} of {fails.size} folds; k-hat is above {limit:.2f} "
        f"in {(~(estimates.khat <= limit)).sum()}"
    )
    needs_mcmc = {"folds": np.full(fails.shape, True), "psis": np.full(fails.shape, False)}
    return estimated.assign(needs_mcmc=("fold", needs_mcmc.get(scheme.exact, fails)))


def approximate_terms(
    problem: Problem, fit: xr.DataTree, terms: Terms, names: Sequence[str], monitor: Monitor
) -> xr.Dataset:
    """Surrogates of every term, from the draws of the full-data fit.

    Args:
        problem: whose folds leave out some of the terms.
        fit: of the full data.
        terms: all of the data.
        names: of the surrogates, of `pcv.sampling.fit.surrogates`.
        monitor: takes messages.

    Returns:
        Each surrogate (term; nats), and the Monte Carlo standard error of the sum of all terms.

    Raises:
        PcvError: one is not finite for some term, which is named.
    """
    how = predictive_model(problem)
    draws = _draws_of_terms(problem, how, fit, names, monitor)
    if how.predictive == "marginal" or not isinstance(how.model, Model):
        every = problem.of(terms.folds(np.arange(len(terms.name))))
        if how.local is not None:  # of all groups, where the subsample decided on some units
            how = predictive_model(every)
        by_term = _by_fold(every, how, draws, names)
    else:
        by_term = _by_log_lik(problem, how.model, terms, draws, names)
    influence = by_term.pop("influence")
    dataset = xr.Dataset({key: ("term", x) for key, x in by_term.items()}, {"term": terms.name})
    for name in names:
        bad = ~np.isfinite(by_term[name])
        if bad.any():
            which = terms.name[int(bad.argmax())]
            raise PcvError(
                f"surrogate '{name}' of {which} is {by_term[name][bad][0]} ({bad.sum()} not "
                "finite); take another surrogate, or look at that part of the data"
            )
    mcse = float(np.sqrt(np.sum(influence**2) * influence.size / draws.ess))
    about = {"terms": terms.noun, "terms_print": terms.fingerprint, "mcse": mcse}
    return dataset.assign_attrs(about, surrogates=list(names))


def order_in_strata(
    problem: Problem,
    fit: xr.DataTree,
    scheme: Subsampling,
    number: int,
    by_spread: bool,
    monitor: Monitor,
) -> xr.Dataset:
    """An order of all terms, in strata between quantiles of their surrogate.

    Args:
        problem: the model and its data.
        fit: of the full data.
        scheme: of the subsample.
        number: number of strata.
        by_spread: whether strata are drawn from in proportion to their size times the surrogate's
            spread within; otherwise to their size.
        monitor: takes messages.
    """
    terms = scheme.terms(Table(problem.data, problem.seed))
    n = len(terms.name)
    if n < 2 * number:
        raise PcvError(f"{number} strata of {n} terms; use {n // 2} or fewer")
    names = scheme.surrogates(n, groups.positions(fit).shape[-1])
    surrogates = approximate_terms(problem, fit, terms, names, monitor)
    stratum, spread = strata_of(surrogates[names[0]].values, number)
    order = in_order(problem.seed, stratum, spread if by_spread else None)
    return xr.Dataset({"order": ("term", order), "stratum": ("term", stratum)})


class _Draws(NamedTuple):
    """Draws of the full-data fit, all chains in one."""

    position: Float[np.ndarray, "draw param"]
    log_weight: Float[np.ndarray, " draw"] | None
    """of an approximation's"""
    kept: Int[np.ndarray, " kept"]
    """places of those that surrogates evaluate terms at"""
    ess: float
    """of those that the exact terms are from, for log densities"""
    monitor: Monitor

    def posterior(self, names: Sequence[str], most: int | None = None) -> surrogate.Posterior:
        """Those to evaluate terms at, of which memory allows `most`."""
        places = self.kept
        if most is not None and places.size > most:
            places = places[surrogate.evenly(places.size, max(most, 2))]
            self.monitor.warn(
                f"from {places.size} of {self.kept.size} draws, as all terms at more do not fit in "
                f"{MAX_BYTES // 2**20} MiB"
            )
        return surrogate.posterior(self.position, names, self.log_weight, places)


def _draws_of_terms(
    problem: Problem, how: Scored, fit: xr.DataTree, names: Sequence[str], monitor: Monitor
) -> _Draws:
    """The draws that the exact terms are from, or as many of them as surrogates need."""
    position, log_weight = groups.positions(fit), groups.log_weights(fit)
    chains, draws, width = position.shape
    step = _thinning(problem, how, fit)
    used = np.arange(chains * draws).reshape(chains, draws)[:, ::step].ravel()
    number = INFLUENCE_DRAWS
    if surrogate.needs_draws(names):
        number = max(draws_of_surrogate(name) or used.size for name in names)
    ess = float(used.size)
    if log_weight is None:
        lp = fit["sample_stats"].dataset["lp"].values
        ess = float(np.fmin(mixing(lp[..., None]).ess[0], used.size))
    flat = None if log_weight is None else log_weight.ravel()
    places = used[surrogate.evenly(used.size, number)]
    return _Draws(position.reshape(-1, width), flat, places, ess, monitor)


def _thinning(problem: Problem, how: Scored, fit: xr.DataTree) -> int:
    """Thinning interval of the draws behind the exact terms: 1 if the fit stores their log
    likelihoods."""
    plain = how.predictive != "marginal" and isinstance(problem.model, Model)
    if plain and "log_likelihood" in fit:
        return 1
    return -(-fit["sample_stats"].dataset["lp"].size // MAX_DRAWS)


def _by_log_lik(
    problem: Problem, model: Model, terms: Terms, draws: _Draws, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """From the log likelihood's terms; in chunks where each depends on its own row alone."""
    n = terms.of_unit.size
    log_lik = unit_log_lik(model, problem.arrays)
    assert log_lik is not None
    if terms.noun == "units" and surrogate.chunk_size(draws.kept.size, n) < n:
        given = draws.posterior(names)
        of_rows = _log_lik_of_rows(problem, model, given.center)
        if of_rows is not None:
            return surrogate.in_chunks(of_rows, _numbers(problem.arrays), n, given, names)
    given = draws.posterior(names, MAX_BYTES // (8 * n))

    def of_terms(x: Float[Array, " param"]) -> Array:
        return jax.ops.segment_sum(log_lik(x), terms.of_unit, len(terms.name))

    of_all = log_lik if terms.noun == "units" else of_terms
    program = programs.shared(lambda given: surrogate.surrogates(of_all, given, names))
    return {key: np.asarray(x) for key, x in program(given).items()}


def _numbers(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key: x for key, x in arrays.items() if np.asarray(x).dtype.kind in "biuf"}


def _log_lik_of_rows(
    problem: Problem, model: Model, position: Array
) -> Callable[[Array, Mapping[str, Any]], Array] | None:
    """The log likelihood of some rows, given these alone; None if its terms depend on others, as
    seen at a position by reading all in parts."""
    unravel, n = unravel_of(model.init), problem.num_units
    log_lik = unit_log_lik(model, problem.arrays)
    assert log_lik is not None

    def of_rows(x: Array, rows: Mapping[str, Any]) -> Array:
        return model.log_lik(unravel(x), rows)

    def are_independent() -> bool:
        given = surrogate.posterior(np.asarray(position)[None].repeat(2, 0))
        of_model = of_rows, _numbers(problem.arrays), n, given
        with suppress(Exception):  # a user's function may raise anything given fewer rows
            parts = surrogate.in_chunks(*of_model, ["plpd"], -(-n // 3))
            whole = programs.shared(log_lik)(position)
            return np.allclose(parts["plpd"], whole, equal_nan=True)
        return False

    return of_rows if kept(problem, "independent rows", are_independent) else None


def _by_fold(
    problem: Problem, how: Scored, draws: _Draws, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """From the log predictive of each fold, with left-out effects integrated out."""
    predictive = _predictive(problem, how)

    def of_folds(given: surrogate.Posterior) -> dict[str, Array]:
        return surrogate.surrogates(lambda x: predictive(x)[0], given, names)

    program = programs.shared(of_folds)
    by_fold = program(draws.posterior(names, MAX_BYTES // (8 * len(problem.folds.id))))
    return {key: np.asarray(x) for key, x in by_fold.items()}


class _Scored(NamedTuple):
    """Draws of the full-data fit, and log scores of all folds at them."""

    position: Float[np.ndarray, "chain draw param"]
    joint: Float[np.ndarray, "chain draw fold"]
    pointwise: Float[np.ndarray, "chain draw fold slot"]
    log_weight: Float[np.ndarray, "chain draw"] | None
    """None where the draws are of the posterior"""


def _at_full_data(problem: Problem, how: Scored, fit: xr.DataTree) -> _Scored:
    """Log scores of all folds at the draws of the full-data fit, which all devices share."""
    step, folds = _thinning(problem, how, fit), problem.folds
    position, log_weight = groups.positions(fit)[:, ::step], groups.log_weights(fit)
    log_weight = None if log_weight is None else log_weight[:, ::step]
    chains, _, width = position.shape
    if how.predictive != "marginal" and isinstance(problem.model, Model):
        tested = np.unique(folds.test[folds.test >= 0])
        stored = groups.log_likelihoods(fit, problem.outcome)
        if stored is not None:
            by_unit = stored.isel(unit=tested).values
        else:
            by_unit = _of_tested(problem, problem.model, position, tested)
        place = np.searchsorted(tested, np.maximum(folds.test, tested[0]))
        pointwise = np.where(folds.test >= 0, by_unit[..., place], 0.0)
        return _Scored(position, pointwise.sum(-1), pointwise, log_weight)
    predictive = _predictive(problem, how)
    program = programs.shared(shard_mapped(lambda x: jax.lax.map(predictive, x), BY_CHAIN))
    draws = position.reshape(-1, width)
    every = np.pad(np.arange(len(draws)), (0, -len(draws) % len(in_use())), mode="edge")
    scores = [np.asarray(x)[: len(draws)] for x in program(jnp.asarray(draws[every]))]
    joint, pointwise = (x.reshape(chains, -1, *x.shape[1:]) for x in scores)
    return _Scored(position, joint, pointwise, log_weight)


def _of_tested(
    problem: Problem, model: Model, position: np.ndarray, tested: Int[np.ndarray, " tested"]
) -> np.ndarray:
    """Log likelihood of the tested units (chain, draw, unit), from their rows alone if these
    suffice."""
    of_rows = _log_lik_of_rows(problem, model, jnp.asarray(position.mean((0, 1))))
    if of_rows is not None:
        n, every = problem.num_units, _numbers(problem.arrays)
        rows = {k: x[tested] if np.shape(x)[:1] == (n,) else x for k, x in every.items()}
        terms = programs.shared(lambda x, rows: jax.lax.map(lambda one: of_rows(one, rows), x))
        return np.stack([np.asarray(terms(x, rows)) for x in position])
    log_lik = unit_log_lik(model, problem.arrays)
    assert log_lik is not None
    some = programs.shared(lambda x: jax.lax.map(lambda one: log_lik(one)[tested], x))
    return np.stack([np.asarray(some(x)) for x in position])


def _predictive(problem: Problem, how: Scored) -> Callable[[Array], tuple[Array, Array]]:
    """Joint (fold) and pointwise (fold, slot) log predictive of all folds at a draw."""
    model, arrays = how.model, problem.arrays
    if how.local is not None and isinstance(model, Model):
        model = integrated(model, arrays, how.local, how.few, NODES_PER_DIM)
    flat, _ = flat_target(target(model, arrays, how.predictive))
    every_fold = jnp.asarray(problem.folds.test), jnp.asarray(problem.folds.held_out)

    def of_fold(position: Array, fold: tuple[Array, Array]) -> tuple[Array, Array]:
        test, held_out = fold
        return flat.log_predictive(position, Fold(train_mask(held_out, problem.num_units), test))

    def of_draw(position: Array) -> tuple[Array, Array]:
        return jax.lax.map(partial(of_fold, position), every_fold, batch_size=FOLDS_AT_ONCE)

    return of_draw
