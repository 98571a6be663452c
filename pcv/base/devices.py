"""JAX's host devices and precision. Imports nothing that uses JAX.

Call `setup` first: host devices can only be added before JAX's backend starts, which happens as
soon as an imported library makes a JAX array.
"""

import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from threadpoolctl import threadpool_limits

from pcv.base import process
from pcv.base.errors import PcvError, setting
from pcv.base.process import all_cores

EVERYWHERE, BY_CHAIN = PartitionSpec(), PartitionSpec("chain")
"""placement of an argument: replicated, or its first axis sharded over devices"""

_most: ContextVar[int | None] = ContextVar("most", default=None)


def setup(cores: int) -> None:
    """Create one host device per core.

    Args:
        cores: CPU cores to use, each for a share of the chains. No effect on GPUs.
    """
    try:
        jax.config.update("jax_num_cpu_devices", cores)
    except RuntimeError:
        if jax.default_backend() == "cpu" and len(in_use()) < cores:
            warn_once(
                f"JAX is running already, on {len(in_use())} host device(s) instead of {cores}: "
                "use pcv before the first JAX array is made"
            )


def setup_if_new() -> None:
    """`setup` with all cores, unless it was called before: for models made in Python."""
    if jax.config.jax_num_cpu_devices < 0:
        setup(all_cores())


@cache
def warn_once(line: str) -> None:
    warnings.warn(line, stacklevel=3)


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Context in which arrays have the named precision; "auto": float64 on CPUs, else float32.

    JAX's caches are cleared on the way in and out. JAX (0.12) would reuse traces of the other
    precision: a user's jitted `b * x` with a NumPy array then fails with "got float64, float32",
    "verifier errors" or "Executable expected parameter 1 of size …".
    """
    double = name == "float64" or (name == "auto" and jax.default_backend() == "cpu")
    other = double != jax.config.jax_enable_x64
    try:
        if other:
            jax.clear_caches()
        with jax.enable_x64(double):
            yield
    finally:
        if other:
            jax.clear_caches()


@contextmanager
def at_work(name: str) -> Iterator[None]:
    """Context of a running stage: arrays in the named precision; Ctrl-C is deferred.

    Raises:
        PcvError: a device ran out of memory, and there was no smaller tile to try.
        Stopped: Ctrl-C was pressed.
    """
    try:
        with (
            precision(name),
            _one_thread_for_linear_algebra(),
            process.deferred(signal.SIGINT),
        ):
            yield
    except JaxRuntimeError as error:
        if not out_of_memory(error):
            raise
        raise PcvError(
            f"out of memory on {in_use()[0].device_kind}; cut the folds into batches that fit "
            f"({setting('cv', 'fold_batches', value='auto')}), or use "
            f"{setting('precision', value='float32')}; for a full-data fit, reduce fit.chains or "
            "fit.draws"
        ) from error


_guard = threading.Lock()
_limits: list[threadpool_limits | None] = []


@contextmanager
def _one_thread_for_linear_algebra() -> Iterator[None]:
    """Limit BLAS to one thread: several would compete with the chains for the cores, and for small
    matrices they wait for one another longer than one thread takes. Threads of Python share this
    limit; the last to leave lifts it."""
    with _guard:
        _limits.append(None if _limits else threadpool_limits(1, user_api="blas"))
    try:
        yield
    finally:
        with _guard:
            limit = _limits.pop()
            if limit is not None:
                limit.restore_original_limits()


def out_of_memory(error: JaxRuntimeError) -> bool:
    """Whether XLA's error means that a device ran out of memory."""
    return "RESOURCE_EXHAUSTED" in str(error)


@contextmanager
def at_most(cores: int | None) -> Iterator[None]:
    """Context that limits the CPU devices in use; None: all."""
    token = _most.set(cores)
    try:
        yield
    finally:
        _most.reset(token)


def in_use() -> list[jax.Device]:
    """The devices that chains are sharded over. On CPUs at most `at_most`, or, unless `setup` made
    the devices, the number of cores (PyMC's JAX samplers ask for a hundred devices)."""
    found = jax.devices()
    if found[0].platform != "cpu":
        return found
    is_own = jax.config.jax_num_cpu_devices == len(found)
    return found[: _most.get() or (len(found) if is_own else all_cores())]


def shard_mapped(function: Callable[..., Any], *places: Any) -> Callable[..., Any]:
    """`function` mapped over the shards of chains on all devices.

    Args:
        function: takes and returns arrays over the chains of one device.
        places: per argument, `EVERYWHERE` or `BY_CHAIN`, or a tree of them.
    """
    return jax.shard_map(
        function, mesh=_mesh(), in_specs=places, out_specs=BY_CHAIN, check_vma=False
    )


def sharded(tree: Any) -> Any:
    """Arrays over chains, placed as `shard_mapped` functions return them, which would otherwise be
    compiled a second time."""
    return jax.device_put(tree, by_chain())


def by_chain() -> NamedSharding:
    return NamedSharding(_mesh(), BY_CHAIN)


def _mesh() -> Mesh:
    return Mesh(np.array(in_use()), ("chain",))


def found() -> str:
    """The devices and precision in use, in sentences."""
    used, platform = in_use(), jax.default_backend()
    kinds = dict.fromkeys(device.device_kind for device in used)
    with precision("auto"):
        auto = jax.dtypes.canonicalize_dtype(float).name
    lines = [
        f"Chains run on {len(used)} device(s) of JAX's {platform}: {', '.join(kinds)}.",
        f"precision: auto means {auto} here.",
    ]
    if platform != "cpu":
        lines += [f"{device}: {_memory(device)} of memory" for device in used]
    elif shutil.which("nvidia-smi"):
        lines.append('nvidia-smi is installed, but JAX sees no GPU: pip install "jax[cuda13]"')
    else:
        lines.append("No GPU was found.")
    return "\n".join(lines)


def _memory(device: jax.Device) -> str:
    """Device memory available to JAX."""
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return f"{limit / 2**30:.1f} GiB" if limit else "an unknown amount"


def made_on() -> dict[str, Any]:
    """Platform, number of devices and precision, as recorded with checkpoints.

    >>> made_on()  # doctest: +SKIP
    {'platform': 'cpu', 'devices': 2, 'dtype': 'float64'}
    """
    devices = in_use()
    dtype = jax.dtypes.canonicalize_dtype(float).name
    return {"platform": devices[0].platform, "devices": len(devices), "dtype": dtype}


def describe() -> str:
    """Devices and precision in words, as recorded with every result.

    >>> describe()  # doctest: +SKIP
    '2 x cpu, float64'
    """
    devices = in_use()
    name = jax.dtypes.canonicalize_dtype(float).name
    return f"{len(devices)} x {devices[0].device_kind}, {name}"
