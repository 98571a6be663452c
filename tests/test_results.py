"""What the diagnose stage makes of stored sums, seen on draws whose faults are known."""

import re

import numpy as np
import pytest
import xarray as xr
from scipy.stats import norm

from pcv.analysis import results
from pcv.analysis.diagnostics import largest, nested_rhat, tail_size
from pcv.analysis.results import reading, wording
from pcv.analysis.results.numbers import two_figures
from pcv.analysis.samples import log_sums
from pcv.analysis.stopping.config import UntilConfig
from pcv.models.scores import Score
from tests.synthetic import (
    BATCH,
    CHAINS,
    CHECKS,
    DRAWS,
    FOLDS,
    TEST,
    UNITS,
    diagnosed,
    energy,
    sample,
)


@pytest.fixture
def draws() -> np.ndarray:
    """Normal ones that no diagnostic flags by chance: all halves of chains have a mean of 0, so
    that R-hat and drift see nothing, and scores vary too little for a heavy tail."""
    halves = 0.6 * np.random.default_rng(1).normal(size=(len(TEST), CHAINS, 2, DRAWS // 2, 2))
    return (halves - halves.mean(3, keepdims=True)).reshape(len(TEST), CHAINS, DRAWS, 2)


def verdict(found: xr.Dataset, kind: str) -> str:
    name = {"joint": "verdict", "pointwise": "pointwise_verdict"}[kind]
    scores = results.scores(found, kind, "d", "f")
    assert scores.verdict == found.attrs[name]
    return scores.verdict


def test_healthy_chains(draws):
    found = diagnosed(draws)
    assert verdict(found, "joint") == verdict(found, "pointwise") == "ok"
    assert found["pointwise_verdict"].values.tolist() == [["ok", "ok"], ["ok", "ok"], ["ok", ""]]
    # False alarm < 1e-4: about 1,900, and the sd of its logarithm is .16.
    assert 900 < float(found["joint_ess_total"]) < 4000


@pytest.mark.parametrize("superchains", [0, 2])
def test_folds_are_diagnosed_alike_few_at_a_time(draws, monkeypatch, superchains):
    def found() -> xr.Dataset:
        rng, made = np.random.default_rng(1), sample(draws).assign_attrs(superchains=superchains)
        means = np.random.default_rng(2).normal(size=(*made["log_joint_mean"].shape, 2))
        made["mine_pointwise_mean"] = (("fold", "chain", "batch", "slot"), means)
        made["mine_pointwise_log_weight"] = 0.1 * made["mine_pointwise_mean"]
        of_fold = results.diagnose([made], FOLDS, UNITS, CHECKS, rng, "m")
        square = Score("mine", "pointwise", dict, lambda means, y: means["mean"] ** 2, abs)
        y = np.where(TEST >= 0, TEST.astype(float), np.nan)
        return results.with_scores(of_fold, [made], [square], y, rng)

    whole = found()
    assert np.isfinite(whole["mine_pointwise_mcse"]).all()
    monkeypatch.setattr(reading, "GROUP_BYTES", 1)
    assert len(list(reading.groups([sample(draws)]))) == len(TEST)
    xr.testing.assert_allclose(found(), whole, rtol=1e-10)
    assert found().attrs == whole.attrs


def test_hidden_variance_is_seen_without_the_draws():
    """In a fold whose k-hat is fine: of quantiles of N(0, 2), k-hat is .65 and the hidden variance
    2.4, in whatever order they stand."""
    quantiles = norm.ppf((np.arange(CHAINS * DRAWS) + 0.5) / (CHAINS * DRAWS))
    one_slot = np.random.default_rng(0).permuted(np.tile(quantiles, (len(TEST), 1)), axis=1)
    one_slot = one_slot.reshape(len(TEST), CHAINS, DRAWS) * np.array([0.8, 2.0, 0.8])[:, None, None]
    made = sample(np.stack([one_slot, 0 * one_slot], axis=-1))
    s = made["log_joint_draws"].values
    top = largest(np.full((len(TEST), tail_size(CHAINS * DRAWS) + 1), -np.inf), s)
    kept = made.drop_vars("log_joint_draws").assign(log_joint_tail=(("fold", "tail"), top))
    whole, by_sums = (
        results.diagnose([x], FOLDS, UNITS, CHECKS, np.random.default_rng(1), "m")
        for x in (made, kept)
    )
    for name in ("khat", "hidden_variance", "verdict", "joint_mcse_is_bound"):
        np.testing.assert_array_equal(by_sums[name], whole[name])
    assert by_sums["joint_mcse_is_bound"].values.tolist() == [False, True, False]
    assert by_sums["khat"][1] < by_sums.attrs["good_k"]


def test_shifts_that_cancel_in_the_joint_score_flag_the_units(draws):
    draws[1, 2] += [2.4, -2.4]
    found = diagnosed(draws)
    assert verdict(found, "joint") == "ok"
    said = verdict(found, "pointwise")
    assert said.startswith("2 of 5 units are flagged: 2 units of b (R-hat 2.")
    assert said.count("chains disagree") == 1
    assert all("R-hat 2." in words for words in found["pointwise_verdict"].values[1])


def test_the_headline_names_flagged_units(draws):
    healthy = diagnosed(draws)
    draws[1, 2] += [2.4, -2.4]
    both = {"a": healthy.assign_attrs(model="a"), "m": diagnosed(draws)}
    for models, end in (
        (both, "No fold is flagged. Single units of m are flagged, see the pointwise table."),
        ({"a": both["a"]}, "No fold is flagged."),
        ({"m": both["m"]}, "Single units of m are flagged, see the pointwise table."),
    ):
        found = results.compare(models, "d", "f", None, "test").dataset
        assert found.attrs["verdict"].endswith(end)
        assert found.attrs["until"] == ""


UNTIL = {"min_draws": 100, "max_draws": 400}


def test_what_ended_the_folds_is_told(draws):
    early = diagnosed(draws).assign_attrs(model="a")
    early["n_draws"][:2] = 100
    late = diagnosed((draws - draws[::-1]) / 2)
    late["joint_elpd"] -= [0.0, 1.0, 3.0]
    number = (
        "Draws per chain: a 100 to 400, 200 on average, 1 of 3 folds stopped by max_draws; "
        "m 400, 3 of 3 folds stopped by max_draws."
    )

    def said(**rule):
        until = UntilConfig(**UNTIL, **rule)
        return results.compare({"a": early, "m": late}, "d", "f", None, "t", until).dataset.attrs

    assert said(fold_mcse=0.1)["until"] == number
    assert said(mcse_over_se=0.9)["until"] == f"cv.until: settled. {number}"
    unmet = said(mcse_over_se=0.001)["until"]
    assert re.match(
        r"cv.until: not settled \(m: MCSE 0\.\d+, wanted 0\.00\d+\), stopped by max_draws, 400\. D",
        unmet,
    )
    assert unmet.endswith(number)


def test_what_is_wrong_with_chains_is_wrong_with_the_units_of_their_fold(draws):
    """Divergences, rare acceptance and R-hat of the joint score are properties of the chains."""
    remedy = "higher target_accept, or reparameterise"
    assert verdict(diagnosed(draws, divergences=1), "pointwise") == (
        f"3 of 3 folds are flagged: a (32 divergences (2.0% of draws): {remedy}), b (32 divergences"
        " (2.0% of draws)), c (32 divergences (2.0% of draws))."
    )
    made = sample(draws)
    made["acceptance"][1] = 0.3
    rarely = results.diagnose([made], FOLDS, UNITS, CHECKS, np.random.default_rng(1), "m")
    draws[1, 0] += 0.5
    for found in (diagnosed(draws), rarely):
        assert verdict(found, "pointwise").startswith("1 of 3 folds is flagged: b (")
        assert found["pointwise_verdict"].values.tolist() == [
            ["ok", "ok"],
            ["the chains of its fold are flagged"] * 2,
            ["ok", ""],
        ]
        assert found.attrs["units_verdict"] == "ok"


def test_what_the_joint_table_says_is_not_said_again_below(draws):
    diverged = diagnosed(draws, divergences=1)
    draws[1, 2] += [2.4, -2.4]
    found = {"a": diagnosed(draws[::-1] * 0.9), "d": diverged, "s": diagnosed(draws)}
    found = {name: d.assign_attrs(model=name) for name, d in found.items()}
    pointwise = results.compare(found, "d", "f", "s", "t").comparisons["pointwise"]
    said = dict(zip(pointwise.models, results.below_the_joint_table(pointwise, found)))
    assert said["d"] == "as above."
    assert said["s"].startswith("2 of 5 units are flagged: 2 units of b (R-hat 2.")


def test_an_mcse_that_is_a_lower_bound_settles_nothing(draws):
    heavy = draws * np.array([1.0, 1.0, 10.0])[:, None, None, None]
    until = UntilConfig(mcse_over_se=100, max_draws=800, rhat=2)
    samples = {m: [sample(x)] for m, x in (("a", draws), ("h", heavy))}
    light = {"a": samples["a"], "b": [sample(0.9 * draws)]}
    assert not results.plan(light, FOLDS, until, None, 0, None)["more"].any()
    found = results.plan(samples, FOLDS, until, None, 0, None)
    assert found["more"].values.tolist() == [[False] * 3, [False, False, True]]
    assert re.fullmatch(r"not settled \(a: MCSE > .*, only a lower bound\)", found.attrs["words"])
    diagnosed = {m: d.assign_attrs(model=m) for m, d in ended(samples).items()}
    said = results.compare(diagnosed, "d", "f", "a", "t", until).dataset.attrs["until"]
    assert said.startswith("cv.until: not settled (h: MCSE > ")
    assert "h 400, 0 of 3 folds stopped by max_draws, 1 with only a lower bound on" in said


def ended(samples: dict[str, list[xr.Dataset]]) -> dict[str, xr.Dataset]:
    rng = np.random.default_rng(1)
    return {m: results.diagnose(x, FOLDS, UNITS, CHECKS, rng, m) for m, x in samples.items()}


def test_an_mcse_that_is_a_lower_bound_is_told_everywhere(draws):
    heavy = draws * np.array([1.0, 1.0, 10.0])[:, None, None, None]
    found = {m: diagnosed(x).assign_attrs(model=m) for m, x in (("a", draws), ("h", heavy))}
    for kind in ("joint", "pointwise"):
        assert found["a"][f"{kind}_mcse_is_bound"].values.tolist() == [False] * 3
        assert found["h"][f"{kind}_mcse_is_bound"].values.tolist() == [False, False, True]
    compared = results.compare(found, "d", "f", "a", "t")
    for kind, comparison in compared.comparisons.items():
        assert comparison.mcse_diff_is_bound.tolist() == [m == "h" for m in comparison.models]
        of = compared.dataset.sel(kind=kind, model="h")
        assert of["mcse_is_bound"]
        assert of["fold_mcse_is_bound"].values.tolist() == [False, False, True]
        assert f"> {two_figures(comparison.mcse.max())}" in wording.table(comparison)
    assert compared.frame["mcse_is_bound"].tolist() == (compared.frame["model"] == "h").tolist()
    assert "MCSE > " in compared.dataset.attrs["verdict"]
    alone = results.compare({"h": found["h"]}, "d", "f", None, "t").dataset
    assert "MCSE > " in alone.attrs["verdict"]


def test_one_model_is_the_comparator_by_both_scores(draws):
    """The joint score favours a, whose units go together, the pointwise one b."""
    draws = draws / 0.6  # of sd 1
    together = 0.5 * draws[..., [0, 0]]
    models = {
        name: diagnosed(x).assign_attrs(model=name)
        for name, x in (("a", together), ("b", 0.5 * draws + 0.05))
    }
    joint, pointwise = (
        {name: float(d[f"{kind}_elpd"].sum()) for name, d in models.items()}
        for kind in ("joint", "pointwise")
    )
    assert (joint["a"] - joint["b"]) * (pointwise["a"] - pointwise["b"]) < 0
    for reference, expected in ((None, max(joint, key=joint.get)), ("b", "b")):
        found = results.compare(models, "d", "f", reference, "t").comparisons
        assert {c.reference for c in found.values()} == {expected}


def test_padded_slots_are_unknown(draws):
    found = diagnosed(draws)
    for name in ("pointwise_elpd", "pointwise_rhat", "pointwise_ess"):
        np.testing.assert_array_equal(np.isnan(found[name]), TEST < 0)
    assert np.isfinite(found["pointwise_mcse"]).all()
    assert float(found["pointwise_elpd"].sum()) == pytest.approx(
        float(np.log(np.exp(draws[TEST.shape[0] - 1, ..., 0]).mean()))
        + sum(float(np.log(np.exp(draws[k, ..., i]).mean())) for k in (0, 1) for i in (0, 1))
    )


def test_a_bad_fit_is_part_of_the_verdict(draws):
    found = diagnosed(draws).assign_attrs(bad_fit=True, fit_verdict="R-hat of 'mu' is 1.30")
    assert results.scores(found, "joint", "d", "f").verdict == (
        "The full-data fit is bad: R-hat of 'mu' is 1.30."
    )


def test_kinds_are_told_apart_only_where_folds_hold_several_units(draws):
    found = diagnosed(draws)
    assert results.distinct_kinds({"m": found}) == ["joint", "pointwise"]
    assert results.distinct_kinds({"m": found.isel(slot=[0])}) == ["joint"]


def test_progressive_comparison_is_that_of_the_first_draws(draws):
    """Δ, SE, MCSE, Pr and ESS at every length, joint and pointwise, from the draws themselves."""
    other = draws - np.array([0.5, 1.0, 2.5])[:, None, None, None]
    models = {
        name: diagnosed(x).assign_attrs(model=name) for name, x in (("a", draws), ("b", other))
    }
    found = results.compare(models, "d", "f", "b", "t").dataset
    assert found["point"].values.tolist() == list(range(BATCH, DRAWS + 1, BATCH))
    present = TEST >= 0

    def log_mean(s: np.ndarray) -> np.ndarray:
        return np.log(np.exp(s).mean(axis=(1, 2)))

    def batch_error(s: np.ndarray) -> np.ndarray:
        """Influence of each batch on the log of the mean (fold, batch, ...)."""
        f = np.exp(s)
        g = f.reshape(len(f), CHAINS, -1, BATCH, *f.shape[3:]).mean(3)
        g = g.reshape(len(f), -1, *g.shape[3:])
        number = g.shape[1]
        return (g / g.mean(1, keepdims=True) - 1) / np.sqrt(number * (number - 1))

    for i, n in enumerate(found["point"].values):
        first = {name: x[:, :, :n] for name, x in (("a", draws), ("b", other))}
        slots = {name: np.where(present[:, None, None], x, 0.0) for name, x in first.items()}
        for kind in ("joint", "pointwise"):
            if kind == "joint":
                terms = {name: log_mean(x.sum(-1)) for name, x in slots.items()}
                error = {name: batch_error(x.sum(-1)) for name, x in slots.items()}
            else:
                terms = {name: log_mean(x)[present] for name, x in slots.items()}
                error = {name: batch_error(x).sum(-1) for name, x in slots.items()}
            diff = terms["a"] - terms["b"]
            at = found.sel(kind=kind, model="a").isel(point=i)
            se = np.sqrt(diff.size) * diff.std(ddof=1)
            size = np.sqrt(sum((x**2).sum() for x in error.values()))
            assert float(at["diff_at"]) == pytest.approx(diff.sum(), rel=1e-10)
            assert float(at["dse_at"]) == pytest.approx(se, rel=1e-10)
            assert float(at["mcse_diff_at"]) == pytest.approx(size, rel=1e-6)
            assert float(at["p_better_at"]) == pytest.approx(norm.cdf(diff.sum() / se), rel=1e-8)
            assert float(at["elpd_at"]) == pytest.approx(terms["a"].sum(), rel=1e-10)
            if kind == "joint":
                f = [np.exp(x.sum(-1)) for x in slots.values()]
                relative = sum((x.var((1, 2), ddof=1) / x.mean((1, 2)) ** 2).sum() for x in f)
                assert float(at["ess_diff_at"]) == pytest.approx(relative / size**2, rel=1e-6)
    assert found["ess_diff_at"].sel(model="b").isnull().all()


def test_models_of_other_lengths_are_compared_where_both_were_looked_at(draws):
    """One ended after half of the draws, and keeps its last values."""
    half = DRAWS // 2
    short, long = diagnosed(draws - 0.5), diagnosed(draws)
    short = short.sel(point=slice(half)).assign(n_draws=0 * short["n_draws"] + half)
    models = {"short": short.assign_attrs(model="short"), "long": long.assign_attrs(model="long")}
    found = results.compare(models, "d", "f", "long", "t").dataset.sel(kind="joint", model="short")
    assert found["point"].values.tolist() == list(range(BATCH, DRAWS + 1, BATCH))
    for i, n in enumerate(found["point"].values):
        own, other = (x["joint_elpd_at"].sum("fold") for x in (short, long))
        own = own.sel(point=min(n, half))
        assert float(found["diff_at"][i]) == pytest.approx(float(own - other.sel(point=n)))
    sparse = models | {"long": models["long"].isel(point=[1, -1])}
    again = results.compare(sparse, "d", "f", "long", "t").dataset
    assert again["point"].values.tolist() == [2 * BATCH, DRAWS]


@pytest.mark.parametrize("batch", [BATCH, DRAWS])
def test_superchains_are_judged_by_nested_rhat(draws, batch, monkeypatch):
    """Beside R-hat; alone where chains have a single batch."""
    monkeypatch.setattr("tests.synthetic.BATCH", batch)
    alone = batch == DRAWS
    draws[2, :2, :, 0] += 1.5
    made = sample(draws).assign_attrs(superchains=2)
    found = results.diagnose([made], FOLDS, UNITS, CHECKS, np.random.default_rng(1), "m")
    plain = diagnosed(draws)
    assert (found["rhat"] != plain["rhat"]).all() == alone
    nested = nested_rhat(log_sums([made], "joint"), 2)
    np.testing.assert_allclose(found["nested_rhat"], nested)
    assert float(found["rhat"][2]) > 1.1
    assert float(found["rhat_max"]) == pytest.approx(float(found["rhat"].max()), rel=1e-12)
    assert found.attrs["superchains"] == 2
    assert ("Nested R-hat" in str(found["verdict"].values[2])) == alone
    assert ("nested_rhat_max" in found) != alone
    if not alone:
        assert float(found["nested_rhat_max"]) == pytest.approx(nested.max())
        assert ", nested R-hat max 2.017 (reached by " in results.rhat_max_in_words(found)
    compared = results.compare({"m": found}, "d", "f", None, "t").dataset
    assert compared.attrs["rhat_is_nested"] == found.attrs["rhat_is_nested"] == alone
    np.testing.assert_allclose(found["rhat_at"][:, -1], found["rhat"], rtol=1e-12)


def test_slow_energies_and_rare_acceptance_are_flagged(draws):
    made = sample(draws)
    dims = ("fold", "chain", "batch")
    slow = {f"energy_{name}": (dims, x) for name, x in energy(seed=2, phi=0.97).items()}
    found = results.diagnose(
        [made.assign(slow)], FOLDS, UNITS, CHECKS, np.random.default_rng(1), "m"
    )
    # False alarm < 1e-4: the sd is a fifth of .07, or .05.
    assert (abs(found["efmi"] - 0.1) < 0.08).all()
    assert (abs(diagnosed(draws)["efmi"] - 2) < 0.3).all()
    assert all(words.startswith("E-FMI 0.") for words in found["verdict"].values)
    rare = made.assign(acceptance=0.4 * made["acceptance"])
    found = results.diagnose([rare], FOLDS, UNITS, CHECKS, np.random.default_rng(1), "m")
    low = "mean acceptance probability 0.36: "
    assert all(words.startswith(low) for words in found["verdict"].values)


def test_units_are_diagnosed_alike_few_at_a_time(draws, monkeypatch):
    """Up to the rounding of sums, and where a part of them is padding alone."""
    whole = diagnosed(draws)
    monkeypatch.setattr(reading, "GROUP_BYTES", 1)
    monkeypatch.setattr(reading, "SLOTS", 1)
    parts = [x.mean.shape[3] for _, x, _ in reading.slots(sample(draws))]
    assert parts == [1, 1]
    xr.testing.assert_allclose(diagnosed(draws), whole, rtol=1e-12)
    assert diagnosed(draws).attrs == whole.attrs
