"""`subsample`: leave-one-out of large data from a few exact terms."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int, Shaped

from pcv.analysis import subsampling
from pcv.api import calls, cross_validation
from pcv.api.inputs import AnyModel
from pcv.api.leave_one_out.exact import Exact, predictive_of_folds
from pcv.api.leave_one_out.exact import exact as exact_scores
from pcv.api.leave_one_out.subsampled import Subsampled
from pcv.base import programs
from pcv.base.errors import PcvError, nearest
from pcv.base.programs import devices
from pcv.folds import columns, exchangeable
from pcv.folds.base import Folds, from_sets
from pcv.models.effects.marginal import Scored
from pcv.models.model import Model
from pcv.models.parameters import unit_log_lik, unravel_of
from pcv.pipeline import stages
from pcv.pipeline.job import Job
from pcv.pipeline.stages.inputs import check
from pcv.pipeline.stages.problem import scored
from pcv.pipeline.storage.artifacts import fitted, opened
from pcv.sampling.fit.surrogates import NAMES, chunk_size, in_chunks, posterior, surrogates

GROWTH = 2
"""factor by which a subsample grows between looks"""
MAX_BYTES = 2**29
"""of log likelihoods at all draws, where terms cannot be evaluated in chunks"""


class Terms(NamedTuple):
    """What a leave-one-out score sums over: units, or groups of them."""

    name: Shaped[np.ndarray, " term"]
    of_unit: Int[np.ndarray, " unit"]
    """index of the term of each unit"""

    @property
    def noun(self) -> str:
        return "units" if np.array_equal(self.of_unit, np.arange(len(self.name))) else "groups"

    def folds(self, which: Int[np.ndarray, " chosen"]) -> Folds:
        """Folds that leave out these terms, in the order of the data."""
        chosen = np.sort(which)
        place = np.full(len(self.name), -1)
        place[chosen] = np.arange(chosen.size)
        units = np.flatnonzero(place[self.of_unit] >= 0)
        by_fold = units[np.argsort(place[self.of_unit[units]], kind="stable")]
        sizes = np.bincount(place[self.of_unit[units]], minlength=chosen.size)
        tests = np.split(by_fold, np.cumsum(sizes)[:-1])
        return from_sets([self.name[j] for j in chosen], tests, None, self.of_unit.size)


def subsample(
    model: AnyModel,
    m: int = 400,
    surrogate: str = "waic",
    exact: str = "auto",
    until: Mapping[str, Any] | None = None,
    group_by: str | Sequence[Any] | np.ndarray | None = None,
    *,
    strata: int = 1,
    by_spread: bool = False,
    surrogate_draws: int = 1000,
    good_k: float | None = None,
    data: Any = None,
    predictive: str = "auto",
    seed: int = 0,
    chains: int = 8,
    draws: int = 200,
    warmup: int = 50,
    fit: Mapping[str, Any] | xr.DataTree | None = None,
    cv: Mapping[str, Any] | None = None,
    precision: str = "float64",
    cores: int | None = None,
    progress: bool = True,
) -> Subsampled:
    r"""Leave-one-out of large data: exact terms of m units, and a surrogate for all n.

    .. math:: \widehat{\mathrm{elpd}} = \sum_{i=1}^n \tilde\pi_i +
              \frac nm \sum_{j \in \mathcal S} (\pi_j - \tilde\pi_j)

    Unbiased for any surrogate if m is fixed; a good one makes the SE of subsampling small
    (Magnusson, Andersen, Jonasson, Vehtari 2020, eq. 7 to 9). The subsample follows from the seed
    alone, so that models are compared on the same one: ``pcv.compare({"a": one, "b": other})``.

    Args:
        model, data, seed, precision, cores, progress: as for `cross_validate`.
        m: number of terms computed exactly, at least 2; of all, if there are fewer.
        surrogate: "plpd", good and cheapest where n is large and effects are few; "waic", "tis" or
            "psis", for hierarchical models; "d1waic_m", "d1waic" or "d2waic", variances by the
            delta method, or these with "plpd\_" in front.
        exact: of the chosen terms: "psis", "folds" (brute force), or "auto": PSIS where its k-hat
            is good, brute force elsewhere.
        until: grow the subsample, doubling it: ``{"subsampling_se_over_se": 0.1, "max_m": 5000}``
            until the SE of subsampling is below that share of the SE; "max_m" is 10 m by default.
            Terms that were sampled are kept. A subsample that happens to miss rare terms with a
            poor surrogate looks precise and stops early: begin with 100 or more.
        group_by: group of each unit, or the name of its column: leave whole groups out. None:
            units.
        strata: number of strata, between quantiles of the surrogate. With several, the subsample
            depends on the model, and models cannot be compared.
        by_spread: allocate m to strata in proportion to their size times the surrogate's spread
            within; otherwise to their size.
        surrogate_draws: full-data draws from which surrogates are computed, at most.
        good_k: k-hat above which PSIS fails; None: :math:`\min(1 - 1/\log_{10} S, 0.7)`.
        predictive: as for `loo`.
        chains, draws, warmup, cv: of the folds sampled.
        fit: settings of the full-data fit, or draws of it, as for `cross_validate`.

    Raises:
        PcvError: what is wrong, where, and what to do.
    """
    share, most = _checked(m, surrogate, exact, until, strata)
    sections = {
        "predictive": predictive,
        "fit": {} if fit is None else fit,
        "cv": calls.cv_section(chains, draws, warmup, None, cv),
    }
    brute_force: bool | Literal["all"] = "all" if exact == "folds" else exact == "auto"
    with calls.prepared(
        model, "loo", data, sections, seed, precision, None, cores, progress
    ) as job:
        (part,) = (job._replace(model=name) for name in job.settings.models)
        stages.data(part)
        terms = terms_of(part, group_by)
        n = len(terms.name)
        if strata > 1 and n < 2 * strata:
            raise PcvError(f"{strata} strata of {n} {terms.noun}; use {n // 2} or fewer")
        grouped = terms.noun == "groups"
        which = np.arange(n) if grouped else subsampling.in_order(seed, np.zeros(n, int))[:m]
        part = calls.with_folds(part, terms.folds(which))
        check(part._replace(say=calls.silent))
        stages.fit(part)
        with devices.at_work(precision):
            made = scored(part, columns.model_data(opened(part, "data")), terms.folds(which))
            values = surrogate_of(part, terms, made, surrogate, surrogate_draws)
        chosen_predictive = "marginal" if made.predictive == "marginal" else "plain"
        stratum, spread = subsampling.strata_of(values[surrogate].values, strata)
        order = subsampling.in_order(seed, stratum, spread if by_spread else None)
        found: Exact | None = None
        size = min(m, n)
        while True:
            chosen = subsampling.subsample(order, stratum, size)
            folds = terms.folds(chosen.term)
            part = calls.with_folds(part, folds, chosen_predictive)
            found = exact_scores(part, folds, brute_force, good_k, found)
            stages.folds(part._replace(say=calls.silent))
            cv_of_terms = cross_validation.collected(part, True, found.diagnostics)
            result = Subsampled(
                cv_of_terms.renamed("model"), values, chosen, surrogate, found.apart, found.shared
            )
            now = result.sum
            if size == min(most, n) or now.elpd_subsampling_se <= share * now.se:
                return result
            part.say(
                f"subsample of {size}: SE of subsampling {now.elpd_subsampling_se:.2g}, SE "
                f"{now.se:.2g}; it grows"
            )
            size = min(size * GROWTH, most, n)


def _checked(
    m: int, surrogate: str, exact: str, until: Mapping[str, Any] | None, strata: int
) -> tuple[float, int]:
    """The share of the SE until which a subsample grows, and its largest size."""
    for name, x, least in (("m", m, 2), ("strata", strata, 1)):
        if not isinstance(x, int | np.integer) or isinstance(x, bool) or x < least:
            raise PcvError(f"{name} is {x!r}; give a whole number of {least} or more")
    if surrogate not in NAMES:
        raise PcvError(f"surrogate {surrogate!r}; {nearest(str(surrogate), NAMES)}")
    if exact not in (known := ("auto", "psis", "folds")):
        raise PcvError(f"exact {exact!r}; {nearest(str(exact), known)}")
    if m < 2 * strata:
        raise PcvError(f"m is {m} for {strata} strata; give at least 2 of each, m={2 * strata}")
    if until is None:
        return np.inf, m
    keys = ("subsampling_se_over_se", "max_m")
    for key in until:
        if key not in keys:
            raise PcvError(f"until: unknown key {key!r}; {nearest(str(key), keys)}")
    share, most = until.get(keys[0], 0.1), until.get(keys[1], 10 * m)
    if not isinstance(share, int | float) or not share > 0:
        raise PcvError(f"until: {keys[0]} is {share!r}; give a number above 0")
    if not isinstance(most, int | np.integer) or most < m:
        raise PcvError(f"until: max_m is {most!r}; give a whole number, at least m={m}")
    return float(share), int(most)


def terms_of(job: Job, group_by: str | Sequence[Any] | np.ndarray | None) -> Terms:
    """The terms of a job's data: its units, or their groups."""
    data = opened(job, "data")
    if group_by is None:
        return Terms(data["unit"].values, np.arange(data.sizes["unit"]))
    name = group_by if isinstance(group_by, str) else "group"
    values = columns.unit_column(data, group_by) if isinstance(group_by, str) else group_by
    folds = exchangeable.leave_one_group_out(values, name)
    if folds.num_units != data.sizes["unit"]:
        raise PcvError(f"group_by has {folds.num_units} values for {data.sizes['unit']} units")
    if folds.test.shape[1] == 1:
        raise PcvError("group_by: every group is a single unit; leave group_by out")
    of_unit = np.empty(data.sizes["unit"], int)
    for j, units in enumerate(folds.test):
        of_unit[units[units >= 0]] = j
    return Terms(folds.id, of_unit)


def surrogate_of(job: Job, terms: Terms, made: Scored, name: str, most: int) -> xr.Dataset:
    """A surrogate of every term, from the draws of the full-data fit.

    Args:
        job: whose data and fit are made.
        terms: of the data.
        made: the model as its folds score it.
        name: of the surrogate.
        most: draws, at most.

    Raises:
        PcvError: it is not finite for some term, which is named.
    """
    arrays = columns.model_data(opened(job, "data"))
    position = np.asarray(fitted(job)["unconstrained/position"].values)
    draws = position.reshape(-1, position.shape[-1])
    number = min(most, len(draws))
    if made.predictive == "marginal" or not isinstance(made.model, Model):
        folds = terms.folds(np.arange(len(terms.name)))
        if made.local is not None:  # of all groups, where the subsample decided on some units
            made = scored(job, arrays, folds)
        found = _of_folds(made, arrays, folds, draws, number, name)
    else:
        found = _of_log_lik(made.model, arrays, terms, draws, number, name)
    dataset = xr.Dataset({key: ("term", x) for key, x in found.items()}, {"term": terms.name})
    wrong = ~np.isfinite(dataset[name].values)
    if wrong.any():
        which = terms.name[int(wrong.argmax())]
        raise PcvError(
            f"surrogate '{name}' of {which} is {dataset[name].values[wrong][0]} ({wrong.sum()} not "
            "finite); take another surrogate, or look at that part of the data"
        )
    composition = hashlib.sha256(terms.of_unit.tobytes()).hexdigest()[:16]
    return dataset.assign_attrs(terms=terms.noun, terms_print=composition)


def _of_log_lik(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    terms: Terms,
    draws: np.ndarray,
    number: int,
    name: str,
) -> dict[str, np.ndarray]:
    """From the log likelihood's terms; in chunks where each depends on its own row alone."""
    n, unravel = terms.of_unit.size, unravel_of(model.init)
    by_unit = unit_log_lik(model, arrays)
    assert by_unit is not None
    given = posterior(draws, number, [name])
    if terms.noun == "units" and chunk_size(given, n) < n:
        data = {key: x for key, x in arrays.items() if np.asarray(x).dtype.kind in "biuf"}

        def of_rows(x: Float[Array, " param"], rows: Mapping[str, Any]) -> Float[Array, " unit"]:
            return model.log_lik(unravel(x), rows)

        with suppress(Exception):  # a user's function may raise anything given fewer rows
            alone = in_chunks(of_rows, data, n, given, ["plpd"])["plpd"]
            if np.allclose(alone, programs.shared(by_unit)(given.center), equal_nan=True):
                return in_chunks(of_rows, data, n, given, [name])
    given = posterior(draws, max(min(number, MAX_BYTES // (8 * n)), 2), [name])

    def of_terms(x: Float[Array, " param"]) -> Float[Array, " term"]:
        return jax.ops.segment_sum(by_unit(x), terms.of_unit, len(terms.name))

    of_all = by_unit if terms.noun == "units" else of_terms
    program = programs.shared(lambda given: surrogates(of_all, given, [name]))
    return {key: np.asarray(x) for key, x in program(given).items()}


def _of_folds(
    made: Scored,
    arrays: dict[str, np.ndarray],
    folds: Folds,
    draws: np.ndarray,
    number: int,
    name: str,
) -> dict[str, np.ndarray]:
    """From the log predictive of each fold, with left-out effects integrated out."""
    at = predictive_of_folds(made, arrays, folds)
    program = programs.shared(lambda given: surrogates(lambda x: at(x)[0], given, [name]))
    given = posterior(draws, max(min(number, MAX_BYTES // (8 * len(folds.id))), 2), [name])
    return {key: np.asarray(x) for key, x in program(given).items()}
