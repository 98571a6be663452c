r"""Scores of the predictive mean and covariance: Dawid–Sebastiani, RMSE, MAE and R².

The moments are those of the error :math:`e = \tilde y - y` of the test set, so that single
precision loses nothing. Where the model states :math:`E[y \mid \theta]` and
:math:`\mathrm{Var}[y \mid \theta]` (`Model.moments`), their exact values replace a replicate's:

.. math:: E[e] = E\{E[y\mid\theta]\} - y, \qquad
          E[ee^\top] = E\{\mathrm{Var}[y\mid\theta] + E[e\mid\theta] E[e\mid\theta]^\top\}

the same target with far less noise (Rao–Blackwell).

Two units, the first predicted too high by 0.5 with variance 1, the second too low by 2 with
variance ½:

>>> means = {"error": np.array([[0.5, -2.0]]), "square": np.array([[1.25, 4.5]])}
>>> y = np.array([[10.0, 12.0]])
>>> dss[1].estimate(means, y).round(2)               # the second: log 2 - 4 / 0.5
array([[-0.25, -7.31]])
>>> rmse[0].estimate(means, y), mae[0].estimate(means, y)
(array([[-0.25, -4.  ]]), array([[-0.5, -2. ]]))

and together, where they are independent:

>>> error = means["error"]
>>> square = error[..., None] * error[..., None, :] + np.diag([1.0, 0.5])
>>> dss[0].estimate({"error": error, "square": square}, y).round(2)
array([-7.56])
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from pcv.models.model import Fold, Target
from pcv.models.scores.score import Means, Need, Score, Total

NEEDS: tuple[Need, ...] = ("moments or predict",)


def _error(
    key: Key[Array, ""], target: Target, params: Any, fold: Fold
) -> tuple[Float[Array, " slot"], Float[Array, "slot slot"]]:
    """Mean of the error at one draw, and its conditional covariance."""
    present = fold.test >= 0
    assert target.observed is not None
    y = target.observed(fold)
    if target.moments is None:
        assert target.predict is not None
        error = jnp.where(present, target.predict(key, params, fold) - y, 0.0)
        return error, jnp.zeros((error.size, error.size), error.dtype)
    mean, cov = target.moments(params, fold)
    cov = jnp.diag(cov) if cov.ndim == 1 else cov
    return jnp.where(present, mean - y, 0.0), jnp.where(jnp.outer(present, present), cov, 0.0)


def mean_error(key: Key[Array, ""], target: Target, params: Any, fold: Fold) -> dict[str, Array]:
    """Mean of the error of each unit at one draw."""
    return {"error": _error(key, target, params, fold)[0]}


def _margins(key: Key[Array, ""], target: Target, params: Any, fold: Fold) -> dict[str, Array]:
    error, cov = _error(key, target, params, fold)
    return {"error": error, "square": error**2 + jnp.diag(cov)}


def _whole(key: Key[Array, ""], target: Target, params: Any, fold: Fold) -> dict[str, Array]:
    error, cov = _error(key, target, params, fold)
    return {"error": error, "square": jnp.outer(error, error) + cov}


def _dss_pointwise(means: Means, y: np.ndarray) -> np.ndarray:
    variance = means["square"] - means["error"] ** 2
    return -np.log(variance) - means["error"] ** 2 / variance


def _dss_joint(means: Means, y: np.ndarray) -> np.ndarray:
    error, size = means["error"], y.shape[-1]
    cov = means["square"] - error[..., :, None] * error[..., None, :]
    cov = cov + np.isnan(y)[..., None] * np.eye(size)
    sign, log_det = np.linalg.slogdet(cov)
    regular = sign > 0
    invertible = np.where(regular[..., None, None], cov, np.eye(size))
    solved = np.linalg.solve(invertible, error[..., None])
    return np.where(regular, -log_det - (error * solved[..., 0]).sum(-1), np.nan)


dss = (
    Score("dss", "joint", _whole, _dss_joint, needs=NEEDS),
    Score("dss", "pointwise", _margins, _dss_pointwise, needs=NEEDS),
)
r"""Dawid–Sebastiani score, from the mean μ and the covariance Σ of the predictive:

.. math:: -\log|\Sigma| - (y - \mu)^\top \Sigma^{-1} (y - \mu)

of the test set as a whole (joint), or of each unit. NaN where Σ, estimated from fewer draws than
units, is singular. Changing the outcome's units shifts the DSS of all models by the same
constant. PCV eq. 40, with S for the S − 1 of its eq. 26; Dawid and Sebastiani (1999).
"""

rmse = (
    Score(
        "rmse",
        "pointwise",
        mean_error,
        lambda means, y: -(means["error"] ** 2),
        total="root mean",
        needs=NEEDS,
    ),
)
r"""Root mean squared error of the predictive mean, negative: :math:`-\sqrt{\mathrm{mean}_i
(y_i - \mu_i)^2}`, in the units of the outcome.

Pointwise; the score of a single unit is its squared error, negative.
"""

mae = (
    Score(
        "mae",
        "pointwise",
        mean_error,
        lambda means, y: -np.abs(means["error"]),
        total="mean",
        needs=NEEDS,
    ),
)
r"""Mean absolute error of the predictive mean, negative: :math:`-\mathrm{mean}_i |y_i - \mu_i|`.

Pointwise, in the units of the outcome.
"""


def _explained(terms: np.ndarray, y: np.ndarray) -> Total:
    """The coefficient of determination of squared errors, negative."""
    count, error, spread = len(terms), -terms, (y - y.mean()) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio, per_unit = error.sum() / spread.sum(), 1 / spread.mean()
        influence = -per_unit * (error - ratio * spread)
    return Total(np.full(count, per_unit / count), (1 - ratio + influence) / count)


r2 = (
    Score(
        "r2",
        "pointwise",
        mean_error,
        lambda means, y: -(means["error"] ** 2),
        total=_explained,
        needs=(*NEEDS, "outcome that varies"),
    ),
)
r"""Coefficient of determination of the predictive mean, over the tested units:

.. math:: R^2 = 1 - \frac{\sum_i (y_i - \mu_i)^2}{\sum_i (y_i - \bar y)^2}, \qquad
          \mathrm{IF}_i =
          -\frac{(y_i - \mu_i)^2 - (1 - R^2) (y_i - \bar y)^2}{\mathrm{mean}_j (y_j - \bar y)^2}

Pointwise, at most 1; below 0 where the mean :math:`\bar y` of the tested outcomes predicts them
better. The score of a single unit is its squared error, negative. The influence function
:math:`\mathrm{IF}_i` gives the SE, that of the delta method in `measure_r2` of R's loo (branch
`pred_measure`, 2026): the sum of squares about the mean varies with the units, too.
"""
