"""The stages' calls by themselves: from a model and folds to estimates, in memory."""

import ast
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import pcv
from pcv import sampling
from pcv.analysis.diagnostics import LogSums, Sides, two_sided, two_sided_mcse
from pcv.base.keys import key
from pcv.models.effects.marginal import choose
from pcv.models.model import target
from pcv.models.parameters import flat_target, param_names
from pcv.sampling import tiles
from pcv.sampling.fit import posterior
from pcv.sampling.folds import drawing, starting
from pcv.sampling.folds.moving import standing_at
from tests.bounds import z_limit
from tests.chains import nothing_said
from tests.problems import exact, normal_means

ARTIFACTS = ("pcv.pipeline.", "pcv.api.", "pcv.base.reference.")


@pytest.mark.parametrize("until", [None, drawing.Until(0.02, None, 1.05, 0)], ids=["200", "until"])
def test_folds_are_estimated_without_jobs_and_files(until, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem = normal_means()
    folds = problem.schemes["k-fold"]
    arrays = {**problem.data, "unit": np.arange(len(problem.data["y"]))}
    named = target(problem.model, arrays, "plain")
    flat, _ = flat_target(named)
    root, told = partial(key, 1, "means"), []
    found = posterior.fit(
        flat, len(arrays["unit"]), param_names(named), root, 4, 500, 500, None, told.append, repr
    )
    assert not found.checks.problems
    fit, position = found.fit, found.fit.draws.position
    engine = tiles.build(flat, (), len(arrays["unit"]), 50)
    warm = starting.warmed(
        choose("plain", problem.model, "means", arrays, folds),
        engine,
        fit,
        folds,
        starting.FullData(position.reshape(-1, position.shape[-1]), None, bad=False),
        starting.Plan(1, "means", 4, 0, 50, "auto", 1.0),
        root,
        told.append,
        nothing_said,
        nothing_said,
    )
    begun = drawing.Begun(
        engine,
        root("sample"),
        fit.kernel,
        folds,
        warm.starts.own,
        standing_at(warm.starts.position),
        warm.starts.center | {"shift": warm.facing.shift},
        warm.facing.crossing,
        warm.facing.num_draws,
    )
    lengths = [200] if until is None else [200, 400, 800, 1600, 3200]
    every = list(drawing.sampled(begun, 0, lengths, until, told.append))
    exactly = exact(problem, folds).joint
    for fold in range(len(folds.id)):
        own = [d.block for d in every if fold in d.active]
        place = [int(np.flatnonzero(d.active == fold)[0]) for d in every if fold in d.active]
        fields = [
            np.stack([b.sums["joint"][f][i : i + 1] for b, i in zip(own, place)], axis=2)
            for f in LogSums._fields
        ]
        crossing = np.stack([b.crossing[i : i + 1] for b, i in zip(own, place)], axis=2)
        facing = warm.facing
        sides = Sides(
            facing.shift[[fold]], crossing, facing.crossing[[fold]], int(facing.num_draws)
        )
        both = two_sided(LogSums(*fields), sides, 1.0)
        limit = z_limit(len(folds.id), df=15)  # 16 batches, or more
        assert abs(both.elpd[0] - exactly[fold]) < limit * two_sided_mcse(both)[0]
        assert len(own) == 4 or until is not None
    assert len(every) == 4 if until is None else len(every) < 64  # 8 to 16
    assert not list(tmp_path.iterdir())
    assert told[0].startswith("the full data, ")


@pytest.mark.slow
@pytest.mark.parametrize("until", [None, {"fold_mcse": 0.03, "min_draws": 100, "max_draws": 800}])
def test_what_a_call_makes_stays_in_memory(until, tmp_path, monkeypatch):
    """The same as with `results`, bit by bit."""
    problem = normal_means()
    models, data = {"means": problem.model}, problem.data
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


def test_sampling_knows_no_artifacts():
    folder = Path(sampling.__file__).parent
    files = list(folder.rglob("*.py"))
    assert len(files) > 15
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{x.name}." for x in node.names]
                assert not any(name.startswith(ARTIFACTS) for name in names), file.name
