"""Chains decoupled from the prior of own effects, where it is much wider than their posterior."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pcv.compile import programs
from pcv.folds.base import Folds
from pcv.models.effects.effects import Position
from pcv.models.effects.laplace import Laplace, expansion, normal
from pcv.models.effects.marginal import Scored
from pcv.models.effects.prior import entries_and_put, get, groups_of, of_entries, over_groups
from pcv.models.model import Data, Model, Params, Target, numeric
from pcv.models.parameters import unravel_of

MUCH_WIDER = 2.0
"""ratio of prior to posterior standard deviation above which chains are decoupled"""


def may_be_decoupled(scored: Scored) -> bool:
    """Whether the integral over a left-out group's effects is known: the model has its own grouped
    `marginal`, or their prior is normal."""
    if isinstance(scored.model, Target) or scored.predictive != "marginal":
        return False
    if scored.local is not None:
        return scored.local.normal
    return scored.model.group is not None and scored.model.fold_prior is None


def much_wider(
    scored: Scored, center: Float[np.ndarray, " param"], precisions: Float[np.ndarray, " param"]
) -> bool:
    """Whether some group's numerically integrated effects have a prior much wider than their
    posterior, given the other parameters.

    Args:
        scored: of `choose`.
        center, precisions: the full-data posterior's mean, and the precision of each parameter
            given the others.
    """
    model, local = scored.model, scored.local
    assert isinstance(model, Model)
    assert local is not None
    params = jax.tree.map(jnp.asarray, unravel_of(model.init)(np.asarray(center)))
    entries, put = entries_and_put(model, local)

    def precision(params: Params, entries: Int[Array, " dim"]) -> Array:
        return -jnp.diag(expansion(*of_entries(model.log_prior, put, params, entries)).curvature)

    every = programs.once(jax.vmap(precision, (None, 0)))
    found = np.asarray(every(params, entries[:-1]))
    there = local.entries < len(center)
    posterior = precisions[np.where(there, local.entries, 0)]
    return bool((there & (found < posterior / MUCH_WIDER**2)).any())


def is_smooth(
    scored: Scored, data: Data, center: Float[np.ndarray, " param"], folds: Folds
) -> bool:
    """Whether the model's own `marginal` has a finite gradient at the posterior mean, as HMC needs,
    including padded slots."""
    model, arrays = scored.model, numeric(data)
    assert isinstance(model, Model)
    assert model.marginal is not None
    marginal, unravel = model.marginal, unravel_of(model.init)
    test = jnp.asarray(folds.test[(folds.test >= 0).sum(1).argmin()])

    def joint(position: Position) -> Float[Array, ""]:
        return marginal(unravel(position), arrays, test)[0]

    try:
        slope = programs.once(jax.grad(joint))(jnp.asarray(center))
    except Exception:  # for example, a loop of unknown length
        return False
    return bool(np.isfinite(slope).all())


def decoupled(
    scored: Scored,
    data: Data,
    center: Float[np.ndarray, " param"],
    cov: Float[np.ndarray, "param param"],
) -> Scored:
    r"""The model whose chains keep left-out effects where the full data put them.

    Once the prior of the left-out effects λ is integrated out, they can be given any density q
    without changing the posterior of the other parameters, φ:

    .. math:: p(\varphi, \lambda \mid y_\mathrm{train}) \;\to\;
              p(y_\mathrm{train} \mid \varphi) \, \int p(\varphi, \lambda') \, d\lambda' \;
              q(\lambda)

    With q the normal approximation to the full-data posterior, chains of a fold see the geometry of
    the full data. Under their prior, which may be many times wider, effects and all that depends on
    them would be sampled by a kernel tuned to narrow ones. If the model has its own `marginal`, q
    is the posterior of λ given φ and the test set:

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
    own, size, dim = programs.Inner(model.log_prior), len(center), local.entries.shape[1]
    entries_of, put = entries_and_put(model, local)
    all_entries = np.asarray(entries_of)
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
    means, whiten = jnp.asarray(padded[all_entries]), jnp.asarray(inverse)

    def fold_prior(params: Params, test: Int[Array, " slot"]) -> Float[Array, ""]:
        _, present = groups_of(local, test)
        entries = entries_of[present]

        def prior_of(entries: Int[Array, " dim"]) -> Laplace:
            return normal(*of_entries(own, put, params, entries))

        priors = over_groups(prior_of, entries)

        def log_prior(offset: Float[Array, " dim"]) -> Float[Array, ""]:
            moved = (priors.mean + priors.scale @ offset).ravel()
            return own(put(params, entries.ravel(), moved))

        # The log integral is the mean of the log prior over λ plus the entropy of λ. Its slope in φ
        # is that of the mean alone, with λ's distribution held fixed. As the log prior is quadratic
        # in λ, points at the root mean square distance of λ give the mean exactly.
        apart = jnp.sqrt(1.0 * dim) * jnp.eye(dim, dtype=priors.mean.dtype)
        mean = jnp.mean(jax.vmap(log_prior)(jnp.concatenate([apart, -apart])))
        there = present < len(local.entries)
        moved = get(params, entries) - means[present]
        z = jnp.einsum("gij,gj->gi", whiten[present], moved)
        return mean + jnp.sum(jnp.where(there, priors.log_det - jnp.sum(z**2, 1) / 2, 0.0))

    return scored._replace(model=model._replace(fold_prior=fold_prior))


def _given_all(model: Model, arrays: Data) -> Callable[[Params, Array], Array]:
    """Prior of a fold that trains on its test set and divides by its `marginal`."""

    def fold_prior(params: Params, test: Int[Array, " slot"]) -> Float[Array, ""]:
        assert model.marginal is not None
        terms = model.log_lik(params, arrays)[test]
        tested = jnp.sum(jnp.where(test >= 0, terms, 0.0))
        return model.log_prior(params) + tested - model.marginal(params, arrays, test)[0]

    return fold_prior
