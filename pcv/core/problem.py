"""A model on its data, and the folds that it is scored on.

What is derived from it, such as its compiled program, is kept with the model: other folds, seeds
and settings trace nothing again.
"""

import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pcv.analysis.kept import Keeps, keeps_of
from pcv.base.errors import PcvError, setting
from pcv.base.monitor import Monitor
from pcv.base.names import name_bits
from pcv.core import kept as keeping
from pcv.folds import columns, joint_groups
from pcv.folds.base import Folds, as_dataset, stored

if TYPE_CHECKING:
    from pcv.core.settings import Settings
    from pcv.models.effects.marginal import Scored
    from pcv.models.model import Data, Model, Target
    from pcv.models.scores import Score
    from pcv.sampling.fit.full_data import Fit
    from pcv.sampling.folds.subspace import Subspace
    from pcv.sampling.tiles import Engine


@dataclass(frozen=True)
class Problem:
    """What is cross-validated.

    Attributes:
        name: of the model; part of its random keys.
        build: the model, as a function of the data's arrays.
        data: by unit, as `pcv.pipeline.data.tables.make_data` returns them.
        outcome: name of the column that is predicted.
        layout: all folds, as `pcv.folds.base.as_dataset` returns them, and what their scheme says
            of each.
        predictive: "plain", "marginal" or "auto", see `pcv.models.effects.marginal.choose`.
        scores: scores besides the log score.
        seed: of all random numbers.
        predict: "conditional" or "path": what replicates of a test set are given, see
            `pcv.models.paths`.
        program: what is kept of the model belongs to this hash of its program and scores.
    """

    name: str
    build: "Callable[[Data], Model | Target]"
    data: xr.Dataset
    outcome: str
    layout: xr.Dataset
    predictive: str = "auto"
    scores: "tuple[Score, ...]" = ()
    seed: int = 0
    predict: str = "conditional"
    program: str = ""

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The data as models take them."""
        return columns.model_data(self.data)

    @cached_property
    def model(self) -> "Model | Target":
        return self.build(self.arrays)

    @property
    def num_units(self) -> int:
        return columns.num_units(self.arrays)

    @property
    def units(self) -> list[str]:
        """Names of the units."""
        names: list[str] = self.data["unit"].values.tolist()
        return names

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the arrays. What is kept of a model that has changed since is dropped first."""
        keeping.drop_changed(self.model)
        return keeping.fingerprint(self.arrays)

    @cached_property
    def names_fingerprint(self) -> str:
        """A hash of the names of units and folds."""
        names = {"unit": self.data["unit"].values}
        if "fold" in self.layout:
            names["fold"] = self.layout["fold"].values
        return keeping.fingerprint(names)

    @cached_property
    def folds(self) -> Folds:
        """All folds."""
        return stored(self.layout)

    @cached_property
    def joint_groups(self) -> tuple[np.ndarray, int] | None:
        """The group of each unit, and the most groups in a fold, where groups are scored jointly in
        place of units; None: they are not."""
        code = joint_groups.codes_of(self.layout)
        if code is None:
            return None
        return code, int(joint_groups.first_slots(self.folds.test, code).sum(1).max())

    def of(self, folds: Folds) -> "Problem":
        """The problem with other folds."""
        return replace(self, layout=as_dataset(folds))

    def key(self, *path: str) -> Any:
        """The random key of the seed, the model and a path of names."""
        from pcv.base.keys import key

        return key(self.seed, self.name, *path)

    def named(self, names: np.ndarray) -> Folds:
        """The folds with these names, in the order of all."""
        return self.folds.some(np.isin(self.folds.id.astype(str), names.astype(str)))

    @cached_property
    def unit_of_row(self) -> np.ndarray:
        """The name of each row's unit, as text."""
        return np.asarray(self.units)[np.asarray(self.arrays["unit"])]

    @cached_property
    def uniform_of_row(self) -> np.ndarray:
        """Where the PIT of each row lies between the steps of its distribution function."""
        rng = np.random.default_rng([self.seed, name_bits("pit")])
        return rng.random(len(self.arrays["unit"]))

    @cached_property
    def rows_by_unit(self) -> np.ndarray:
        """The rows of each unit (unit, row), padded with -1."""
        return columns.rows_by_unit(np.asarray(self.arrays["unit"]))

    def rows(self, folds: Folds) -> np.ndarray:
        """The rows of each fold's tested units (fold, slot, row), padded with -1."""
        return np.where(folds.test[..., None] >= 0, self.rows_by_unit[folds.test], -1)

    def keeps(self, settings: "Settings", num_params: int) -> Keeps:
        """How many draws each chain keeps.

        Args:
            settings: of predictions and chains.
            num_params: of the model, or of the subspace on which chains move.
        """
        slots = *self.folds.test.shape, columns.most_rows(self.data)
        cv = settings.cv
        return keeps_of(settings.predictions, cv.chains, cv.least_draws, slots, num_params)

    def observed(self, folds: Folds) -> np.ndarray:
        """The outcome of each fold's test set, NaN in padded slots and for units of several
        rows."""
        y = np.asarray(self.arrays[self.outcome], float)
        if len(y) != self.num_units:
            return np.full(folds.test.shape, np.nan)
        return np.where(folds.test >= 0, y[folds.test], np.nan)


def pose(
    name: str,
    model: "Model | Target",
    data: Mapping[str, Any],
    folds: Folds,
    predictive: str = "auto",
    scores: "tuple[Score, ...]" = (),
    seed: int = 0,
    predict: str = "conditional",
) -> Problem:
    """The problem of a model and its data, whose rows are the units.

    Args:
        name: of the model; part of its random keys.
        model: of these data.
        data: arrays by name; those as long as the outcome are columns.
        folds, predictive, scores, seed, predict: as for `Problem`.
    """
    outcome = model.outcome.name
    number = len(data[outcome])

    def dims(name: str, shape: tuple[int, ...]) -> list[str]:
        inner = [f"{name}_dim_{axis}" for axis in range(len(shape))]
        return ["unit", *inner[1:]] if shape[:1] == (number,) else inner

    arrays = {name: np.asarray(x) for name, x in data.items()}
    units = xr.Dataset(
        {name: (dims(name, x.shape), x) for name, x in arrays.items()},
        {"unit": [str(row) for row in range(1, number + 1)]},
    )
    layout = as_dataset(folds)
    rest = layout, predictive, scores, seed, predict
    return Problem(name, lambda data: model, units, outcome, *rest)


def kept(problem: Problem, what: Hashable, make: Callable[[], Any]) -> Any:
    """Return `make()`, kept with the problem's model and data for the next call.

    Args:
        problem: the model and its data.
        what: name of the result, and all else that it depends on.
        make: computes it.
    """
    of_data = f"{problem.fingerprint} {problem.program}"
    return keeping.kept(problem.model, of_data, what, make)


def checked(problem: Problem, check: Callable[..., Any], *args: Any) -> Any:
    """Return ``check(*args)``, a check of the problem's model, and repeat its warnings.

    Args:
        problem: the model and its data.
        check: depends on the model, its name, the data, the names of units and the folds alone.
        args: of the check.
    """

    def run() -> tuple[Any, list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            result = check(*args)
        return result, [str(x.message) for x in caught if issubclass(x.category, UserWarning)]

    of_folds = _of_folds(problem.folds) if "fold" in problem.layout else ""  # the fit has none
    what = check.__name__, problem.name, problem.outcome, of_folds, problem.names_fingerprint
    result, messages = kept(problem, what, run)
    for message in messages:
        warnings.warn(message, stacklevel=2)
    return result


def predictive_model(problem: Problem) -> "Scored":
    """The model as its folds score it.

    Raises:
        PcvError: it has no such predictive.
    """
    from pcv.models.effects.marginal import choose

    def make() -> "Scored":
        model = problem.model, problem.name, problem.arrays, problem.folds
        return choose(problem.predictive, *model)

    what = "predictive", problem.predictive, _of_folds(problem.folds)
    scored: Scored = kept(problem, what, make)
    return scored


def check_predictives(problems: Mapping[str, Problem], experiment: str = "") -> None:
    """Refuse models that would be scored by different predictives.

    Raises:
        PcvError: they could not be compared.
    """
    each = {name: predictive_model(problem).predictive for name, problem in problems.items()}
    if len({*each.values()} - {"either"}) > 1:
        listed = ", ".join(f"{name}: {predictive}" for name, predictive in each.items())
        of = f"experiment '{experiment}': its models" if experiment else "models"
        raise PcvError(
            f"{of} would be scored by different predictives ({listed}) and could not be compared; "
            f"set {setting('predictive', value='plain')}, or give each model a `marginal`"
        )


def chain_model(
    problem: Problem, fit: "Fit", monitor: Monitor, decoupled: bool | None = None
) -> "Scored":
    """The model as its folds' chains sample it, perhaps decoupled from the prior of own effects.

    Args:
        problem: with all folds.
        fit: of the full data.
        monitor: takes warnings.
        decoupled: whether it is; None: decided here.
    """
    from pcv.models.effects import decoupling
    from pcv.models.model import Model
    from pcv.sampling import kernel
    from pcv.sampling.folds import sides

    how, center = predictive_model(problem), fit.kernel.center

    def needs_decoupling() -> bool:
        assert isinstance(how.model, Model)
        if how.local is not None:
            wide = decoupling.much_wider(how, center, kernel.precisions(fit.kernel))
            return wide and how.model.log_joint is None  # its density would cost nine of Stan's
        group = np.asarray(how.model.group)
        wide = sides.frees_effects(engine_of(problem, how), fit, problem.folds, group, monitor)
        if wide and not decoupling.is_smooth(how, problem.arrays, center, problem.folds):
            monitor.warn(
                "its `marginal` has no gradient, so chains keep the wide priors of left-out "
                "effects and may not mix"
            )
            return False
        return wide

    if not decoupling.may_be_decoupled(how):
        return how
    if decoupled is None:
        decoupled = needs_decoupling()
    if not decoupled:
        return how
    covariance = kernel.covariance(fit.kernel)
    what = (
        "decoupled",
        _of_folds(problem.folds),
        keeping.fingerprint({"center": center, "kernel": covariance}),
    )
    make = partial(decoupling.decoupled, how, problem.arrays, center, covariance)
    scored: Scored = kept(problem, what, make)
    return scored


def engine_of(
    problem: Problem,
    how: "Scored",
    scores: "tuple[Score, ...]" = (),
    space: "Subspace | None" = None,
    buffer: int = 50,
    along_paths: bool = False,
) -> "Engine":
    """The compiled program for a model's folds, on a subspace if given.

    Args:
        problem: the model and its data.
        how: the model as chains sample it, from `chain_model`.
        scores: scores besides the log score.
        space: on which chains move.
        buffer: largest number of draws per block.
        along_paths: whether replicates of test sets are simulated paths.
    """
    from pcv.models import paths
    from pcv.models.model import target
    from pcv.models.parameters import flat_target
    from pcv.sampling import tiles
    from pcv.sampling.folds.subspace import on_subspace

    groups = problem.joint_groups

    def make() -> "tuple[Scored, Engine]":
        whole = target(how.model, problem.arrays, how.predictive)
        if along_paths:
            whole = paths.along_paths(whole, how, problem.arrays)
        flat, _ = flat_target(whole)
        flat = flat if space is None else on_subspace(flat, space)
        return how, tiles.build(flat, scores, problem.num_units, buffer, groups=groups)

    of_space = None if space is None else keeping.fingerprint(space._asdict())
    of_groups = groups and (keeping.fingerprint({"group": groups[0]}), groups[1])
    what = "engine", id(how), of_space, of_groups, buffer, along_paths, *scores
    built: tuple[Scored, Engine] = kept(problem, what, make)
    return built[1]


def check_scores(problem: Problem, how: "Scored", num_slots: int) -> None:
    """Refuse scores that the model cannot be scored by."""
    from pcv.models import scores

    model, predictive, *_ = how
    of_data = problem.arrays, problem.num_units
    if problem.scores:
        of_folds = num_slots, problem.folds
        scores.check(problem.scores, model, problem.name, *of_data, predictive, *of_folds)


def warn_of_leaks(problem: Problem) -> list[str]:
    """Warn if training terms depend on what a fold tests; returns the warning, as marks."""
    from pcv.models.checks.folds import check_gap

    of_folds = problem.outcome, problem.folds, problem.units, problem.name
    leak: str = checked(problem, check_gap, problem.build, problem.arrays, *of_folds)
    if leak:
        warnings.warn(leak, stacklevel=2)
    return [leak] if leak else []


def given_tested(problem: Problem) -> int:
    """The shortest lag by which units are scored given others of the same fold; 0: none is."""
    from pcv.models.checks.folds import given_tested

    of_folds = problem.outcome, problem.folds
    lag: int = checked(problem, given_tested, problem.build, problem.arrays, *of_folds)
    return lag


def by_unit(problem: Problem) -> "Model":
    """The model, if training sets of it can grow.

    Raises:
        PcvError: they cannot.
    """
    from pcv.models.model import Target

    if isinstance(problem.model, Target):
        raise PcvError(
            f"model '{problem.name}': a pcv.Target has no log likelihood of each unit, by which "
            "training sets could grow; make it a pcv.Model, or take other folds"
        )
    return problem.model


def _of_folds(folds: Folds) -> str:
    return keeping.fingerprint({"test": folds.test, "held out": folds.held_out})
