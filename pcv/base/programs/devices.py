"""What JAX runs on: host devices, precision, compile cache. Imports JAX and nothing that uses it.

Host devices can only be added before JAX's backend starts, and importing a library that makes a
JAX array starts it: call `setup` first.
"""

import os
import shutil
import signal
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import platformdirs
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pcv.base import process
from pcv.base.errors import PcvError
from pcv.base.process import all_cores

CACHE_BYTES = 2**30
"""of compiled functions that are kept between processes: some 30,000"""

EVERYWHERE, BY_CHAIN = PartitionSpec(), PartitionSpec("chain")
"""where an argument lies: whole on every device, or its first axis cut among them"""

_most: ContextVar[int | None] = ContextVar("most", default=None)


def setup(cores: int) -> None:
    """As many host devices as `cores`.

    Args:
        cores: CPU cores to use; each becomes a device that a share of the chains runs on.
            Without effect on GPUs.
    """
    try:
        jax.config.update("jax_num_cpu_devices", cores)
    except RuntimeError:
        if jax.default_backend() == "cpu" and len(in_use()) < cores:
            _say_once(
                f"JAX is running already, on {len(in_use())} host device(s) instead of {cores}: "
                "use pcv before the first JAX array is made"
            )


def keep_compiled() -> None:
    """Keep compiled functions between processes, in the user's own cache folder.

    What lies there is run: a folder that another user can write to is not used. The environment's
    JAX_COMPILATION_CACHE_DIR takes precedence.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    own = platformdirs.user_cache_path("pcv", appauthor=False)
    try:
        for folder in (own, own / "jax"):
            _make_own(folder)
        _prune(own / "jax")
    except OSError as error:
        _say_once(f"compiled functions are not kept between processes: {error}")
        return
    jax.config.update("jax_compilation_cache_dir", str(own / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _make_own(folder: Path) -> None:
    """Raises OSError for a folder that others can write to, or that is a link."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{folder} is no folder; remove it")
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o022):
        raise OSError(f"{folder} can be written by others; remove it, or set XDG_CACHE_HOME")
    folder.chmod(0o700)


@cache
def _prune(folder: Path) -> None:
    """Leave the newest `CACHE_BYTES`, once in a process.

    JAX (0.12), told of a limit, lists the whole folder for each function that it keeps, and lets
    all other processes wait: 1.2 s with 20,000 there.
    """
    files = []
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # other processes prune and write too
            files.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    total = 0
    for _, size, path in sorted(files, reverse=True):
        total += size
        if total > CACHE_BYTES:
            Path(path).unlink(missing_ok=True)


def setup_if_new() -> None:
    """All cores, unless `setup` was called before: for models that are made in Python."""
    if jax.config.jax_num_cpu_devices < 0:
        setup(all_cores())


@cache
def _say_once(line: str) -> None:
    warnings.warn(line, stacklevel=3)


@contextmanager
def precision(name: str) -> Iterator[None]:
    """The context in which arrays have the named precision; "auto": float64 on CPUs alone.

    What was traced in another one is forgotten, on the way in and out. JAX (0.12) would take it for
    the present one's: a user's own jitted `b * x`, with an array of NumPy, then fails as "got
    float64, float32", "verifier errors" or "Executable expected parameter 1 of size …".
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
    """Arrays in the named precision, while a stage is at work; Ctrl-C waits for it.

    Raises:
        PcvError: a device's memory is too small, and no smaller step was tried.
        Stopped: Ctrl-C was pressed.
    """
    try:
        with precision(name), process.deferred(signal.SIGINT):
            yield
    except JaxRuntimeError as error:
        if not out_of_memory(error):
            raise
        raise PcvError(
            f"out of memory on {in_use()[0].device_kind}; cut the folds into batches that fit "
            "(cv.fold_batches: auto), or use precision: float32; a full-data fit with fewer chains "
            "or draws (fit.chains, fit.draws) is smaller"
        ) from error


def out_of_memory(error: JaxRuntimeError) -> bool:
    """Does XLA's error say that a device's memory ran out?"""
    return "RESOURCE_EXHAUSTED" in str(error)


@contextmanager
def at_most(cores: int | None) -> Iterator[None]:
    """The context in which no more of a CPU's devices are used; None: all."""
    token = _most.set(cores)
    try:
        yield
    finally:
        _most.reset(token)


def in_use() -> list[jax.Device]:
    """The devices that chains are sharded over: of a CPU no more than are asked for, or than it has
    cores, unless `setup` made them (PyMC's JAX samplers ask for a hundred)."""
    found = jax.devices()
    if found[0].platform != "cpu":
        return found
    is_own = jax.config.jax_num_cpu_devices == len(found)
    return found[: _most.get() or (len(found) if is_own else all_cores())]


def shard_mapped(function: Callable[..., Any], *places: Any) -> Callable[..., Any]:
    """`function` of chains that are sharded over all devices, and its results.

    Args:
        function: takes and returns arrays over chains; on each device, over that device's share.
        places: of each argument, `EVERYWHERE` or `BY_CHAIN`, or a tree of them.
    """
    return jax.shard_map(
        function, mesh=_mesh(), in_specs=places, out_specs=BY_CHAIN, check_vma=False
    )


def sharded(tree: Any) -> Any:
    """Arrays over chains as functions that are `shard_mapped` return them: for others, these would
    be compiled once more."""
    return jax.device_put(tree, by_chain())


def by_chain() -> NamedSharding:
    return NamedSharding(_mesh(), BY_CHAIN)


def _mesh() -> Mesh:
    return Mesh(np.array(in_use()), ("chain",))


def found() -> str:
    """Which devices there are, which are used and in which precision, in sentences."""
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
        lines.append(
            "There may be a GPU (nvidia-smi is there), which JAX does not see: "
            'pip install "jax[cuda13]"'
        )
    else:
        lines.append("No GPU was found.")
    return "\n".join(lines)


def _memory(device: jax.Device) -> str:
    """How much of a device's memory JAX may use."""
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
    """The devices and their precision in words, as recorded with every result.

    >>> describe()  # doctest: +SKIP
    '2 x cpu, float64'
    """
    devices = in_use()
    name = jax.dtypes.canonicalize_dtype(float).name
    return f"{len(devices)} x {devices[0].device_kind}, {name}"
