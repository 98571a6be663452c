"""Batches of folds that fit in memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from pcv.analysis.results.numbers import in_bytes
from pcv.base.monitor import Monitor
from pcv.base.names import batch_names
from pcv.core import groups
from pcv.core.check import simulates
from pcv.core.problem import Problem, chain_model, check_scores, engine_of
from pcv.core.settings import CvConfig, Settings
from pcv.core.store import Step
from pcv.folds.base import Folds
from pcv.sampling import memory


def num_fold_batches(
    name: str,
    problem: Problem,
    fit: xr.DataTree,
    mcmc_folds: Folds,
    settings: Settings,
    run: Callable[..., Any],
) -> int:
    """The number of batches of folds, measured by `cut` where the settings leave it open."""
    if settings.cv.fold_batches != "auto":
        return settings.cv.fold_batches
    measured = run(Step("cut", name), cut, problem, fit, mcmc_folds, settings)
    return int(measured.attrs["fold_batches"])


def split(folds: Folds, number: int) -> dict[str, Folds]:
    """Split folds into batches, by their names."""
    places = np.array_split(np.arange(len(folds.id)), number)
    return {name: folds.some(some) for name, some in zip(batch_names(number), places)}


def cut(
    problem: Problem, fit: xr.DataTree, mcmc_folds: Folds, settings: Settings, monitor: Monitor
) -> xr.Dataset:
    """Measure how many batches of folds fit in memory.

    The memory of a block of draws is read off its compiled function.

    Args:
        problem: with all folds.
        fit: of the full data.
        mcmc_folds: the folds that need MCMC.
        cv: settings of the folds' chains.
        monitor: takes messages.

    Returns:
        The attribute ``fold_batches``, and bytes of a batch and of the machine.
    """
    if not len(mcmc_folds.id):
        monitor.log("the full-data fit suffices, no fold is sampled")
        return xr.Dataset(attrs={"fold_batches": 1})
    cv = settings.cv
    how = chain_model(problem, groups.tuned_fit(fit), monitor)
    check_scores(problem, how, mcmc_folds.test.shape[1])
    of_draws = problem.scores, None, cv.batch_size, simulates(problem)
    engine = engine_of(problem, how, *of_draws)
    first, machine = mcmc_folds.some(slice(1)), memory.of_devices()
    keeps = problem.keeps(settings, engine.num_params)
    measured: dict[int, memory.Step] = {}

    def share(num_folds: int) -> float:
        measured[num_folds] = memory.of_step(engine, first, cv.chains, num_folds, keeps)
        return measured[num_folds].host / machine.host  # a device holds one tile of any number

    number = memory.num_batches(len(mcmc_folds.id), share, cv.memory_share)
    most = -(-len(mcmc_folds.id) // number)
    if most not in measured:
        share(most)
    sizes = {
        f"{what}_{name}": int(x)
        for what, step in (("batch", measured[most]), ("machine", machine))
        for name, x in step._asdict().items()
    }
    _report(len(mcmc_folds.id), most, number, sizes, cv, monitor)
    return xr.Dataset(attrs={"fold_batches": number, **sizes})


def _report(
    num_folds: int, most: int, number: int, sizes: dict[str, int], cv: CvConfig, monitor: Monitor
) -> None:
    size = {name: in_bytes(x) for name, x in sizes.items()}
    batches = "one batch," if number == 1 else f"{number} batches of at most {most}, each"
    monitor.log(
        f"{num_folds} folds in {batches} {size['batch_host']} of {size['machine_host']} in the "
        f"machine's memory and {size['batch_device']} of {size['machine_device']} on each device"
    )
    if sizes["batch_device"] > cv.memory_share * sizes["machine_device"]:
        monitor.warn(
            f"a tile of chains takes more than the share {cv.memory_share:g} (cv.memory_share) of "
            "a device; smaller tiles are used if it does not fit"
        )
    if sizes["batch_host"] > cv.memory_share * sizes["machine_host"]:
        monitor.warn(
            f"even a batch of one fold takes more than the share {cv.memory_share:g} "
            "(cv.memory_share); use fewer cv.chains or a smaller cv.batch_size"
        )
