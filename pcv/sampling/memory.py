"""The number of fold batches whose chains fit the available memory."""

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from pcv.analysis.kept import NONE, Keeps
from pcv.base.devices import in_use
from pcv.base.errors import PcvError, setting
from pcv.base.process import all_cores
from pcv.folds.base import Folds
from pcv.sampling.folds.moving import measured
from pcv.sampling.tiles import Engine

HOST_COPIES = 9
"""host copies of a block's results (raw, by fold, saved, written), measured with 25,148 chains of
390 parameters (benchmarks/radon_loo)"""
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Linux control groups, and those of this process"""
LIMITS = {"": "memory.max", "memory": "memory.limit_in_bytes"}
"""controllers → file with the limit, for cgroups v2 and v1"""


class Step(NamedTuple):
    """Memory of a block of draws in bytes, from its compiled programs."""

    device: int
    """per device: arguments, results and temporaries"""
    host: int
    """host: copies of the results and, on CPUs, the memory of the devices"""


def of_step(
    engine: Engine, fold: Folds, num_chains: int, num_folds: int, keeps: Keeps = NONE
) -> Step:
    """Memory of a block of draws; compiles the programs but does not run them.

    Args:
        engine: of the model.
        fold: any single fold.
        num_chains: chains per fold.
        num_folds: folds sampled together.
        keeps: how many draws each chain keeps.

    Raises:
        PcvError: JAX does not report memory use for this kind of device.
    """
    found = measured(engine, fold, keeps)
    if found is None:
        raise PcvError(
            f"{setting('cv', 'fold_batches', value='auto')}: JAX does not report memory use on "
            f"{jax.default_backend()}; give a number of batches"
        )
    copies = HOST_COPIES * num_folds * num_chains * found.chain
    on_host = in_use()[0].platform == "cpu"
    return Step(found.device, copies + on_host * len(in_use()) * found.device)


def of_devices() -> Step:
    """Available memory in bytes: per device, and on the host for this process."""
    host = _host_memory()
    limit = (in_use()[0].memory_stats() or {}).get("bytes_limit", host)
    return Step(limit, host)


def _host_memory() -> int:
    """This process's share of the memory of the machine or container.

    On CPUs, the share of cores in use, since other jobs may run on the rest; at most the limits of
    the process and of its cluster job.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    groups = [int(text) for file in _limits() if (text := _text(file)).isdigit()]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    own = [] if soft == resource.RLIM_INFINITY else [soft]
    slurm = _slurm_memory()
    if slurm:
        own.append(slurm)
    common, devices = min([machine, *groups]), in_use()
    if devices[0].platform == "cpu" and not slurm:
        common = common * min(len(devices), all_cores()) // all_cores()
    return min([common, *own])


def _slurm_memory() -> int:
    """Bytes requested by the SLURM job on this node; 0: none, or all of it."""
    per_node, per_core, cores = (
        int(os.environ.get(f"SLURM_{name}") or 0)
        for name in ("MEM_PER_NODE", "MEM_PER_CPU", "CPUS_ON_NODE")
    )
    return (per_node or per_core * cores) * 2**20


def _limits() -> Iterator[Path]:
    """Files that may hold memory limits of this process's control groups."""
    for line in _text(OWN_GROUPS).splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers in LIMITS:
            root = GROUPS / controllers
            own = root / place.lstrip("/")
            groups = (group for group in (own, *own.parents) if group.is_relative_to(root))
            yield from (group / LIMITS[controllers] for group in groups)


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def num_batches(num_folds: int, taken: Callable[[int], float], most: float) -> int:
    """The smallest number of batches whose largest fits, found from a few measurements.

    Args:
        num_folds: number of folds.
        taken: number of folds → share of the memory that their chains need.
        most: largest share allowed.

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
