"""`pcv.evidence` and `pcv.cumulative` against closed forms, their comparison, and refusals."""

import inspect
import json
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
import yaml
from scipy.special import betaln
from scipy.stats import multivariate_normal

import pcv
from benchmarks.evidence import FACTS as FILE
from benchmarks.evidence import PROBLEMS
from pcv import PcvError
from pcv.analysis import evidence as estimates
from pcv.api.cumulative import CumulativeCV
from pcv.models.checks.prior import strayed
from pcv.pipeline.status import artifacts
from pcv.pipeline.storage.artifacts import opened
from pcv.sampling import memory, path
from tests.bounds import count_limits, z_limit
from tests.data import needs_data
from tests.faults import Killed, killed_after
from tests.project import run, set_up
from tests.workflow import snakemake

UNITS = 60
RNG = np.random.default_rng(4)
X = RNG.normal(size=UNITS)
Y = 1.0 + 0.35 * X + RNG.normal(size=UNITS)
FACTS = json.loads(FILE.read_text())
QUICK = {"splits": 16, "particles": 256, "seed": 1, "progress": False}
MANY = QUICK | {"splits": 40, "particles": 64}
"""enough orders for what is said of their spread"""
WIDE = 100.0


def polynomial(x, y, degree, scale):
    mean = numpyro.sample("a", dist.Normal(0, 10.0))
    for k in range(1, degree + 1):
        mean = mean + numpyro.sample(f"b{k}", dist.Normal(0, scale)) * x**k
    with numpyro.plate("unit", len(x)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def model(degree, scale=WIDE):
    return pcv.from_numpyro(polynomial, {"x": X, "y": Y, "degree": degree, "scale": scale})


def exact(degree, rows=slice(None), scale=WIDE):
    x = np.stack([X[rows] ** k for k in range(degree + 1)], axis=1)
    sd = np.array([10.0] + [scale] * degree)
    covariance = (x * sd**2) @ x.T + np.eye(len(x))
    return multivariate_normal.logpdf(Y[rows], np.zeros(len(x)), covariance)


@pytest.fixture(scope="module")
def followed():
    with jax.enable_x64(True):
        models = {"r0": model(0), "r1": model(1)}
        return pcv.cumulative(models, **MANY), pcv.fit(models["r1"], progress=False)


def agree(ways):
    """Whether pcv takes two ways to agree, which it does not once in some thousand runs."""
    one, other = (ways.loc[way] for way in ("growing training sets", "bridge sampling"))
    error = 4 * np.hypot(one["mcse"], other["mcse"])
    return abs(one["log_evidence"] - other["log_evidence"]) <= max(error, 0.05)


def test_evidence_by_three_ways(followed):
    for degree, found in enumerate(followed[0].values()):
        truth = exact(degree)
        apart, mcse = abs(found.ways["log_evidence"] - truth), found.ways["mcse"]
        # Three ways for two models; errors of the first are log-normal, of 80 estimates.
        assert (apart < z_limit(6, df=40) * mcse + 1e-6).all()
        assert mcse.drop("growing training sets").max() < 0.01
        assert mcse["bridge sampling"] < mcse["growing training sets"] < 0.1
        answer = "bridge sampling" if agree(found.ways) else "growing training sets"
        assert found.mcse == mcse[answer]
        assert found.log_evidence == found.ways["log_evidence"][answer]
        assert f"log p(y) {found.log_evidence:.3f} (MCSE " in str(found)
        said = re.search(r"by bridge sampling,\s+by growing training sets -", str(found))
        assert bool(said) == ("Warning" not in str(found)) == agree(found.ways)


@pytest.mark.slow
def test_cumulative_scores_of_its_orders(followed):
    found = followed[0]["r1"]
    truth = exact(1)
    orders = pcv.cumulative(model(1), **MANY | {"particles": 96})  # of the seed alone
    attrs = found.path.attrs
    assert (attrs["folds_print"], attrs["prepared"]) == (
        orders.path.attrs["folds_print"],
        6,
    )
    curve = found.curve
    assert curve.index.tolist() == list(range(1, UNITS + 1))
    np.testing.assert_allclose(curve["s_ccv"] + curve["s_pcv"], curve["s_ccv"][UNITS], atol=1e-8)
    assert abs(curve["s_ccv"][UNITS] - truth) < z_limit(df=40) * curve["s_ccv_mcse"][UNITS]
    assert (curve["s_ccv_mcse"] < 0.1).all()  # false alarm < 1e-4: .05 at most, with sd .005
    np.testing.assert_allclose(curve["s_ccv_per_n"], curve["s_ccv"] * UNITS / curve.index)


@pytest.mark.slow
def test_where_the_prior_decides(followed):
    """The Bayes factor prefers the model without a slope, as the prior of the slope is vague."""
    compared = pcv.compare(followed[0])
    frame = compared.frame
    assert frame.index.tolist() == ["r1", "r0"]
    factor = exact(0) - exact(1)
    assert factor > 0
    # Mostly of bridge sampling; else of estimates along orders, of which two ways did not agree.
    limit = z_limit(2, df=20)
    assert abs(frame.loc["r0", "log_bf"] - factor) < limit * frame.loc["r0", "log_bf_mcse"]
    # False alarm < 1e-4, also of the words: the difference is 16 SEs, of the later half 8.
    assert frame.loc["r0", "s_ccv_diff"] < -2 * frame.loc["r0", "diff_se"]
    said = " ".join(str(compared).split())
    assert "The Bayes factor prefers 'r0' (by " in said
    assert "cumulative cross-validation 'r1' (by " in said
    assert "The first 6 of 60 units decide, for which 'r1' pays " in said
    assert re.search(r"they would agree after about \d+ units \(\d+ to \d+, within an SE\)", said)
    narrow = {"r0": model(0), "r1": model(1, scale=1.0)}
    assert "units decide" not in str(pcv.compare(pcv.cumulative(narrow, **QUICK)))


@pytest.mark.slow
def test_laplace_alone_is_fast_and_knows_where_it_fails():
    models = {"r0": model(0), "r1": model(1)}
    found = pcv.evidence(models, method="laplace")
    for degree, one in enumerate(found.values()):
        assert abs(one.log_evidence - exact(degree)) < z_limit(2) * one.mcse + 1e-6 < 0.02
        assert not one.khat > 0.7
    alone = pcv.evidence(models["r1"], method="laplace")
    assert alone.log_evidence == pytest.approx(found["r1"].log_evidence, abs=1e-6)
    coins = pcv.Model(
        lambda key: {"u": jax.random.logistic(key)},
        lambda params: -params["u"] - 2 * jnp.logaddexp(0, -params["u"]),
        lambda params, data: jax.nn.log_sigmoid(jnp.where(data["y"], params["u"], -params["u"])),
        lambda params: params,
        pcv.Outcome("y"),
    )
    one = pcv.evidence(coins, data={"y": np.arange(30) < 24}, method="laplace")
    assert abs(one.log_evidence - betaln(25, 7)) < z_limit(df=20) * one.mcse  # skewed weights
    assert one.mcse < 0.02
    assert f"approximation, k-hat {one.khat:.2f}" in str(one)
    assert one.khat < 0.9  # false alarm < 1e-4: .43 with sd .1
    off = pcv.evidence(PROBLEMS["rats"]().model, method="laplace")
    assert off.khat > 0.7  # false alarm < 1e-4: 1.6 with sd .2
    assert "neither can be trusted" in " ".join(str(off).split())
    with pytest.raises(PcvError, match=r"^method is 'laplac'; did you mean 'laplace'\?$"):
        pcv.evidence(models, method="laplac")


def test_bridge_sampling_alone():
    models = {"r0": model(0), "r1": model(1)}
    found = pcv.evidence(models, method="bridge", progress=False)
    for degree, one in enumerate(found.values()):
        # t errors: few draws reach the tails that make them.
        limit = z_limit(2, df=100)
        assert abs(one.log_evidence - exact(degree)) < limit * one.mcse + 1e-6 < 0.02
        assert str(one).endswith("by bridge sampling")
    with pytest.raises(PcvError, match=r"^model 'model': bridge sampling has no answer; it needs"):
        pcv.evidence(
            models["r1"], method="bridge", fit={"approximation": "laplace"}, progress=False
        )


@pytest.mark.slow
def test_a_bad_fit_marks_what_is_made_of_it():
    def either(y):
        a = numpyro.sample("a", dist.Normal(0, 5))
        with numpyro.plate("unit", len(y)):
            numpyro.sample("y", dist.Normal(jnp.abs(a), 0.5), obs=y)

    fit = {"chains": 16, "warmup": 100, "draws": 100, "allow_bad_fit": True}
    marked = pcv.evidence(
        pcv.from_numpyro(either, {"y": Y + 3}), method="bridge", fit=fit, progress=False
    )
    # False alarm 2^-15: all chains begin on one side.
    assert re.search(r"by bridge sampling\nWarning: full-data fit .*R-hat", str(marked))


@pytest.fixture(scope="module")
def alone():
    """By default: bridge sampling, which Laplace's approximation confirms."""
    with jax.enable_x64(True):
        return pcv.evidence({"r0": model(0), "r1": model(1)}, progress=False)


def test_by_default_of_bridge_sampling_where_it_is_confirmed(alone):
    for degree, found in enumerate(alone.values()):
        assert found.method == "bridge"
        # t errors: few draws reach the tails that make them.
        assert (
            abs(found.log_evidence - exact(degree)) < z_limit(2, df=100) * found.mcse + 1e-6 < 0.05
        )
        assert re.match(r"log p\(y\) -\S+ \(MCSE .*\) by bridge sampling, by Laplace -", str(found))


def test_evidence_alone_is_compared(alone):
    frame = pcv.compare(alone).frame
    assert frame.index.tolist() == ["r0", "r1"]
    factor = exact(1) - exact(0)
    limit = z_limit(df=100)  # t errors, as above
    assert abs(frame.loc["r1", "log_bf"] - factor) < limit * frame.loc["r1", "log_bf_mcse"] + 1e-6
    assert "log Bayes factors over r1" in str(pcv.compare(alone, reference="r1"))
    other = {**alone, "r1": alone["r1"]._replace(outcome_print="")}
    alike = inspect.unwrap(pcv.compare)  # whose types are not checked
    with pytest.raises(PcvError, match=r"^compare: 'r1' has another set of data than 'r0'$"):
        alike(other)


def test_growing_training_sets_where_nothing_confirms():
    """A constant that `log_prior` lacks is in bridge sampling and in Laplace's approximation."""
    found = pcv.evidence(normal(constant=1.5), data={"y": Y}, **QUICK)
    assert isinstance(found, CumulativeCV)
    assert found.log_evidence == found.ways.loc["growing training sets", "log_evidence"]
    truth = multivariate_normal.logpdf(Y, np.zeros(UNITS), np.eye(UNITS) + 1)
    assert abs(found.log_evidence - truth) < z_limit(df=20) * found.mcse
    said = " ".join(str(found).split())
    # False alarm < 1e-4: -1.5 with sd .03; of the prior's integral alike.
    assert re.search(r"log p\(y\) by bridge sampling differs by -1\.[3-6]\d nats", said)
    assert re.search(r"`log_prior` lacks a constant, the log of its integral is -1\.[3-6]", said)


@pytest.mark.parametrize(
    ("by_path", "prior", "answer"),
    [(-0.4, 0.0, estimates.BRIDGE), (0.4, 0.0, estimates.PATH), (0.4, -0.4, estimates.PATH)],
    ids=["particles missed a part", "the others missed a mode", "a constant is missing"],
)
def test_where_ways_differ_evidence_decides(by_path, prior, answer):
    rng, whole = np.random.default_rng(1), np.zeros((32, 2, 2))
    whole[:, :, 1] = rng.normal(-100 + by_path, 0.1, (32, 2))
    path = xr.Dataset(
        {
            "log_evidence": (("order", "set", "trained_units"), whole),
            "log_evidence_by": ("way", [-100.0, -100.01]),
            "mcse_by": ("way", [0.002, 0.006]),
            "khat": ("way", [np.nan, 0.3]),
        },
        {"way": [estimates.BRIDGE, estimates.LAPLACE]},
        {"improper": "", "log_prior_integral": prior, "log_prior_integral_mcse": 0.01},
    )
    assert estimates.answer(path)[0] == answer
    (said,) = estimates.doubts(path)
    other = estimates.PATH if answer == estimates.BRIDGE else estimates.BRIDGE
    assert said.startswith(f"log p(y) by {other} differs by ")
    assert ("use more particles" in said) == (answer == estimates.BRIDGE)
    assert ("lacks a constant, the log of its integral is -0.40" in said) == (prior != 0)


@pytest.mark.slow
def test_no_normal_approximation_is_said():
    def centred(y):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfNormal(5))
        with numpyro.plate("groups", 5):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
        with numpyro.plate("unit", len(y)):
            numpyro.sample("y", dist.Normal(theta[np.arange(len(y)) % 5], 1.0), obs=y)

    schools = pcv.from_numpyro(centred, {"y": Y[:20]})
    words = "the posterior has no normal approximation at its mode: it is flat or rising in "
    with pytest.raises(PcvError, match=rf"^{words}'\w+'$"):
        pcv.evidence(schools, method="laplace")
    found = pcv.evidence(schools, **QUICK | {"splits": 4, "particles": 128})
    assert f"by Laplace unknown ({words}" in " ".join(str(found).split())


def along(gains, name, noise=0.01):
    """``evidence.zarr`` of orders along which every unit brings the same, but for noise."""
    rng, n = np.random.default_rng(1), len(gains)
    gains = gains + rng.normal(0, noise, (16, 1, n)) + rng.normal(0, noise / 10, (16, 2, n))
    whole = np.concatenate([np.zeros((16, 2, 1)), gains.cumsum(2)], axis=2)
    return xr.Dataset(
        {"log_evidence": (("order", "set", "trained_units"), whole)},
        attrs={"improper": "", "prepared": 6, "model": name},
    )


def test_few_orders_are_held_to_more():
    """Models that are alike: two orders have one degree of freedom, and hardly any SE by chance."""
    rng, other = np.random.default_rng(1), along(np.zeros(8), "b").isel(order=slice(2))
    said = []
    for _ in range(300):
        one = other.copy(deep=True).assign_attrs(model="a")
        one["log_evidence"][:, :, -1] += rng.normal(0, 1, (2, 1))
        said.append(estimates.verdict({"a": one, "b": other}, "b"))
    low, high = count_limits(300, 0.0455)
    assert low <= sum("scores higher" in words[0] for words in said) <= high
    assert all("'a': SEs over 2 orders can be far too small; use more splits." in x for x in said)
    assert not estimates.doubts(along(np.zeros(8), "b"))


@pytest.mark.parametrize(("spread", "most"), [(0.2, 0), (0.75, count_limits(100, 0.0024)[1])])
def test_bridge_sampling_of_one_of_two_modes(spread, most):
    """Is hardly ever the answer, of 100 with ten orders each: noisy paths do not vouch for it, but
    by chance, with a probability of .0024."""
    wrong = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        whole = np.zeros((10, 2, 2))
        whole[:, :, 1] = rng.normal(-100 - spread**2 / 2, spread, (10, 2))
        path = xr.Dataset(
            {
                "log_evidence": (("order", "set", "trained_units"), whole),
                "log_evidence_by": ("way", [-100 - np.log(2)]),
                "mcse_by": ("way", [0.02]),
                "khat": ("way", [np.nan]),
            },
            {"way": [estimates.BRIDGE]},
            {"improper": "", "log_prior_integral": 0.0, "log_prior_integral_mcse": 0.01},
        )
        is_path = estimates.answer(path)[0] == estimates.PATH
        assert estimates.doubts(path) or not is_path
        wrong += not is_path
    assert wrong <= most


def test_the_number_of_units_until_both_agree():
    """13 nats behind, and half a nat per unit gained: 26 units more."""
    ahead = np.where(np.arange(60) < 6, -40 / 6, 0.5)
    one, other = along(ahead, "a"), along(np.zeros(60), "b")
    said = estimates.disagreement(one, other)
    assert "prefers 'b' (by 13.0 nats), cumulative cross-validation 'a' (by 27.0)" in said
    assert "brings 0.5 nats each, they would agree after about 8" in said
    likely, least, most = map(int, re.search(r"(\d+) units \((\d+) to (\d+),", said).groups())
    assert 85 <= least <= likely <= most <= 88


def test_scores_at_any_number_of_units_left_out(followed):
    found, compared = followed[0]["r1"], pcv.compare(followed[0], reference="r0")
    assert found.at(54)["s_ccv"] == found.curve["s_ccv"][54]
    assert found.at(54)["s_pcv_mcse"] == found.curve["s_pcv_mcse"][54]
    pd.testing.assert_frame_equal(compared.at(54), compared.frame[compared.at(54).columns])
    rows = compared.at(11)
    each = [one.at(11)["s_ccv"] for one in (followed[0]["r1"], followed[0]["r0"])]
    assert rows.loc["r1", "s_ccv_diff"] == pytest.approx(each[0] - each[1])
    for p in (0, UNITS):
        with pytest.raises(
            PcvError, match=rf"^P = {p} units left out: must be a whole number from 1 to 59"
        ):
            found.at(p)


@pytest.mark.slow
def test_an_improper_prior_has_cumulative_scores_alone():
    def flat(x, y):
        a = numpyro.sample("a", dist.Normal(0, 10.0))
        b = numpyro.sample("b", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("unit", len(x)):
            numpyro.sample("y", dist.Normal(a + b * x, 1.0), obs=y)

    improper = pcv.from_numpyro(flat, {"x": X, "y": Y})
    with pytest.raises(PcvError, match=r"^model: the prior of 'b' is improper, or `init` does not"):
        pcv.evidence(improper, **QUICK)
    found = pcv.cumulative(improper, **QUICK)
    proper = pcv.cumulative(model(1, scale=1e4), **QUICK)
    assert np.isnan(found.log_evidence)
    assert "s_pcv" not in found.curve
    assert found.curve.index.max() == UNITS - 6
    one, other = (x.curve.loc[UNITS - 6] for x in (found, proper))
    error = np.hypot(one["s_ccv_mcse"], other["s_ccv_mcse"])
    assert abs(one["s_ccv"] - other["s_ccv"]) < z_limit(df=16) * error
    assert error < 0.1  # false alarm < 1e-4: .04 with sd .005
    compared = pcv.compare({"flat": found, "wide": proper})
    row = compared.frame.loc["flat" if compared.reference == "wide" else "wide"]
    assert abs(row["s_ccv_diff"]) < z_limit(df=16) * row["diff_mcse"]
    assert "nan" not in str(compared).split("prepared", 1)[1]
    with pytest.raises(PcvError, match=r"and 1 units that prepare may not make a posterior of 2"):
        pcv.cumulative(improper, prepare=0.01, **QUICK)
    with pytest.raises(PcvError, match=r"^P = 55 units left out: .* from 1 to 54$"):
        compared.at(UNITS - 5)
    with pytest.raises(PcvError, match=r"no evidence, as the prior of 'b' is improper"):
        _ = found.ways


@pytest.mark.slow
def test_models_of_unlike_numbers_of_parameters():
    """Whose scores are known at unlike sizes."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, 160))

    def of(degree):
        data = {"x": x, "y": y, "degree": degree, "scale": 1.0}
        return pcv.from_numpyro(polynomial, data)

    found = pcv.cumulative({"low": of(0), "high": of(1)}, **QUICK | {"particles": 64})
    assert not found["low"].curve.index.equals(found["high"].curve.index)
    row = pcv.compare(found, reference="low").frame.loc["high"]
    each = [found[name].curve["s_ccv"][144] for name in ("high", "low")]
    assert row["s_ccv_diff"] == pytest.approx(each[0] - each[1])
    # False alarm < 1e-4: SEs over 16 orders, one several times the other.
    assert found["low"].curve["s_ccv_se"][144] > row["diff_se"]


@needs_data
@pytest.mark.slow
def test_ibis_and_bridgesampling_agree():
    """By ways that have little in common, all of which are right of three parameters."""
    name = "every tenth well"
    found = pcv.evidence(
        PROBLEMS[name]().model, method="path", **QUICK | {"splits": 8, "particles": 512}
    )
    ways, (ibis, ibis_mcse) = found.ways, FACTS[name]["ibis"]
    by_bridge = ways.loc["bridge sampling"]
    along = ways.loc["growing training sets"]
    mcse, limit = np.hypot(along["mcse"], by_bridge["mcse"]), z_limit(df=8)
    assert abs(along["log_evidence"] - by_bridge["log_evidence"]) < limit * mcse  # 16 skewed ones
    assert mcse < 0.5
    assert abs(along["log_evidence"] - ibis) < limit * np.hypot(along["mcse"], ibis_mcse)
    assert found.log_evidence == by_bridge["log_evidence"]  # the path or Laplace confirms it
    in_r = FACTS[name]["bridgesampling"]  # from other draws, with an error like ours
    error = np.sqrt(2) * by_bridge["mcse"]
    assert abs(by_bridge["log_evidence"] - in_r) < z_limit(df=100) * error + 1e-3
    of_laplace = ways.loc["Laplace"]
    assert of_laplace["khat"] < 0.7
    error = np.hypot(of_laplace["mcse"], by_bridge["mcse"])
    assert abs(of_laplace["log_evidence"] - in_r) < z_limit(df=20) * error + 1e-3
    assert found.path["acceptance"].min() > 0.2


def test_priors_of_pymc_are_known_by_few_draws():
    import pymc as pm

    with pm.Model() as schools:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        z = pm.Normal("z", 0, 1, shape=60)
        pm.Normal("y", mu + tau * z, 1.0, observed=Y)
    assert strayed(pcv.from_pymc(schools)) is None


def normal(constant=0.0):
    """A normal mean with a prior that lacks a constant."""
    return pcv.Model(
        lambda key: {"mu": jax.random.normal(key)},
        lambda params: dist.Normal(0, 1).log_prob(params["mu"]) - constant,
        lambda params, data: dist.Normal(params["mu"], 1.0).log_prob(data["y"]),
        lambda params: params,
        pcv.Outcome("y"),
    )


def test_draws_of_another_density_than_the_prior_are_refused():
    off = normal()._replace(init=lambda key: {"mu": 3 * jax.random.normal(key)})
    with pytest.raises(
        PcvError, match=r"^model: the prior of 'mu' is improper, or `init` does not"
    ):
        pcv.evidence(off, data={"y": Y}, **QUICK)


def test_what_does_not_fit_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "of_devices", lambda: memory.Step(2**20, 2**20))
    with pytest.raises(PcvError, match=r"^evidence model: 2 x 256 particles of 60 units take "):
        pcv.evidence(normal(), data={"y": Y}, method="path", **QUICK)


def test_a_path_that_gets_stuck_names_the_unit(monkeypatch):
    monkeypatch.setattr(path, "MOST_STEPS", 7)
    said = r"^evidence model: \d+ of 16 orders got stuck, order \d+ at unit '\d+': its likelihood"
    with pytest.raises(PcvError, match=said):
        pcv.evidence(normal(), data={"y": Y}, method="path", **QUICK)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"splits": 1}, "splits: must be at least 2, is 1"),
        ({"particles": 100}, "particles: must be a multiple of 16, is 100"),
        ({"prepare": 1.0}, "prepare: must be below 1.0, is 1.0"),
        ({"prepare": 0.0}, "prepare: must be above 0.0, is 0.0"),
    ],
)
def test_refusals_in_one_line(settings, said):
    with pytest.raises(PcvError) as error:
        pcv.cumulative(normal(), **QUICK | {"data": {"y": Y}} | settings)
    assert str(error.value) == said


def test_targets_and_other_orders_are_refused(followed, capsys):
    target = pcv.normal_target(
        lambda key: {"mu": jax.random.normal(key)},
        lambda params: dist.Normal(0, 1).log_prob(params["mu"]),
        lambda params: (jnp.full(UNITS, params["mu"]), jnp.eye(UNITS)),
        lambda params: params,
        pcv.Outcome("y"),
        Y,
    )
    said: list[str] = []
    for call in (pcv.cumulative, partial(pcv.evidence, method="bridge")):
        with pytest.raises(PcvError, match=r"a pcv\.Target has no log likelihood of each unit"):
            call(target, data={"y": Y}, **QUICK | {"progress": True})
        said.append(capsys.readouterr().err)
    assert "fit" not in " ".join(said)  # before anything is sampled
    other = pcv.cumulative(model(0), **QUICK | {"seed": 2, "particles": 64})
    with pytest.raises(PcvError, match="compare: 'b' has another set of orders than 'a'; give"):
        pcv.compare({"a": followed[0]["r0"], "b": other})
    with pytest.raises(PcvError, match=r"compare: 'r0' is of cumulative .*, 'a' is not; compare"):
        pcv.compare({"r0": other, "a": pcv.loo(normal(), data={"y": Y}, progress=False)})


MODELS = """
import numpyro, numpyro.distributions as dist, pcv

def mean(data, sd):
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, sd))
        with numpyro.plate("unit", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    return pcv.from_numpyro(model, {"y": data["y"]})
"""


@pytest.mark.slow
def test_as_an_experiment_of_the_workflow(tmp_path):
    pd.DataFrame({"y": Y}).to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "models.py").write_text(MODELS)
    scheme = {"scheme": "cumulative", "splits": 4, "particles": 64}
    models = {
        name: {"model": "models.py:mean", "args": {"sd": sd}}
        for name, sd in {"narrow": 1.0, "wide": 50.0}.items()
    }
    data = {"file": "data.csv", "outcome": "y"}
    config = {
        "seed": 1,
        "experiments": {"means": {"data": data, "folds": scheme, "models": models}},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(tmp_path, "--configfile", "c.yaml")
    assert done.status == 0, done.err + done.out
    folder = tmp_path / "results/means"
    table = pd.read_csv(folder / "comparison.csv", index_col="model")
    covariance = {name: np.eye(UNITS) + x**2 for name, x in {"narrow": 1.0, "wide": 50.0}.items()}
    for name, row in table.iterrows():
        truth = multivariate_normal.logpdf(Y, np.zeros(UNITS), covariance[name])
        assert abs(row["log_evidence"] - truth) < 1  # false alarm < 1e-4: sd .15 at most
    sizes = pd.read_csv(folder / "cumulative.csv", index_col=["model", "left_out"])
    assert sizes.loc["wide"].index.tolist() == list(range(1, UNITS + 1))
    page = (folder / "report.html").read_text()
    assert "Cumulative score of 54 units after 6 that prepare" in page
    assert "bridge sampling" in page
    assert (folder / "figures/cumulative.svg").exists()
    assert "Cumulative score of 54 units" in done.out + done.err
    again = snakemake(tmp_path, "--configfile", "c.yaml")
    assert "Nothing to be done" in again.out + again.err


@pytest.mark.slow
def test_killed_along_the_orders(tmp_path, monkeypatch):
    """Finished orders are kept, also for a later run that follows more of them."""
    project = set_up(tmp_path)
    monkeypatch.chdir(tmp_path)

    def job(splits, results="results"):
        folds = {"scheme": "cumulative", "splits": splits, "particles": 64}
        return project.job({"folds": folds}, "flat", results=results)

    def found(one):
        return opened(one, "evidence").load()

    def state_of(one):
        place = "evidence", "flat"
        return next(x.state for x in artifacts(one) if (x.stage, x.job.model) == place)

    run(job(30, "elsewhere"), "data", "folds", "fit", "evidence")
    run(job(20), "data", "folds", "fit")
    with monkeypatch.context() as patch:
        killed_after(patch, 3)  # what it is made of, a block, the state after it
        with pytest.raises(Killed):
            run(job(20), "evidence")
    assert re.fullmatch(r"to do; resumes from \d+ of 20 orders", state_of(job(20)))
    project.said.clear()
    run(job(20), "evidence")
    assert state_of(job(20)) == "done"
    assert re.search(r"evidence flat: resuming after \d+ of 20 orders", "\n".join(project.said))
    first, more = found(job(20)), found(job(30, "elsewhere"))
    np.testing.assert_allclose(first["log_evidence"], more["log_evidence"][:20], rtol=1e-12)
    run(job(30), "folds")
    again = "again: config.folds.splits was 20, is 30; resumes from 20 of 30 orders"
    assert state_of(job(30)) == again
    run(job(30), "evidence")
    assert "evidence flat: resuming after 20 of 30 orders" in project.said
    np.testing.assert_allclose(found(job(30))["log_evidence"], more["log_evidence"], rtol=1e-12)
