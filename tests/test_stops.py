"""Ctrl-C and SIGTERM while a device works: they end a process between blocks, and whole."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from pcv.base import devices, process
from pcv.base.errors import Stopped


def come(signum):
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_a_look(signum):
    before, reached = signal.getsignal(signum), []
    with pytest.raises(Stopped) as caught, process.deferred(signum):  # noqa: PT012
        come(signum)
        reached.append("the end of the block")
        process.look("sample a", "2 blocks are kept")
        reached.append("the next block")
    name = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}[signum]
    assert str(caught.value) == f"sample a: stopped by {name}; 2 blocks are kept"
    assert caught.value.exit_code == 128 + signum
    assert reached == ["the end of the block"]
    assert signal.getsignal(signum) is before
    process.look()


def test_where_nobody_looks_it_ends_what_a_device_was_at():
    reached = []
    with pytest.raises(Stopped, match=r"^stopped by Ctrl-C$"), devices.at_work("float64"):  # noqa: PT012
        come(signal.SIGINT)
        reached.append("the end")
    assert reached == ["the end"]


def test_errors_go_first():
    with pytest.raises(ZeroDivisionError), process.deferred(signal.SIGINT):  # noqa: PT012
        come(signal.SIGINT)
        _ = 1 / 0
    process.look()


def test_a_second_one_is_answered_at_once(monkeypatch, capfd):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(KeyboardInterrupt), process.deferred(signal.SIGINT):  # noqa: PT012
        come(signal.SIGINT)
        come(signal.SIGINT)
        pytest.fail("it was not")
    assert capfd.readouterr().err.strip() == process.HINT.decode().strip()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.delattr(sys, "ps1")
    with pytest.raises(Stopped), process.deferred(signal.SIGINT):  # noqa: PT012
        come(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_handlers_of_others_and_other_threads_are_left_alone():
    def theirs(signum, frame):
        seen.append(signum)

    seen, of_thread = [], []

    def within():
        with process.deferred(signal.SIGTERM):
            of_thread.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=within)
    thread.start()
    thread.join()
    assert of_thread == [signal.SIG_DFL]
    before = signal.signal(signal.SIGINT, theirs)
    try:
        with process.deferred(signal.SIGINT):
            come(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


SCRIPT = """
import os, signal, threading
from pathlib import Path
import numpy as np, numpyro, numpyro.distributions as dist
import pcv
from pcv.sampling.folds import moving

def normal(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)

def made():
    return list(Path("kept").glob(".checkpoints/cv/*/0/*/block-*"))

as_it_is = moving.blocks

def blocks(*args, **named):
    "Ctrl-C while the third block is made."
    for number, block in enumerate(as_it_is(*args, **named)):
        yield block
        if number == 1:
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()

moving.blocks = blocks

def run():
    return pcv.cross_validate(
        model, pcv.kfold(20, 10), seed=1, draws=200_000,
        cv={"batch_size": 10_000, "adapt": "never"},
        fit={"warmup": 100, "draws": 100, "allow_bad_fit": True}, cores=1, results="kept",
        progress=False,
    )

signal.signal(signal.SIGINT, signal.default_int_handler)
model = pcv.from_numpyro(normal, {"y": np.random.default_rng(1).normal(size=20)})
for last in (False, True):
    try:
        run()
    except KeyboardInterrupt as interrupt:
        print(len(made()), interrupt, flush=True)
        if last:
            raise
"""


@pytest.mark.slow
def test_a_script_goes_on_from_ctrl_c_or_ends_by_it(tmp_path):
    """Before, Python unwound while XLA's threads worked, and the block that they made was lost."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    env["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / "compiled")
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = "stopped by Ctrl-C; what was made is kept, and the same call resumes from it"
    kept = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert [words for _, words in kept] == [said, said], done.stderr
    assert 1 <= int(kept[0][0]) < int(kept[1][0]) < 20
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1] == f"KeyboardInterrupt: {said}"
    assert "jax" not in done.stderr
