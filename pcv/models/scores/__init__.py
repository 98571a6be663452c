"""Scores other than the log score, which every run computes: by name, or a user's own.

The log score is `pcv.analysis.diagnostics.elpd`. The others are `Score` records; their modules
show each `estimate` at work, on means over draws by fold and slot.

>>> list(SCORES)[:7]
['dss', 'hyvarinen', 'crps', 'scrps', 'energy', 'interval', 'rmse']
>>> list(SCORES)[7:]
['mae', 'r2', 'mase', 'brier', 'accuracy', 'balanced_accuracy', 'rps']

A name with a percentage makes a score at that probability: ``pinball_10``, ``coverage_90``.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

from pcv.base import reference, section
from pcv.base.errors import PcvError, in_one_line
from pcv.folds.base import Folds
from pcv.models.model import Data, Fold, Model, Target, target
from pcv.models.scores import outcomes, replicates
from pcv.models.scores.replicates import across, frame, interval
from pcv.models.scores.score import TOTALS, Need, Replicates, Score, Total
from pcv.models.scores.series import mase, no_order, no_steps


def _built_in(name: str, module: str) -> tuple[Score, ...]:
    found = getattr(importlib.import_module(f"pcv.models.scores.{module}"), name)
    return found() if callable(found) else found


SCORES = {name: _built_in(name, module) for name, module in section.SCORES.items() if module}
"""scores by their name in the config, joint and pointwise where both exist"""

MAX_DSS_SLOTS = 200
"""units of a test set beyond which their covariance takes too much memory"""

__all__ = [
    "SCORES",
    "Replicates",
    "Score",
    "Total",
    "across",
    "check",
    "frame",
    "interval",
    "named",
]


def named(
    names: Sequence[str],
    objects: Mapping[str, Any] | None = None,
    series: np.ndarray | None = None,
) -> tuple[Score, ...]:
    """The scores that a config asks for, besides the log score.

    Args:
        names: keys of `SCORES`, "log", one with a percentage (``coverage_90``), or
            ``file.py:function`` of a function that returns a `Score` or several.
        objects: scores of a Python session, by their references.
        series: of each unit, which some scores tell apart; None: all units are of one.

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
        for score in _of(name, objects or {}, series):
            _check_fields(score, score.name if name.startswith(section.OBJECT) else name)
            if score.key in found or score.name == "log":
                raise PcvError(
                    f"score '{name}': there is already a {score.kind} score '{score.name}'; "
                    "rename one"
                )
            found[score.key] = score
    return tuple(found.values())


def _of(name: str, objects: Mapping[str, Any], series: np.ndarray | None) -> tuple[Score, ...]:
    if name == "mase":
        return mase(series)
    if name in SCORES:
        return SCORES[name]
    if name in objects:
        return (objects[name],)
    if ":" not in name and (of_probability := section.at_percent(name)):
        base, probability = of_probability
        scores: tuple[Score, ...] = getattr(replicates, base)(probability)
        return scores
    return _own(name)


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
    for field in ("kind", "per"):
        known = get_args(get_type_hints(Score)[field])
        if getattr(score, field) not in known:
            raise PcvError(
                f"score '{name}': {field} {getattr(score, field)!r}; known: {', '.join(known)}"
            )
    if not (score.total in TOTALS or (callable(score.total) and score.kind == "pointwise")):
        raise PcvError(
            f"score '{name}': total {score.total!r}; known: {', '.join(TOTALS)}, or a function of "
            "the terms of a pointwise score"
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
    folds: Folds | None = None,
) -> None:
    """Check that a model has what its scores need.

    Args:
        scores: of `named`.
        model, name: the model.
        data: its data, with one value of the outcome for each unit.
        num_units: number of units.
        predictive: plain or marginal.
        num_slots: units of the largest test set.
        folds: all of them, for scores of categories and series; None: unknown.

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
    of_model = "marginal" if predictive == "marginal" else "log_lik"
    there = _There(
        whole,
        np.asarray(data.get(whole.outcome.name, ())),
        f"pcv.{type(model).__name__}(..., {'marginal_' * (predictive == 'marginal')}",
        "density" if isinstance(model, Target) else of_model,
        isinstance(model, Model) and model.data is not None,
        np.arange(num_units)[None, :num_slots] if folds is None else folds.test,
    )
    missing: dict[Need, str] = {}
    for score in scores:
        where = f"score '{score.name}' of model '{name}'"
        if there.y.shape != (num_units,):
            raise PcvError(
                f"{where}: it needs one value of '{whole.outcome.name}' for each unit; units of "
                "several rows have only the log score"
            )
        for need in score.needs:
            if need not in missing:
                missing[need] = _missing(need, there)
                if need == "order of units" and folds is not None:
                    missing[need] = no_order(folds)
                if need == "steps between units" and folds is not None:
                    missing[need] = no_steps(score, whole, folds, num_units)
            if missing[need]:
                raise PcvError(f"{where}: {missing[need]}")
        if score.key == "dss_joint" and num_slots > MAX_DSS_SLOTS:
            raise PcvError(
                f"{where}: it keeps the covariance of a whole test set, here {num_slots} units; "
                f"the limit is {MAX_DSS_SLOTS}: use smaller test sets, or another score"
            )
        _check_functions(score, whole, where)


class _There(NamedTuple):
    """What a model has."""

    whole: Target
    y: np.ndarray
    wanted: str
    """how its further functions are given, in messages"""
    reads: str
    """the function that reads the outcome"""
    by_front_end: bool
    test: np.ndarray
    """units of test sets"""


def _missing(need: Need, there: _There) -> str:
    """What a model lacks, or ""."""
    whole, y, wanted, reads, by_front_end, test = there
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
    if need == "outcome that varies" and (y == y[0]).all():
        return f"it needs outcomes that differ, but all of '{whole.outcome.name}' are {y[0]}"
    if need == "ordered outcome":
        return outcomes.no_order(whole.outcome, y, by_front_end)
    if need == "categories":
        return outcomes.no_categories(whole, y, wanted, reads, test)
    return outcomes.no_derivatives(whole, y, wanted, reads) if need == "derivatives" else ""


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
