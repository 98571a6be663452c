r"""Model weights for mixtures of predictives: stacking and pseudo-BMA+.

Yao, Vehtari, Simpson, Gelman (2018). Log scores are shifted term by term before exponentiating,
as the joint densities of whole test sets underflow.
"""

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import softmax

from pcv.base.errors import PcvError

REPLICATES = 1000


def stacking(elpd: Float[np.ndarray, "model term"]) -> Float[np.ndarray, " model"]:
    r"""Stacking: weights of the mixture of predictives with the highest log score.

    .. math:: \max_{w \in \Delta} \sum_j \log \sum_m w_m \exp(\eta_{m,j})

    Args:
        elpd: of every term by every model (nats).

    Returns:
        Non-negative weights that sum to 1.

    >>> stacking(np.array([[-1.0, -900.0], [-900.0, -1.0]])).round(3).tolist()
    [0.5, 0.5]
    """
    density = np.exp(elpd - elpd.max(axis=0))
    models = len(elpd)
    start = np.full(models, 1 / models)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        mixture = w @ density
        return -float(np.log(mixture).mean()), -(density / mixture).mean(axis=1)

    tiny = 1e-12
    found = minimize(
        loss,
        start,
        jac=True,
        method="SLSQP",
        bounds=[(tiny, 1.0)] * models,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-12, "maxiter": 1000},
    ).x
    return found / found.sum()


def pseudo_bma_plus(
    elpd: Float[np.ndarray, "model term"], rng: np.random.Generator
) -> Float[np.ndarray, " model"]:
    r"""Pseudo-BMA+: softmax of elpd, averaged over Bayesian bootstrap samples of the T terms.

    .. math:: w_m = \mathrm{mean}_r \;
              \mathrm{softmax}_m\Big(T \sum_j \alpha_{r,j} \eta_{m,j}\Big), \qquad
              \alpha_r \sim \mathrm{Dirichlet}(1, …, 1)

    Args:
        elpd: of every term by every model (nats).
        rng: random generator of the bootstrap.
    """
    terms = elpd.shape[1]
    shares = rng.dirichlet(np.ones(terms), REPLICATES)
    return softmax(terms * shares @ elpd.T, axis=1).mean(axis=0)


METHODS = ("stacking", "pseudo-bma+")


def weights(
    elpd: Float[np.ndarray, "model term"], method: str, seed: int
) -> Float[np.ndarray, " model"]:
    """Weights by one of the `METHODS`.

    Raises:
        PcvError: unknown method.
    """
    if method not in METHODS:
        raise PcvError(f"weights: no method {method!r}; known: {', '.join(METHODS)}")
    if method == "stacking":
        return stacking(elpd)
    return pseudo_bma_plus(elpd, np.random.default_rng(seed))
