r"""Model weights for mixtures of predictives: stacking and pseudo-BMA+.

Yao, Vehtari, Simpson, Gelman (2018). Log scores are shifted term by term before exponentiating,
as the joint densities of whole test sets underflow.
"""

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize
from scipy.special import softmax

from pcv.base.errors import PcvError

REPLICATES = 1000
STACKING_REPLICATES = 100
"""samples of the Bayesian bootstrap for the SE of stacking weights"""
ROUGH = 1e-7
"""tolerance of the mean log score in these samples"""


def stacking(
    elpd: Float[np.ndarray, "model term"],
    share: Float[np.ndarray, " term"] | None = None,
    start: Float[np.ndarray, " model"] | None = None,
    tolerance: float = 1e-12,
) -> Float[np.ndarray, " model"]:
    r"""Stacking: weights of the mixture of predictives with the highest log score.

    .. math:: \max_{w \in \Delta} \sum_j \alpha_j \log \sum_m w_m \exp(\eta_{m,j})

    Args:
        elpd: of every term by every model (nats).
        share: α, of each term; None: equal ones.
        start: of the search; None: equal weights.
        tolerance: of the mean log score.

    Returns:
        Non-negative weights that sum to 1; NaN with a single term, which would give all weight to
        one model, and where a score is NaN or infinite.

    >>> stacking(np.array([[-1.0, -900.0], [-900.0, -1.0]])).round(3).tolist()
    [0.5, 0.5]
    """
    models, terms = elpd.shape
    if terms < 2 or not np.isfinite(elpd).all():
        return np.full(models, np.nan)
    density = np.exp(elpd - elpd.max(axis=0))
    alpha = np.full(terms, 1 / terms) if share is None else share

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        mixture = w @ density
        return -float(alpha @ np.log(mixture)), -density @ (alpha / mixture)

    tiny = 1e-12
    found = minimize(
        loss,
        np.full(models, 1 / models) if start is None else start,
        jac=True,
        method="SLSQP",
        bounds=[(tiny, 1.0)] * models,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": tolerance, "maxiter": 1000},
    ).x
    found[found < 2 * tiny] = 0.0
    return found / found.sum()


def stacking_without(
    elpd: Float[np.ndarray, "model term"], fold_of_term: Int[np.ndarray, " term"]
) -> Float[np.ndarray, "model fold"]:
    """Stacking weights from the terms of all folds but one, for each fold: its own terms then score
    the mixture without having fitted it.

    Args:
        elpd: of every term by every model (nats).
        fold_of_term: index of the fold of every term.

    >>> elpd = np.array([[-1.0, -9.0, -9.0], [-9.0, -1.0, -1.0]])
    >>> stacking_without(elpd, np.arange(3)).round(2)
    array([[0. , 0.5, 0.5],
           [1. , 0.5, 0.5]])
    """
    start = stacking(elpd)
    others = fold_of_term != np.arange(fold_of_term.max() + 1)[:, None]
    shares = others / others.sum(axis=1, keepdims=True)
    return np.array([stacking(elpd, share, start) for share in shares]).T


def stacking_se(
    elpd: Float[np.ndarray, "model term"],
    unit: Int[np.ndarray, " term"] | None = None,
    seed: int = 0,
) -> Float[np.ndarray, " model"]:
    r"""Standard error of stacking weights: their standard deviation over samples of the Bayesian
    bootstrap of the T terms.

    .. math:: \mathrm{SE}^2 = \frac{T + 1}{T - 1} \, \mathrm{var}_r(w^{(r)}), \qquad
              w^{(r)} = \arg\max_w \sum_j \alpha_{r,j} \log \sum_m w_m \exp(\eta_{m,j}),
              \qquad \alpha_r \sim \mathrm{Dirichlet}(1, …, 1)

    The first factor is that by which the bootstrap's variance of a mean is too small.

    Args:
        elpd: of every term by every model (nats).
        unit: index of the unit that each term is of, where units have several: these share α, and T
            counts units; None: each term is another unit's.
        seed: of the bootstrap.

    Returns:
        NaN with a single unit, or where a score is NaN or infinite.

    >>> far = np.array([[0.0, 0.0, 0.0], [-9.0, -9.0, -9.0]])
    >>> stacking_se(far).round(3).tolist()
    [0.0, 0.0]
    """
    models, terms = elpd.shape
    unit = np.arange(terms) if unit is None else unit
    units = int(unit.max()) + 1
    if units < 2 or not np.isfinite(elpd).all():
        return np.full(models, np.nan)
    shares = np.random.default_rng(seed).dirichlet(np.ones(units), STACKING_REPLICATES)[:, unit]
    shares /= shares.sum(axis=1, keepdims=True)
    start = stacking(elpd)
    each = np.array([stacking(elpd, share, start, ROUGH) for share in shares])
    deviation: np.ndarray = np.sqrt((units + 1) / (units - 1)) * each.std(axis=0, ddof=1)
    return deviation


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

    Returns:
        Weights that sum to 1; NaN with a single term, of which there is no bootstrap.
    """
    models, terms = elpd.shape
    if terms < 2:
        return np.full(models, np.nan)
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
