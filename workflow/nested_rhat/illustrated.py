r"""Figures 1, 3, 4 and 8: the Rosenbrock distribution, a normal one and a mixture of two.

The latter by BlackJAX's MALA, whose step :math:`\epsilon` is the time that the Langevin diffusion
of the paper's theorem 3.5 advances: the influence of the start on a normal mean decays as
:math:`e^{-T}`.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from nested_rhat.chains import advanced, fitted, starts
from nested_rhat.settings import Illustrated
from nested_rhat.targets import rosenbrock
from pcv.analysis.diagnostics.convergence import nested_rhat_of_moments, rhat_of_moments
from pcv.base.keys import key
from pcv.base.monitor import Monitor
from pcv.sampling.fit import full_data as fitting

STEP, TIME = 0.05, 6.0
MODES, SHARES = (-5.0, 5.0), (0.3, 0.7)
MOMENTS = {"normal": (0.0, 1.0), "mixture": (2.0, 22.0)}
"""mean and variance"""
START = (2.0, 3.0)
"""mean and standard deviation of starts in figures 3 and 4"""
TOTAL, SPLITS = 2048, (2, 8, 32, 128, 512, 1024)
"""chains, and numbers of superchains, of figure 4"""
LONGER, LONG_STEP = 10, 0.5
"""draws per chain, and step, in figure 4's right half"""
PER_SUPERCHAIN, TOLERATED, RELIABLE = 16, 0.1, 0.02
"""chains of each superchain in figure 8, δ and δ'"""
BIASES, VARIANCES = (0.0, 2.5), (0.03, 30.0)
"""of starts in figure 8, in standard deviations and variances of the target"""
WARMUP, DRAWS, CHAINS, STARTS = 100, 1000, 512, 4
"""of figure 1"""


def log_density(name: str, x: Any) -> Any:
    """Of the normal distribution or the mixture."""
    if name == "normal":
        return norm.logpdf(x)
    parts = jnp.stack([norm.logpdf(x, at) for at in MODES])
    return logsumexp(parts, b=jnp.array(SHARES))


def langevin[T](
    name: str,
    root: Any,
    begin: Float[Array, " chain"],
    steps: int,
    step: float,
    look: Callable[[Any], T],
) -> T:
    """What `look` sees of all chains after every transition, along a first axis."""
    mala = blackjax.mala(partial(log_density, name), step)

    def one(state: Any, key: Any) -> Any:
        keys = jax.random.split(key, len(begin))
        state, _ = jax.vmap(mala.step)(keys, state)
        return state, look(state.position)

    @jax.jit
    def run(root: Any, begin: Any) -> Any:
        return jax.lax.scan(one, jax.vmap(mala.init)(begin), jax.random.split(root, steps))[1]

    return run(root, begin)


def variances(settings: Illustrated, seed: int, root: Any) -> dict[str, tuple]:
    """Figure 3: of single chains, of means of independent ones, and of superchains."""
    number, chains = settings.superchains, settings.chains
    steps = round(TIME / STEP)
    rng = np.random.default_rng([seed, 1])
    found = []
    for name in MOMENTS:
        apart = START[0] + START[1] * rng.normal(size=(number, chains))
        together = np.repeat(START[0] + START[1] * rng.normal(size=(number, 1)), chains, axis=1)

        def spread(x: Any) -> Any:
            means = x.reshape(number, chains)
            return jnp.stack([means[:, 0].var(ddof=1), means.mean(1).var(ddof=1)])

        lone, nested = (
            np.asarray(
                langevin(name, root(f"{name} {i}"), jnp.asarray(x.ravel()), steps, STEP, spread)
            )
            for i, x in enumerate((apart, together))
        )
        found.append([lone[:, 0], lone[:, 1], nested[:, 1]])
    return {"variance": (("distribution", "kind", "time"), np.array(found))}


def ratios(settings: Illustrated, seed: int, root: Any) -> dict[str, tuple]:
    """Figure 4: the variance, over repeats, of nB/nW, in warmup and after it."""
    rng, steps = np.random.default_rng([seed, 2]), round(TIME / STEP)
    in_warmup, after = [], []
    for number in SPLITS:
        shape = settings.repeats, number, TOTAL // number
        begin = np.broadcast_to(START[0] + START[1] * rng.normal(size=(*shape[:2], 1)), shape)

        def ratio(x: Any, shape: tuple[int, ...] = shape) -> Any:
            x = x.reshape(shape)
            return (x.mean(2).var(1, ddof=1) / x.var(2, ddof=1).mean(1)).var(ddof=1)

        of = root(f"{number} superchains"), jnp.asarray(begin.ravel())
        in_warmup.append(np.asarray(langevin("normal", *of, steps, STEP, ratio)))
        still = jnp.asarray(rng.normal(size=begin.size))
        of = root(f"{number} superchains, stationary"), still
        draws = np.asarray(langevin("normal", *of, LONGER, LONG_STEP, lambda x: x))
        after.append([_ratio(draws[:n], shape).var(ddof=1) for n in range(1, LONGER + 1)])
    return {
        "ratio_variance": (("split", "time"), np.array(in_warmup)),
        "stationary_ratio_variance": (("split", "draws"), np.array(after)),
    }


def _ratio(draws: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """nB/nW of every repeat."""
    repeats, number, _ = shape
    x = draws.reshape(len(draws), repeats, -1, 1)
    mean, m2 = x.mean(0), ((x - x.mean(0)) ** 2).sum(0)
    count = np.full_like(mean, len(draws))
    return nested_rhat_of_moments(count, mean, m2, number)[:, 0] ** 2 - 1


def reliability(settings: Illustrated, seed: int, root: Any) -> dict[str, tuple]:
    """Figure 8: whether chains whose nB/nW first is at most δ have a squared bias of at most δ'."""
    number, steps = settings.superchains, round(TIME / STEP)
    biases = np.linspace(*BIASES, settings.grid)
    spreads = np.geomspace(*VARIANCES, settings.grid)
    rng, found = np.random.default_rng([seed, 3]), []
    for name, (mean, variance) in MOMENTS.items():
        of_starts = rng.normal(size=(settings.grid, settings.grid, number, 1))
        at = biases[:, None, None, None] + np.sqrt(spreads)[:, None, None] * of_starts
        shape = (settings.grid, settings.grid, number, PER_SUPERCHAIN)
        begin = np.broadcast_to(mean + np.sqrt(variance) * at, shape)

        def look(x: Any, shape: tuple[int, ...] = shape) -> Any:
            x = x.reshape(shape)
            return x.mean(3).var(2, ddof=1) / x.var(3, ddof=1).mean(2), x.mean((2, 3))

        made = langevin(
            name, root(f"{name}, reliability"), jnp.asarray(begin.ravel()), steps, STEP, look
        )
        ratio, means = (np.asarray(x) for x in made)
        passes = ratio <= TOLERATED
        first = passes.argmax(0)[None]
        off = np.take_along_axis(means, first, 0)[0] - mean
        found.append(~passes.any(0) | (off**2 <= RELIABLE * variance))
    return {
        "reliable": (("distribution", "bias", "spread"), np.array(found)),
        "bias": ("bias", biases),
        "spread": ("spread", spreads),
    }


def motivating(seed: int, root: Any, results: Path) -> dict[str, tuple]:
    """Figure 1: squared error of the mean of θ₁, and R-hats, over draws after warmup."""
    example = rosenbrock(results)
    engine = fitting.engine_of(example.target, 1, 20_000)
    fit = fitted(engine, root("fit"), 20_000)
    rng = np.random.default_rng([seed, 4])
    begin = [starts(rng, fit, 1, number, CHAINS) for number in (CHAINS, STARTS)]
    names, stops = ("apart", "superchains"), (WARMUP, WARMUP + DRAWS)
    made = advanced(engine, fit, root("sample"), names, np.concatenate(begin), stops, True)
    kept = [block[..., 0] for done, _, block in made if block is not None and done > WARMUP]
    draws = np.concatenate(kept, axis=2)
    points = np.unique(np.geomspace(1, DRAWS, 60).round().astype(int))
    assert example.variance is not None
    variance = example.variance[0]
    rows: dict[str, list[float]] = {
        name: [] for name in ("error_few", "error_many", "rhat_few", "rhat_many", "nested_rhat")
    }
    for n in points.tolist():
        x = draws[:, :, :n]
        mean, m2 = x.mean(2)[..., None], x.var(2)[..., None] * n
        count = np.full_like(mean, n)
        few = (count[:1, :STARTS], mean[:1, :STARTS], m2[:1, :STARTS])
        rows["error_few"].append(mean[0, :STARTS].mean() ** 2 / variance)
        rows["error_many"].append(mean[0].mean() ** 2 / variance)
        rows["rhat_few"].append(rhat_of_moments(*few)[0, 0])
        rows["rhat_many"].append(rhat_of_moments(count[:1], mean[:1], m2[:1])[0, 0])
        found = nested_rhat_of_moments(count[1:], mean[1:], m2[1:], STARTS)
        rows["nested_rhat"].append(found[0, 0])
    return {"point": ("point", points), **{name: ("point", x) for name, x in rows.items()}}


def illustrate(settings: Illustrated, seed: int, results: Path, monitor: Monitor) -> xr.Dataset:
    """All of them, as arrays."""
    root = partial(key, seed)
    made: dict[str, tuple] = {}
    for part in (variances, ratios, reliability):
        made |= part(settings, seed, partial(root, part.__name__))
        monitor.log(part.__name__)
    made |= motivating(seed, partial(root, "motivating"), results)
    times = STEP * np.arange(1, round(TIME / STEP) + 1)
    coords = {"distribution": list(MOMENTS), "split": list(SPLITS), "time": times}
    bound = {"per_superchain": PER_SUPERCHAIN, "tolerated": TOLERATED, "reliable": RELIABLE}
    return xr.Dataset(made, coords, bound)
