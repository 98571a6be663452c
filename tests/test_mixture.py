"""Mixtures of models' predictives against closed forms."""

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from scipy import stats
from scipy.special import logsumexp

import pcv
from pcv import PcvError
from pcv.analysis import mixture as mixing
from pcv.analysis.results.mixed import diagnostics_of, predictions_of_mixture
from pcv.analysis.weights import stacking, stacking_without
from pcv.base import devices
from pcv.folds.base import train_mask
from pcv.models.model import Outcome
from tests.bounds import RATE, sd_limits, z_limit
from tests.problems import exact, regression

WEIGHTS = {"narrow": 0.3, "wide": 0.7}
NOISE = {"narrow": 0.4, "wide": 1.6}
SHORT = {"chains": 8, "draws": 200, "predictions": 1600, "progress": False}


# Formulas


def test_one_model_with_all_weight_is_the_mixture():
    elpd = np.array([[-1.0, -900.0], [-3.0, -2.0]])
    weight = np.array([[1.0, 1.0], [0.0, 0.0]])
    np.testing.assert_array_equal(mixing.log_density(elpd, weight), elpd[0])
    share = mixing.shares(elpd, weight)
    np.testing.assert_array_equal(share, weight)
    mcse = np.array([[0.1, 0.2], [np.nan, 9.0]])
    np.testing.assert_array_equal(mixing.error(mcse, share), mcse[0])


def test_the_error_is_that_of_repeated_runs():
    """A broken twin takes weights in place of shares."""
    rng, weight = np.random.default_rng(1), np.array([[0.8], [0.2]])
    density, sd = np.array([[1.0], [9.0]]), np.array([[0.05], [0.03]])
    runs = np.log(density * (1 + sd * rng.standard_normal((2, 2000))))
    found = mixing.log_density(runs, np.broadcast_to(weight, runs.shape))
    z = found - np.log((weight * density).sum())
    low, high = sd_limits(2000)
    share = mixing.shares(np.log(density), weight)
    assert low < z.std(ddof=1) / mixing.error(sd, share)[0] < high
    assert not low < z.std(ddof=1) / mixing.error(sd, weight)[0] < high


@pytest.mark.parametrize("number", [400, 7])
def test_replicates_have_the_right_shares(number):
    weight = np.random.default_rng(2).dirichlet(np.ones(3), 500).T
    found = mixing.models_of_replicates(np.random.default_rng(1), number, weight)
    counts = np.array([(found == m).sum(0) for m in range(3)])
    assert (np.abs(counts - number * weight) < 1).all()
    z = (counts - number * weight).mean(1) * np.sqrt(500) / 0.5
    assert np.abs(z).max() < z_limit(3)  # rounded up or down at random
    first = (found[: number // 2] == 0).sum(0) - weight[0] * (number // 2)
    assert abs(first.mean()) * np.sqrt(500) / first.std() < z_limit()  # in random places


def test_weights_of_other_folds_do_not_fit_the_scores_they_are_judged_by():
    """The mean score is that of new terms, beyond what equal weights score; a broken twin fits all
    terms, and is too high by about one nat for its one free weight."""
    rng, terms, sets = np.random.default_rng(1), 8, 150
    others, fitted = [], []

    def gain(elpd, weight):
        return logsumexp(elpd, axis=0, b=weight) - logsumexp(elpd, axis=0, b=0.5)

    for _ in range(sets):
        elpd, new = np.split(rng.normal(0, 1, (2, terms + 500)), [terms], axis=1)
        weight, of_all = stacking_without(elpd, np.arange(terms)), stacking(elpd)[:, None]
        others.append(gain(elpd, weight).sum() - terms * gain(new, weight[:, :1]).mean())
        fitted.append(gain(elpd, of_all).sum() - terms * gain(new, of_all).mean())
    z = np.array([np.mean(x) / np.std(x, ddof=1) * np.sqrt(sets) for x in (others, fitted)])
    assert abs(z[0]) < z_limit()
    assert z[1] > 2 * z_limit()
    assert 0.5 < np.mean(fitted) < 1.5


def test_terms_of_one_fold_are_left_out_together():
    elpd = np.array([[-1.0, -1.0, -9.0], [-9.0, -9.0, -1.0]])
    weight = stacking_without(elpd, np.array([0, 0, 1]))
    np.testing.assert_allclose(weight, [[0, 1], [1, 0]], atol=1e-6)


# Results


def model_of(noise):
    """The regression of `tests.problems` with another σ."""

    def outcome(params, data):
        return dist.Normal(params["alpha"] + data["x"] @ params["beta"], noise)

    return regression().model._replace(
        log_lik=lambda params, data: outcome(params, data).log_prob(data["y"]),
        outcome=Outcome("y", discrete=False),
        predict=lambda key, params, data: outcome(params, data).sample(key),
        cdf=lambda params, data, y: outcome(params, data).cdf(y),
    )


@pytest.fixture(scope="module")
def problem():
    return regression()


@pytest.fixture(scope="module")
def folds(problem):
    return problem.schemes["k-fold"]


@pytest.fixture(scope="module")
def cvs(problem, folds, shelf):
    def make(folder):
        models = {name: model_of(noise) for name, noise in NOISE.items()}
        with devices.precision("float64"):
            found = pcv.cross_validate(models, folds, data=problem.data, **SHORT)
        for name, cv in found.items():
            cv.save(folder / name)

    folder = shelf("regressions", make)
    return {name: pcv.load(folder / name) for name in NOISE}


@pytest.fixture(scope="module")
def mix(cvs):
    return pcv.mixture(cvs, WEIGHTS)


def forms(problem):
    return {name: problem.form._replace(noise=noise) for name, noise in NOISE.items()}


def test_elpd_is_that_of_the_mixture_of_densities(mix, problem, folds):
    of = [exact(problem._replace(evidence=x.evidence), folds) for x in forms(problem).values()]
    w, d = np.array(list(WEIGHTS.values())), mix.diagnostics
    joint = logsumexp([x.joint for x in of], axis=0, b=w[:, None])
    pointwise = logsumexp([x.pointwise for x in of], axis=0, b=w[:, None, None])
    error = d["joint_mcse"].values
    z = (d["joint_elpd"].values - joint) / error
    assert np.abs(z).max() < z_limit(z.size, df=30)
    of_unit = d["pointwise_elpd"].values - pointwise
    z = of_unit / d["pointwise_own_mcse"].values
    assert np.nanmax(np.abs(z)) < z_limit(z.size, df=30)
    z = np.nansum(of_unit, axis=1) / d["pointwise_mcse"].values
    assert np.abs(z).max() < z_limit(z.size, df=30)
    twin = w @ [x.joint for x in of]  # the mean of log densities
    assert np.abs((twin - joint) / error).max() > 2 * z_limit(z.size, df=30)


@pytest.mark.parametrize("kind", ["joint", "pointwise"])
def test_terms_are_exact(cvs, mix, kind):
    elpd = [cvs[name].diagnostics[f"{kind}_elpd"].values for name in WEIGHTS]
    w = np.array(list(WEIGHTS.values())).reshape(2, *(1,) * elpd[0].ndim)
    found = mix.diagnostics[f"{kind}_elpd"].values
    np.testing.assert_allclose(found, np.log(np.sum(w * np.exp(elpd), axis=0)), rtol=0, atol=1e-9)
    of_kind = pcv.mixture(cvs, WEIGHTS, joint=kind == "joint")
    assert of_kind.elpd == pytest.approx(np.nansum(found), abs=1e-9)
    terms = found[np.isfinite(found)]
    assert of_kind.se == pytest.approx(np.sqrt(terms.size * terms.var(ddof=1)), rel=1e-9)


def test_the_error_of_a_folds_sum_is_no_smaller_than_it_is(cvs):
    """By 1,000 runs, with errors of a model that all units of a fold share, or none does. A broken
    twin takes weights in place of shares."""
    rng, weight = np.random.default_rng(1), np.repeat([[0.1], [0.9]], 4, axis=1)
    elpd = np.stack([cv.diagnostics["pointwise_elpd"].values for cv in cvs.values()])
    size, scale = np.isfinite(elpd[0]).sum(1), np.array([[0.04], [0.005]])
    for alike in (True, False):
        noise = rng.standard_normal((1000, 2, 4, 1 if alike else elpd.shape[2]))
        runs = [
            np.nansum(mixing.log_density(elpd + scale[..., None] * x, weight), axis=1)
            for x in noise
        ]
        of_models = scale * (size if alike else np.sqrt(size))
        diagnosed = {
            name: cv.diagnostics.assign(pointwise_mcse=("fold", x))
            for (name, cv), x in zip(cvs.items(), of_models)
        }
        stated = diagnostics_of(diagnosed, weight)["pointwise_mcse"].values
        sd, limit = np.std(runs, axis=0, ddof=1), sd_limits(1000, among=4)[1]
        assert (sd < stated * limit).all()
        assert not (sd < np.sqrt(((weight * of_models) ** 2).sum(0)) * limit).all()


def test_one_model_with_all_weight_keeps_its_errors(cvs):
    alone = pcv.mixture(cvs, {"narrow": 0, "wide": 1.0})
    for name in ("joint_mcse", "pointwise_mcse", "pointwise_own_mcse", "joint_elpd_at"):
        wanted = cvs["wide"].diagnostics[name].values
        np.testing.assert_allclose(alone.diagnostics[name].values, wanted, rtol=1e-12)
    assert alone.mcse == pytest.approx(cvs["wide"].mcse, rel=1e-12)
    assert "narrow" not in repr(alone)


def mixture_of(problem, folds, unit):
    """Exact out-of-fold distribution functions of a unit, by model, and its weights."""
    train = train_mask(folds, 14)[(folds.test == unit).any(1)][0]
    for form in forms(problem).values():
        mean, cov = form.predictive(train, np.array([unit]))
        yield stats.norm(mean[0], np.sqrt(cov[0, 0]))


def cdf_of(problem, folds, unit, y):
    parts = zip(WEIGHTS.values(), mixture_of(problem, folds, unit))
    return sum(w * of_model.cdf(y) for w, of_model in parts)


def test_predictions_are_those_of_the_mixture(cvs, mix, problem, folds):
    table, draws = mix.table(), mix.predictions()["posterior_predictive"]["y"]
    y_rep = draws.transpose("unit", "chain", "draw").values.reshape(14, -1)
    assert y_rep.shape == (14, 1600)
    pit = np.array([cdf_of(problem, folds, i, problem.data["y"][i]) for i in range(14)])
    error = mix.tree["predictions"]["pit_mcse"].values
    assert np.abs((table["pit"] - pit) / error).max() < z_limit(14, df=15)
    p = [
        stats.kstest(x, lambda y, i=i: cdf_of(problem, folds, i, y)).pvalue
        for i, x in enumerate(y_rep)
    ]
    assert min(p) > RATE / 14
    twin = cvs["wide"].tree["predictions"]["y_rep"].values.reshape(-1, 14).T
    p = [
        stats.kstest(x, lambda y, i=i: cdf_of(problem, folds, i, y)).pvalue
        for i, x in enumerate(twin)
    ]
    assert min(p) < RATE / 14


def test_a_fold_is_replicated_by_one_model_at_a_time(cvs, mix, folds):
    y_rep = mix.tree["predictions"]["y_rep"].values.reshape(-1, 14)
    narrow = y_rep == cvs["narrow"].tree["predictions"]["y_rep"].values.reshape(-1, 14)
    for test in folds.test:
        of_fold = narrow[:, test[test >= 0]]
        assert (of_fold == of_fold[:, :1]).all()
        assert of_fold[:, 0].sum() in (480, 481)
    again = pcv.mixture(cvs, WEIGHTS)
    assert again.tree.identical(mix.tree)


def test_weights_of_any_form(cvs, mix):
    of_series = pcv.mixture(cvs, pd.Series({"wide": 0.7, "narrow": 0.3}))
    assert of_series.tree.identical(mix.tree)
    assert pcv.mixture(cvs, [0.3, 0.7]).tree.identical(mix.tree)
    fitted = pcv.mixture(cvs, pcv.compare(cvs).weights())
    assert "too high if its weights were fitted to the same scores" in repr(fitted).replace(
        "\n ", ""
    )
    stacked = pcv.mixture(cvs, "stacking")
    assert "fitted to the scores of the other folds" in repr(stacked).replace("\n  ", " ")
    assert (stacked.diagnostics["joint_elpd"] <= fitted.diagnostics["joint_elpd"] + 1e-6).all()
    for cv in (mix, *cvs.values()):
        assert fitted.elpd >= cv.elpd - 1e-6


def test_it_is_a_cross_validation(cvs, mix, tmp_path):
    mix.save(tmp_path / "cv.zarr")
    again = pcv.load(tmp_path / "cv.zarr")
    assert repr(again) == repr(mix)
    pd.testing.assert_frame_equal(again.table(), mix.table())
    for joint in (True, False):
        c = pcv.compare({"mixture": again, **cvs}, joint=joint, reference="wide")
        row = c.frame.loc["mixture"]
        own = pcv.mixture(cvs, WEIGHTS, joint=joint)
        shown = pcv.compare(cvs, joint=joint).frame.loc["wide"]
        assert row["elpd_diff"] == pytest.approx(own.elpd - shown["elpd"], abs=1e-9)
        assert row["mcse_diff"] == pytest.approx(np.hypot(own.mcse, shown["mcse"]), rel=1e-9)
        assert "'mixture': Its elpd is too high if" in repr(c)
    assert mix.folds["rhat"].equals(np.maximum(*(cv.folds["rhat"] for cv in cvs.values())))
    assert mix.to_arviz().elpd == pytest.approx(mix.elpd)
    for name in ("elpd", "rhat", "benchmark", "ess", "overlap", "khat"):
        getattr(mix, f"plot_{name}")()
    both = pcv.mixture({"mixture": mix, "wide": cvs["wide"]}, [0.5, 0.5])
    assert both.elpd == pytest.approx(pcv.mixture(cvs, [0.15, 0.85]).elpd, abs=1e-9)


def with_diagnostics(cv, change):
    """The result with other diagnostics."""
    tree = cv.tree.copy()
    tree["diagnostics"].dataset = change(cv.diagnostics.copy(deep=True))
    return pcv.CV(tree, cv.joint)


def test_it_is_flagged_where_a_model_with_weight_is(cvs):
    def flagged(d):
        words = d["verdict"].values.astype("U99")
        words[1] = "k-hat 0.9"
        said = {"verdict": "1 of 4 folds flagged", "bad_fit": True, "fit_verdict": "R-hat 1.2"}
        return d.assign(verdict=("fold", words)).assign_attrs(said)

    models = {**cvs, "narrow": with_diagnostics(cvs["narrow"], flagged)}
    mix = pcv.mixture(models, WEIGHTS)
    assert mix.folds["verdict"].tolist()[:2] == ["ok", "'narrow': k-hat 0.9"]
    assert mix.verdict == (
        "The full-data fit is bad: 'narrow': R-hat 1.2. 'narrow': 1 of 4 folds flagged"
    )
    assert pcv.mixture(models, [0, 1]).verdict == cvs["wide"].verdict == "ok"


def test_what_a_mixture_lacks(mix):
    for call, said in (
        (lambda: mix.fold_summary("beta"), "fold_summary: a mixture has no parameters of its own"),
        (mix.plot_full_data, "call it of its models, narrow, wide"),
        (lambda: mix.score("crps"), "a mixture has the log score, and predictions"),
    ):
        with pytest.raises(PcvError, match=said):
            call()


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"narrow": 0.5, "wid": 0.5}, "no model 'wid'; did you mean 'wide'?"),
        ({"narrow": 1.0}, "'wide' has no weight"),
        ([0.5, 0.3, 0.2], "3 weights of 2 models"),
        ([1.2, -0.2], "weight of 'wide' is -0.2; give 0 or more"),
        ([0.5, np.nan], "weight of 'wide' is nan; give 0 or more"),
        ([0.5, 0.4999], "weights sum to 0.9999; give weights that sum to 1"),
        ("bma", "weights are 'bma'; give numbers, or 'stacking'"),
    ],
)
def test_weights_are_refused(cvs, weights, said):
    with pytest.raises(PcvError, match=f"^mixture: .*{said.replace('?', '[?]')}"):
        pcv.mixture(cvs, weights)


def test_models_are_refused(cvs):
    narrow, wide = cvs.values()

    def with_attrs(**attrs):
        tree = wide.tree.copy()
        tree.attrs |= attrs
        return pcv.CV(tree, True)

    subsample = with_diagnostics(wide, lambda d: d.assign(chosen=("fold", np.arange(4))))
    marginal, plain = (
        with_diagnostics(wide, lambda d, x=x: d.assign_attrs(predictive=x))
        for x in ("marginal", "plain")
    )
    for a, b, said in (
        (narrow, with_attrs(outcome_print="x"), "mixture: 'b' was scored on other data than 'a'"),
        (narrow, with_attrs(folds_print="x"), "mixture: 'b' was scored on other folds than 'a'"),
        (narrow, subsample, "mixture: 'b' scores a subsample"),
        (plain, marginal, "cannot compare 'a' with 'b': different predictive"),
        (narrow, pcv.CV(wide.tree, False), "mixture: some models show the joint score"),
    ):
        with pytest.raises(PcvError, match=said):
            pcv.mixture({"a": a, "b": b}, [0.5, 0.5])
    with pytest.raises(PcvError, match="mixture: no models by name"):
        pcv.mixture({}, [])


def test_pits_of_discrete_outcomes():
    """Models of one seed share the uniform numbers, so that the weighted mean of their PITs is the
    mixture's; a broken twin has numbers of its own for each. Else it is found among replicates."""
    rng, y, w = np.random.default_rng(1), np.array([0, 1, 2, 3, 5, 7]), np.array([0.4, 0.6])
    steps = [stats.poisson(rate).cdf(y - np.array([[1], [0]])) for rate in (2.0, 4.0)]
    low, high = np.tensordot(w, steps, axes=1)
    uniform = rng.random((2, 6))

    def mixed(u, same):
        each = [
            xr.Dataset(
                {
                    "y_rep": (("chain", "draw", "unit"), rng.poisson(rate, (4, 500, 6)) * 1.0),
                    "y": ("unit", y * 1.0),
                    "pit": ("unit", below + u[m] * (up_to - below)),
                    "pit_mcse": ("unit", np.full(6, 0.01)),
                },
                {
                    "unit": np.arange(6),
                    "row": ("unit", np.arange(6)),
                    "of_fold": ("unit", ["f"] * 6),
                },
            )
            for m, (rate, (below, up_to)) in enumerate(zip((2.0, 4.0), steps))
        ]
        return predictions_of_mixture(each, np.zeros(6, int), w[:, None], rng, same)

    shared = mixed(uniform[[0, 0]], True)
    np.testing.assert_allclose(shared["pit"], low + uniform[0] * (high - low), rtol=1e-12)
    np.testing.assert_allclose(shared["pit_mcse"], 0.01 * np.hypot(*w), rtol=1e-12)
    twin = mixed(uniform, True)["pit"].values
    assert np.abs(twin - (low + uniform[0] * (high - low))).max() > 0.05
    other = mixed(uniform, False)
    error = z_limit(12) * np.sqrt(0.25 / 2000)
    assert ((other["pit"] > low - error) & (other["pit"] < high + error)).all()
    share = (other["y_rep"].values.reshape(2000, 6) <= y).mean(0)
    assert np.abs(share - high).max() < error


@pytest.mark.parametrize("predictions", [0, 400])
def test_psis_has_scores_and_predictions(problem, predictions):
    models = {name: model_of(noise) for name, noise in NOISE.items()}
    more = {"brute_force": False, "predictions": predictions, "progress": False}
    cvs = pcv.loo(models, data=problem.data, **more)
    mix = pcv.mixture(cvs, WEIGHTS)
    elpd = [cvs[name].diagnostics["joint_elpd"].values for name in WEIGHTS]
    wanted = np.log(0.3 * np.exp(elpd[0]) + 0.7 * np.exp(elpd[1]))
    np.testing.assert_allclose(mix.diagnostics["joint_elpd"], wanted, rtol=0, atol=1e-9)
    assert pcv.compare({"mixture": mix, **cvs}).frame["elpd"].max() >= mix.elpd
    if predictions:
        pits = [cvs[name].table()["pit"] for name in WEIGHTS]
        np.testing.assert_allclose(mix.table()["pit"], 0.3 * pits[0] + 0.7 * pits[1])
        return
    assert "The mixture has no predictions" in repr(mix)
    with pytest.raises(PcvError, match="no predictions"):
        mix.table()
