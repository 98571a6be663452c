"""Folds in other company: those that were sampled before keep their draws, the others are made."""

import contextlib
import shutil

import jax
import numpy as np
import pytest
import xarray as xr

from pcv.base.section import OF_REPLICATES
from pcv.folds.time import leave_future_out
from pcv.models.scores import SCORES
from pcv.pipeline.job import fold_fingerprints
from pcv.sampling.folds import moving
from tests.faults import Killed, killed_after
from tests.project import run, set_up
from tests.slow import repeated

CV = {"chains": 4, "warmup": 20, "draws": 60, "batch_size": 12}


def settings(min_observations, **changes):
    """Folds for each unit after so many."""
    folds = {"scheme": "leave_future_out", "min_observations": min_observations}
    cv = {**CV, **changes.pop("cv", {})}
    return {"folds": folds, "cv": cv, "scores": ["log", "crps"], **changes}


FEW, MORE = 8, 6  # four folds, and the two before them
LEFT = "results/.checkpoints", *(f"results/yields/models/flat/{x}" for x in ("warmup", "sample"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = set_up(tmp_path_factory.mktemp("added") / "project")
    with contextlib.chdir(made.folder), jax.enable_x64(True):
        run(made.job(settings(FEW), "flat"), "data", "fit")
    return made


def forget():
    for left in LEFT:
        shutil.rmtree(left, ignore_errors=True)


@pytest.fixture
def project(folder, monkeypatch):
    """After the fit, with nothing of any folds."""
    monkeypatch.chdir(folder.folder)
    folder.said.clear()
    forget()
    with jax.enable_x64(True):
        yield folder


@pytest.fixture(scope="module")
def few(folder):
    """Four folds, once sampled, and what that leaves."""
    with contextlib.chdir(folder.folder), jax.enable_x64(True):
        forget()
        made = sampled(folder, settings(FEW))
        for left in LEFT:
            shutil.copytree(left, f"few/{left}")
    return made


@pytest.fixture
def before(few, project):
    """A project with four folds that are sampled; their samples."""
    for left in LEFT:
        shutil.copytree(f"few/{left}", left)
    return few


def sampled(project, changes):
    """Samples of all batches of folds, and the warmup, as one."""
    job = project.job(changes, "flat")
    run(job, "folds", "warmup", "sample")
    found = []
    for stage in ("sample", "warmup"):
        parts = sorted(job._replace(batch="1-of-1").path(stage).parent.glob("*.zarr"))
        of = f"-of-{changes['cv'].get('fold_batches', 1)}.zarr"
        stores = [xr.open_dataset(p, engine="zarr").load() for p in parts if p.name.endswith(of)]
        kept = ("state", "adapted") if stage == "warmup" else stores[0].data_vars
        found.append(xr.concat([x[list(kept)] for x in stores], "fold").drop_attrs(deep=False))
    warm = found[1]
    return found[0].assign(
        warm=(("fold", "chain", "param"), warm["state"].values),
        own=("fold", warm["adapted"].values),
    )


@pytest.fixture
def drawn(monkeypatch):
    """How many folds were drawn, by the number of draws: of warmups (20), and of samples."""
    as_it_is, found = moving.blocks, []

    def blocks(engine, root, kernel, folds, *rest, num_draws, **more):
        if num_draws:
            found.append((len(folds.id), num_draws))
        return as_it_is(engine, root, kernel, folds, *rest, num_draws=num_draws, **more)

    monkeypatch.setattr(moving, "blocks", blocks)
    return found


def close(one, other):
    for name in ("log_joint_draws", "log_pointwise_mean", "acceptance", "crps_joint_to_observed"):
        if name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-6, err_msg=name)


def test_folds_that_are_added_are_sampled_alone(project, before, drawn):
    after = sampled(project, settings(MORE))
    assert drawn == [(2, 20), (2, 60)]
    assert "sample flat: 4 of 6 folds have saved blocks; the others are made" in project.said
    assert after.sizes["fold"] == 6
    assert after.sel(fold=before["fold"]).identical(before)
    shutil.rmtree("results/.checkpoints")
    drawn.clear()
    anew = sampled(project, settings(MORE))
    assert drawn == [(6, 20), (6, 60)]
    close(after, anew)


@pytest.mark.slow
def test_folds_and_draws_are_added_at_once(project, before, drawn):
    both = settings(MORE, cv={"draws": 96})
    after = sampled(project, both)
    assert drawn == [(2, 20), (2, 60), (6, 36)]
    shutil.rmtree("results/.checkpoints")
    close(after, sampled(project, both))


def test_folds_that_are_taken_away_cost_nothing(project, drawn):
    before = sampled(project, settings(MORE))
    drawn.clear()
    after = sampled(project, settings(FEW))
    assert drawn == []
    assert after.identical(before.sel(fold=after["fold"]))


@pytest.mark.slow
def test_another_cut_costs_nothing(project, drawn):
    whole = sampled(project, settings(MORE))
    drawn.clear()
    assert sampled(project, settings(MORE, cv={"fold_batches": 3})).identical(whole)
    assert sampled(project, settings(MORE, cv={"fold_batches": 2})).identical(whole)
    assert drawn == []


@pytest.mark.slow
def test_folds_of_several_batches_and_new_ones(project, drawn):
    before = sampled(project, settings(FEW, cv={"fold_batches": 2}))
    drawn.clear()
    after = sampled(project, settings(MORE, cv={"fold_batches": 2}))
    assert drawn == [(2, 20), (2, 60)]
    assert after.sel(fold=before["fold"]).identical(before)


@pytest.mark.slow
def test_kernels_of_their_own(project, drawn):
    always = {"adapt": "always"}
    before = sampled(project, settings(FEW, cv=always))
    after = sampled(project, settings(MORE, cv=always))
    assert after["own"].all()
    assert after.sel(fold=before["fold"]).identical(before)
    shutil.rmtree("results/.checkpoints")
    close(after, sampled(project, settings(MORE, cv=always)))


@pytest.mark.parametrize("writes", repeated([(5,), (0, 12)]))
def test_killed_while_folds_are_added(project, before, monkeypatch, writes):
    """At a block of the new folds, or while all are put together."""
    run(project.job(settings(MORE), "flat"), "folds", "warmup")
    shutil.rmtree("kept", ignore_errors=True)
    shutil.copytree("results/.checkpoints", "kept")
    undisturbed = sampled(project, settings(MORE))
    for number in writes:
        for left in (LEFT[0], LEFT[2]):
            shutil.rmtree(left)
        shutil.copytree("kept", LEFT[0])
        with monkeypatch.context() as patch:
            killed_after(patch, number)
            with pytest.raises(Killed):
                run(project.job(settings(MORE), "flat"), "sample")
        assert sampled(project, settings(MORE)).identical(undisturbed)


@pytest.mark.slow
def test_a_block_of_others_that_is_damaged_counts_no_more(project, before, drawn):
    (block,) = project.folder.glob("results/.checkpoints/yields/flat/0/*/block-000003")
    block.write_bytes(b"")
    drawn.clear()
    after = sampled(project, settings(MORE))
    assert drawn == [(2, 20), (2, 24), (6, 36)]  # states are kept after 1, 2 and 4 blocks
    assert after.sizes["fold"] == 6


@pytest.mark.slow
def test_a_run_that_stops_when_the_answer_is_in_begins_anew(project, drawn):
    """Which folds go on may depend on the others."""
    until = {"until": {"fold_mcse": 0.12, "min_draws": 48, "max_draws": 96}}
    sampled(project, settings(FEW, cv=until))
    drawn.clear()
    after = sampled(project, settings(MORE, cv=until))
    assert (6, 48) in drawn
    shutil.rmtree("results/.checkpoints")
    close(after, sampled(project, settings(MORE, cv=until)))


@pytest.mark.slow
def test_another_model_begins_anew(project, before, drawn):
    other = settings(FEW, **{"models.flat.args": {"scale": 4.0}})
    run(project.job(other, "flat"), "fit")
    drawn.clear()
    sampled(project, other)
    assert drawn == [(4, 20), (4, 60)]
    run(project.job(settings(FEW), "flat"), "fit")


@pytest.mark.slow
def test_scores_of_stored_replicates_take_no_draws(project, before, drawn):
    more = settings(FEW, scores=["log", "crps", "energy", "interval"])
    after = sampled(project, more)
    assert drawn == []
    assert {str(name).split("_")[0] for name in after.data_vars.keys() - before.keys()} == {
        "energy",
        "interval",
    }
    shutil.rmtree("results/.checkpoints")
    assert sampled(project, more).identical(after)


def test_scores_that_are_computed_from_replicates():
    of_blocks = {name for name, kinds in SCORES.items() if {x.per for x in kinds} == {"block"}}
    assert of_blocks == set(OF_REPLICATES)


def test_prints_tell_folds_apart():
    """A fold's is the same whatever room the others take; any change of it shows."""
    units = [str(i) for i in range(9)]
    wide, narrow = (leave_future_out(units, 5, horizon) for horizon in (2, 1))
    again = wide._replace(test=np.pad(wide.test, ((0, 0), (0, 2)), constant_values=-1))
    assert fold_fingerprints(wide) == fold_fingerprints(again)
    assert not set(fold_fingerprints(wide)) & set(fold_fingerprints(narrow))
    renamed = wide._replace(id=wide.id + "'")
    assert len({*fold_fingerprints(wide), *fold_fingerprints(renamed)}) == 2 * len(wide.id)
