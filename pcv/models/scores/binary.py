r"""Scores of a binary outcome, from the predictive probability of the observed value,
:math:`p(y_i \mid y_\mathrm{train})`, the mean of :math:`p(y_i \mid \theta)`.

For three units:

>>> import numpy as np
>>> means, y = {"p": np.array([[0.8, 0.5, 0.4]])}, np.array([[1.0, 0.0, 1.0]])
>>> brier[0].estimate(means, y).round(2)
array([[-0.04, -0.25, -0.36]])
>>> accuracy[0].estimate(means, y)
array([[1. , 0.5, 0. ]])
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Key

from pcv.models.model import Fold, Target
from pcv.models.scores.score import Need, Score


def _probability(key: Key[Array, ""], target: Target, params: Any, fold: Fold) -> dict[str, Array]:
    return {"p": jnp.exp(target.log_predictive(params, fold)[1])}


NEEDS: tuple[Need, ...] = ("binary outcome",)

brier = (
    Score(
        "brier",
        "pointwise",
        _probability,
        lambda means, y: -((1 - means["p"]) ** 2),
        total="mean",
        needs=NEEDS,
    ),
)
r"""Brier score, negative: :math:`-\mathrm{mean}_i (y_i - P(y_i = 1))^2`.

Pointwise, from −1 to 0: half of Brier's (1950) sum over both outcomes. Gneiting and Raftery
(2007, section 3) also call it the quadratic score.
"""

accuracy = (
    Score(
        "accuracy",
        "pointwise",
        _probability,
        lambda means, y: (means["p"] > 0.5) + 0.5 * (means["p"] == 0.5),
        total="mean",
        needs=NEEDS,
        smooth=False,
    ),
)
r"""Share of units whose observed value had a predictive probability above one half:

.. math:: \mathrm{mean}_i \, 1[p(y_i \mid y_\mathrm{train}) > \tfrac12]

Pointwise, from 0 to 1; a probability of one half counts as half a unit. It jumps where a
probability crosses one half: its MCSE comes from resampled batches, not from the jackknife.
"""
