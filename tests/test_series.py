"""The mean absolute scaled error: its scale, the folds it takes, and a call from Python."""

import itertools
import re

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import pcv
from pcv.base.errors import PcvError
from pcv.folds.base import Folds, train_mask
from pcv.models import scores
from pcv.models.model import Fold, Target
from pcv.models.scores.series import mase, naive_error, no_order
from tests.test_scores import MODEL

N = 24
Y = np.cumsum(np.random.default_rng(1).normal(size=N))
TARGET = Target(None, None, None, observed=lambda fold: jnp.asarray(Y)[fold.test])
IN_ORDER = {
    "leave-future-out": pcv.leave_future_out(N, 10, 2),
    "window": pcv.leave_future_out(N, 10, 3, step=2, window=5),
    "blocks": pcv.block(N, 5),
    "h-block": pcv.h_block(N, 2),
    "hv-block": pcv.hv_block(N, 1, 2, skip=3),
    "no gap": pcv.hv_block(N, 2, 0),
}
SERIES = np.repeat(["a", "b", "c"], 8)
PANEL = pcv.leave_future_out(N, 5, by=SERIES)
WITHOUT_ORDER = {
    "leave-one-out": pcv.leave_one_out(N),
    "random": pcv.kfold(N, 4),
    "groups": pcv.leave_one_group_out(SERIES),
    "contiguous, like groups": pcv.kfold(N, 4, contiguous=True),
}


def by_hand(train: np.ndarray, series: np.ndarray, of: int) -> float:
    """Mean absolute step between units of a series that follow each other and train."""
    units = np.flatnonzero(series == series[of])
    pairs = [(i, j) for i, j in itertools.pairwise(units) if train[i] and train[j]]
    return float(np.mean([abs(Y[j] - Y[i]) for i, j in pairs]))


@pytest.mark.parametrize(
    ("folds", "series"),
    [*((folds, np.zeros(N, int)) for folds in IN_ORDER.values()), (PANEL, np.repeat([0, 1, 2], 8))],
    ids=[*IN_ORDER, "panel"],
)
def test_the_scale_is_the_naive_error_in_the_training_data_of_the_series(folds: Folds, series):
    for train, test in zip(train_mask(folds, N), folds.test):
        found = naive_error(TARGET, Fold(jnp.asarray(train), jnp.asarray(test)), series)
        exact = [by_hand(train, series, i) for i in test if i >= 0]
        np.testing.assert_allclose(found[: len(exact)], exact, rtol=1e-5)


def test_series_whose_units_alternate():
    series = np.tile([0, 1, 2], 8)
    fold = Fold(jnp.arange(N) < 20, jnp.array([20, 21]))
    exact = [by_hand(np.arange(N) < 20, series, i) for i in (20, 21)]
    np.testing.assert_allclose(naive_error(TARGET, fold, series), exact, rtol=1e-5)
    as_one = naive_error(TARGET, fold, np.zeros(N, int))
    assert (np.abs(as_one / np.array(exact) - 1) > 0.05).all()


@pytest.mark.parametrize("folds", IN_ORDER.values(), ids=IN_ORDER)
def test_folds_of_a_series_are_accepted(folds):
    assert no_order(folds) == ""


@pytest.mark.parametrize("folds", WITHOUT_ORDER.values(), ids=WITHOUT_ORDER)
def test_folds_without_an_order_are_refused(folds):
    assert no_order(folds).startswith("it needs the units of a series, predicted in their order")


@pytest.mark.parametrize("step", [1, 3])
def test_folds_of_several_series_need_their_column(step):
    folds = pcv.leave_future_out(N, 5, step=step, by=SERIES)
    assert "name the column that tells series apart" in no_order(folds)
    score = mase(SERIES)
    assert score[0] is mase(SERIES.copy())[0]  # so that its program is found again
    scores.check(score, MODEL_OF_SERIES, "m", {"y": Y}, N, "plain", 2, folds)


MODEL_OF_SERIES = MODEL._replace(
    log_lik=lambda params, data: dist.Normal(params["alpha"], 1.0).log_prob(data["y"]),
    predict=None,
    moments=lambda params, data: (jnp.full(N, params["alpha"]), jnp.ones(N)),
)


def test_a_series_that_does_not_move_is_refused():
    y = np.append(np.ones(12), Y[12:])
    folds = pcv.leave_future_out(N, 5)
    with pytest.raises(PcvError, match=re.escape("fold '5' trains on no two successive units")):
        scores.check(mase(), MODEL_OF_SERIES, "m", {"y": y}, N, "plain", 1, folds)
    scores.check(mase(), MODEL_OF_SERIES, "m", {"y": Y}, N, "plain", 1, folds)


def trend(time, y):
    level, slope = (numpyro.sample(name, dist.Normal(0.0, 3.0)) for name in ("level", "slope"))
    with numpyro.plate("unit", len(y)):
        numpyro.sample("y", dist.Normal(level + slope * time, 2.0), obs=y)


def test_scores_of_a_panel_from_python():
    """MASE and R² from terms of other scores; coverage without differences; refusals."""
    time = np.tile(np.arange(8), 3) / 8
    table = pd.DataFrame({"time": time, "y": Y, "person": SERIES})
    model = pcv.from_numpyro(trend, {"time": time, "y": Y}, columns={"person": SERIES})
    panel = {"scheme": "leave_future_out", "min_observations": 5, "by": "person"}
    names = ["mae", "mase", "rmse", "r2", "coverage_90"]
    how = {"cv": {"chains": 4, "draws": 100}, "seed": 1, "progress": False}
    cv = pcv.cross_validate(model, panel, scores=names, **how)
    with pytest.raises(PcvError, match="name the column that tells series apart"):
        pcv.cross_validate(model, PANEL, scores=["mase"], **how)
    train, series = train_mask(PANEL, N), np.repeat([0, 1, 2], 8)
    scale = [by_hand(x, series, test[0]) for x, test in zip(train, PANEL.test)]
    d = cv.diagnostics
    mae = d["mae_pointwise"].values[:, 0]
    np.testing.assert_allclose(d["mase_pointwise"].values[:, 0], mae / scale, rtol=1e-4)
    assert cv.score("mase")["estimate"] == pytest.approx(np.mean(mae / scale), rel=1e-4)
    y = table["y"][PANEL.test[:, 0]].to_numpy()
    r2 = 1 + d["rmse_pointwise"].values.sum() / ((y - y.mean()) ** 2).sum()
    assert cv.score("r2")["estimate"] == pytest.approx(r2, rel=1e-6)
    text = str(pcv.compare({"a": cv, "b": cv}))
    assert "coverage_90: higher is not better; no differences" in text
