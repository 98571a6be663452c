"""The paper's page: its numbers beside ours, planted pathologies, and what happens without data."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
import yaml

from paper import files, numbers, page, parts, tables
from paper.figures import (
    FIGURES,
    SHIFT,
    Example,
    lengths,
    mixing,
    pathologies,
    shifted_chain,
    stuck_chain,
)
from paper.published import DIFFERENCES, MEANS, RUN_TIMES
from paper.run import paper
from pcv.analysis import verdicts
from pcv.analysis.diagnostics import BENCHMARK_LEVEL, batch_sums, rhat_max_benchmark
from pcv.base.monitor import Monitor
from pcv.pipeline.config import load, parse
from pcv.report import drawn
from tests.bounds import count_limits, sd_limits
from tests.synthetic import make_results
from tests.workflow import ROOT, changed, make_project, planned, snakemake

CONFIGS = {name: ROOT / f"config/paper/{name}.yaml" for name in ("paper", "quick")}
LONGEST_FIGURE = {"example2": 2_000, "example3": 4_000, "example4": 2_000}
"""draws of a chain that figures 6 to 16 show"""
NAMES = {
    "example1": ("all_four", "three"),
    "example2": ("slopes", "common"),
    "example3": ("floor", "no_floor"),
    "example4": ("monthly", "yearly"),
}


def healthy(rng: np.random.Generator, folds: int = 50, draws: int = 1_000) -> np.ndarray:
    """Autocorrelated log scores of chains that have mixed (fold, chain, draw)."""
    noise = rng.normal(size=(folds, 4, draws))
    for t in range(1, draws):
        noise[..., t] += 0.4 * noise[..., t - 1]
    return noise - rng.gamma(3, 3, (folds, 1, 1))


def typical(draws: np.ndarray) -> np.ndarray:
    """The same, but chains and their quarters differ half as much, so that they have mixed whatever
    the seed, and one begins far off, so that it is noticed if it stays there."""
    quarters = draws.reshape(*draws.shape[:2], 4, -1)
    off = quarters.mean(3, keepdims=True) - draws.mean((1, 2))[:, None, None, None]
    made = (quarters - off / 2).reshape(draws.shape)
    made[:, 0, 0] += 5
    return made


def flagged(draws: np.ndarray, seed: int) -> tuple[float, set[int]]:
    """Share of the benchmark at or above R-hat max, and the folds with a bad verdict."""
    sums = batch_sums(draws, 50)
    found = rhat_max_benchmark(np.random.default_rng(seed), sums)
    nothing = np.zeros(len(draws))
    said = verdicts.faults(sums, nothing, nothing, found, "marginal").words()
    return found.share_above, set(np.flatnonzero(said != "ok").tolist())


def test_planted_pathologies_are_flagged_and_healthy_chains_are_not():
    """But for one run of fifty, as R-hat and drift have levels of 1%, and one stuck of as many."""
    alarms, missed = 0, 0
    for seed in range(10):
        draws = healthy(np.random.default_rng(seed))
        share, folds = flagged(draws, seed)
        alarms += share <= BENCHMARK_LEVEL or bool(folds)
        for plant in (stuck_chain, shifted_chain):
            made = plant(np.random.default_rng([seed, 1]), draws)
            share, folds = flagged(made.draws, seed)
            assert made.fold in folds
            assert len(folds) <= 3  # false alarm < 1e-4
            missed += share > BENCHMARK_LEVEL
    assert alarms <= count_limits(10, 2 * BENCHMARK_LEVEL)[1]
    assert missed <= count_limits(10, 2 * BENCHMARK_LEVEL)[1]


def test_pathologies_change_one_chain_of_one_fold():
    draws = healthy(np.random.default_rng(1), folds=9, draws=60)
    rng = np.random.default_rng(2)
    stuck, shifted = stuck_chain(rng, draws), shifted_chain(rng, draws)
    for made in (stuck, shifted):
        same = (made.draws == draws).all(axis=2)
        assert np.argwhere(~same).tolist() == [[made.fold, made.chain]]
    assert set(stuck.draws[stuck.fold, stuck.chain]) == {draws[stuck.fold, stuck.chain, 0]}
    moved = shifted.draws[shifted.fold, shifted.chain] - draws[shifted.fold, shifted.chain]
    np.testing.assert_allclose(moved, SHIFT)


def test_mixing_takes_the_first_draws_alone():
    draws = {"a": healthy(np.random.default_rng(1), 9, 200)}
    changed = {"a": draws["a"].copy()}
    changed["a"][:, :, 100:] += 9
    short, same, longer = (
        mixing(np.random.default_rng(3), x, n) for x, n in ((draws, 100), (changed, 100),
                                                            (changed, 200))
    )  # fmt: skip
    assert short.identical(same)
    assert longer["rhat_max"] != short["rhat_max"]


def beside_captions(made: Example):
    return tables.mixing_table(made, numbers.captioned(made, 1))


def example(name: str, folds: int = 12) -> Example:
    """Made-up results of an experiment of the paper."""
    models = NAMES[name[:8]]
    rng = np.random.default_rng(5)
    comparison, diagnostics, _ = make_results(models, folds, slots=1)
    draws = {m: typical(healthy(rng, folds, 200)) for m in models}
    months = np.arange(48)
    wanted = {m.variable for m in MEANS}
    config = parse(yaml.safe_load(CONFIGS["quick"].read_text()))
    settings = config.experiments[name]
    return Example(
        name=name,
        settings=settings.model_copy(update={"cv": settings.cv.model_copy(
            update={"batch_size": 20, "draws": 200})}),
        comparison=comparison.sel(kind=["joint"]),
        diagnostics=diagnostics,
        draws=draws,
        data=xr.Dataset({
            "year": ("unit", 1985 + months // 12),
            "month": ("unit", 1 + months % 12),
            "outbound": ("unit", 1e5 * np.exp(0.01 * months + 0.1 * (months % 12 == 0))),
        }),
        test=30 + np.arange(folds)[:, None],
        means={m: xr.Dataset(
            {key: ("parameter", np.full(len(wanted), value))
             for key, value in (("mean", 0.5), ("sd", 0.1), ("mcse", 0.001))},
            {"parameter": sorted(wanted)},
        ) for m in models},
        seconds={m: {"fit": 11.0, "warmup": 2.5, "sample": 4.0} for m in models},
        own_kernels=0,
        device="2 x cpu, float64",
        marks=[],
    )  # fmt: skip


def with_elpd(made: Example, *elpd: np.ndarray) -> Example:
    """The same with other scores of each model's folds."""
    items = zip(made.diagnostics.items(), elpd, strict=True)
    return made._replace(
        diagnostics={name: d.assign(joint_elpd=("fold", x)) for (name, d), x in items}
    )


def test_difference_is_a_minus_b_whichever_is_better():
    made, terms = example("example2"), np.random.default_rng(3).normal(size=(2, 12))
    a_minus_b = numbers.estimate("example2", with_elpd(made, *terms))
    b_minus_a = numbers.estimate("example2", with_elpd(made, *terms[::-1]))
    differences = terms[0] - terms[1]
    assert a_minus_b.value == pytest.approx(differences.sum()) == -b_minus_a.value
    assert a_minus_b.se == b_minus_a.se == pytest.approx(np.sqrt(12 * differences.var(ddof=1)))
    assert a_minus_b.p_better + b_minus_a.p_better == pytest.approx(1)


def test_growth_estimate_takes_the_jacobian_back():
    """Densities of growth, on the scale of passengers and back again."""
    made = example("example4")
    level = made.data["outbound"].to_numpy()
    growth = np.random.default_rng(3).normal(size=(2, 12))
    at = made.test[:, 0]
    passengers = growth - np.log([level[at - 1], level[at - 12]])
    ours = numbers.estimate(parts.GROWTH, with_elpd(made, *passengers))
    differences = growth[0] - growth[1]
    assert ours.value == pytest.approx(differences.sum())
    assert ours.se == pytest.approx(np.sqrt(12 * differences.var(ddof=1)))


def test_the_naive_comparison_is_refused():
    said = tables.refusal(example("example4"))
    assert "different outcome (growth over a month, growth over a year)" in said


def test_says_why_where_numbers_differ():
    """Δ 11.3, SE 7.9, Pr 92% in the paper; ours by folds of a given sum and spread."""
    (part,) = (part for part in parts.PARTS if part.experiment == "example2")
    made, spread = example("example2"), (np.arange(12) - 5.5) / np.sqrt(156)
    runs = {
        name: with_elpd(made, value / 12 + se * spread, np.zeros(12))
        for name, value, se in (
            ("example2", 11.6, 7.8),
            ("example2_plain", 11.6, 5.0),
            ("example2_authors", 20.0, 13.9),
        )
    }
    table = tables.difference_table(part, runs)
    paper_row, ours, plain, authors = table.rows
    assert paper_row[1:5] == ("11.3", "7.9", "0.8", "92%")
    assert ours[1:3] == ("11.60", "7.8")
    assert ours[-1] == "Δ, SE and Pr within Monte Carlo error"
    assert plain[-1].startswith("SE differs by \N{MINUS SIGN}2.90, Pr by 7 points. Few draws carry")
    assert authors[-1].startswith(f"Δ differs by 8.70, SE by 6.00. {parts.WHY['example2_authors']}")
    assert table.notes[1] == "The paper's text: Pr about 90%."


def test_error_of_the_standard_error():
    """Against its spread when folds' scores are made anew with their errors."""
    rng = np.random.default_rng(1)
    made, terms = example("example2"), rng.normal(0, 2, (2, 12))
    errors = [d["joint_mcse"].to_numpy() for d in made.diagnostics.values()]
    found = [
        numbers.estimate("example2", with_elpd(made, *(terms + [rng.normal(0, e) for e in errors])))
        for _ in range(400)
    ]
    expected = numbers.estimate("example2", with_elpd(made, *terms)).mcse_se
    low, high = sd_limits(400)
    assert low < np.std([x.se for x in found], ddof=1) / expected < high


def test_lengths_of_a_run_too_short_for_the_papers():
    made = example("example2")
    assert lengths(made, (50, 100)) == [50, 100, 200]
    assert lengths(made, (50, 500)) == [50, 100, 200]
    assert lengths(made, (100, 1_000)) == [50, 100, 200]
    assert lengths(made, (50, 200)) == [50, 100, 200]


def test_numbering_is_the_papers():
    assert list(FIGURES) == list(range(1, 17))
    assert {n: d.experiment for n, d in FIGURES.items()} == {
        n: name for name, numbers in files.FIGURES.items() for n in numbers
    }
    assert {t.experiment: n for n, t in RUN_TIMES.items()} == files.TABLES
    variants = [name for part in parts.PARTS for name in part.variants if name != parts.GROWTH]
    assert variants == list(files.EXPERIMENTS)
    assert set(parts.WHY) == {*variants, parts.GROWTH}
    assert set(DIFFERENCES) == {part.experiment for part in parts.PARTS}


@pytest.mark.parametrize("number", FIGURES)
def test_figures_are_drawn(number):
    drawn = FIGURES[number]
    figure = drawn.draw(example(drawn.experiment), 1)
    assert len(figure.axes) >= {13: 1, 14: 2}.get(number, 2)
    again = drawn.draw(example(drawn.experiment), 1)
    assert [ax.get_title(loc="left") for ax in again.axes] == [
        ax.get_title(loc="left") for ax in figure.axes
    ]


def test_figures_13_and_14_show_the_series_and_its_seasons():
    """Seasons are at whole cycles a year, and only in the growth from month to month."""
    made = example("example4")
    swings = np.exp(0.05 * np.sin(np.pi * np.arange(48) / 12))  # one in two years
    made = made._replace(data=made.data.assign(outbound=made.data["outbound"] * swings))
    (ax,) = FIGURES[13].draw(made, 1).axes
    np.testing.assert_allclose(ax.lines[0].get_ydata(), made.data["outbound"] / 1e6)
    np.testing.assert_allclose(
        ax.lines[1].get_ydata()[0],
        np.average(made.data["outbound"][:13], weights=[1] + [2] * 11 + [1]) / 1e6,
    )
    shares = []
    for panel in FIGURES[14].draw(made, 1).axes:
        cycles, share = panel.lines[-1].get_data()
        shares.append(share[np.abs(cycles - np.maximum(cycles.round(), 1)) < 0.3].sum())
    assert shares[0] > 0.9
    assert cycles[np.argmax(share)] == pytest.approx(0.5, abs=0.2)
    assert shares[1] < 0.1


def test_figure_5_flags_both_and_not_the_run_itself():
    made = example("example1", folds=30)
    shares = [float(run["benchmark_share"]) for run in pathologies(made, 1).values()]
    assert shares[0] > BENCHMARK_LEVEL
    assert max(shares[1:]) <= BENCHMARK_LEVEL


def test_a_stuck_chain_that_rhat_misses_is_named_all_the_same(monkeypatch):
    missed = xr.Dataset({"rhat_max": 1.014, "benchmark_share": 0.12})
    runs = dict.fromkeys(("chains as drawn", "a stuck chain", "a shifted chain"), missed)
    monkeypatch.setattr(numbers, "pathologies", lambda *_: runs)
    stuck, shifted = beside_captions(example("example1")).rows[4:6]
    found = "1.014, reached by 12% of the benchmark: not noticed"
    assert stuck[2:] == (f"{found}; named as one that never moved", tables.MISSED)
    assert shifted[2:] == (found, tables.LATER)


def test_mixing_is_set_beside_the_papers_words():
    """Healthy chains have mixed at every length, those with one shifted chain at none."""
    made = example("example1")
    spoilt = shifted_chain(np.random.default_rng(1), made.draws["all_four"]).draws
    settled, apart = (
        beside_captions(x) for x in (made, made._replace(draws={**made.draws, "all_four": spoilt}))
    )
    assert [row[1] for row in settled.rows] == [
        "for most of 1,000 draws", "not mixed", "mixed", "after a few hundred draws",
        "noticed", "noticed", "within the range of the folds",
    ]  # fmt: skip
    assert [row[-1] for row in settled.rows[1:3]] == [tables.SOONER, tables.ALIKE]
    assert [row[-1] for row in apart.rows[1:3]] == [tables.ALIKE, tables.LATER]
    assert all(row[2].endswith(": noticed") for row in settled.rows[4:6])
    assert apart.flagged[2]
    short = beside_captions(example("example3"))
    assert short.rows[1] == (
        "R-hat max after 4,000 draws (figure 12)", "mixed", "", "ours makes 200 draws"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("last", "ours", "against"),
    [
        ([1.5, 1.2, 1.005], "until 40 of 60 draws, in the end 1.005", tables.SOONER),
        ([1.005, 1.004, 1.003], "never, in the end 1.003", tables.SOONER),
        ([1.5, 1.2, 1.1], "for all 60 draws, in the end 1.100", "ours makes 60 draws"),
        ([1.005, 1.2, 1.1], "still after 60 draws, in the end 1.100", "ours makes 60 draws"),
    ],
)
def test_how_long_rhat_is_above_the_line(last, ours, against):
    made = example("example2")
    rhat_at = xr.DataArray([last] * 12, dims=("fold", "point"))
    point = [20, 40, 60]
    made = made._replace(
        diagnostics={m: xr.Dataset({"rhat_at": rhat_at}) for m in made.diagnostics},
        comparison=made.comparison.isel(point=slice(3)).assign_coords(point=point),
    )
    assert beside_captions(made).rows[0][2:] == (ours, against)


@pytest.mark.parametrize("reference", [0, 1])
@pytest.mark.parametrize(
    ("p_better", "settled", "against"),
    [([0.5, 0.985, 0.99], 1_000, tables.ALIKE), ([0.99, 0.5, 0.98], 1_500, tables.LATER)],
)
def test_how_soon_the_probability_settles(reference, p_better, settled, against):
    """Whichever model is the comparator, of which there is none."""
    made = example("example2")
    other = NAMES["example2"][1 - reference]
    values = np.full((1, 2, 3), np.nan)
    at = xr.DataArray(
        values, dims=("kind", "model", "point"), coords={"model": list(NAMES["example2"])}
    )
    at.loc[{"model": other}] = p_better if other == "slopes" else 1 - np.array(p_better)
    comparison = made.comparison.isel(point=slice(3)).assign_coords(point=[500, 1_000, 1_500])
    comparison = comparison.drop_vars("p_better_at").assign(p_better_at=at)
    rhat_at = xr.DataArray([[1.0] * 3] * 12, dims=("fold", "point"))
    made = made._replace(
        comparison=comparison,
        diagnostics={m: xr.Dataset({"rhat_at": rhat_at}) for m in made.diagnostics},
    )
    assert numbers.captioned(made, 1).settled == settled
    (row,) = (row for row in beside_captions(made).rows if "settles" in row[0])
    assert row[1:] == ("after about 1,000 draws", f"after {settled:,} draws", against)


def test_tables_have_the_papers_rows_and_ours():
    for number, times in RUN_TIMES.items():
        made = {times.experiment: example(times.experiment)}
        table = tables.time_table(number, made)
        assert [row[0].rpartition(": ")[2] for row in table.rows] == ["paper", "ours"] * 3
        assert {len(row) for row in table.rows} == {len(table.head)}
        assert table.rows[4][1:3] == (f"{times.folds.chains:,}", f"{times.folds.posteriors:,}")
        settings = made[times.experiment].settings.cv
        assert table.rows[5][1:3] == (f"{2 * 12 * settings.chains:,}", "24")
        assert table.rows[5][5:8] == ("5.0", "8.0", "13.0")


def test_page_has_what_was_run_and_says_what_was_not():
    made = {"example2": example("example2")}
    pictures = drawn({"figure_09": FIGURES[9].draw(made["example2"], 1)})
    why = "Its data could not be had."
    missing = {"example3": why, "example3_cleaned": why}
    mixing = {"example2": beside_captions(made["example2"])}
    text = page.html(made, missing, pictures, {2: tables.time_table(2, made)}, mixing, ["Seed 1."])
    assert "Largest R-hat above 1.01 (figure 9)" in text
    assert "Figure 9. Example 2" in text
    assert "Figure 11" not in text
    assert "example3, example3_cleaned were not run.</strong> Its data could not be had." in text
    assert "Table 2." in text
    assert text.count("not run</td>") == len(files.EXPERIMENTS)  # example 4 twice
    assert not re.search(
        r"<(script|link|img)|https?://(?!www.w3.org|purl.org|creativecommons)", text
    )


def test_numbers_of_the_page_as_json():
    made = {name: example(name) for name in ("example2", "example2_plain", "example4")}
    captions = {name: numbers.captioned(made[name], 1) for name in ("example2", "example4")}
    found = json.loads(json.dumps(numbers.as_json(made, captions, 7), allow_nan=False))
    assert found.pop("seed") == 7
    assert list(found) == [part.experiment for part in parts.PARTS]
    assert list(found["example2"]["runs"]) == ["example2", "example2_plain"]
    assert list(found["example4"]["runs"]) == ["example4", parts.GROWTH]
    assert found["example3"]["runs"] == {}
    assert found["example3"]["captions"] is None
    assert found["example2"]["paper"]["difference"]["value"] == 11.3
    assert found["example2"]["paper"]["times"]["folds"]["seconds"] == [10.0, 7.9]
    ours, run = (
        numbers.estimate("example2", made["example2"]),
        found["example2"]["runs"]["example2"],
    )
    assert ours._asdict().items() <= run.items()
    assert (run["folds"], run["chains"], run["seconds"]["common"]["fit"]) == (24, 8, 11.0)
    after = found["example2"]["captions"]["after"]["50"]
    assert after == captions["example2"].after[50]._asdict()
    mean = found["example4"]["means"][0]
    assert (mean["label"], mean["value"], mean["ours"]["mean"]) == ("σ", 0.037, 0.5)


def test_both_configs_run_the_same_at_other_lengths():
    full, quick = (load(path) for path in CONFIGS.values())
    assert list(full.experiments) == list(quick.experiments) == list(files.EXPERIMENTS)
    for name, experiment in full.experiments.items():
        other = quick.experiments[name]
        same = {"fit": experiment.fit, "cv": experiment.cv}
        assert other.model_copy(update=same) == experiment
        assert other.cv.chains == experiment.cv.chains
        assert other.cv.draws <= experiment.cv.draws
        a, b = experiment.models
        assert experiment.compare.reference == b
        assert (a, b) == NAMES[name[:8]]
    for times in RUN_TIMES.values():
        run = full.experiments[times.experiment]
        assert (run.fit.chains, run.fit.warmup, run.fit.draws) == times.a[:1] + times.a[2:4]
        assert run.cv.warmup == times.folds.warmup
        assert run.cv.draws == max(times.folds.draws, LONGEST_FIGURE[times.experiment])


@pytest.fixture
def project(tmp_path):
    for folder in ("config", "resources"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def experiments(run) -> set[str]:
    return set(re.findall(r"experiment=(\w+)", run.out + run.err))


@pytest.mark.parametrize("arguments", [(), ("--configfile", "config/paper/quick.yaml")])
def test_paper_runs_all_experiments(project, arguments):
    run = snakemake(project, "paper", "--dry-run", *arguments)
    assert "paper" in planned(run)
    assert experiments(run) == set(files.EXPERIMENTS)


def test_other_targets_leave_the_paper_out(project):
    run = snakemake(project, "--dry-run")
    assert "paper" not in planned(run)
    assert experiments(run) == {"rats"}


@pytest.mark.slow
def test_a_paper_of_another_workflow_is_its_own(tmp_path):
    project = make_project(tmp_path)
    (project / "Snakefile").write_text(
        f"""
configfile: "tiny.yaml"

module pcv:
    snakefile: "{ROOT / "workflow/Snakefile"}"
    config: config

use rule * from pcv as pcv_*

rule paper:
    output: "paper.pdf"
    shell: "touch {{output}}"

onsuccess:
    pcv.onsuccess()
"""
    )
    run = snakemake(project, "paper", snakefile=project / "Snakefile")
    assert run.status == 0, run.err
    assert "results/paper" not in run.out


def test_each_line_of_an_error_says_so(tmp_path):
    bad = yaml.safe_load(CONFIGS["quick"].read_text()) | {"seed": "x", "more": 1}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(bad))
    place = [sys.executable, str(ROOT / "workflow/paper"), "bad.yaml"]
    run = subprocess.run(place, cwd=tmp_path, capture_output=True, text=True)
    lines = run.stderr.splitlines()
    assert run.returncode == 1
    assert len(lines) > 1
    assert all(line.startswith("error: ") for line in lines)


@pytest.mark.slow
def test_a_failed_download_leaves_the_rest(tmp_path, monkeypatch):
    """Its error says where else the data may be had; the page is of what there is."""
    project = make_project(tmp_path)
    radon = yaml.safe_load(CONFIGS["quick"].read_text())["experiments"]["example3"]
    tiny = changed(cv__fold_batches=1)["experiments"]["tiny"]
    chosen = {"example2": tiny, "example3": radon}
    (project / "config/paper").mkdir(parents=True)
    (project / "config/paper/paper.yaml").write_text(
        yaml.safe_dump({"seed": 1, "experiments": chosen})
    )
    monkeypatch.setenv("PCV_DATA", str(project))
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    run = snakemake(project, "paper")
    assert run.status != 0
    assert "Traceback" not in run.out + run.err
    assert "error: data set 'radon': https://" in run.err
    assert "put radon_all.json.zip (or the table made of it, radon_us.csv) into a" in run.err
    text = (project / "results/paper/index.html").read_text()
    assert "<code>snakemake --cores all paper --configfile " in text
    assert "The data set &#39;radon&#39; is missing too: it is downloaded from" in text
    assert (
        "example4, example4_blocks were not run.</strong> the config has no such experiment" in text
    )
    drawn = {path.name for path in (project / "results/paper/figures").glob("*.png")}
    assert drawn == {"figure_06.png", "figure_09.png", "figure_10.png"}
    assert (project / "results/paper/tables/table_2.csv").exists()
    told = json.loads((project / "results/paper/numbers.json").read_text())
    assert list(told["example2"]["runs"]) == ["example2"]


def test_a_page_of_nothing_names_all_that_is_missing(tmp_path):
    said = []
    paper(load(CONFIGS["quick"]), tmp_path, Monitor(emit=said.append, task="paper"))
    assert [line.split(":")[2] for line in said[:-1]] == [
        " missing example1, example1_authors, example2, example2_plain, example2_authors",
        " missing example3, example3_authors, example3_cleaned",
        " missing example4, example4_blocks",
    ]
    assert all("`snakemake paper` runs the missing ones." in line for line in said[:-1])
    text = (tmp_path / "paper/index.html").read_text()
    assert text.count("were not run.</strong>") == 4
    assert "example1, example1_authors were not run.</strong> " in text
    assert not list(tmp_path.glob("paper/figures/*"))
