r"""The full-data posterior by a normal approximation q, corrected by importance weights.

A draw θ from q has the weight :math:`p(\theta \mid y) / q(\theta)`, Pareto-smoothed. The shape of
the tail of these weights, k-hat, tells whether q is near enough to the posterior.

- laplace: normal at the mode, with the inverse of the negative Hessian as its covariance;
- normal: the nearest of all normal distributions by KL(q‖p), from the Laplace approximation on;
- pathfinder: the nearest on the way to a mode, by the curvature seen on that way (Zhang, Carpenter,
  Gelman, Vehtari 2022);
- multipathfinder: those of several ways together.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from pcv.analysis.diagnostics import good_k
from pcv.analysis.evidence import Estimate, evidence
from pcv.base.errors import PcvError
from pcv.compile import programs
from pcv.models.model import Target, full_data
from pcv.sampling.fit import fit_checks
from pcv.sampling.fit.draws import MIN_ESS, Draws, mixing
from pcv.sampling.fit.full_data import untuned
from pcv.sampling.fit.posterior import Posterior
from pcv.sampling.fit.surrogates import smoothed

CHAINS = 4
"""into which independent draws are divided"""
AT_ONCE = 20
"""densities, or products with the Hessian, evaluated side by side"""
RADIUS, TRIALS = 2.0, 20
"""starting points: uniform on (-2, 2), and how many are tried"""
CLIMBS, FAR, LOWER = 2, 5.0, 5.0
"""pairs of opposite points from which L-BFGS climbs, beside the origin; a mode so many posterior
standard deviations from the highest, and at most so many nats below, counts as another"""
NEWTON, SMALL = 20, 1e-4
"""most Newton steps after L-BFGS; and the step, in posterior standard deviations, that ends them"""
STEPS, RATE, SAMPLES = 1000, 0.01, 10
"""of the nearest normal distribution: gradient steps, their size, and draws for each"""
MAX_LOST = 0.1
"""share of draws without a finite density that is tolerated"""
WIDER = 0.5
"""by which its variances are raised, over the square root of the number of parameters, as KL(q‖p)
finds what is too narrow, and its weights have a heavy tail; costs an eighth of the draws"""
PATHS, ITERATIONS, FOR_ELBO = 8, 200, 50
"""of Pathfinder: ways, L-BFGS steps of each, and draws by which approximations are judged"""


class _From(NamedTuple):
    """Draws of an approximation."""

    position: Float[Array, "draw param"]
    log_q: Float[Array, " draw"]


LogDensity = Callable[[Float[Array, " param"]], Float[Array, ""]]


def approximate(
    target: Target,
    num_units: int,
    names: list[str],
    root: Key[Array, ""],
    how: str,
    total: int,
) -> Posterior:
    """Weighted draws of the full-data posterior, and a kernel for its folds.

    Args:
        target: the model on flat parameters.
        num_units: number of units.
        names: of the parameters.
        root: key of the seed, the model and the stage.
        how: laplace, normal, pathfinder or multipathfinder.
        total: number of draws, rounded up.

    Returns:
        A fit whose checks name k-hat as a problem if the approximation is too far off.

    Raises:
        PcvError: the posterior has no mode that can be found, or none with a normal approximation.
    """
    position, lp, ratio = _weighted(target, num_units, names, root, how, total)
    lost = ~np.isfinite(ratio)
    _check_lost(lost, how)
    position[lost], lp[lost] = position[~lost][0], lp[~lost][0]
    log_weight, khat = _smoothed(ratio)
    return _posterior(position, lp, log_weight, khat, how, names)


def laplace_evidence(
    target: Target, num_units: int, names: list[str], root: Key[Array, ""], total: int
) -> tuple[Estimate, float]:
    r"""Log of the mean of Pareto-smoothed weights :math:`p(\theta, y) / q(\theta)` of draws from
    the Laplace approximation q, and their k-hat; arguments as for `approximate`."""
    *_, ratio = _weighted(target, num_units, names, root, "laplace", total)
    lost = ~np.isfinite(ratio)
    _check_lost(lost if lost.all() else lost & ~np.isneginf(ratio), "laplace")  # 0 weighs nothing
    log_weight, khat = _smoothed(ratio)
    return evidence(log_weight + ratio[np.isfinite(ratio)].max()), khat


def _weighted(
    target: Target, num_units: int, names: list[str], root: Key[Array, ""], how: str, total: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws of an approximation, the posterior's log density there, and the log ratio of both."""
    everything = full_data(num_units)

    def log_density(x: Float[Array, " param"]) -> Float[Array, ""]:
        return target.log_density(x, everything)

    start, draw = jax.random.split(root)
    total = -(-total // (CHAINS * PATHS)) * CHAINS * PATHS
    made = {"laplace": _laplace, "normal": _normal}.get(how)
    if made is not None:
        found = made(log_density, start, draw, names, total)
    else:
        ways = PATHS if how == "multipathfinder" else 1
        found = _pathfinder(log_density, start, draw, len(names), ways, total)
    log_p = programs.shared(lambda x: jax.lax.map(log_density, x, batch_size=AT_ONCE))
    lp = np.asarray(log_p(found.position), float)
    mixed = np.random.default_rng(0).permutation(total)  # draws of several ways
    position = np.array(found.position)
    ratio = np.where(np.isfinite(position).all(1), lp - np.asarray(found.log_q), np.nan)
    return position[mixed], lp[mixed], ratio[mixed]


def _check_lost(lost: Bool[np.ndarray, " draw"], how: str) -> None:
    if lost.mean() > MAX_LOST:
        raise PcvError(
            f"{how}: the density is not finite at {lost.sum()} of {lost.size} draws of the "
            "approximation; leave fit.approximation out"
        )


def _smoothed(ratio: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto-smoothed log weights, below 0 by the largest ratio, and k-hat; of draws without a
    finite density, weights of 0."""
    lost = ~np.isfinite(ratio)
    finite = np.where(lost, ratio[~lost].min() - 100.0, ratio)
    log_weight, khat = (np.asarray(x)[..., 0] for x in smoothed(jnp.asarray(finite)[:, None]))
    return log_weight, float(khat)


def _posterior(
    position: np.ndarray,
    lp: np.ndarray,
    log_weight: np.ndarray,
    khat: float,
    how: str,
    names: list[str],
) -> Posterior:
    share = np.exp(log_weight - log_weight.max())
    share /= share.sum()
    size = 1 / np.sum(share**2)
    by_chain = (CHAINS, len(lp) // CHAINS)
    nothing = np.full(by_chain, np.nan)
    draws = Draws(
        position.reshape(*by_chain, -1),
        lp.reshape(by_chain),
        nothing,
        nothing,
        np.zeros(by_chain, int),
        np.zeros(by_chain, bool),
    )
    problems, warnings = [], []
    limit = float(good_k(lp.size))
    flat = np.isnan(khat) and size > 0.99 * lp.size  # no tail to speak of
    if not (khat <= limit or flat):
        problems.append(
            f"k-hat of the approximation ({how}) is {khat:.2f}, above {limit:.2f}: it is too far "
            "from the posterior; try another fit.approximation, or leave it out"
        )
    if size < MIN_ESS:
        warnings.append(f"the weights of the approximation leave {size:.0f} effective draws")
    rng = np.random.default_rng(0)
    equal = position[rng.choice(lp.size, lp.size, p=share)]
    ess = np.full(len(names), size)
    efmi = np.full(CHAINS, np.nan)
    checks = fit_checks.Checks(mixing(draws.position).rhat, ess, efmi, 0, problems, warnings)
    accept = fit_checks.TARGETS[0]
    return Posterior(untuned(draws, equal, size, accept, log_weight.reshape(by_chain)), checks)


def _laplace(
    log_density: LogDensity, start: Array, draw: Array, names: list[str], total: int
) -> _From:
    mode, root = _at_mode(log_density, start, names)
    return _of_normal(mode, root, draw, total)


def _of_normal(
    center: Float[Array, " param"], root: Float[Array, "param param"], draw: Array, total: int
) -> _From:
    z = jax.random.normal(draw, (total, len(center)), center.dtype)
    log_normal = -0.5 * jnp.sum(z**2 + np.log(2 * np.pi), axis=1)
    log_q = log_normal - jnp.linalg.slogdet(root)[1]
    return _From(center + z @ root.T, log_q)


class _Mode(NamedTuple):
    """A maximum of the density."""

    x: Float[np.ndarray, " param"]
    value: float
    """negative log density"""
    root: Float[np.ndarray, "param param"]
    """of the inverse of the negative Hessian"""

    def sds(self, x: np.ndarray) -> float:
        """Return the distance of a point, in standard deviations of the normal approximation."""
        return float(np.linalg.norm(np.linalg.solve(self.root, x - self.x)))


def _at_mode(
    log_density: LogDensity, start: Array, names: list[str]
) -> tuple[Float[Array, " param"], Float[Array, "param param"]]:
    """The highest mode of those that climbs from several points reach, and a root of the inverse of
    the negative Hessian there.

    Raises:
        PcvError: the density has no mode with a curvature, or climbs find another as high.
    """
    from scipy.optimize import minimize

    both = programs.shared(jax.value_and_grad(log_density))
    slope = jax.grad(log_density)

    def negative_hessian(x: Float[Array, " param"]) -> Float[Array, "param param"]:
        def along(direction: Float[Array, " param"]) -> Float[Array, " param"]:
            return -jax.jvp(slope, (x,), (direction,))[1]

        return jax.lax.map(along, jnp.eye(len(x), dtype=x.dtype), batch_size=AT_ONCE)

    hessian = programs.shared(negative_hessian)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = (np.asarray(y, float) for y in both(jnp.asarray(x)))
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return np.inf, np.zeros_like(x)
        return -float(value), -gradient

    def polished(x: np.ndarray) -> _Mode:
        for _ in range(NEWTON):
            value, gradient = objective(x)
            curvature = np.asarray(hessian(jnp.asarray(x)), float)
            scale = np.sqrt(np.maximum(np.abs(np.diagonal(curvature)), 1e-300))
            even = (curvature + curvature.T) / 2 / scale / scale[:, None]
            values, vectors = np.linalg.eigh(even)
            worst = int(np.argmax(np.abs(vectors[:, 0])))
            if not values[0] > 1e-10:
                raise PcvError(
                    f"the posterior has no normal approximation at its mode: it is flat or rising "
                    f"in '{names[worst]}'; leave fit.approximation out"
                )
            along = vectors.T @ (gradient / scale)
            step = vectors @ (along / values) / scale
            if float(np.sqrt(np.sum(along**2 / values))) < SMALL:
                return _Mode(x, value, vectors / np.sqrt(values) / scale[:, None])
            length = 1.0
            while objective(x - length * step)[0] > value and length > 1e-3:
                length /= 2
            x = x - length * step
        raise PcvError(
            f"no mode of the posterior was found, perhaps as it has none (at the last, "
            f"'{names[worst]}' was {x[worst]:.3g}); leave fit.approximation out"
        )

    firsts = [_usable(log_density, start, len(names), at_origin=True)]
    for climb in range(1, CLIMBS + 1):
        with suppress(PcvError):
            first = _usable(log_density, jax.random.fold_in(start, climb), len(names))
            firsts += [first, -first]
    modes: list[_Mode] = []
    errors: list[PcvError] = []
    for first in firsts:
        top = minimize(objective, first, jac=True, method="L-BFGS-B", options={"maxiter": 2000}).x
        if not np.isfinite(objective(top)[0]) or any(mode.sds(top) < FAR for mode in modes):
            continue
        try:
            modes.append(polished(top))
        except PcvError as error:  # flat there, or unbounded
            errors.append(error)
    if not modes:
        raise errors[0]
    highest = min(modes, key=lambda mode: mode.value)
    for mode in modes:
        if mode.value - highest.value < LOWER and highest.sds(mode.x) > FAR:
            most = int(np.argmax(np.abs(mode.x - highest.x)))
            raise PcvError(
                f"the posterior has no single mode: it is about as high at '{names[most]}' = "
                f"{mode.x[most]:.3g} as at {highest.x[most]:.3g}; leave fit.approximation out"
            )
    return jnp.asarray(highest.x), jnp.asarray(highest.root)


def _usable(
    log_density: LogDensity, key: Array, num_params: int, at_origin: bool = False
) -> Float[np.ndarray, " param"]:
    """A starting point with finite density and gradient."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    both = programs.shared(jax.value_and_grad(log_density))
    for trial in range(TRIALS):
        x = rng.uniform(-RADIUS, RADIUS, num_params) * (trial > 0 or not at_origin)
        value, gradient = both(jnp.asarray(x))
        if np.isfinite(value) and np.isfinite(gradient).all():
            return x
    raise PcvError(f"the density is not finite at any of {TRIALS} starting points")


def _normal(
    log_density: LogDensity, start: Array, draw: Array, names: list[str], total: int
) -> _From:
    """In coordinates in which the Laplace approximation is standard normal, where it begins."""
    import optax
    from blackjax.vi import fullrank_vi

    mode, root = _at_mode(log_density, start, names)

    def whitened(z: Float[Array, " param"]) -> Float[Array, ""]:
        return log_density(mode + root @ z)

    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, STEPS))

    def fitted(key: Array) -> tuple[Array, Array]:
        def step(state: fullrank_vi.FRVIState, key: Array) -> tuple[fullrank_vi.FRVIState, None]:
            return fullrank_vi.step(key, state, whitened, optimizer, SAMPLES)[0], None

        first = fullrank_vi.init(mode, optimizer)
        last, _ = jax.lax.scan(step, first, jax.random.split(key, STEPS))
        return last.mu, last.chol_params

    mean, flat = programs.shared(fitted)(jax.random.fold_in(start, 1))
    size = len(names)
    lower = jnp.diag(jnp.exp(flat[:size])).at[jnp.tril_indices(size, -1)].set(flat[size:])
    wide = np.sqrt(1 + WIDER / np.sqrt(size))
    return _of_normal(mode + root @ mean, root @ lower * wide, draw, total)


def _pathfinder(
    log_density: LogDensity, start: Array, draw: Array, num_params: int, ways: int, total: int
) -> _From:
    from blackjax.vi import pathfinder

    def of_way(keys: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        first, search, last = keys
        state, _ = pathfinder.approximate(
            search, log_density, first, num_samples=FOR_ELBO, maxiter=ITERATIONS
        )
        return pathfinder.sample(last, state, total // ways)

    each = [jax.random.fold_in(start, way) for way in range(ways)]
    first = jnp.asarray([_usable(log_density, key, num_params) for key in each])
    searches = jax.random.split(jax.random.fold_in(start, ways), ways)
    keys = first, searches, jax.random.split(draw, ways)
    position, log_q = programs.shared(lambda keys: jax.lax.map(of_way, keys))(keys)
    return _From(position.reshape(-1, num_params), log_q.reshape(-1))
