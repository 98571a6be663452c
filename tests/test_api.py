"""From Python: models of all front-ends to a comparison, ArviZ, disk and back; refusals."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace

import arviz_plots
import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from arviz_stats.base import array_stats
from arviz_stats.utils import ELPDDataLOOKFold
from filelock import FileLock
from scipy.special import softmax
from scipy.stats import norm
from sklearn.model_selection import GroupKFold

import pcv
from pcv.analysis import weights
from pcv.analysis.diagnostics.jackknife import shared
from pcv.analysis.diagnostics.psis import doubts, psis
from pcv.api.result import CV
from pcv.base.errors import PcvError
from pcv.core.store import Unsaved
from pcv.folds.base import train_mask
from pcv.models.model import Model, Outcome, numeric, support
from pcv.models.observations import observations
from pcv.pipeline.config import DataConfig
from pcv.pipeline.data import tables
from tests.bounds import sd_limits, z_limit
from tests.problems import LinearGaussian, exact, hierarchy, regression
from tests.synthetic import diagnosed

N = 24
RNG = np.random.default_rng(11)
X, GROUP = RNG.normal(size=N), np.repeat(np.arange(6), 4)
Y = 1 + 0.7 * X + RNG.normal(0, 0.8, 6)[GROUP] + RNG.normal(0, 0.5, N)
COUNT = RNG.poisson(np.exp(3.0 + RNG.normal(0, 1.2, 6)[GROUP]))
QUICK = {"progress": False, "fit": {"warmup": 300, "draws": 300}}


def slopes(y, x):
    a, b = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("b", dist.Normal(0, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.Normal(a + b * x, sigma), obs=y)


def flat(y):
    a, sigma = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.Normal(a, sigma), obs=y)


def poisson_groups(y, group):
    mu, tau = numpyro.sample("mu", dist.Normal(2, 2)), numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", len(np.unique(group))):
        u = numpyro.sample("u", dist.Normal(mu, tau))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.Poisson(jnp.exp(u[group])), obs=y)


def in_pymc():
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1)
        pm.Normal("y", a + b * X, pm.HalfNormal("sigma", 2), observed=Y)
    return model


def by_hand():
    prior = {"a": dist.Normal(0.0, 2.0), "b": dist.Normal(0.0, 1.0), "sigma": dist.HalfNormal(2.0)}
    space = support({"sigma": dist.constraints.positive})

    def log_prior(params):
        theta = space.constrain(params)
        return sum(p.log_prob(theta[k]) for k, p in prior.items()) + space.log_jacobian(params)

    def log_lik(params, data):
        theta = space.constrain(params)
        return dist.Normal(theta["a"] + theta["b"] * data["x"], theta["sigma"]).log_prob(data["y"])

    def init(key):
        keys = jax.random.split(key, 3)
        return space.unconstrain({k: p.sample(x) for (k, p), x in zip(prior.items(), keys)})

    return Model(init, log_prior, log_lik, space.constrain, Outcome("y"))


@pytest.fixture(scope="module")
def found():
    with jax.enable_x64(True):
        models = {
            "slopes": pcv.from_numpyro(slopes, {"y": Y, "x": X}),
            "flat": pcv.from_numpyro(flat, {"y": Y}),
        }
        return pcv.cross_validate(models, "loo", scores=["log", "crps", "rmse"], seed=1, **QUICK)


class TestOneModel:
    def test_numbers_and_names(self, found):
        cv = found["slopes"]
        assert (cv.kind, cv.name) == ("pointwise", "slopes")
        assert cv.elpd == pytest.approx(float(cv.pointwise.sum()), rel=1e-12)
        assert cv.pointwise.sizes == {"unit": N}
        assert cv.pointwise["unit"].values[:2].tolist() == ["case 0", "case 1"]
        assert cv.se == pytest.approx(np.sqrt(N) * cv.pointwise.values.std(ddof=1), rel=1e-12)
        # False alarm < 1e-4: .017 with an sd of .0014, and p is 2.4 with one of .04.
        assert 0 < cv.mcse < 0.1 * cv.se
        assert 1 < cv.p < 6
        assert cv.folds.shape[0] == N
        assert {"rhat", "khat", "ess", "verdict"} <= set(cv.folds)
        assert cv.score("rmse")["estimate"] == pytest.approx(-0.9, abs=0.4)
        with pytest.raises(PcvError, match="no pointwise score 'dss'; there are crps_pointwise"):
            cv.score("dss")

    def test_it_prints_itself(self, found):
        lines = repr(found["slopes"]).splitlines()
        assert lines[0] == "slopes: leave-one-out: 24 folds, test 1, training 23, no gap"
        assert lines[1].startswith("Pointwise log score of y, plain predictive, 8 chains x 200")
        assert lines[3].split() == ["Estimate", "SE", "MCSE"]
        assert lines[4].split()[0] == "elpd"
        share = float(found["slopes"].diagnostics["benchmark_share"])
        assert f"(reached by {share:.1%} of its benchmark): " in " ".join(" ".join(lines).split())
        page = found["slopes"]._repr_html_()
        assert page.startswith('<pre style="white-space: pre-wrap">')
        assert page.count("<tr") == 2 + N  # names of columns, name of the index, folds

    def test_it_is_drawn(self, found):
        for name in ("elpd", "rhat", "benchmark", "khat", "full_data"):
            assert getattr(found["slopes"], f"plot_{name}")().axes

    def test_to_disk_and_back(self, found, tmp_path):
        found["slopes"].save(tmp_path / "cv.zarr")
        again = pcv.load(tmp_path / "cv.zarr")
        assert repr(again) == repr(found["slopes"])
        compared = pcv.compare({"slopes": again, "flat": found["flat"]})
        assert compared.frame.equals(pcv.compare(found).frame)
        with pytest.raises(PcvError, match=r"nothing\.zarr: not found"):
            pcv.load(tmp_path / "nothing.zarr")
        found["slopes"].save(tmp_path / "cv.zarr")
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "file.txt").write_text("precious")
        with pytest.raises(PcvError, match=r"own: something else is there, and is not overw"):
            found["slopes"].save(tmp_path / "own")
        assert (tmp_path / "own" / "file.txt").read_text() == "precious"

    def test_to_a_bucket_and_back(self, found):
        bucket = "memory://bucket/cv.zarr"
        with pytest.raises(PcvError, match=r"memory://bucket/cv\.zarr: not found"):
            pcv.load(bucket)
        found["slopes"].save(bucket)
        assert repr(pcv.load(bucket)) == repr(found["slopes"])
        found["slopes"].save(bucket)
        with pytest.raises(PcvError, match="nowhere://cv: Protocol not known"):
            found["slopes"].save("nowhere://cv")

    def test_the_posterior_is_arvizs(self, found):
        tree = found["slopes"].to_datatree()
        assert {"posterior", "sample_stats", "log_likelihood", "observed_data"} <= set(
            tree.children
        )
        # False alarm < 1e-4: -.07, with an sd of .08.
        assert arviz_stats.loo(tree).elpd == pytest.approx(found["slopes"].elpd, abs=0.5)


def mean_of(key, target, params, fold):
    return {"mean": target.moments(params, fold)[0]}


def off(power):
    return lambda means, y: -(np.abs(means["mean"] - y) ** power)


def density_of(key, target, params, fold):
    joint, pointwise = target.log_predictive(params, fold)
    return {"joint": jnp.exp(joint), "pointwise": jnp.exp(pointwise), "log": joint}


OWN = pcv.Score("own", "pointwise", mean_of, off(2), total="root mean")
OTHER = OWN._replace(estimate=off(1))
LOGS = (
    pcv.Score("density", "joint", density_of, lambda means, y: np.log(means["joint"])),
    pcv.Score("density", "pointwise", density_of, lambda means, y: np.log(means["pointwise"])),
    pcv.Score("mean_log", "joint", density_of, lambda means, y: means["log"]),
)


@pytest.fixture(scope="module")
def scored():
    with jax.enable_x64(True):
        model = pcv.from_numpyro(slopes, {"y": Y, "x": X})
        chosen = ["rmse", OWN, OTHER._replace(name="other"), *LOGS]
        return pcv.cross_validate(model, pcv.kfold(N, 4), scores=chosen, seed=1, **QUICK)


def test_a_score_of_the_session(scored):
    """The error of the mean, as `rmse` has it, written by hand, and not its absolute value."""
    rmse, by_hand, other = (scored.score(name) for name in ("rmse", "own", "other"))
    np.testing.assert_allclose(by_hand, rmse, rtol=1e-9)
    assert (np.abs(other / rmse - 1) > 0.01).all()


def test_scores_of_the_session_that_are_refused():
    model = pcv.from_numpyro(slopes, {"y": Y, "x": X})
    with pytest.raises(PcvError, match=r"scores: int is neither a name nor a pcv\.Score"):
        pcv.cross_validate(model, "loo", scores=[3], **QUICK)
    broken = OWN._replace(estimate=lambda means, y: means["median"])
    with pytest.raises(PcvError, match=r"score 'own' of model .* fails: KeyError: 'median'"):
        pcv.cross_validate(model, "loo", scores=broken, **QUICK)


def test_the_jackknife_of_the_log_score_is_the_delta_formula_and_not_that_of_mean_logs(scored):
    own = scored.diagnostics[["own_elpd", "own_mcse"]]  # as scores are of the folds' own draws
    elpd, mcse = float(own["own_elpd"].sum()), float(np.sqrt((own["own_mcse"] ** 2).sum()))
    joint, pointwise = (scored.score("density", kind) for kind in ("joint", "pointwise"))
    assert joint["estimate"] == pytest.approx(elpd, rel=1e-9)
    assert joint["mcse"] == pytest.approx(mcse, rel=0.01)
    both = CV(scored.tree, False)
    limit = z_limit(df=31)
    assert abs(pointwise["estimate"] - both.elpd) < limit * np.hypot(pointwise["mcse"], both.mcse)
    twin = scored.score("mean_log", "joint")
    assert abs(twin["estimate"] - elpd) > limit * mcse  # by some 60 mcse


class TestUntil:
    """Draws until the comparison of all models is settled, or until there are enough."""

    models = staticmethod(
        lambda: {
            "slopes": pcv.from_numpyro(slopes, {"y": Y, "x": X}),
            "flat": pcv.from_numpyro(flat, {"y": Y}),
        }
    )

    def test_settled(self):
        until = {"mcse_over_se": 0.5, "min_draws": 100, "max_draws": 400}
        found = pcv.cross_validate(self.models(), pcv.kfold(N, 4), until=until, **QUICK)
        c = pcv.compare(found).shown
        draws = np.concatenate([cv.diagnostics["n_draws"].values for cv in found.values()])
        # False alarm < 1e-4: MCSEs are .065 of the SE (sd .005), largest R-hats 1.01 (sd .006).
        assert draws.min() == 100
        assert draws.max() < 400
        assert (c.mcse_diff[1:] < 0.5 * c.dse[1:]).all()

    @pytest.mark.slow
    def test_decided(self, tmp_path):
        """A clear difference ends at the first look, an unclear one goes on as far as it may: that
        alone, since 40 draws are too few for a fold's R-hat to be below the usual 1.05."""
        models, keep = self.models(), QUICK | {"results": tmp_path, "seed": 1}
        for probability, expected in ((0.55, 40), (0.999999, 80)):
            rule = {"decide": {"probability": probability}, "rhat": 5.0}
            until = {**rule, "min_draws": 40, "max_draws": 80}
            found = pcv.cross_validate(models, pcv.kfold(N, 4), until=until, **keep)
            for cv in found.values():
                assert (cv.diagnostics["n_draws"] == expected).all()
        assert pcv.compare(found).shown.p_better[1] < 0.5

    def test_of_a_single_model(self):
        until = {"decide": {"probability": 0.99}, "max_draws": 200}
        with pytest.raises(PcvError, match=r"cv\.until\.decide: needs another model"):
            pcv.cross_validate(self.models()["flat"], "loo", until=until, **QUICK)


class TestComparison:
    def test_arviz_draws_them(self, found):
        theirs = arviz_stats.compare({name: cv.to_arviz() for name, cv in found.items()})
        drawn = arviz_plots.plot_compare(theirs, backend="matplotlib")
        figure = drawn.viz["figure"].item()
        written = [x.get_text() for axes in figure.axes for x in axes.get_yticklabels()]
        assert set(found) <= set(written)

    def test_arviz_has_the_same_numbers(self, found):
        ours = pcv.compare(found).frame
        theirs = arviz_stats.compare(
            {name: cv.to_arviz() for name, cv in found.items()}, round_to="none"
        )
        assert theirs.index.tolist() == ours.index.tolist()
        np.testing.assert_allclose(theirs["elpd_diff"], ours["elpd_diff"], atol=1e-10)
        factor = np.sqrt(N / (N - 1))
        np.testing.assert_allclose(theirs["dse"] * factor, ours["dse"], atol=1e-10)
        np.testing.assert_allclose(theirs["se"] * factor, ours["se"], rtol=1e-10)
        np.testing.assert_allclose(theirs["p"], [found[m].p for m in theirs.index], rtol=1e-10)
        np.testing.assert_allclose(
            theirs["weight"], pcv.compare(found).weights()[theirs.index], atol=1e-3
        )
        bootstrapped = pcv.compare(found).weights("pseudo-bma+", seed=1)
        assert bootstrapped.idxmax() == "slopes"
        assert bootstrapped.sum() == pytest.approx(1)
        assert not bootstrapped.equals(pcv.compare(found).weights())

    def test_it_prints_itself(self, found):
        assert pcv.compare(found).shown.reference == "slopes"
        text = repr(pcv.compare(found, reference="flat"))
        assert "differences from flat" in text
        assert "crps (pointwise)" in text
        assert "slopes" in text.split("\n\n")[-1]
        page = pcv.compare(found)._repr_html_()
        assert page.startswith('<pre style="white-space: pre-wrap">')
        assert "<summary>all columns, in full</summary>" in page
        assert page.count("<tr") > 2
        for name in ("difference", "probability", "folds"):
            assert getattr(pcv.compare(found), f"plot_{name}")().axes

    def test_what_cannot_be_compared(self, found):
        with pytest.raises(PcvError, match="compare: no models"):
            pcv.compare({})
        model = pcv.from_numpyro(flat, {"y": Y})
        other = pcv.cross_validate(model, pcv.kfold(N, 2, seed=1), seed=1, draws=40, **QUICK)
        with pytest.raises(PcvError, match="'folds' was scored on other folds than 'slopes'"):
            pcv.compare({"slopes": found["slopes"], "folds": other}, joint=False)
        with pytest.raises(PcvError, match="some models show the joint score, some the pointwise"):
            pcv.compare({"slopes": found["slopes"], "folds": other})
        with pytest.raises(PcvError, match=r"no model 'slope'; did you mean 'slopes'"):
            pcv.compare(found, reference="slope")
        with pytest.raises(PcvError, match="'b' is float, not what cross_validate gives"):
            pcv.compare({"a": found["slopes"], "b": found["flat"].elpd})
        tree = found["flat"].tree.copy()
        tree.attrs["outcome_print"] = "of other values"
        with pytest.raises(PcvError, match="'flat' was scored on other data than 'slopes'; give"):
            pcv.compare({"slopes": found["slopes"], "flat": CV(tree, joint=False)})


def test_models_keep_to_their_own_columns():
    """Of columns with one name and other values each model has its own, not the last one's."""
    models = {
        "signal": pcv.from_numpyro(slopes, {"y": Y, "x": X}),
        "noise": pcv.from_numpyro(slopes, {"y": Y, "x": X[::-1]}),
        "site": pcv.from_numpyro(flat, {"y": Y}, columns={"case": GROUP, "site": GROUP}),
    }
    params = {"a": jnp.array(0.1), "b": jnp.array(0.9), "sigma": jnp.array(-0.2)}
    for first in models:
        rows = observations({first: models[first], **models}, {"age": np.arange(N)})
        assert {"y", "site", "age"} <= set(rows.columns)
        for name, model in models.items():
            shared, own = (model.log_lik(params, numeric(x)) for x in (rows.columns, {}))
            np.testing.assert_allclose(shared, own, rtol=1e-12, err_msg=name)
        names = tables.make_data(
            pd.DataFrame({name: x for name, x in rows.columns.items() if x.shape == (N,)}),
            {},
            DataConfig(file="-", outcome="y", order=list(rows.order)),
            "-",
        )["unit"].values
        assert [x.split()[-1] for x in names] == [str(i) for i in range(N)]
    with pytest.raises(PcvError, match="'hand' and 'signal' have different values of column 'x'"):
        pcv.cross_validate({"hand": by_hand(), **models}, data={"y": Y, "x": -X}, **QUICK)


@pytest.mark.slow
def test_a_groups_effects_are_integrated_out_by_themselves():
    problem = hierarchy("marginal")
    model = problem.model._replace(marginal=None, group=None, marginal_predict=None)
    model = model._replace(marginal_moments=None)
    folds = pcv.leave_one_group_out(problem.data["group"])
    cv = pcv.cross_validate(model, folds, data=problem.data, seed=1, **QUICK)
    assert "marginal predictive (integrated exactly)" in repr(cv)
    truth = exact(problem, folds)
    z = (cv.folds["elpd"] - truth.joint) / cv.folds["mcse"]
    assert np.abs(z).max() < z_limit(z.size, df=31)  # 32 batches
    by_unit = np.nansum(truth.pointwise, axis=1)
    mine = cv.diagnostics["pointwise_elpd"].sum("slot").values
    z = (mine - by_unit) / cv.diagnostics["pointwise_mcse"].values
    assert np.abs(z).max() < z_limit(z.size, df=31)
    plain = {"seed": 1, "predictive": "plain", **QUICK}
    rough = pcv.cross_validate(model, folds, data=problem.data, **plain)
    assert rough.mcse > 1.5 * cv.mcse  # false alarm < 1e-4: the ratio is 4, with an sd of .3


def exact_loo(form):
    every = np.full(len(form.y), True)
    left_out = [form.evidence(np.arange(len(form.y)) != i) for i in range(len(form.y))]
    return len(form.y) * form.evidence(every) - np.sum(left_out)


class TestPsisFirst:
    def test_exact_on_a_conjugate_model(self):
        problem = regression()
        folds = problem.schemes["leave one out"]
        truth = exact(problem, folds)
        theta = problem.posterior(np.random.default_rng(1), 8000)
        mean = theta["alpha"][:, None] + theta["beta"] @ problem.data["x"].T
        joint = dist.Normal(mean, 0.8).log_prob(problem.data["y"]).reshape(4, 2000, 14)
        joint = np.asarray(joint)
        found = psis(joint, joint[..., None], folds.test)
        sound = found.khat < 0.3  # MCSEs of heavier weights are too small in one run of a hundred
        assert sound.sum() > 4  # false alarm < 1e-4: 10 of 14, with an sd of .7
        z = ((found.joint_elpd - truth.joint) / found.joint_mcse)[sound]
        assert np.abs(z).max() < z_limit(z.size, df=159)  # 160 batches
        np.testing.assert_allclose(found.joint_elpd, found.pointwise_elpd[:, 0], rtol=1e-12)
        theirs = [array_stats.loo(joint[..., i])[0] for i in range(14)]
        np.testing.assert_allclose(found.joint_elpd, theirs, atol=1e-8)

    def test_a_test_set_that_informs_much_is_not_trusted_below_the_limit_of_k_hat(self):
        """Six directions, each informed as much as by the prior: k-hat is .5 in truth."""
        rng, folds = np.random.default_rng(3), 200
        y = rng.normal(size=(folds, 6)) * np.sqrt(2)
        theta = 0.5 * y + np.sqrt(0.5) * rng.normal(size=(4, 250, folds, 6))
        joint = norm.logpdf(y, theta).sum(-1)
        found = psis(joint, joint[..., None], np.arange(folds)[:, None])
        exact = norm.logpdf(y, 0, np.sqrt(2)).sum(1)
        error = found.joint_elpd - exact
        said = np.array(doubts(found, 0.7))
        below = found.khat <= 0.7
        # False alarm < 1e-4: some 55 of 200 (sd 6), of which two thirds (sd .07) are off by .3.
        assert below.sum() > 25
        assert (error[below] > 0.3).mean() > 0.3
        assert not ((said == "") & (error > 0.3)).any()
        assert any("importance sampling is not trusted" in words for words in said)

    def test_scores_that_are_not_finite_are_not_trusted(self):
        joint = np.random.default_rng(1).normal(-1, 0.1, (4, 100, 3))
        joint[2, 40, 0], joint[0, 3, 1] = np.inf, np.nan
        with np.errstate(invalid="ignore"):
            said = doubts(psis(joint, joint[..., None], np.arange(3)[:, None]), 0.7)
        assert [bool(words) for words in said] == [True, True, False]
        assert "some draw has a score that is not finite" in said[0]

    def test_a_group_with_effects_of_its_own_is_sampled(self):
        """Under the plain predictive, whatever its k-hat; others may come from PSIS."""
        model = pcv.from_numpyro(poisson_groups, {"y": COUNT, "group": GROUP})
        found = pcv.loo(model, group_by=GROUP, predictive="plain", seed=1, **QUICK)
        assert (found.folds["source"] == "mcmc").all()

    @pytest.mark.parametrize("group", [GROUP, np.arange(N)], ids=["groups", "units"])
    def test_effects_of_its_own_are_told_where_nothing_is_sampled(self, group):
        """Of a group, or of a unit of a saturated model."""
        model = pcv.from_numpyro(poisson_groups, {"y": COUNT, "group": group})
        alone = {"predictive": "plain", "brute_force": False, "seed": 1, **QUICK}
        found = pcv.loo(model, group_by=group, **alone)
        said = "parameters of its own: importance sampling is not trusted"
        assert found.folds["verdict"].str.contains(said).all()
        assert found.verdict != "ok"

    @pytest.mark.slow
    def test_folds_share_their_draws(self):
        """The MCSE of their sum is what replications spread by; as if independent, it is not."""
        rng = np.random.default_rng(1)
        design = np.column_stack([np.ones(100), rng.normal(size=(100, 3))])
        y = rng.normal(design.sum(1), 0.3)  # less noise than the model's: errors are shared
        form = LinearGaussian(y, design, 1.0, np.zeros(4), 4 * np.eye(4))
        totals, together, apart = [], [], []
        for _ in range(150):
            mean = form.posterior(rng, 2000) @ design.T
            joint = norm.logpdf(y, mean, 1.0).reshape(4, 500, 100)
            found = psis(joint, joint[..., None], np.arange(100)[:, None])
            alone = np.sum(found.joint_mcse**2)
            totals.append(found.joint_elpd.sum())
            apart.append(np.sqrt(alone))
            together.append(np.sqrt(alone + shared(found.joint_apart)))
            assert shared(found.pointwise_apart) == pytest.approx(shared(found.joint_apart))
        spread = np.std(totals, ddof=1)
        assert abs(np.mean(totals) - exact_loo(form)) < z_limit(df=149) * spread / np.sqrt(150)
        low, high = sd_limits(140)  # of 150, since the mean MCSE has an error as well
        assert low < spread / np.mean(together) < high
        assert spread / np.mean(apart) > high  # it is 2.2 or more, with an sd of .13

    def test_brute_force_of_some_folds(self, tmp_path):
        """Those are exact up to their own MCSE, the others what PSIS says of the full fit."""
        problem = regression()
        folds = problem.schemes["leave one out"]
        truth = exact(problem, folds).joint
        more = QUICK | {"fit": {"warmup": 300, "draws": 2000}}
        mixed = pcv.loo(problem.model, data=problem.data, good_k=0.3, seed=1, **more)
        joint = mixed.to_datatree()["log_likelihood"]["y"].values
        found = psis(joint, joint[..., None], folds.test)
        again = found.khat > 0.3
        assert 1 < again.sum() < 12  # false alarm < 1e-4: 4.3, with an sd of .7
        assert (mixed.folds["source"] == np.where(again, "mcmc", "psis")).all()
        elpd, mcse = mixed.folds["elpd"].values, mixed.folds["mcse"].values
        assert np.abs((elpd - truth) / mcse)[again].max() < z_limit(again.sum(), df=31)
        assert np.abs((np.roll(elpd[again], 1) - truth[again]) / mcse[again]).max() > 8
        for name, psis_alone in (
            ("elpd", found.joint_elpd),
            ("mcse", found.joint_mcse),
            ("khat", found.khat),
        ):
            mine = mixed.folds[name].values
            np.testing.assert_allclose(mine[~again], psis_alone[~again], rtol=1e-9)
            assert (mine[again] != psis_alone[again]).all()
        assert mixed.elpd == pytest.approx(elpd.sum(), rel=1e-12)
        np.testing.assert_allclose(mixed.pointwise, elpd, rtol=1e-12)
        sampled = diagnosed(np.random.default_rng(1).normal(size=(3, 4, 400, 2)))
        of_stages = {"source", "batch_check"}
        assert mixed.diagnostics.data_vars.keys() - of_stages <= sampled.data_vars.keys()
        shared_ones = {f"{kind}_shared" for kind in ("joint", "pointwise")} | {"predictions"}
        assert mixed.diagnostics.attrs.keys() - shared_ones <= sampled.attrs.keys()
        mixed.save(tmp_path / "cv.zarr")
        loaded = pcv.load(tmp_path / "cv.zarr")
        assert repr(loaded) == repr(mixed)
        for name in mixed.tree.children:
            xr.testing.assert_identical(loaded.tree[name].dataset, mixed.tree[name].dataset)

    @pytest.mark.slow
    def test_brute_force_where_weights_are_heavy(self):
        y = Y.copy()
        y[5] += 8.0
        model = pcv.from_numpyro(slopes, {"y": y, "x": X})
        mixed = pcv.loo(model, seed=1, **QUICK)
        source = mixed.folds["source"]
        # False alarm < 1e-4: its k-hat is 1.3 with an sd of .1, of the others .4 with one of .05.
        assert source["case 5"] == "mcmc"
        assert (source == "psis").sum() >= N - 4
        assert mixed.diagnostics["joint_elpd"].dtype == float
        assert (mixed.folds["khat"][source == "psis"] <= 0.7).all()
        assert mixed.folds["khat"]["case 5"] > 0.7
        with pytest.raises(PcvError, match="come from PSIS, which has no chains to compare"):
            mixed.plot_rhat()
        brute = pcv.cross_validate(model, seed=2, **QUICK)
        error = np.hypot(mixed.folds["mcse"], brute.folds["mcse"])
        z = (mixed.folds["elpd"] - brute.folds["elpd"]) / error
        assert np.abs(z).max() < z_limit(z.size, df=31)
        assert "PSIS from the full-data fit for" in repr(mixed)
        compared = pcv.compare({"mixed": mixed, "brute": brute})
        assert set(compared.frame.index) == {"mixed", "brute"}
        swapped = pcv.compare({"brute": brute, "mixed": mixed})  # looked at after other draws
        assert swapped.frame.loc["mixed"].equals(compared.frame.loc["mixed"])
        alone = pcv.loo(model, seed=1, brute_force=False, **QUICK)
        fails = (
            r"importance sampling is not trusted for \d of 24 folds: .*\bcase 5\b.*; sample them by"
        )
        assert re.search(fails, alone.verdict)

    @pytest.mark.slow
    def test_a_bad_fit_is_told(self):
        def either_sign(y):
            a = numpyro.sample("a", dist.Normal(0, 3))
            with numpyro.plate("case", len(y)):
                numpyro.sample("y", dist.Normal(jnp.abs(a), 0.5), obs=y)

        bad = {"warmup": 100, "draws": 100, "allow_bad_fit": True}
        model = pcv.from_numpyro(either_sign, {"y": Y + 3})
        found = pcv.loo(model, fit=bad, brute_force=False, progress=False)
        assert found.diagnostics.attrs["bad_fit"]
        assert "The full-data fit is bad: " in found.verdict

    @pytest.mark.slow
    def test_groups_from_the_full_fit(self):
        model = pcv.from_numpyro(poisson_groups, {"y": COUNT, "group": GROUP})
        mixed = pcv.loo(model, group_by="group", seed=1, **QUICK)
        assert mixed.joint
        assert mixed.folds.index.tolist() == [f"group {i}" for i in range(6)]
        # False alarm < 1e-4: of one group PSIS is doubted, of two in 1% of runs, of three in 1e-4.
        assert (mixed.folds["source"] == "psis").sum() >= 3
        brute = pcv.cross_validate(model, pcv.leave_one_group_out(GROUP), seed=2, **QUICK)
        z = (mixed.folds["elpd"].values - brute.folds["elpd"].values) / np.hypot(
            mixed.folds["mcse"].values, brute.folds["mcse"].values
        )
        # Of the fifth group k-hat is .6, and so its MCSE too small in one run of a hundred.
        assert np.abs(np.delete(z, 4)).max() < z_limit(5, df=31)


class TestWeights:
    def test_stacking_is_arvizs(self):
        rng = np.random.default_rng(1)
        elpd = rng.normal(-1.5, 0.5, (3, 60)) + np.array([[0.0], [0.1], [-0.4]])
        mine = weights.stacking(elpd)
        mixture = np.exp(elpd)
        best = np.log(mine @ mixture).sum()
        assert mine.sum() == pytest.approx(1)
        for other in np.random.default_rng(2).dirichlet(np.ones(3), 2000):
            assert np.log(other @ mixture).sum() <= best + 1e-6

    def test_scores_below_what_a_float_can_hold(self):
        elpd = np.array([[-900.0, -2000.0, -1000.0], [-905.0, -1990.0, -1004.0]])
        np.testing.assert_allclose(weights.stacking(elpd), weights.stacking(elpd + 800), atol=1e-6)
        assert 0.6 < weights.stacking(elpd)[0] < 0.7

    def test_pseudo_bma_plus_is_arvizs(self):
        """Up to the error of both bootstraps, which the elpds alone, without one, are beyond."""
        rng = np.random.default_rng(4)
        elpd = rng.normal(-1.5, 0.6, (3, 30)) + np.array([[0.15], [0.05], [0.1]])
        found = weights.pseudo_bma_plus(elpd, np.random.default_rng(1))
        theirs = arviz_stats.compare(
            {str(m): elpd_data(x) for m, x in enumerate(elpd)},
            method="BB-pseudo-BMA",
            round_to="none",
        )["weight"].loc[["0", "1", "2"]]
        replicates = [
            weights.pseudo_bma_plus(elpd, np.random.default_rng(seed)) for seed in range(100)
        ]
        error, limit = np.sqrt(1.01) * np.std(replicates, axis=0, ddof=1), z_limit(3, df=99)
        assert np.abs((np.mean(replicates, axis=0) - theirs) / error).max() < limit
        assert np.abs((softmax(elpd.sum(1)) - theirs) / error).max() > limit  # 10, sd 1
        far_below = weights.pseudo_bma_plus(elpd - 2000, np.random.default_rng(1))
        np.testing.assert_allclose(far_below, found, rtol=1e-6)
        with pytest.raises(PcvError, match="weights: no method 'bma'; known: stacking"):
            weights.weights(elpd, "bma", 1)


def elpd_data(terms):
    """Log scores as ArviZ takes them."""
    return ELPDDataLOOKFold(
        elpd=terms.sum(),
        se=np.sqrt(terms.size * terms.var()),
        p=1.0,
        n_samples=1000,
        n_data_points=terms.size,
        scale="log",
        warning=False,
        good_k=None,
        elpd_i=xr.DataArray(terms, dims="unit"),
        n_folds=terms.size,
    )


class TestFolds:
    def test_of_every_kind(self):
        assert pcv.kfold(6, 3, seed=1).test.shape == (3, 2)
        assert pcv.kfold(6, 2, contiguous=True).test.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert len(pcv.kfold(N, 3, group_by=GROUP).id) == 3
        strata = pcv.kfold(N, 4, stratify_by=GROUP)
        assert all(len(set(GROUP[test])) == 6 for test in strata.test)
        assert pcv.hv_block(10, v=1, h=2).test[0].tolist() == [0, 1, 2]
        assert train_mask(pcv.h_block(6, h=1), 6)[2].tolist() == [True, *[False] * 3, True, True]
        assert pcv.leave_future_out(6, 4).id.tolist() == ["4", "5"]
        assert len(pcv.leave_p_out(5, 2, "all").id) == 10
        assert pcv.block(5, 2).id.tolist() == ["0 to 1", "2 to 3", "4"]
        assert len(pcv.leave_one_location_out([0, 0, 1], [0, 0, 1]).id) == 2
        assert len(pcv.spatial_block([0.0, 1, 5, 6], [0.0, 0, 0, 0], size=5).id) == 2
        assert pcv.leave_one_out(["A", "B"]).id.tolist() == ["A", "B"]
        with pytest.raises(PcvError, match="kfold: group_by and contiguous exclude each other"):
            pcv.kfold(N, 2, group_by=GROUP, contiguous=True)

    @pytest.mark.slow
    def test_columns_and_splitters(self):
        model = pcv.from_numpyro(flat, {"y": Y}, columns={"site": GROUP})
        scheme = {"scheme": "leave_one_group_out", "group": "site"}
        short = QUICK | {"chains": 2, "warmup": 5, "draws": 20}

        class Halves:
            def split(self, x, y=None, groups=None):
                yield np.arange(12), np.arange(12, 24)
                yield np.arange(12, 24), np.arange(12)

        assert len(pcv.cross_validate(model, scheme, **short).folds) == 6
        assert len(pcv.cross_validate(model, Halves(), **short).folds) == 2
        shuffled = pcv.cross_validate(model, pcv.kfold(N, 3, seed=4), **short)
        in_order = [f"case {i}" for i in range(N)]
        assert shuffled.pointwise["unit"].values.tolist() == in_order
        by_unit = replace(shuffled, joint=False).to_arviz().elpd_i
        assert by_unit["unit"].values.tolist() == in_order
        place = shuffled.scores.fold.index(str(shuffled.pointwise["fold"].values[3]))
        test = shuffled.tree["folds"]["test"].values[place].tolist()
        terms = shuffled.diagnostics["pointwise_elpd"].values[place]
        assert by_unit.values[3] == terms[test.index(3)]
        pairs = list(Halves().split(None))
        in_pairs = pcv.cross_validate(model, pairs, **short)
        assert in_pairs.folds.index.tolist() == ["fold 1", "fold 2"]

    def test_what_is_none(self):
        model, short = pcv.from_numpyro(flat, {"y": Y}), QUICK
        with pytest.raises(PcvError, match=r"folds 'LOO'; did you mean 'loo'\?$"):
            pcv.cross_validate(model, "LOO", **short)
        with pytest.raises(PcvError, match=r"folds 'rats'; there are 'loo', 'kfold', pcv"):
            pcv.cross_validate(model, "rats", **short)
        with pytest.raises(PcvError, match=r"folds 'np'; there are 'loo', 'kfold', pcv"):
            pcv.cross_validate(model, "np", **short)
        words = "folds 'block'; it needs more than its name: pcv.block"
        with pytest.raises(PcvError, match=words):
            pcv.cross_validate(model, "block", **short)
        with pytest.raises(
            PcvError, match=r"folds: GroupKFold.split fails: .*its pairs: folds=list"
        ):
            pcv.cross_validate(model, GroupKFold(3), **short)
        with pytest.raises(PcvError, match="folds is int; give 'loo'"):
            pcv.cross_validate(model, 5, **short)
        with pytest.raises(PcvError, match=r"^cv\.chains: must be at least 2"):
            pcv.cross_validate(model, **short | {"chains": 1})


class TestRefusals:
    def test_effects_that_are_integrated_out_beside_others_that_are_not(self):
        def groups(y, group, prior):
            tau = numpyro.sample("tau", dist.HalfNormal(1))
            with numpyro.plate("groups", 6):
                u = numpyro.sample("u", prior(0, tau))
            with numpyro.plate("case", len(y)):
                numpyro.sample("y", dist.Normal(u[group], 1), obs=y)

        models = {
            prior.__name__: pcv.from_numpyro(groups, {"y": Y, "group": GROUP, "prior": prior})
            for prior in (dist.Normal, dist.Laplace)
        }
        words = "different predictives .Normal: marginal, Laplace: plain. and could not be compared"
        with pytest.raises(PcvError, match=words):
            pcv.cross_validate(models, pcv.leave_one_group_out(GROUP), **QUICK)

    def test_models(self):
        with pytest.raises(PcvError, match=r"is a function, flat; give pcv\.from_numpyro"):
            pcv.cross_validate(flat, **QUICK)
        with pytest.raises(PcvError, match=r"^the model is 'flat', text; give pcv"):
            pcv.cross_validate("flat", **QUICK)

    def test_data_beside_a_models_own(self):
        model = pcv.from_numpyro(flat, {"y": Y})
        with pytest.raises(PcvError, match=r"24 values of 'y', and data=\.\.\. has others"):
            pcv.cross_validate(model, data={"y": Y + 1}, **QUICK)

    def test_models_of_different_outcomes(self):
        models = {
            "a": pcv.from_numpyro(flat, {"y": Y}),
            "b": by_hand()._replace(outcome=Outcome("z")),
        }
        words = "'a' and 'b' are of different outcomes, 'y' and 'z'; they cannot share folds"
        with pytest.raises(PcvError, match=words):
            pcv.cross_validate(models, data={"z": Y, "x": X}, **QUICK)

    def test_data(self):
        with pytest.raises(PcvError, match=r"its outcome 'y' is not in the data \(none\); give th"):
            pcv.cross_validate(by_hand(), **QUICK)
        x = np.where(np.arange(N) == 2, np.nan, X)
        with pytest.raises(PcvError, match=r"column 'x': missing value in row 3"):
            pcv.cross_validate(by_hand(), data={"y": Y, "x": x}, **QUICK)
        models = {
            "a": pcv.from_numpyro(flat, {"y": Y}),
            "b": pcv.from_numpyro(flat, {"y": Y + 1}),
        }
        with pytest.raises(PcvError, match="'a' and 'b' were made with different values, or units"):
            pcv.cross_validate(models, **QUICK)


def test_what_was_kept_is_not_made_again(tmp_path, capsys, monkeypatch):
    model = pcv.from_numpyro(flat, {"y": Y})
    kept = {"results": tmp_path / "kept", "fit": {"warmup": 100, "draws": 100}, "seed": 1}
    folds = pcv.kfold(N, 4, seed=1)
    first = pcv.cross_validate(model, folds, draws=40, **kept)
    assert ": the full data, " in capsys.readouterr().err
    again = pcv.cross_validate(model, folds, draws=40, **kept)
    assert "the full data" not in capsys.readouterr().err
    assert again.elpd == first.elpd
    more = pcv.cross_validate(model, folds, draws=60, **kept)
    said = capsys.readouterr().err
    assert "NUTS" not in said
    assert "sample" in said
    assert set(more.diagnostics["n_draws"].values) == {60}
    warmer = pcv.cross_validate(model, folds, draws=60, warmup=60, **kept)
    assert "sample" in capsys.readouterr().err
    assert warmer.elpd != more.elpd
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").rename("moved")
    for spelt in ("moved", tmp_path / "moved"):
        moved = {**kept, "results": spelt}
        assert pcv.cross_validate(model, folds, draws=60, warmup=60, **moved).elpd == warmer.elpd
        assert capsys.readouterr().err == ""


def test_one_call_at_a_time_uses_a_folder(tmp_path):
    model = pcv.from_numpyro(flat, {"y": Y})

    def call():
        folds = pcv.kfold(N, 2, seed=1)
        return pcv.cross_validate(model, folds, draws=40, seed=1, results=tmp_path, **QUICK)

    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(PcvError, match=r"^results: another call uses '.*'; wait for it, or name"),
    ):
        call()
    assert np.isfinite(call().elpd)


def test_the_full_data_fit_alone():
    tree = pcv.fit(pcv.from_numpyro(flat, {"y": Y}), seed=1, progress=False)
    assert set(tree["posterior"].data_vars) == {"a", "sigma"}
    assert float(tree["posterior"]["a"].mean()) == pytest.approx(Y.mean(), abs=0.1)


@pytest.mark.slow
def test_data_frames():
    frame = pd.DataFrame({"y": Y, "x": X, "site": np.array(list("abcdef"))[GROUP]})
    cv = pcv.cross_validate(
        by_hand(), {"scheme": "leave_one_group_out", "group": "site"}, data=frame, seed=1, **QUICK
    )
    assert cv.joint
    assert cv.folds.index.tolist() == [f"site {x}" for x in "abcdef"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_script_that_goes_on_from_errors(monkeypatch, signum):
    before = signal.getsignal(signum)

    as_it_is = Unsaved.save

    def save(self, *args):
        as_it_is(self, *args)
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # of a sample's block
            os.kill(os.getpid(), signum)

    monkeypatch.setattr(Unsaved, "save", save)
    with pytest.raises((SystemExit, KeyboardInterrupt)) as caught:
        pcv.cross_validate(pcv.from_numpyro(flat, {"y": Y}), pcv.kfold(N, 3), seed=1, **QUICK)
    if signum == signal.SIGTERM:
        assert caught.value.code == 128 + signal.SIGTERM
    else:
        assert caught.type is KeyboardInterrupt
        assert str(caught.value) == "stopped by Ctrl-C"
    assert signal.getsignal(signum) is before


def two_peaks(y):
    a = numpyro.sample("a", dist.Normal(0, 5))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.Normal(jnp.abs(a), 0.5), obs=y)


@pytest.mark.slow
def test_a_bad_fit_is_told_in_the_words_of_a_call(tmp_path):
    """Of draws that are thrown away nothing is said."""
    model = pcv.from_numpyro(two_peaks, {"y": Y + 3})
    fit = {"chains": 16, "warmup": 100, "draws": 100}  # not all at one peak, whatever their key
    short = {"fit": fit, "progress": False, "seed": 1}
    words = (
        r"another parameterisation\nfit=\{'allow_bad_fit': True\} continues anyway "
        r"\(allow_bad_fit=True in pcv\.fit\)"
    )
    with pytest.raises(PcvError, match=words):
        pcv.cross_validate(model, **short)
    kept = r"\nthe draws are kept in .*fit_failed\.zarr; fit="
    with pytest.raises(PcvError, match=kept):
        pcv.cross_validate(model, results=tmp_path / "kept", **short)
    assert list(tmp_path.glob("kept/**/fit_failed.zarr"))
    allowed = short | {"fit": fit | {"allow_bad_fit": True}}
    folds = pcv.kfold(N, 2, seed=1)
    pcv.cross_validate(model, folds, results=tmp_path / "kept", draws=40, **allowed)
    assert not list(tmp_path.glob("kept/**/fit_failed.zarr"))
    with pytest.raises(PcvError, match=r"\nthe draws are kept in .*/fit\.zarr; fit="):
        pcv.cross_validate(model, folds, results=tmp_path / "kept", draws=40, **short)


AFTERWARDS = """
import jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist, pcv

x = np.linspace(-1, 1, 20)
data = {"x": x, "y": x + np.cos(7 * x)}

@jax.jit
def mean(b):
    return b * x

def slope(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.Normal(mean(b), 1), obs=y)

assert mean(1.0).dtype == "float32"
short = {"warmup": 100, "draws": 100, "allow_bad_fit": True, "progress": False}
for precision in ("float64", "float32"):
    fitted = pcv.fit(pcv.from_numpyro(slope, data), precision=precision, **short)
    assert fitted["posterior"]["b"].dtype == precision
assert mean(1.0).dtype == "float32"
sampler = numpyro.infer.MCMC(
    numpyro.infer.NUTS(slope), num_warmup=10, num_samples=10, progress_bar=False
)
sampler.run(jax.random.key(0), **data)
print(sampler.get_samples()["b"].dtype)
"""


@pytest.mark.slow
def test_a_session_of_32_bit_goes_on_as_it_was():
    env = {name: x for name, x in os.environ.items() if name != "JAX_ENABLE_X64"}
    done = subprocess.run(
        [sys.executable, "-c", AFTERWARDS], capture_output=True, text=True, env=env, check=False
    )
    assert done.stdout.split() == ["float32"], done.stderr[-2000:]


@pytest.mark.slow
def test_log_likelihoods_that_are_too_large_are_not_kept(monkeypatch, capsys):
    """PSIS evaluates what it needs of them, to the same result; p is not known."""

    # All of them are looked at, kept or not.
    monkeypatch.setattr("pcv.core.psis.MAX_DRAWS", 1600)

    def found():
        model = pcv.from_numpyro(flat, {"y": Y})
        fit = {"warmup": 200, "draws": 200, "allow_bad_fit": True}
        return pcv.loo(model, brute_force=False, fit=fit, seed=1)

    whole = found()
    assert "are not kept" not in capsys.readouterr().err
    monkeypatch.setattr("pcv.core.fit.LOG_LIK_BYTES", 6 * 1600 * N)  # of 32 bit they are smaller
    without = found()
    said = (
        f"the log likelihoods of {N} units at 1600 draws, 0.0 GiB, are not kept, so p and az.loo "
    )
    assert said in capsys.readouterr().err
    assert "log_likelihood" not in without.to_datatree()
    assert np.isnan(without.p)
    assert np.isfinite(whole.p)
    assert without.elpd == pytest.approx(whole.elpd, rel=1e-9)
    small = {"chains": 4, "warmup": 200, "draws": 200, "allow_bad_fit": True, "seed": 1}
    fitted = pcv.fit(pcv.from_numpyro(flat, {"y": Y}), precision="float32", **small)
    assert fitted["log_likelihood/y"].dtype == "float32"
