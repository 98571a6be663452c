"""What one process has traced and compiled runs in another, and nothing else does."""

import os
import sys
from pathlib import Path
from subprocess import run

import numpy as np
import pytest

SCRIPT = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
from pcv.base import programs

which, last = sys.argv[1], float(sys.argv[2])
held, events = np.linspace(1.0, last, 3), []


def solved(x):
    return jnp.linalg.cholesky(jnp.diag(held) + jnp.outer(x, x)) @ x


def summed(x):
    return jnp.cumsum(held * x)


def called(x):
    return jax.pure_callback(lambda x: 2 * x, jax.ShapeDtypeStruct((3,), x.dtype), x)


@jax.monitoring.register_event_duration_secs_listener
def listen(event, *_, **__):
    if event.startswith("/jax/core/compile/"):
        events.append(event.split("/")[-1].split("_")[0])


jax.config.update("jax_enable_x64", True)
found = programs.shared({"solved": solved, "summed": summed, "called": called}[which])(np.ones(3))
print(*np.asarray(found).tolist(), *sorted(set(events)))
"""


@pytest.fixture
def process(tmp_path):
    """A process with a folder for what is compiled: the results, and what had to be done."""

    def answer(which, last=3.0):
        env = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", SCRIPT, which, str(last)]
        said = run(command, capture_output=True, text=True, check=True, env=env).stdout.split()
        return np.array(said[:3], float), set(said[3:])

    return answer


def by_hand(last):
    return np.linalg.cholesky(np.diag(np.linspace(1.0, last, 3)) + np.ones((3, 3))) @ np.ones(3)


def files(folder: Path, kind: str) -> list[Path]:
    return [file for file in folder.iterdir() if file.name.startswith(f"pcv-{kind}")]


def test_another_process_traces_and_compiles_nothing(process):
    first, done = process("solved")
    np.testing.assert_allclose(first, by_hand(3.0))
    assert {"jaxpr", "backend"} <= done
    again, done = process("solved")
    np.testing.assert_array_equal(again, first)
    assert "backend" not in done


def test_other_data_are_traced_and_other_functions_compiled(process):
    process("solved")
    found, done = process("solved", 5.0)
    np.testing.assert_allclose(found, by_hand(5.0))
    assert "jaxpr" in done
    assert "backend" not in done
    found, done = process("summed", 5.0)
    np.testing.assert_allclose(found, [1.0, 4.0, 9.0])
    assert "backend" in done


def test_what_is_damaged_is_made_again(process, tmp_path):
    process("solved")
    for file in (*files(tmp_path, "program"), *files(tmp_path, "function")):
        file.write_bytes(file.read_bytes()[:-40])
    found, done = process("solved")
    np.testing.assert_allclose(found, by_hand(3.0))
    assert "backend" in done
    assert "backend" not in process("solved")[1]


def test_calls_of_python_stay_in_their_process(process, tmp_path):
    for _ in range(2):
        found, done = process("called")
        np.testing.assert_array_equal(found, [2.0, 2.0, 2.0])
        assert "backend" in done
    assert not files(tmp_path, "program")


HELPED = """
import jax.numpy as jnp
from pcv.base.programs import digests


def helped(x):
    from helper import twice
    return twice(x)


def drawn(x):
    import numpy as np
    return x + np.random.default_rng().normal()


def read(x):
    import numpy as np
    return x + np.loadtxt("numbers.txt")


for function in (helped, drawn, read):
    try:
        print(digests.of_pure(function))
    except digests.Uncertain:
        print("uncertain")
"""


def test_what_functions_import_as_they_are_called_is_not_trusted(tmp_path):
    (tmp_path / "helper.py").write_text("def twice(x):\n    return 2 * x\n")
    found = run([sys.executable, "-c", HELPED], capture_output=True, text=True, cwd=tmp_path)
    assert found.stdout.split() == ["uncertain"] * 3, found.stderr
