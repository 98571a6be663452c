"""Faults that end a process at one of its changes of files, and what must hold after them.

`python -m tests.faults CONFIG FAULT AT` runs the stages of an experiment, as far as they are not
done, in a process that meets a fault at change AT of files below its results.
"""

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import xarray as xr

from pcv import store
from pcv.config import load
from pcv.errors import PcvError
from pcv.job import Job, Say, places

RESULTS = "results"
ROOT = Path(__file__).parent.parent


class Fault(NamedTuple):
    how: str
    at: int
    """which change of files meets it, from 0"""


class Ended(NamedTuple):
    """A process that met a fault, or did not."""

    code: int
    said: str

    @property
    def changes(self) -> int:
        """How many changes of files it made, if it ended by itself."""
        return int(re.findall(r"(\d+) changes of files", self.said)[-1])

    @property
    def where(self) -> str:
        """The file at which it met the fault."""
        return (re.findall(r"fault at (\S+)", self.said) or [""])[-1]


def kill(event: str, args: tuple) -> None:
    """kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def terminate(event: str, args: tuple) -> None:
    """SIGTERM, as at a cluster's time limit."""
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt(event: str, args: tuple) -> None:
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def full(event: str, args: tuple) -> None:
    """No room on the disk, from now on."""
    raise OSError(28, "No space left on device")


def power_cut(event: str, args: tuple) -> None:
    """The file that is renamed is there under its name, and half of its content is not."""
    source = Path(os.fsdecode(args[0]))
    files = [source] if source.is_file() else [f for f in source.rglob("*") if f.is_file()]
    torn = max(files, key=lambda file: file.stat().st_size)
    os.truncate(torn, torn.stat().st_size // 2)
    os.rename(source, os.fsdecode(args[1]))
    os.kill(os.getpid(), signal.SIGKILL)


HOW: dict[str, Callable[[str, tuple], None]] = {
    "kill": kill,
    "terminate": terminate,
    "interrupt": interrupt,
    "full": full,
    "power_cut": power_cut,
}
LASTING = ("full",)
ANSWERS = {
    "kill": {-signal.SIGKILL},
    "terminate": {1, -signal.SIGTERM},
    "interrupt": {-signal.SIGINT, 1, 130},
    "full": {1},
    "power_cut": {-signal.SIGKILL},
}
"""exit codes that may follow"""


def run(config: Path, fault: Fault) -> Ended:
    """The stages in a process of their own, which meets the fault."""
    command = [sys.executable, "-m", "tests.faults", config.name, fault.how, str(fault.at)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_ENABLE_X64": "true"}
    done = subprocess.run(
        command, cwd=config.parent, env=env, capture_output=True, text=True, timeout=600
    )
    return Ended(done.returncode, done.stdout + done.stderr)


def job_of(config: Path, say: Say) -> Job:
    settings = load(config)
    (name,) = settings.experiments
    return Job(settings, name, Path(RESULTS), say=say, given=f" {config.name}")


def made(job: Job) -> list[xr.Dataset]:
    """Samples and diagnostics, as values."""
    paths = [part.path(s) for s, part in places(job) if s in ("sample", "diagnose")]
    return [xr.open_dataset(path, engine="zarr").load().drop_attrs(deep=False) for path in paths]


def broken(job: Job) -> list[str]:
    """What is wrong with the artifacts that are there."""
    found = []
    for stage, part in places(job):
        if part.path(stage).exists():
            try:
                store.read_stamp(part.path(stage), stage)
            except PcvError as error:
                found.append(str(error))
    return found


def leftovers(job: Job) -> list[Path]:
    """What half-written artifacts have left."""
    return [path for path in job.results.rglob(".*.zarr.*") if path.suffix in (".new", ".old")]


def _changes(event: str, args: tuple) -> bool:
    """Is it a change of files below the results?"""
    if event == "open":
        path, _, flags = args
        changing = flags & (os.O_WRONLY | os.O_RDWR)
    elif event in ("os.rename", "os.mkdir"):
        path, changing = args[0], True
    else:
        return False
    if not changing or isinstance(path, int):
        return False
    place = os.path.relpath(os.fsdecode(path))
    return place.startswith(RESULTS + os.sep) and not place.endswith("lock")


def main(config: str, how: str, at: int) -> None:
    from pcv import api, devices

    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
    devices.setup(2)
    job = job_of(Path(config), print)
    numbers, met = itertools.count(), False

    def meet(event: str, args: tuple) -> None:
        nonlocal met
        if (met and how not in LASTING) or not _changes(event, args):
            return
        if next(numbers) < at or (how == "power_cut" and event != "os.rename"):
            return
        if not met:
            os.write(2, b"fault at " + os.fsencode(os.path.relpath(os.fsdecode(args[0]))) + b"\n")
        met = True
        HOW[how](event, args)

    sys.addaudithook(meet)
    try:
        api.run(job)
    except PcvError as error:
        sys.exit(f"error: {error}")
    print(f"{next(numbers)} changes of files")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
