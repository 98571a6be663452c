r"""Cross-validation from full-data draws alone, by Pareto-smoothed importance sampling. No JAX.

.. math:: p(y_\mathrm{test} \mid y_\mathrm{train}) \approx
          \frac{\sum_s w_s \, p(y_\mathrm{test} \mid \theta_s)}{\sum_s w_s}, \qquad
          w_s \propto \frac{1}{p(y_\mathrm{test} \mid \theta_s)}

with the largest weights smoothed by a generalised Pareto distribution, whose shape, k-hat,
identifies folds where the approximation fails. (Vehtari, Gelman, Gabry 2017; Vehtari et al. 2024.)
With a group's own effects integrated out, weights depend on shared parameters only and have far
lighter tails.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from pcv.analysis.diagnostics.jackknife import Parts, batch_jackknife
from pcv.analysis.diagnostics.log_sums import log_sum_exp

BATCH_SIZE = 50
"""draws per batch, for Monte Carlo errors"""
MOST_INFORMED, LIGHT = 0.5, 0.3
"""lpd - elpd (nats) above which estimates are off by more than their MCSE, and the k-hat above
which that counts: where a test set alone informs several directions, draws are scarce, and k-hat,
which is estimated from them, comes out low (`benchmarks.verdicts psis`)"""


class Psis(NamedTuple):
    """Estimates of every fold."""

    joint_lpd: Float[np.ndarray, " fold"]
    """log score under the full-data posterior"""
    joint_elpd: Float[np.ndarray, " fold"]
    joint_mcse: Float[np.ndarray, " fold"]
    pointwise_elpd: Float[np.ndarray, "fold slot"]
    pointwise_mcse: Float[np.ndarray, " fold"]
    """of the sum over the fold's units"""
    khat: Float[np.ndarray, " fold"]
    joint_apart: Float[np.ndarray, "part fold"]
    pointwise_apart: Float[np.ndarray, "part fold"]
    """contribution of each batch of draws to the errors (`jackknife.Estimate`)"""
    log_weight: Float[np.ndarray, "fold draw"]
    """smoothed, up to a constant of each fold; without the last draws of each chain that fill no
    batch"""


Smooth = Callable[
    [Float[np.ndarray, "fold draw"]],
    tuple[Float[np.ndarray, "fold draw"], Float[np.ndarray, " fold"]],
]
"""from log ratios to smoothed log weights, up to a constant of each fold, and k-hat"""


def doubts(
    estimates: Psis,
    limit: float,
    has_parameters: Bool[np.ndarray, " fold"] | Literal[False] = False,
) -> list[str]:
    """Why importance sampling is not trusted, by fold; "" where it is.

    Args:
        estimates: of `psis`.
        limit: k-hat above which it fails.
        has_parameters: whether the test set has parameters of its own, which a fold draws from
            their prior and the full-data posterior knows.
    """

    def doubt(information: float, khat: float, has_parameters: bool) -> str:
        if not np.isfinite(information):
            return f"lpd - elpd is {information}: some draw has a score that is not finite"
        if has_parameters:
            return "its test set has parameters of its own: importance sampling is not trusted"
        if not khat <= limit:
            return f"k-hat {khat:.2f}: importance sampling fails"
        if information > MOST_INFORMED and khat > LIGHT:
            return (
                f"lpd - elpd of {information:.2f} with a k-hat of {khat:.2f}: importance sampling "
                "is not trusted"
            )
        return ""

    information = estimates.joint_lpd - estimates.joint_elpd
    each = np.broadcast_to(has_parameters, information.shape)
    return list(map(doubt, information, estimates.khat, each))


def psislw(
    log_ratio: Float[np.ndarray, "fold draw"],
) -> tuple[Float[np.ndarray, "fold draw"], Float[np.ndarray, " fold"]]:
    """Fold after fold by ArviZ."""
    from arviz_stats.base import array_stats

    with np.errstate(all="ignore"):
        weight, khat = array_stats.psislw(-log_ratio)
    return weight, np.asarray(khat)


def psis(
    joint: Float[np.ndarray, "chain draw fold"],
    pointwise: Float[np.ndarray, "chain draw fold slot"],
    test: Int[np.ndarray, "fold slot"],
    log_weight: Float[np.ndarray, "chain draw"] | None = None,
    smooth: Smooth = psislw,
) -> Psis:
    r"""Estimates of all folds from log scores at draws of the full-data posterior.

    Args:
        joint: log score of each fold's test set as a whole (nats).
        pointwise: log scores of its units.
        test: test units, padded with -1.
        log_weight: of draws of an approximation q, :math:`\log p(\theta \mid y) / q(\theta)` up to
            a constant; None: draws of the posterior.
        smooth: Pareto smoothing.

    Returns:
        Estimates, with MCSEs by the batch jackknife. k-hat is NaN where the tail of the weights
        is too short or constant.
    """
    chains, draws, folds = joint.shape
    size = min(BATCH_SIZE, draws)
    used = draws - draws % size
    present = test >= 0
    scores = np.moveaxis(joint[:, :used].reshape(-1, folds), 1, 0)
    units = np.moveaxis(pointwise[:, :used].reshape(-1, *test.shape), 0, 1)
    ratio = -scores if log_weight is None else log_weight[:, :used].ravel() - scores
    batches = (folds, chains * used // size, size)
    smoothed, khat = smooth(ratio)
    weight = smoothed.reshape(batches)
    of_part = log_sum_exp(weight, 2)

    def mean(x: np.ndarray, center: np.ndarray) -> np.ndarray:
        in_batches = (x - center[:, None]).reshape(*batches, *x.shape[2:])
        w = weight.reshape(*batches, *(1,) * (x.ndim - 2))
        total = of_part.reshape(*batches[:2], *(1,) * (x.ndim - 2))
        return np.exp(log_sum_exp(in_batches + w, 2) - total)

    center, unit_center = scores.max(1), units.max(1)
    parts = Parts(
        np.full(batches[:2], True),
        of_part,
        {"joint": mean(scores, center), "pointwise": mean(units, unit_center)},
    )
    whole = batch_jackknife(parts, lambda m: np.log(m["joint"]) + center)
    each = batch_jackknife(parts, lambda m: np.log(m["pointwise"]) + unit_center, present)
    assert whole.left_out is not None
    assert each.left_out is not None
    of_draws = np.zeros((1, scores.shape[1]))
    if log_weight is not None:
        of_draws = log_weight[:, :used].reshape(1, -1)
    lpd = log_sum_exp(scores + of_draws, 1) - log_sum_exp(of_draws, 1)
    return Psis(
        lpd,
        whole.value,
        whole.mcse,
        np.where(present, each.value, np.nan),
        each.mcse,
        khat,
        whole.left_out,
        each.left_out,
        smoothed,
    )
