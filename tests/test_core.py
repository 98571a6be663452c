"""The core: from problems to diagnostics, without jobs, files and configs."""

import ast
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import pcv
from pcv import core, sampling
from pcv.base.monitor import SILENT, Monitor
from pcv.compile import programs
from pcv.core.cross_validate import cross_validate
from pcv.core.problem import pose
from pcv.core.settings import Settings
from tests.bounds import z_limit
from tests.problems import exact, normal_means
from tests.programs import counted

ARTIFACTS = ("pcv.pipeline.", "pcv.api.", "pcv.report.", "pcv.base.reference.")


def settings(**cv) -> Settings:
    fit = {"warmup": 500, "draws": 500}
    chains = {"chains": 4, "draws": 200, "warmup": 50}
    folds = {"scheme": "k_fold", "k": 5}
    return Settings.model_validate({"folds": folds, "fit": fit, "cv": chains | cv})


def problem(y=None, seed=1):
    """Normal means, of other outcomes if given."""
    known = normal_means()
    data = known.data if y is None else known.data | {"y": y}
    return pose("means", known.model, data, known.schemes["k-fold"], "plain", seed=seed)


@pytest.mark.parametrize("until", [None, {"fold_mcse": 0.02, "max_draws": 3200}])
def test_folds_are_estimated_without_jobs_and_files(until, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messages, posed = [], problem()
    asked = settings() if until is None else settings(until=until)
    found = cross_validate({"means": posed}, asked, Monitor(emit=messages.append))["means"]
    d = found.diagnostics
    exactly = exact(normal_means(), posed.folds).joint
    z = (d["joint_elpd"].values - exactly) / d["joint_mcse"].values
    assert np.abs(z).max() < z_limit(len(z), df=15)  # 16 batches, or more
    number = d["n_draws"].values
    assert (number == 200).all() if until is None else (number.max() > number.min())
    assert not list(tmp_path.iterdir())
    assert messages[0].startswith("fit means: the full data, ")
    assert "posterior" in found.fit


@pytest.mark.parametrize("number", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_loop_over_simulated_data_compiles_once(number, monkeypatch):
    monkeypatch.setattr(programs, "_compiled", {})
    rng, compiled = np.random.default_rng(1), []
    for simulation in range(number):
        y = rng.normal(size=len(normal_means().data["y"]))
        with counted() as events:
            cross_validate({"means": problem(y, simulation)}, settings(), SILENT)
        compiled.append(events.count("backend_compile"))
    assert compiled[0] > 0
    assert compiled[1:] == [0] * (number - 1)


@pytest.mark.slow
@pytest.mark.parametrize("until", [None, {"fold_mcse": 0.03, "min_draws": 100, "max_draws": 800}])
def test_what_a_call_makes_stays_in_memory(until, tmp_path, monkeypatch):
    """The same as with `results`, bit by bit."""
    known = normal_means()
    models, data = {"means": known.model}, known.data
    short = {"chains": 2, "draws": 100, "warmup": 20, "fit": {"warmup": 200, "draws": 200}}
    call = partial(pcv.cross_validate, models, pcv.kfold(14, 5), data=data, progress=False, **short)
    call = partial(call, cv={"fold_batches": 2, "batch_size": 50}, until=until)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *_, **__: pytest.fail("a folder"))
    alone = call()["means"]
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    stored = call(results=tmp_path / "kept")["means"]
    for group in ("diagnostics", "folds", "posterior", "log_likelihood"):
        ours, theirs = (x.tree[group].to_dataset() for x in (alone, stored))
        assert set(ours.variables) == set(theirs.variables)
        for name in ours.variables:
            np.testing.assert_array_equal(ours[name].values, theirs[name].values)


@pytest.mark.parametrize("room", [sampling, core])
def test_the_method_knows_no_artifacts(room):
    files = list(Path(room.__file__).parent.rglob("*.py"))
    assert len(files) > 10
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{x.name}." for x in node.names]
                assert not any(name.startswith(ARTIFACTS) for name in names), file.name
