r"""The mixture of models' predictives, with given weights.

.. math:: p(y_j) = \sum_m w_m \, p_m(y_j), \qquad
          \mathrm{elpd} = \sum_j \log \sum_m w_m \exp(\eta_{mj})

for terms j: joint densities of whole test sets, or densities of units. The **share** of a model in
a term is the probability that it is the one which the term comes from:

.. math:: s_{mj} = w_m \exp(\eta_{mj}) \Big/ \sum_l w_l \exp(\eta_{lj})

Weights may differ from fold to fold. (Yao, Vehtari, Simpson and Gelman 2018.)
"""

import numpy as np
from jaxtyping import Float, Int
from scipy.special import logsumexp


def _like(weight: Float[np.ndarray, "model fold"], x: np.ndarray) -> np.ndarray:
    """Weights with as many axes as the values (model, fold, …)."""
    return weight.reshape(*weight.shape, *(1,) * (x.ndim - 2))


def log_density(
    elpd: Float[np.ndarray, "model fold *slot"], weight: Float[np.ndarray, "model fold"]
) -> Float[np.ndarray, " fold *slot"]:
    """elpd of the mixture, by term (nats).

    Args:
        elpd: of the models.
        weight: of the models in each fold.

    >>> np.exp(log_density(np.log([[0.1], [0.3]]), np.array([[0.5], [0.5]]))).round(3)
    array([0.2])
    """
    density: np.ndarray = logsumexp(elpd, axis=0, b=_like(weight, elpd))
    return density


def shares(
    elpd: Float[np.ndarray, "model fold *slot"], weight: Float[np.ndarray, "model fold"]
) -> Float[np.ndarray, "model fold *slot"]:
    """Share of each model in every term; NaN where no model has a density.

    Args:
        elpd: of the models (nats).
        weight: of the models in each fold.

    >>> shares(np.log([[0.1], [0.3]]), np.array([[0.5], [0.5]])).round(2).ravel()
    array([0.25, 0.75])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.exp(np.log(_like(weight, elpd)) + elpd - log_density(elpd, weight))


def error(
    mcse: Float[np.ndarray, "model fold *slot"], share: Float[np.ndarray, "model fold *slot"]
) -> Float[np.ndarray, " fold *slot"]:
    r"""MCSE of the mixture's elpd by the delta method, from models whose draws are independent:

    .. math:: \mathrm{MCSE}_j^2 = \sum_m s_{mj}^2 \, \mathrm{MCSE}_{mj}^2

    Args:
        mcse: of each model's elpd (nats).
        share: of each model, of `shares`.

    >>> error(np.array([[0.3], [0.4]]), np.array([[1.0], [0.0]]))
    array([0.3])
    """
    with np.errstate(invalid="ignore"):
        return np.sqrt(np.sum(np.where(share == 0, 0.0, share * mcse) ** 2, axis=0))


def models_of_replicates(
    rng: np.random.Generator, number: int, weight: Float[np.ndarray, "model fold"]
) -> Int[np.ndarray, "replicate fold"]:
    """The model that each replicate of a fold's test set comes from, by systematic sampling: model
    m gives w_m times `number` of them, rounded up or down at random, in random places.

    Args:
        rng: random generator.
        number: of replicates.
        weight: of the models in each fold.

    >>> rng, weight = np.random.default_rng(1), np.array([[0.75], [0.25]])
    >>> np.bincount(models_of_replicates(rng, 400, weight)[:, 0])
    array([300, 100])
    """
    folds = weight.shape[1]
    place = rng.permuted(np.tile(np.arange(number), (folds, 1)), axis=1)
    position = (place + rng.random((folds, 1))) / number
    below = np.cumsum(weight, axis=0)
    below = (below / below[-1])[:-1]
    return (position[..., None] >= below.T[:, None]).sum(axis=2).T
