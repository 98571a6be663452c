r"""Scores of categories 0, …, C − 1 from their predictive probabilities,
:math:`p_{ic} = P(y_i = c \mid y_\mathrm{train})`, the means of :math:`P(y_i = c \mid \theta)`.

Of a binary outcome, the probability of the observed value says all. The log score of categories is
the log score of any model, :math:`\log p_{i y_i}`: it has no other name.

Three units of a binary outcome:

>>> means, y = {"p": np.array([[0.8, 0.5, 0.4]])}, np.array([[1.0, 0.0, 1.0]])
>>> brier[0].estimate(means, y).round(2)
array([[-0.04, -0.25, -0.36]])
>>> accuracy[0].estimate(means, y)
array([[1. , 0.5, 0. ]])

A unit of three categories, observed in the last one, which ranks below the others:

>>> means, y = {"p": np.array([[[0.5, 0.3, 0.2]]])}, np.array([[2.0]])
>>> [score[0].estimate(means, y).round(2).item() for score in (brier, accuracy, rps)]
[-0.98, 0.0, -0.89]
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from pcv.models.model import Fold, Target
from pcv.models.scores.score import Means, Need, Score, Total


def number(target: Target, num_units: int) -> int:
    """The number of categories: the outcome's own, or one more than its largest value; 2 where a
    target has no observed values, as more are refused."""
    if target.outcome.categories:
        return target.outcome.categories
    if target.observed is None:
        return 2
    with jax.ensure_compile_time_eval():
        every = target.observed(Fold(jnp.ones(num_units, bool), jnp.arange(num_units)))
        return int(every.max()) + 1


def probabilities(
    target: Target, params: Any, fold: Fold, num_categories: int
) -> Float[Array, "slot category"]:
    """Probability of every category of each unit that a fold tests, given the parameters."""
    assert target.density is not None
    density, slots = target.density, fold.test.shape

    def of(category: Array) -> Array:
        return jnp.exp(density(params, fold, jnp.full(slots, category))[1])

    return jax.vmap(of, out_axes=1)(jnp.arange(num_categories))


def _probability(key: Key[Array, ""], target: Target, params: Any, fold: Fold) -> dict[str, Array]:
    """Of every category; of a binary outcome, of the observed value."""
    num_categories = number(target, fold.train.size)
    if num_categories <= 2:
        return {"p": jnp.exp(target.log_predictive(params, fold)[1])}
    return {"p": probabilities(target, params, fold, num_categories)}


def by_category(means: Means, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probability of every category, and whether it was observed: along a last axis."""
    p = means["p"]
    if p.ndim > y.ndim:
        return p, y[..., None] == np.arange(p.shape[-1])
    observed = y[..., None] == np.arange(2)
    return np.where(observed, p[..., None], 1 - p[..., None]), observed


def _brier(means: Means, y: np.ndarray) -> np.ndarray:
    if means["p"].ndim == y.ndim:
        return -((1 - means["p"]) ** 2)
    p, observed = by_category(means, y)
    return -((p - observed) ** 2).sum(-1)


NEEDS: tuple[Need, ...] = ("categories",)

brier = (Score("brier", "pointwise", _probability, _brier, total="mean", needs=NEEDS),)
r"""Brier score, negative: :math:`-\mathrm{mean}_i (y_i - P(y_i = 1))^2` of a binary outcome, and of
more categories

.. math:: -\mathrm{mean}_i \sum_c (p_{ic} - 1[y_i = c])^2

as Brier (1950) has it. Pointwise, from −1 or, of more than two categories, from −2 to 0: of two,
his sum would be twice the usual square. `brier_score_loss` of scikit-learn has the same two scales.
Gneiting and Raftery (2007, section 3) also call it the quadratic score.
"""


def _accuracy(means: Means, y: np.ndarray) -> np.ndarray:
    p, observed = by_category(means, y)
    most = p == p.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return (most & observed).sum(-1) / most.sum(-1)


accuracy = (
    Score(
        "accuracy",
        "pointwise",
        _probability,
        _accuracy,
        total="mean",
        needs=NEEDS,
        smooth=False,
    ),
)
r"""Share of units whose observed category had the largest predictive probability:

.. math:: \mathrm{mean}_i \, 1[y_i = \arg\max_c p_{ic}]

Pointwise, from 0 to 1; where m categories share the largest probability, each counts as 1/m of a
unit. It jumps where the order of two probabilities changes: its MCSE comes from resampled batches,
not from the jackknife.
"""


def _balanced(terms: np.ndarray, y: np.ndarray) -> Total:
    """The mean over observed categories of mean terms."""
    category, counts = np.unique(y, return_inverse=True, return_counts=True)[1:]
    mean = np.bincount(category, weights=terms) / counts
    slope = 1 / (len(counts) * counts[category])
    return Total(slope, mean.mean() / len(terms) + slope * (terms - mean[category]))


balanced_accuracy = (
    accuracy[0]._replace(
        name="balanced_accuracy", total=_balanced, needs=(*NEEDS, "outcome that varies")
    ),
)
r"""Accuracy in each category, averaged over the C categories observed among the tested units:

.. math:: \frac1C \sum_c a_c, \quad a_c = \mathrm{mean}_{i: y_i = c} \, a_i, \qquad
          \mathrm{IF}_i = \frac{n}{C n_{y_i}} (a_i - a_{y_i})

of terms :math:`a_i` of `accuracy`, and :math:`n_c` of the n units in category c. Pointwise, from 0
to 1; a rare category counts as much as a frequent one. Its SE is :math:`\sqrt{n/(n-1)}` times that
of `measure_bacc` in R's loo (branch `pred_measure`, 2026).
"""


def _rps(means: Means, y: np.ndarray) -> np.ndarray:
    p, observed = by_category(means, y)
    return -((p.cumsum(-1) - observed.cumsum(-1))[..., :-1] ** 2).sum(-1)


rps = (
    Score(
        "rps",
        "pointwise",
        _probability,
        _rps,
        total="mean",
        needs=(*NEEDS, "ordered outcome"),
    ),
)
r"""Ranked probability score of ordered categories, negative:

.. math:: -\mathrm{mean}_i \sum_{c=0}^{C-2} \left( P(\tilde y_i \le c) - 1[y_i \le c] \right)^2

Pointwise, from 1 − C to 0, not divided by C − 1; of a binary outcome the Brier score, of whole
numbers the CRPS. Epstein (1969); Gneiting and Raftery (2007), section 4.2.
"""
