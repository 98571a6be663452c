"""The command as a user meets it: help with examples, one line per error, exit status, no JAX."""

import contextlib
import copy
import logging
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import pcv as package
from pcv.base.errors import Stopped
from pcv.base.monitor import LOGGER
from pcv.compile import cache
from pcv.pipeline import stages, status
from pcv.pipeline.cli import commands, shared
from pcv.pipeline.stages import comparison
from tests.project import CONFIG, MODELS, log_lik_table, table

STAGES = ("data", "fit", "folds", "warmup", "sample", "diagnose", "compare", "report")
COMMANDS = ("check", *STAGES)

pytestmark = pytest.mark.filterwarnings("ignore:JAX is running already")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A user's folder: data, models, a config of two experiments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setenv("COLUMNS", "100")
    Path("models.py").write_text(MODELS)
    table().to_csv("data.csv", index=False)
    yields, small = (copy.deepcopy(CONFIG["experiments"]["yields"]) for _ in range(2))
    small["models"] = {"plain": small["models"]["flat"]}
    save({"seed": 1, "experiments": {"yields": yields, "small": small}})
    return tmp_path


def save(content):
    Path("my.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def change(*path, to):
    """Change one key of the config file."""
    content = yaml.safe_load(Path("my.yaml").read_text())
    *sections, last = path
    section = content
    for name in sections:
        section = section.setdefault(name, {})
    section[last] = to
    save(content)


@contextlib.contextmanager
def without_handlers(monkeypatch):
    """Logging as in a process of its own: pytest's handlers would take the messages."""
    with monkeypatch.context() as patch:
        for logger in (logging.root, LOGGER):
            patch.setattr(logger, "handlers", [])
        yield


@pytest.fixture
def pcv(monkeypatch, capsys):
    """Run the command; gives its exit status and what it printed and complained of."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["pcv", *arguments])
        with pytest.raises(SystemExit) as left, without_handlers(monkeypatch):
            commands.main()
        printed = capsys.readouterr()
        return left.value.code or 0, printed.out, printed.err.splitlines()

    return call


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_has_an_example_that_parses(self, pcv, monkeypatch, command):
        status, out, _ = pcv(command, "--help")
        assert status == 0
        (example,) = [line.split() for line in out.splitlines() if "Example:" in line]
        assert example[:3] == ["Example:", "pcv", command]
        seen = []
        monkeypatch.setattr(shared, "jobs_of", lambda *args, **kwargs: seen.append(args) or [])
        assert pcv(*example[2:])[0] == 0
        assert str(seen[0][0]) == "config/config.yaml"

    def test_of_the_whole(self, pcv):
        status, out, _ = pcv("--help")
        assert status == 0
        assert "Example: pcv check config/config.yaml" in out
        assert all(command in out for command in ("init", *COMMANDS))

    def test_nothing_given_shows_the_help(self, pcv):
        status, out, err = pcv()
        assert status == 2
        assert "Example: pcv check" in out
        assert err == []

    def test_short_names(self, pcv):
        assert pcv("fit", "-h")[0] == 0


class TestLastResult:
    def test_version(self, pcv):
        assert pcv("--version") == (0, f"pcv {metadata.version('pcv-bayes')}\n", [])
        assert package.__version__ == metadata.version("pcv-bayes")

    def test_show(self, pcv, monkeypatch):
        monkeypatch.setattr(comparison, "show", lambda job: f"table of {job.experiment}")
        said = ["Experiment 'yields'", "table of yields", "Experiment 'small'", "table of small"]
        assert pcv("show", "my.yaml")[1].splitlines() == said
        assert pcv("show", "my.yaml", "-e", "small")[1] == "table of small\n"
        assert pcv("show")[2] == [
            "error: config.yaml: cannot be read (No such file or directory); give the path of a "
            "YAML file"
        ]
        Path("config").mkdir()
        Path("my.yaml").rename("config/config.yaml")
        assert pcv("show")[1].splitlines() == said

    def test_nothing_to_show(self, pcv):
        place = "results/yields/comparison.zarr"
        line = f"error: no comparison yet ({place}): run `snakemake --cores all`"
        assert pcv("show", "my.yaml") == (1, "", [line])


class TestImport:
    def test_a_file_that_the_config_names(self, pcv):
        log_lik_table().to_csv("theirs.csv", index=False)
        status, _, err = pcv("import", "theirs.csv", "my.yaml", "-e", "yields")
        assert status == 1
        assert err == [
            "error: my.yaml: no model is 'theirs.csv'; add it to experiments.yields.models, name: "
            "{model: theirs.csv}"
        ]
        change("experiments", "yields", "models", "theirs", to={"model": "theirs.csv"})
        status, out, err = pcv("import", "theirs.csv", "my.yaml")
        assert status == 0
        assert "diagnose theirs: elpd -" in err[-1]
        assert out == (
            "Imported; `snakemake --cores all`, or `pcv compare my.yaml`, compares the models.\n"
        )
        assert Path("results/yields/models/theirs/sample/1-of-1.zarr").is_dir()


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["fitt"], "No such command 'fitt'. Did you mean 'fit'?; see pcv --help"),
            (["fit"], "Missing argument 'CONFIG'; see pcv fit --help"),
            (["fit", "my.yaml", "--nope"], "No such option: --nope"),
            (["fit", "my.yaml", "--model"], "Option '--model' requires an argument"),
            (["fit", "my.yaml", "--cores", "0"], "Invalid value for '--cores' / '-c'"),
            (["data", "my.yaml", "--cores", "2"], "No such option: --cores"),
            (["fit", "my.yaml", "more"], "Got unexpected extra argument(s) (more)"),
        ],
    )
    def test_one_line(self, pcv, arguments, line):
        status, out, err = pcv(*arguments)
        assert status == 2
        assert out == ""
        assert len(err) == 1
        assert err[0].startswith(f"error: {line}")
        assert err[0].endswith("--help")


class TestNames:
    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (
                ["data", "my.yaml", "-e", "yield"],
                "my.yaml: no experiment 'yield'; did you mean 'yields'?",
            ),
            (
                ["data", "my.yaml", "-e", "zzz"],
                "my.yaml: no experiment 'zzz'; it has yields, small",
            ),
            (
                ["fit", "my.yaml", "-m", "liner"],
                "my.yaml: no model 'liner'; did you mean 'linear'?",
            ),
            (
                ["fit", "my.yaml", "-e", "small", "-m", "linear"],
                "my.yaml: no model 'linear'; it has plain",
            ),
            (
                ["sample", "my.yaml", "-b", "1-of-3"],
                "my.yaml: no fold batch '1-of-3'; did you mean '1-of-1'?",
            ),
        ],
    )
    def test_unknown_ones(self, pcv, arguments, line):
        assert pcv(*arguments) == (1, "", [f"error: {line}"])
        assert not Path("results").exists()

    def test_jobs(self):
        def names(*args, per):
            jobs = shared.jobs_of(Path("my.yaml"), args[0], Path("results"), *args[1:], per=per)
            return [(job.experiment, job.model, job.batch) for job in jobs]

        assert names("", per="") == [("yields", "", ""), ("small", "", "")]
        assert names("", "", per="model") == [
            ("yields", "linear", ""),
            ("yields", "flat", ""),
            ("small", "plain", ""),
        ]
        assert names("", "plain", per="model") == [("small", "plain", "")]
        change("experiments", "small", "cv", "fold_batches", to=2)
        assert names("small", "plain", "2-of-2", per="batch") == [("small", "plain", "2-of-2")]
        assert names("small", "", "", per="batch") == [
            ("small", "plain", "1-of-2"),
            ("small", "plain", "2-of-2"),
        ]


class TestErrors:
    def test_no_config(self, pcv):
        assert pcv("data", "yours.yaml") == (
            1,
            "",
            [
                "error: yours.yaml: cannot be read (No such file or directory); give the path of a "
                "YAML file"
            ],
        )

    def test_every_problem_of_the_config(self, pcv):
        change("experiments", "yields", "cv", "drawz", to=100)
        change("experiments", "small", "fit", "draws", to=-5)
        for command in COMMANDS:
            status, _, err = pcv(command, "my.yaml")
            assert status == 1
            assert sorted(err) == [
                "error: my.yaml: experiments.small.fit.draws: must be at least 100, is -5",
                "error: my.yaml: experiments.yields.cv.drawz: unknown key; did you mean 'draws'?",
            ]

    def test_results_that_are_an_address(self, pcv):
        status, _, err = pcv("data", "my.yaml", "--results", "memory://bucket/run")
        assert status == 2
        words = "error: Invalid value for '--results': memory:/bucket/run is an address; artifacts"
        assert err[0].startswith(words)
        assert not Path("memory:").exists()

    def test_traceback_only_when_asked_for(self, pcv):
        Path("data.csv").unlink()
        line = f"error: data.csv: no such file (paths are relative to {Path.cwd()})"
        assert pcv("data", "my.yaml") == (1, "", [line])
        status, _, err = pcv("data", "my.yaml", "--debug")
        assert status == 1
        assert err[0] == "Traceback (most recent call last):"
        assert err[-1] == line

    def test_fault_of_our_own(self, pcv, monkeypatch):
        def fail(job):
            raise RuntimeError("two\nlines")

        monkeypatch.setattr(stages, "data", fail)
        assert pcv("data", "my.yaml") == (
            1,
            "",
            [
                "error: RuntimeError: two",
                "error: RuntimeError: lines",
                "This may be a fault of pcv; --debug shows where it happened",
            ],
        )

    @pytest.mark.parametrize(
        ("command", "missing", "first"),
        [
            ("folds", "data.zarr", "data"),
            ("fit", "data.zarr", "data"),
            ("warmup", "data.zarr", "data"),
            ("sample", "data.zarr", "data"),
            ("diagnose", "data.zarr", "data"),
            ("compare", "data.zarr", "data"),
            ("report", "data.zarr", "data"),
        ],
    )
    def test_stage_before_any_other(self, pcv, command, missing, first):
        assert pcv(command, "my.yaml") == (
            1,
            "",
            [f"error: results/yields/{missing}: not found; run `pcv {first} my.yaml` first"],
        )

    @pytest.mark.parametrize(
        ("command", "missing", "first"),
        [
            ("warmup", "models/linear/fit.zarr", "fit"),
            ("sample", "models/linear/fit.zarr", "fit"),
            ("diagnose", "models/linear/fit.zarr", "fit"),
            ("compare", "models/linear/fit.zarr", "fit"),
            ("report", "models/linear/fit.zarr", "fit"),
        ],
    )
    def test_stage_before_the_fit(self, pcv, command, missing, first):
        for stage in ("data", "folds"):
            assert pcv(stage, "my.yaml")[0] == 0
        assert pcv(command, "my.yaml") == (
            1,
            "",
            [f"error: results/yields/{missing}: not found; run `pcv {first} my.yaml` first"],
        )

    def test_stage_of_results_elsewhere(self, pcv):
        assert pcv("folds", "my.yaml", "--results", "other") == (
            1,
            "",
            [
                "error: other/yields/data.zarr: not found; run `pcv data my.yaml --results other`"
                " first"
            ],
        )

    def test_folder_of_results_that_is_a_file(self, pcv):
        assert pcv("data", "my.yaml", "--results", "data.csv") == (
            1,
            "",
            [
                "error: data.csv/yields/data.zarr: a file stands where a folder is needed; move it "
                "away, or choose another folder with --results"
            ],
        )


class TestStages:
    def test_data_and_folds(self, pcv):
        assert pcv("data", "my.yaml", "-e", "yields") == (
            0,
            "",
            ["data: 12 units, outcome 'yield_t'"],
        )
        assert pcv("folds", "my.yaml", "--experiment", "yields", "--results", "results") == (
            0,
            "",
            ["leave-one-group-out over field: 4 folds, test 3, training 9, no gap"],
        )
        written = sorted(str(path) for path in Path("results").glob("*/*"))
        assert written == ["results/yields/data.zarr", "results/yields/folds.zarr"]

    def test_tables_of_several_experiments_are_told_apart(self, pcv, monkeypatch):
        monkeypatch.setattr(stages, "compare", lambda job: f"table of {job.experiment}")
        assert pcv("compare", "my.yaml")[1].splitlines() == [
            "Experiment 'yields'",
            "table of yields",
            "Experiment 'small'",
            "table of small",
        ]
        assert pcv("compare", "my.yaml", "-e", "small")[1] == "table of small\n"

    def test_bad_fit_is_passed_on(self, pcv, monkeypatch):
        allowed = []
        monkeypatch.setattr(stages, "fit", lambda job, allow: allowed.append(allow))
        pcv("fit", "my.yaml", "-m", "plain")
        pcv("fit", "my.yaml", "-m", "plain", "--allow-bad-fit")
        assert allowed == [False, True]


class TestMachine:
    def test_devices(self, pcv, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        found = [
            "Chains run on 2 device(s) of JAX's cpu: cpu.",
            "precision: auto means float64 here.",
        ]
        code, out, _ = pcv("devices", "--cores", "2")
        assert (code, out.splitlines()) == (0, [*found, "No GPU was found."])
        (tmp_path / "nvidia-smi").touch(mode=0o755)
        hidden = 'nvidia-smi is installed, but JAX sees no GPU: pip install "jax[cuda13]"'
        assert pcv("devices", "--cores", "2")[1].splitlines() == [*found, hidden]

    def test_cache(self, pcv, monkeypatch, tmp_path):
        assert "JAX_COMPILATION_CACHE_DIR" in pcv("cache", "--clear")[2][0]  # of these tests
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
        monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path / "jax")
        (tmp_path / "jax").mkdir()
        (tmp_path / "jax/one").write_bytes(bytes(3000))
        said = f"1 files, 3.00 kB, at most 268 MB: {tmp_path / 'jax'}"
        assert pcv("cache")[1].strip() == f"Kept compiled functions: {said}"
        assert "Removed compiled functions: 1 files, 3.00 kB: " in pcv("cache", "--clear")[1]
        assert not (tmp_path / "jax").exists()
        assert "0 files" in pcv("cache")[1]

    def test_status_of_results_beside_the_config(self, pcv, tmp_path, monkeypatch):
        (tmp_path / "there/results").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        code, _, err = pcv("status", "there/config.yaml")
        assert code == 1
        assert "there is no folder 'results' here, but one beside there/config.yaml" in err[0]

    def test_clean(self, pcv, monkeypatch):
        found = {"yields": (2, 1_500_000, 1), "small": (1, 500_000, 0)}
        monkeypatch.setattr(status, "clean", lambda job, dry_run: found[job.experiment])
        assert pcv("clean", "my.yaml")[1].splitlines() == [
            "Removed 3 checkpoints of models whose samples are finished, 2.00 MB; with more "
            "draws, folds or scores these are sampled anew.",
            "Kept 1 of models whose samples are not finished: a rerun resumes from them.",
        ]
        assert pcv("clean", "my.yaml", "--dry-run")[1].splitlines() == [
            "Would remove 3 checkpoints of models whose samples are finished, 2.00 MB; with more "
            "draws, folds or scores these would be sampled anew.",
            "Would keep 1 of models whose samples are not finished: a rerun resumes from them.",
        ]
        found = dict.fromkeys(found, (0, 0, 0))
        assert pcv("clean", "my.yaml")[1].splitlines() == [
            "No model whose samples are finished has a checkpoint."
        ]


class TestCheck:
    def test_good_config(self, pcv):
        status, out, err = pcv("check", "my.yaml", "-e", "small")
        assert (status, out) == (0, "")
        assert err == [
            "small: 12 units of 'yield_t'",
            "small: leave-one-group-out over field: 4 folds, test 3, training 9, no gap",
            "small: model 'plain' is fit to run",
        ]
        assert not Path("results").exists()

    def test_folds_are_drawn_on_a_map(self, pcv):
        places = {"coordinates": {"x": "rain", "y": "plot"}, "size": 2.0, "buffer": 0.5}
        change("experiments", "small", "folds", to={"scheme": "spatial_block", **places})
        assert pcv("data", "my.yaml", "--experiment", "small")[0] == 0
        status, _, err = pcv("folds", "my.yaml", "--experiment", "small", "--plot")
        assert status == 0
        assert err[-1].startswith("picture: ")
        assert Path(err[-1].removeprefix("picture: ").rpartition(".")[0] + ".svg").exists()

    def test_two_superchains_are_few(self, pcv):
        change("experiments", "small", "cv", to={"chains": 8, "superchains": 2})
        status, _, err = pcv("check", "my.yaml", "-e", "small")
        assert status == 0
        assert err[2].startswith("warning: small: cv.superchains: 2 leave one degree of freedom")

    def test_problems_of_all_experiments(self, pcv):
        change("experiments", "yields", "data", "outcome", to="yeild_t")
        change("experiments", "small", "models", "plain", "model", to="models.py:flt")
        change("experiments", "small", "models", "other", to={"model": "models.py:lik_short"})
        status, _, err = pcv("check", "my.yaml")
        assert status == 1
        assert [line for line in err if line.startswith("error: ")] == [
            "error: experiment 'yields': data.csv: no column 'yeild_t' (data.outcome); did you "
            "mean 'yield_t'?",
            "error: experiment 'small': model 'models.py:flt': models.py has no function 'flt'; "
            "did you mean 'flat'?",
            "error: experiment 'small': model 'other': log_lik returns an array of float64, shape "
            "(11,); it must return one term per unit of the data, an array of shape (12,)",
        ]

    @pytest.mark.parametrize(
        ("path", "to", "line"),
        [
            (("data", "file"), "dta.csv", "dta.csv: no such file; data.file is relative to the "
             "working directory"),
            (("folds", "group"), "feild", "the data: no column 'feild' (folds.group); did you mean "
             "'field'?"),
            (("folds",), {"scheme": "k_fold", "k": 13}, "k is 13: it must be from 2 to 12, the "
             "number of units"),
            (("cv", "fold_batches"), 5, "cv.fold_batches: 5 batches for 4 folds; use fewer"),
            (("models", "plain", "args"), {"scal": 1.0}, "model 'models.py:flat': "
             "flat(data, scal=1.0) fails: TypeError: flat() got an unexpected keyword argument "
             "'scal'"),
            (("models", "plain", "model"), "models:flat", "model 'models:flat': no module 'models' "
             "in this environment; for your own file write 'models.py:flat'"),
            (("data", "file"), "data{1}.csv",
             "experiments.small.data.file: 'data{1}.csv' has braces, which Snakemake takes for a "
             "wildcard; rename the file"),
        ],
    )  # fmt: skip
    def test_one_problem(self, pcv, monkeypatch, path, to, line):
        monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
        change("experiments", "small", *path, to=to)
        status, _, err = pcv("check", "my.yaml", "-e", "small")
        assert status == 1
        assert [x for x in err if x.startswith("error: ")] == [f"error: {line}"]


def command(*args):
    code = "import sys; from pcv.pipeline.cli.commands import main"
    return f"{code}; sys.argv = ['pcv', *{args}]; main()"


class TestInstalled:
    """The installed command, in a process of its own."""

    def run(self, code):
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    @pytest.mark.parametrize(
        "code",
        [
            command("--help"),
            command("fit", "--help"),
            command("init", "new"),
            command("data", "my.yaml"),
            command("folds", "no.yaml"),
            "import pcv",
            "import pcv.pipeline.config",
            "import pcv.analysis.diagnostics",
            "import pcv.analysis.comparison",
            "import pcv.analysis.results",
            "import pcv.pipeline.stages",
        ],
    )
    def test_loads_no_jax(self, code):
        check = "import atexit, sys; atexit.register(lambda: print('jaxlib' in sys.modules))"
        assert self.run(f"{check}\n{code}").stdout.splitlines()[-1] == "False"

    def test_that_the_check_above_can_fail(self):
        run = self.run("import pcv.models.model, sys; print('jaxlib' in sys.modules)")
        assert run.stdout == "True\n"

    def test_the_command(self):
        pcv = Path(sys.executable).with_name("pcv")
        failed = subprocess.run([pcv, "data", "no.yaml"], capture_output=True, text=True)
        assert failed.returncode == 1
        assert failed.stdout == ""
        assert failed.stderr.startswith("error: no.yaml: cannot be read")
        assert failed.stderr.count("\n") == 1
        made = subprocess.run([pcv, "data", "my.yaml"], capture_output=True, text=True)
        assert made.returncode == 0
        assert made.stderr.splitlines() == ["data: 12 units, outcome 'yield_t'"] * 2


LOST = """
import gc, os, signal
from pcv.pipeline.cli import commands

def app(**options):
    gc.callbacks.append(lambda *_: os.kill(os.getpid(), signal.SIGINT))
    gc.collect()
    print("goes on")

signal.signal(signal.SIGINT, signal.default_int_handler)
commands.app = app
commands.main()
"""


def test_ctrl_c_is_not_lost_while_garbage_is_collected():
    """As it was between a command's start and its first draws, where JAX looks after it."""
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_one_line_and_the_exit_status_of_shells(pcv, monkeypatch, signum):
    def stopped(job):
        raise Stopped(signum, "data a", "all of it is kept")

    monkeypatch.setattr(stages, "data", stopped)
    name = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}[signum]
    said = [f"error: data a: stopped by {name}; all of it is kept"]
    assert pcv("data", "my.yaml") == (128 + signum, "", said)
