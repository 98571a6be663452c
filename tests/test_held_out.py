"""One test set: a single fold, and new data."""

import numpy as np
import numpyro
import numpyro.distributions as dist

import pcv
from pcv.folds.exchangeable import from_column
from pcv.folds.splitters import from_object
from tests.folds import refusal

NO_SE = "No SE: one fold shows no spread of its joint score; the pointwise score has an SE over"


def line(x, y, scale):
    a = numpyro.sample("a", dist.Normal(0, 2))
    b = numpyro.sample("b", dist.Normal(0, scale))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("i", len(y)):
        numpyro.sample("y", dist.Normal(a + b * x, sigma), obs=y)


def points(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return {"x": x, "y": 1 + 2 * x + rng.normal(size=n)}


# One fold


def test_one_fold_is_a_comparison_that_says_what_is_unknown():
    """Two models of 40 points, of which the last season's 12 are predicted."""
    season = {"season": np.repeat([2023, 2024], [28, 12])}
    models = {
        name: pcv.from_numpyro(line, {**points(40, 1), "scale": scale}, columns=season)
        for name, scale in (("wide", 3.0), ("narrow", 0.1))
    }
    last = {"scheme": "column", "column": "season", "test": 2024}
    options = {"chains": 4, "draws": 50, "scores": ["log", "crps"], "progress": False}
    split = pcv.cross_validate(models, last, seed=1, **options)
    joint, pointwise = pcv.compare(split), pcv.compare(split, joint=False)
    assert NO_SE in repr(split["wide"])
    assert NO_SE in repr(joint)
    assert "SE unknown" in repr(joint)
    assert "one fold does not show how certain" in repr(joint)
    assert np.isnan(joint.frame["se"]).all()
    assert np.isnan(joint.frame["weight"]).all()
    assert "No SE" not in repr(pointwise)
    assert (pointwise.frame["se"] > 0).all()
    assert 0 < pointwise.frame["p_better"].iloc[1] < 0.5
    assert pointwise.frame.index[0] == "wide"
    assert np.isnan(split["wide"].to_arviz().se)
    assert split["wide"].score("crps")["se"] > 0
    table = split["wide"].table()
    assert len(table) == 12
    assert set(table["fold"]) == {"season 2024"}
    assert table["pit"].between(0, 1).all()


def test_one_split_of_any_kind_is_a_fold():
    pair = [(np.arange(28), np.arange(28, 40))]

    class Once:
        def split(self, X, y=None, groups=None):
            return iter(pair)

    for folds in (pair, Once(), pcv.leave_future_out(40, 28, 12)):
        assert from_object(folds, 40, None).test.tolist() == [list(range(28, 40))]


def test_a_value_that_no_unit_has_is_no_test_set():
    assert refusal(from_column, np.array(["train", "test"]), "part", "tset") == (
        "column 'part': no unit has the value 'tset' (test); did you mean 'test'?"
    )
    flags = np.array([True, False, False])
    assert from_column(flags, "held_out", True).test.tolist() == [[0]]
