"""Progressive estimates and diagnostics, from increasing numbers of draws."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from pcv.analysis.diagnostics.convergence import mixing
from pcv.analysis.diagnostics.estimates import elpd, elpd_pointwise, ess, mcse, mcse_pointwise
from pcv.analysis.diagnostics.log_sums import LogSums, first_batches


class Progressive(NamedTuple):
    """Estimates and diagnostics at several numbers of batches (points)."""

    elpd: Float[np.ndarray, "fold point"]
    mcse: Float[np.ndarray, "fold point"]
    rhat: Float[np.ndarray, "fold point"]
    ess: Float[np.ndarray, "fold point"]


def progressive(
    sums: LogSums, points: Sequence[int] | Int[np.ndarray, " point"], superchains: int = 0
) -> Progressive:
    """Estimates and diagnostics from the first batches of all chains, at several lengths.

    Args:
        sums: joint or pointwise sums, dims (fold, chain, batch[, slot]).
        points: numbers of batches per chain.
        superchains: number of superchains, for nested R-hat; 0: none.

    Returns:
        `elpd`, `mcse`, `rhat` and `ess` of dims (fold, point). For pointwise sums: `elpd_pointwise`
        and `mcse_pointwise`, with the largest R-hat and the smallest ESS of a fold's units. A
        fold that ended earlier keeps its last values.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> sums = batch_sums(np.random.default_rng(1).normal(size=(3, 4, 100)), batch_size=10)
    >>> progressive(sums, points=[2, 5, 10]).mcse.shape
    (3, 3)
    """

    def at(point: int) -> tuple[np.ndarray, ...]:
        first = first_batches(sums, point)
        if sums.mean.ndim == 3:
            return elpd(first), mcse(first), mixing(first, superchains), ess(first)
        return (
            elpd_pointwise(first),
            mcse_pointwise(first),
            np.fmax.reduce(mixing(first, superchains), axis=1),
            np.fmin.reduce(ess(first), axis=1),
        )

    return Progressive(
        *(np.stack(x, axis=1) for x in zip(*(at(int(point)) for point in points), strict=True))
    )
