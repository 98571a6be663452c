"""Scores other than the log score, which every run computes: by name, or a user's own.

The log score is `pcv.analysis.diagnostics.elpd`. The others are `Score` records; their modules
show each `estimate` at work, on means over draws by fold and slot.

>>> list(SCORES)
['dss', 'hyvarinen', 'crps', 'energy', 'interval', 'rmse', 'mae', 'brier', 'accuracy']
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pcv.base import reference, section
from pcv.base.errors import PcvError, in_one_line
from pcv.models.model import Data, Fold, Model, Target, target
from pcv.models.scores.replicates import across, frame, interval
from pcv.models.scores.score import Need, Replicates, Score


def _built_in(name: str, module: str) -> tuple[Score, ...]:
    found = getattr(importlib.import_module(f"pcv.models.scores.{module}"), name)
    return found() if callable(found) else found


SCORES = {name: _built_in(name, module) for name, module in section.SCORES.items() if module}
"""scores by their name in the config, joint and pointwise where both exist"""

CHECKED_DRAWS, CHECKED_UNITS = 5, 20
"""prior draws and units at which derivatives in the outcome are checked"""
MAX_DSS_SLOTS = 200
"""units of a test set beyond which their covariance takes too much memory"""

__all__ = ["SCORES", "Replicates", "Score", "across", "check", "frame", "interval", "named"]


def named(names: Sequence[str], objects: Mapping[str, Any] | None = None) -> tuple[Score, ...]:
    """The scores that a config asks for, besides the log score.

    Args:
        names: keys of `SCORES`, "log", or ``file.py:function`` of a function that returns a
            `Score` or several.
        objects: scores of a Python session, by their references.

    Returns:
        Scores in the order of the names, joint before pointwise.

    Raises:
        PcvError: a reference does not load, or does not return scores; a name is taken; or a name
            or field is invalid.

    >>> [(score.name, score.kind) for score in named(["log", "dss"])]
    [('dss', 'joint'), ('dss', 'pointwise')]
    """
    found: dict[str, Score] = {}
    for name in dict.fromkeys(names):
        if name == "log":
            continue
        for score in _of(name, objects or {}):
            _check_fields(score, score.name if name.startswith(section.OBJECT) else name)
            if score.key in found or score.name == "log":
                raise PcvError(
                    f"score '{name}': there is already a {score.kind} score '{score.name}'; "
                    "rename one"
                )
            found[score.key] = score
    return tuple(found.values())


def _of(name: str, objects: Mapping[str, Any]) -> tuple[Score, ...]:
    if name in SCORES:
        return SCORES[name]
    return (objects[name],) if name in objects else _own(name)


def _own(name: str) -> tuple[Score, ...]:
    try:
        made = reference.load(name)()
    except PcvError as error:
        raise PcvError(str(error).replace("model", "score", 1)) from error
    except Exception as error:
        raise PcvError(f"score '{name}': fails when called without arguments: {error}") from error
    scores = (made,) if isinstance(made, Score) else made
    if not isinstance(scores, tuple) or not all(isinstance(x, Score) for x in scores):
        raise PcvError(
            f"score '{name}': it must return a pcv.models.scores.Score, or a tuple of them, not "
            f"{type(made).__name__}"
        )
    return scores


def _check_fields(score: Score, name: str) -> None:
    if not score.name.isidentifier():
        raise PcvError(f"score '{name}': its name {score.name!r} must be letters, digits, _")
    for field in ("kind", "per", "total"):
        known = get_args(get_type_hints(Score)[field])
        if getattr(score, field) not in known:
            raise PcvError(
                f"score '{name}': {field} {getattr(score, field)!r}; known: {', '.join(known)}"
            )
    if unknown := set(score.needs) - set(get_args(Need)):
        raise PcvError(
            f"score '{name}': needs {min(unknown)!r}; known: {', '.join(get_args(Need))}"
        )


def check(
    scores: Sequence[Score],
    model: Model | Target,
    name: str,
    data: Data,
    num_units: int,
    predictive: str,
    num_slots: int,
) -> None:
    """Check that a model has what its scores need.

    Args:
        scores: of `named`.
        model, name: the model.
        data: its data, with one value of the outcome for each unit.
        num_units: number of units.
        predictive: plain or marginal.
        num_slots: units of the largest test set.

    Raises:
        PcvError: naming the score, what it needs and what to do.

    >>> from pcv import Outcome
    >>> coin = Model(
    ...     init=lambda key: {"z": jax.random.normal(key)},
    ...     log_prior=lambda params: -(params["z"] ** 2) / 2,
    ...     log_lik=lambda params, data: -jnp.log1p(
    ...         jnp.exp((1 - 2 * data["y"]) * params["z"])),
    ...     constrain=dict,
    ...     outcome=Outcome("y", discrete=True),
    ... )
    >>> heads = {"y": np.array([1, 0, 1, 1])}
    >>> check(named(["brier"]), coin, "coin", heads, 4, "plain", num_slots=1)
    """
    whole = target(model, data, predictive)
    wanted = f"pcv.{type(model).__name__}(..., {'marginal_' * (predictive == 'marginal')}"
    of_model = "marginal" if predictive == "marginal" else "log_lik"
    reads = "density" if isinstance(model, Target) else of_model
    by_front_end = isinstance(model, Model) and model.data is not None
    y = np.asarray(data.get(whole.outcome.name, ()))
    for score in scores:
        where = f"score '{score.name}' of model '{name}'"
        if y.shape != (num_units,):
            raise PcvError(
                f"{where}: it needs one value of '{whole.outcome.name}' for each unit; units of "
                "several rows have only the log score"
            )
        for need in score.needs:
            missing = _missing(need, whole, y, wanted, reads, by_front_end)
            if missing:
                raise PcvError(f"{where}: {missing}")
        if score.key == "dss_joint" and num_slots > MAX_DSS_SLOTS:
            raise PcvError(
                f"{where}: it keeps the covariance of a whole test set, here {num_slots} units; "
                f"the limit is {MAX_DSS_SLOTS}: use smaller test sets, or another score"
            )
        _check_functions(score, whole, where)


def _missing(
    need: Need, whole: Target, y: np.ndarray, wanted: str, reads: str, by_front_end: bool
) -> str:
    if by_front_end and need in ("predict", "moments or predict") and whole.predict is None:
        return (
            "it needs replicates of the outcome, which its distribution cannot draw (a censored "
            "one, or pm.CustomDist): choose other scores"
        )
    if need == "predict" and whole.predict is None:
        return f"it needs replicates of the outcome: {wanted}predict=...)"
    if need == "moments or predict" and whole.predict is None and whole.moments is None:
        return f"it needs {wanted}moments=...), or else {wanted}predict=...)"
    if need == "binary outcome" and not np.isin(y, (0, 1)).all():
        other = y[~np.isin(y, (0, 1))][0]
        return f"it needs outcomes of 0 and 1, but '{whole.outcome.name}' has a value of {other}"
    return _no_derivatives(whole, y, wanted, reads) if need == "derivatives" else ""


def _no_derivatives(whole: Target, y: np.ndarray, wanted: str, reads: str) -> str:
    """Why there is no Hyvärinen score, or ""."""
    outcome, density = whole.outcome, whole.density
    integers = bool((y == np.round(y)).all())
    if outcome.discrete or (integers and np.unique(y).size <= 2):
        return f"'{outcome.name}' is discrete: it has no derivative; use log or crps instead"
    if outcome.discrete is None and integers:
        return (
            f"'{outcome.name}' has only whole numbers: if it is continuous, declare it as "
            f"pcv.Outcome('{outcome.name}', discrete=False); a discrete one has no derivative"
        )
    if outcome.scale != "identity":
        return f"its density is that of {outcome}, not of '{outcome.name}' itself"
    if density is None or whole.observed is None:
        return f"it needs {wanted}density=..., observed=...)"
    units = np.unique(np.linspace(0, len(y) - 1, CHECKED_UNITS).astype(int))
    fold = Fold(jnp.ones(len(y), bool), jnp.asarray(units))
    params = jax.vmap(whole.init)(jax.random.split(jax.random.key(0), CHECKED_DRAWS))

    def joint(values: Float[jax.Array, " slot"], params: dict[str, jax.Array]) -> jax.Array:
        return density(params, fold, values)[0]

    slopes = jax.vmap(jax.grad(joint), (None, 0))(jnp.asarray(y[units], float), params)
    if not slopes.any():
        if reads == "density":
            return f"density ignores the values of '{outcome.name}' that it is given"
        return (
            f"{reads} does not read '{outcome.name}' from its second argument: write it with "
            f"data['{outcome.name}'] there"
        )
    return ""


def _check_functions(score: Score, whole: Target, where: str) -> None:
    """Check that a score's functions fit together, on folds of two slots, one padded."""
    fold = Fold(jnp.ones(1, bool), jnp.array([0, -1]))
    y = np.array([[1.0, np.nan], [2.0, np.nan]])
    wanted = (2,) if score.kind == "joint" else (2, 2)
    try:
        if score.per == "draw":
            made = jax.eval_shape(
                lambda key: score.statistic(key, whole, whole.init(key), fold), jax.random.key(0)
            )
            means = {name: np.ones((2, *x.shape)) for name, x in made.items()}
        else:
            y_rep = np.random.default_rng(0).normal(size=(2, 4, 5, 2))
            means = score.statistic(Replicates(y_rep, y, 4, 0 * y_rep[:, 0, 0], 0 * y + 1))
        with np.errstate(all="ignore"):
            shape = np.shape(score.estimate(means, y))
    except Exception as error:
        raise PcvError(f"{where} fails: {in_one_line(error)}") from error
    for field in means:
        if not str(field).isidentifier() or field == "log_weight":
            raise PcvError(
                f"{where}: its statistic gives {field!r}; field names must be letters, digits "
                "and _, and log_weight is reserved"
            )
    if shape != wanted:
        raise PcvError(
            f"{where}: its estimate has shape {shape} for two folds of two slots; a {score.kind} "
            f"score has {wanted}"
        )
