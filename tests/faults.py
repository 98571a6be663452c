"""Faults that end a process at one of its changes of files, and what must hold after them.

`python -m tests.faults CONFIG FAULT AT AMONG` runs the stages of an experiment, as far as they are
not done, in a process that meets a fault at change AT of files below its results, or of those among
them that lie in checkpoints.
"""

import itertools
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import xarray as xr

from pcv.base.errors import PcvError
from pcv.base.monitor import Monitor
from pcv.pipeline.config import load
from pcv.pipeline.job import Job
from pcv.pipeline.storage import store
from pcv.pipeline.storage.artifacts import places

RESULTS = "results"
ROOT = Path(__file__).parent.parent
AMONG = {"checkpoints": os.path.join(RESULTS, ".checkpoints", ""), "all files": RESULTS + os.sep}
"""changes of which files are counted"""
STAGES = ("warmup", "sample", "diagnose")
"""that faults are met in, after the full-data fit"""
MET = ("warmup's checkpoint", "sample's checkpoint", "warmup", "sample", "diagnostics", "other")
"""whose files they are met at"""


class Fault(NamedTuple):
    how: str
    at: int
    """which change of files meets it, from 0"""
    among: str = "all files"
    """of `AMONG`: which files' changes are counted"""


NONE = Fault("kill", 10**9)


class Ended(NamedTuple):
    """A process that met a fault, or did not."""

    code: int
    said: str

    @property
    def changes(self) -> dict[str, int]:
        """How many changes of files it made, if it ended by itself, by `AMONG`."""
        found = re.findall(r"(\d+) changes of (.+)", self.said)
        return {among: int(number) for number, among in found}

    @property
    def where(self) -> str:
        """The file at which it met the fault."""
        return (re.findall(r"fault at (\S+)", self.said) or [""])[-1]

    @property
    def met(self) -> str:
        """Whose file that is, of `MET`."""
        if self.where.startswith(AMONG["checkpoints"]):
            return "warmup's checkpoint" if "/warmup/" in self.where else "sample's checkpoint"
        return (re.findall(r"/\.?(warmup|sample|diagnostics)\b", self.where) or ["other"])[0]


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
    command = [sys.executable, "-m", "tests.faults", config.name, *map(str, fault)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_ENABLE_X64": "true"}
    done = subprocess.run(
        command, cwd=config.parent, env=env, capture_output=True, text=True, timeout=600
    )
    return Ended(done.returncode, done.stdout + done.stderr)


def job_of(config: Path, emit: Callable[[str], None]) -> Job:
    settings = load(config)
    (name,) = settings.experiments
    return Job(settings, name, Path(RESULTS), monitor=Monitor(emit=emit), given=f" {config.name}")


def found(job: Job) -> tuple[dict[str, xr.Dataset], set[str]]:
    """Artifacts of `STAGES` that are there: the values of those that the next stage takes as
    complete, and the places of those that it refuses."""
    taken, refused = {}, set()
    for path, stage in [(part.path(s), s) for s, part in places(job) if s in STAGES]:
        if path.exists():
            try:
                store.read_stamp(path, stage)
            except PcvError:
                refused.add(str(path))
            else:
                values = xr.open_dataset(path, engine="zarr").load()
                taken[str(path)] = values.drop_attrs(deep=False)
    return taken, refused


def wrong(taken: dict[str, xr.Dataset], whole: dict[str, xr.Dataset]) -> list[str]:
    """Those whose values are not those of an undisturbed run."""
    return [path for path, values in taken.items() if not values.identical(whole[path])]


def leftovers(job: Job) -> list[Path]:
    """What half-written artifacts have left."""
    return [path for path in job.results.rglob(".*.zarr.*") if path.suffix in (".new", ".old")]


class Killed(BaseException):
    """As a signal would: nothing catches it."""


def killed_after(monkeypatch, writes, function="write_bytes"):
    """Ends the process's work at a write of a checkpoint or an artifact."""
    as_it_is, count = getattr(store, function), itertools.count()

    def write(*args, **kwargs):
        if next(count) == writes:
            raise Killed
        return as_it_is(*args, **kwargs)

    monkeypatch.setattr(store, function, write)


def _changed(event: str, args: tuple) -> str:
    """The file below the results that is changed, if any."""
    if event == "open":
        path, _, flags = args
        changing = flags & (os.O_WRONLY | os.O_RDWR)
    elif event in ("os.rename", "os.mkdir"):
        path, changing = args[0], True
    else:
        return ""
    if not changing or isinstance(path, int):
        return ""
    place = os.path.relpath(os.fsdecode(path))
    return place if place.startswith(AMONG["all files"]) and not place.endswith("lock") else ""


def main(config: str, how: str, at: int, among: str) -> None:
    from pcv.base import devices
    from tests.project import run_all

    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
    devices.setup(2)
    job = job_of(Path(config), print)
    changes, met = Counter[str](), False

    def meet(event: str, args: tuple) -> None:
        nonlocal met
        file = _changed(event, args)
        if not file or (met and how not in LASTING):
            return
        changes.update(name for name, start in AMONG.items() if file.startswith(start))
        if not met:
            counted = file.startswith(AMONG[among]) and changes[among] > at
            if not counted or (how == "power_cut" and event != "os.rename"):
                return
            os.write(2, b"fault at " + os.fsencode(file) + b"\n")
        met = True
        HOW[how](event, args)

    sys.addaudithook(meet)
    try:
        run_all(job)
    except PcvError as error:
        sys.exit(f"error: {error}")
    for name, number in changes.items():
        print(f"{number} changes of {name}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
