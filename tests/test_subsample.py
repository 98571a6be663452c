"""`pcv.subsample` against closed forms, its growth, comparisons of models, and refusals."""

import inspect
import re
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy.special import logsumexp

import pcv
from pcv import PcvError
from pcv.analysis import comparison
from pcv.analysis.comparison import Scores
from pcv.analysis.stopping.rule import SETTLED, UNDECIDED, needs_terms
from pcv.analysis.subsampling import Subsample
from pcv.core import psis
from pcv.folds.exchangeable import Terms
from pcv.sampling.fit import surrogates
from tests.bounds import z_limit
from tests.data import DATA as FOLDER
from tests.data import needs_data
from tests.problems import LinearGaussian
from tests.slow import repeated

QUICK = {"chains": 8, "draws": 200, "warmup": 50, "progress": False, "seed": 1}
NUM_UNITS, NUM_GROUPS, SD = 240, 40, 1.5
NEAR, SKEWED = z_limit(df=30), 7.0
"""most standard errors that an estimate from 80 terms or more is off, with good surrogates and with
plpd, whose errors are more skewed: false alarm < 1e-4 in simulations of such subsamples"""


def linear(spread=0.3, outlier=0.0, columns=slice(None)):
    """Intercepts of 40 groups and two slopes, σ known: a design matrix of 42 columns."""
    rng = np.random.default_rng(1)
    group = np.sort(rng.integers(0, NUM_GROUPS, NUM_UNITS))
    group[:NUM_GROUPS] = np.arange(NUM_GROUPS)
    group.sort()
    x = rng.normal(size=(NUM_UNITS, 2))
    y = rng.normal(rng.normal(0, spread, NUM_GROUPS)[group] + x @ [1.0, -0.5], 1.0)
    y[7] += outlier
    x = x[:, columns]
    design = np.column_stack([np.eye(NUM_GROUPS)[group], x])
    sd = np.array([spread] * NUM_GROUPS + [SD] * x.shape[1])

    def init(key):
        u = jax.random.normal(key, (len(sd),)) * sd
        return {"a": u[:NUM_GROUPS], "b": u[NUM_GROUPS:]}

    def log_prior(params):
        a, b = (
            dist.Normal(0, spread).log_prob(params["a"]),
            dist.Normal(0, SD).log_prob(params["b"]),
        )
        return a.sum() + b.sum()

    def log_lik(params, data):
        mean = params["a"][data["group"]] + data["x"] @ params["b"]
        return dist.Normal(mean, 1.0).log_prob(data["y"])

    model = pcv.Model(init, log_prior, log_lik, lambda params: params, pcv.Outcome("y"))
    form = LinearGaussian(y, design, 1.0, np.zeros(len(sd)), np.diag(sd**2))
    return model, {"y": y, "x": x, "group": group}, form


R_LOO = {
    "arsenic": ((-1968.4, 15.6), (-1968.5, 15.6, 0.3)),
    "log_arsenic": (None, (-1952.0, 16.2, 0.2)),
}
"""printed by R's loo for wells (`vignette("loo2-large-data")`): elpd and SE
from all terms; elpd, SE and subsampling SE with m = 100 and plpd"""
R_DIFFERENCE = (-16.3, 4.4, 0.1)
"""elpd of the first less that of the second on the same subsample, SE, subsampling SE"""


def switching(table, arsenic):
    """The vignette's model of wells."""

    def model(x, switch):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand((3,)))
        with numpyro.plate("household", len(switch)):
            numpyro.sample("switch", dist.Bernoulli(logits=x @ beta), obs=switch)

    x = np.column_stack([np.ones(len(table)), table["dist"] / 100, arsenic])
    return pcv.from_numpyro(model, {"x": x, "switch": table["switch"].to_numpy()})


@needs_data
@pytest.mark.slow
def test_agrees_with_r_loo_on_wells():
    table = pd.read_csv(Path(FOLDER) / "wells.csv")
    forms = {"arsenic": table["arsenic"], "log_arsenic": np.log(table["arsenic"])}
    models = {name: switching(table, x) for name, x in forms.items()}
    found = pcv.subsample(models, 100, "plpd", "psis", seed=1, progress=False)
    for name, (whole, (elpd, se, subsampling_se)) in R_LOO.items():
        ours = found[name]
        # False alarm < 1e-4 in 20,000 subsamples: their SE was from 0.2 to 1.1.
        assert ours.subsampling_se == pytest.approx(subsampling_se, abs=0.9)
        error = np.hypot(ours.subsampling_se, subsampling_se)
        assert ours.elpd == pytest.approx(elpd, abs=NEAR * error + 0.05)
        assert ours.se == pytest.approx(se, abs=0.2)
        if whole is not None:
            assert ours.elpd == pytest.approx(whole[0], abs=NEAR * ours.subsampling_se + 0.05)
    row = pcv.compare(found, reference="log_arsenic").frame.loc["arsenic"]
    value, se, subsampling_se = R_DIFFERENCE
    error = np.hypot(row["subsampling_dse"], subsampling_se)
    assert row["elpd_diff"] == pytest.approx(value, abs=NEAR * error + 0.05)
    assert row["dse"] == pytest.approx(se, abs=0.35)


def exact_terms(form, term):
    """Closed form of each term left out, a unit or a group."""
    whole = form.evidence(np.full(len(form.y), True))
    return np.array([whole - form.evidence(term != j) for j in np.unique(term)])


MODEL, DATA, FORM = linear()
EXACT = exact_terms(FORM, np.arange(NUM_UNITS))
HAS_OWN = (np.bincount(DATA["group"]) == 1)[DATA["group"]]
"""units alone in their group, whose intercept no training unit informs"""
ONE_STRATUM = {"m": 80, "data": DATA, **QUICK}


def terms(found):
    return found.folds["elpd"].to_numpy()


def chosen(found):
    return found.diagnostics["chosen"].values


def near(found, truth, sds=NEAR):
    error = np.hypot(found.subsampling_se, found.mcse)
    return abs(found.elpd - truth.sum()) < sds * error


@pytest.mark.parametrize(
    ("surrogate", "how", "strata"),
    [
        *[("plpd", "psis", 1), ("waic", "auto", 1)],
        pytest.param("tis", "folds", 1, marks=pytest.mark.slow),
        pytest.param("d1waic", "psis", 4, marks=pytest.mark.slow),
    ],
)
def test_is_exact_within_its_errors(surrogate, how, strata):
    options = {"strata": strata, "by_spread": strata > 1}
    found = pcv.subsample(MODEL, surrogate=surrogate, exact=how, **options, **ONE_STRATUM)
    poor = surrogate == "plpd"
    sds = SKEWED if poor else NEAR
    assert near(found, EXACT, sds)
    assert not near(found, EXACT + (20 if poor else 5) / NUM_UNITS, sds)  # by 13 or more
    if how == "folds":
        alone = found.scores._replace(chosen=None, shared=0.0)
        own = NUM_UNITS / 80 * comparison.total_mcse(alone)
        assert 0.8 * own < found.mcse < 2 * own  # false alarm < 1e-4: 1.06, with an sd of .03
    else:
        every = pcv.loo(MODEL, brute_force=False, data=DATA, **QUICK)
        # False alarm < 1e-4: 1.06 times, with an sd of .09.
        assert found.mcse == pytest.approx(every.mcse, rel=0.5)
    # False alarm < 1e-4: in 6,000 subsamples it was off by .04 at most, and with plpd by 1.1.
    assert abs(found.se - np.sqrt(NUM_UNITS) * EXACT.std(ddof=1)) < (1.4 if poor else 0.5)
    sampled = {"folds": True, "auto": HAS_OWN[chosen(found)], "psis": False}[how]
    assert ((found.folds["source"] == "mcmc") == sampled).all()
    # False alarm < 1e-4: errors of terms have an sd of .004, of plpd .05, of the others below .005.
    np.testing.assert_array_less(abs(terms(found) - EXACT[chosen(found)]), 0.15)
    errors = {"plpd": 0.3, "waic": 0.1, "tis": 0.1, "d1waic": 0.2}
    assert (
        np.std(terms(found) - found.surrogates[surrogate].values[chosen(found)])
        < (errors[surrogate])
    )


def test_all_terms_are_leave_one_out():
    found = pcv.subsample(MODEL, m=NUM_UNITS, data=DATA, **QUICK)
    every = pcv.loo({"model": MODEL}, data=DATA, **QUICK)["model"]
    assert found.subsampling_se == 0
    assert found.diagnostics.attrs["surrogate"] == "waic"  # 42 parameters
    for name in ("elpd", "se", "mcse"):  # by the same keys
        np.testing.assert_allclose(getattr(found, name), getattr(every, name))
    assert found.folds.index.tolist() == every.folds.index.tolist()


def of_all_rows(params, data):
    mean = params["a"][data["group"]] + (data["x"] - data["x"].mean(0)) @ params["b"]
    return dist.Normal(mean, 1.0).log_prob(data["y"])


@pytest.mark.parametrize("alone", [True, False])
def test_chunks_of_units_are_as_the_whole(monkeypatch, alone):
    """In chunks only where terms depend on their own rows alone."""
    model = MODEL if alone else MODEL._replace(log_lik=of_all_rows)
    made, settings = [], ONE_STRATUM | {"m": 5}
    whole = pcv.subsample(model, **settings)
    monkeypatch.setattr(surrogates, "CHUNK", 8 * 1000 * 70)
    in_chunks = surrogates.in_chunks
    monkeypatch.setattr(surrogates, "in_chunks", lambda *x: made.append(x[4]) or in_chunks(*x))
    chunks = pcv.subsample(model, **settings)
    assert made == ([["plpd"], ["waic"]] if alone else [["plpd"]])
    np.testing.assert_allclose(chunks.surrogates["waic"], whole.surrogates["waic"])
    np.testing.assert_allclose(chunks.mcse, whole.mcse)


@pytest.mark.slow
def test_groups_left_out_with_their_effects():
    """Plain importance sampling of whole groups fails where effects are wide; the marginal does
    not."""
    model, data, form = linear(spread=3.0)
    truth = exact_terms(form, data["group"])
    settings = {"m": 20, "data": data, "group_by": "group", **QUICK}
    found = pcv.subsample(model, surrogate="psis", **settings)
    assert found.diagnostics.attrs["predictive"] == "marginal"
    assert near(found, truth)
    assert found.surrogates.sizes["term"] == NUM_GROUPS
    assert found.pointwise.size > 20
    plain = {"predictive": "plain", **settings}
    alone = pcv.subsample(model, surrogate="waic", exact="psis", **plain)
    assert (alone.folds["khat"] > 0.7).mean() > 0.5
    assert "importance sampling is not trusted for" in alone.verdict
    assert alone.verdict in repr(alone).replace("\n  ", " ")
    assert not near(alone, truth)


@pytest.mark.parametrize("how", repeated(["folds", "psis"]))
def test_units_of_several_rows(how):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 4, 2))
    y = rng.normal(x @ [1.0, -0.5], 1.0)

    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0, SD).expand((2,)))
        with numpyro.plate("site", 60, dim=-2), numpyro.plate("visit", 4):
            numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)

    made = pcv.from_numpyro(model, {"x": x, "y": y}, units="site")
    rows = LinearGaussian(y.ravel(), x.reshape(-1, 2), 1.0, np.zeros(2), SD**2 * np.eye(2))
    truth = exact_terms(rows, np.repeat(np.arange(60), 4))
    found = pcv.subsample(made, 30, ["d2waic", "plpd"], how, **QUICK)
    assert found.surrogates.sizes["term"] == 60
    assert near(found, truth)
    # False alarm < 1e-4: .001 of the SE, and terms are off with an sd of .0015 at most.
    assert found.subsampling_se < 0.02 * found.se
    np.testing.assert_allclose(terms(found), truth[chosen(found)], atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["folds", "psis"])
def test_a_target_of_correlated_outcomes(how):
    """A level with an autoregression around it: terms are conditional on all other units."""
    n = 60
    covariance = 0.8 ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    y = np.random.default_rng(4).multivariate_normal(np.full(n, 1.5), covariance)
    target = pcv.normal_target(
        init=lambda key: {"level": jax.random.normal(key)},
        log_prior=lambda params: dist.Normal(0, 1).log_prob(params["level"]),
        moments=lambda params: (np.ones(n) * params["level"], covariance),
        constrain=lambda params: params,
        outcome=pcv.Outcome("y"),
        y=y,
    )
    precision = np.linalg.inv(covariance + 1)
    variance = 1 / np.diag(precision)
    truth = -0.5 * (np.log(2 * np.pi * variance) + variance * (precision @ y) ** 2)
    found = pcv.subsample(target, 20, ["waic", "plpd"], how, data={"y": y}, **QUICK)
    assert near(found, truth, z_limit(df=19))
    assert found.subsampling_se < 0.02 * found.se
    np.testing.assert_allclose(terms(found), truth[chosen(found)], atol=0.05)


def test_an_outlier_needs_brute_force():
    model, data, form = linear(outlier=20.0)
    truth = exact_terms(form, np.arange(NUM_UNITS))
    settings = {"m": NUM_UNITS, "data": data, **QUICK}
    alone = pcv.subsample(model, exact="psis", **settings)
    assert alone.folds["khat"].iloc[7] > 0.7  # false alarm < 1e-4: it is 1.5, with an sd of .2
    found = pcv.subsample(model, **settings)
    outlying = np.arange(NUM_UNITS) == 7
    np.testing.assert_array_equal(found.folds["source"] == "mcmc", outlying | HAS_OWN)
    assert "importance sampling is not trusted" not in found.verdict
    one = found.folds.iloc[7]
    assert abs(one["elpd"] - truth[7]) < z_limit(df=31) * one["mcse"]
    assert one["mcse"] < 0.5  # by PSIS it is off by 1.5, with an sd of .6


def test_grows_until_the_subsampling_error_is_small(capsys):
    """Folds are sampled once, when the size is known."""
    until = {"subsampling_se_over_se": 0.02, "max_m": 120}
    found = pcv.subsample(
        MODEL, 30, "plpd", "folds", until, data=DATA, **QUICK | {"progress": True}
    )
    said = capsys.readouterr().err
    assert re.findall(r"subsample of (\d+): not settled \(model: subsampling SE", said) == [
        "30",
        "60",
        "120",
    ]
    assert len(re.findall(r"sample model: 960 chains, (\d+) of \1 draws", said)) == 1
    assert len(found.folds) == 120
    assert near(found, EXACT, SKEWED)
    assert re.search(r"until: not settled \(.*\), with 120 terms\.", " ".join(str(found).split()))
    small = pcv.subsample(MODEL, 30, "plpd", "psis", data=DATA, **QUICK)
    assert set(chosen(small)) < set(chosen(found))
    until = {"subsampling_se_over_se": 0.9, "max_m": np.int64(120)}
    enough = pcv.subsample(MODEL, 30, until=until, data=DATA, **QUICK)
    assert len(enough.folds) == 30


@pytest.mark.slow
def test_grows_until_the_order_of_models_is_clear():
    other, _, form = linear(columns=slice(1))
    truth = exact_terms(form, np.arange(NUM_UNITS)) - EXACT
    one = other._replace(
        log_lik=lambda params, data: other.log_lik(params, {**data, "x": data["x"][:, :1]})
    )
    both, until = {"both": MODEL, "one": one}, {"decide": {"probability": 0.9}}
    found = pcv.subsample(both, 10, "plpd", "psis", until, data=DATA, **QUICK)
    compared = pcv.compare(found).frame.loc["one"]
    error = compared["subsampling_dse"]
    assert abs(compared["elpd_diff"]) - 1.28 * compared["dse"] > 2 * error
    assert abs(compared["elpd_diff"] - truth.sum()) < z_limit(df=9) * error  # of ten terms or more
    assert len(found["both"].folds) == len(found["one"].folds) < NUM_UNITS


@pytest.mark.slow
def test_groups_of_any_size_and_order_grow_one_by_one():
    """4, 8 and 9 groups: the last look has a single new fold."""
    labels = np.random.default_rng(2).permutation(NUM_GROUPS)[DATA["group"]]
    until = {"subsampling_se_over_se": 1e-9, "max_m": 9}
    found = pcv.subsample(MODEL, 4, "waic", "folds", until, labels, data=DATA, **QUICK)
    assert (found.folds["source"] == "mcmc").all()
    truth = exact_terms(FORM, labels)
    # False alarm < 1e-4: MCSEs of .005 at most, and .0003 of the SE.
    np.testing.assert_array_less(abs(terms(found) - truth[chosen(found)]), 0.3)
    assert near(found, truth, z_limit(df=8))
    assert found.subsampling_se < 0.1 * found.se


@pytest.mark.slow
def test_models_are_compared_on_one_subsample():
    other, data, form = linear(columns=slice(1))
    settings = ONE_STRATUM | {"surrogate": "plpd"}  # whose errors are alike in both models
    both = {
        "both": pcv.subsample(MODEL, **settings),
        "one": pcv.subsample(other, **settings | {"data": data}),
    }
    found = pcv.compare(both)
    frame = found.frame
    truth = exact_terms(form, np.arange(NUM_UNITS)) - EXACT
    row = frame.loc["one"]
    assert frame.index.tolist() == ["both", "one"]
    assert abs(row["elpd_diff"] - truth.sum()) < NEAR * np.hypot(
        row["subsampling_dse"], row["mcse_diff"]
    )
    np.testing.assert_allclose(row["dse"], np.sqrt(NUM_UNITS) * truth.std(ddof=1), rtol=0.15)
    assert row["subsampling_dse"] < np.hypot(*frame["subsampling_se"])  # a third of it
    assert "subsampling_dse" in repr(found)
    assert pcv.compare(both, reference="one").frame.loc["both", "elpd_diff"] > 0
    others = {"a": both["both"], "b": pcv.subsample(MODEL, **ONE_STRATUM | {"seed": 2})}
    with pytest.raises(PcvError, match="compare: 'b' was scored on other folds than 'a'"):
        pcv.compare(others)
    in_strata = pcv.subsample(MODEL, strata=2, **ONE_STRATUM | {"m": NUM_UNITS})
    every = pcv.subsample(MODEL, **ONE_STRATUM | {"m": NUM_UNITS})
    with pytest.raises(PcvError, match="with 'b': different subsamples; give both the"):
        pcv.compare({"a": every, "b": in_strata})
    with pytest.raises(PcvError, match=r"^both: ArviZ has no scores of subsamples; compare"):
        both["both"].renamed("both").to_arviz()
    assert np.isnan(both["both"].p)
    with pytest.raises(PcvError, match="weights need the scores of all terms"):
        found.weights()
    with pytest.raises(PcvError, match="subsamples have one score, of whole terms"):
        pcv.compare(both, joint=False)
    with pytest.raises(PcvError, match="no model 'onee'; did you mean 'one'"):
        pcv.compare(both, reference="onee")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"m": 1}, "m: must be at least 2, is 1"),
        (
            {"m": 400},
            "m is 400, but there are 240 units; take fewer of them, or leave each out in turn",
        ),
        ({"m": True}, "m: must be a whole number, is true"),
        ({"surrogate": "wiac"}, "surrogate[0]: unknown surrogate 'wiac'; did you mean 'waic'?"),
        (
            {"surrogate": ["waic", "plpd", "waic"]},
            "surrogate: 'waic' is named twice; name each surrogate once",
        ),
        (
            {"until": {"subsampling_se_over_se": 0.1}, "surrogate": "psis", "exact": "folds"},
            "until: PSIS estimates hardly differ from surrogate 'psis', and would stop at once; "
            "take 'waic', or exact: psis",
        ),
        ({"exact": "fold"}, "exact: must be 'auto', 'psis' or 'folds', is 'fold'"),
        ({"strata": 50}, "m is 80 for 50 strata; give at least 2 of each, m=100"),
        (
            {"until": {"decide": {}, "maxm": 9}},
            "until.maxm: unknown key; did you mean 'max_m'?",
        ),
        ({"until": {"max_m": 9}}, "until: name a rule: subsampling_se_over_se and/or decide"),
        (
            {"until": {"subsampling_se_over_se": 0.1, "max_m": 9}},
            "until.max_m: must be at least m, 80",
        ),
        ({"until": {"decide": {}}}, "until.decide: needs another model to decide against"),
        ({"by_spread": True}, "by_spread: there is one stratum; give strata=5, say"),
        (
            {"strata": 2, "results": "kept"},
            "strata: they follow from one model's draws, in memory; leave strata out",
        ),
        ({"group_by": "groop"}, "the data: no column 'groop'; did you mean 'group'?"),
        (
            {"group_by": np.arange(NUM_UNITS)},
            "group_by: every 'group' is a single unit; leave units out, without it",
        ),
        ({"group_by": [1, 2]}, "group_by has 2 values; give one for each of the 240 units"),
    ],
)
def test_refusals_in_one_line(change, words):
    with pytest.raises(PcvError) as refused:
        pcv.subsample(MODEL, **ONE_STRATUM | change)
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"surrogate": None}, "surrogate: "),
        ({"until": 0.1}, "until: "),
        ({"strata": 5, "m": "40"}, "m: must be a whole number, is '40'"),
    ],
)
def test_arguments_of_another_type_are_refused(change, words):
    """By the function that users call, which has no types checked around it as here."""
    with pytest.raises(PcvError) as refused:
        inspect.unwrap(pcv.subsample)(MODEL, **ONE_STRATUM | change)
    assert str(refused.value).startswith(words)


def test_a_surrogate_that_is_not_finite_is_named(monkeypatch):
    broken = np.where(np.arange(NUM_UNITS) == 3, -np.inf, -1.0)
    found = {"waic": broken, "influence": np.zeros(9)}
    monkeypatch.setattr(psis, "_by_log_lik", lambda *_: found)
    with pytest.raises(PcvError, match=r"surrogate 'waic' of 4 is -inf \(1 not finite\); take"):
        pcv.subsample(MODEL, **ONE_STRATUM)


def test_slots_do_not_depend_on_m():
    """Draws of folds are kept among more folds, some of them larger."""
    of_unit = np.repeat(np.arange(20), [5] * 19 + [50])
    terms = Terms(np.array([f"g{j}" for j in range(20)]), of_unit)
    few, all_of_them = terms.folds(np.arange(3)), terms.folds(np.arange(20))
    assert few.test.shape[1] == all_of_them.test.shape[1] == 50
    assert (few.test >= 0).sum(1).tolist() == [5, 5, 5]


def test_a_rule_that_no_m_can_meet():
    rng, n = np.random.default_rng(2), 1000
    chosen = Subsample(np.arange(50), np.zeros(50, int), np.array([n]))
    x = rng.normal(size=(2, n))
    scores = [
        Scores(
            *(name, "joint", "log", "y", "plain", "", "", [str(i) for i in range(50)]),
            *(row[:50], np.zeros(50), np.arange(50), [str(i) for i in range(50)], "ok"),
            chosen=chosen,
            surrogate=row + 0.01 * rng.normal(size=n),
        )
        for name, row in zip("ab", x - x.mean(1, keepdims=True))
    ]
    compared = comparison.compare(scores)
    assert needs_terms(compared, None, 0.99) == UNDECIDED
    exact = [s._replace(surrogate=row) for s, row in zip(scores, x - x.mean(1, keepdims=True))]
    without_error = comparison.compare(exact)
    assert without_error.subsampling_dse.max() < 1e-9
    assert needs_terms(without_error, None, 0.99) == UNDECIDED
    noisy = compared._replace(dse_subsampling_se=compared.dse)
    assert "the data at hand do not decide" in needs_terms(noisy, None, 0.99)
    unknown = compared._replace(dse=np.array([0.0, np.nan]))
    assert "its SE is unknown" in needs_terms(unknown, None, 0.99)
    assert needs_terms(compared, 0.5, None) == SETTLED
    assert re.search(r"wanted .*; m = \d+ would do\)$", needs_terms(compared, 1e-4, None))


def test_few_terms_are_told():
    found = pcv.subsample(MODEL, **ONE_STRATUM | {"m": 10})
    assert "m is 10: rare terms with a poor surrogate are easily missed" in repr(found)
    assert "10 of 240 units left out, chosen at random" in repr(found)


def test_waic_of_all_units():
    found = pcv.subsample(MODEL, **ONE_STRATUM | {"m": 5})
    theta = FORM.posterior(np.random.default_rng(5), 4000)
    ll = dist.Normal(theta @ FORM.design.T, 1.0).log_prob(DATA["y"])
    waic = logsumexp(ll, axis=0) - np.log(4000) - np.var(ll, axis=0)
    np.testing.assert_allclose(found.surrogates["waic"], waic, atol=0.15)
