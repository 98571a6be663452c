"""Compiled programs shared between processes, keyed by the digest of a function.

JAX's own cache is keyed by the lowered program, and tracing and lowering take longer than running
it. Cached programs are executed; `pcv.base.programs.devices.keep_compiled` guards the folder.
"""

import hashlib
import os
import pickle
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import serialize_executable

MOST_BYTES, MOST_WRITTEN = 2**26, 2**28
"""largest size in bytes of a file, and of all files written by a process"""
MOST_HELD = 2**20
"""bytes of arrays, such as data, cached with a function"""
LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "numpyro", "blackjax")

CALLS = re.compile(r"custom_call @([\w.]+)")
KNOWN = re.compile(r"lapack_\w+$|Sharding$|SPMD\w+$|xla\.sdy\.\w+$")
"""custom calls that are safe to cache: others may exist in one process only"""

_retrieved: list[str] = []
"""hits of JAX's cache"""
_written: list[int] = []
"""sizes of the files written by this process"""


def _own_code() -> str:
    root, total = Path(__file__).parents[2], hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        total.update(f"{file.relative_to(root)} ".encode() + file.read_bytes())
    return total.hexdigest()


CODE = _own_code()
"""hash of pcv's source when loaded, as its functions are digested by name only"""


def _noted(event: str, **_: Any) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _retrieved.append(event)


jax.monitoring.register_event_listener(_noted)


def name_of(key: Any, *trees: Any) -> str:
    """File name of a program, from its key; empty: it cannot be cached.

    Trees are pickled, as their repr omits the modules of classes.
    """
    try:
        return _named("program", key, pickle.dumps(trees), _machine())
    except Exception:  # local classes cannot be pickled
        return ""


def compiled(name: str, lowered: Callable[[], jax.stages.Lowered]) -> jax.stages.Compiled:
    """Compile a program, and cache it under a name."""
    steps = lowered()
    if not name or _folder() is None:
        return steps.compile()
    calls = set(CALLS.findall(steps.as_text()))
    if not all(map(KNOWN.match, calls)):
        return steps.compile()
    _retrieved.clear()
    with _not_by_jax():
        found: jax.stages.Compiled = steps.compile()
    if _retrieved:  # XLA (0.12) serialises programs from its cache incompletely
        return found
    with suppress(Exception):  # a program that cannot be serialised
        running: Any = found.runtime_executable()
        devices = [device.id for device in running.local_devices()]
        lapack = any(call.startswith("lapack") for call in calls)
        content = *serialize_executable.serialize(found), devices, lapack
        _write(name, content)
    return found


@contextmanager
def _not_by_jax() -> Iterator[None]:
    """Keep programs cached here out of JAX's cache."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, float("inf"))
    try:
        yield
    finally:
        jax.config.update(name, before)


def load(name: str) -> jax.stages.Compiled | None:
    """The cached program of a name, if any."""
    try:
        program, takes, gives, devices, lapack = _read(name)
        if lapack:
            _load_lapack()
        known = {device.id: device for device in jax.devices()}
        chosen = [known[number] for number in devices]
        return serialize_executable.deserialize_and_load(
            program, takes, gives, execution_devices=chosen
        )
    except Exception:  # missing, truncated, or of another version
        return None


@cache
def _load_lapack() -> None:
    """Register LAPACK's functions, which JAX does only when it lowers a program that calls them."""
    jax.jit(jnp.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), float))


def note(same: Any, name: str, held: list[Any]) -> None:
    """Cache the name of a function's program, and the arrays that precede its arguments."""
    small = sum(x.nbytes for x in held) <= MOST_HELD
    with suppress(Exception):
        if name and small and not any(jnp.issubdtype(x.dtype, jax.dtypes.extended) for x in held):
            _write(_of_function(same), (name, [np.asarray(x) for x in held]))


def noted(same: Any) -> tuple[str, list[Any]] | None:
    """What `note` cached for a function, if anything."""
    try:
        name, held = _read(_of_function(same))
    except Exception:  # as in `load`
        return None
    return name, jax.device_put(held)


def _read(name: str) -> Any:
    file = _file(name)
    if hasattr(os, "getuid") and file.stat().st_uid != os.getuid():
        raise PermissionError  # never run what another user wrote
    found = pickle.loads(file.read_bytes())
    os.utime(file)  # recently used files are kept longest
    return found


def _write(name: str, content: Any) -> None:
    """Write atomically, without artifacts' durability: losses are recompiled."""
    file, whole = _file(name), pickle.dumps(content)
    if len(whole) > MOST_BYTES or sum(_written) + len(whole) > MOST_WRITTEN:
        return
    _written.append(len(whole))
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as aside:
        try:
            aside.write(whole)
            aside.close()
            os.replace(aside.name, file)
        except OSError:
            os.unlink(aside.name)
            raise


def _file(name: str) -> Path:
    folder = _folder()
    if folder is None or not name:
        raise FileNotFoundError
    return folder / name


def _folder() -> Path | None:
    """JAX's cache folder; None: caching is off."""
    folder = jax.config.jax_compilation_cache_dir
    return Path(folder) if folder and jax.config.jax_enable_compilation_cache else None


def _of_function(same: Any) -> str:
    return _named("function", same, _machine(), CODE)


def _named(kind: str, *parts: Any) -> str:
    said = repr(parts)
    of_process = " at 0x" in said
    return "" if of_process else f"pcv-{kind}-{hashlib.sha256(said.encode()).hexdigest()}"


@cache
def _machine() -> str:
    """Everything a compiled program depends on besides its code."""
    cpu = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = "".join(dict.fromkeys(x for x in lines if x.startswith(("flags", "Features"))))
    devices = [(device.id, device.device_kind) for device in jax.devices()]
    versions = [metadata.version(name) for name in LIBRARIES]
    flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "NVIDIA_TF32_OVERRIDE")]
    driver = jax.devices()[0].client.platform_version
    return repr((sys.version, platform.machine(), cpu, devices, versions, flags, driver))
