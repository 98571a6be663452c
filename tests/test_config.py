import json
import math
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import jsonschema
import pytest
import yaml

from pcv.analysis.stopping.config import UntilConfig
from pcv.base.errors import PcvError
from pcv.base.section import Section
from pcv.core.settings import CompareConfig, CvConfig, FitConfig, KernelConfig
from pcv.folds.schemes import SCHEMES, LeaveOneGroupOut
from pcv.pipeline.config import (
    SCHEMA,
    Config,
    DataConfig,
    Experiment,
    ModelConfig,
    ReportConfig,
    json_schema,
    load,
    parse,
    stage_config,
)
from pcv.pipeline.graph import STAGES

ROOT = Path(__file__).parent.parent
RATS = "experiments.rats"
MISSING = "missing; add it"
README = (ROOT / "config/README.md").read_text()


def quickstart() -> dict:
    return yaml.safe_load((ROOT / "config/config.yaml").read_text())


def changed(path: str, value: object) -> dict:
    """The quickstart with another value at a dotted path; `...` removes the key."""
    result = quickstart()
    *sections, key = path.split(".")
    section = result
    for name in sections:
        section = section[name]
    if value is ...:
        del section[key]
    else:
        section[key] = value
    return result


def message(mapping: dict) -> str:
    with pytest.raises(PcvError) as caught:
        parse(mapping, "my.yaml")
    return str(caught.value)


def load_message(path: Path) -> str:
    with pytest.raises(PcvError) as caught:
        load(path)
    return str(caught.value)


def yaml_message(folder: Path, text: str | bytes) -> str:
    path = folder / "my.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_message(path).replace(str(path), "my.yaml")


def test_quickstart():
    config = load(ROOT / "config/config.yaml")
    rats = config.experiments["rats"]
    assert config.seed == 20261
    assert config.precision == "float64"
    assert rats.data.order == ["rat", "day"]
    assert rats.folds == LeaveOneGroupOut(scheme="leave_one_group_out", group="rat")
    assert rats.models["slopes"].model == "pcv.models.zoo.rats:random_slopes"
    assert rats.models["slopes"].args == {"priors": "paper"}
    assert (rats.cv.chains, rats.cv.warmup, rats.cv.draws) == (8, 50, 200)
    assert rats.compare.reference is None


def test_defaults_are_those_of_the_quickstart():
    written = quickstart()["experiments"]["rats"]
    required = {key: written[key] for key in ("data", "folds", "models")}
    assert parse({"seed": 20261, "experiments": {"rats": required}}) == parse(quickstart())


@pytest.mark.parametrize(
    "folds",
    [
        {"scheme": "leave_one_out"},
        {"scheme": "k_fold", "k": 5},
        {"scheme": "k_fold", "k": 5, "stratify_by": "sex"},
        {"scheme": "k_fold", "k": 5, "group_by": "rat", "contiguous": False},
        {"scheme": "leave_one_group_out", "group": "rat"},
        {"scheme": "leave_one_group_out", "group_by": "rat"},
        {"scheme": "column", "column": "fold"},
    ],
)
def test_schemes(folds):
    good = changed(f"{RATS}.folds", folds)
    assert parse(good).experiments["rats"].folds.scheme == folds["scheme"]
    jsonschema.validate(good, json_schema())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{RATS}.compare.reference", "common"),
        (f"{RATS}.data.columns", ["weight_g"]),
        (f"{RATS}.cv.draws", 100),
        (f"{RATS}.fit.target_accept", 0.95),
        (f"{RATS}.models.slopes.model", "../my models/m.py:f"),
        (f"{RATS}.models.slopes.args", {"a": [1, {"b": None}], "c": math.inf, "d": "e1"}),
        ("experiments.rats-2_B", quickstart()["experiments"]["rats"]),
        ("seed", 2**32 - 1),
    ],
)
def test_other_good_values(path, value):
    good = changed(path, value)
    parse(good)
    jsonschema.validate(good, json_schema())


SECTION = "must be a section (lines of key: value), is"
BAD = [
    # unknown keys
    (f"{RATS}.cv.drawz", 200, "unknown key; did you mean 'draws'?"),
    (f"{RATS}.data.colums", ["rat"], "unknown key; did you mean 'columns'?"),
    (f"{RATS}.models.slopes.arg", {}, "unknown key; did you mean 'args'?"),
    (f"{RATS}.folds.groups", "rat", "unknown key; did you mean 'group'?"),
    ("sed", 1, "unknown key; did you mean 'seed'?"),
    (f"{RATS}.model", {}, "unknown key; did you mean 'models'?"),
    (
        f"{RATS}.cv.foo",
        1,
        "unknown key; known: chains, warmup, draws, until, batch_size, store, fold_batches,"
        " memory_share, superchains, adapt, start_scale",
    ),
    # missing keys
    ("seed", ..., MISSING),
    ("experiments", ..., MISSING),
    (f"{RATS}.folds", ..., MISSING),
    (f"{RATS}.data.outcome", ..., MISSING),
    (f"{RATS}.folds.group", ..., MISSING),
    (f"{RATS}.models.slopes.model", ..., MISSING),
    (
        f"{RATS}.folds.scheme",
        ...,
        "missing; add one of " + ", ".join(SCHEMES),
    ),
    # wrong types
    (
        f"{RATS}.cv.draws",
        "200",
        "must be a whole number, is '200'; write numbers without quotes, exponents as in 1.0e-3",
    ),
    (f"{RATS}.cv.draws", 200.0, "must be a whole number, is 200.0"),
    (f"{RATS}.cv.draws", True, "must be a whole number, is true"),
    (f"{RATS}.cv.draws", None, "must be a whole number, is empty"),
    (
        f"{RATS}.fit.target_accept",
        "8e-1",
        "must be a number, is '8e-1'; write numbers without quotes, exponents as in 1.0e-3",
    ),
    (f"{RATS}.fit.allow_bad_fit", "yes", "must be true or false, is 'yes'"),
    (f"{RATS}.data.outcome", ["weight_g"], "must be text, is a list"),
    (f"{RATS}.data.outcome", 3, "must be text, is 3; put it in quotes"),
    (f"{RATS}.data.outcome", "", "is empty; fill it in"),
    (f"{RATS}.data.order", "rat", "must be a list such as [a, b], is 'rat'"),
    (f"{RATS}.cv", None, f"{SECTION} empty; write {{}} for one without keys"),
    (f"{RATS}.cv", [200], f"{SECTION} a list"),
    (f"{RATS}.folds", "k_fold", f"{SECTION} 'k_fold'"),
    (f"{RATS}.models.slopes", "m.py:f", f"{SECTION} 'm.py:f'"),
    (f"{RATS}.models.slopes.args", [1], f"{SECTION} a list"),
    (f"{RATS}.models", {}, "is empty; fill it in"),
    (f"{RATS}.scores", [], "is empty; fill it in"),
    ("experiments", {}, "is empty; fill it in"),
    # wrong values
    (f"{RATS}.cv.draws", -5, "must be at least 1, is -5"),
    (f"{RATS}.cv.chains", 1, "must be at least 2, is 1"),
    (f"{RATS}.fit.chains", 2, "must be at least 4, is 2"),
    (f"{RATS}.fit.target_accept", 0.5, "must be above 0.5, is 0.5"),
    (f"{RATS}.fit.target_accept", 1, "must be below 1.0, is 1"),
    ("seed", -1, "must be at least 0, is -1"),
    ("seed", 2**32, "must be at most 4294967295, is 4294967296"),
    ("precision", "float16", "must be 'float64', 'float32' or 'auto', is 'float16'"),
    (f"{RATS}.cv.store", "all", "must be 'draws' or 'sums', is 'all'"),
    (
        f"{RATS}.cv.draws",
        210,
        "must be a multiple of batch_size and at least two batches, is 210 with batch_size 50;"
        " take 250",
    ),
    (
        f"{RATS}.cv.draws",
        50,
        "must be a multiple of batch_size and at least two batches, is 50 with batch_size 50;"
        " take 100",
    ),
    (
        f"{RATS}.cv.until",
        {"max_draws": 400},
        "name one rule: fold_mcse, fold_mcse_over_se, or (mcse_over_se and/or decide)",
    ),
    (
        f"{RATS}.cv.until",
        {"max_draws": 400, "fold_mcse": 0.1, "mcse_over_se": 0.1},
        "name one rule: fold_mcse, fold_mcse_over_se, or (mcse_over_se and/or decide)",
    ),
    (f"{RATS}.cv.superchains", 3, "3 superchains of 8 chains: must be of equal size"),
    (
        f"{RATS}.cv.superchains",
        8,
        "8 superchains of 8 chains: must have two or more each; null lets each chain start apart",
    ),
    (f"{RATS}.cv.superchains", 1, "must be at least 2 or 'auto', is 1"),
    (
        f"{RATS}.cv.superchains",
        "many",
        "must be a whole number or 'auto', is 'many'; write numbers without quotes, exponents as in"
        " 1.0e-3",
    ),
    (
        f"{RATS}.folds.scheme",
        "leave_group_out",
        "unknown scheme 'leave_group_out'; did you mean 'leave_one_group_out'?",
    ),
    (
        f"{RATS}.folds.scheme",
        "loo",
        "unknown scheme 'loo'; known: " + ", ".join(SCHEMES),
    ),
    (
        f"{RATS}.folds",
        {"scheme": "k_fold", "k": 5, "group_by": "rat", "contiguous": True},
        "group_by and contiguous exclude each other; keep one of them",
    ),
    (
        f"{RATS}.folds",
        {"scheme": "k_fold", "k": 5, "time": "day"},
        "time: only contiguous folds have an order; add contiguous: true",
    ),
    (f"{RATS}.compare.reference", "slops", "no model 'slops'; did you mean 'slopes'?"),
    (f"{RATS}.compare.reference", "x", "no model 'x'; known: slopes, common"),
    (
        f"{RATS}.models.slopes.model",
        "pcv.models.zoo.rats.random_slopes",
        "must be package.module:function, file.py:function or a .parquet, .csv or .nc file, is "
        "'pcv.models.zoo.rats.random_slopes'",
    ),
    (
        f"{RATS}.models.slopes.args",
        {"scale": "1e-3"},
        'YAML reads "1e-3" as text; write numbers like 1.0e-3',
    ),
    (
        f"{RATS}.models.slopes.args",
        {"start": date(2020, 1, 1)},
        "must hold only numbers, text, true, false, null, lists and sections; put others in quotes"
        " (Object of type date is not JSON serializable)",
    ),
]


@pytest.mark.parametrize(("path", "value", "what"), BAD)
def test_bad_values(path, value, what):
    assert message(changed(path, value)) == f"my.yaml: {path}: {what}"


@pytest.mark.parametrize(
    ("mapping", "line"),
    [
        (changed(f"{RATS}.data.order", ["rat", 8]), f"{RATS}.data.order[1]: must be text, is 8;"),
        (
            changed(f"{RATS}.scores", ["lög"]),
            f"{RATS}.scores[0]: unknown score 'lög' (your own: file.py:function); "
            "did you mean 'log'?",
        ),
        (
            changed(f"{RATS}.scores", ["pinbal_10"]),
            f"{RATS}.scores[0]: unknown score 'pinbal_10' (your own: file.py:function); "
            "did you mean 'pinball_10'?",
        ),
        *(
            (changed(f"{RATS}.scores", ["log", name]), f"{RATS}.scores[1]: score '{name}'{what}")
            for name, what in [
                ("coverage_100", ": 100% is not between 0% and 100%: coverage_90, coverage_2_5"),
                ("width_0", ": 0% is not between 0% and 100%: width_90, width_2_5 for 2.5%"),
                ("pinball_101_5", ": 101.5% is not between 0% and 100%: pinball_10, pinball_2_5"),
                ("coverage", ": it needs a percentage: coverage_90, coverage_2_5 for 2.5%"),
                ("pinball_0.1", ": it needs a percentage: pinball_10, pinball_2_5 for 2.5%"),
                ("pinball_010", ": write pinball_10"),
            ]
        ),
        (
            changed(f"{RATS}.kernel", {"subspace": 0}),
            f"{RATS}.kernel.subspace: must be at least 1, is 0",
        ),
        (
            changed(f"{RATS}.kernel", {"subspace": {"shar": 0.9}}),
            f"{RATS}.kernel.subspace.shar: unknown key; did you mean 'share'?",
        ),
        (
            changed(
                f"{RATS}.folds",
                {"scheme": "leave_future_out", "min_observations": 2}
                | {"horizon": 2, "forecast_horizon": 1},
            ),
            f"{RATS}.folds.horizon: is short for forecast_horizon; give one of them",
        ),
        (
            changed(f"{RATS}.cv", {"warmup": "auto", "chains": 37, "draws": 1, "batch_size": 1}),
            f"{RATS}.cv.warmup: auto needs four superchains or more",
        ),
        (
            changed(f"{RATS}.folds", {"scheme": "k_fold", "k": 1}),
            f"{RATS}.folds.k: must be at least 2, is 1",
        ),
        (
            changed(f"{RATS}.folds", {"scheme": "k_fold", "k": 2, "group": "rat"}),
            f"{RATS}.folds.group: unknown key; did you mean 'group_by'?",
        ),
        (
            {"seed": 1, "experiments": {"my rats": quickstart()["experiments"]["rats"]}},
            "experiments.'my rats': names have only letters a to z, digits, '_' and '-', and no '-'"
            " in front; rename it",
        ),
        (
            {"seed": 1, "experiments": {False: quickstart()["experiments"]["rats"]}},
            "experiments.false: must be text, is false; put it in quotes",
        ),
        (
            {"seed": 1, "experiments": {"x" * 200: quickstart()["experiments"]["rats"]}},
            f"experiments.'{'x' * 20}…': has 200 letters, more than 100: shorten it",
        ),
        *(
            (
                {"seed": 1, "experiments": {name: quickstart()["experiments"]["rats"]}},
                f"experiments.{name}: results/{name} is the folder of ",
            )
            for name in ("datasets", "inputs", "paper", "loo_subsampling")
        ),
        ({**quickstart(), 3: 4}, "3: unknown key; known: seed, precision, experiments"),
    ],
)
def test_bad_values_at_other_places(mapping, line):
    assert message(mapping).startswith(f"my.yaml: {line}")
    assert "\n" not in message(mapping)


def test_an_experiment_named_like_a_scheme_keeps_its_place():
    rats = changed(f"{RATS}.folds.k", 3)["experiments"]["rats"]
    where = "my.yaml: experiments.column.folds.k"
    assert (
        message({"seed": 1, "experiments": {"column": rats}})
        == f"{where}: unknown key; known: exact, good_k, scheme, group"
    )


def test_every_problem_has_its_line():
    bad = changed(f"{RATS}.cv", {"drawz": 1, "chains": 0})
    bad["seed"] = -1
    assert message(bad).splitlines() == [
        "my.yaml: seed: must be at least 0, is -1",
        f"my.yaml: {RATS}.cv.chains: must be at least 2, is 0",
        f"my.yaml: {RATS}.cv.drawz: unknown key; did you mean 'draws'?",
    ]


ADVICE = "check colons, quotes and indentation (spaces, no tabs) on this line and the ones before"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "seed: 1\nexperiments: a: b\n",
            f"my.yaml: line 2: not valid YAML (mapping values are not allowed here); {ADVICE}",
        ),
        (
            "seed: 1\nexperiments:\n\trats: {}\n",
            "my.yaml: line 3: not valid YAML (found character '\\t' that cannot start any token);"
            f" {ADVICE}",
        ),
        (
            "seed: 1\nexperiments:\n  a: {}\n\n  a: {}\n",
            "my.yaml: line 5: the key 'a' is given twice in one section, first on line 3; keep one",
        ),
        (
            "a: {b: 1, b: 2}\n",
            "my.yaml: line 1: the key 'b' is given twice in one section, first on line 1; keep one",
        ),
        (
            "# nothing\n",
            "my.yaml: must be a section (lines of key: value), is empty",
        ),
        (
            "- seed: 1\n",
            "my.yaml: must be a section (lines of key: value), is a list",
        ),
        (
            "seed: 1\n".encode("utf-16"),
            "my.yaml: not a text file (invalid start byte); save it as UTF-8",
        ),
        (b"seed: \xe9\n", "my.yaml: not a text file (invalid continuation byte); save it as UTF-8"),
    ],
)
def test_bad_files(tmp_path, text, expected):
    assert yaml_message(tmp_path, text) == expected


def test_a_merged_key_may_be_overridden(tmp_path):
    text = (ROOT / "config/config.yaml").read_text()
    text = text.replace("data: {", "data: &rats {", 1)
    text += (
        "  again:\n    data: {<<: *rats, order: [day, rat]}\n    folds: {scheme: leave_one_out}\n"
        '    models: {a: {model: "m.py:f"}}\n'
    )
    (tmp_path / "my.yaml").write_text(text)
    data = load(tmp_path / "my.yaml").experiments["again"].data
    assert (data.file, data.order) == ("resources/rats.csv", ["day", "rat"])


def test_unreadable_files(tmp_path):
    advice = "give the path of a YAML file"
    missing = tmp_path / "none.yaml"
    assert load_message(missing) == (
        f"{missing}: cannot be read (No such file or directory); {advice}"
    )
    assert load_message(tmp_path) == f"{tmp_path}: cannot be read (Is a directory); {advice}"


DEPENDENTS = {
    "seed": {"evidence", "fit", "folds", "warmup", "diagnose"},
    "precision": {"fit", "surrogates", "evidence", "warmup"},
    f"{RATS}.data.order": {"data"},
    f"{RATS}.folds": {"folds", "surrogates", "subsample", "evidence"},
    f"{RATS}.models.slopes.args": {"fit"},
    f"{RATS}.models.common.args": set(),
    f"{RATS}.predictive": {"surrogates", "cut", "warmup"},
    f"{RATS}.kernel": {"warmup"},
    f"{RATS}.fit.draws": {"fit"},
    f"{RATS}.fit.allow_bad_fit": set(),
    f"{RATS}.cv.chains": {"surrogates", "cut", "warmup"},
    f"{RATS}.cv.warmup": {"warmup"},
    f"{RATS}.cv.batch_size": {"cut", "warmup"},
    f"{RATS}.cv.fold_batches": {"cut"},
    f"{RATS}.cv.memory_share": {"cut"},
    f"{RATS}.cv.superchains": {"warmup"},
    f"{RATS}.cv.adapt": {"warmup"},
    f"{RATS}.cv.start_scale": {"warmup"},
    f"{RATS}.cv.draws": {"sample"},
    f"{RATS}.cv.until": {"sample", "plan"},
    f"{RATS}.scores": {"cut", "sample"},
    f"{RATS}.cv.store": {"sample"},
    f"{RATS}.compare.reference": {"compare", "plan"},
    f"{RATS}.report.title": {"report"},
}
OTHER = {
    "seed": 1,
    "precision": "float32",
    f"{RATS}.data.order": [],
    f"{RATS}.folds": {"scheme": "leave_one_out"},
    f"{RATS}.models.slopes.args": {"priors": "authors"},
    f"{RATS}.models.common.args": {"priors": "authors"},
    f"{RATS}.predictive": "plain",
    f"{RATS}.kernel": {"subspace": 5},
    f"{RATS}.fit.draws": 500,
    f"{RATS}.fit.allow_bad_fit": True,
    f"{RATS}.cv.chains": 4,
    f"{RATS}.cv.warmup": 100,
    f"{RATS}.cv.batch_size": 10,
    f"{RATS}.cv.fold_batches": 2,
    f"{RATS}.cv.memory_share": 0.2,
    f"{RATS}.cv.superchains": 4,
    f"{RATS}.cv.adapt": "never",
    f"{RATS}.cv.start_scale": 2.0,
    f"{RATS}.cv.draws": 400,
    f"{RATS}.cv.until": {"fold_mcse": 0.1, "max_draws": 400},
    f"{RATS}.scores": ["log", "crps"],
    f"{RATS}.cv.store": "sums",
    f"{RATS}.compare.reference": "common",
    f"{RATS}.report.title": "Rats",
}


@pytest.mark.parametrize("path", DEPENDENTS)
def test_a_stage_sees_only_what_its_result_depends_on(path):
    before, after = parse(quickstart()), parse(changed(path, OTHER[path]))
    differ = {
        stage
        for stage in STAGES
        if stage_config(before, "rats", stage, "slopes")
        != stage_config(after, "rats", stage, "slopes")
    }
    assert differ == DEPENDENTS[path]


def test_stage_config_is_plain_and_read_only_by_copy():
    config = parse(quickstart())
    for stage in STAGES:
        part = stage_config(config, "rats", stage, "slopes")
        assert json.loads(json.dumps(part)) == part
    stage_config(config, "rats", "fit", "slopes")["model"]["args"]["priors"] = "authors"
    assert config == parse(quickstart())


@pytest.mark.parametrize(
    ("experiment", "model", "expected"),
    [
        ("rat", "slopes", "no experiment 'rat'; did you mean 'rats'?"),
        ("rats", "slope", "experiment rats: no model 'slope'; did you mean 'slopes'?"),
        ("rats", None, "experiment rats: no model None; known: slopes, common"),
    ],
)
def test_stage_config_of_unknown_names(experiment, model, expected):
    with pytest.raises(PcvError) as caught:
        stage_config(parse(quickstart()), experiment, "fit", model)
    assert str(caught.value) == expected


def test_sections_that_are_nested_too_deep_are_told(tmp_path):
    (tmp_path / "c.yaml").write_text("seed: " + "[" * 3000 + "]" * 3000)
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(1000)  # Python's; PyTensor raises it
        with pytest.raises(PcvError, match=r"c\.yaml: sections are nested too deep to be read"):
            load(tmp_path / "c.yaml")
    finally:
        sys.setrecursionlimit(before)


def test_schema_is_in_step():
    assert json.loads(SCHEMA.read_text()) == json_schema(), "run `python -m pcv.pipeline.config`"
    jsonschema.Draft202012Validator.check_schema(json_schema())
    jsonschema.validate(quickstart(), json_schema())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{RATS}.cv.drawz", 1),
        (f"{RATS}.cv.draws", -5),
        (f"{RATS}.folds.scheme", "loo"),
        (f"{RATS}.folds.group_by", "rat"),
        (f"{RATS}.models.a b", {"model": "m.py:f"}),
    ],
)
def test_schema_refuses(path, value):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed(path, value), json_schema())


def readme_rows(heading: str) -> dict[str, str]:
    section = re.split(r"^## ", README, flags=re.MULTILINE)
    [text] = [part for part in section if part.startswith(f"{heading}\n")]
    return {row[1]: row[0] for row in re.finditer(r"^\| `(\w+)` \|.*$", text, re.MULTILINE)}


SECTIONS = {
    "Top level": [Config],
    "experiment": [Experiment],
    "model": [ModelConfig],
    "folds": list(SCHEMES.values()),
    "data": [DataConfig],
    "fit": [FitConfig],
    "kernel": [KernelConfig],
    "cv": [CvConfig],
    "until": [UntilConfig],
    "compare": [CompareConfig],
    "report": [ReportConfig],
}


def until(cv: dict | None = None, models: dict | None = None, **keys) -> dict:
    config = changed(f"{RATS}.cv", {"until": keys, **(cv or {})})
    if models:
        config["experiments"]["rats"]["models"] = models
    return config


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (until(fold_mcse=0.1, max_draws=410), "max_draws: must be a multiple of batch_size, 50"),
        (until(fold_mcse=0.1, max_draws=100), "max_draws: must be at least min_draws, 200"),
        (until(fold_mcse=0.1, min_draws=50, max_draws=100), "min_draws: must be a multiple"),
        (
            until({"fold_batches": 2}, fold_mcse_over_se=0.1, max_draws=400),
            "fold_mcse_over_se: needs all folds in one job",
        ),
        (
            until(models={"a": {"model": "m.py:f"}}, decide={}, max_draws=400),
            "decide: needs another model",
        ),
        (until(decide={"probability": 1.0}, max_draws=400), "probability: must be below 1"),
        (until(decides={}, max_draws=400), "did you mean 'decide'?"),
    ],
)
def test_bad_rules_of_stopping(config, words):
    assert words in message(config)


def test_draws_do_not_count_where_folds_end_by_a_rule():
    rule = {"fold_mcse": 0.1, "max_draws": 400}
    before, after = (parse(until({"draws": n}, **rule)) for n in (200, 400))
    assert stage_config(before, "rats", "sample") == stage_config(after, "rats", "sample")


@pytest.mark.parametrize("heading", SECTIONS)
def test_readme_has_every_key_and_its_default(heading):
    rows = readme_rows(heading)
    fields = {name: f for part in SECTIONS[heading] for name, f in part.model_fields.items()}
    assert rows.keys() == fields.keys()
    for name, field in fields.items():
        default = field.default
        if field.is_required():
            cell = "required"
        elif isinstance(default, str):
            cell = f"`{default}`"
        elif isinstance(default, list):
            cell = f"`[{', '.join(default)}]`"
        elif isinstance(default, Section):
            cell = "`{}`"
        else:
            cell = f"`{json.dumps(default)}`"
        assert rows[name].split(" | ")[2] == cell, name


def test_readme_example_is_a_config():
    [example] = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert parse(yaml.safe_load(example)).experiments["schools"].cv.chains == 8


def test_a_config_cannot_be_changed_in_place():
    config = parse(quickstart())
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 2


def test_config_loads_no_jax():
    code = "import sys, pcv.pipeline.config; print([m for m in sys.modules if m.startswith('jax')])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("chains", "superchains", "expected"),
    [(8, "auto", 0), (8, 2, 2), (64, "auto", 8), (64, None, 0), (37, "auto", 0), (256, "auto", 32),
     (32, "auto", 4), (33, "auto", 3), (160, "auto", 20), (10_000, "auto", 25)],
)  # fmt: skip
def test_many_chains_are_superchains(chains, superchains, expected):
    cv = CvConfig(chains=chains, superchains=superchains)
    assert cv.num_superchains == expected


def test_one_batch_is_enough_for_superchains():
    assert CvConfig(chains=64, draws=1, batch_size=1).draws == 1
    with pytest.raises(ValueError, match="at least two batches"):
        CvConfig(chains=8, draws=1, batch_size=1)


HERE = [x for x in sorted(Path("config").rglob("*.yaml")) if x.parent.name != "nested_rhat"]


@pytest.mark.parametrize("path", HERE, ids=str)
def test_every_config_here_is_valid(path):
    assert load(path).experiments


def test_a_key_of_coordinates_that_is_none():
    coordinates = {"x": "lon", "lat": "lat"}
    settings = {
        "data": {"file": "a.csv", "outcome": "y"},
        "folds": {"scheme": "leave_one_location_out", "coordinates": coordinates},
        "models": {"m": {"model": "m.py:f"}},
    }
    with pytest.raises(PcvError) as caught:
        parse({"seed": 1, "experiments": {"e": settings}})
    assert str(caught.value) == (
        "config: experiments.e.folds.coordinates.lat: unknown key; known: x, y, longitude, latitude"
    )
