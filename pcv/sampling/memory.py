"""How many batches folds are cut into, so that the chains of a batch fit the memory there is."""

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from pcv.base.errors import PcvError
from pcv.base.process import all_cores
from pcv.base.programs.devices import in_use
from pcv.folds.base import Folds
from pcv.sampling.folds.moving import measured
from pcv.sampling.tiles import Engine

HOST_COPIES = 9
"""of the results of a block of draws, on the host: as they come, by fold, saved, and written; as
many as were seen with 25,148 chains of 390 parameters (benchmarks/radon_loo)"""
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Linux's control groups, and those that this process is in"""
LIMITS = {"": "memory.max", "memory": "memory.limit_in_bytes"}
"""controllers → file of the limit: in version 2 of control groups, and in version 1"""


class Step(NamedTuple):
    """Bytes that a block of draws takes, measured from its compiled programs."""

    device: int
    """on each device: arguments, results and what lies between them"""
    host: int
    """in the machine's memory: copies of the results, and on CPUs what the devices take"""


def of_step(engine: Engine, fold: Folds, num_chains: int, num_folds: int) -> Step:
    """What a block of draws of so many folds takes; programs are compiled, and none is run.

    Args:
        engine: of the model.
        fold: any one.
        num_chains: chains per fold.
        num_folds: folds that are sampled together.

    Raises:
        PcvError: JAX does not say for this kind of device.
    """
    found = measured(engine, fold)
    if found is None:
        raise PcvError(
            f"cv.fold_batches: auto: JAX's {jax.default_backend()} does not say what memory a step "
            "takes; give a number of batches"
        )
    copies = HOST_COPIES * num_folds * num_chains * found.chain
    on_host = in_use()[0].platform == "cpu"
    return Step(found.device, copies + on_host * len(in_use()) * found.device)


def of_devices() -> Step:
    """Bytes that there are: on each device, and in the machine as far as this process may go."""
    host = _of_host()
    limit = (in_use()[0].memory_stats() or {}).get("bytes_limit", host)
    return Step(limit, host)


def _of_host() -> int:
    """This process's part of the machine's memory, or of the container's that it is in.

    On CPUs as much of it as of the cores, for other jobs have the rest; no more than limits of the
    process, or of its job on a cluster, allow.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    groups = [int(text) for file in _limits() if (text := _content(file)).isdigit()]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    own = [] if soft == resource.RLIM_INFINITY else [soft]
    of_job = _of_slurm()
    if of_job:
        own.append(of_job)
    common, devices = min([machine, *groups]), in_use()
    if devices[0].platform == "cpu" and not of_job:
        common = common * min(len(devices), all_cores()) // all_cores()
    return min([common, *own])


def _of_slurm() -> int:
    """What a job of SLURM asked for on this node; 0 where it did not, or asked for all of it."""
    per_node, per_core, cores = (
        int(os.environ.get(f"SLURM_{name}") or 0)
        for name in ("MEM_PER_NODE", "MEM_PER_CPU", "CPUS_ON_NODE")
    )
    return (per_node or per_core * cores) * 2**20


def _limits() -> Iterator[Path]:
    """Files that may hold the limits of this process's control groups."""
    for line in _content(OWN_GROUPS).splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers in LIMITS:
            root = GROUPS / controllers
            own = root / place.lstrip("/")
            groups = (group for group in (own, *own.parents) if group.is_relative_to(root))
            yield from (group / LIMITS[controllers] for group in groups)


def _content(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def num_batches(num_folds: int, taken: Callable[[int], float], most: float) -> int:
    """The least number of batches, as far as a few measurements tell, whose largest fits.

    Args:
        num_folds: number of folds.
        taken: number of folds → share of the memory that their chains take.
        most: share that may be taken.

    >>> num_batches(1000, lambda folds: 0.1 + folds / 100, 0.5)
    25
    """
    number = 1
    while number < num_folds:
        now = taken(-(-num_folds // number))
        if now <= most:
            break
        number = min(max(number + 1, int(np.ceil(number * now / most))), num_folds)
    return number
