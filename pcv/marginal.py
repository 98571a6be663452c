r"""A left-out group's own effects, integrated out of its predictive.

In a fold, parameters λ that no training unit depends on are drawn from their prior given the
others, φ. Their draws rarely fit what the fold predicts; its mean density is ruled by few of them.
Here each draw's density is the mean over all of them instead:

.. math:: p(y_\mathrm{test} \mid \varphi) = \frac{\int p(y_\mathrm{test} \mid \varphi, \lambda)\,
          p(\varphi, \lambda) \, d\lambda}{\int p(\varphi, \lambda) \, d\lambda}

which estimates the same elpd with far less noise. Integrals are done by nodes around a Laplace
approximation that Newton's method finds at every draw: in one dimension on a grid with a random
offset, in more by importance sampling. Both are unbiased (where the prior of λ is not normal, but
for the error of its own integral), so that theirs is part of the variance of the draws, and of the
MCSE. What is local is seen from the derivatives of the log
likelihood; λ is on the unconstrained scale.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy.sparse as sparse
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key
from scipy.sparse.csgraph import connected_components

from pcv.devices import RUN_ONCE
from pcv.errors import PcvError
from pcv.folds import Folds
from pcv.model import Data, Model, Params, Predictive, check_whole_groups, numeric

MAX_DIM = 8
"""effects of a group beyond which they are not integrated out"""
MAX_ENTRIES = 500_000_000
"""derivatives, parameters times units, that are looked at"""
PRIOR_DRAWS, LOOKED_AT = 3, 5
"""prior draws at which derivatives are looked at, and groups whose prior's shape is"""
MAX_STEPS, CLOSE = 20, 0.01
"""Newton steps, and the square of the last one, in standard deviations, with which they end"""
STEP_SIZES = (1.0, 0.3, 0.05, 0.0)
NODES_1D, SPACING, BEND = 31, 0.5, 0.4
"""the grid: nodes, their distance in standard deviations at the middle, and how soon it widens"""
NODES_PER_DIM = 16
"""of importance sampling, half around the Laplace approximation, half from the prior's"""
TAIL = 5
"""degrees of freedom of the former"""
MUCH_WIDER = 2.0
"""standard deviation of the prior over the posterior's, from which on chains are spared it"""

Position = Float[Array, " param"]
Function = Callable[[Float[Array, " dim"]], Float[Array, ""]]


class Locals(NamedTuple):
    """Which parameters belong to which units alone."""

    entries: Int[np.ndarray, "group dim"]
    """places of a group's own parameters in the flat vector, padded with its length"""
    group: Int[np.ndarray, " unit"]
    """the group of each tested unit"""
    most: int
    """groups in a test set, at most"""
    normal: bool
    """whether their prior given the other parameters is normal, so that its integral is known"""


class Laplace(NamedTuple):
    """A normal approximation of a density that is not normalised."""

    mean: Float[Array, " dim"]
    scale: Float[Array, "dim dim"]
    """a square root of the covariance"""
    log_integral: Float[Array, ""]


class Scored(NamedTuple):
    """A model as its folds score it."""

    model: Model
    predictive: Literal["plain", "marginal", "either"]
    """either: there is nothing to integrate out, so that both are the same"""
    integration: str
    """how it is done, in words"""
    local: Locals | None = None
    """what is integrated out numerically"""


def choose(setting: str, model: Model, name: str, data: Data, folds: Folds) -> Scored:
    """Which predictive the folds of a model use, and the model with it.

    "auto": the model's own `marginal` where it says what its groups are and all folds leave out
    whole ones; else the effects that `find` finds are integrated out; plain where there are none,
    or not of all units.

    Args:
        setting: "auto", "marginal" or "plain".
        model, name: the model.
        data: its data.
        folds: of the data.

    Raises:
        PcvError: "marginal" is asked for, and there is nothing to integrate out, or it does not
            hold in a fold.
    """
    if setting == "plain":
        return Scored(model, "plain", "")
    analytic = Scored(model, "marginal", "analytically")
    if model.marginal is not None and (setting == "marginal" or model.group is not None):
        try:
            check_whole_groups(model, name, folds)
        except PcvError:
            if setting == "marginal":
                raise
            return Scored(model, "plain", "")
        return analytic
    local = find(model, data, folds)
    if local is None or (setting == "marginal" and not len(local.entries)):
        if setting == "marginal":
            raise PcvError(
                f"model '{name}': predictive 'marginal' is asked for, but some tested unit has no "
                f"parameters of its own, or its group has more than {MAX_DIM}; write a `marginal`, "
                "or set predictive: plain"
            )
        return Scored(model, "plain", "")
    if not len(local.entries):
        return Scored(model, "either", "")
    by = "on a grid" if local.entries.shape[1] == 1 else "by importance sampling"
    return Scored(integrated(model, data, local), "marginal", by, local)


def find(model: Model, data: Data, folds: Folds) -> Locals | None:
    """The parameters of each tested unit that no training unit of its fold depends on.

    Args:
        model, data: the model.
        folds: of its units.

    Returns:
        No groups where no tested unit has any. None where some have and some have not; where a
        group has more than 8, or is not left out as a whole in another fold; or where there are too
        many parameters to look at.
    """
    arrays = numeric(data)
    keys = jax.random.split(jax.random.key(0), PRIOR_DRAWS)
    positions = jax.jit(jax.vmap(lambda key: ravel_pytree(model.init(key))[0]))(keys)
    unravel = _unravel(model)
    num_units = int(arrays["unit"].max()) + 1
    num_params = positions.shape[1]
    if num_params * num_units > MAX_ENTRIES:
        return None
    touches = _pattern(lambda x: model.log_lik(unravel(x), arrays), positions)
    held_out, tested = _memberships(folds, num_units)
    inside, total = (touches @ held_out).tocsc(), touches.sum(1)
    own_of, units_of, of_unit_of = [], [], []
    for k in range(len(folds.id)):
        touched, units = inside[:, [k]].tocoo(), tested[:, [k]].tocoo().row
        own = touched.row[touched.data == total[touched.row]]
        of_unit = touches[own][:, units].toarray() > 0
        own_of.append(own[of_unit.any(1)])
        units_of.append(units)
        of_unit_of.append(of_unit[of_unit.any(1)])
    with_own = np.concatenate([of_unit.any(0) for of_unit in of_unit_of])
    group = np.full(num_units, -1)
    if not with_own.any():
        return Locals(np.empty((0, 1), np.int64), group, 0, True)
    if not with_own.all():
        return None
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
            if len(entries) > MAX_DIM or not known:
                return None
            group[members] = number
    padded = np.full((len(groups), max(map(len, groups))), num_params)
    for entries, number in groups.items():
        padded[number, : len(entries)] = entries
    some = jnp.asarray(padded[:LOOKED_AT])
    normal = _is_normal(lambda x: model.log_prior(unravel(x)), positions, some)
    return Locals(padded, group, most, normal)


def _pattern(
    function: Callable[[Position], Float[Array, " out"]], positions: Float[Array, "draw param"]
) -> sparse.csr_array:
    """Which results depend on which parameters, at some of the positions: 1 at (param, out)."""
    size = positions.shape[1]

    def column(index: Int[Array, ""]) -> Bool[Array, " out"]:
        one = jnp.zeros(size, positions.dtype).at[index].set(1)
        return jax.vmap(lambda x: jax.jvp(function, (x,), (one,))[1] != 0)(positions).any(0)

    columns = jax.jit(
        lambda indices: jax.lax.map(column, indices, batch_size=16), compiler_options=RUN_ONCE
    )
    return sparse.csr_array(np.asarray(columns(jnp.arange(size))).astype(np.int64))


def _memberships(folds: Folds, num_units: int) -> tuple[sparse.csc_array, sparse.csc_array]:
    """Units that each fold holds out, and that it tests: 1 at (unit, fold)."""
    out = [np.concatenate([np.arange(*run) for run in runs]) for runs in folds.held_out.tolist()]
    test = [row[row >= 0] for row in folds.test]

    def members(rows: list[np.ndarray]) -> sparse.csc_array:
        fold = np.repeat(np.arange(len(rows)), [len(x) for x in rows])
        unit = np.concatenate(rows).astype(np.int64)
        shape = (num_units, len(rows))
        return sparse.csc_array((np.ones(len(unit), np.int64), (unit, fold)), shape)

    return members(out), members(test)


def _is_normal(
    log_prior: Callable[[Position], Float[Array, ""]],
    positions: Float[Array, "draw param"],
    groups: Int[Array, "group dim"],
) -> bool:
    """Is the curvature of the log prior in groups' parameters the same wherever they are?"""

    def curvature(position: Position, entries: Array, move: Float[Array, ""]) -> Array:
        def moved(x: Array) -> Array:
            return log_prior(position.at[entries].add(move + x, mode="drop"))

        return jax.hessian(moved)(jnp.zeros(entries.size, position.dtype))

    over = jax.vmap(
        jax.vmap(jax.vmap(curvature, (None, None, 0)), (None, 0, None)), (0, None, None)
    )
    found = np.asarray(jax.jit(over)(positions, groups, jnp.array([0.0, 1.0, -2.0])))
    return bool(np.allclose(found, found[:, :, :1], rtol=1e-4, atol=1e-12))


def sliceable(model: Model, data: Data, num_units: int) -> bool:
    """Does `log_lik` of a few rows of the data give the terms of their units?"""
    arrays = numeric(data)
    if len(arrays[model.outcome.name]) != num_units:
        return False
    params = jax.jit(model.init)(jax.random.key(0))
    some = np.unique(np.linspace(0, num_units - 1, 3).astype(int))[::-1]
    whole = np.asarray(jax.jit(model.log_lik)(params, arrays))[some]
    try:
        part = np.asarray(
            jax.jit(model.log_lik)(params, _rows(arrays, jnp.asarray(some), num_units))
        )
    except Exception:  # whatever a model's function does with data of another size
        return False
    return part.shape == whole.shape and bool(np.allclose(part, whole, rtol=1e-5))


def _rows(arrays: Data, units: Int[Array, " slot"], num_units: int) -> dict[str, Array]:
    return {
        name: x[units] if x.ndim and x.shape[0] == num_units else x for name, x in arrays.items()
    }


def integrated(model: Model, data: Data, local: Locals) -> Model:
    """The model with a marginal predictive, of replicates too, in which `local` is integrated out.

    Args:
        model, data: the model.
        local: of `find`.
    """
    # Functions of the user are traced once, however often they are called here.
    log_lik, own = jax.jit(model.log_lik), model._replace(log_prior=jax.jit(model.log_prior))
    num_units = len(local.group)
    all_entries = jnp.asarray(_with_nobody(local, _size(model)))
    few = sliceable(model, data, num_units)

    def marginal(params: Params, data: Data, test: Int[Array, " slot"]) -> Predictive:
        position, unravel = ravel_pytree(params)
        arrays = _rows(data, test, num_units) if few else data
        of_slot, present = _groups_of(local, test)

        def of_group(group: Int[Array, ""]) -> Predictive:
            entries, mine = all_entries[group], (of_slot == group) & (test >= 0)

            def terms(x: Float[Array, " dim"]) -> Float[Array, " slot"]:
                found = log_lik(unravel(position.at[entries].set(x, mode="drop")), arrays)
                return jnp.where(mine, found if few else found[test], 0.0)

            log_prior, prior = _prior(own, unravel, position, entries)
            key = jax.random.fold_in(_key_of(position), group)
            joint, pointwise = _integral(key, log_prior, terms, prior, local.normal)
            return jnp.where(mine.any(), joint, 0.0), jnp.where(mine, pointwise, 0.0)

        joint, pointwise = _over_groups(of_group, present)
        return joint.sum(), pointwise.sum(0)

    def predict(
        key: Key[Array, ""], params: Params, data: Data, test: Int[Array, " slot"]
    ) -> Float[Array, " slot"]:
        assert model.predict is not None
        position, unravel = ravel_pytree(params)
        for_effects, for_outcome = jax.random.split(key)
        _, present = _groups_of(local, test)

        def anew(group: Int[Array, ""]) -> Float[Array, " dim"]:
            own_key = jax.random.fold_in(for_effects, group)
            log_prior, prior = _prior(own, unravel, position, all_entries[group])
            if local.normal:
                return prior.mean + prior.scale @ jax.random.normal(own_key, prior.mean.shape)
            of_nodes, of_choice = jax.random.split(own_key)
            x, log_weight = _sampled(of_nodes, prior, None)
            chosen = jax.random.categorical(of_choice, log_weight + jax.vmap(log_prior)(x))
            return x[chosen]

        effects = _over_groups(anew, present)
        moved = position.at[all_entries[present].ravel()].set(effects.ravel(), mode="drop")
        return model.predict(for_outcome, unravel(moved), data)[test]

    return model._replace(
        marginal=marginal,
        group=local.group,
        marginal_predict=model.predict and predict,
        marginal_moments=None,
    )


def detached(
    scored: Scored, center: Float[np.ndarray, " param"], cov: Float[np.ndarray, "param param"]
) -> Scored:
    r"""The same with chains in which left-out effects stay where the full data had them.

    The posterior of the other parameters, φ, is the same whatever density q the left-out effects
    are given in place of their prior, as long as that has been integrated out:

    .. math:: p(\varphi, \lambda \mid y_\mathrm{train}) \;\to\;
              p(y_\mathrm{train} \mid \varphi) \, \int p(\varphi, \lambda') \, d\lambda' \;
              q(\lambda)

    With q the full-data posterior's normal approximation a fold is to its chains as the full data
    are. From their prior instead, which may be many times wider, effects would be drawn by a kernel
    that was tuned for narrow ones, and all that hangs on them with it. Only done where the prior is
    normal, whose integral is known, and much wider.

    Args:
        scored: of `choose`.
        center, cov: mean and covariance of the full-data posterior.
    """
    model, local = scored.model, scored.local
    if local is None or not local.normal or not _much_wider(model, local, center, cov):
        return scored
    log_prior = jax.jit(model.log_prior)
    size = len(center)
    all_entries = _with_nobody(local, size)
    padded = np.append(center, 0.0)
    wide = np.eye(size + 1)
    wide[:size, :size] = cov
    means = jnp.asarray(padded[all_entries])
    own = jnp.asarray(wide[all_entries[:, :, None], all_entries[:, None, :]])
    present_dims = jnp.asarray(all_entries < size)
    both = present_dims[:, :, None] & present_dims[:, None, :]
    roots = jnp.linalg.cholesky(jnp.where(both, own, jnp.eye(own.shape[1])))
    entries_of = jnp.asarray(all_entries)

    def fold_prior(params: Params, test: Int[Array, " slot"]) -> Float[Array, ""]:
        position, unravel = ravel_pytree(params)
        _, present = _groups_of(local, test)
        entries = entries_of[present]
        values = position.at[entries].get(mode="fill", fill_value=0.0)
        base = position.at[entries.ravel()].set(means[present].ravel(), mode="drop")

        def log_integral(entries: Int[Array, " dim"]) -> Float[Array, ""]:
            """Of the prior over a group's effects, over its value at their means."""

            def moved(x: Float[Array, " dim"]) -> Float[Array, ""]:
                penalty = jnp.sum(jnp.where(entries >= size, x**2, 0.0)) / 2
                return log_prior(unravel(base.at[entries].add(x, mode="drop"))) - penalty

            zero = jnp.zeros(entries.shape, position.dtype)
            slope, curvature = jax.grad(moved)(zero), -jax.hessian(moved)(zero)
            log_det = jnp.linalg.slogdet(curvature)[1]
            return (slope @ jnp.linalg.solve(curvature, slope) - log_det) / 2

        def log_q(value: Array, mean: Array, root: Array) -> Float[Array, ""]:
            return (
                -jnp.sum(jax.scipy.linalg.solve_triangular(root, value - mean, lower=True) ** 2) / 2
            )

        there = present < len(local.entries)
        integrals = jnp.where(there, _over_groups(log_integral, entries), 0.0)
        in_place = jnp.where(
            there, _over_groups(log_q, values, means[present], roots[present]), 0.0
        )
        return log_prior(unravel(base)) + integrals.sum() + in_place.sum()

    return scored._replace(model=model._replace(fold_prior=fold_prior))


def _with_nobody(local: Locals, size: int) -> Int[np.ndarray, "group dim"]:
    """The groups' parameters, and after them a group without any."""
    return np.concatenate([local.entries, np.full((1, local.entries.shape[1]), size)])


def _groups_of(
    local: Locals, test: Int[Array, " slot"]
) -> tuple[Int[Array, " slot"], Int[Array, " group"]]:
    """The group of each slot and those of the test set, both padded by the one without any."""
    nobody = len(local.entries)
    of_slot = jnp.where(test >= 0, jnp.asarray(local.group)[test], nobody)
    return of_slot, jnp.unique(of_slot, size=local.most + 1, fill_value=nobody)[:-1]


def _over_groups(function: Callable[..., Any], *arrays: Array) -> Any:
    """`function` of each group of a test set; a single one costs no vectorisation."""
    if len(arrays[0]) > 1:
        return jax.vmap(function)(*arrays)
    return jax.tree.map(lambda x: x[None], function(*(x[0] for x in arrays)))


def _much_wider(
    model: Model, local: Locals, center: Float[np.ndarray, " param"], cov: np.ndarray
) -> bool:
    """Is the prior of some group's effects, given the others, much wider than their posterior?"""
    unravel, position = _unravel(model), jnp.asarray(center)

    def precision(entries: Int[Array, " dim"]) -> Array:
        return -jnp.diag(
            jax.hessian(
                lambda x: model.log_prior(unravel(position.at[entries].add(x, mode="drop")))
            )(jnp.zeros(entries.shape, position.dtype))
        )

    found = np.asarray(jax.jit(jax.vmap(precision))(jnp.asarray(local.entries)))
    there = local.entries < len(center)
    posterior = np.diag(cov)[np.where(there, local.entries, 0)]
    return bool((there & (found * posterior < 1 / MUCH_WIDER**2)).any())


def _unravel(model: Model) -> Callable[[Position], Params]:
    """From the flat vector to named parameters."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    unravel: Callable[[Position], Params]
    _, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, shapes))
    return unravel


def _size(model: Model) -> int:
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return sum(int(np.prod(x.shape)) for x in shapes.values())


def _key_of(position: Position) -> Key[Array, ""]:
    """Random numbers that a position has for itself: the nodes of its integrals."""
    bits = jax.lax.bitcast_convert_type(position.astype(jnp.float32), jnp.uint32)
    odd = 2 * jnp.arange(position.size, dtype=jnp.uint32) + 1
    return jax.random.fold_in(jax.random.key(0), jnp.sum(bits * odd, dtype=jnp.uint32))


def _prior(
    model: Model, unravel: Any, position: Position, entries: Int[Array, " dim"]
) -> tuple[Function, Laplace]:
    """Log prior as a function of a group's own parameters, padded ones standard normal."""
    padded = entries >= position.size

    def log_prior(x: Float[Array, " dim"]) -> Float[Array, ""]:
        moved = unravel(position.at[entries].set(x, mode="drop"))
        return model.log_prior(moved) - jnp.sum(jnp.where(padded, x**2, 0.0)) / 2

    now = jnp.where(padded, 0.0, position[jnp.where(padded, 0, entries)])
    return log_prior, _laplace(log_prior, now)


def _integral(
    key: Key[Array, ""],
    log_prior: Function,
    terms: Callable[[Float[Array, " dim"]], Float[Array, " slot"]],
    prior: Laplace,
    normal: bool,
) -> Predictive:
    """Log of the mean of exp(terms) over the prior: of their sum, and of each."""
    posterior = _laplace(lambda x: log_prior(x) + jnp.sum(terms(x)), prior.mean)
    key, for_prior = jax.random.split(key)
    x, log_weight = _nodes(key, posterior, prior)
    log_density, at_nodes = jax.vmap(log_prior)(x) + log_weight, jax.vmap(terms)(x)
    total = prior.log_integral
    if not normal:
        y, of_prior = _nodes(for_prior, prior, None)
        total = jax.nn.logsumexp(jax.vmap(log_prior)(y) + of_prior)
    joint = jax.nn.logsumexp(log_density + at_nodes.sum(1))
    pointwise = jax.nn.logsumexp(log_density[:, None] + at_nodes, axis=0)
    return joint - total, pointwise - total


def _laplace(function: Function, start: Float[Array, " dim"]) -> Laplace:
    """Newton's method, safeguarded: curvatures by their absolute values, steps that never fall."""
    function, constants = jax.closure_convert(function, start)
    constants = jax.lax.stop_gradient(constants)  # nodes stay where they are

    def at(x: Float[Array, " dim"]) -> tuple[Array, Array, Array]:
        """The step to the maximum, the square of its length, and a root of the covariance."""
        slope = jnp.nan_to_num(jax.grad(function)(x, *constants))
        hessian = jnp.nan_to_num(-jax.hessian(function)(x, *constants))
        if x.size == 1:
            values, vectors = hessian[0], jnp.ones((1, 1), x.dtype)
        else:
            values, vectors = jnp.linalg.eigh(hessian)
        size = jnp.abs(values)
        root = vectors / jnp.sqrt(jnp.maximum(size, 1e-6 * jnp.max(size) + 1e-10))
        whitened = root.T @ slope
        return root @ whitened, whitened @ whitened, root

    def improve(carry: tuple) -> tuple:
        step, x, (direction, _, _) = carry
        tried = x + jnp.asarray(STEP_SIZES, x.dtype)[:, None] * direction
        values = jax.vmap(lambda x: function(x, *constants))(tried)
        x = tried[jnp.argmax(jnp.where(jnp.isnan(values), -jnp.inf, values))]
        return step + 1, x, at(x)

    def unsettled(carry: tuple) -> Bool[Array, ""]:
        step, _, (_, length, _) = carry
        return (step < MAX_STEPS) & (length > CLOSE)

    start = jax.lax.stop_gradient(start)
    _, mean, (_, left, root) = jax.lax.while_loop(unsettled, improve, (0, start, at(start)))
    log_det = jnp.linalg.slogdet(root)[1]
    peak = function(mean, *constants) + left / 2
    return Laplace(mean, root, peak + mean.size / 2 * jnp.log(2 * jnp.pi) + log_det)


def _nodes(
    key: Key[Array, ""], around: Laplace, wide: Laplace | None
) -> tuple[Float[Array, "node dim"], Float[Array, " node"]]:
    """Points, and log weights by which sums over them are integrals."""
    if around.mean.size > 1:
        return _sampled(key, around, wide)
    offset = jax.random.uniform(key, (), around.mean.dtype) - 0.5
    u = SPACING * (jnp.arange(NODES_1D) - NODES_1D // 2 + offset)
    sd = around.scale[0, 0]
    x = around.mean + (sd * jnp.sinh(BEND * u) / BEND)[:, None]
    return x, jnp.log(SPACING * sd * jnp.cosh(BEND * u))


def _sampled(
    key: Key[Array, ""], around: Laplace, wide: Laplace | None
) -> tuple[Float[Array, "node dim"], Float[Array, " node"]]:
    """Draws from a t distribution, and as many from a wider normal one, and their log weights."""
    dim, dtype = around.mean.size, around.mean.dtype
    number = NODES_PER_DIM * dim
    drawn = jax.random.normal(key, (number, dim + TAIL), dtype)
    z, chi_square = drawn[:, :dim], jnp.sum(drawn[:, dim:] ** 2, 1)
    tail = dist.MultivariateStudentT(TAIL, jnp.zeros(dim, dtype), jnp.eye(dim, dtype=dtype))
    near = around.mean + z * jnp.sqrt(TAIL / chi_square)[:, None] @ around.scale.T
    if wide is None:
        return near, -_log_density(tail, around, near) - jnp.log(float(number))
    bulk = dist.MultivariateNormal(jnp.zeros(dim, dtype), jnp.eye(dim, dtype=dtype))
    half = number // 2
    x = jnp.concatenate([near[:half], wide.mean + z[half:] @ wide.scale.T])
    both = jnp.logaddexp(_log_density(tail, around, x), _log_density(bulk, wide, x))
    return x, -both - jnp.log(float(half))


def _log_density(
    standard: dist.Distribution, at: Laplace, x: Float[Array, "node dim"]
) -> Float[Array, " node"]:
    z = (x - at.mean) @ jnp.linalg.inv(at.scale).T
    return standard.log_prob(z) - jnp.linalg.slogdet(at.scale)[1]
