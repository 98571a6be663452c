"""Find a left-out group's own parameters from derivatives of the log likelihood.

In a fold, a parameter that no training unit depends on is a left-out group's own, such as a rat's
slope. No names are needed: dependence is read off derivatives at a few draws from the prior, or
near 0 where the density overflows at these.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sparse
from jaxtyping import Array, Bool, Float, Int
from scipy.sparse.csgraph import connected_components

from pcv.base.errors import PcvError, in_one_line
from pcv.compile import programs
from pcv.folds import columns
from pcv.folds.base import Folds
from pcv.models.effects.laplace import expansion
from pcv.models.model import Data, Model, log_joint, numeric
from pcv.models.parameters import flattened, points, unravel_of

MAX_DIM = 8
"""most effects of a group that are integrated out"""
MAX_ENTRIES = 500_000_000
"""most derivatives (parameters × units) computed"""
PRIOR_DRAWS, FAR = 8, 2.5
"""points at which derivatives are taken, and the largest moves from them, in prior widths, that
probe a prior's shape: far enough to reach other modes"""
ROUNDING = 1e-9
"""error of curvatures relative to their function, where they are differences (Stan)"""
NOT_FORWARD = "JAX has no forward derivative of the log likelihood"
IN_PART = "a group is left out whole in one fold, and in part in another"
AT_ONCE = 16
"""groups, or parameters, evaluated in parallel"""
MOST, MANY = 2_000_000, 10_000_000
"""units of all parameters evaluated in parallel, at most; and derivatives beyond which the first
point is looked at alone"""

Position = Float[Array, " param"]


class Locals(NamedTuple):
    """Which parameters belong to which units alone."""

    entries: Int[np.ndarray, "group dim"]
    """indices of a group's own parameters in the flat vector, padded with its length"""
    group: Int[np.ndarray, " unit"]
    """the group of each tested unit; -1: its term depends on no left-out effect, so that it is a
    constant factor of the integral"""
    most: int
    """most groups in a test set"""
    width: Float[np.ndarray, "group dim"]
    """rough width of their prior, 1 where padded"""
    normal: bool
    """whether their joint prior given the other parameters is normal, with a known integral; if
    not, the effects of a group are independent, and the integral is a product"""
    exact: bool
    """whether the outcome is normal as well, with a mean linear in them"""
    constants: bool = False
    """whether some tested units have no group"""


def find(model: Model, data: Data, folds: Folds) -> Locals | str:
    """The parameters of each tested unit that no training unit of its fold depends on.

    Args:
        model, data: the model.
        folds: of its units.

    Returns:
        No groups if no tested unit has any. A reason not to integrate them out if a group has more
        than 8, or is left out only in part in another fold; a log prior has no curvature, as
        Laplace's or an improper one; a group's prior is not normal and makes its effects dependent;
        there are too many parameters to check; or JAX has no second derivative.
    """
    arrays, num_units = numeric(data), columns.num_units(data)
    unravel = unravel_of(model.init)
    positions = _positions(model, arrays)
    num_params = positions.shape[1]
    if num_params * num_units > MAX_ENTRIES:
        return "there are too many parameters to check"
    try:
        touches, tested, left_out_of = _left_out(model, arrays, positions, folds)
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
        return f"{NOT_FORWARD} ({in_one_line(error)})"
    with_own = (touches.T @ left_out_of).multiply(tested).nnz
    group = np.full(num_units, -1)
    if not with_own:
        return Locals(np.empty((0, 1), np.int64), group, 0, np.empty((0, 1)), True, True)
    if wrong := _without_second_derivatives(model, arrays, jnp.asarray(positions[0])):
        return wrong
    own_of, units_of, of_unit_of = [], [], []
    for k in range(len(folds.id)):
        own, units = left_out_of[:, [k]].tocoo().row, tested[:, [k]].tocoo().row
        of_unit = touches[own][:, units].toarray() > 0
        own_of.append(own[of_unit.any(1)])
        units_of.append(units)
        of_unit_of.append(of_unit[of_unit.any(1)])
    linked = _pattern(jax.grad(lambda x: model.log_prior(unravel(x))), positions)
    groups: dict[tuple[int, ...], int] = {}
    most = 0
    for own, units, of_unit in zip(own_of, units_of, of_unit_of):
        together = (of_unit.astype(int) @ of_unit.T > 0) | (linked[own][:, own].toarray() > 0)
        count, part = connected_components(together, directed=False)
        most = max(most, count)
        for c in range(count):
            entries = tuple(own[part == c].tolist())
            members = units[of_unit[part == c].any(0)]
            number = groups.setdefault(entries, len(groups))
            known = np.isin(group[members], (-1, number)).all()
            if len(entries) > MAX_DIM:
                return f"a group has {len(entries)}, more than {MAX_DIM}"
            if not known:
                return IN_PART
            group[members] = number
    constants = False
    for units, of_unit in zip(units_of, of_unit_of):
        alone = units[~of_unit.any(0)]
        constants |= bool(alone.size)
        if (group[alone] >= 0).any():
            return IN_PART
    padded = np.full((len(groups), max(map(len, groups))), num_params)
    for entries, number in groups.items():
        padded[number, : len(entries)] = entries
    width = np.append(_widths(positions), 1.0)[padded]
    shapes = _shapes(lambda x: model.log_prior(unravel(x)), positions, padded, width)
    if (shapes.straight & (padded < num_params)).any():
        return "their log prior has no curvature, as Laplace's or an improper one"
    normal = bool(shapes.normal.all())
    if not (normal or shapes.independent.all()):
        return "their prior is not normal, and may make a group's effects dependent"
    tested_units = group >= 0
    exact = normal and _quadratic(
        lambda x: model.log_lik(unravel(x), arrays)[tested_units],
        positions,
        np.unique(padded[padded < num_params]),
    )
    return Locals(padded, group, most, width, normal, exact, constants)


def have_own(model: Model, data: Data, folds: Folds) -> Bool[np.ndarray, " fold"]:
    """Which folds test units that have parameters on which no training unit depends; none where
    there are too many parameters to check."""
    arrays = numeric(data)
    positions = _positions(model, arrays)
    if positions.shape[1] * columns.num_units(data) > MAX_ENTRIES:
        return np.zeros(len(folds.id), bool)
    try:
        touches, tested, left_out_of = _left_out(model, arrays, positions, folds)
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
        raise PcvError(
            f"{NOT_FORWARD} ({in_one_line(error)}), which importance sampling needs: write "
            "jax.custom_jvp for jax.custom_vjp, or sample every fold (pcv.cross_validate)"
        ) from error
    pairs = (touches.T @ left_out_of).multiply(tested)
    return np.asarray(pairs.sum(axis=0)).ravel() > 0


def _without_second_derivatives(model: Model, arrays: Data, position: Position) -> str:
    """Why JAX cannot differentiate the log likelihood twice, if it cannot."""
    unravel = unravel_of(model.init)

    def curvature(x: Position) -> Position:
        slope = jax.grad(lambda x: log_joint(model, unravel(x), arrays, True))
        return jax.jvp(slope, (x,), (x,))[1]

    try:
        jax.eval_shape(curvature, position)
    except (TypeError, ValueError, NotImplementedError) as error:
        return f"JAX has no second derivative of their log likelihood ({in_one_line(error)})"
    return ""


def _left_out(
    model: Model, arrays: Data, positions: Float[np.ndarray, "draw param"], folds: Folds
) -> tuple[sparse.csr_array, sparse.csc_array, sparse.csc_array]:
    """Which units depend on which parameters (param, unit), which are tested (unit, fold), and on
    which parameters no training unit depends (param, fold)."""
    unravel, num_units = unravel_of(model.init), columns.num_units(arrays)
    touches = _pattern(lambda x: model.log_lik(unravel(x), arrays), positions, of_some=True)
    held_out, tested = _memberships(folds, num_units)
    inside = (touches @ held_out).tocoo()
    left_out = inside.data == touches.sum(1)[inside.row]
    pairs = inside.row[left_out], inside.col[left_out]
    return (
        touches,
        tested,
        sparse.csc_array((np.ones(len(pairs[0]), np.int64), pairs), inside.shape),
    )


def _positions(model: Model, arrays: Data) -> Float[np.ndarray, "draw param"]:
    """Points at which to look for dependence: finite densities first, prior draws before others."""
    unravel = unravel_of(model.init)

    def finite(position: Position) -> Bool[Array, ""]:
        params = unravel(position)
        return jnp.isfinite(model.log_lik(params, arrays).sum() + model.log_prior(params))

    found = flattened(points(model.init, PRIOR_DRAWS))
    usable = programs.once(partial(jax.lax.map, finite))(found)
    return found[np.argsort(~np.asarray(usable), kind="stable")[:PRIOR_DRAWS]]


def _pattern(
    function: Callable[[Position], Float[Array, " out"]],
    positions: Float[np.ndarray, "draw param"],
    of_some: bool = False,
) -> sparse.csr_array:
    """Which outputs depend on which parameters at any of the positions: 1 at (param, out). With
    `of_some`, parameters on which all depend are left out."""
    size = positions.shape[1]
    (outs,) = jax.eval_shape(function, positions[0]).shape
    at_once = int(np.clip(MOST // outs, 1, AT_ONCE))

    def columns(indices: np.ndarray, positions: np.ndarray) -> np.ndarray:
        def column(index: Int[Array, ""]) -> Bool[Array, " out"]:
            one = jnp.zeros(size, positions.dtype).at[index].set(1)
            return jax.vmap(lambda x: jax.jvp(function, (x,), (one,))[1] != 0)(positions).any(0)

        every = programs.once(lambda indices: jax.lax.map(column, indices, batch_size=at_once))
        return np.array(every(indices))

    first = 1 if size * outs > MANY else len(positions)
    found = columns(np.arange(size), positions[:first])
    rest = np.flatnonzero(~found.all(1))
    if rest.size and first < len(positions):
        found[rest] |= columns(rest, positions[first:])
    if of_some:
        found[found.all(1)] = False
    return sparse.csr_array(found).astype(np.int64)


def _memberships(folds: Folds, num_units: int) -> tuple[sparse.csc_array, sparse.csc_array]:
    """Held-out and test units of each fold: 1 at (unit, fold)."""
    out = [np.concatenate([np.arange(*run) for run in runs]) for runs in folds.held_out.tolist()]
    test = [row[row >= 0] for row in folds.test]

    def members(rows: list[np.ndarray]) -> sparse.csc_array:
        fold = np.repeat(np.arange(len(rows)), [len(x) for x in rows])
        unit = np.concatenate(rows).astype(np.int64)
        shape = (num_units, len(rows))
        return sparse.csc_array((np.ones(len(unit), np.int64), (unit, fold)), shape)

    return members(out), members(test)


class Shapes(NamedTuple):
    """Shape of each group's prior given the other parameters, as probed by a few moves."""

    straight: Bool[np.ndarray, "group dim"]
    """whether its logarithm has no curvature: Laplace's, or an improper one"""
    normal: Bool[np.ndarray, " group"]
    independent: Bool[np.ndarray, " group"]


def _shapes(
    log_prior: Callable[[Position], Float[Array, ""]],
    positions: Float[np.ndarray, "draw param"],
    groups: Int[np.ndarray, "group dim"],
    widths: Float[np.ndarray, "group dim"],
) -> Shapes:
    """Probed in every group by moves from prior draws, wide enough to reach other modes: a normal
    prior has constant curvature and the slopes that follow from it; if parameters are independent,
    the changes from moving each alone add up to that from moving all."""
    dim = groups.shape[1]
    near, far = np.random.default_rng(0).normal(size=(2, dim))
    far = np.where(far > 0, FAR, -FAR)
    moves = np.stack([near, far, -far])

    def of_group(group: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        entries, width = group

        def at(position: Position) -> tuple[Array, Array, Array, Array]:
            def moved(x: Array) -> Array:
                inside = entries < position.size
                padding = jnp.sum(jnp.where(inside, 0.0, x**2)) / 2
                return log_prior(position.at[entries].add(x, mode="drop")) - padding

            steps = jnp.asarray(moves, position.dtype) * width
            places = jnp.concatenate([jnp.zeros_like(steps[:1]), steps])
            every = jax.vmap(lambda x: expansion(moved, x))(places)
            here = jax.tree.map(lambda x: x[0], every)
            there = jax.tree.map(lambda x: x[1:], every)
            unit = jnp.sqrt(jnp.abs(jnp.diagonal(here.curvature)))
            bent = jnp.abs(there.curvature - here.curvature) <= 1e-4 * unit[:, None] * unit
            follows = steps @ here.curvature
            scale = jnp.sqrt(jnp.sum(((jnp.abs(here.slope) + jnp.abs(follows)) / unit) ** 2, 1))
            turned = jnp.abs(there.slope - here.slope - follows) / unit <= 1e-4 * scale[:, None]
            flat = (jnp.diagonal(every.curvature, axis1=1, axis2=2) == 0).all(0)
            alone = jax.vmap(lambda x: jax.vmap(moved)(jnp.diag(x)))(steps) - here.value
            excess = jnp.abs(alone.sum(1) - (there.value - here.value))
            rounded = 100 * jnp.finfo(position.dtype).eps * jnp.abs(here.value)
            tied = excess > 1e-4 * jnp.abs(alone).sum(1) + rounded
            known = jnp.isfinite(excess)
            return flat, bent.all() & turned.all(), (tied & known).any(), known.any()

        flat, normal, tied, known = jax.vmap(at)(jnp.asarray(positions))
        return flat.all(0), normal.all(), ~tied.any() & known.any()

    every = programs.once(lambda x: jax.lax.map(of_group, x, batch_size=AT_ONCE))
    return Shapes(*map(np.asarray, every((groups, widths))))


def _quadratic(
    terms: Callable[[Position], Float[Array, " unit"]],
    positions: Float[np.ndarray, "draw param"],
    entries: Int[np.ndarray, " entry"],
) -> bool:
    """Whether all terms are concave and quadratic in some parameters: along random directions,
    derivatives at the start must predict those at the end."""
    size = 4, len(entries)
    moves = np.random.default_rng(1).normal(size=size) * _widths(positions)[entries]

    def derivatives(position: Position, move: Array) -> tuple[Array, Array, Array]:
        """Value, slope and curvature along a move, at its start and end."""

        def along(t: Array) -> Float[Array, " unit"]:
            return terms(position.at[entries].add(t * move))

        def slope(t: Array) -> tuple[Array, Array]:
            return jax.jvp(along, (t,), (jnp.ones_like(t),))

        def at(t: Array) -> tuple[Array, Array, Array]:
            (value, first), (_, second) = jax.jvp(slope, (t,), (jnp.ones_like(t),))
            return value, first, second

        return jax.vmap(at)(jnp.arange(2, dtype=position.dtype))

    over = jax.vmap(jax.vmap(derivatives, (None, 0)), (0, None))
    value, slope, curvature = (
        np.moveaxis(np.asarray(x), 2, 0) for x in programs.once(over)(positions, moves)
    )
    scale = 1e-4 * (np.abs(value[0]) + np.abs(slope[0]) + np.abs(curvature[0]))
    rounding = ROUNDING * np.abs(value).max(0)
    predicted = (
        np.abs(value[1] - (value[0] + slope[0] + curvature[0] / 2)) <= scale,
        np.abs(slope[1] - (slope[0] + curvature[0])) <= scale,
        np.abs(curvature[1] - curvature[0]) <= 1e-4 * np.abs(curvature[0]) + rounding,
        curvature[0] <= 0,
    )
    return bool(np.all(predicted))


def _widths(positions: Float[np.ndarray, "draw param"]) -> Float[np.ndarray, " param"]:
    """Standard deviation of each parameter over prior draws."""
    spread = np.std(positions, axis=0)
    return np.where(spread > 0, spread, 1.0)
