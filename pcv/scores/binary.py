r"""Scores of a binary outcome, from the probability :math:`p(y_i \mid y_\mathrm{train})` of what
was observed, the mean of :math:`p(y_i \mid \theta)`."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Key

from pcv.model import Fold, Target
from pcv.scores.score import Need, Score


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
r"""Brier score, negative: :math:`-\mathrm{mean}_i (y_i - P(y_i = 1))^2`."""

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
"""Share of units whose observed value had a predictive probability above one half."""
