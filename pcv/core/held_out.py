"""A test set that was never part of the data, scored at draws of the full-data posterior.

The new rows stand at the end of the data, and one fold tests them. Its posterior is that of the
data, so that its draws are there already: the fit's.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.experimental import checkify
from jaxtyping import Array, Bool, Float

from pcv.analysis.results.predicted import predictions_of
from pcv.analysis.samples import one_side
from pcv.base.errors import PcvError
from pcv.base.keys import any_key
from pcv.base.monitor import Monitor
from pcv.compile import programs
from pcv.core import groups
from pcv.core.cross_validate import Result
from pcv.core.diagnose import diagnose
from pcv.core.problem import Problem, check_scores, given_tested, predictive_model
from pcv.core.settings import CvConfig, Settings
from pcv.models.checks.shapes import check_shapes
from pcv.models.effects.effects import find
from pcv.models.effects.prior import drawn_anew
from pcv.models.model import Model, target
from pcv.models.parameters import (
    flat_target,
    flattened,
    param_names,
    unit_log_lik,
    unravel_of,
)
from pcv.sampling.folds.at_draws import score_draws

BATCH_SIZE, FEWEST = 50, 4
"""draws per batch, and batches of each chain, for which batches are shortened"""
COMPARED = 4
"""draws at which terms of the data are compared with and without the new rows"""
AT_ONCE = 100
"""draws evaluated side by side"""


def score_new_data(
    base: Problem, problem: Problem, fit: xr.DataTree, settings: Settings, monitor: Monitor
) -> Result:
    """Scores and predictions of new rows, from draws of the data's posterior.

    Args:
        base: the model of the data.
        problem: the model of the data with the new rows at their end, which its one fold tests.
        fit: the posterior of the data.
        settings: of scores and predictions.
        monitor: takes messages.

    Returns:
        What cross-validation of that fold returns.

    Raises:
        PcvError: the two models differ in more than effects of new groups; the fit is an
            approximation.
    """
    if groups.log_weights(fit) is not None:
        raise PcvError("new data need draws of the posterior; leave `approximation` out of fit")
    of_model = problem.arrays, problem.num_units, problem.outcome, problem.name
    check_shapes(problem.model, *of_model)
    position = _at_new_data(base, problem, groups.positions(fit))
    how = predictive_model(problem)
    check_scores(problem, how, problem.folds.test.shape[1])
    chains, draws, _ = position.shape
    size = max(min(BATCH_SIZE, draws // FEWEST), 1)
    number = draws // size * size
    cv = CvConfig(chains=chains, draws=number, batch_size=size, superchains=None)
    settings = settings.model_copy(update={"cv": cv})
    flat, _ = flat_target(target(how.model, problem.arrays, how.predictive))
    stats = fit["sample_stats"].to_dataset().isel(draw=slice(draws - number, None))
    keeps = problem.keeps(settings, position.shape[2])
    sampled = score_draws(
        flat,
        problem.scores,
        problem.folds,
        problem.observed(problem.folds),
        problem.key("new data"),
        position[:, draws - number :],
        stats,
        size,
        keeps,
    )
    slots = problem.folds.test.shape[1]
    sampled = sampled.assign(one_side(1, slots)).assign_attrs(
        predictive=how.predictive,
        integration=how.integration,
        outcome=str(problem.model.outcome),
        superchains=0,
        given_tested=given_tested(problem),
        full_draws=1,
    )
    at_fit = xr.Dataset({"log_score_full": sampled["log_joint_draws"]})
    diagnosed = diagnose(problem, fit, at_fit, [sampled], settings, monitor)
    shown = xr.DataTree.from_dict(
        {name: fit[name].to_dataset() for name in ("posterior", "sample_stats")}
    )
    marks = list(fit.attrs.get("marks", []))
    predicted = predictions_of(diagnosed).drop_vars("position", errors="ignore")  # in the fit
    return Result(shown, diagnosed.to_dataset(), predicted, None, marks)


def _at_new_data(
    base: Problem, problem: Problem, position: Float[np.ndarray, "chain draw param"]
) -> Float[np.ndarray, "chain draw new_param"]:
    """Draws as parameters of the model with the new rows; effects of new groups are drawn given the
    others.

    Raises:
        PcvError: the models differ in more than these.
    """
    where = f"model '{problem.name}'"
    if not isinstance(base.model, Model) or not isinstance(problem.model, Model):
        raise PcvError(f"{where}: a pcv.Target has no terms of single units; give a pcv.Model")
    if problem.units[: base.num_units] != base.units:
        raise PcvError(
            f"{where}: new rows must be new units, after those of the data; here they change the "
            "units that there are"
        )
    shapes = [
        {name: x.shape for name, x in sorted(jax.eval_shape(p.model.init, any_key()).items())}
        for p in (base, problem)
    ]
    draws = jax.vmap(unravel_of(base.model.init))(position.reshape(-1, position.shape[-1]))
    grown, new = {}, {}
    for name in sorted({*shapes[0], *shapes[1]}):
        before, after = (x.get(name, "absent") for x in shapes)
        if len(before) != len(after) or any(n > m for n, m in zip(before, after)):
            raise PcvError(
                f"{where}: parameter '{name}' is {before} and, with new_data, {after}: parameters "
                "may only get longer, by effects of new groups"
            )
        pad = [(0, m - n) for n, m in zip(before, after)]
        grown[name] = np.pad(np.asarray(draws[name]), [(0, 0), *pad], mode="mean")
        new[name] = np.ones((1, *after))
        known: tuple[Any, ...] = (0, *(slice(n) for n in before))
        new[name][known] = 0.0
    flat, is_new = flattened(grown), flattened(new)[0] > 0
    _check_terms(base, problem, position.reshape(len(flat), -1), flat, where)
    if is_new.any():
        flat = _with_new_effects(problem, flat, is_new, where)
    _check_indices(problem, flat[0], where)
    return flat.reshape(*position.shape[:2], -1)


def _check_terms(
    base: Problem,
    problem: Problem,
    before: Float[np.ndarray, "draw param"],
    after: Float[np.ndarray, "draw new_param"],
    where: str,
) -> None:
    """Refuse new rows that change the terms of the data."""
    some, terms = np.linspace(0, len(before) - 1, COMPARED).astype(int), []
    for p, x in ((base, before), (problem, after)):
        log_lik = unit_log_lik(p.model, p.arrays)
        assert log_lik is not None
        every = programs.once(partial(jax.lax.map, log_lik))
        terms.append(np.asarray(every(jnp.asarray(x[some], float)))[:, : base.num_units])
    rounding = 1e4 * np.finfo(terms[0].dtype).eps * (1 + np.abs(terms[0]))
    with np.errstate(invalid="ignore"):
        changed = ~((np.abs(terms[0] - terms[1]) <= rounding) | (terms[0] == terms[1])).all(0)
    if changed.any():
        i = int(changed.argmax())
        raise PcvError(
            f"{where}: new_data change the log likelihood of unit '{base.units[i]}' of the data, "
            f"from {terms[0][0, i]:.3g} to {terms[1][0, i]:.3g} at one draw, as the model computes "
            "something from all rows (means, knots, sorted codes of groups); compute it before, "
            "and number new groups after the others"
        )


def _with_new_effects(
    problem: Problem,
    flat: Float[np.ndarray, "draw param"],
    is_new: Bool[np.ndarray, " param"],
    where: str,
) -> Float[np.ndarray, "draw param"]:
    """Draws with new groups' effects from their prior given the other parameters."""
    model, how = problem.model, predictive_model(problem)
    assert isinstance(model, Model)
    effects = how.local or find(model, problem.arrays, problem.folds)
    why = "they are no effects of new groups alone"
    own = np.zeros(is_new.size + 1, bool)
    if isinstance(effects, str):
        why = effects
    else:
        own[effects.entries] = True
    lost = is_new & ~own[:-1]
    if isinstance(effects, str) or lost.any():
        names = param_names(target(model, problem.arrays, "plain"))
        raise PcvError(
            f"{where}: with new_data it has {is_new.sum()} more parameters, such as "
            f"{names[int(lost.argmax())]}, which cannot be drawn given the others: {why}"
        )
    unravel, anew = unravel_of(model.init), drawn_anew(model, effects)
    test = jnp.asarray(problem.folds.test[0])

    def of_draw(of_one: tuple[Array, Array]) -> Any:
        key, x = of_one
        return anew(key, unravel(x), test)

    keys = jax.random.split(problem.key("new effects"), len(flat))
    every = programs.once(partial(jax.lax.map, of_draw, batch_size=AT_ONCE))
    return flattened(every((keys, jnp.asarray(flat, float))))


def _check_indices(problem: Problem, position: Float[np.ndarray, " param"], where: str) -> None:
    """Refuse new rows that index effects which are not there: JAX would take the last one."""
    log_lik = unit_log_lik(problem.model, problem.arrays)
    assert log_lik is not None
    error, _ = checkify.checkify(log_lik, errors=checkify.index_checks)(jnp.asarray(position))
    if said := error.get():
        raise PcvError(
            f"{where}: new_data have a group that the model has no effect for ("
            f"{said.splitlines()[0].split(': ', 1)[-1]}); give it as many effects as groups in all "
            "rows"
        )
