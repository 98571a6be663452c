"""A loop over folds, as one would write it: nutpie, NumPyro, and the paper's sampler for all folds.

Each takes 4 chains of 400 draws for every fold, as many as pcv's default 8 of 200, and is compiled
once: nutpie is given every fold's data in turn, NumPyro a mask. The paper's sampler warms up for as
many draws as for the paper's first two examples. Scores of left-out groups are by their effects as
the chains draw them.
"""

import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from benchmarks.problems import Columns, InNumPyro, InPyMC, Problem, Written, log_lik, write
from pcv.base.process import all_cores
from pcv.folds.base import Folds, train_mask

CHAINS, WARMUP, DRAWS = 4, 400, 400
PAPER_WARMUP = 1000
SEED = 1


class Scores(NamedTuple):
    """Log predictive densities of what was left out, and when they were there."""

    log_score: np.ndarray
    """(fold, chain, draw)"""
    first: float
    """seconds until the first fold was done, compiling included; without folds: until all were"""
    rest: float
    """seconds of the others"""


def sides_of(problem: Problem) -> tuple[Columns, Folds, np.ndarray]:
    """Data, all folds, and which of them a loop is timed on."""
    data = problem.table()
    folds = problem.folds(data)
    looped = min(problem.looped, len(folds.id))
    return data, folds, np.linspace(0, len(folds.id) - 1, looped).astype(int)


def by_nutpie(problem: Problem, model: Written) -> Scores:
    import nutpie
    import pymc as pm

    data, folds, some = sides_of(problem)
    train = train_mask(folds.some(some), len(data["y"]))
    begun = time.perf_counter()
    with pm.Model() as made:
        write(InPyMC(), model, {name: pm.Data(name + "_", x) for name, x in data.items()})
    compiled = nutpie.compile_pymc_model(made)
    shared = {variable.name for variable in compiled.shared_var_keys}
    used = {name: x for name, x in data.items() if name + "_" in shared}
    at, scores = [], []
    for mask, test in zip(train, folds.test[some]):
        found = nutpie.sample(
            compiled.with_data(**{name + "_": x[mask] for name, x in used.items()}),
            chains=CHAINS,
            tune=WARMUP,
            draws=DRAWS,
            cores=all_cores(),
            seed=SEED + len(scores),
            progress_bar=False,
        ).posterior
        theta = {k: x.to_numpy().reshape(CHAINS * DRAWS, *x.shape[2:]) for k, x in found.items()}
        scores.append(_left_out(model, theta, data, test))
        at.append(time.perf_counter() - begun)
    return Scores(np.stack(scores), at[0], at[-1] - at[0])


def by_numpyro(problem: Problem, model: Written) -> Scores:
    """A fold for every core at one time. `MCMC.run` alone would compile anew for every fold."""
    import jax
    import numpyro
    from numpyro.infer import MCMC, NUTS

    data, folds, some = sides_of(problem)
    train = train_mask(folds.some(some), len(data["y"]))
    numpyro.set_host_device_count(all_cores())
    begun = time.perf_counter()
    with jax.enable_x64(True):

        def of_fold(key: Any, mask: Any) -> Any:
            sampler = MCMC(
                NUTS(lambda: write(InNumPyro(mask), model, data)),
                num_warmup=WARMUP,
                num_samples=DRAWS,
                num_chains=CHAINS,
                chain_method="sequential",
                progress_bar=False,
            )
            sampler.run(key)
            return sampler.get_samples()

        run = jax.pmap(of_fold)
        at, scores = [], []
        for first in range(0, len(some), all_cores()):
            at_once = np.minimum(np.arange(first, first + all_cores()), len(some) - 1)
            keys = jax.vmap(jax.random.key)(SEED + at_once)
            found = jax.tree.map(np.asarray, run(keys, train[at_once]))
            for i, fold in enumerate(at_once[: len(some) - first]):
                theta = {name: x[i] for name, x in found.items()}
                scores.append(_left_out(model, theta, data, folds.test[some[fold]]))
                at.append(time.perf_counter() - begun)
    return Scores(np.stack(scores), at[0], at[-1] - at[0])


def by_paper(problem: Problem, model: Written, double: bool = True) -> Scores:
    """Fixed-length HMC for all folds and chains at once (PCV, appendix D.1): NUTS on the full data
    tunes step size and a diagonal metric and gives starts; every fold has a mask over all units."""
    import blackjax
    import jax
    import jax.numpy as jnp
    from numpyro import handlers
    from numpyro.infer.util import initialize_model, log_density

    data, folds, _ = sides_of(problem)
    train, test = train_mask(folds, len(data["y"])), folds.test
    begun = time.perf_counter()
    with jax.enable_x64(double):
        on_device = jax.tree.map(jnp.asarray, data)
        start, potential, constrain, _ = initialize_model(
            jax.random.key(0),
            lambda mask: write(InNumPyro(mask), model, on_device),
            model_args=(jnp.ones(len(data["y"]), bool),),
            dynamic_args=True,
        )

        def log_dens(z: Any, mask: Any) -> Any:
            return -potential(mask)(z)

        def log_pred(z: Any, mask: Any, left: Any) -> Any:
            theta = constrain(mask)(z)
            of_test = InNumPyro(jnp.zeros_like(mask).at[left].set(left >= 0))
            rows = partial(write, of_test, model, on_device)
            alone = handlers.block(handlers.substitute(rows, theta), expose=["y"])
            return log_density(alone, (), {}, {})[0]

        key = jax.random.key(SEED)
        tuned, kernel = _tuned(log_dens, start.z, jnp.ones(len(data["y"]), bool), key)

        def one_chain(key: Any, z: Any, mask: Any, left: Any, number: int) -> Any:
            hmc = blackjax.hmc(partial(log_dens, mask=mask), **kernel)

            def step(state: Any, key: Any) -> Any:
                state, _ = hmc.step(key, state)
                return state, log_pred(state.position, mask, left)

            state, scores = jax.lax.scan(step, hmc.init(z), jax.random.split(key, number))
            return state.position, scores

        over = jax.vmap(jax.vmap(one_chain, (0, 0, None, None, None)), (0, 0, 0, 0, None))
        sampler = jax.jit(over, static_argnums=4)
        shape = (len(folds.id), CHAINS)
        picked = jax.random.randint(key, shape, 0, jax.tree.leaves(tuned)[0].shape[0])
        z = jax.tree.map(lambda x: x[picked], tuned)
        for number in (PAPER_WARMUP, DRAWS):
            key, now = jax.random.split(key)
            keys = jax.random.split(now, shape)
            z, scores = sampler(keys, z, train, test, number)
        found = np.asarray(scores)
    return Scores(found, time.perf_counter() - begun, 0.0)


def _tuned(log_dens: Any, start: Any, everything: Any, key: Any) -> tuple[Any, dict[str, Any]]:
    """Draws of the full data, and the kernel for folds: trajectories of NUTS's median length."""
    import blackjax
    import jax
    import jax.numpy as jnp

    full = partial(log_dens, mask=everything)

    @jax.jit
    def run(key: Any) -> Any:
        first, then = jax.random.split(key)
        warmup = blackjax.window_adaptation(blackjax.nuts, full)
        (state, found), _ = warmup.run(first, start, num_steps=PAPER_WARMUP)
        nuts = blackjax.nuts(full, **found)

        def step(state: Any, key: Any) -> Any:
            state, info = nuts.step(key, state)
            return state, (state.position, info.num_integration_steps)

        _, (z, steps) = jax.lax.scan(step, state, jax.random.split(then, DRAWS))
        return z, steps, found["step_size"], found["inverse_mass_matrix"]

    z, steps, size, metric = jax.vmap(run)(jax.random.split(key, CHAINS))
    length = max(int(jnp.median(steps) / 2), 1)  # NUTS goes both ways
    kernel = {
        "step_size": size.mean(),
        "inverse_mass_matrix": metric.mean(0),
        "num_integration_steps": length,
    }
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), z), kernel


def _left_out(model: Written, theta: Columns, data: Columns, test: np.ndarray) -> np.ndarray:
    """Joint log scores, (chain, draw)."""
    rows = {name: x[test[test >= 0]] for name, x in data.items()}
    return log_lik(model, theta, rows).sum(1).reshape(CHAINS, DRAWS)


def elpd(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each fold the log of the mean density, and its error by the ESS of the densities."""
    import arviz_stats

    flat = scores.reshape(len(scores), -1)
    found = logsumexp(flat, axis=1) - np.log(flat.shape[1])
    density = np.exp(scores - scores.max(axis=(1, 2), keepdims=True))
    ess = np.array([arviz_stats.ess(x, method="mean") for x in density])
    flat = density.reshape(len(scores), -1)
    return found, flat.std(axis=1) / flat.mean(axis=1) / np.sqrt(ess)
