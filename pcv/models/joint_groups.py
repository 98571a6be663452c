"""The joint predictive of groups of units within a test set."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from pcv.models.model import Fold, Predictive, Scalar


def by_group(
    log_predictive: Callable[..., Predictive], code: Int[np.ndarray, " unit"], most: int
) -> Callable[..., Predictive]:
    r"""A log predictive whose terms are the joint densities of groups in place of units:

    .. math:: \log p(y_{g \cap \mathrm{test}} \mid \theta, y_\mathrm{train})

    each in the first slot of its group g, 0 in the others. The predictive is evaluated on a test
    set that holds the group's units alone: integrals over left-out effects, and the dependence of
    units in a `pcv.Target`, are those of the group.

    Args:
        log_predictive: of any test set.
        code: the group of each unit.
        most: largest number of groups in a fold.

    >>> one_by_one = lambda params, fold: (jnp.where(fold.test >= 0, params[fold.test], 0).sum(), 0)
    >>> fold = Fold(jnp.zeros(4, bool), jnp.array([0, 1, 3]))
    >>> by_group(one_by_one, np.array([5, 5, 5, 7]), 2)(jnp.array([1.0, 2, 3, 4]), fold)[1].tolist()
    [3.0, 0.0, 4.0]
    """

    def of_groups(params: Any, fold: Fold) -> Predictive:
        joint, _ = log_predictive(params, fold)
        test, slot = fold.test, jnp.arange(fold.test.size)
        of_slot = jnp.where(test >= 0, jnp.asarray(code)[test], -1)
        first = jnp.argmax(of_slot == of_slot[:, None], axis=1)
        leads = (first == slot) & (test >= 0)
        (leaders,) = jnp.nonzero(leads, size=most, fill_value=0)  # 0 leads: again the first group

        def of_group(leader: Int[Array, ""]) -> Scalar:
            others = (first != leader) | (test < 0)
            some = jnp.where(others, -1, test)[jnp.argsort(others, stable=True)]
            return log_predictive(params, fold._replace(test=some))[0]

        values = jax.vmap(of_group)(leaders)
        return joint, jnp.zeros(test.size, values.dtype).at[leaders].set(values)

    return of_groups
