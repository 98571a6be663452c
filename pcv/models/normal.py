r"""Outcomes that are jointly normal given the parameters, as a `pcv.Target`.

Gaussian processes, autoregressions, conditional and simultaneous autoregressions over a map:
left-out units are predicted from the others by the conditional normal distribution.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, Key

from pcv.models.model import Fold, Outcome, Params, Predictive, Scalar, Target


def normal_target(
    init: Callable[[Key[Array, ""]], Params],
    log_prior: Callable[[Params], Scalar],
    moments: Callable[[Params], tuple[Float[Array, " unit"], Float[Array, "unit unit"]]],
    constrain: Callable[[Params], Mapping[str, Array]],
    outcome: Outcome,
    y: Float[np.ndarray, " unit"],
) -> Target:
    r"""A posterior and a predictive for outcomes that are jointly normal given the parameters.

    With mean :math:`m` and covariance :math:`K` of all units, at parameters :math:`\theta`,

    .. math::
        p(y_\mathrm{train} \mid \theta) &= N(m_\mathrm{train}, K_\mathrm{train,train}) \\
        p(y_\mathrm{test} \mid \theta, y_\mathrm{train}) &=
        N(m_\mathrm{test} + A (y_\mathrm{train} - m_\mathrm{train}),\;
        K_\mathrm{test,test} - A K_\mathrm{train,test}), \qquad
        A = K_\mathrm{test,train} K_\mathrm{train,train}^{-1}

    (Bürkner, Gabry and Vehtari, 2021, *Efficient leave-one-out cross-validation for Bayesian
    non-factorized normal and Student-t models*). All scores are available: log, DSS, Hyvärinen,
    CRPS... The cost of a draw is cubic in the number of units.

    Args:
        init: a draw from the prior, on the unconstrained scale.
        log_prior: log prior density of the unconstrained parameters, Jacobian included.
        moments: mean and covariance of all units given parameters, noise included.
        constrain: the named variables of the posterior.
        outcome: what is scored.
        y: its values (unit).

    A stationary autoregression; any part may be left out:

    >>> import numpyro.distributions as dist
    >>> time = jnp.arange(6)
    >>> target = normal_target(
    ...     init=lambda key: {"z": jax.random.normal(key)},
    ...     log_prior=lambda params: dist.Normal(0, 1).log_prob(params["z"]),
    ...     moments=lambda params: (
    ...         jnp.zeros(6), jnp.tanh(params["z"]) ** jnp.abs(time[:, None] - time)),
    ...     constrain=lambda params: {"rho": jnp.tanh(params["z"])},
    ...     outcome=Outcome("y"),
    ...     y=np.array([0.1, 0.5, 0.2, -0.4, -0.3, 0.2]),
    ... )
    >>> fold = Fold(train=time < 4, test=jnp.array([4, 5, -1]))
    >>> joint, pointwise = target.log_predictive({"z": jnp.array(0.5)}, fold)
    >>> pointwise.shape
    (3,)
    """
    values = np.asarray(y)

    def factor(params: Params, fold: Fold) -> tuple[Array, Array, Array, Array]:
        """Mean and covariance; Cholesky factor and residuals of the training units."""
        mean, cov = map(jnp.asarray, moments(params))  # NumPy arrays cannot be indexed by a fold
        both = fold.train[:, None] & fold.train
        root = jnp.linalg.cholesky(jnp.where(both, cov, jnp.eye(len(values), dtype=cov.dtype)))
        residual = jnp.where(fold.train, jnp.asarray(values, mean.dtype) - mean, 0.0)
        return mean, cov, root, residual

    def log_density(params: Params, fold: Fold) -> Scalar:
        _, _, root, residual = factor(params, fold)
        return log_prior(params) + _log_normal(residual, root, jnp.sum(fold.train))

    def conditional(params: Params, fold: Fold) -> tuple[Array, Array]:
        """Mean and covariance of the test set; those of padded slots are 0 and 1."""
        mean, cov, root, residual = factor(params, fold)
        present = fold.test >= 0
        both = present[:, None] & present
        across = jnp.where(present[:, None] & fold.train, cov[fold.test], 0.0)
        shift = across @ cho_solve((root, True), residual)
        explained = across @ cho_solve((root, True), across.T)
        within = jnp.where(both, cov[fold.test][:, fold.test] - explained, jnp.eye(present.size))
        return jnp.where(present, mean[fold.test] + shift, 0.0), within

    def density(params: Params, fold: Fold, y: Float[Array, " slot"]) -> Predictive:
        (mean, cov), present = conditional(params, fold), fold.test >= 0
        residual = jnp.where(present, y - mean, 0.0)
        joint = _log_normal(residual, jnp.linalg.cholesky(cov), jnp.sum(present))
        pointwise = jax.scipy.stats.norm.logpdf(residual, scale=jnp.sqrt(jnp.diag(cov)))
        return joint, jnp.where(present, pointwise, 0.0)

    def observed(fold: Fold) -> Float[Array, " slot"]:
        return jnp.asarray(values, jnp.result_type(float))[fold.test]

    def predict(key: Key[Array, ""], params: Params, fold: Fold) -> Float[Array, " slot"]:
        mean, cov = conditional(params, fold)
        return mean + jnp.linalg.cholesky(cov) @ jax.random.normal(key, mean.shape, mean.dtype)

    def cdf(
        key: Key[Array, ""], params: Params, fold: Fold, y: Float[Array, " slot"]
    ) -> Float[Array, " slot"]:
        mean, cov = conditional(params, fold)
        return jax.scipy.stats.norm.cdf((y - mean) / jnp.sqrt(jnp.diag(cov)))

    return Target(
        init=init,
        log_density=log_density,
        log_predictive=lambda params, fold: density(params, fold, observed(fold)),
        outcome=outcome,
        constrain=constrain,
        observed=observed,
        density=density,
        predict=predict,
        cdf=cdf,
        moments=conditional,
        reads_test=False,
    )


def _log_normal(
    residual: Float[Array, " unit"], root: Float[Array, "unit unit"], size: Array
) -> Scalar:
    """Log density of residuals; absent units have residual 0 and variance 1."""
    z = jax.scipy.linalg.solve_triangular(root, residual, lower=True)
    return -(z @ z) / 2 - jnp.sum(jnp.log(jnp.diag(root))) - size * jnp.log(2 * jnp.pi) / 2
