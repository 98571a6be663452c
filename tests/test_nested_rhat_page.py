"""The page of nested R-hat: its targets, its chains, and what it makes of them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
import yaml
from scipy.integrate import solve_ivp
from scipy.stats import multivariate_normal

from nested_rhat import chains, errors, figures, files, illustrated, targets
from nested_rhat import page as pages
from nested_rhat.settings import Illustrated, Runs, load, parse, part
from pcv.analysis.diagnostics import batch_sums, nested_limit, nested_rhat, tolerated
from pcv.base.errors import PcvError
from pcv.base.monitor import SILENT, Monitor
from pcv.models.model import full_data
from pcv.pipeline.storage import store
from tests.bounds import sd_limits
from tests.chains import fit_of
from tests.data import needs_data
from tests.workflow import CONFIG, ROOT, make_project, planned, snakemake, write_config

CONFIGS = {path.stem: path for path in (ROOT / "config/nested_rhat").glob("*.yaml")}
SIZES = {
    "rosenbrock": 2,
    "schools": 10,
    "pharmacokinetics": 45,
    "bimodal": 100,
    "item_response": 501,
    "german_credit": 25,
}
RUNS = Runs(chains=64, superchains=[4, 8], repeats=16, lengths=[1, 40], reference=2000)


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_have_all_targets(name):
    settings = load(CONFIGS[name])
    assert set(settings.targets) == set(SIZES)
    for runs in settings.targets.values():
        assert runs.superchains[0] == 16
        assert name == "quick" or runs.chains == 2048


def test_the_workflow_knows_the_page():
    assert "nested_rhat" in planned(snakemake(ROOT, "nested_rhat", "--dry-run", "--forceall"))


def test_jobs_of_a_cluster_know_the_settings(tmp_path):
    """From the file that the run has saved, with a config that has no experiments of the page; an
    old file is in no other job's way."""
    project, saved = make_project(tmp_path), tmp_path / "results/nested_rhat/settings.yaml"
    saved.parent.mkdir(parents=True)
    write_config(project, CONFIG, "results/config.yaml")
    content = load(CONFIGS["quick"]).model_dump()
    content["targets"] = {"bimodal": content["targets"]["bimodal"]}
    job = "--mode", "remote", "--dry-run", "--target-jobs"
    for text, jobs in (
        (yaml.safe_dump({"nested_rhat": content}), {"superchains:target=bimodal": "superchains"}),
        ("nested_rhat: {colour: red}", {}),
    ):
        saved.write_text(text)
        for asked, planned_ in {**jobs, "data:experiment=tiny": "data"}.items():
            assert planned(snakemake(project, *job, asked)) == {planned_}


def test_bad_settings_are_one_line_each():
    content = load(CONFIGS["quick"]).model_dump()
    content["targets"]["schools"]["superchains"] = [16, 3]
    content["targets"]["bimodal"]["lengths"] = [40, 10]
    content["colour"] = "red"
    with pytest.raises(PcvError) as caught:
        parse({"nested_rhat": content}, "quick.yaml")
    assert str(caught.value).splitlines() == [
        "quick.yaml: nested_rhat.targets.schools.superchains: 3 superchains of 2048 chains: must "
        "be at least two, of equal size, with at least two chains each",
        "quick.yaml: nested_rhat.targets.bimodal.lengths: must increase",
        "quick.yaml: nested_rhat.colour: unknown key",
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=needs_data if x == "german_credit" else ()) for x in SIZES]
)
def test_targets_have_the_papers_dimensions(name, tmp_path):
    example = targets.TARGETS[name](tmp_path)
    assert len(example.names) == SIZES[name]
    where = example.target.init(jax.random.key(1))
    slope = jax.grad(example.target.log_density)(where, full_data(example.num_units))
    assert np.isfinite(slope).all()


def test_masses_solve_the_compartments():
    """Three doses into the gut, from where they are absorbed."""
    k1, k2, until = 1.3, 0.2, 30.0
    state, solved = np.zeros(2), []
    hours = np.array([0.5, 7.0, 12.5, 20.0, 24.1, 30.0])
    for dose in range(targets.DOSES):
        begin, end = targets.EVERY * dose, min(targets.EVERY * (dose + 1), until)
        end = until if dose == targets.DOSES - 1 else end
        at = hours[(hours > begin) & (hours <= end)]
        state = state + [targets.DOSE, 0]
        found = solve_ivp(
            lambda t, m: [-k1 * m[0], k1 * m[0] - k2 * m[1]],
            (begin, end),
            state,
            t_eval=np.unique([*at, end]),
            rtol=1e-10,
            atol=1e-10,
        )
        solved.extend(found.y[1, : len(at)])
        state = found.y[:, -1]
    np.testing.assert_allclose(targets.in_blood((k1, k2), hours), solved, rtol=1e-6)


def test_moments_that_are_known():
    """Against draws made another way."""
    rng, number = np.random.default_rng(1), 400_000
    bent = targets.rosenbrock(Path())
    x = 10 * rng.normal(size=number)
    draws = np.column_stack([x, 0.03 * (x**2 - 100) + rng.normal(size=number)])
    np.testing.assert_allclose(bent.mean, draws.mean(0), atol=5 * 10 / np.sqrt(number))
    # False alarm < 1e-4: the larger error has an sd of .006.
    np.testing.assert_allclose(bent.variance, draws.var(0), rtol=0.03)
    two = targets.bimodal(Path())
    mode = np.where(rng.uniform(size=number) < 0.7, 5.0, -5.0) + rng.normal(size=number)
    np.testing.assert_allclose(two.mean[0], mode.mean(), atol=0.05)
    np.testing.assert_allclose(two.variance[0], mode.var(), rtol=0.02)


def normal() -> targets.Example:
    """A correlated normal distribution."""
    mean, cov = np.array([1.0, -2.0]), np.array([[1.0, 0.6], [0.6, 2.0]])
    inverse = jnp.asarray(np.linalg.inv(cov))
    at = np.array([0.3, 0.1])
    example = targets.known(lambda x: -0.5 * (x - mean) @ inverse @ (x - mean), mean, np.diag(cov))
    found = example.target.log_density(jnp.asarray(at), full_data(1))
    one = multivariate_normal(mean, cov)
    assert found == pytest.approx(one.logpdf(at) - one.logpdf(mean))
    return example


@pytest.fixture(scope="module")
def run() -> xr.Dataset:
    with jax.enable_x64(True):
        return chains.run("normal", normal(), RUNS, 1, SILENT)


@pytest.mark.slow
def test_chains_forget_and_their_errors_are_those_of_stationary_ones(run):
    low, high = sd_limits(1 + RUNS.repeats)  # two parameters as one
    for sampler in chains.SAMPLERS:
        for number in RUNS.superchains:
            found = errors.errors(run, sampler, number)
            late = found.squared[:, -1]
            assert low < np.sqrt(late.mean()) < high
            # False alarm < 1e-4: each of 16 is above with a probability of .08 or less.
            assert np.median(found.rhat[:, -1]) < errors.limit(run, number) * 1.05
    early = errors.errors(run, "chees", 4)
    # False alarm < 1e-4: 64 times a mean of 16 chi-squares; and on the median R-hat is 15 or more,
    # but 1.3 in one of 80 repeats.
    assert early.squared[:, 0].mean() > 4
    assert np.median(early.rhat[:, 0]) > 2 * errors.limit(run, 4)


def test_the_threshold_is_that_of_the_folds():
    draws = np.random.default_rng(1).normal(size=(1, 64, 1))
    sums = batch_sums(draws, 1)
    limit = errors.limit(xr.Dataset(attrs={"chains": 64}), 4)
    assert limit == pytest.approx(nested_limit(sums, 4, tolerated(64))[0])
    rhat, mean = chains.looked_at(draws, 4)
    assert rhat[0, 0] == pytest.approx(nested_rhat(sums, 4)[0])
    assert mean[0, 0] == pytest.approx(draws.mean())


def test_chains_of_a_superchain_start_at_one_point():
    draws = np.random.default_rng(1).normal(size=(4, 100, 3))
    fit = fit_of(draws.reshape(-1, 3), 0.5, 3)
    fit = fit._replace(draws=fit.draws._replace(position=draws))
    begin = chains.starts(np.random.default_rng(2), fit, 6, 8, 64)
    nested = begin.reshape(6, 8, 8, 3)
    assert (np.ptp(nested, axis=2) == 0).all()
    low, high = sd_limits(nested[:, :, 0].size)
    assert low < nested.std() / (2 * draws.std()) < high


def test_accepted_errors():
    found = errors.Errors(
        np.array([[[0.1, 9.0], [5.0, 0.2]]]),
        np.array([[[0.0, 1.0], [0.001, 0.3]]]),
        np.ones((1, 2, 2)),
    )
    assert errors.share_large(found) == (0.5, 4)
    assert errors.share_large(found, 0.01) == (0.5, 2)
    assert np.isnan(errors.share_large(found, -1.0)[0])


@pytest.fixture(scope="module")
def drawn() -> xr.Dataset:
    small = Illustrated(superchains=256, chains=32, repeats=10, grid=5)
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patched:
        patched.setattr(illustrated, "SPLITS", (2, 1024))
        return illustrated.illustrate(small, 1, Path(), SILENT)


@pytest.mark.slow
def test_a_superchain_forgets_in_the_normal_and_not_in_the_mixture(drawn):
    # False alarm < 1e-4: 32, 1 and 1/32 times; variances of 256 have errors of 9%.
    alone, apart, together = drawn["variance"].sel(distribution="normal").values
    assert together[0] > 10 * apart[0]
    assert together[-1] < 3 * apart[-1] < alone[-1]
    alone, apart, together = drawn["variance"].sel(distribution="mixture").values
    assert together[-1] > 10 * apart[-1]  # 27 times


@pytest.mark.slow
def test_narrow_and_biased_starts_are_unreliable(drawn):
    """Corollary 3.6, at least six times above its bound or four times below."""
    found = drawn["reliable"].sel(distribution="normal")
    excess, reliable = illustrated.TOLERATED - 1 / illustrated.PER_SUPERCHAIN, illustrated.RELIABLE
    bound = excess * (found["bias"] ** 2 / reliable - 1)
    above, below = found["spread"] > 6 * bound, found["spread"] < bound / 4
    assert above.sum() > 5
    assert below.sum() > 5
    # False alarm < 1e-4: next to the bound, .141, means are off by .053 (sd .021) and .264 (.032).
    assert found.where(above, True).all()
    assert not found.where(below, False).any()


@pytest.mark.slow
def test_nested_rhat_falls_where_rhat_does_not(drawn):
    # False alarm < 1e-4: 1.001, as F of 3 degrees of freedom; 1.10, give or take .02.
    assert drawn["nested_rhat"][-1] < 1.02 < drawn["rhat_many"][-1]


@pytest.mark.slow
def test_the_page_has_a_table_and_all_figures(run, drawn, tmp_path):
    settings = load(CONFIGS["quick"])
    for name, dataset in {"schools": run, "bimodal": run, files.ILLUSTRATED: drawn}.items():
        path = files.run_of(tmp_path, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        made_of = part(settings, "rosenbrock" if name == "bimodal" else name)  # of another config
        store.put(path, dataset.assign_attrs(device="a CPU", settings=made_of), mode="w")
    said: list[str] = []
    pages.page(settings, tmp_path, Monitor(emit=said.append), "snakemake nested_rhat")
    folder = files.folder_of(tmp_path)
    text = (folder / "index.html").read_text()
    assert "Run on a CPU" in text
    assert "missing rosenbrock, german_credit" in said[0]
    assert "missing bimodal: Its chains are of other settings" in said[1]
    for file in files.files(varied=True):
        assert (tmp_path.parent / file.replace("results", tmp_path.name, 1)).exists()
    rows = pages.table_1({"Normal": run}).rows
    assert [row[0] for row in rows] == [f"Normal, {x}" for x in figures.SAMPLERS.values()]
    assert rows[0][1:3] == ("2", "4\u00a0×\u00a016")


def test_a_page_of_nothing(tmp_path):
    said: list[str] = []
    pages.page(load(CONFIGS["quick"]), tmp_path, Monitor(emit=said.append), "snakemake nested_rhat")
    assert "`snakemake nested_rhat` runs it" in " ".join(said)
    assert not list(tmp_path.glob("nested_rhat/tables/*"))
