"""Model references: what they find, and what is said when they do not."""

import importlib
import os
import py_compile
import sys
from pathlib import Path

import numpy as np
import pytest

from pcv.base import reference
from pcv.base.errors import PcvError
from pcv.models.zoo import rats

MODELS = """
import math
from collections import OrderedDict

from helper import SCALE

limit = 3

def slopes(data, scale=1.0):
    return "slopes", sorted(data), scale * SCALE

def common(data):
    return data["rat"]

def fails(data):
    return math.sqrt(-1)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with a file of models and its neighbour."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)
    write("my_models.py", MODELS)
    write("helper.py", "SCALE = 2.0")
    yield tmp_path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(name, text):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


def message(function, *args):
    with pytest.raises(PcvError) as caught:
        function(*args)
    said = str(caught.value)
    assert "\n" not in said
    return said


class TestFound:
    def test_file(self, folder):
        assert reference.source("my_models.py:slopes").resolve() == folder / "my_models.py"
        data = {"rat": [1], "day": [8]}
        assert reference.build("my_models.py:slopes", data, {"scale": 3.0}) == (
            "slopes",
            ["day", "rat"],
            6.0,
        )

    def test_files_count_by_their_content(self, folder, monkeypatch):
        """Not by time and size, by which Python takes up stored bytecode."""
        monkeypatch.setattr(sys, "dont_write_bytecode", False)
        write("model.py", "from constant import number\ndef model(data):\n    return number\n")
        for name, build in (("constant", "model.py:model"), ("alone", "alone.py:model")):
            for number in (1, 2, 3):
                write(f"{name}.py", f"number = {number}\ndef model(data):\n    return number\n")
                os.utime(folder / f"{name}.py", (1e9, 1e9))
                assert reference.build(build, {}, {}) == number
                py_compile.compile(f"{name}.py")

    def test_file_elsewhere(self, folder, monkeypatch):
        (folder / "other").mkdir()
        monkeypatch.chdir(folder / "other")
        assert reference.load("../my_models.py:slopes")({})[2] == 2.0
        assert reference.load(f"{folder}/my_models.py:slopes")({})[2] == 2.0

    def test_neighbours_of_the_same_name(self, folder):
        for name, scale in (("one", 1.0), ("two", 100.0)):
            write(f"{name}/models.py", MODELS)
            write(f"{name}/helper.py", f"SCALE = {scale}")
        assert [reference.load(f"{n}/models.py:slopes")({})[2] for n in ("one", "two")] == [1, 100]
        assert "helper" not in sys.modules

    def test_neighbours_that_are_imported_late(self):
        write("late.py", "def f(data):\n    from helper import SCALE\n    return SCALE\n")
        assert reference.build("late.py:f", {}, {}) == 2.0

    def test_sources(self, folder):
        write("helper.py", "import math\nimport lib.deep.leaf\nSCALE = 1.0")
        for name in ("lib/__init__.py", "lib/deep/__init__.py", "lib/deep/other.py", "unused.py"):
            write(name, "")
        write("lib/deep/leaf.py", "from . import other\nfrom ..near import x")
        write("lib/near.py", "from my_models import slopes\nx = 1")
        found = [str(path) for path in reference.sources("my_models.py:slopes")]
        assert found[0] == "my_models.py"
        assert sorted(found[1:]) == sorted(
            [
                "helper.py",
                "lib/__init__.py",
                "lib/deep/__init__.py",
                "lib/deep/leaf.py",
                "lib/deep/other.py",
                "lib/near.py",
            ]
        )

    def test_file_is_read_anew(self):
        assert reference.load("my_models.py:slopes")({})[0] == "slopes"
        write("my_models.py", "def slopes(data):\n    return 'other', 'file'")
        assert reference.load("my_models.py:slopes")({})[0] == "other"

    def test_module(self):
        assert reference.load("pcv.models.zoo.rats:random_slopes") is rats.random_slopes
        assert str(reference.source("pcv.models.zoo.rats:random_slopes")) == rats.__file__

    def test_a_module_that_has_changed_since_it_was_imported(self, folder, monkeypatch):
        """Its file would be hashed, and what was imported run; a file's reference runs it anew."""
        sys.path.insert(0, str(folder))
        write("changing.py", "def f(data):\n    return 1\n")
        assert reference.load("changing:f")({}) == 1
        write("changing.py", "def f(data):\n    return 22\n")
        said = message(reference.load, "changing:f")
        assert said.endswith(
            "changing.py has changed since it was first loaded; start a new process"
        )
        assert reference.load("changing.py:f")({}) == 22
        importlib.reload(sys.modules["changing"])
        assert reference.load("changing:f")({}) == 22

    def test_search_path_is_left_alone(self):
        before = list(sys.path)
        reference.load("my_models.py:slopes")
        message(reference.load, "my_models.py:slope")
        assert sys.path == before


class TestNotFound:
    @pytest.mark.parametrize("text", ["slopes", "my_models.py", ":slopes", "my_models.py:", ""])
    def test_form(self, text):
        assert message(reference.load, text) == (
            f"model '{text}': write 'package.module:function' or 'file.py:function'"
        )

    def test_no_file(self, folder):
        assert message(reference.source, "my_model.py:slopes") == (
            f"model 'my_model.py:slopes': no file 'my_model.py' (paths are relative to {folder})"
        )

    @pytest.mark.parametrize("place", ["no.such.module", "nomodule", "json.decoder.x"])
    def test_no_module(self, place):
        assert message(reference.load, f"{place}:f") == (
            f"model '{place}:f': no module '{place}' in this environment"
        )

    def test_file_named_like_a_module(self, monkeypatch):
        monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
        assert message(reference.load, "my_models:slopes") == (
            "model 'my_models:slopes': no module 'my_models' in this environment; for your own "
            "file write 'my_models.py:slopes'"
        )

    def test_typo_in_the_function(self):
        assert message(reference.load, "my_models.py:slope") == (
            "model 'my_models.py:slope': my_models.py has no function 'slope'; did you mean "
            "'slopes'?"
        )
        assert message(reference.load, "pcv.models.zoo.rats:random_slop").endswith(
            "rats.py has no function 'random_slop'; did you mean 'random_slopes'?"
        )

    @pytest.mark.parametrize("function", ["xyz", "limit"])
    def test_no_such_function(self, function):
        """A number is no function, and imported names are not offered."""
        assert message(reference.load, f"my_models.py:{function}") == (
            f"model 'my_models.py:{function}': my_models.py has no function '{function}'; it has "
            "slopes, common, fails"
        )

    def test_no_functions_at_all(self):
        write("empty.py", "")
        assert message(reference.load, "empty.py:f") == (
            "model 'empty.py:f': empty.py has no function 'f'; it has none"
        )


class TestDoesNotImport:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (
                "import jax\nimport nunpyro\n",
                " (line 2): ModuleNotFoundError: No module named 'nunpyro'",
            ),
            (
                "def f(data)\n    pass\n",
                ": SyntaxError: expected ':' (broken.py, line 1)",
            ),
            (
                "import wrong_neighbour\n",
                ": SyntaxError: expected ':' (wrong_neighbour.py, line 2)",
            ),
            ("\n\nx = 1 / 0\n", " (line 3): ZeroDivisionError: division by zero"),
            ("raise SystemExit('done')\n", " (line 1): SystemExit: done"),
            ("raise ValueError('two\\nlines')\n", " (line 1): ValueError: two"),
        ],
    )
    def test_file(self, text, said):
        write("broken.py", text)
        write("wrong_neighbour.py", "\ndef f(data)\n")
        assert message(reference.load, "broken.py:f") == (
            f"model 'broken.py:f': broken.py fails to import{said}"
        )

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("import nunpyro", "ModuleNotFoundError: No module named 'nunpyro'"),
            ("raise ValueError('no data')", "ValueError: no data"),
        ],
    )
    def test_package(self, folder, text, said):
        write("mine/__init__.py", text)
        write("mine/models.py", "def f(data): ...")
        sys.path.insert(0, str(folder))
        for function in (reference.source, reference.load):
            assert message(function, "mine.models:f") == (
                f"model 'mine.models:f': mine.models fails to import: {said}"
            )


class TestCall:
    def test_unknown_argument(self):
        assert message(reference.build, "my_models.py:slopes", {}, {"priors": "paper"}) == (
            "model 'my_models.py:slopes': slopes(data, priors='paper') fails: "
            "TypeError: slopes() got an unexpected keyword argument 'priors'"
        )

    def test_missing_column(self):
        assert message(reference.build, "my_models.py:common", {"day": [8], "unit": [0]}, {}) == (
            "model 'my_models.py:common': common(data) fails (line 13): KeyError: "
            "'rat'; the data have day, unit"
        )

    def test_error_inside(self):
        assert message(reference.build, "my_models.py:fails", {}, {}) == (
            "model 'my_models.py:fails': fails(data) fails (line 16): ValueError: math domain error"
        )


class TestCheck:
    """What can be known without running a file."""

    @pytest.mark.parametrize("name", ["slopes", "sqrt_of", "Made", "made", "OrderedDict", "limit"])
    def test_names_that_are_there(self, name):
        write(
            "my_models.py",
            MODELS + "\nfrom math import sqrt as sqrt_of\nclass Made: ...\nmade = Made\n",
        )
        reference.check(f"my_models.py:{name}")

    def test_names_that_are_not(self):
        assert message(reference.check, "my_models.py:slope") == (
            "model 'my_models.py:slope': my_models.py has no function 'slope'; did you mean"
            " 'slopes'?"
        )
        reference.check("pcv.models.zoo.rats:random_slopes")
        assert "has no function 'random'" in message(reference.check, "pcv.models.zoo.rats:random")

    @pytest.mark.parametrize("text", ["from os import *", "globals()['f'] = 3", "def f(:"])
    def test_files_that_must_be_run_to_know(self, text):
        write("my_models.py", text)
        reference.check("my_models.py:f")


def test_text_that_reaches_jax_is_to_be_recoded():
    write(
        "text.py", "import jax.numpy as jnp\ndef f(data):\n    return jnp.asarray(data['name'])\n"
    )
    said = message(reference.build, "text.py:f", {"name": np.array(["a", "b"])}, {})
    assert said.endswith(
        "recode name as numbers, for example by np.unique(…, return_inverse=True)[1]"
    )
