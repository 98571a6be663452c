"""Scores besides the log score, which every run has: by name, or a user's own.

>>> list(SCORES)
['dss', 'hyvarinen', 'crps', 'energy', 'interval', 'rmse', 'mae', 'brier', 'accuracy']
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pcv import reference
from pcv.errors import PcvError
from pcv.model import Data, Fold, Model, Target, numeric, target
from pcv.scores.binary import accuracy, brier
from pcv.scores.hyvarinen import hyvarinen
from pcv.scores.moments import dss, mae, rmse
from pcv.scores.replicates import crps, energy, interval
from pcv.scores.score import Need, Replicates, Score

SCORES: dict[str, tuple[Score, ...]] = {
    "dss": dss,
    "hyvarinen": hyvarinen,
    "crps": crps,
    "energy": energy,
    "interval": interval(),
    "rmse": rmse,
    "mae": mae,
    "brier": brier,
    "accuracy": accuracy,
}
"""scores by their name in the config, joint and pointwise where both exist"""

CHECKED_DRAWS = 5
"""prior draws at which derivatives in the outcome are looked at"""

__all__ = ["SCORES", "Replicates", "Score", "across", "check", "frame", "interval", "named"]


def named(names: Sequence[str]) -> tuple[Score, ...]:
    """The scores that a config asks for, besides the log score.

    Args:
        names: keys of `SCORES`, "log", or ``file.py:function`` of a function that returns a
            `Score` or several.

    Raises:
        PcvError: a reference that does not load, does not return scores, or returns one whose
            name another has.

    >>> [(score.name, score.kind) for score in named(["log", "dss"])]
    [('dss', 'joint'), ('dss', 'pointwise')]
    """
    found: dict[str, Score] = {}
    for name in dict.fromkeys(names):
        if name == "log":
            continue
        for score in SCORES[name] if name in SCORES else _own(name):
            if score.key in found or score.name == "log":
                raise PcvError(f"score '{name}': there is a {score.kind} score '{score.name}'")
            found[score.key] = score
    return tuple(found.values())


def _own(name: str) -> tuple[Score, ...]:
    try:
        made = reference.load(name)()
    except PcvError as error:
        raise PcvError(str(error).replace("model", "score", 1)) from error
    except Exception as error:
        raise PcvError(f"score '{name}': it fails without arguments: {error}") from error
    scores = (made,) if isinstance(made, Score) else made
    if not isinstance(scores, tuple) or not all(isinstance(x, Score) for x in scores):
        raise PcvError(
            f"score '{name}': it must return a pcv.scores.Score, or a tuple of them, not "
            f"{type(made).__name__}"
        )
    for score in scores:
        if not score.name.isidentifier():
            raise PcvError(f"score '{name}': its name {score.name!r} must be letters, digits, _")
    return scores


def frame(
    y_rep: Float[np.ndarray, "fold chain draw slot"],
) -> tuple[Float[np.ndarray, "fold slot"], Float[np.ndarray, "fold slot"]]:
    """A rough centre and scale of each slot's replicates, from the first block."""
    location, scale = np.median(y_rep, axis=(1, 2)), y_rep.std(axis=(1, 2))
    return location, np.where(scale > 0, scale, 1.0)


def across(scores: Sequence[Score], block: Replicates) -> dict[str, dict[str, np.ndarray]]:
    """Means over a block, of the scores that see all chains of a fold at once, by their keys."""
    number = np.log(np.full(len(block.y), block.y_rep[0, ..., 0].size, float))
    return {
        score.key: {"log_weight": number, **score.statistic(block)}
        for score in scores
        if score.per == "block"
    }


def check(
    scores: Sequence[Score],
    model: Model,
    name: str,
    data: Data,
    num_units: int,
    predictive: str,
) -> None:
    """Has a model what its scores need?

    Args:
        scores: of `named`.
        model, name: the model.
        data: its data.
        num_units: number of units.
        predictive: plain or marginal.

    Raises:
        PcvError: naming the score, what it needs and what to do.
    """
    whole = target(model, data, predictive)
    for score in scores:
        for need in score.needs:
            missing = _missing(need, model, whole, data, num_units, predictive)
            if missing:
                raise PcvError(f"score '{score.name}' of model '{name}': {missing}")
    _check_shapes(scores, model, whole, name)


def _missing(
    need: Need, model: Model, whole: Target, data: Data, num_units: int, predictive: str
) -> str:
    outcome = model.outcome
    y = np.asarray(data.get(outcome.name, ()))
    if y.shape != (num_units,):
        return (
            f"it needs one value of '{outcome.name}' for each unit; units of several rows have "
            "only the log score"
        )
    prefix = "marginal_" if predictive == "marginal" else ""
    if need == "predict" and whole.predict is None:
        return f"it needs replicates of the outcome: pcv.Model(..., {prefix}predict=...)"
    if need == "moments or predict" and whole.predict is None and whole.moments is None:
        return f"it needs pcv.Model(..., {prefix}moments=...), or else {prefix}predict"
    if need == "binary outcome" and not np.isin(y, (0, 1)).all():
        other = y[~np.isin(y, (0, 1))][0]
        return f"it is for outcomes of 0 and 1; '{outcome.name}' has {other}"
    return _no_derivatives(model, data, y) if need == "derivatives" else ""


def _no_derivatives(model: Model, data: Data, y: np.ndarray) -> str:
    """Why there is no Hyvärinen score, if so."""
    outcome = model.outcome
    whole = bool((y == np.round(y)).all())
    if outcome.discrete or (whole and np.unique(y).size <= 2):
        return f"'{outcome.name}' is discrete: it has no derivative; take log or crps instead"
    if outcome.discrete is None and whole:
        return (
            f"'{outcome.name}' has whole numbers alone: if it is continuous, say so by "
            f"pcv.Outcome('{outcome.name}', discrete=False); a discrete one has no derivative"
        )
    if outcome.scale != "identity":
        return f"its density is one of {outcome}, not of '{outcome.name}' itself"
    arrays = numeric(data)
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(0), CHECKED_DRAWS))

    def total(y: Float[jax.Array, " unit"], params: dict[str, jax.Array]) -> jax.Array:
        return model.log_lik(params, {**arrays, outcome.name: y}).sum()

    slopes = jax.vmap(jax.grad(total), (None, 0))(jnp.asarray(y, float), params)
    if not slopes.any():
        return (
            f"log_lik does not read '{outcome.name}' from its second argument: write it with "
            f"data['{outcome.name}'] there"
        )
    return ""


def _check_shapes(scores: Sequence[Score], model: Model, whole: Target, name: str) -> None:
    """Traces what each score averages, on a fold of two slots."""
    fold = Fold(jnp.ones(1, bool), jnp.array([0, -1]))
    for score in scores:
        if score.per == "block":
            continue
        try:
            made = jax.eval_shape(
                lambda key: score.statistic(key, whole, model.init(key), fold),  # noqa: B023
                jax.random.key(0),
            )
        except Exception as error:
            raise PcvError(
                f"score '{score.name}' of model '{name}': its statistic fails: {error}"
            ) from error
        if not isinstance(made, dict) or not made:
            raise PcvError(
                f"score '{score.name}': its statistic must return a dict of arrays by name"
            )
