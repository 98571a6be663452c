"""Leave-one-out from the full-data fit: surrogates of all terms, importance sampling of the folds,
and the subsample of terms that are computed exactly."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pcv.analysis.subsampling import Sum
from pcv.base.errors import PcvError
from pcv.folds import columns
from pcv.folds.base import Folds
from pcv.folds.exchangeable import Terms
from pcv.folds.sections.scheme import FromFullData, Table
from pcv.folds.sections.subsampling import Subsampling
from pcv.pipeline.job import Job
from pcv.pipeline.stages.common.problem import build, scored_alike, stored_folds
from pcv.pipeline.stages.full_data import MAX_BYTES, Drawn, drawn_for, draws_of, thinning
from pcv.pipeline.stages.inputs import conditions_on_tested, warn_of_leaks
from pcv.pipeline.storage.artifacts import begin, fitted, keep, opened, require, stamp_of

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from pcv.analysis.comparison import Scores
    from pcv.models.effects.marginal import Scored
    from pcv.models.model import Model

NODES_PER_DIM = 256
"""of integrals over a group's own effects: many, as their noise biases the importance weights,
which are their reciprocals"""
FOLDS_AT_ONCE = 50
"""evaluated in parallel"""


def surrogates(job: Job) -> None:
    """Surrogates of all terms, and importance sampling of the folds: ``surrogates.zarr``."""
    from pcv.analysis import diagnostics
    from pcv.analysis.diagnostics.psis import doubts, psis
    from pcv.analysis.results.by_psis import by_psis
    from pcv.base import devices
    from pcv.models.effects.effects import have_own
    from pcv.models.model import Model
    from pcv.sampling.fit.surrogates import smoothed_in_chunks

    scheme = job.settings.folds
    if not job.settings.makes("surrogates"):
        job.say(f"surrogates {job.model}: nothing to do, every fold is sampled")
        return
    assert isinstance(scheme, FromFullData)
    making = begin(job, "surrogates")
    known = {"data": require(job, "data", {})}
    known |= {stage: require(job, stage, known) for stage in ("folds", "fit")}
    folds, data, groups = stored_folds(job), opened(job, "data"), {}
    with devices.at_work(job.config.precision):
        arrays = columns.model_data(data)
        made = scored_alike(job, arrays, folds)[job.model]
        if isinstance(scheme, Subsampling):
            groups["terms"] = of_terms(job, scheme, made, data)
        joint, pointwise, log_weight = _at_full_data(job, made, arrays, folds)
        leaks = warn_of_leaks(job, data, folds)
        given = conditions_on_tested(job, data, folds)
        own: Any = False
        if made.predictive == "plain" and isinstance(made.model, Model):
            own = have_own(made.model, arrays, folds)
        on = devices.describe()
        found = psis(joint, pointwise, folds.test, log_weight, smoothed_in_chunks)
    number = joint.shape[0] * joint.shape[1]
    limit = scheme.good_k or float(diagnostics.good_k(number))
    names = np.where(folds.test >= 0, data["unit"].values[folds.test], "").astype(str)
    about = {
        "model": job.model,
        "predictive": made.predictive,
        "integration": made.integration,
        "outcome": str(made.model.outcome),
        "given_tested": given,
    }
    checks = opened(job, "fit", "checks")
    why = doubts(found, limit, own)
    folds_ = by_psis(found, folds.id.astype(str), names, checks, why, limit, number, about)
    fails = np.array(why) != ""
    again = np.full(fails.shape, True) if scheme.exact == "folds" else fails
    folds_["again"] = ("fold", again & (scheme.exact != "psis"))
    groups["folds"] = folds_
    keep(job, xr.DataTree.from_dict(groups), stamp_of(job, making, known, leaks, on))
    job.say(
        f"surrogates {job.model}: PSIS is not trusted in {fails.sum()} of {fails.size} folds; "
        f"k-hat is above {limit:.2f} in {(~(found.khat <= limit)).sum()}"
    )


def of_terms(job: Job, scheme: Subsampling, made: "Scored", data: xr.Dataset) -> xr.Dataset:
    """Surrogates of every term, from the draws of the full-data fit.

    Args:
        job: whose data and fit are made.
        scheme: of the folds.
        made: the model as its folds score it.
        data: of the job.

    Raises:
        PcvError: one is not finite for some term, which is named.
    """
    from pcv.models.model import Model
    from pcv.pipeline.stages.common.problem import scored

    terms = scheme.terms(Table(data, job.config.seed, job.objects))
    arrays = columns.model_data(data)
    names = scheme.surrogates(len(terms.name), draws_of(job)[0].shape[-1])
    drawn = drawn_for(job, made, arrays, names)
    if made.predictive == "marginal" or not isinstance(made.model, Model):
        folds = terms.folds(np.arange(len(terms.name)))
        if made.local is not None:  # of all groups, where the subsample decided on some units
            made = scored(job, arrays, folds)
        found = _of_folds(job, made, arrays, folds, drawn, names)
    else:
        found = _of_log_lik(job, made.model, arrays, terms, drawn, names)
    influence = found.pop("influence")
    dataset = xr.Dataset({key: ("term", x) for key, x in found.items()}, {"term": terms.name})
    for name in names:
        wrong = ~np.isfinite(found[name])
        if wrong.any():
            which = terms.name[int(wrong.argmax())]
            raise PcvError(
                f"surrogate '{name}' of {which} is {found[name][wrong][0]} ({wrong.sum()} not "
                "finite); take another surrogate, or look at that part of the data"
            )
    mcse = float(np.sqrt(np.sum(influence**2) * influence.size / drawn.ess))
    about = {"terms": terms.noun, "terms_print": terms.fingerprint, "mcse": mcse}
    return dataset.assign_attrs(about, surrogates=names)


def _of_log_lik(
    job: Job,
    model: "Model",
    arrays: Mapping[str, np.ndarray],
    terms: Terms,
    drawn: Drawn,
    names: list[str],
) -> dict[str, np.ndarray]:
    """From the log likelihood's terms; in chunks where each depends on its own row alone."""
    import jax

    from pcv.compile import programs
    from pcv.models.parameters import unit_log_lik
    from pcv.sampling.fit import surrogates as by_unit

    n = terms.of_unit.size
    log_lik = unit_log_lik(model, arrays)
    assert log_lik is not None
    if terms.noun == "units" and by_unit.chunk_size(drawn.kept.size, n) < n:
        given = drawn.posterior(job, names)
        of_rows = _of_rows(job, model, arrays, given.center)
        if of_rows is not None:
            return by_unit.in_chunks(of_rows, _numbers(arrays), n, given, names)
    given = drawn.posterior(job, names, MAX_BYTES // (8 * n))

    def of_terms(x: "Float[Array, ' param']") -> "Array":
        return jax.ops.segment_sum(log_lik(x), terms.of_unit, len(terms.name))

    of_all = log_lik if terms.noun == "units" else of_terms
    program = programs.shared(lambda given: by_unit.surrogates(of_all, given, names))
    return {key: np.asarray(x) for key, x in program(given).items()}


def _numbers(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key: x for key, x in arrays.items() if np.asarray(x).dtype.kind in "biuf"}


def _of_rows(
    job: Job, model: "Model", arrays: Mapping[str, np.ndarray], at: "Array"
) -> "Callable[[Array, Mapping[str, Any]], Array] | None":
    """The log likelihood of some rows, given these alone; None if its terms depend on others, as
    seen at a position by reading all in parts."""
    from pcv.compile import programs
    from pcv.models.parameters import unit_log_lik, unravel_of
    from pcv.sampling.fit import surrogates as by_unit

    unravel, n = unravel_of(model.init), columns.num_units(arrays)
    log_lik = unit_log_lik(model, arrays)
    assert log_lik is not None

    def of_rows(x: "Array", rows: Mapping[str, Any]) -> "Array":
        return model.log_lik(unravel(x), rows)

    def alone() -> bool:
        given = by_unit.posterior(np.asarray(at)[None].repeat(2, 0))
        with suppress(Exception):  # a user's function may raise anything given fewer rows
            parts = by_unit.in_chunks(of_rows, _numbers(arrays), n, given, ["plpd"], -(-n // 3))
            return np.allclose(parts["plpd"], programs.shared(log_lik)(at), equal_nan=True)
        return False

    return of_rows if job.once(("rows alone", id(model)), alone) else None


def _of_folds(
    job: Job,
    made: "Scored",
    arrays: dict[str, np.ndarray],
    folds: Folds,
    drawn: Drawn,
    names: list[str],
) -> dict[str, np.ndarray]:
    """From the log predictive of each fold, with left-out effects integrated out."""
    from pcv.compile import programs
    from pcv.sampling.fit import surrogates as by_fold

    at = _predictive_of(made, arrays, folds)
    program = programs.shared(lambda given: by_fold.surrogates(lambda x: at(x)[0], given, names))
    found = program(drawn.posterior(job, names, MAX_BYTES // (8 * len(folds.id))))
    return {key: np.asarray(x) for key, x in found.items()}


def _at_full_data(
    job: Job, made: "Scored", arrays: dict[str, np.ndarray], folds: Folds
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Log scores of all folds at the draws of the full-data fit, (chain, draw, fold[, slot]), which
    all devices share; and the draws' log weights, None where they are of the posterior."""
    import jax
    import jax.numpy as jnp

    from pcv.base.devices import BY_CHAIN, in_use, shard_mapped
    from pcv.compile import programs
    from pcv.models.model import Model

    position, log_weight = draws_of(job, thinning(job, made, arrays))
    chains, _, width = position.shape
    model = build(job, arrays)
    if made.predictive != "marginal" and isinstance(model, Model):
        tested = np.unique(folds.test[folds.test >= 0])
        if "log_likelihood" in fitted(job):
            kept = opened(job, "fit", "log_likelihood")[job.settings.data.outcome]
            by_unit = kept.isel(unit=tested).transpose("chain", "draw", ...).values
        else:
            by_unit = _of_tested(job, model, arrays, position, tested)
        place = np.searchsorted(tested, np.maximum(folds.test, tested[0]))
        pointwise = np.where(folds.test >= 0, by_unit[..., place], 0.0)
        return pointwise.sum(-1), pointwise, log_weight
    at = _predictive_of(made, arrays, folds)
    program = programs.shared(shard_mapped(lambda x: jax.lax.map(at, x), BY_CHAIN))
    draws = position.reshape(-1, width)
    every = np.pad(np.arange(len(draws)), (0, -len(draws) % len(in_use())), mode="edge")
    scores = [np.asarray(x)[: len(draws)] for x in program(jnp.asarray(draws[every]))]
    joint, pointwise = (x.reshape(chains, -1, *x.shape[1:]) for x in scores)
    return joint, pointwise, log_weight


def _of_tested(
    job: Job,
    model: "Model",
    arrays: Mapping[str, np.ndarray],
    position: np.ndarray,
    tested: np.ndarray,
) -> np.ndarray:
    """Log likelihood of the tested units (chain, draw, unit), from their rows alone if these
    suffice."""
    import jax
    import jax.numpy as jnp

    from pcv.compile import programs
    from pcv.models.parameters import unit_log_lik

    of_rows = _of_rows(job, model, arrays, jnp.asarray(position.mean((0, 1))))
    if of_rows is not None:
        n = columns.num_units(arrays)
        rows = {k: x[tested] if np.shape(x)[:1] == (n,) else x for k, x in _numbers(arrays).items()}
        terms = programs.shared(lambda x, rows: jax.lax.map(lambda at: of_rows(at, rows), x))
        return np.stack([np.asarray(terms(x, rows)) for x in position])
    log_lik = unit_log_lik(model, arrays)
    assert log_lik is not None
    every = programs.shared(lambda x: jax.lax.map(lambda at: log_lik(at)[tested], x))
    return np.stack([np.asarray(every(x)) for x in position])


def _predictive_of(
    made: "Scored", arrays: dict[str, np.ndarray], folds: Folds
) -> "Callable[[Array], tuple[Array, Array]]":
    """Joint (fold) and pointwise (fold, slot) log predictive of all folds at a draw."""
    import jax
    import jax.numpy as jnp

    from pcv.models.effects.marginal import integrated
    from pcv.models.model import Fold, Model, target
    from pcv.models.parameters import flat_target
    from pcv.sampling.hmc import train_mask

    model = made.model
    if made.local is not None and isinstance(model, Model):
        model = integrated(model, arrays, made.local, made.few, NODES_PER_DIM)
    flat, _ = flat_target(target(model, arrays, made.predictive))
    num_units = columns.num_units(arrays)
    every_fold = jnp.asarray(folds.test), jnp.asarray(folds.held_out)

    def at(position: "Array") -> "tuple[Array, Array]":
        def of_fold(fold: "tuple[Array, Array]") -> "tuple[Array, Array]":
            test, held_out = fold
            return flat.log_predictive(position, Fold(train_mask(held_out, num_units), test))

        return jax.lax.map(of_fold, every_fold, batch_size=FOLDS_AT_ONCE)

    return at


def subsample(job: Job) -> None:
    """Which terms are computed exactly, the same for all models: ``subsample.zarr``.

    It grows until the estimates by PSIS satisfy the scheme's rule; a larger subsample contains the
    smaller.
    """
    from pcv.analysis import comparison
    from pcv.analysis.stopping.rule import SETTLED, UNDECIDED, needs_terms

    scheme = job.settings.folds
    if not isinstance(scheme, Subsampling):
        job.say("subsample: nothing to do, folds.scheme is not subsample")
        return
    making = begin(job, "subsample")
    known = {"data": require(job, "data", {})}
    known["folds"] = require(job, "folds", known)
    inputs, parts = dict(known), [job._replace(model=name) for name in job.settings.models]
    for part in parts:
        stamps = known | {"fit": require(part, "fit", known)}
        inputs[f"surrogates {part.model}"] = require(part, "surrogates", stamps)
    ordered = opened(job, "folds").load()
    number = ordered.sizes["fold"]
    until, about = scheme.until, {}
    for size in (min(m, number) for m in scheme.sizes):
        found = ordered.sel(fold=ordered["place"] < size)
        if until is None:
            break
        scores = [_by_psis(part, found) for part in parts]
        compared = comparison.compare(scores, job.settings.compare.reference)
        decide = until.decide.probability if until.decide else None
        words = needs_terms(compared, until.subsampling_se_over_se, decide)
        job.say(f"subsample of {size}: {words}")
        about = {"until": f"until: {words}, with {size} terms"}
        if words in (SETTLED, UNDECIDED):
            break
    chosen = found[["chosen", "stratum", "stratum_size"]].assign_attrs(about)
    keep(job, chosen, stamp_of(job, making, inputs))


def _by_psis(job: Job, chosen: xr.Dataset) -> "Scores":
    """The scores of a model's chosen terms by PSIS."""
    from pcv.analysis.results import scores
    from pcv.analysis.results.by_psis import merged

    estimated = opened(job, "surrogates", "folds").sel(fold=chosen["fold"].values)
    return scores(with_subsample(job, merged(estimated, None), chosen), "joint", "", "")


def with_subsample(job: Job, diagnosed: xr.Dataset, chosen: xr.Dataset) -> xr.Dataset:
    """A model's diagnostics with what the sum over all terms is estimated from, and its estimates
    by each surrogate that the config names, and by none."""
    from pcv.analysis.comparison import total
    from pcv.analysis.results import scores

    every = opened(job, "surrogates", "terms").load()
    names = every.attrs["surrogates"]
    of_terms = {name: chosen[name].variable for name in ("chosen", "stratum", "stratum_size")}
    found = diagnosed.assign({**of_terms, "surrogate": ("any_term", every[names[0]].values)})
    grown = {key: x for key, x in chosen.attrs.items() if key == "until"}
    found.attrs |= {**every.attrs, "surrogate": names[0], **grown}
    known = scores(found, "joint", "", "")
    each = [every[name].values for name in names]
    sums = [total(known._replace(surrogate=x)) for x in (*each, None)]
    return found.assign(
        {f"{name}_by": ("by", [getattr(x, name) for x in sums]) for name in Sum._fields}
    ).assign_coords(by=[*names, "none"])
