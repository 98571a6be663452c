r"""A left-out group's own effects, integrated out of its predictive.

In a fold, parameters λ that no training unit depends on are drawn from their prior given the
others, φ. Few such draws fit the test set, and these dominate its mean density. Here each draw's
density is averaged over λ instead:

.. math:: p(y_\mathrm{test} \mid \varphi) = \frac{\int p(y_\mathrm{test} \mid \varphi, \lambda)\,
          p(\varphi, \lambda) \, d\lambda}{\int p(\varphi, \lambda) \, d\lambda}

which estimates the same elpd with far less noise. Where outcome and effects are normal, integrals
are exact; otherwise they are computed numerically at every draw. If the prior of λ is normal, or
there are several effects, nodes lie around a Laplace approximation (`pcv.models.effects.laplace`),
and the integral is unbiased, so that its error is part of the variance of the draws, and of the
MCSE. Priors of other shapes are integrated one effect at a time on adaptive nodes
(`pcv.models.effects.grid`). `pcv.models.effects.effects` finds λ, on the unconstrained scale.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from pcv.base import devices
from pcv.base.errors import PcvError, setting
from pcv.compile import programs
from pcv.folds import columns
from pcv.folds.base import Folds
from pcv.models.checks.folds import check_whole_groups
from pcv.models.effects import prior
from pcv.models.effects.effects import PRIOR_DRAWS, Locals, find
from pcv.models.effects.grid import log_mean as grid_log_mean
from pcv.models.effects.laplace import NODES_PER_DIM, Function, log_mean, normal_log_mean
from pcv.models.model import (
    Data,
    Model,
    Params,
    Predictive,
    Target,
    cdf_of_test,
    numeric,
    rows_by_unit,
    rows_of_test,
)
from pcv.models.parameters import prior_draws

Terms = Callable[[Float[Array, " dim"]], Float[Array, " slot"]]
Integral = Callable[
    [Key[Array, ""], Int[Array, ""], Function, Terms, Float[Array, " dim"]], Predictive
]
"""arguments: key, group, log prior of its effects, its terms, and current values of its effects"""


class Scored(NamedTuple):
    """A model as its folds score it."""

    model: Model | Target
    predictive: Literal["plain", "marginal", "either"]
    """either: nothing to integrate out, so both coincide"""
    integration: str
    """the method, in words"""
    local: Locals | None = None
    """effects integrated out numerically"""
    few: bool = False
    """whether integrals evaluate only the rows of the test set; see `sliceable`"""

    @property
    def exact(self) -> bool:
        """Whether the density of a test set is known at every draw, not estimated, and is the
        factor by which full-data and fold posteriors differ; the latter is unknown for a user's
        `marginal` without groups."""
        if self.local is None:
            grouped = isinstance(self.model, Model) and self.model.group is not None
            return self.predictive != "marginal" or grouped
        return self.local.exact or self.local.entries.shape[1] == 1


def choose(asked: str, model: Model | Target, name: str, data: Data, folds: Folds) -> Scored:
    """Which predictive the folds of a model use, and the model with it.

    "auto": the model's own `marginal` if it declares its groups and all folds leave out whole ones;
    otherwise the effects that `find` returns are integrated out; plain if some fold leaves out
    none. A target has only its own predictive.

    Args:
        asked: "auto", "marginal" or "plain".
        model, name: the model.
        data: its data.
        folds: of the data.

    Raises:
        PcvError: "marginal" is requested, but there is nothing to integrate out, or it is invalid
            in some fold.
    """

    def without(predictive: Literal["plain", "either"], why: str) -> Scored:
        """Nothing is integrated out."""
        if asked == "marginal":
            raise PcvError(f"model '{name}': {why}")
        return Scored(model, predictive, "")

    if asked == "plain":
        return Scored(model, "plain", "")
    if isinstance(model, Target):
        return without(
            "either",
            "predictive 'marginal' is requested, but a pcv.Target gives its own; leave out "
            "`predictive`",
        )
    if model.marginal is not None and (asked == "marginal" or model.group is not None):
        try:
            check_whole_groups(model, name, folds)
        except PcvError:
            if asked == "marginal":
                raise
            return Scored(model, "plain", "")
        return Scored(model, "marginal", "analytically")
    local = find(model, data, folds)
    if isinstance(local, str):
        return without(
            "plain",
            f"left-out effects cannot be integrated out: {local}; write a `marginal`, or set "
            + setting("predictive", value="plain"),
        )
    if not len(local.entries):
        return without(
            "either",
            "no fold leaves out a whole group that has effects of its own; let folds leave out "
            "whole groups, or set " + setting("predictive", value="plain"),
        )
    tested = np.where(folds.test >= 0, local.group[folds.test], -1)
    if asked == "auto" and not (tested >= 0).any(axis=1).all():
        return Scored(model, "plain", "")
    by = "on a grid" if local.entries.shape[1] == 1 else "by importance sampling"
    by = "exactly" if local.exact else by
    few = sliceable(model, data, folds)
    return Scored(integrated(model, data, local, few), "marginal", by, local, few)


def sliceable(model: Model, data: Data, folds: Folds) -> bool:
    """Whether `log_lik` of a test set's rows alone gives the terms of its units.

    It does not if a term depends on other rows, for example through a covariate scaled by its
    range. Checked in every fold, at a few draws from the prior.
    """
    with devices.precision("float64"):
        arrays = numeric(data)
        num_units = columns.num_units(arrays)
        if len(arrays[model.outcome.name]) != num_units:
            return False
        draws = prior_draws(model.init, PRIOR_DRAWS)

        def terms(arrays: Data) -> Float[Array, "draw row"]:
            return jax.lax.map(lambda params: model.log_lik(params, arrays), draws)

        whole = programs.once(lambda: terms(arrays))()

        def right(test: Int[Array, " slot"]) -> Bool[Array, ""]:
            units = _filled(test)
            found, expected = terms(_rows(arrays, units, num_units)), whole[:, units]
            if found.shape != expected.shape:
                return jnp.array(False)
            finite = jnp.isfinite(expected).any(0)  # terms that are always -inf prove nothing
            return jnp.isclose(found, expected, equal_nan=True).all() & finite.all()

        every = programs.once(lambda tests: jax.lax.map(right, tests))
        try:
            return bool(every(jnp.asarray(folds.test)).all())
        except Exception:  # a user's function may raise anything given fewer rows
            return False


def by_group(
    model: Model, data: Data, local: Locals, few: bool, integral: Integral
) -> Callable[..., Predictive]:
    """Predictive that sums integrals over the effects of each left-out group, optionally for some
    slots only.

    Args:
        model, data, local, few: as for `integrated`.
        integral: for one group: of the sum of its terms, and of each.
    """
    # User functions are traced once, however often they are called here; unchanged data remain
    # constants, from which a model may compute sizes.
    own, known = programs.Inner(model.log_prior), numeric(data)
    terms_of = programs.Inner(lambda params, changed: model.log_lik(params, {**known, **changed}))

    def log_lik(params: Params, arrays: Data) -> Array:
        changed = {name: x for name, x in arrays.items() if not _equal(x, known.get(name))}
        found: Array = terms_of(params, changed)
        return found

    num_units = len(local.group)
    all_entries, put = prior.entries_and_put(model, local)

    def marginal(
        params: Params,
        data: Data,
        test: Int[Array, " slot"],
        some: Bool[Array, " slot"] | Literal[True] = True,
    ) -> Predictive:
        arrays = _rows(data, _filled(test), num_units) if few else data
        of_slot, present = prior.groups_of(local, test)

        def of_group(group: Int[Array, ""]) -> Predictive:
            entries, mine = all_entries[group], (of_slot == group) & (test >= 0) & some

            def terms(x: Float[Array, " dim"]) -> Float[Array, " slot"]:
                found = log_lik(put(params, entries, x), arrays)
                return jnp.where(mine, found if few else found[test], 0.0)

            log_prior, now = prior.of_entries(own, put, params, entries)
            key = jax.random.fold_in(prior.key_of(params), group)
            joint, pointwise = integral(key, group, log_prior, terms, now)
            return jnp.where(mine.any(), joint, 0.0), jnp.where(mine, pointwise, 0.0)

        joint, pointwise = prior.over_groups(of_group, present)
        if not local.constants:
            return joint.sum(), pointwise.sum(0)
        found = log_lik(params, arrays)
        constant = jnp.where((of_slot < 0) & some, found if few else found[test], 0.0)
        return joint.sum() + constant.sum(), pointwise.sum(0) + constant

    return marginal


def integrated(
    model: Model, data: Data, local: Locals, few: bool, nodes_per_dim: int = NODES_PER_DIM
) -> Model:
    """The model with `local` integrated out of its predictive, of replicates too.

    Args:
        model, data: the model.
        local: of `find`.
        few: evaluate only the rows of a test set, if `sliceable`.
        nodes_per_dim: of importance sampling, for groups with two or more effects.
    """
    prior_of, all_widths = prior.priors(local), prior.widths(local)

    def integral(
        key: Key[Array, ""], group: Array, log_prior: Function, terms: Terms, now: Array
    ) -> Predictive:
        if local.exact:
            width = all_widths[group].astype(now.dtype)
            return normal_log_mean(
                log_prior, terms, now, None if model.log_joint is None else width
            )
        if now.size == 1 and not local.normal:
            width = all_widths[group, 0].astype(now.dtype)
            return grid_log_mean(
                key, lambda x: log_prior(x[None]), lambda x: terms(x[None]), now[0], width
            )
        return log_mean(key, log_prior, terms, prior_of(key, log_prior, now, group), nodes_per_dim)

    anew = programs.Inner(prior.drawn_anew(model, local))
    rows = rows_by_unit(data, model.outcome.name)

    def predict(
        key: Key[Array, ""], params: Params, data: Data, test: Int[Array, " slot"]
    ) -> Float[Array, "slot ..."]:
        assert model.predict is not None
        for_effects, for_outcome = jax.random.split(key)
        moved = anew(for_effects, params, test)
        return model.predict(for_outcome, moved, data)[rows_of_test(rows, test)]

    def cdf(
        key: Key[Array, ""], params: Params, data: Data, test: Int[Array, " slot"], y: Array
    ) -> Float[Array, "slot ..."]:
        for_effects, _ = jax.random.split(key)  # the effects of `predict`
        return cdf_of_test(model, rows, anew(for_effects, params, test), data, test, y)

    return model._replace(
        marginal=by_group(model, data, local, few, integral),
        group=local.group,
        marginal_predict=None if model.predict is None else predict,
        marginal_cdf=None if model.cdf is None else cdf,
        marginal_moments=None,
    )


def _rows(arrays: Data, units: Int[Array, " slot"], num_units: int) -> dict[str, Array]:
    return {
        name: x[units] if x.ndim and x.shape[0] == num_units else x for name, x in arrays.items()
    }


def _filled(test: Int[Array, " slot"]) -> Int[Array, " slot"]:
    """A test set padded with its first unit, so that no other unit's row is read."""
    return jnp.where(test >= 0, test, test[0])


def _equal(x: Array, known: Array | None) -> bool:
    """Whether an array is known to hold the same values."""
    if known is None or isinstance(x, jax.core.Tracer):
        return False
    return x is known or np.array_equal(x, known)
