"""Comparisons against closed forms, against ArviZ, and everything that is refused."""

import itertools
import re

import arviz_stats
import numpy as np
import pytest
import xarray as xr
from arviz_stats.utils import ELPDData
from scipy.stats import norm

from pcv import PcvError
from pcv.analysis.comparison import Scores, compare, overlap_inflation, standard_error
from pcv.analysis.results.frames import COLUMNS, frame
from pcv.analysis.results.wording import (
    WIDTH,
    caveats,
    in_words,
    scores_notes,
    scores_table,
    table,
)
from pcv.analysis.weights import stacking
from tests.bounds import sd_limits

FOLDS = ["rat 1", "rat 2", "rat 3", "rat 4"]


def joint(model="a", elpd=(-10.0, -12.0, -11.0, -15.0), mcse=0.1, verdict="ok"):
    """Joint scores of as many rats as there are numbers."""
    names = FOLDS[: len(elpd)]
    return Scores(
        model=model,
        kind="joint",
        score="log",
        outcome="weight_g",
        predictive="marginal",
        data="d1",
        folds="f1",
        fold=names,
        elpd=np.array(elpd),
        mcse=np.full(len(elpd), mcse),
        fold_of_term=np.arange(len(elpd)),
        term=names,
        verdict=verdict,
    )


def pointwise(model, elpd, mcse=0.1):
    """Pointwise scores of a (rat, day) table."""
    elpd = np.array(elpd)
    rats, days = elpd.shape
    return joint(model)._replace(
        kind="pointwise",
        fold=FOLDS[:rats],
        elpd=elpd.ravel(),
        mcse=np.full(rats, mcse),
        fold_of_term=np.repeat(np.arange(rats), days),
        term=[f"{rat}, day {day + 1}" for rat in FOLDS[:rats] for day in range(days)],
    )


WINDOWS = np.arange(57)[:, None] + np.arange(4)  # test sets of 60 units, as of a horizon of 4


@pytest.mark.parametrize("kind", ["joint", "pointwise"])
def test_the_se_allows_for_overlap(kind):
    """Over 2,000 replications of independent units; as if terms were apart, it is half as large."""
    fold = np.repeat(np.arange(57), 4)
    term = fold if kind == "joint" else np.arange(fold.size)
    inflation = overlap_inflation(WINDOWS.ravel(), term)
    tested = np.bincount(WINDOWS.ravel())
    expected = (tested**2).sum() / (4 if kind == "joint" else 1) / len(np.unique(term))
    assert inflation == pytest.approx(expected)
    units = np.random.default_rng(1).normal(size=(2000, 60))
    terms = units[:, WINDOWS].sum(2) if kind == "joint" else units[:, WINDOWS].reshape(2000, -1)
    low, high = sd_limits(2000)
    spread = terms.sum(1).std(ddof=1)
    for ratio, allowed in (
        (spread / np.sqrt(np.mean(standard_error(terms, inflation) ** 2)), True),
        (spread / np.sqrt(np.mean(standard_error(terms) ** 2)), False),
    ):
        # The mean of squares is known within .5%.
        assert (0.98 * low < ratio < 1.02 * high) == allowed
    same = overlap_inflation(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))
    assert np.isnan(standard_error(np.array([[1.0, 1.0]]), same)).all()


def of(comparison, field, model):
    return getattr(comparison, field)[comparison.models.index(model)]


# Numbers


def test_two_models_in_closed_form():
    best, worse = joint("best"), joint("worse", (-12.0, -12.0, -14.0, -18.0), mcse=0.2)
    c = compare([worse, best])
    assert c.models == ["best", "worse"]
    assert c.rank.tolist() == [0, 1]
    assert c.reference == "best"
    assert c.elpd.tolist() == [-48, -56]
    assert c.elpd_diff.tolist() == [0, -8]
    assert c.elpd_diff_terms.tolist() == [[0, 0, 0, 0], [-2, 0, -3, -3]]
    # Differences −2, 0, −3, −3 about −2: squares 0, 4, 1, 1; variance 6/3 = 2; SE √(4·2).
    assert c.dse == pytest.approx([0, np.sqrt(8)])
    assert c.dse_folds == pytest.approx(c.dse)
    assert c.p_better[1] == pytest.approx(norm.cdf(-8 / np.sqrt(8)))
    assert np.isnan(c.p_better[0])
    # Elpds −10, −12, −11, −15 about −12: squares 4, 0, 1, 9; variance 14/3.
    assert c.se[0] == pytest.approx(np.sqrt(4 * 14 / 3))
    assert c.mcse == pytest.approx([np.sqrt(4 * 0.01), np.sqrt(4 * 0.04)])
    assert c.mcse_diff == pytest.approx([0, np.sqrt(4 * 0.01 + 4 * 0.04)])
    assert c.n_folds == 4
    assert c.verdict == ["ok", "ok"]


def test_three_models_and_a_named_reference():
    scores = [
        joint(name, np.array([-10.0, -12, -11, -15]) * x) for name, x in zip("abc", (1, 2, 3))
    ]
    against_best, against_b = compare(scores), compare(scores, reference="b")
    assert against_b.models == against_best.models == ["a", "b", "c"]
    assert against_b.reference == "b"
    assert against_best.elpd_diff.tolist() == [0, -48, -96]
    assert against_b.elpd_diff.tolist() == [48, 0, -48]
    assert against_b.dse == pytest.approx(against_b.se[0] * np.array([1, 0, 1]))
    assert against_b.p_better[0] == pytest.approx(1 - against_b.p_better[2])
    assert np.isnan(against_b.p_better[1])
    assert against_b.p_better[0] > 0.99
    assert against_b.mcse_diff == pytest.approx(np.sqrt(0.08) * np.array([1, 0, 1]))
    for field in ("elpd", "se", "mcse"):
        np.testing.assert_array_equal(getattr(against_b, field), getattr(against_best, field))


def test_pointwise_se_over_units_and_over_folds():
    # Units of one rat differ alike: over units the SE is too small by about √days.
    a = pointwise("a", [[-1.0, -1.0, -1.0], [-2.0, -2.0, -2.0], [-3.0, -3.0, -3.0]])
    b = pointwise("b", [[-2.0, -2.0, -2.0], [-2.0, -2.0, -2.0], [-5.0, -5.0, -5.0]])
    c = compare([a, b])
    differences = -np.repeat([1.0, 0.0, 2.0], 3)
    assert c.elpd_diff_terms[1].tolist() == differences.tolist()
    assert c.elpd_diff_folds[1].tolist() == [-3, 0, -6]
    assert c.dse[1] == pytest.approx(np.sqrt(9 * differences.var(ddof=1)))
    assert c.dse_folds[1] == pytest.approx(np.sqrt(3 * 9))
    assert c.mcse_diff[1] == pytest.approx(np.sqrt(6 * 0.01))
    assert c.n_folds == 3


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[1:24:5])
def test_terms_are_aligned_by_name(order):
    rng = np.random.default_rng(1)
    a, b = (pointwise(name, rng.normal(size=(4, 3))) for name in "ab")
    folds = np.array(order)
    terms = rng.permutation(12)
    place = np.argsort(folds)
    shuffled = b._replace(
        fold=[FOLDS[k] for k in folds],
        mcse=b.mcse[folds],
        elpd=b.elpd[terms],
        term=[b.term[i] for i in terms],
        fold_of_term=place[b.fold_of_term[terms]],
    )
    c, expected = compare([a, shuffled]), compare([a, b])
    for field in ("elpd", "elpd_diff", "dse", "dse_folds", "mcse_diff", "elpd_diff_folds"):
        np.testing.assert_allclose(getattr(c, field), getattr(expected, field), rtol=1e-12)
    assert c.term == a.term
    unaligned = shuffled._replace(fold=a.fold, term=a.term, fold_of_term=a.fold_of_term)
    assert np.abs(compare([a, unaligned]).elpd_diff_folds - expected.elpd_diff_folds).max() > 1e-3


def test_a_unit_that_two_folds_leave_out():
    a = joint("a")._replace(kind="pointwise", term=["u", "u", "v", "v"])
    b = joint("b", (-9.0, -12.0, -11.0, -15.0))._replace(
        kind="pointwise", term=["u", "u", "v", "v"]
    )
    assert compare([a, b]).elpd_diff_terms.tolist() == [[0, 0, 0, 0], [-1, 0, 0, 0]]


def test_against_arviz():
    rng = np.random.default_rng(1)
    n = 60
    base = rng.normal(-3, 1, (4, n // 4))
    terms = {name: base + rng.normal(m, 0.5, base.shape) for name, m in zip("abc", (0, -0.1, -0.5))}
    theirs = arviz_stats.compare(
        {
            name: ELPDData(
                elpd=x.sum(),
                se=np.sqrt(n * x.var()),
                p=np.nan,
                n_samples=1000,
                n_data_points=n,
                scale="log",
                warning=False,
                good_k=0.7,
                elpd_i=xr.DataArray(x.ravel(), dims="unit"),
            )
            for name, x in terms.items()
        },
        reference="b",
        round_to="none",
    )
    ours = compare([pointwise(name, x) for name, x in terms.items()], reference="b")
    assert ours.models == list(theirs.index)
    assert ours.rank.tolist() == theirs["rank"].tolist()
    np.testing.assert_allclose(ours.elpd, theirs["elpd"], rtol=1e-12)
    np.testing.assert_allclose(ours.elpd_diff, theirs["elpd_diff"], atol=1e-12)
    divisor = np.sqrt(n / (n - 1))  # ArviZ divides the variance by n
    np.testing.assert_allclose(ours.se, theirs["se"] * divisor, rtol=1e-12)
    np.testing.assert_allclose(ours.dse, theirs["dse"] * divisor, rtol=1e-12)
    np.testing.assert_allclose(
        norm.ppf(ours.p_better), norm.ppf(theirs["p_better"]) / divisor, rtol=1e-6
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_se_is_calibrated(seed):
    # Over 1,000 data sets of 50 folds; the twin leaves out the number of folds. False alarm < 1e-4:
    # the sd is 1.02, known within 2.2%.
    terms = np.random.default_rng(seed).normal(-0.2, 1, (1000, 50))
    z = (terms.sum(axis=1) + 0.2 * 50) / standard_error(terms)
    assert 0.8 < z.std() < 1.2
    twin = (terms.sum(axis=1) + 0.2 * 50) / terms.std(axis=1, ddof=1)
    assert twin.std() > 1.2


# Edges


def test_one_model_alone():
    c = compare([joint("only")])
    assert c.models == [c.reference] == ["only"]
    assert [c.elpd_diff[0], c.dse[0], c.mcse_diff[0]] == [0, 0, 0]
    assert np.isnan(c.p_better[0])
    assert c.se[0] > 0
    assert in_words(c) == "There is no model to compare 'only' with. No fold is flagged."


def test_one_fold_has_no_standard_error():
    c = compare([joint("a", [-10.0]), joint("b", [-12.0])])
    assert c.elpd_diff.tolist() == [0, -2]
    assert np.isnan([*c.se, c.dse[1], c.dse_folds[1], c.p_better[1]]).all()
    assert c.mcse_diff[1] == pytest.approx(np.sqrt(0.02))
    assert c.verdict == ["ok", "ok"]
    assert "No SE: one fold shows no spread of its joint score; the pointwise score" in table(c)
    assert np.isnan(stacking(c.elpd_diff_terms)).all()
    assert in_words(c) == (
        "'a' predicts better than 'b' (by 2.0, SE unknown, MCSE 0.14), but one fold does not "
        "show how certain that is. No fold is flagged."
    )


def test_one_fold_of_several_units_has_no_standard_error_over_folds():
    c = compare([pointwise("a", [[-1.0, -2.0]]), pointwise("b", [[-2.0, -2.0]])])
    assert c.dse[1] == pytest.approx(np.sqrt(2 * 0.5))
    assert np.isnan(c.dse_folds[1])
    assert c.verdict == ["ok", "ok"]


@pytest.mark.parametrize("lost", [np.nan, -np.inf])
def test_non_finite_terms_are_kept_and_named(lost):
    broken = joint("broken", (-1.0, lost, -1.0, -1.0), verdict="1 of 4 folds is flagged.")
    c = compare([broken, joint("fine")])
    assert c.models == ["fine", "broken"]
    assert not np.isfinite(c.elpd_diff[1])
    assert not np.isfinite(c.p_better[1]) or c.p_better[1] == 0
    assert c.verdict == ["ok", f"1 of 4 folds is flagged. elpd of rat 2 is {lost} (1 not finite)."]
    assert np.isfinite(c.se[0])
    assert "broken: 1 of 4 folds is flagged." in table(c)


def test_equal_models_say_nothing():
    c = compare([joint("a"), joint("b")])
    assert c.models == ["a", "b"]
    assert c.elpd_diff.tolist() == c.dse.tolist() == [0, 0]
    assert np.isnan(c.p_better).all()
    assert "inf" not in table(c)
    assert "nan" not in table(c)
    assert not scores_notes([c])


# Refusals


def message(*scores, reference=None):
    with pytest.raises(PcvError) as error:
        compare(list(scores), reference)
    return str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("kind", "pointwise", "compare joint with joint and pointwise with pointwise scores"),
        ("score", "crps", "compare one score at a time"),
        ("outcome", "log(weight_g)", "let both models score the same variable on the same scale"),
        ("predictive", "plain", "set predictive: plain, or give each model a `marginal`"),
        ("data", "d2", "rerun both models on the same data"),
        ("folds", "f2", "rerun both models on the same folds"),
    ],
)
def test_refuses_what_differs(field, value, remedy):
    a, b, c = joint("a"), joint("b"), joint("c")._replace(**{field: value})
    expected = (
        f"cannot compare 'a' with 'c': different {field} ({getattr(a, field)}, {value}); {remedy}"
    )
    assert message(a, b, c) == expected


def test_refuses_missing_terms():
    a = joint("a")
    fewer = joint("b", (-1.0, -1.0, -1.0))
    expected = "'b' has no score of fold 'rat 4' (1 missing); rerun both on the same folds"
    assert expected in message(a, fewer)
    assert expected in message(fewer, a)
    moved = pointwise("b", np.zeros((4, 3)))
    moved = moved._replace(fold_of_term=np.array([0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3]))
    assert message(pointwise("a", np.zeros((4, 3))), moved) == (
        "cannot compare 'a' with 'b': 'a' has no score of unit 'rat 1, day 3' in fold 'rat 2'"
        " (1 missing); rerun both on the same folds"
    )


def test_refuses_terms_of_one_name():
    twice = joint("b")._replace(
        term=["rat 1", "rat 2", "rat 2", "rat 4"], fold_of_term=[0, 1, 1, 3]
    )
    assert message(twice) == "scores of 'b': fold 'rat 2' occurs more than once"


def test_refuses_models_of_one_name():
    assert message(joint("a"), joint("b"), joint("a")) == (
        "compare: two models are named 'a'; rename one"
    )


def test_refuses_an_unknown_reference():
    scores = joint("slopes"), joint("common")
    assert message(*scores, reference="commn") == (
        "compare.reference: no model 'commn'; did you mean 'common'?"
    )
    assert message(*scores, reference="zzz") == (
        "compare.reference: no model 'zzz'; known: slopes, common"
    )


def test_refuses_nothing_at_all():
    assert message() == "compare: no models"


# Printing


def test_a_model_alone_is_printed_without_differences():
    alone = compare([joint("only")])
    assert table(alone).splitlines() == [
        "Joint log score of weight_g, marginal predictive: 4 folds",
        "       elpd   se  mcse",
        "only  -48.0  4.3  0.20",
    ]
    assert "diff" not in scores_table([alone._replace(score="crps")])


def test_other_scores_say_what_differences_are_from():
    others = [
        compare([joint("a"), joint("b")], reference=name)._replace(score="crps") for name in "ab"
    ]
    heading = "Other scores of weight_g, higher is better: errors and distances are negative; "
    assert scores_table(others[:1]).splitlines()[0] == heading + "differences from a"
    assert (
        scores_table(others).splitlines()[0]
        == heading + "differences from the model without p_better"
    )


def test_a_difference_that_is_not_0_is_not_printed_as_0():
    near = joint("b", (-10.04, -12.0, -11.0, -15.0), mcse=0.5)
    printed = table(compare([joint("a", mcse=0.5), near]))
    assert "-0.04" in printed
    assert "-0.0 " not in printed


def test_frame_has_the_columns_of_the_csv():
    rng = np.random.default_rng(1)
    units = [pointwise(name, rng.normal(-3, 1, (4, 3))) for name in "ab"]
    folds = [joint("a"), joint("b", (-9.0, -10.0, -11.0, -16.0), verdict="flagged")]
    by_unit, by_fold = compare(units), compare(folds)
    rows = frame([by_unit, by_fold])
    assert tuple(rows.columns) == COLUMNS
    assert rows["kind"].tolist() == ["joint", "joint", "pointwise", "pointwise"]
    assert rows["model"].tolist() == by_fold.models + by_unit.models
    assert rows["rank"].tolist() == [0, 1, 0, 1]
    assert rows["verdict"].tolist()[:2] == ["flagged", "ok"]
    assert (rows["n_folds"] == 4).all()
    assert (rows["predictive"] == "marginal").all()
    assert rows["diag_diff"].tolist() == ["", "N < 100"] * 2
    assert not rows[["mcse_is_bound", "mcse_diff_is_bound"]].any(axis=None)
    for name in ("elpd_diff", "dse", "mcse_diff", "p_better", "elpd", "se", "mcse"):
        expected = [*getattr(by_fold, name), *getattr(by_unit, name)]
        np.testing.assert_array_equal(rows[name], expected)


def test_table_as_printed():
    scores = [
        joint("slopes", (-10.04, -12.0, -11.0, -15.0), mcse=0.02),
        joint(
            "common", (-12.0, -12.0, -14.0, -18.0), mcse=0.04, verdict="1 of 4 folds is flagged."
        ),
    ]
    assert table(compare(scores)).splitlines() == [
        "Joint log score of weight_g, marginal predictive: 4 folds; differences from slopes",
        "        rank elpd_diff  dse mcse_diff p_better weight diag_diff    elpd   se   mcse",
        "slopes     0       0.0  0.0       0.0            1.00            -48.04  4.3  0.040",
        "common     1      -8.0  2.8     0.089     0.00   0.00   N < 100   -56.0  5.7  0.080",
        "common: 1 of 4 folds is flagged.",
    ]


def test_an_mcse_that_is_a_lower_bound_is_printed_so():
    heavy = joint("b", (-11.0, -12.5, -12.0, -16.0))._replace(mcse_is_bound=np.arange(4) == 2)
    c = compare([joint("a"), heavy])
    rows = [line.split() for line in table(c).splitlines()[2:4]]
    assert rows[0][-1] == "0.20"
    assert rows[1][-2:] == [">", "0.20"]
    assert rows[1][4:6] == [">", "0.28"]
    assert "b: the MCSE of its difference is at least 57% of the SE" in table(c)
    assert "MCSE > 0.28" in in_words(c)
    assert "The MCSE is a lower bound" in in_words(c)
    other = compare([joint("a")._replace(mcse_is_bound=True), joint("b", (-11, -12.5, -12, -16))])
    assert other.mcse_diff_is_bound.tolist() == [False, True]
    assert "> 0.28" in scores_table([other._replace(score="crps")])


def test_predictives_that_differ_are_named():
    plain = joint("b")._replace(predictive="either")
    assert "weight_g, marginal (a) and plain (b) predictive: 4" in table(
        compare([joint("a"), plain])
    )
    assert "weight_g, plain predictive: 4" in table(compare([plain]))


def test_prose_has_lines_of_bounded_length():
    words = "30 of 30 folds are flagged: " + ", ".join(f"rat {k} (ESS {k})" for k in range(90))
    printed = table(compare([joint("a"), joint("b", (-9.0, -9.0, -9.0, -9.0), verdict=words)]))
    assert max(map(len, printed.splitlines())) <= WIDTH
    assert " ".join(line.strip() for line in printed.splitlines()[4:]).endswith(words)


def test_a_fold_that_decides_is_named():
    def said(differences):
        names = [f"rat {k}" for k in range(len(differences))]
        best = joint("a")._replace(fold=names, term=names, fold_of_term=np.arange(len(names)))
        size = np.full(len(names), 0.01)
        a = best._replace(elpd=np.array(differences), mcse=size)
        return in_words(compare([a, a._replace(model="b", elpd=np.zeros(len(names)))]))

    even = np.tile([0.5, 1.5], 10)
    one = np.append(np.tile([-0.4, 0.5], 10), 8.0)
    assert "'a' predicts left-out folds better than 'b'" in said(even)
    assert "a rough figure from 20 folds" in said(even)
    assert "decides" not in said(even)
    assert "'a' predicts left-out folds better than 'b'" in said(one)
    assert "One fold decides that: without 'rat 20' the lead would be 1.0." in said(one)
    assert (
        said(one).replace("'a' predicts", "'b' predicts").split(" than")[0]
        == said(-one).split(" than")[0]
    )


def test_caveats_name_all_models_that_they_are_of():
    c = compare(
        [
            joint("slopes", (-10.0, -12.0, -11.0, -15.0), mcse=0.02),
            joint("common", (-12.0, -12.0, -14.0, -18.0), mcse=0.9),
            joint("flat", (-22.0, -17.0, -24.0, -18.0), mcse=0.02),
        ]
    )
    assert caveats(c) == [
        "common, flat: Pr is a rough figure, from fewer than 100 folds.",
        "common: the MCSE of its difference is 64% of the SE: more draws would shrink it.",
    ]


def test_table_of_pointwise_scores_says_units_and_cautions():
    rng = np.random.default_rng(1)
    terms = rng.normal(-3, 1, (4, 30))
    c = compare([pointwise("a", terms), pointwise("b", terms - 0.01)], reference="b")
    text = table(c)
    assert text.startswith("Pointwise log score of weight_g, marginal predictive: 120 units in 4 ")
    assert "differences from b" in text.splitlines()[0]
    assert "|elpd_diff| < 4" in text
    assert "N < 100" not in text
    far = compare([pointwise("a", terms), pointwise("b", terms - 1)])
    assert "<" not in table(far)


def test_in_words_of_models_that_cannot_be_told_apart():
    assert in_words(compare([joint("a"), joint("b")])).startswith(
        "'a' and 'b' have the same score in every fold. No fold"
    )
    lost = compare([joint("a"), joint("b", (-1.0, -np.inf, -1.0, -1.0))])
    assert in_words(lost).startswith("'a' and 'b' cannot be compared: an elpd is not finite.")


@pytest.mark.parametrize("error", [0.0, np.nan])
def test_unknown_errors_do_not_round_numbers_away(error):
    a, b = (
        joint(m, x)._replace(mcse=np.full(4, error))
        for m, x in (("a", (-1.13, -2.0, -3.0, -4.0)), ("b", (-2.0, -3.5, -4.25, -6.0)))
    )
    printed = table(compare([a, b]))
    assert "-10.1" in printed
    assert "-5.6" in printed


def test_differences_that_more_draws_would_settle():
    terms = (-10.5, -12.0, -11.0, -15.0)
    for mcse, said in [(0.01, False), (0.03, True)]:
        models = [
            joint(m, x)._replace(mcse=np.full(4, mcse))
            for m, x in (("a", terms), ("b", (-11.0, -12.5, -12.0, -16.0)))
        ]
        c = compare(models)
        words = f"b: the MCSE of its difference is {c.mcse_diff[1] / c.dse[1]:.0%} of the SE: more"
        assert (c.mcse_diff[1] > 0.1 * c.dse[1]) == said
        assert (words in table(c)) == said


def test_in_words_of_a_difference_that_may_be_monte_carlo_error():
    models = [joint("a"), joint("b", (-10.5, -12.0, -11.0, -15.0))]
    near = [m._replace(mcse=np.full(4, 0.1)) for m in models]
    assert in_words(compare(near)).startswith(
        "'a' and 'b' cannot be told apart with so few draws (by 0.5, SE 0.50, MCSE 0.28): the Monte"
        " Carlo error is too large to distinguish their difference from 0. No fold"
    )
    far = [m._replace(mcse=np.full(4, 0.08)) for m in models]
    assert in_words(compare(far)).startswith("'a' predicts left-out folds better than 'b'")


def test_in_words_of_a_monte_carlo_error_above_half_of_the_standard_error():
    """A difference of 2.5 MCSEs may be of one model with itself, as its SE is noise too."""
    models = [joint("a"), joint("b", (-10.5, -12.1, -11.1, -15.0))]
    for mcse, start in (
        (0.1, "'a' and 'b' cannot be told apart with so few draws (by 0.7, SE 0.44, MCSE 0.28)"),
        (0.07, "'a' predicts left-out folds better than 'b'"),
    ):
        scores = [m._replace(mcse=np.full(4, mcse)) for m in models]
        assert in_words(compare(scores)).startswith(start)


def test_in_words_of_a_difference_that_is_small_against_its_standard_error():
    models = [joint("a"), joint("b", (-9.0, -13.4, -10.0, -15.8))]
    for mcse in (0.01, 0.1):  # within two MCSEs of 0 or not: more draws would not tell
        close = compare([m._replace(mcse=np.full(4, mcse)) for m in models])
        assert (close.mcse_diff[1] * 2 > 0.2) == (mcse == 0.1)
        assert re.match(
            r"The data do not tell 'a' and 'b' apart: their difference is small compared with its "
            r"standard error \(by 0.20?, SE 2.5, MCSE 0.[0-9]+\)\. 'a' predicts left-out folds "
            r"better with probability 53%, a rough figure from 4 folds. No fold is flagged.",
            in_words(close),
        )


def test_in_words_names_the_better_model():
    better = joint("better")._replace(mcse=np.full(4, 0.05))
    worse = joint("worse", (-10.5, -12.0, -11.0, -15.0), verdict="1 of 4 folds is flagged.")
    worse = worse._replace(mcse=np.full(4, 0.05))
    third = joint("third", (-20.0, -21.0, -23.0, -25.0))
    words = in_words(compare([worse, better]))
    assert words == (
        "'better' predicts left-out folds better than 'worse', with probability 84%, a rough"
        " figure from 4 folds (by 0.5, SE 0.50, MCSE 0.14)."
        " Caution: the estimates of 'worse' are flagged, see the table."
    )
    assert in_words(compare([worse, better], reference="worse")) == words
    for reference in (None, "better"):
        c = compare([third, worse, better], reference)
        assert in_words(c).startswith("'better' predicts left-out folds better than 'worse'")
    against_third = in_words(compare([third, worse, better], reference="third"))
    assert against_third.startswith("'better' predicts left-out folds better than 'third', with")
    assert "over 99%" in against_third
