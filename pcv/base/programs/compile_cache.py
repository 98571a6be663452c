"""Compiled programs between processes, found by what `digests` reads of a function.

JAX's own cache is found by a program once it is traced and lowered anew, which takes longer than to
run it. What lies in its folder is run (`pcv.base.programs.devices.keep_compiled` says whose that
is).
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
"""of a file, and of all files of a process"""
MOST_HELD = 2**20
"""bytes of arrays, such as data, that are kept with a function"""
LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "numpyro", "blackjax")

CALLS = re.compile(r"custom_call @([\w.]+)")
KNOWN = re.compile(r"lapack_\w+$|Sharding$|SPMD\w+$|xla\.sdy\.\w+$")
"""what programs may call besides XLA: what else there is may be in one process alone"""

_retrieved: list[str] = []
"""from JAX's cache"""
_written: list[int] = []
"""bytes of the files of this process"""


def _own_code() -> str:
    root, total = Path(__file__).parents[2], hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        total.update(f"{file.relative_to(root)} ".encode() + file.read_bytes())
    return total.hexdigest()


CODE = _own_code()
"""of pcv as it was loaded, whose functions are read by their names"""


def _noted(event: str, **_: Any) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _retrieved.append(event)


jax.monitoring.register_event_listener(_noted)


def name_of(key: Any, *trees: Any) -> str:
    """What a program is kept as, by what tells it from others; empty: it cannot be.

    What is printed of a tree does not say which module its classes are of.
    """
    try:
        return _named("program", key, pickle.dumps(trees), _machine())
    except Exception:  # of classes inside functions
        return ""


def compiled(name: str, lowered: Callable[[], jax.stages.Lowered]) -> jax.stages.Compiled:
    """A program, which is kept under a name."""
    steps = lowered()
    if not name or _folder() is None:
        return steps.compile()
    calls = set(CALLS.findall(steps.as_text()))
    if not all(map(KNOWN.match, calls)):
        return steps.compile()
    _retrieved.clear()
    with _not_by_jax():
        found: jax.stages.Compiled = steps.compile()
    if _retrieved:  # of what XLA (0.12) has read from a file it writes but a part
        return found
    with suppress(Exception):  # a program that cannot be kept
        running: Any = found.runtime_executable()
        devices = [device.id for device in running.local_devices()]
        lapack = any(call.startswith("lapack") for call in calls)
        content = *serialize_executable.serialize(found), devices, lapack
        _write(name, content)
    return found


@contextmanager
def _not_by_jax() -> Iterator[None]:
    """Programs that are kept here are not kept twice."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, float("inf"))
    try:
        yield
    finally:
        jax.config.update(name, before)


def load(name: str) -> jax.stages.Compiled | None:
    """The program of a name, if it is kept."""
    try:
        program, takes, gives, devices, lapack = _read(name)
        if lapack:
            _load_lapack()
        known = {device.id: device for device in jax.devices()}
        chosen = [known[number] for number in devices]
        return serialize_executable.deserialize_and_load(
            program, takes, gives, execution_devices=chosen
        )
    except Exception:  # none there, cut short, or of another version of something
        return None


@cache
def _load_lapack() -> None:
    """JAX does it where a program that calls it is lowered; others would call nothing."""
    jax.jit(jnp.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), float))


def note(same: Any, name: str, held: list[Any]) -> None:
    """Keep which program a function has, and the arrays that this takes before its arguments."""
    small = sum(x.nbytes for x in held) <= MOST_HELD
    with suppress(Exception):
        if name and small and not any(jnp.issubdtype(x.dtype, jax.dtypes.extended) for x in held):
            _write(_of_function(same), (name, [np.asarray(x) for x in held]))


def noted(same: Any) -> tuple[str, list[Any]] | None:
    """The name of a function's program, and these arrays."""
    try:
        name, held = _read(_of_function(same))
    except Exception:  # as of `load`
        return None
    return name, jax.device_put(held)


def _read(name: str) -> Any:
    file = _file(name)
    if hasattr(os, "getuid") and file.stat().st_uid != os.getuid():
        raise PermissionError  # what another user wrote is not run
    found = pickle.loads(file.read_bytes())
    os.utime(file)  # those that were used last are kept longest
    return found


def _write(name: str, content: Any) -> None:
    """At once, and not as artifacts are: what a power cut takes is made again."""
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
    """JAX's; None where nothing is kept."""
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
    """What a program depends on besides its steps."""
    cpu = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = "".join(dict.fromkeys(x for x in lines if x.startswith(("flags", "Features"))))
    devices = [(device.id, device.device_kind) for device in jax.devices()]
    versions = [metadata.version(name) for name in LIBRARIES]
    flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "NVIDIA_TF32_OVERRIDE")]
    driver = jax.devices()[0].client.platform_version
    return repr((sys.version, platform.machine(), cpu, devices, versions, flags, driver))
