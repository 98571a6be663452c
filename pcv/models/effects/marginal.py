r"""A left-out group's own effects, integrated out of its predictive.

In a fold, parameters λ that no training unit depends on are drawn from their prior given the
others, φ. Their draws rarely fit what the fold predicts; its mean density is ruled by few of them.
Here each draw's density is the mean over all of them instead:

.. math:: p(y_\mathrm{test} \mid \varphi) = \frac{\int p(y_\mathrm{test} \mid \varphi, \lambda)\,
          p(\varphi, \lambda) \, d\lambda}{\int p(\varphi, \lambda) \, d\lambda}

which estimates the same elpd with far less noise. Where outcome and effects are normal, integrals
are exact; else they are done numerically at every draw. Where the prior of λ is normal, or there
are several effects, nodes lie around a Laplace approximation (`pcv.models.effects.laplace`), and
the integral is unbiased, so that its error is part of the variance of the draws, and of the MCSE. A
prior of any other shape is integrated one effect after the other, by nodes that it places itself
(`pcv.models.effects.grid`). What is local is found by `pcv.models.effects.effects`; λ is on the
unconstrained scale.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key

from pcv.base import programs
from pcv.base.errors import PcvError
from pcv.base.keys import any_key
from pcv.base.programs import devices
from pcv.folds import columns
from pcv.folds.base import Folds
from pcv.models.checks import check_whole_groups
from pcv.models.effects.effects import PRIOR_DRAWS, Locals, Position, find
from pcv.models.effects.grid import log_mean as grid_log_mean
from pcv.models.effects.laplace import (
    NODES_PER_DIM,
    Function,
    Laplace,
    Prior,
    expansion,
    independent_prior,
    log_mean,
    normal,
    normal_log_mean,
    normal_prior,
)
from pcv.models.model import (
    Data,
    Model,
    Params,
    Predictive,
    Target,
    numeric,
    prior_draws,
    unravel_of,
)

MUCH_WIDER = 2.0
"""standard deviation of the prior over the posterior's, from which on chains are spared it"""


Terms = Callable[[Float[Array, " dim"]], Float[Array, " slot"]]
Integral = Callable[
    [Key[Array, ""], Int[Array, ""], Function, Terms, Float[Array, " dim"]], Predictive
]
"""of random numbers, a group, the log prior of its effects, its terms, and what its effects are"""


class Scored(NamedTuple):
    """A model as its folds score it."""

    model: Model | Target
    predictive: Literal["plain", "marginal", "either"]
    """either: there is nothing to integrate out, so that both are the same"""
    integration: str
    """how it is done, in words"""
    local: Locals | None = None
    """what is integrated out numerically"""
    few: bool = False
    """whether its integrals evaluate the rows of the test set alone, as `sliceable` says"""

    @property
    def exact(self) -> bool:
        """Whether the density of a test set is known at every draw, and not estimated there; and
        is that by which the full data have more, which is not known of a user's `marginal` of units
        without groups."""
        if self.local is None:
            grouped = isinstance(self.model, Model) and self.model.group is not None
            return self.predictive != "marginal" or grouped
        return self.local.exact or self.local.entries.shape[1] == 1


def choose(setting: str, model: Model | Target, name: str, data: Data, folds: Folds) -> Scored:
    """Which predictive the folds of a model use, and the model with it.

    "auto": the model's own `marginal` where it says what its groups are and all folds leave out
    whole ones; else the effects that `find` finds are integrated out; plain where there are none,
    or not of all units. A target has one predictive, its own.

    Args:
        setting: "auto", "marginal" or "plain".
        model, name: the model.
        data: its data.
        folds: of the data.

    Raises:
        PcvError: "marginal" is asked for, and there is nothing to integrate out, or it does not
            hold in a fold.
    """
    if setting == "plain":
        return Scored(model, "plain", "")
    if isinstance(model, Target):
        if setting == "marginal":
            raise PcvError(
                f"model '{name}': predictive 'marginal' is asked for, but a pcv.Target gives its "
                "own; leave out `predictive`"
            )
        return Scored(model, "either", "")
    analytic = Scored(model, "marginal", "analytically")
    if model.marginal is not None and (setting == "marginal" or model.group is not None):
        try:
            check_whole_groups(model, name, folds)
        except PcvError:
            if setting == "marginal":
                raise
            return Scored(model, "plain", "")
        return analytic
    local = find(model, data, folds)
    if isinstance(local, str):
        if setting == "marginal":
            raise PcvError(
                f"model '{name}': left-out effects cannot be integrated out: {local}; write a "
                "`marginal`, or set predictive: plain"
            )
        return Scored(model, "plain", "")
    if not len(local.entries):
        if setting == "marginal":
            raise PcvError(
                f"model '{name}': no fold leaves out a whole group that has effects of its own; "
                "let folds leave out whole groups, or set predictive: plain"
            )
        return Scored(model, "either", "")
    by = "on a grid" if local.entries.shape[1] == 1 else "by importance sampling"
    by = "exactly" if local.exact else by
    few = sliceable(model, data, folds)
    return Scored(integrated(model, data, local, few), "marginal", by, local, few)


def sliceable(model: Model, data: Data, folds: Folds) -> bool:
    """Does `log_lik` of the rows of each test set alone give the terms of its units?

    It does not where a term depends on other rows too, as by a covariate scaled by the range of all
    of them. Looked at in every fold, at some draws from the prior.
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
            told = jnp.isfinite(expected).any(0)  # terms that are -inf throughout tell nothing
            return jnp.isclose(found, expected, equal_nan=True).all() & told.all()

        every = programs.once(lambda tests: jax.lax.map(right, tests))
        try:
            return bool(every(jnp.asarray(folds.test)).all())
        except Exception:  # whatever a model's function does with data of another size
            return False


def _filled(test: Int[Array, " slot"]) -> Int[Array, " slot"]:
    """A test set whose padding repeats its first unit, so that it holds no other's row."""
    return jnp.where(test >= 0, test, test[0])


def _rows(arrays: Data, units: Int[Array, " slot"], num_units: int) -> dict[str, Array]:
    return {
        name: x[units] if x.ndim and x.shape[0] == num_units else x for name, x in arrays.items()
    }


def by_group(
    model: Model, data: Data, local: Locals, few: bool, integral: Integral
) -> Callable[..., Predictive]:
    """A predictive that is the sum of integrals over the effects of each group that is left out,
    of some of the slots if these are given.

    Args:
        model, data, local, few: as for `integrated`.
        integral: of one group: of the sum of its terms, and of each.
    """
    # Functions of the user are traced once, however often they are called here, and data that stay
    # as they are remain constants, of which a model may compute sizes.
    own, known = model._replace(log_prior=programs.Inner(model.log_prior)), numeric(data)
    terms_of = programs.Inner(lambda params, changed: model.log_lik(params, {**known, **changed}))

    def log_lik(params: Params, arrays: Data) -> Array:
        changed = {name: x for name, x in arrays.items() if not _equal(x, known.get(name))}
        found: Array = terms_of(params, changed)
        return found

    num_units = len(local.group)
    all_entries, put = _entries_and_put(model, local)

    def marginal(
        params: Params,
        data: Data,
        test: Int[Array, " slot"],
        some: Bool[Array, " slot"] | Literal[True] = True,
    ) -> Predictive:
        arrays = _rows(data, _filled(test), num_units) if few else data
        of_slot, present = _groups_of(local, test)

        def of_group(group: Int[Array, ""]) -> Predictive:
            entries, mine = all_entries[group], (of_slot == group) & (test >= 0) & some

            def terms(x: Float[Array, " dim"]) -> Float[Array, " slot"]:
                found = log_lik(put(params, entries, x), arrays)
                return jnp.where(mine, found if few else found[test], 0.0)

            log_prior, now = _prior(own, put, params, entries)
            key = jax.random.fold_in(_key_of(params), group)
            joint, pointwise = integral(key, group, log_prior, terms, now)
            return jnp.where(mine.any(), joint, 0.0), jnp.where(mine, pointwise, 0.0)

        joint, pointwise = _over_groups(of_group, present)
        return joint.sum(), pointwise.sum(0)

    return marginal


def integrated(
    model: Model, data: Data, local: Locals, few: bool, nodes_per_dim: int = NODES_PER_DIM
) -> Model:
    """The model with a marginal predictive, of replicates too, in which `local` is integrated out.

    Args:
        model, data: the model.
        local: of `find`.
        few: evaluate the rows of a test set alone, as `sliceable` allows.
        nodes_per_dim: of importance sampling, where a group has two effects or more.
    """
    prior_of, all_widths = _priors(local), _widths(local)

    def integral(
        key: Key[Array, ""], group: Array, log_prior: Function, terms: Terms, now: Array
    ) -> Predictive:
        if local.exact:
            return normal_log_mean(log_prior, terms, now)
        if now.size == 1 and not local.normal:
            width = all_widths[group, 0].astype(now.dtype)
            return grid_log_mean(
                key, lambda x: log_prior(x[None]), lambda x: terms(x[None]), now[0], width
            )
        return log_mean(key, log_prior, terms, prior_of(key, log_prior, now, group), nodes_per_dim)

    anew = _drawn_anew(model, local)

    def predict(
        key: Key[Array, ""], params: Params, data: Data, test: Int[Array, " slot"]
    ) -> Float[Array, " slot"]:
        assert model.predict is not None
        for_effects, for_outcome = jax.random.split(key)
        moved = anew(for_effects, params, test)
        return model.predict(for_outcome, moved, data)[test]

    return model._replace(
        marginal=by_group(model, data, local, few, integral),
        group=local.group,
        marginal_predict=model.predict and predict,
        marginal_moments=None,
    )


def started_anew(
    scored: Scored, folds: Folds, positions: Float[np.ndarray, "fold chain param"]
) -> Float[np.ndarray, "fold chain param"]:
    """The same, but for own effects that chains sample from a prior that is not normal: these are
    drawn from it. Where the full data have them, far in a tail or in one of its modes, a chain
    would stay for long, and with it what hangs on them."""
    model, local = scored.model, scored.local
    if isinstance(model, Target) or local is None or local.normal:
        return positions
    anew, unravel = _drawn_anew(model, local), unravel_of(model.init)

    def of_chain(position: Position, test: Int[Array, " slot"]) -> Position:
        params = unravel(position)
        moved = anew(jax.random.fold_in(_key_of(params), 2), params, test)
        return ravel_pytree(moved)[0]

    every = programs.once(jax.vmap(jax.vmap(of_chain, (0, None))))
    return np.asarray(every(jnp.asarray(positions), jnp.asarray(folds.test)))


def _drawn_anew(
    model: Model, local: Locals
) -> Callable[[Key[Array, ""], Params, Int[Array, " slot"]], Params]:
    """The way to parameters whose own effects of a test set are drawn from their prior."""
    own = model._replace(log_prior=programs.Inner(model.log_prior))
    (all_entries, put), prior_of = _entries_and_put(model, local), _priors(local)

    def moved(key: Key[Array, ""], params: Params, test: Int[Array, " slot"]) -> Params:
        _, present = _groups_of(local, test)

        def of_group(group: Int[Array, ""]) -> Float[Array, " dim"]:
            own_key = jax.random.fold_in(key, group)
            log_prior, now = _prior(own, put, params, all_entries[group])
            return prior_of(own_key, log_prior, now, group).draw(own_key, 1)[0]

        effects = _over_groups(of_group, present)
        return put(params, all_entries[present].ravel(), effects.ravel())

    return moved


def _widths(local: Locals) -> Float[Array, "group dim"]:
    return jnp.asarray(np.append(local.width, np.ones((1, local.width.shape[1])), axis=0))


def _priors(local: Locals) -> Callable[[Key[Array, ""], Function, Array, Array], Prior]:
    """Priors of effects, by their log density, what they are now, and their group."""
    all_widths = _widths(local)

    def prior_of(key: Key[Array, ""], log_prior: Function, now: Array, group: Array) -> Prior:
        if local.normal:
            return normal_prior(log_prior, now)
        width = all_widths[group].astype(now.dtype)
        return independent_prior(jax.random.fold_in(key, 1), log_prior, now, width)

    return prior_of


def may_be_decoupled(scored: Scored) -> bool:
    """Is the integral of a left-out group's effects known: by a `marginal` of groups, or as their
    prior is normal?"""
    if isinstance(scored.model, Target) or scored.predictive != "marginal":
        return False
    if scored.local is not None:
        return scored.local.normal
    return scored.model.group is not None and scored.model.fold_prior is None


def decoupled(
    scored: Scored,
    data: Data,
    center: Float[np.ndarray, " param"],
    cov: Float[np.ndarray, "param param"],
) -> Scored:
    r"""The same with chains in which left-out effects stay where the full data had them.

    The posterior of the other parameters, φ, is the same whatever density q the left-out effects
    are given in place of their prior, as long as that has been integrated out:

    .. math:: p(\varphi, \lambda \mid y_\mathrm{train}) \;\to\;
              p(y_\mathrm{train} \mid \varphi) \, \int p(\varphi, \lambda') \, d\lambda' \;
              q(\lambda)

    With q the full-data posterior's normal approximation a fold is to its chains as the full data
    are. From their prior instead, which may be many times wider, effects would be drawn by a kernel
    that was tuned for narrow ones, and all that hangs on them with it. Where the model has a
    `marginal` of its own, q is what their own data say of them:

    .. math:: p(\varphi, \lambda \mid y_\mathrm{train}) \;\to\;
              p(\varphi, \lambda \mid y) \, / \, p(y_\mathrm{test} \mid \varphi)

    Args:
        scored: of `choose`, which `may_be_decoupled`.
        data: of the model.
        center, cov: mean and covariance of the full-data posterior.
    """
    model, local = scored.model, scored.local
    assert isinstance(model, Model)
    if local is None:
        return scored._replace(model=model._replace(fold_prior=_given_all(model, numeric(data))))
    own = model._replace(log_prior=programs.Inner(model.log_prior))
    size, dim, put = len(center), local.entries.shape[1], _put(model, local)
    all_entries = _with_nobody(local, size)
    padded = np.append(center, 0.0)
    wide = np.eye(size + 1)
    wide[:size, :size] = cov
    covs = wide[all_entries[:, :, None], all_entries[:, None, :]]
    there = all_entries < size
    both = there[:, :, None] & there[:, None, :]
    try:
        inverse = np.linalg.inv(np.linalg.cholesky(np.where(both, covs, np.eye(dim))))
    except np.linalg.LinAlgError:  # draws that hardly moved
        return scored
    means, whiten = programs.Given(padded[all_entries]), programs.Given(inverse)
    entries_of = jnp.asarray(all_entries)

    def fold_prior(params: Params, test: Int[Array, " slot"]) -> Float[Array, ""]:
        _, present = _groups_of(local, test)
        entries = entries_of[present]

        def prior_of(entries: Int[Array, " dim"]) -> Laplace:
            return normal(*_prior(own, put, params, entries))

        priors = _over_groups(prior_of, entries)

        def log_prior(offset: Float[Array, " dim"]) -> Float[Array, ""]:
            moved = (priors.mean + priors.scale @ offset).ravel()
            return own.log_prior(put(params, entries.ravel(), moved))

        # The log integral is the mean of the log prior over λ plus the entropy of λ, of which the
        # former alone has a slope in φ where q is the prior. It is a mean over points as far out
        # as λ is on average, as the log prior is quadratic in λ.
        apart = jnp.sqrt(1.0 * dim) * jnp.eye(dim, dtype=priors.mean.dtype)
        mean = jnp.mean(jax.vmap(log_prior)(jnp.concatenate([apart, -apart])))
        there = present < len(local.entries)
        moved = _get(params, entries) - means()[present]
        z = jnp.einsum("gij,gj->gi", whiten()[present], moved)
        return mean + jnp.sum(jnp.where(there, priors.log_det - jnp.sum(z**2, 1) / 2, 0.0))

    return scored._replace(model=model._replace(fold_prior=fold_prior))


def is_smooth(
    scored: Scored, data: Data, center: Float[np.ndarray, " param"], folds: Folds
) -> bool:
    """Has the model's own `marginal` a gradient, as chains need it, at the posterior's mean? Also
    where slots are padded."""
    model, arrays = scored.model, numeric(data)
    assert isinstance(model, Model)
    assert model.marginal is not None
    marginal, unravel = model.marginal, unravel_of(model.init)
    test = jnp.asarray(folds.test[(folds.test >= 0).sum(1).argmin()])

    def joint(position: Position) -> Float[Array, ""]:
        return marginal(unravel(position), arrays, test)[0]

    try:
        slope = programs.once(jax.grad(joint))(jnp.asarray(center))
    except Exception:  # of a loop without a known length, say
        return False
    return bool(np.isfinite(slope).all())


def _given_all(model: Model, arrays: Data) -> Callable[[Params, Array], Array]:
    """The prior of a fold whose test set is trained on, and its `marginal` taken out again."""

    def fold_prior(params: Params, test: Int[Array, " slot"]) -> Float[Array, ""]:
        assert model.marginal is not None
        terms = model.log_lik(params, arrays)[test]
        tested = jnp.sum(jnp.where(test >= 0, terms, 0.0))
        return model.log_prior(params) + tested - model.marginal(params, arrays, test)[0]

    return fold_prior


def _equal(x: Array, known: Array | None) -> bool:
    """Is this known to hold the same values?"""
    if known is None or isinstance(x, jax.core.Tracer):
        return False
    return x is known or np.array_equal(x, known)


def _entries_and_put(
    model: Model, local: Locals
) -> tuple[Int[Array, "group dim"], Callable[[Params, Array, Array], Params]]:
    return jnp.asarray(_with_nobody(local, _size(model))), _put(model, local)


def _with_nobody(local: Locals, size: int) -> Int[np.ndarray, "group dim"]:
    """The groups' parameters, and after them a group without any."""
    return np.concatenate([local.entries, np.full((1, local.entries.shape[1]), size)])


def _groups_of(
    local: Locals, test: Int[Array, " slot"]
) -> tuple[Int[Array, " slot"], Int[Array, " group"]]:
    """The group of each slot and those of the test set, both padded by the one without any."""
    nobody = len(local.entries)
    of_slot = jnp.where(test >= 0, jnp.asarray(local.group)[test], nobody)
    if local.most == 1:
        return of_slot, of_slot[:1]
    return of_slot, jnp.unique(of_slot, size=local.most + 1, fill_value=nobody)[:-1]


def _over_groups(function: Callable[..., Any], *arrays: Array) -> Any:
    """`function` of each group of a test set; a single one costs no vectorisation."""
    if len(arrays[0]) > 1:
        return jax.vmap(function)(*arrays)
    return jax.tree.map(lambda x: x[None], function(*(x[0] for x in arrays)))


def much_wider(
    scored: Scored, center: Float[np.ndarray, " param"], precisions: Float[np.ndarray, " param"]
) -> bool:
    """Is the prior of some group's effects, of those that are integrated out numerically, much
    wider than their posterior, given the others?

    Args:
        scored: of `choose`.
        center, precisions: the full-data posterior's mean, and of each parameter given the others.
    """
    model, local = scored.model, scored.local
    assert isinstance(model, Model)
    assert local is not None
    params = jax.tree.map(jnp.asarray, unravel_of(model.init)(np.asarray(center)))
    put = _put(model, local)

    def precision(params: Params, entries: Int[Array, " dim"]) -> Array:
        return -jnp.diag(expansion(*_prior(model, put, params, entries)).curvature)

    every = programs.once(jax.vmap(precision, (None, 0)))
    found = np.asarray(every(params, jnp.asarray(local.entries)))
    there = local.entries < len(center)
    posterior = precisions[np.where(there, local.entries, 0)]
    return bool((there & (found < posterior / MUCH_WIDER**2)).any())


def _size(model: Model) -> int:
    shapes = programs.shapes(model.init, any_key())
    return sum(int(np.prod(x.shape)) for x in shapes.values())


def _key_of(params: Params) -> Key[Array, ""]:
    """Random numbers that a position has for itself: the nodes of its integrals."""
    position = ravel_pytree(params)[0]
    bits = jax.lax.bitcast_convert_type(position.astype(jnp.float32), jnp.uint32)
    odd = 2 * jnp.arange(position.size, dtype=jnp.uint32) + 1
    return jax.random.fold_in(jax.random.key(0), jnp.sum(bits * odd, dtype=jnp.uint32))


def _get(params: Params, entries: Int[Array, "*dims"]) -> Float[Array, "*dims"]:
    """Some entries of the flat vector, 0 beyond its end."""
    position: Position = ravel_pytree(params)[0]
    return position.at[entries].get(mode="fill", fill_value=0.0)


def _put(model: Model, local: Locals) -> Callable[[Params, Array, Array], Params]:
    """The way to other values of local entries; parameters that have none are left alone, so that
    nothing is derived in them."""
    shapes = programs.shapes(model.init, any_key())
    first, ranges = 0, {}
    for name in sorted(shapes):
        size = int(np.prod(shapes[name].shape))
        if ((local.entries >= first) & (local.entries < first + size)).any():
            ranges[name] = first, size
        first += size

    def put(params: Params, entries: Int[Array, " dim"], x: Float[Array, " dim"]) -> Params:
        moved = {}
        for name, (first, size) in ranges.items():
            inside = (entries >= first) & (entries < first + size)
            place = jnp.where(inside, entries - first, size)
            flat = params[name].reshape(-1).at[place].set(x, mode="drop")
            moved[name] = flat.reshape(params[name].shape)
        return {**params, **moved}

    return put


def _prior(
    model: Model,
    put: Callable[[Params, Array, Array], Params],
    params: Params,
    entries: Int[Array, " dim"],
) -> tuple[Function, Float[Array, " dim"]]:
    """Log prior as a function of a group's own parameters, padded ones standard normal, and what
    these are now."""
    there = entries < ravel_pytree(params)[0].size

    def log_prior(x: Float[Array, " dim"]) -> Float[Array, ""]:
        prior = model.log_prior(put(params, entries, x))
        return prior - jnp.sum(jnp.where(there, 0.0, x**2)) / 2

    return log_prior, _get(params, entries)
