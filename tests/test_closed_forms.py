"""API results against closed forms: ArviZ's own k-fold, left-out groups, names of units."""

from typing import Any

import arviz_stats
import numpy as np
import numpyro
import numpyro.distributions as dist
import pymc as pm
import pytest
import xarray as xr
from arviz_stats.loo import SamplingWrapper
from scipy.stats import norm

import pcv
from pcv.api.result import CV
from pcv.sampling.folds import sides
from tests.bounds import z_limit
from tests.problems import Problem, exact, hierarchy, narrow_effects, regression

SETTINGS = {"progress": False, "fit": {"warmup": 300, "draws": 300}}


class Exact(SamplingWrapper):
    """ArviZ refits a linear model with normal errors by draws from its exact posterior."""

    def __init__(self, problem: Problem, tree: Any, draws: int, seed: int) -> None:
        super().__init__(None, idata_orig=tree)
        self.problem, self.draws = problem, draws
        self.rng = np.random.default_rng(seed)
        self.variance = 0.0

    def sel_observations(self, idx: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        train = np.ones(len(self.problem.data["y"]), bool)
        train[idx] = False
        return train, np.asarray(idx)

    def sample(self, modified_observed_data: np.ndarray) -> np.ndarray:
        mean, cov = self.problem.form.given(modified_observed_data)
        return self.rng.multivariate_normal(mean, cov, self.draws)

    def get_inference_data(self, fitted_model: np.ndarray) -> xr.DataTree:
        theta = xr.Dataset({"theta": (("chain", "draw", "param"), fitted_model[None])})
        return xr.DataTree.from_dict({"posterior": theta})

    def log_likelihood__i(self, excluded_obs: np.ndarray, idata__i: xr.DataTree) -> xr.DataArray:
        form, theta = self.problem.form, idata__i["posterior"]["theta"].values[0]
        mean = theta @ form.design[excluded_obs].T
        terms = norm.logpdf(form.y[excluded_obs], mean, form.noise)
        density = np.exp(terms)
        self.variance += np.var((density / density.mean(0)).sum(1)) / self.draws
        return xr.DataArray(terms.T[None], dims=("chain", "unit", "draw"))


def test_arvizs_own_k_fold_agrees_on_the_same_folds_and_not_on_others():
    problem = regression()
    n = len(problem.data["y"])
    settings = {"data": problem.data, **SETTINGS}
    cv = pcv.cross_validate(problem.model, pcv.kfold(n, 4, seed=1), joint=False, **settings)
    for seed in (1, 2, 3):
        z, p = {}, {}
        for name, folds in (("same", pcv.kfold(n, 4, seed=1)), ("other", pcv.kfold(n, 4, seed=6))):
            number = np.empty(n, int)
            for k, test in enumerate(folds.test):
                number[test[test >= 0]] = k + 1
            wrapper = Exact(problem, cv.to_datatree(), 4000, seed)
            theirs = arviz_stats.loo_kfold(
                cv.to_datatree(), wrapper, pointwise=True, folds=number, k=4
            )
            z[name] = (cv.elpd - theirs.elpd) / np.hypot(cv.mcse, np.sqrt(wrapper.variance))
            p[name] = theirs.p + theirs.elpd
            compared = arviz_stats.compare({"ours": cv.to_arviz(), name: theirs})
            assert set(compared.index) == {"ours", name}
        limit = z_limit(3, df=60)  # of 32 batches in each of four folds
        assert abs(z["same"]) < limit
        assert abs(z["other"]) > limit  # about 40
        np.testing.assert_allclose([p["same"], p["other"]], cv.p + cv.elpd, rtol=1e-10)


def in_numpyro(y, group):
    mu = numpyro.sample("mu", dist.Normal(0, 3))
    with numpyro.plate("groups", 5):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.2))
    with numpyro.plate("case", len(y)):
        numpyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)


SITES, CASES = list("dbeac"), list("nmlkjihgfedcba")
"""names that are not sorted"""


def in_pymc(y, group):
    with pm.Model(coords={"site": SITES, "case": CASES}) as model:
        theta = pm.Normal("theta", pm.Normal("mu", 0, 3), 1.2, dims="site")
        pm.Normal("y", theta[group], 1, observed=y, dims="case")
    return pcv.from_pymc(model, columns={"place": np.array(SITES)[group]})


@pytest.mark.slow
def test_a_left_out_groups_effect_is_drawn_from_its_prior():
    """Under the plain predictive; values have the names of their units and folds, sorted or not."""
    problem = hierarchy("plain")
    y, group = problem.data["y"], problem.data["group"]
    folds = pcv.leave_one_group_out(group, "site")
    settings = {"predictive": "plain", "draws": 600, "seed": 1, **SETTINGS}
    truth = exact(problem, folds)
    known = exact(problem, pcv.leave_one_out([str(i) for i in range(len(y))]))
    by_unit = np.concatenate([x[~np.isnan(x)] for x in truth.pointwise])
    made = pcv.from_numpyro(in_numpyro, {"y": y, "group": group})
    scheme = {"scheme": "leave_one_group_out", "group": "place"}
    found = {
        "NumPyro": pcv.cross_validate(made, folds, **settings),
        "PyMC": pcv.cross_validate(in_pymc(y, group), scheme, **settings),
    }
    assert found["PyMC"].folds.index.tolist() == [f"place {x}" for x in sorted(SITES)]
    assert sorted(found["PyMC"].pointwise["unit"].values) == sorted(f"case {x}" for x in CASES)
    names = {
        "NumPyro": ([f"site {i}" for i in range(5)], [f"case {i}" for i in range(len(y))]),
        "PyMC": ([f"place {x}" for x in SITES], [f"case {x}" for x in CASES]),
    }
    max_z = z_limit(len(names) * len(by_unit), df=90)  # of 96 batches; folds are fewer than units
    for name, (places, units) in names.items():
        cv = found[name]
        table = cv.folds.loc[places]
        assert np.abs((table["elpd"] - truth.joint) / table["mcse"]).max() < max_z
        of_units = CV(cv.tree, False)
        assert abs(of_units.elpd - by_unit.sum()) < max_z * of_units.mcse
        assert abs(of_units.elpd - known.joint.sum()) > max_z * of_units.mcse  # by 1.8, or about 15
        named = cv.pointwise.sel(unit=units).values
        limit = max_z * of_units.folds["mcse"].loc[places].values[group]
        assert (np.abs(named - by_unit) < limit).all()
        assert (np.abs(named[::-1] - by_unit) > limit).any()


@pytest.mark.slow
@pytest.mark.parametrize("attached", [False, True])
def test_effects_that_are_narrow_given_their_data(attached, monkeypatch):
    """Left out, such a group's effects have but their prior, eighty times as wide, in which chains
    of the full data's kernel go nowhere, and hold what all groups share where the full data had it:
    unless they are decoupled from that prior."""
    problem = narrow_effects()
    (folds,) = problem.schemes.values()
    truth = exact(problem, folds).joint
    if attached:
        monkeypatch.setattr(sides, "FREED", np.inf)
    for seed in (1, 2):
        cv = pcv.cross_validate(problem.model, folds, data=problem.data, seed=seed, progress=False)
        z = (cv.folds["elpd"] - truth) / cv.folds["mcse"]
        off = (cv.elpd - truth.sum()) / cv.mcse
        # t errors, of 32 batches of a fold and 80 of full-data draws
        limit, of_sum = z_limit(2 * len(z), df=31), z_limit(2, df=60)
        if attached:
            assert off > of_sum
            assert np.abs(z).max() > limit
        else:
            assert abs(off) < of_sum
            assert np.abs(z).max() < limit
            # False alarm < 1e-4: one of them is flagged in some 30 runs.
            assert (cv.folds["verdict"] == "ok").sum() >= len(z) - 2
