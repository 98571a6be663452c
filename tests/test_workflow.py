"""The workflow: real runs in folders of their own, then what a change of anything re-runs.

What is out of date is asked of the functions behind `pcv status`, and for three changes of
Snakemake as well, whose answers must be the same.
"""

import base64
import itertools
import os
import re
import shutil
import zipfile
from pathlib import Path

import fsspec
import pytest
import xarray as xr
import yaml

from pcv.base.monitor import SILENT
from pcv.base.names import batch_names
from pcv.pipeline import config, graph, stages
from pcv.pipeline.job import Job
from pcv.pipeline.status import artifacts
from pcv.pipeline.storage import store
from tests.workflow import (
    CONFIG,
    MODEL,
    ROOT,
    Run,
    changed,
    kept,
    make_project,
    planned,
    run_module,
    run_whole,
    snakemake,
    tiny,
    write_config,
)

MODEL_A = CONFIG["experiments"]["tiny"]["models"]["a"]
PER_MODEL = ("fit", "warmup", "sample", "diagnose")
END = {"compare", "report"}
A, B = ({f"{stage} {model}" for stage in PER_MODEL} for model in "ab")
ALL = {"data", "folds"} | A | B | END


def to_do(folder: Path, config: str = "tiny.yaml") -> set[str]:
    return planned(snakemake(folder, "--dry-run", "--configfile", config))


def job_of(settings: dict, model: str = "") -> Job:
    return Job(config.parse(settings), "tiny", Path("results"), model, monitor=SILENT)


def out_of_date(settings: dict) -> set[str]:
    """The jobs that a run of this config needs in the present folder, as `planned` has them."""
    made_again = (a for a in artifacts(job_of(settings)) if a.state != "done")
    return {f"{a.stage} {a.job.model}".strip() for a in made_again}


@pytest.fixture
def finished(shelf) -> tuple[Path, Run]:
    """A project that ran to its end, and what it printed. Tests change copies of it."""
    return kept(shelf("tiny", run_whole))


@pytest.fixture
def module_run(shelf) -> tuple[Path, Run]:
    """A project of `pcv init` with three experiments that ran to its end."""
    return kept(shelf("module", run_module))


@pytest.fixture
def project(finished: tuple[Path, Run], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[0], tmp_path / "project"))


def test_leaves_every_artifact_with_log_and_benchmark(finished):
    results = finished[0] / "results"
    for stage, model, batch in itertools.product(
        {name for name, line in graph.STAGES.items() if line.path}
        - {"surrogates", "subsample", "evidence", "cut"},
        "ab",
        batch_names(2),
    ):
        assert graph.path(results, stage, "tiny", model, batch).exists()
        assert graph.benchmark(results, stage, "tiny", model, batch).exists()
    for name in graph.FIGURES:
        for suffix in ("png", "svg"):
            assert (results / f"tiny/figures/{name}.{suffix}").stat().st_size > 1000
    jobs = {job.replace(" ", "-") for job in ALL}
    stems = {
        suffix: {re.sub(r"-\d-of-2", "", path.stem) for path in results.glob(f"tiny/*/*.{suffix}")}
        for suffix in ("log", "tsv")
    }
    assert stems == {"log": jobs, "tsv": jobs}
    assert yaml.safe_load((results / "config.yaml").read_text()) == CONFIG
    assert yaml.safe_load((results / "tiny/config.yaml").read_text()) == CONFIG


def test_artifacts_open_in_a_bucket(finished):
    results = finished[0] / "results/tiny"
    for name in ("comparison.zarr", "models/a/diagnostics.zarr"):
        fsspec.filesystem("memory").put(str(results / name), f"/bucket/{name}", recursive=True)
        there = xr.open_dataset(f"memory://bucket/{name}", engine="zarr").load()
        assert there.identical(xr.open_dataset(results / name, engine="zarr").load())


def test_experiments_have_their_configs_apart(project):
    """Jobs of one run do not read what another run's config says."""
    renamed = {"experiments": {"other": CONFIG["experiments"]["tiny"]}}
    write_config(project, {**CONFIG, **renamed})
    before = (project / "results/tiny/config.yaml").read_bytes()
    assert tiny(project, "results/other/data.zarr").status == 0
    assert (project / "results/tiny/config.yaml").read_bytes() == before
    (project / "results/config.yaml").unlink()
    write_config(project, CONFIG)
    assert (
        "results/tiny/config.yaml"
        in tiny(project, "--dry-run", "--printshellcmds", "--forceall").out
    )


def test_ends_with_the_table_and_the_report(finished):
    _, run = finished
    *_, last = run.out.strip().splitlines()
    assert last == "Report: results/tiny/report.html"
    assert run.out.count("Joint log score of y") == 1
    assert run.out.index("diagnose b:") < run.out.index("Joint log score of y")


def test_says_how_far_it_is_and_not_much_else(finished):
    _, run = finished
    steps = len(ALL) + 4 + 1  # second fold batches of warmup and sample; the target
    assert f"{steps} of {steps} steps (100%) done" in run.err
    after = run.err[run.err.index("Job stats") :]
    for chatter in ("Select jobs", "Execute", "jobid", "wildcards", "Finished", "reason"):
        assert chatter not in after


def test_then_there_is_nothing_to_do_but_to_show_the_table_again(finished, project):
    run = tiny(project)
    assert run.status == 0
    assert "Nothing to be done" in run.err
    assert run.out == finished[1].out[finished[1].out.index("Joint log score of y") :]
    assert "Report" not in tiny(project, "--dry-run").out


def test_rounds_until_the_comparison_is_settled(module_run):
    folder, run = module_run
    named = r"round 1: .*; 2 of 2 folds continue: \S+ \S+ of \w+"
    assert re.search(named, run.out + run.err)
    place = folder / "results/rounds/models/a"
    drawn = {d: {len_of(x) for x in (place / d).glob("*.zarr")} for d in ("sample", "sample/2")}
    assert drawn == {"sample": {40}, "sample/2": {80}}
    assert len_of(place / "diagnostics.zarr") == 160


def len_of(artifact: Path) -> int:
    """The number of draws of all its folds."""
    (number,) = set(xr.open_dataset(artifact)["n_draws"].values)
    return int(number)


def test_batches_by_memory(module_run, tmp_path):
    place = module_run[0] / "results/rounds/models/a"
    number = xr.open_dataset(place / "batches.zarr").attrs["fold_batches"]
    assert number == 2
    for stage in ("warmup", "sample", "sample/1"):
        made = {path.stem for path in (place / stage).glob("*.zarr")}
        assert made == set(batch_names(number))
    project = shutil.copytree(module_run[0], tmp_path / "project")
    settings = yaml.safe_load((project / "config.yaml").read_text())
    settings["experiments"]["rounds"]["models"]["c"] = C
    write_config(project, settings, "config.yaml")
    again = planned(snakemake(project, "--dry-run", snakefile=project / "Snakefile"))
    assert again >= {"cv_fit c", "cv_cut c", "cv_compare"}
    assert not again & {"cv_fit a", "cv_cut a", "cv_warmup a", "cv_sample a"}


SAMPLED = {f"{stage} {model}" for stage in ("sample", "diagnose") for model in "ab"} | END
WARMED = SAMPLED | {"warmup a", "warmup b"}
NEW = {f"{stage} c" for stage in PER_MODEL} | END
C = {"model": "c.py:normal", "args": {}}
RERUNS = {
    "a prior": (changed(models__b__args={"scale": 0.4}), B | END),
    "another model": (changed(models__c=C), NEW),
    "a model less": (changed(models={"a": MODEL_A}), END),
    "model order": (
        changed(models=dict(reversed(CONFIG["experiments"]["tiny"]["models"].items()))),
        set(),
    ),
    "draws": (changed(cv__draws=60), SAMPLED),
    "store": (changed(cv__store="sums"), SAMPLED),
    "chains": (changed(cv__chains=4), WARMED),
    "fold batches": (changed(cv__fold_batches=1), WARMED),
    "predictive": (changed(predictive="plain"), WARMED),
    "paths": (changed(predict="path"), SAMPLED),
    "folds": (changed(folds__k=3), WARMED | {"folds"}),
    "fit": (changed(fit__draws=300), WARMED | {"fit a", "fit b"}),
    "bad fits": (changed(fit__allow_bad_fit=True), set()),
    "seed": (CONFIG | {"seed": 2}, ALL - {"data"}),
    "precision": (CONFIG | {"precision": "float32"}, ALL - {"data", "folds"}),
    "data": (changed(data__columns=["y"]), ALL),
    "reference": (changed(compare__reference="b"), END),
    "title": (changed(report__title="Tiny"), {"report"}),
    "defaults written out": (changed(cv__store="draws", report={}, scores=["log"]), set()),
}


@pytest.mark.parametrize("change", [x for x in RERUNS if x != "title"])  # the page has no stamp
def test_a_change_of_config_is_out_of_date_in_what_depends_on_it(finished, monkeypatch, change):
    monkeypatch.chdir(finished[0])
    settings, expected = RERUNS[change]
    assert out_of_date(settings) == expected


@pytest.mark.parametrize("change", ["a prior", "fold batches", "title"])
def test_a_change_of_config_reruns_what_depends_on_it(project, change):
    settings, expected = RERUNS[change]
    write_config(project, settings)
    assert to_do(project) == expected


@pytest.mark.parametrize(
    ("file", "expected"), [("data.csv", ALL), ("b.py", B | END), ("c.py", set())]
)
def test_a_change_of_file_reruns_what_depends_on_it(project, monkeypatch, file, expected):
    monkeypatch.chdir(project)
    path = project / file
    path.touch()
    assert to_do(project) == out_of_date(CONFIG) == set()
    path.write_text(path.read_text().replace("0.3", "0.2") + "\n")
    assert to_do(project) == out_of_date(CONFIG) == expected


@pytest.mark.parametrize("change", ["draws", "data"])
def test_artifacts_that_commands_made_rerun_as_well(project, change):
    """Snakemake knows nothing of the settings of jobs that it did not run."""
    shutil.rmtree(project / ".snakemake")
    shutil.rmtree(project / "results/.recipes")
    assert to_do(project) == set()
    config, expected = RERUNS[change]
    write_config(project, config)
    assert to_do(project) == expected
    write_config(project, CONFIG)
    assert to_do(project) == set()


def test_stages_that_make_the_same_again_rerun_nothing(project, monkeypatch):
    monkeypatch.chdir(project)
    stages.data(job_of(CONFIG))
    stages.folds(job_of(CONFIG), plot=True)
    stages.compare(job_of(CONFIG))
    assert (project / "results/tiny/figures/folds.png").exists()
    assert to_do(project) == set()


@pytest.mark.slow
def test_a_changed_model_that_has_been_fitted_is_not_fitted_again(project, monkeypatch):
    """Snakemake takes the older of an artifact and the benchmark of the job before."""
    monkeypatch.chdir(project)
    path = project / "b.py"
    path.write_text(path.read_text() + "\n")
    assert to_do(project) == B | END
    stages.fit(job_of(CONFIG, "b"))
    assert to_do(project) == (B - {"fit b"}) | END


@pytest.mark.parametrize(("file", "expected"), [("data.csv", ALL), ("b.py", B | END)])
def test_a_changed_file_may_be_older_than_what_was_made_of_it(project, file, expected):
    """As after `cp -p`, or where a job ran while it was edited: the stamp says what was read."""
    path = project / file
    before = path.stat()
    path.write_text(path.read_text().replace("0.3", "0.2") + "\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert to_do(project) == expected


def test_an_artifact_that_a_command_made_of_another_config_is_made_again(project, monkeypatch):
    monkeypatch.chdir(project)
    stages.data(job_of(changed(data__columns=["y"])))
    assert to_do(project) == ALL
    assert tiny(project, "results/tiny/data.zarr").status == 0
    assert to_do(project) == ALL - {"data"}


def test_what_a_failed_job_was_to_make_anew_is_made_again(project):
    """Snakemake removes what a job that fails has made; results of the former one stay."""
    results = project / "results/tiny"
    shutil.rmtree(results / "comparison.zarr")
    assert to_do(project) == END
    shutil.rmtree(results / "models/a/sample/2-of-2.zarr")
    assert to_do(project) == {"sample a", "diagnose a"} | END
    shutil.rmtree(results / "models/b/fit.zarr")
    lost = {"sample a", "diagnose a"} | B | END
    assert to_do(project) == lost
    write_config(project, changed(cv__fold_batches=1))
    assert to_do(project) >= {"sample a", "sample b"}
    write_config(project, CONFIG)
    assert to_do(project) == lost


def test_what_a_killed_run_was_making_is_made_again(project):
    made = "results/tiny/models/b/fit.zarr"
    marker = base64.b64encode(made.encode()).decode()
    (project / ".snakemake/incomplete").mkdir(exist_ok=True)
    (project / ".snakemake/incomplete" / marker).touch()
    assert to_do(project) == B | END


def test_a_missing_report_is_made_again(project):
    (project / "results/tiny/figures/khat.svg").unlink()
    assert to_do(project) == {"report"}


@pytest.mark.slow
def test_report_settings_rerun_in_seconds_and_leave_the_rest(project):
    """Also where logs and figures were removed."""
    shutil.rmtree(project / "results/tiny/logs")
    (project / "results/tiny/figures/khat.svg").unlink()
    artifacts = {path: path.stat().st_mtime_ns for path in project.glob("results/**/zarr.json")}
    write_config(project, changed(report__title="Two normals"))
    run = tiny(project)
    assert run.status == 0, run.err
    assert "Traceback" not in run.err
    assert run.out.strip().splitlines()[-1] == "Report: results/tiny/report.html"
    assert "Two normals" in (project / "results/tiny/report.html").read_text()
    assert artifacts == {path: path.stat().st_mtime_ns for path in artifacts}
    assert to_do(project) == set()


def test_a_rule_of_ones_own_that_has_no_log_is_told_of_when_it_fails(project):
    rule = f'include: "{ROOT}/Snakefile"\nrule mine:\n    output: "mine.txt"\n    shell: "false"\n'
    (project / "own.smk").write_text(rule)
    arguments = "mine.txt", "--configfile", "tiny.yaml"
    run = snakemake(project, *arguments, snakefile=project / "own.smk")
    assert run.status == 1
    assert "Error in rule mine" in run.err
    assert "Traceback" not in run.err


def test_a_failing_job_is_told_in_one_line_and_spoils_nothing(project):
    broken = MODEL.replace('.log_prob(data["y"])', '.log_prob(data["y"][:5])')
    (project / "b.py").write_text(broken)
    for _ in range(2):  # results of the former model are there, and are no answer
        run = tiny(project)
        assert run.status != 0
    assert "Traceback" not in run.out + run.err
    assert "CalledProcessError" not in run.err
    failed, error, *last = run.err.strip().splitlines()[-4:]
    assert failed == "fit failed; full output in results/tiny/logs/fit-b.log"
    assert error.startswith("error: model 'b': log_lik ")
    assert "(12,)" in error
    assert last == ["WorkflowError:", "At least one job did not complete successfully."]
    for stage in ("data", "folds", "fit", "warmup", "sample", "diagnose"):
        path = graph.path(project / "results", stage, "tiny", "a", "2-of-2")
        store.read_stamp(path, stage)
    assert not graph.path(project / "results", "fit", "tiny", "b").exists()
    (project / "b.py").write_text(MODEL)
    assert to_do(project) == B | END


BAD = {
    "unknown key": (changed(cv__drawz=3), "tiny.cv.drawz: unknown key; did you mean 'draws'?"),
    "no such data": (changed(data__file="date.csv"), "tiny.data.file: no file 'date.csv'"),
    "braces in a file's name": (changed(data__file="d{x}.csv"), "'d{x}.csv' has braces, which"),
    "no such model file": (changed(models__c={"model": "d.py:normal"}), "no file 'd.py'"),
    "no experiments": ({"seed": 1, "experimnts": {}}, "did you mean 'experiments'?"),
}


@pytest.mark.parametrize("problem", BAD)
def test_a_bad_config_is_refused_in_plain_words(project, problem):
    config, message = BAD[problem]
    write_config(project, config)
    shutil.copytree(ROOT / "config", project / "config")
    run = tiny(project, "--dry-run")
    assert run.status == 1
    assert message in run.err
    assert "Traceback" not in run.err
    assert "common.smk" not in run.err
    told = run.err.strip().splitlines()[1:]
    assert all(line.startswith("error: ") for line in told)


def test_a_file_where_the_results_are_kept(tmp_path):
    (make_project(tmp_path) / "results").write_text("")
    run = tiny(tmp_path, "--dry-run")
    assert run.status == 1
    words = "error: results: a file stands where a folder is needed; move it away"
    assert words in run.err.splitlines()


@pytest.mark.parametrize("place", ["results/config.yaml", "results/tiny/config.yaml"])
def test_a_folder_where_the_config_is_kept(tmp_path, place):
    (make_project(tmp_path) / place).mkdir(parents=True)
    run = tiny(tmp_path, "--dry-run")
    assert run.status == 1
    words = f"error: {place}: a folder stands where a file is needed; move it away"
    assert run.err.strip().splitlines()[1:] == [words]


def test_a_key_given_twice_is_refused(project):
    with (project / "tiny.yaml").open("a") as file:
        file.write("seed: 3\n")
    run = tiny(project, "--dry-run")
    assert run.status == 1
    assert "the key 'seed' is given twice in one section, first on line 1" in run.err


def test_own_experiments_replace_the_default_ones(project):
    for folder in ("config", "resources"):
        shutil.copytree(ROOT / folder, project / folder)
    default = snakemake(project, "--dry-run")
    assert planned(default) == {"data", "folds"} | END | {
        f"{stage} {model}" for stage in PER_MODEL for model in ("slopes", "common")
    }
    assert "tiny" not in default.out
    assert to_do(project) == set()


def test_seed_on_the_command_line(project):
    run = tiny(project, "--dry-run", "--config", "seed=2")
    assert planned(run) == ALL - {"data"}


@pytest.mark.slow
def test_runs_in_another_directory(project):
    run = snakemake(
        project.parent, "--directory", "project", "--configfile", "project/tiny.yaml", "--dry-run"
    )
    assert planned(run) == set()


def test_as_a_module_of_another_workflow(project):
    (project / "Snakefile").write_text(
        f"""
configfile: "outer.yaml"

module pcv:
    snakefile: "{ROOT / "workflow/Snakefile"}"
    config: config["cross_validation"]

use rule * from pcv as pcv_*

rule raw:
    output: "raw.csv"
    shell: "cp data.csv {{output}}"

rule outer:
    default_target: True
    input: rules.pcv_all.input
"""
    )
    shutil.rmtree(project / "results")
    config = {"cross_validation": changed(data__file="raw.csv")}
    (project / "outer.yaml").write_text(yaml.safe_dump(config))
    own = project / "Snakefile"
    run = snakemake(project, "--dry-run", snakefile=own)
    assert planned(run) == {"raw", "outer"} | {f"pcv_{job}" for job in ALL}


def test_a_part_can_be_asked_for(project):
    shutil.rmtree(project / "results")
    run = tiny(project, "results/tiny/data.zarr")
    assert run.status == 0, run.err
    assert "Report" not in run.out


def test_snakemake_report_has_every_figure(project):
    run = tiny(project, "--report", "report.zip")
    assert run.status == 0, run.err
    with zipfile.ZipFile(project / "report.zip") as archive:
        names = {Path(name).name for name in archive.namelist()}
    assert names >= {f"{name}.svg" for name in graph.FIGURES} | {"report.html", "comparison.csv"}
