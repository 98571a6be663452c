"""Models some of whose outcomes are missing: what is left of them, and what cross-validation sees.

Terms of missing outcomes are in no training set and in no test set, so that the posterior of each
fold is that of the model without their rows.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, Shaped

from pcv.base.errors import PcvError
from pcv.folds.columns import Missing
from pcv.models.model import Data, Model, Params


def without_missing(
    model: Model, row: Bool[np.ndarray, " row"], unit: Bool[np.ndarray, " unit"], where: str
) -> Model:
    """The model of the rows, and units, whose outcomes are observed.

    Args:
        model: of all rows, with their `data`; terms of missing outcomes are 0.
        row: whether the outcome of each is observed.
        unit: whether any outcome of each is.
        where: the model, for messages.

    Raises:
        PcvError: none is.
    """
    if row.all():
        return model
    if not row.any():
        raise PcvError(f"{where}: all of its {row.size} outcomes are missing; give some")
    assert model.data is not None
    rows, units, whole = np.flatnonzero(row), np.flatnonzero(unit), model.data.columns
    along = {name for name, x in whole.items() if np.ndim(x) and len(x) == row.size}

    def of_all(name: str, x: Any) -> Any:
        """A column of all rows, from one of those that are observed."""
        if name not in along or np.shape(x)[:1] != rows.shape:
            return x
        every, kind = whole[name], np.result_type(whole[name].dtype, x.dtype)
        if isinstance(x, jax.core.Tracer):
            return jnp.asarray(every, kind).at[rows].set(x)
        filled = np.array(every, kind)
        filled[rows] = x
        return filled

    def seen(data: Data) -> dict[str, Any]:
        return {name: of_all(name, x) for name, x in data.items()}

    log_lik, predict, moments, cdf = model.log_lik, model.predict, model.moments, model.cdf

    def replicate(key: Key[Array, ""], params: Params, data: Data) -> Float[Array, " row"]:
        assert predict is not None
        return predict(key, params, seen(data))[rows]

    def both(params: Params, data: Data) -> tuple[Array, Array]:
        assert moments is not None
        mean, variance = moments(params, seen(data))
        return mean[units], variance[units]

    def below(params: Params, data: Data, y: Shaped[Array, " row"]) -> Float[Array, " row"]:
        assert cdf is not None
        every = jnp.full(row.size, y[0]).at[rows].set(y)
        return cdf(params, seen(data), every)[rows]

    kept = {name: x[rows] if name in along else x for name, x in whole.items()}
    missing, times = Missing(int((~row).sum()), row.size), unit.astype(int)
    return model._replace(
        log_lik=lambda params, data: log_lik(params, seen(data))[units],
        predict=predict and replicate,
        moments=moments and both,
        cdf=cdf and below,
        data=model.data._replace(columns=kept, missing=missing, times=times),
    )
