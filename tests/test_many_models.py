"""Many models, few groups, overlapping and repeated test sets: what is known of differences."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import xarray as xr
from scipy.signal import lfilter
from scipy.special import ndtr

import pcv
from pcv import PcvError
from pcv.analysis import results
from pcv.analysis.bootstrap import LEVEL, bootstrap, tail_khat, weighted_mean_cdf
from pcv.analysis.comparison import Scores, compare
from pcv.analysis.results.frames import OF_REPEATS, by_group, frame, pairs
from pcv.analysis.results.notes import error_notes
from pcv.analysis.results.verdict import deciding, in_words
from pcv.analysis.selection import lead_of_best
from pcv.analysis.standard_errors import (
    LEAST_SEPARATE,
    degrees_of_freedom,
    error_of_sum,
    overlap_of,
    standard_error,
)
from pcv.analysis.stopping.rule import needs
from pcv.analysis.subsampling import Subsample
from pcv.analysis.weights import stacking, stacking_se
from pcv.api.comparisons import Comparisons
from tests.bounds import count_limits, sd_limits
from tests.synthetic import TEST, diagnosed


def scored(name, elpd, kind="joint", fold=None, **more):
    """Scores of a model: by default, a fold for each term."""
    fold = np.arange(len(elpd)) if fold is None else fold
    folds = [f"fold {k}" for k in range(fold.max() + 1)]
    return Scores(
        model=name,
        kind=kind,
        score="log",
        outcome="y",
        predictive="plain",
        data="d",
        folds="f",
        fold=folds,
        elpd=np.asarray(elpd, float),
        mcse=np.full(len(folds), 0.01),
        fold_of_term=fold,
        term=folds if kind == "joint" else [f"unit {i}" for i in range(len(elpd))],
        verdict="ok",
    )._replace(**more)


# Probabilities and intervals


def test_the_bootstrap_distribution_is_exact():
    """Of two terms it is uniform between them; of nine, as 20,000 draws have it."""
    for x in (-1.0, -0.4, 0.5, 1.9, 2.0):
        assert weighted_mean_cdf(np.array([-1.0, 2.0]), x) == pytest.approx((x + 1) / 3, abs=1e-9)
    rng = np.random.default_rng(1)
    terms = rng.standard_t(3, 9)
    means = rng.dirichlet(np.ones(9), 20_000) @ terms
    for x in np.quantile(means, [0.02, 0.3, 0.9]):
        p = weighted_mean_cdf(terms, x)
        low, high = count_limits(20_000, p)
        assert low <= (means <= x).sum() <= high
        assert not low <= (means + 0.5 <= x).sum() <= high


@pytest.mark.parametrize("groups", [8, 15, 30])
def test_intervals_from_few_groups_cover(groups):
    """By 500 data sets; the bootstrap as it is covers 81% with 8 groups."""
    rng = np.random.default_rng(groups)
    terms = rng.normal(0.3, 1, (500, groups))
    found = [bootstrap(d, groups - 1.0) for d in terms]
    ends, expected = np.array([x[1:] for x in found]), 0.3 * groups
    covered = ((ends[:, 0] <= expected) & (expected <= ends[:, 1])).sum()
    low, high = count_limits(500, 0.895)  # measured: .888 to .902
    assert low <= covered <= high
    assert all((x.low > 0) == (x.p_positive > (1 + LEVEL) / 2) for x in found)
    if groups == 8:
        plain = groups * np.quantile(
            terms @ rng.dirichlet(np.ones(groups), 2000).T, [0.05, 0.95], axis=1
        )
        assert ((plain[0] <= expected) & (expected <= plain[1])).sum() < low


def test_both_probabilities_agree_where_terms_are_many():
    rng = np.random.default_rng(1)
    for terms in rng.normal(0.02, 1, (20, 1000)):
        by_normal = ndtr(terms.sum() / standard_error(terms[None])[0])
        assert abs(bootstrap(terms, 999.0).p_positive - by_normal) < 0.01
    few = terms[:8] + 0.5
    assert abs(bootstrap(few, 7.0).p_positive - ndtr(few.sum() / standard_error(few[None])[0])) > (
        0.01
    )


def test_differences_with_outliers_are_noted():
    rng = np.random.default_rng(1)
    flat = scored("flat", np.zeros(200))
    for draw, noted in ((rng.standard_normal, False), (rng.standard_cauchy, True)):
        c = compare([scored("a", draw(200)), flat], "flat")
        assert (tail_khat(c.elpd_diff_terms[c.models.index("a")]) > 0.7) == noted
        assert any("a: k-hat of its differences" in line for line in error_notes(c)) == noted


def test_what_has_no_bootstrap_is_nan():
    for terms in (np.zeros(60), np.array([1.0]), np.array([1.0, np.nan, 2.0] * 20)):
        assert np.isnan([*bootstrap(terms, 8.0), tail_khat(terms)]).all()


def test_intervals_of_a_subsample_include_the_error_of_subsampling():
    rng = np.random.default_rng(1)
    terms, some = rng.normal(0.1, 1, 1000), np.arange(0, 1000, 20)
    chosen = Subsample(some, np.zeros(50, int), np.array([1000]))
    models = [scored(m, x[some], chosen=chosen) for m, x in (("a", terms), ("b", 0 * terms))]
    c = compare(models, "b")
    row = frame([c]).set_index("model").loc["a"]
    error = np.hypot(row["dse"], row["subsampling_dse"])
    assert row["subsampling_dse"] > 2 * row["dse"]
    assert row["p_better"] == pytest.approx(ndtr(row["elpd_diff"] / error))
    assert row["eti90_ub"] - row["elpd_diff"] > 1.645 * error
    # A difference above the SE, but below the root of both squared SEs, decides nothing.
    near = c._replace(
        elpd_diff=np.array([1.05, 0.0]),
        elpd=np.array([1.05, 0.0]),
        models=["a", "b"],
        dse=np.array([1.0, 0.0]),
        subsampling_dse=np.array([0.4, 0.0]),
        mcse_diff=np.zeros(2),
    )
    assert "cannot be told apart with so small a subsample" in in_words(near)
    assert "better than" in in_words(near._replace(subsampling_dse=np.array([0.2, 0.0])))


# Many models


def equal_models(rng, number=40, terms=100):
    return rng.normal(-1, 1, terms) + rng.normal(0, 0.3, (number, terms))


def test_the_best_of_equally_good_models_is_not_announced():
    """Of 300 data sets; against a named reference, most announce a best one without the guard."""
    rng = np.random.default_rng(1)
    announced, unguarded = np.zeros(2, int), 0
    for _ in range(300):
        models = [scored(f"m{m}", x) for m, x in enumerate(equal_models(rng))]
        for i, reference in enumerate((None, "m0")):
            c = compare(models, reference)
            announced[i] += "left-out folds better than" in in_words(c)
        unguarded += c.p_better[0] > 0.84
        assert lead_of_best(c).is_chance == ("no better than chance" in in_words(c))
    assert announced.max() <= 30  # measured: 1.5% and 4.5%
    assert unguarded > 150


def test_a_model_that_is_better_is_announced():
    terms = equal_models(np.random.default_rng(1))
    terms[7] += 0.3
    c = compare([scored(f"m{m}", x) for m, x in enumerate(terms)])
    lead = lead_of_best(c)
    assert not lead.is_chance
    assert in_words(c).startswith("'m7' predicts left-out folds better than")
    few = compare([scored(f"m{m}", x) for m, x in enumerate(terms[:11])])
    assert lead_of_best(few) is None


def test_pairs_are_differences_of_both():
    terms = equal_models(np.random.default_rng(1), 4, 30)
    models = [scored(name, x) for name, x in zip("abcd", terms)]
    rows = pairs(models)
    assert len(rows) == 6
    assert not rows.duplicated(["model", "other"]).any()
    for row in rows.itertuples():
        c = compare([m for m in models if m.model in (row.model, row.other)], row.other)
        assert c.models == [row.model, row.other]
        for name in ("elpd_diff", "dse", "mcse_diff", "p_better"):
            assert getattr(row, name) == pytest.approx(getattr(c, name)[0])
        assert row.eti90_lb < row.elpd_diff < row.eti90_ub


def test_the_error_of_stacking_weights_is_their_spread():
    """Over 100 data sets; the twin is that of the bootstrap of a quarter of the terms."""
    rng = np.random.default_rng(1)
    base = rng.normal(-1, 1, (100, 2, 400))
    weight = np.array([stacking(x)[0] for x in base])
    stated = np.sqrt(np.mean([stacking_se(x)[0] ** 2 for x in base[:20]]))
    twin = np.sqrt(np.mean([stacking_se(x[:, :100])[0] ** 2 for x in base[:20]]))
    low, high = sd_limits(100)
    assert 0.9 * low < weight.std(ddof=1) / stated < 1.1 * high  # the mean is known within 5%
    assert not 0.9 * low < weight.std(ddof=1) / twin < 1.1 * high
    assert np.isnan(stacking_se(np.array([[0.0, np.nan], [0.0, 0.0]]))).all()
    again = stacking_se(np.tile(base[0], 5), np.tile(np.arange(base.shape[2]), 5))
    np.testing.assert_allclose(again, stacking_se(base[0]), rtol=1e-3)


# Overlapping test sets


def windows(units, horizon):
    return np.arange(units - horizon + 1)[:, None] + np.arange(horizon)


def runs(units, horizon):
    test = windows(units, horizon)
    return overlap_of(test.ravel(), np.repeat(np.arange(len(test)), horizon))


@pytest.mark.parametrize(("horizon", "rho"), [(4, 0.5), (12, 0.8)])
def test_the_se_allows_for_the_memory_of_a_series(horizon, rho):
    """Over 2,000 series; the twin knows the shared units alone."""
    steps = np.sqrt(1 - rho**2) * np.random.default_rng(1).normal(size=(2000, 360))
    series = lfilter([1], [1, -rho], steps, axis=1)[:, 200:]
    sums = series[:, windows(160, horizon)].sum(axis=2)
    overlap, (low, high) = runs(160, horizon), sd_limits(2000)
    spread = sums.sum(axis=1).std(ddof=1)
    stated = error_of_sum(sums, np.arange(sums.shape[1]), overlap)
    known = standard_error(sums, overlap.of_folds)
    assert (stated >= known).all()
    # Measured: stated over true SE is .98 to 1.02 and .95; the mean of squares is known within 2%.
    assert 0.95 * low < spread / np.sqrt(np.mean(stated**2)) < 1.1 * high
    assert spread / np.sqrt(np.mean(known**2)) > 1.1 * high


def test_folds_that_are_hardly_separate_have_no_se_and_a_reason():
    overlap, rng = runs(20, 12), np.random.default_rng(1)
    assert LEAST_SEPARATE * (overlap.reach + 1) > 9
    c = compare([scored(name, rng.normal(size=9), overlap=overlap) for name in "ab"])
    assert np.isnan([*c.se, c.dse[1], c.p_better[1]]).all()
    assert any("No SE: each test set shares units with the" in line for line in error_notes(c))
    random = overlap_of(np.array([0, 3, 1, 2, 0, 2, 1, 4]), np.repeat(np.arange(4), 2))
    assert random.reach is None
    assert np.isfinite(error_of_sum(rng.normal(size=(1, 4)), np.arange(4), random)).all()


# Repeats


def repeated(units=12, k=4, repeats=3):
    folds = pcv.kfold(units, k, repeats=repeats, seed=1)
    fold, slot = np.nonzero(folds.test >= 0)
    return folds, fold, folds.test[fold, slot]


def test_repeated_folds_partition_the_units():
    folds, fold, unit = repeated()
    assert len(folds.id) == 12
    for part in np.split(folds.test, 3):
        assert np.sort(part[part >= 0]).tolist() == list(range(12))
    assert not any(np.array_equal(a, b) for a, b in pairwise(np.split(folds.test, 3)))
    overlap = overlap_of(unit, fold)
    assert (overlap.repeats, overlap.reach) == (3, None)
    assert overlap_of(unit[:-1], fold[:-1]).repeats == 1
    for arguments, said in (
        ({"repeats": 0}, "kfold: repeats is 0, but it must be at least 1"),
        ({"repeats": 2, "contiguous": True}, "repeats is 2, but all of them would be the same"),
    ):
        with pytest.raises(PcvError, match=said):
            pcv.kfold(12, 4, **arguments)


def test_repeats_are_averaged_and_the_se_is_over_units():
    """Units differ, repeats hardly do: as if the terms were all independent, it is 1.7 times too
    small."""
    _, fold, unit = repeated()
    rng = np.random.default_rng(1)
    of_unit = rng.normal(size=12)
    terms = of_unit[unit] + 0.1 * rng.normal(size=36)
    overlap = overlap_of(unit, fold)
    names = [f"unit {i}" for i in unit]
    more = {"kind": "pointwise", "fold": fold, "overlap": overlap, "term": names}
    models = [scored("a", terms, **more), scored("b", np.zeros(36), **more)]
    c = compare(models, "b")
    m = c.models.index("a")
    means = np.array([terms[unit == i].mean() for i in range(12)])
    assert c.elpd_diff[m] == pytest.approx(means.sum())
    assert c.dse[m] == pytest.approx(np.sqrt(12 * means.var(ddof=1)))
    assert c.dse[m] > 1.5 * np.sqrt(36 * terms.var(ddof=1)) / 3
    sums = terms.reshape(3, 12).sum(axis=1)
    assert c.repeat_sd_diff[m] == pytest.approx(sums.std(ddof=1))
    assert c.mcse_diff[m] == pytest.approx(np.sqrt(24) * 0.01 / 3)
    assert c.num_terms == 12
    assert c.df == 11
    rows = frame([c])
    assert set(OF_REPEATS) <= set(rows)
    assert any("means over 3 repeats" in line for line in error_notes(c))
    assert any("over repeats: a" in line for line in error_notes(c))
    alone = compare([scored("a", terms, **more)])
    assert f"elpd over repeats: {sums.std(ddof=1):.2f}" in error_notes(alone)[1]
    # Each of 12 folds may have the MCSE that makes the mean over repeats as precise as wanted.
    each = needs(c, 0.001, None).tolerance[m]
    assert each == pytest.approx(0.001 * c.dse[m] * 3 / np.sqrt(2 * 12))
    named = deciding(c)[0]
    largest = np.argsort(-np.abs(means))[:5]
    assert all(f"unit {i} " in named for i in largest)


def test_joint_scores_of_repeats():
    """Over 2,000 replications of independent units, of which each repeat has the same sum."""
    _, fold, unit = repeated(60, 10, 4)
    overlap = overlap_of(unit, fold)
    units = np.random.default_rng(1).normal(size=(2000, 60))
    sums = np.stack([np.bincount(fold, x[unit]) for x in units])
    low, high = sd_limits(2000)
    spread = (sums.sum(axis=1) / 4).std(ddof=1)
    stated = error_of_sum(sums, np.arange(40), overlap)
    assert 0.98 * low < spread / np.sqrt(np.mean(stated**2)) < 1.02 * high
    assert not 0.98 * low < spread / np.sqrt(np.mean(standard_error(sums / 4) ** 2)) < 1.02 * high
    assert degrees_of_freedom(40, overlap) == 9


# Groups


def test_differences_by_group_add_up():
    rng, group = np.random.default_rng(1), np.array(["n", "s", "n", "s", "w"] * 6)
    models = [scored(name, rng.normal(-1, 1, 30)) for name in "abc"]
    c = compare(models)
    rows = by_group(models, group, "county", c.reference)
    assert list(rows.columns[:3]) == ["county", "model", "n_terms"]
    assert rows["county"].tolist() == [x for x in "nsw" for _ in range(3)]
    total = rows.groupby("model")[["elpd", "elpd_diff"]].sum().loc[c.models]
    np.testing.assert_allclose(total["elpd"], c.elpd, rtol=0, atol=1e-9)
    np.testing.assert_allclose(total["elpd_diff"], c.elpd_diff, rtol=0, atol=1e-9)
    row = rows[(rows["county"] == "s") & (rows["model"] == c.models[1])].iloc[0]
    terms = c.elpd_diff_terms[1][group == "s"]
    assert row["dse"] == pytest.approx(np.sqrt(12 * terms.var(ddof=1)))
    assert row["mcse_diff"] == pytest.approx(np.sqrt(24) * 0.01)


def compared(joint):
    rng = np.random.default_rng(1)
    diagnostics = {}
    for m, name in enumerate("ab"):
        draws = 0.3 * rng.normal(size=(len(TEST), 4, 400, 2)) - m
        diagnostics[name] = diagnosed(draws).assign_attrs(model=name)
    found = results.compare(diagnostics, "d", "f", None, "t")
    columns = xr.Dataset({"half": ("unit", ["x", "x", "y", "y", "z"]), "odd": ("unit", range(5))})
    return Comparisons(found, joint, diagnostics, 5, TEST, columns)


def test_groups_are_columns_or_arrays():
    pointwise, joint = compared(False), compared(True)
    for c in (pointwise, joint):
        rows = c.by("half")
        assert rows["half"].tolist() == ["x", "x", "y", "y", "z", "z"]
        by_array = c.by(["x", "x", "y", "y", "z"]).rename(columns={"group": "half"})
        assert rows.equals(by_array)
        total = rows.groupby("model")["elpd_diff"].sum().loc[c.shown.models]
        np.testing.assert_allclose(total, c.frame["elpd_diff"], rtol=0, atol=1e-9)
    assert len(pointwise.by("odd")) == 10
    assert len(joint.pairs) == 1
    assert joint.pairs["elpd_diff"][0] == pytest.approx(-joint.frame["elpd_diff"].iloc[1])


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("hlaf", "by: the data: no column 'hlaf'; did you mean 'half'?"),
        ([1, 2], "by: 2 values, of 5 units; give one for each unit"),
        ("odd", "by: fold 'a' tests units of several groups of 'odd'; compare the pointwise"),
    ],
)
def test_groups_that_cannot_be_are_refused(column, said):
    with pytest.raises(PcvError) as error:
        compared(True).by(column)
    assert str(error.value).startswith(said)


def test_groups_need_columns():
    with pytest.raises(PcvError, match="no columns are kept of the data; give 'half' as an array"):
        replace(compared(True), columns=None).by("half")


def test_units_that_several_folds_test_are_named_once():
    overlap, fold = runs(23, 4), np.repeat(np.arange(20), 4)
    terms = np.where(overlap.unit == 7, 2.0, 0.1)
    more = {"kind": "pointwise", "fold": fold, "overlap": overlap}
    more["term"] = [f"t {i}" for i in overlap.unit]
    c = compare([scored("a", terms, **more), scored("b", 0 * terms, **more)])
    assert deciding(c)[0].count("t 7 ") == 1
    assert "t 7 (+8.0" in deciding(c)[0]


def test_the_folds_that_decide_are_named():
    differences = np.zeros(20)
    differences[[3, 5, 7, 11, 13]] = [9, -8, 7, 6, 5]
    differences += 0.01
    c = compare([scored("a", differences), scored("b", np.zeros(20))])
    assert deciding(c) == [
        "The 5 folds that decide most, 'a' minus 'b': fold 3 (+9.01), fold 5 (-7.99), fold 7 "
        "(+7.01), fold 11 (+6.01), fold 13 (+5.01); without them the difference would be 0.2."
    ]
    against_b = compare([scored("a", differences), scored("b", np.zeros(20))], "b")
    assert deciding(against_b) == deciding(c)
    assert deciding(compare([scored("a", differences[:9]), scored("b", np.zeros(9))])) == []
