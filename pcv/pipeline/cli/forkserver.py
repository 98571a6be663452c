"""A server that has already imported what jobs import, and forks a process for each job.

A workflow job spends two seconds or more on imports, often longer than on its work. Snakemake's
main process `start`s the server, where jobs run on the same machine; a job's `pcv` hands itself
`over` to a fork, which takes on its folder, environment and output and returns its exit status. A
job in another environment, or without a server, imports for itself. JAX is imported here but not
initialised: its threads would not survive a fork. Snakemake's benchmark of such a job measures its
time, but not its memory.

Signals from a terminal, or to a process group, reach fork and job alike. SIGTERM to the job alone
is passed on, and when the job dies, so does its fork.
"""

import gc
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from pcv.pipeline.graph import STAGES

ADDRESS = "PCV_FORKSERVER"
OF_A_JOB = ("PATH", "PWD", "OLDPWD", "SHLVL", "_", "TMPDIR", "TMP", "TEMP", "TEMPDIR", ADDRESS)
"""variables that differ from job to job without affecting imports; so do the numbers of threads
that Snakemake sets"""
IMPORTED = (
    *(
        "pcv.pipeline.cli.commands",
        *dict.fromkeys(f"pcv.pipeline.stages.{stage.module}" for stage in STAGES.values()),
        "jax.numpy",
        "scipy.stats",
        "sparse",
        "pcv.models.effects.decoupling",
    ),
    *("arviz_stats", "pcv.report"),
)
"""modules in the order in which jobs need them. BlackJAX is not among them, as importing it creates
a JAX array; sparse is imported by xarray"""


def start() -> None:
    """Start a fork server for this process's jobs, which ends with this process."""
    if sys.platform != "linux" or ADDRESS in os.environ:
        return
    folder = mkdtemp(prefix="pcv-")  # mode 700: nobody else can send jobs
    ends, _ = os.pipe()  # the other end stays open as long as this process lives
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(_socket(folder))
        server.listen(64)  # early jobs wait
        places = server.fileno(), ends
        code = f"from pcv.pipeline.cli import forkserver; forkserver.serve({folder!r}, *{places})"
        subprocess.Popen([sys.executable, "-P", "-c", code], pass_fds=places)
    os.close(ends)
    os.environ[ADDRESS] = f"{folder} {_environment()}"


def _environment() -> str:
    """A hash of what a process's imported modules depend on."""
    known = {
        name: x
        for name, x in os.environ.items()
        if name not in OF_A_JOB and not name.endswith("_THREADS")
    }
    parts = sys.executable, __file__, sorted(known.items())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def over() -> None:
    """Have a fork do this process's work, if there is a server for it; else return."""
    folder, _, environment = os.environ.get(ADDRESS, "").rpartition(" ")
    if not folder or environment != _environment():
        return
    come = [signal.SIGKILL]
    with socket.socket(socket.AF_UNIX) as fork:
        signums = signal.SIGINT, signal.SIGTERM
        ignored = [x for x in signums if signal.getsignal(x) == signal.SIG_IGN]
        told = json.dumps([sys.argv, os.getcwd(), dict(os.environ), ignored]).encode()
        try:
            fork.connect(_socket(folder))
            socket.send_fds(fork, [len(told).to_bytes(4)], [0, 1, 2])
            fork.sendall(told)
            pid = int.from_bytes(_read(fork, 4))
        except OSError:
            pid = 0
        if not pid:  # the server has ended
            return

        def note(signum: int, frame: object) -> None:
            come.append(signal.Signals(signum))
            if signum == signal.SIGTERM:
                with suppress(ProcessLookupError):
                    os.kill(pid, signum)

        for signum in set(signums) - set(ignored):
            signal.signal(signum, note)
        status = _read(fork, 1)
    os._exit(status[0] if status else 128 + come[-1])


def serve(folder: str, place: int, ends: int) -> None:
    """Fork for each job that connects to the socket `place`, until the other end of the pipe `ends`
    is closed; import while idle."""
    missing = list(IMPORTED)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that forks leave no zombies
    with socket.socket(fileno=place) as server:
        while not _jax_has_begun():
            asked, *_ = select.select([place, ends], [], [], 0 if missing else None)
            if ends in asked:
                break
            if not asked:
                with suppress(ImportError):
                    import_module(missing.pop(0))
                continue
            job, _ = server.accept()
            gc.freeze()  # so that the collector writes to no shared pages
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # JAX and Python warn of forks with (BLAS) threads
                here = os.fork()
            if not here:
                server.close()
                os.close(ends)
                return _become(job)
            job.close()
    os.unlink(_socket(folder))
    os.rmdir(folder)


def _jax_has_begun() -> bool:
    """Whether JAX is initialised, after which its number of devices is fixed."""
    jax: Any = sys.modules.get("jax")
    try:
        jax and jax.config.update("jax_num_cpu_devices", jax.config.jax_num_cpu_devices)
    except RuntimeError:
        return True
    return False


def _become(job: socket.socket) -> None:
    """Take a job's place: its arguments, folder, environment, output and signal handling."""
    size, places, *_ = socket.recv_fds(job, 4, 3)
    argv, folder, environment, ignored = json.loads(_read(job, int.from_bytes(size)))
    for place, descriptor in enumerate(places):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = argv
    for signum in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        usual: Any = signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL
        signal.signal(signum, signal.SIG_IGN if signum in ignored else usual)
    gone: list[Any] = []

    def end_with_it() -> None:
        if not job.recv(1) and not gone:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_it, daemon=True).start()
    job.sendall(os.getpid().to_bytes(4))
    from pcv.pipeline.cli.commands import main

    status = 1
    try:
        main()
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(bool(ending.code))
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        gone.append(status)
        job.sendall(bytes([status & 255]))


def _socket(folder: str) -> str:
    return str(Path(folder, "forks"))


def _read(stream: socket.socket, size: int) -> bytes:
    """`size` bytes, or fewer if the other end closes first."""
    found = b""
    while len(found) < size and (some := stream.recv(size - len(found))):
        found += some
    return found
