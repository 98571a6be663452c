"""Definition of a score: a statistic averaged over draws, and a function of the averages."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

Kind = Literal["joint", "pointwise"]
Means = dict[str, np.ndarray]
TOTALS = ("sum", "mean", "root mean")
"""totals by name; others are functions"""


class Total(NamedTuple):
    r"""A score S of a model that is no sum or mean of its T terms :math:`x_i`, to first order.

    .. math:: s_i = \frac{\partial S}{\partial x_i}, \qquad z_i = \frac{S + \mathrm{IF}_i}{T}

    with the influence function :math:`\mathrm{IF}_i` of unit i, whose mean over units is 0: the
    :math:`z_i` sum to S, and their SE is that of S by the delta method. Differences between models
    are paired: :math:`z_{A,i} - z_{B,i}`.
    """

    slope: Float[np.ndarray, " term"]
    """:math:`s_i`, by which errors of terms become errors of the score"""
    terms: Float[np.ndarray, " term"]
    """:math:`z_i`"""


Need = Literal[
    "predict",
    "moments or predict",
    "derivatives",
    "binary outcome",
    "categories",
    "ordered outcome",
    "outcome that varies",
    "order of units",
    "steps between units",
]


class Score(NamedTuple):
    r"""A scoring rule whose estimate is a function of means over all draws of a fold.

    .. math:: \hat S_k = g(\bar h), \qquad
              \bar h = \frac{\sum_{l,t} w_{klt} \, h(\theta_{klt})}{\sum_{l,t} w_{klt}}

    Higher is better, unless not `oriented`. `total` combines terms: units of all folds' test sets,
    or the folds themselves. PCV eq. 25–26, with any number of means, and weights w.

    Args:
        name: of the score.
        kind: "joint": one value per fold; "pointwise": one value per unit.
        statistic: h. With `per` "draw": ``(key, target, params, fold)`` → arrays by name, written
            in JAX for one draw of one chain; `target` is a `pcv.Target`. With `per` "block":
            `Replicates` → arrays by name whose first axis is the fold, in NumPy.
        estimate: g. ``(means, y)`` → the score of folds (joint) or slots (pointwise), in NumPy; any
            leading axes; ``y`` is the outcome of the test set, NaN in padded slots.
        log_weight: log w, arguments as for `statistic`: one number, or one per slot; None: equal
            weights.
        per: what `statistic` is given.
        total: how terms become the score of a model; "root mean":
            :math:`-\sqrt{-\mathrm{mean}}`; or, of a pointwise score, a function: ``(terms, y)`` →
            `Total`, in NumPy, for all tested units.
        needs: what the model must have.
        smooth: whether `estimate` is smooth; if it jumps, its MCSE comes from resampling batches.
        oriented: whether higher is better; if not, tables show values without differences.

    A Brier score for exceeding 700:

    >>> def above(key, target, params, fold):
    ...     return {"p": target.predict(key, params, fold) > 700}
    >>> def brier(means, y):
    ...     return -((means["p"] - (y > 700)) ** 2)
    >>> heavy = Score("heavy", "pointwise", above, brier, total="mean", needs=("predict",))
    >>> heavy.estimate({"p": np.array([[0.25, 0.5]])}, np.array([[800.0, 650.0]]))
    array([[-0.5625, -0.25  ]])
    """

    name: str
    kind: Kind
    statistic: Callable[..., dict[str, Any]]
    estimate: Callable[[Means, Float[np.ndarray, "*part slot"]], np.ndarray]
    log_weight: Callable[..., Any] | None = None
    per: Literal["draw", "block"] = "draw"
    total: Literal["sum", "mean", "root mean"] | Callable[[np.ndarray, np.ndarray], Total] = "sum"
    needs: tuple[Need, ...] = ()
    smooth: bool = True
    oriented: bool = True

    @property
    def key(self) -> str:
        """Name of its sums and estimates in artifacts."""
        return f"{self.name}_{self.kind}"


class Replicates(NamedTuple):
    """Replicates of all folds' test sets, one per draw of a block.

    All but `starts` in the units of the outcome. A statistic, how often y is exceeded:

    >>> def exceeded(block):
    ...     return {"p": (block.y_rep > block.y[:, None, None]).mean(axis=(1, 2))}
    >>> y_rep = np.arange(8.0).reshape(1, 2, 4, 1)
    >>> block = Replicates(y_rep, np.array([[5.5]]), 2, np.array([[3.5]]), np.array([[3.0]]))
    >>> exceeded(block)["p"]
    array([[0.25]])
    """

    y_rep: Float[np.ndarray, "fold chain draw slot"]
    y: Float[np.ndarray, "fold slot"]
    """observed values; NaN in padded slots"""
    starts: int
    """number of starting points of a fold's chains: the first ``chains / starts`` chains share the
    first one"""
    location: Float[np.ndarray, "fold slot"]
    """a rough centre of each slot's replicates, the same for all blocks"""
    scale: Float[np.ndarray, "fold slot"]
    """their rough scale"""
