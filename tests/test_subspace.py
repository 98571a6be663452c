"""Chains on a subspace of the parameters: against closed forms there, and beside all directions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import kstest

import pcv
from pcv import PcvError
from pcv.analysis.subspace import distance
from pcv.pipeline.storage.artifacts import opened
from pcv.sampling.folds import subspace
from pcv.sampling.folds.subspace import by_terms, enough, leading, lifted, principal, projected
from tests.bounds import RATE, z_limit
from tests.problems import LinearGaussian, exact, regression
from tests.project import run, set_up
from tests.slow import repeated

N = 14
DESIGN = 3


def validated(directions, folds=None, seed=0, **settings):
    problem = regression()
    folds = pcv.leave_one_out(N) if folds is None else folds
    settings = {"draws": 400, "progress": False, "seed": seed} | settings
    kernel = None if directions is None else {"subspace": directions}
    return pcv.cross_validate(problem.model, folds, data=problem.data, kernel=kernel, **settings)


def on(cv, number):
    """The regression on the subspace of the fit's draws, where all is normal."""
    posterior, data = cv.tree["posterior"].dataset, regression().data
    alpha, beta = (posterior[name].values for name in ("alpha", "beta"))
    draws = np.concatenate([alpha[..., None], beta], axis=-1).reshape(-1, DESIGN)
    space = leading(principal(draws), number)
    design = np.column_stack([np.ones(N), data["x"]])
    precision = np.diag([1 / 4, 1 / 2.25, 1 / 2.25])
    along = space.directions.T @ precision
    cov = np.linalg.inv(along @ space.directions)
    mean = cov @ along @ ([3.0, 0.0, 0.0] - space.center)
    y = data["y"] - design @ space.center
    form = LinearGaussian(y, design @ space.directions, 0.8, mean, cov)
    return regression()._replace(evidence=form.evidence)


@pytest.mark.parametrize("seed", repeated([1, 2, 3]))
@pytest.mark.parametrize("number", repeated([1, DESIGN, 2]))
def test_closed_forms_on_the_subspace(number, seed):
    """Single units and pairs; all dimensions are brute force, fewer are not."""
    folds = pcv.leave_p_out(N, 2, 10, seed=5)
    cv = validated(number, folds, seed)
    want, brute = exact(on(cv, number), folds), exact(regression(), folds)
    z = (cv.diagnostics["joint_elpd"] - want.joint) / cv.diagnostics["joint_mcse"]
    limit = z_limit(z.size, df=63)  # of 64 batches
    assert abs(z).max() < limit
    by_unit = cv.diagnostics["pointwise_elpd"].sum("slot") - want.pointwise.sum(1)
    assert (abs(by_unit) < limit * cv.diagnostics["pointwise_mcse"]).all()
    near = abs(cv.elpd - brute.joint.sum()) < z_limit() * cv.mcse
    assert near == (number == DESIGN)  # false alarm < 1e-4: the others are off by 40 MCSE or more
    assert ("too small" in cv.verdict) == (number < DESIGN)
    assert np.isnan(cv.diagnostics["overlap"]).all()  # full-data draws are of another posterior


def test_the_distance_is_told():
    cv = validated(1)
    attrs = cv.diagnostics.attrs
    said = " ".join(str(cv).split())
    assert attrs["subspace"] in said
    assert "Chains move in 1 of 3 dimensions, with" in said
    assert "the scores of 4 folds sampled both ways differ by" in said
    assert "The subspace of 1 dimension is too small: take more (kernel.subspace)." in said
    both = cv.diagnostics.sel(fold=cv.diagnostics["both_ways"].values)
    brute = exact(regression(), pcv.leave_one_out(N)).joint
    places = [cv.diagnostics["fold"].values.tolist().index(x) for x in both["fold"].values]
    z = (cv.diagnostics["both_ways_elpd"] - brute[places]) / cv.diagnostics["both_ways_mcse"]
    assert abs(z).max() < z_limit(4, df=63)
    plain = validated(None)
    assert "dimensions" not in str(plain)
    compared = pcv.compare({"all": plain, "one": cv})
    assert "too small" in str(compared)


@pytest.mark.slow
def test_other_scores_on_the_subspace():
    """All directions, in another basis: the same CRPS."""
    problem = regression()

    def predict(key, params, data):
        mean = params["alpha"] + data["x"] @ params["beta"]
        return dist.Normal(mean, 0.8).sample(key)

    model = problem.model._replace(predict=predict)
    settings = {"data": problem.data, "scores": ["crps"], "progress": False}
    folds = pcv.kfold(N, 4, seed=1)
    each = [
        pcv.cross_validate(model, folds, kernel=kernel, **settings).score("crps")
        for kernel in (None, {"subspace": 3})
    ]
    apart = each[0]["estimate"] - each[1]["estimate"]
    # Of two times 4 folds, each with 4 blocks of draws: half of 24 degrees of freedom.
    assert abs(apart) < z_limit(df=12) * np.hypot(each[0]["mcse"], each[1]["mcse"])
    assert np.hypot(each[0]["mcse"], each[1]["mcse"]) < 0.025


def test_directions_by_share():
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    draws = 5 + (rng.normal(size=(4000, 4)) * [3, 2, 1, 0]) @ basis.T
    space = principal(draws)
    # False alarm < 1e-4: relative sd .011; angles with sd .02; share with sd .002.
    np.testing.assert_allclose(space.scale, [3, 2, 1], rtol=0.05)
    np.testing.assert_allclose(abs((space.directions * basis[:, :3]).sum(0)), 1, atol=0.01)
    assert [enough(space.scale**2, share) for share in (0.5, 0.8, 0.95, 1.0)] == [1, 2, 3, 3]
    assert leading(space, 2).share == pytest.approx(13 / 14, abs=0.01)
    xi = projected(space, draws)
    np.testing.assert_allclose(lifted(space, xi), draws)
    terms = np.column_stack([xi[:, 1] ** 3, xi[:, 1], np.full(4000, -np.inf)])
    first, added = by_terms(space, draws, terms)
    assert enough(added, 0.9) == 1
    np.testing.assert_allclose(first.scale[0], space.scale[1])
    last, added = by_terms(space, draws, xi[:, [2]])
    assert enough(added, 0.9) == 1
    np.testing.assert_allclose(last.directions[:, 0], space.directions[:, 2])


def test_a_distance_of_nothing_is_chance():
    """With honest errors, p-values are uniform; differences of twice their errors are found."""
    rng = np.random.default_rng(2)
    found = [distance(rng.normal(size=4) * 0.1, np.full(4, 0.1), 1.0, 4, 4) for _ in range(400)]
    assert kstest([x.p for x in found], "uniform").pvalue > RATE
    assert np.mean([x.distance for x in found]) < 0.1  # false alarm < 1e-4: .02 with sd .002
    twin = [distance(rng.normal(size=4) * 0.2, np.full(4, 0.1), 1.0, 4, 4) for _ in range(400)]
    assert kstest([x.p for x in twin], "uniform").pvalue < RATE
    assert np.median([x.p for x in twin]) < 0.05  # false alarm < 1e-4: 6 sds
    assert distance(np.full(4, 2.0), np.full(4, 0.1), 4.0, 4, 4).distance == pytest.approx(
        0.5, abs=0.01
    )


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ({"subspace": 4}, "model 'model': kernel.subspace is 4, but the model has 3 parameters; "),
        ({"subspace": {"share": 1.5}}, "share: must be at most 1.0, is 1.5"),
        ({"subspace": {}}, "kernel.subspace: give a number, or one of share and predictive_share"),
        ({"subspace": "all"}, "kernel.subspace: must be a whole number, {share: 0.99} or"),
        ({}, "kernel.subspace: missing; add it"),
    ],
)
def test_refusals(kernel, said):
    with pytest.raises(PcvError) as error:
        pcv.cross_validate(
            regression().model, data=regression().data, progress=False, kernel=kernel
        )
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_singular_covariance_is_refused(monkeypatch):
    monkeypatch.setattr(subspace, "SINGULAR", 0.9)
    words = (
        r"model 'model': kernel.subspace is 3, but the model has 3 parameters, whose posterior "
        r"covariance has rank \d; give 1 to \d"
    )
    with pytest.raises(PcvError, match=words):
        validated(3)


def test_directions_that_do_not_vary_are_none():
    draws = np.random.default_rng(1).normal(size=(500, 2))
    space = subspace.principal(np.column_stack([draws, draws.sum(1), np.ones(500)]))
    assert space.scale.size == 2


def test_targets_have_no_predictive_share():
    problem = regression()
    target = pcv.normal_target(
        lambda key: {"mu": jax.random.normal(key)},
        lambda params: dist.Normal(0, 1).log_prob(params["mu"]),
        lambda params: (jnp.full(N, params["mu"]), jnp.eye(N)),
        lambda params: params,
        pcv.Outcome("y"),
        problem.data["y"],
    )
    with pytest.raises(PcvError, match="predictive_share needs the log likelihoods of the full"):
        pcv.cross_validate(
            target,
            data={"y": problem.data["y"]},
            progress=False,
            kernel={"subspace": {"predictive_share": 0.9}},
        )


@pytest.mark.slow
def test_of_an_approximation():
    """Directions of draws with weights."""
    cv = validated(DESIGN, fit={"approximation": "laplace"})
    truth = exact(regression(), pcv.leave_one_out(N)).joint.sum()
    assert abs(cv.elpd - truth) < z_limit() * cv.mcse


@pytest.mark.slow
def test_beside_psis(tmp_path, monkeypatch):
    """Where only some folds are sampled, the spread is that of all."""
    project = set_up(tmp_path)
    monkeypatch.chdir(tmp_path)
    # False alarm < 1e-4: k-hats of .1 to .6, with sds of .1.
    folds = {"scheme": "leave_one_out", "exact": "auto", "good_k": 0.25}
    job = project.job({"kernel": {"subspace": 2}, "folds": folds, "fit.draws": 1000}, "flat")
    run(job, "data", "folds", "fit", "surrogates", "warmup", "sample", "diagnose")
    found = opened(job, "diagnose")
    sampled = (found["source"] == "mcmc").values
    assert 0 < sampled.sum() < sampled.size
    # Two of two dimensions; false alarm < 1e-4: t errors, of 20 batches.
    assert found.attrs["subspace_p"] > 1e-7
    apart = found["joint_elpd"].sel(fold=found["both_ways"].values) - found["both_ways_elpd"]
    se = np.sqrt(sampled.size) * found["joint_elpd"].std(ddof=1)
    bias = sampled.sum() * apart.mean() / se  # of the sampled folds alone
    assert found.attrs["subspace_bias"] == pytest.approx(float(bias))


@pytest.mark.parametrize(
    "call",
    [
        partial(pcv.loo, good_k=0.1),
        partial(pcv.subsample, m=6, exact="folds", surrogate="plpd"),
    ],
    ids=["loo", "subsample"],
)
def test_of_the_folds_that_are_sampled(call):
    problem, short = regression(), {"chains": 4, "draws": 100, "progress": False}
    cv = call(problem.model, data=problem.data, kernel={"subspace": 2}, **short)
    assert cv.diagnostics.attrs["subspace_dim"] == 2


def test_where_no_fold_is_sampled():
    folds = {"scheme": "cumulative"}
    with pytest.raises(PcvError, match="kernel: no fold is sampled here; leave kernel out"):
        pcv.cross_validate(
            regression().model, folds, data=regression().data, kernel={"subspace": 1}
        )
