"""Jobs that are forks of a process that has imported what they need."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pcv.pipeline.cli import forkserver

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no fork server")

STARTED = """
import os, sys
from pcv.pipeline.cli import forkserver
forkserver.start()
print(os.environ[forkserver.ADDRESS], flush=True)
sys.stdin.read()
"""
PCV = [sys.executable, "-X", "importtime", "-m", "pcv"]


def variables(**more: str) -> dict[str, str]:
    apart = (forkserver.ADDRESS, "PYTEST_CURRENT_TEST")
    return {k: v for k, v in os.environ.items() if k not in apart} | more


def until(done, limit: float = 60.0) -> None:
    last = time.monotonic() + limit
    while not done():
        assert time.monotonic() < last
        time.sleep(0.05)


@contextmanager
def server():
    """The variable by which jobs find it, and the process whose end it waits for."""
    command = [sys.executable, "-c", STARTED]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=variables(), **pipes) as starter:
        address = starter.stdout.readline().strip()
        until(Path(address.split()[0], "forks").exists)
        yield {forkserver.ADDRESS: address}, starter
        starter.stdin.close()
        until(lambda: not Path(address.split()[0]).exists())


@pytest.fixture(scope="module")
def served():
    with server() as both:
        yield both


@pytest.fixture
def found(served):
    return served[0]


@pytest.fixture
def server_process(served):
    (process,) = psutil.Process(served[1].pid).children()
    return process


def has_handler(pid: int, signum: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (caught,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (signum - 1) & 1)


@pytest.fixture
def heeded():
    """Ctrl-C, by processes begun meanwhile: in the background, shells have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def said(*arguments: str, **more: str) -> tuple[int, str, list[str], bool]:
    """Exit status, output and errors of a command, and whether it imported for itself."""
    run = subprocess.run(
        [*PCV, *arguments], env=variables(**more), capture_output=True, text=True, timeout=100
    )
    lines = run.stderr.splitlines()
    errors = [line for line in lines if not line.startswith("import time:")]
    return run.returncode, run.stdout, errors, any("typer" in line for line in lines)


@pytest.mark.parametrize("arguments", [["--version"], ["check", "none.yaml"], ["ceck"]])
def test_a_fork_says_what_the_command_says(found, arguments):
    *alone, imported = said(*arguments)
    assert imported
    *forked, imported = said(*arguments, **found)
    assert not imported
    assert forked == alone
    assert forked[0] == (0 if arguments == ["--version"] else 1 if "check" in arguments else 2)


def test_another_environment_imports_for_itself(found):
    assert said("--version", **found, JAX_ENABLE_X64="1")[3]
    assert not said("--version", **found, OMP_NUM_THREADS="1", TMPDIR="/tmp")[3]


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_fork_ends_with_its_job(found, server_process, tmp_path, signum):
    config = tmp_path / "config.yaml"
    os.mkfifo(config)  # of which nobody writes a line
    command = [*PCV, "check", config]
    until(lambda: not server_process.children())
    with subprocess.Popen(command, env=variables(**found)) as job:
        try:
            until(lambda: has_handler(job.pid, signal.SIGTERM))
            (fork,) = server_process.children()
            until(lambda: not has_handler(fork.pid, signal.SIGINT))
            job.send_signal(signum)
            if signum == signal.SIGINT:  # a terminal tells both
                fork.send_signal(signum)
        except BaseException:
            job.kill()
            raise
    assert job.returncode == (-signum if signum == signal.SIGKILL else 128 + signum)
    until(lambda: not server_process.children())


def test_without_a_server_it_imports_for_itself():
    with server() as (address, starter):
        for process in psutil.Process(starter.pid).children():
            process.kill()
        assert said("--version", **address)[3]
        shutil.rmtree(address[forkserver.ADDRESS].split()[0])


def test_jax_is_not_begun():
    code = (
        "import importlib, jax\nfrom pcv.pipeline.cli import forkserver\n"
        "for name in forkserver.IMPORTED: importlib.import_module(name)\n"
        "jax.config.update('jax_num_cpu_devices', 3)\n"
        "print(len(jax.devices()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "3\n"
