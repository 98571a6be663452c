"""Detecting and adapting folds whose posterior is unlike that of the full data."""

import numpy as np
from jaxtyping import Array, Bool, Float, Key

from pcv.base.monitor import Monitor
from pcv.folds.base import Folds
from pcv.sampling.fit.draws import REFUSED, autocorrelation
from pcv.sampling.fit.fit_checks import TARGETS
from pcv.sampling.fit.full_data import QUARTER, Fit
from pcv.sampling.folds import moving
from pcv.sampling.folds.moving import Own
from pcv.sampling.hmc import Pace
from pcv.sampling.kernel import whitened
from pcv.sampling.tiles import Engine, advance

ADAPTED = "adapted folds"
"""part of warmup, for its progress"""
MAX_RHO = 0.6
"""lag-1 autocorrelation of a fold's score above which its chains mix slowly"""
NEARLY = 0.3
"""tolerance, in powers of √2, for trajectories shorter than a quarter period"""
MAX_WIDER = 3
"""ratio of the variances of a fold's score, own to full-data draws, above which it is adapted"""
LEAST_ACCEPTED = 0.75
"""mean acceptance probability under the full-data kernel, over the fit's target or .8 if that is
higher, below which a fold is adapted"""
WINDOWS = (25, 50, 100)
"""lengths of the windows after which a fold's scales are updated"""
LAST_WINDOW, CHECKED = 50, 100
"""later draws for the final tuning of the step size, and then for checking it"""
TARGET_ACCEPT = 0.9
FIRST_STEP, MAX_STEPS = 0.5, 32.0
GAIN, LAST_GAIN = 0.3, 0.1
"""gains of the step-size adaptation"""
MAX_REFUSED = 0.002
"""share of refused proposals above which no single step size suits the fold's posterior"""
FINER, MOVES = 4, 16
"""divisor of the step size of such a fold, and its transitions per draw"""
PRIOR_DRAWS = 5
"""weight of the current scale, in draws, when it is updated"""


def autocorrelated(draws: Float[np.ndarray, "fold chain draw"]) -> Float[np.ndarray, " fold"]:
    """Lag-1 autocorrelation about the grand mean, so that chains that disagree count as slow: the
    larger of that of draws and of their ranks, as outliers mask it; NaN where no chain moved."""
    from scipy.stats import rankdata

    ranks = rankdata(draws.reshape(len(draws), -1), axis=1).reshape(draws.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.fmax(autocorrelation(draws), autocorrelation(ranks))


def needs_adapting(
    draws: Float[np.ndarray, "fold chain draw"],
    full: Float[np.ndarray, "fold full_draw"],
    accepted: Float[np.ndarray, " fold"],
    target_accept: float,
) -> Bool[np.ndarray, " fold"]:
    """Which folds are unlike the full data: the autocorrelation of their score is above .6, its
    variance is over three times that at full-data draws, or proposals are accepted with a mean
    probability below .6 (less if the fit's target is below .8, in proportion).

    Args:
        draws: of a score, from warmup with the full-data kernel.
        full: the same score at full-data draws, from `at_full_data`.
        accepted: mean acceptance probability of these draws.
        target_accept: of the fit.

    >>> walk = np.random.default_rng(1).normal(size=(3, 4, 50))
    >>> walk[1] = walk[1].cumsum(axis=1)
    >>> needs_adapting(walk, np.full((3, 100), np.inf), np.array([0.8, 0.8, 0.4]), 0.8)
    array([False,  True,  True])
    """
    with np.errstate(invalid="ignore"):
        wider = draws.var(axis=(1, 2)) > MAX_WIDER * full.var(axis=1)
        refuses = accepted < LEAST_ACCEPTED * min(target_accept, TARGETS[0])
        return (autocorrelated(draws) > MAX_RHO) | wider | refuses


def longer(draws: Float[np.ndarray, "fold chain draw"]) -> Float[np.ndarray, " fold"]:
    r"""Factor that lengthens trajectories to a quarter of the fold's own period, as a power of √2
    up to 2.

    .. math:: \frac{\pi / 2}{\arccos \rho}

    since the autocorrelation :math:`\rho` of a normal coordinate is the cosine of the phase.

    Args:
        draws: of a score.
    """
    rho = np.clip(np.nan_to_num(autocorrelated(draws)), 0.0, MAX_RHO)
    return np.exp2(np.ceil(2 * np.log2(QUARTER / np.arccos(rho)) - NEARLY) / 2)


def quarter_period(step_size: Float[np.ndarray, " fold"]) -> Float[np.ndarray, " fold"]:
    """Leapfrog steps for independent draws of a standard normal, at most 32; rounded to a power of
    √2 so that folds advance together.

    >>> quarter_period(np.array([0.01, 0.2, 0.5, 2.0])).round(1)
    array([32. ,  8. ,  2.8,  1. ])
    """
    steps = np.exp2(np.round(2 * np.log2(QUARTER / step_size)) / 2)
    return np.clip(steps, 1.0, MAX_STEPS)


def adapt(
    engine: Engine,
    root: Key[Array, ""],
    fit: Fit,
    folds: Folds,
    position: Float[np.ndarray, "fold chain param"],
    monitor: Monitor,
) -> tuple[Own, Float[np.ndarray, "fold chain param"], int]:
    r"""Adapt scales, step size and number of steps of folds, from short windows of their own draws.

    After each of three windows of growing length, the scale ratio :math:`d` of every whitened
    coordinate is set to the regularised standard deviation of the n pooled draws,

    .. math:: d_j^2 \leftarrow d_j^2 \, (n v_j + 5) / (n + 5)

    where :math:`v_j` is their variance in units of the current scale. (Scales need few draws
    whatever the number of parameters, unlike a covariance, and all chains share the full-data
    metric.) Within a window, the step size targets an acceptance rate of .9, or that of the fit if
    higher; a last window tunes it for the final scales. Trajectories last a quarter period, or are
    `longer`. Folds are adapted independently.

    At that acceptance rate, a normal posterior hardly ever refuses a proposal (acceptance below
    .02). If more than .2% are refused, in 100 further draws and the second halves of the two
    windows before, scales vary over the posterior, as in a funnel, whose neck chains rarely enter
    or leave. Such a fold gets a quarter of the step size and sixteen transitions per draw: new
    momenta, not long trajectories, move chains along a funnel.

    Args:
        engine, root, fit, folds, monitor: as for `warmup`.
        position: current positions of the chains.

    Returns:
        How the chains move, their positions, and the number of draws made.
    """
    num_folds, num_chains, num_params = position.shape
    target = max(TARGET_ACCEPT, fit.target_accept)
    step, scale_ratio = np.full(num_folds, FIRST_STEP), np.ones((num_folds, num_params))
    in_all = sum(WINDOWS) + LAST_WINDOW + CHECKED
    refused, looked_at, made, zero = np.zeros(num_folds), 0, 0, moving.uncentered(folds)

    for i, length in enumerate((*WINDOWS, LAST_WINDOW, CHECKED)):
        scores: list[np.ndarray] = []
        total, squares = np.zeros((2, num_folds, num_params))
        gain = 0.0 if i > len(WINDOWS) else LAST_GAIN if i == len(WINDOWS) else GAIN
        if 0 < i < len(WINDOWS):
            step = np.full(num_folds, FIRST_STEP)
        counted = length - length // 2 if i < len(WINDOWS) + 1 else length
        for first in range(0, length, engine.buffer):
            size = min(engine.buffer, length - first)
            own = Own(step, quarter_period(step), np.ones(num_folds, int), scale_ratio)
            state, chains, center = moving.of_chains(folds, own, moving.standing_at(position), zero)
            steps = np.repeat(own.num_steps, num_chains)
            pace = Pace(made, size, steps, 1, gain, target)
            at = root, fit.kernel, pace, state, chains, center, None, True
            state, drawn, made_of, _ = moving.in_memory(engine, advance, at, monitor)
            position = moving.by_fold(state.position, num_chains)
            step = np.exp(moving.by_fold(state.log_step_size, num_chains).mean(1)) if gain else step
            assert made_of is not None
            z = whitened(fit.kernel, drawn.position[:, :size]) / chains.scale_ratio[:, None]
            z = z.reshape(num_folds, num_chains * size, num_params)
            total, squares = total + z.sum(1), squares + (z**2).sum(1)
            if i >= len(WINDOWS) - 1:
                late = np.arange(first, first + size) >= length - counted
                low = (drawn.acceptance[:, :size] < REFUSED) & late
                refused += low.reshape(num_folds, -1).sum(1)
            made += size
            before = np.full(len(state.energy), np.nan)
            block = moving.block_of(drawn, made_of, before, num_chains, size, zero["shift"])
            moving.report(monitor, block, made, in_all, ADAPTED)
            scores.append(block.draws)
        looked_at += counted if i >= len(WINDOWS) - 1 else 0
        if i < len(WINDOWS):
            number = num_chains * length
            variance = squares / number - (total / number) ** 2
            wider = (number * variance + PRIOR_DRAWS) / (number + PRIOR_DRAWS)
            scale_ratio = scale_ratio * np.sqrt(wider)
    rough = refused > MAX_REFUSED * num_chains * looked_at
    num_steps = quarter_period(step)
    num_steps = np.where(rough, num_steps, num_steps * longer(np.concatenate(scores, 2)))
    own = Own(
        np.where(rough, step / FINER, step), num_steps, np.where(rough, MOVES, 1), scale_ratio
    )
    return own, position, made
