"""Log likelihoods made elsewhere: the same digits as pcv's own chains, R's loo, files, refusals."""

import arviz_base
import arviz_stats
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from scipy.stats import norm

import pcv
from pcv.api import calls
from pcv.api.cross_validation import cv_of
from pcv.base.errors import PcvError
from pcv.core import cross_validate, log_lik
from pcv.core.settings import chain_settings
from pcv.folds.base import from_labels
from pcv.pipeline.data.log_lik import COLUMNS
from pcv.sampling.folds import sides
from tests.bounds import z_limit
from tests.folds import refusal

RNG = np.random.default_rng(11)
N = 12
X = RNG.normal(size=N)
Y = 1 + 0.7 * X + RNG.normal(0, 0.6, N)
OF_THE_SAMPLER = {"divergences", "acceptance", "efmi", "n_warmup", "fit_rhat", "fit_ess", "param"}
"""what log likelihoods do not tell"""


def line(x, y):
    a, b = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("b", dist.Normal(0, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("i", len(y)):
        numpyro.sample("y", dist.Normal(a + b * x, sigma), obs=y)


def sampled(folds, draws, **cv):
    """A cross-validation by pcv's own chains, and its samples."""
    model = pcv.from_numpyro(line, {"x": X, "y": Y})
    sections = {
        "predictions": 0,
        "fit": {"warmup": 300, "draws": 300},
        "cv": chain_settings(4, draws, 50, None, cv),
    }
    of_call = 3, "float64", None, None, False
    with calls.prepared(model, folds, None, sections, *of_call) as call:
        result = cross_validate.cross_validate(*call)["model"]
        found = cv_of(call.problems["model"], result, call.settings.folds, None)
    (samples,) = (x for step, x in call.store.results.items() if step.stage == "sample")
    return found, samples


@pytest.fixture(scope="module")
def loo():
    return sampled(pcv.leave_one_out(N), 100)


def full_of(cv):
    return cv.tree["log_likelihood/y"].transpose("chain", "draw", ...).values


def unlike(one, other):
    """Names of the diagnostics that differ by more than rounding."""
    found = set()
    for name, x in one.diagnostics.variables.items():
        y = other.diagnostics[name]
        if x.dtype.kind in "iufb":
            same = x.shape == y.shape and np.allclose(x, y, rtol=1e-10, atol=1e-12, equal_nan=True)
        else:
            same = x.shape == y.shape and (x.values == y.values).all()
        found |= set() if same else {name}
    return found - OF_THE_SAMPLER - {"unit_name"}


# The same draws


def test_the_same_draws_give_the_same_digits(loo, monkeypatch):
    """All diagnostics of single units, R-hat max benchmark included; once the shift is the same."""
    cv, samples = loo
    draws, folds = samples["log_joint_draws"].values[..., None], pcv.leave_one_out(N)
    with monkeypatch.context() as patch:
        patch.setattr(sides, "balanced_shift", lambda own, full: samples["shift"].values)
        same = pcv.from_log_lik(draws, folds, full_of(cv), seed=3)
    assert unlike(cv, same) == set()
    assert (same.elpd, same.se, same.mcse, same.p) == pytest.approx(
        (cv.elpd, cv.se, cv.mcse, cv.p), rel=1e-12
    )
    assert same.verdict == cv.verdict
    of_own_shift = pcv.from_log_lik(draws, folds, full_of(cv), seed=3)
    apart = of_own_shift.diagnostics["joint_elpd"] - cv.diagnostics["joint_elpd"]
    assert float(abs(apart / cv.diagnostics["joint_mcse"]).max()) < 0.2
    assert abs(of_own_shift.elpd - cv.elpd) < 0.1 * cv.mcse
    assert np.isfinite(of_own_shift.folds["overlap"]).all()


def test_one_side_has_the_digits_of_own_draws(loo):
    cv, samples = loo
    draws, folds = samples["log_joint_draws"].values[..., None], pcv.leave_one_out(N)
    own = pcv.from_log_lik(draws, folds, seed=3)
    asked = pcv.from_log_lik(draws, folds, full_of(cv), estimator="own", seed=3)
    for found in (own, asked):
        assert found.diagnostics["joint_elpd"].values == pytest.approx(
            cv.diagnostics["own_elpd"].values, rel=1e-12
        )
        assert found.diagnostics["joint_mcse"].values == pytest.approx(
            cv.diagnostics["own_mcse"].values, rel=1e-10
        )
        assert "own draws alone" in repr(found)
    assert np.isnan(own.p)
    assert asked.p == pytest.approx(np.sum(full_lpd(full_of(cv))) - asked.elpd)
    exchanged = draws.copy()
    exchanged[5, [0, 1], 70:] = exchanged[5, [1, 0], 70:]
    assert {"joint_mcse", "rhat"} <= unlike(own, pcv.from_log_lik(exchanged, folds, seed=3))


def full_lpd(full):
    return np.logaddexp.reduce(full.reshape(-1, full.shape[2])) - np.log(full[..., 0].size)


def test_folds_of_several_units_have_the_same_digits(monkeypatch):
    """In batches of one draw, from which the scores of single units can be read."""
    folds = pcv.kfold(N, 5, seed=2)
    cv, samples = sampled(folds, 12, batch_size=1)
    each = samples["log_pointwise_mean"].values
    monkeypatch.setattr(log_lik, "_batches", lambda draws: list(np.arange(draws)[:, None]))
    monkeypatch.setattr(log_lik, "MOST_PER_BATCH", 1)
    monkeypatch.setattr(sides, "balanced_shift", lambda own, full: samples["shift"].values)
    same = pcv.from_log_lik(each, folds, full_of(cv), seed=3)
    assert unlike(cv, same) == set()
    assert same.pointwise.values == pytest.approx(cv.pointwise.values, rel=1e-12)


# Exact answers: a normal mean, whose posteriors are known


def known(keys=8, leak=False):
    """z of elpd by both estimators, over independent draws of exact posteriors."""
    y, found = np.array([-0.3, 0.4, 1.1, 2.0, 0.2, 0.9]), []
    folds = pcv.leave_one_out(len(y))

    def posterior(some):
        precision = 0.25 + some.size
        return some.sum() / precision, precision**-0.5

    means = [posterior(y if leak else np.delete(y, i)) for i in range(len(y))]
    exact = [posterior(np.delete(y, i)) for i in range(len(y))]
    elpd = sum(norm.logpdf(y[i], m, np.hypot(1, s)) for i, (m, s) in enumerate(exact))
    for key in range(keys):
        rng = np.random.default_rng(key)
        draws = np.stack(
            [norm.logpdf(y[i], rng.normal(m, s, (4, 200))) for i, (m, s) in enumerate(means)]
        )
        full = norm.logpdf(y, rng.normal(*posterior(y), (4, 400, 1)))
        for of_both in (None, full):
            cv = pcv.from_log_lik(draws[..., None], folds, of_both)
            found.append((cv.elpd - elpd) / cv.mcse)
    return np.abs(found)


def test_elpd_is_exact_within_its_error():
    assert known().max() < z_limit(16, df=60)
    assert known(2, leak=True).max() > 10


def test_sides_that_do_not_belong_together_are_flagged():
    """Draws of other data than all of it, and full-data chains that disagree."""
    y, rng = np.array([-0.3, 0.4, 1.1, 2.0, 0.2, 0.9]), np.random.default_rng(1)
    sd = (0.25 + y.size) ** -0.5
    draws = norm.logpdf(y[:, None, None], rng.normal(y.mean(), sd, (6, 4, 200)))[..., None]
    full = norm.logpdf(y, rng.normal(y.mean() + 2, sd, (4, 400, 1)))
    assert "its draws and those of the full data differ" in (
        pcv.from_log_lik(draws, pcv.leave_one_out(6), full).verdict
    )
    full[0] += 3.0
    apart = pcv.from_log_lik(draws, pcv.leave_one_out(6), full)
    assert apart.verdict.startswith("The full-data fit is bad: R-hat of 'log_lik[")
    assert "Warning: full-data fit of 'model' is bad" in repr(apart)
    assert np.isnan(apart.folds["overlap"]).all()


# R's loo, as `Rscript tests/loo.R` prints it


def terms_of_r():
    chain, draw, unit = np.meshgrid(*(np.arange(1, n + 1) for n in (4, 50, 7)), indexing="ij")
    wave = np.sin(0.7 * chain + 0.31 * draw + 0.9 * unit) ** 2
    return -1.3 - 0.8 * wave + 0.2 * np.cos(1.7 * draw * unit)


LABELS = np.array([0, 0, 1, 1, 1, 2, 2])
TESTED = np.split(np.arange(7), [2, 5])
OF_R = from_labels(LABELS, ["fold 1", "fold 2", "fold 3"])


@pytest.mark.parametrize(
    ("joint", "elpd", "se"),
    [
        (False, -11.56104344707568, 0.00930828674082),
        (True, -11.70196450459, 1.73964368256),
    ],
)
def test_loo_of_r_agrees(joint, elpd, se):
    each = [terms_of_r()[..., test] for test in TESTED]
    cv = pcv.from_log_lik(each, OF_R, joint=joint)
    assert (cv.elpd, cv.se) == pytest.approx((elpd, se), rel=1e-6)


# Forms


def rows(terms, folds=LABELS + 1):
    """A table as R writes it: draws first, then chains, then units."""
    chains, draws, units = terms.shape
    unit, chain, draw = np.meshgrid(
        *(np.arange(1, n + 1) for n in (units, chains, draws)), indexing="ij"
    )
    fold = folds[unit.ravel() - 1]
    values = np.moveaxis(terms, 2, 0).ravel()
    return pd.DataFrame(
        dict(zip(COLUMNS, (fold, chain.ravel(), draw.ravel(), unit.ravel(), values)))
    )


def of_full(terms):
    return rows(terms, np.full(7, np.nan))


@pytest.fixture(scope="module")
def both():
    """Log likelihoods of folds and of the full data, and what they give."""
    full = np.random.default_rng(1).normal(-1.2, 0.3, (4, 300, 7))
    cv = pcv.from_log_lik([terms_of_r()[..., test] for test in TESTED], OF_R, full)
    assert np.isfinite(cv.folds["overlap"]).all()
    return full, cv


def by_dims(full):
    """Arrays as NetCDF has them, of R's ncdf4: with its dimensions in any order."""
    values, unit = np.full((3, 4, 50, 3), np.nan), np.zeros((3, 3), int)
    for k, test in enumerate(TESTED):
        values[k, ..., : test.size] = terms_of_r()[..., test]
        unit[k, : test.size] = test + 1
    return xr.Dataset(
        {
            "log_lik": (("fold", "chain", "draw", "slot"), values),
            "unit": (("fold", "slot"), unit),
            "full": (("full_chain", "full_draw", "full_unit"), full),
        }
    ).transpose("slot", "draw", "full_unit", "chain", "fold", ...)


def test_every_form_gives_the_same(both, tmp_path):
    full, cv = both
    terms, whole = terms_of_r(), by_dims(full)
    each = [terms[..., test] for test in TESTED]
    groups = [
        xr.DataTree.from_dict(
            {"log_likelihood": xr.Dataset({"y": (("draw", "chain", "i"), x.swapaxes(0, 1))})}
        )
        for x in each
    ]
    of_all = arviz_base.from_dict({"log_likelihood": {"y": full, "z": 0 * full}})
    mixed = pd.concat([rows(terms), of_full(full)]).sample(frac=1, random_state=1)
    mixed.to_parquet(tmp_path / "all.parquet")
    through = mixed.assign(
        draw=mixed["draw"] + 50 * (mixed["chain"] - 1)
    )  # as `.draw` of posterior
    through.to_csv(tmp_path / "all.csv", index=False)
    rows(terms).to_csv(tmp_path / "folds.csv", index=False)
    of_full(full).drop(columns="fold").to_parquet(tmp_path / "full.parquet")
    whole.to_netcdf(tmp_path / "all.nc")
    whole[["log_lik", "unit"]].to_netcdf(tmp_path / "folds.nc", engine="scipy")
    for given in (
        (each, OF_R, full),
        (np.stack([terms] * 3), OF_R, full),
        (groups, OF_R, of_all),
        (whole["log_lik"], OF_R, full),
        (whole, OF_R),
        (whole,),
        *(
            (tmp_path / f"all.{kind}", folds)
            for kind in ("parquet", "csv", "nc")
            for folds in (OF_R, None)
        ),
        (str(tmp_path / "folds.csv"), OF_R, tmp_path / "full.parquet"),
        (str(tmp_path / "folds.nc"), OF_R, tmp_path / "all.nc"),
    ):
        assert unlike(cv, pcv.from_log_lik(*given)) == set()


def test_folds_and_units_may_have_names():
    """Folds of a file are found by what they test, units by their numbers or names."""
    table = rows(terms_of_r(), np.array(list("ccaaabb")))
    named = table.assign(unit=np.array(list("tuvwxyz"))[table["unit"] - 1])
    cv = pcv.from_log_lik([terms_of_r()[..., test] for test in TESTED], OF_R)
    for found in (table, named):
        dataset = found.set_index(list(COLUMNS[:4]))
        assert dataset.index.is_unique
    by_file = pcv.pipeline.data.log_lik.from_table(named, "x.csv")
    assert by_file.names == ["c", "a", "b"]
    assert by_file.units[1] == ["v", "w", "x"]
    names = ["fold c", "fold a", "fold b"]
    by_name = xr.DataArray(
        np.stack([terms_of_r()] * 3),
        dims=("fold", "chain", "draw", "slot"),
        coords={"fold": names[::-1]},
    )
    assert unlike(cv, pcv.from_log_lik(by_name, OF_R._replace(id=np.array(names)))) == {"fold"}


def test_numbers_of_draws_may_differ():
    each = [terms_of_r()[..., test] for test in TESTED]
    each[1] = np.concatenate([each[1], each[1][:, ::-1] - 0.1], axis=1)[:, :73]
    cv = pcv.from_log_lik(each, OF_R)
    assert cv.folds["n_draws"].tolist() == [50, 73, 50]
    for k in range(3):
        joint = each[k].sum(2).ravel()
        expected = np.logaddexp.reduce(joint) - np.log(joint.size)
        assert cv.folds["elpd"].iloc[k] == pytest.approx(expected, rel=1e-12)
    alone = pcv.from_log_lik([each[0], each[2]], OF_R.some(np.array([0, 2])))
    assert cv.folds["mcse"].iloc[[0, 2]].values == pytest.approx(alone.folds["mcse"].values)


# Refusals


DRAWS = [terms_of_r()[..., test] for test in TESTED]


def changed(place, value):
    each = [x.copy() for x in DRAWS]
    each[1][place] = value
    return each


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ("DRAWS[:2]", "OF_R"),
            "fold_log_lik: 2 folds, but there are 3; give log likelihoods of each",
        ),
        (
            ("[DRAWS[k] for k in (1, 0, 2)]", "OF_R"),
            "fold_log_lik: fold 'fold 1' tests 2 units, but has log likelihoods of 3",
        ),
        (
            ("[x[0] for x in DRAWS]", "OF_R"),
            "fold_log_lik[0] has shape (50, 2); it is (chain, draw,",
        ),
        (
            ("DRAWS[0]", "OF_R"),
            "fold_log_lik has shape (4, 50, 2); it is (fold, chain, draw, slot)",
        ),
        (("['a']", "OF_R"), "fold_log_lik[0] is 'a', text; give an array (chain, draw, unit)"),
        (("3", "OF_R"), "fold_log_lik is of type int; give an array"),
        (("[x[:1] for x in DRAWS]", "OF_R"), "fold 'fold 1' has 1 chain; R-hat compares chains"),
        (("[x[:, :9] for x in DRAWS]", "OF_R"), "has 9 draws per chain; give 10 or more"),
        (("[DRAWS[0], DRAWS[1][:3], DRAWS[2]]", "OF_R"), "'fold 2' has 3 chains, 'fold 1' has 4"),
        (
            ("changed((1, 7, 2), np.nan)", "OF_R"),
            "fold 'fold 2': log_lik[1, 7, 2] (chain, draw, unit) is nan",
        ),
        (("changed((1, 7, 2), np.inf)", "OF_R"), "is inf, which is no log likelihood"),
        (("DRAWS",), "folds: arrays do not say which units they are of; give the folds"),
        (("DRAWS", "'loo'"), "folds: the number of units is not known; give Folds such as"),
        (("DRAWS", "OF_R", "terms_of_r()[..., :6]"), "full: 6 units, but the folds are of 7"),
        (("DRAWS", "OF_R", "terms_of_r()[:1]"), "full has 1 chain"),
        (("DRAWS", "OF_R", "xr.Dataset()"), "full: which variable is the outcome? there is none"),
        (("DRAWS", "OF_R", "xr.DataTree()"), "full: no group 'log_likelihood'"),
        (
            ("DRAWS", "OF_R._replace(num_units=9)", "terms_of_r()"),
            "full: 7 units, but the folds are of 9",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(given, said):
    names = globals()
    assert said in refusal(pcv.from_log_lik, *(eval(x, names) for x in given))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda t: t.rename(columns={"log_lik": "loglik"}),
            "no column 'log_lik'; did you mean 'loglik'?",
        ),
        (lambda t: t.assign(log_lik="a"), "column 'log_lik' is not numbers"),
        (
            lambda t: t.assign(log_lik=t["log_lik"].where(t.index != 6)),
            "column 'log_lik' has no value in row 7",
        ),
        (lambda t: t.assign(fold=np.nan), "no row has a fold"),
        (
            lambda t: t.query("fold != 1 or chain != 2 or draw != 8"),
            "fold '1': chain 1 has 50 draws, chain 2 has 49; give as many",
        ),
        (
            lambda t: t.drop(index=257),
            "fold '1': chain 2, draw 8, unit '2' is missing; give one row for each",
        ),
        (
            lambda t: pd.concat([t, t[57:58]]),
            "fold '1': chain 2, draw 8, unit '1' is there 2 times",
        ),
        (
            lambda t: t.assign(unit=t["unit"] + 1),
            "fold '3': no unit '8'; units are numbers of rows of the data, 1 to 7",
        ),
        (
            lambda t: t.assign(fold=t["fold"].replace(3, 2)),
            "no fold tests what 'fold 2' does, units '3', '4', '5'",
        ),
        (lambda t: t.query("fold != 3"), "no fold tests what 'fold 3' does, units '6', '7'; give"),
        (
            lambda t: pd.concat([t, t[:400].assign(fold=9, unit=lambda x: x["unit"] + 3)]),
            "4 folds, but there are 3; none tests what '9' do",
        ),
        (
            lambda t: pd.concat([t, t[t["unit"] < 7].assign(fold=np.nan)]),
            "the full data: 6 of 7 units; give the log",
        ),
    ],
)
def test_a_file_that_is_incomplete_is_refused(change, said, tmp_path):
    change(rows(terms_of_r())).to_csv(tmp_path / "x.csv", index=False)
    found = refusal(pcv.from_log_lik, tmp_path / "x.csv", OF_R)
    assert found.startswith(str(tmp_path / "x.csv"))
    assert said in found


def test_files_of_other_kinds_are_refused(tmp_path):
    (tmp_path / "x.nc").write_text("no")
    (tmp_path / "x.parquet").write_text("no")
    xr.Dataset({"log_lik": ("fold", [1.0])}).to_netcdf(tmp_path / "y.nc")
    for name, said in (
        ("x.rds", "log likelihoods are in .parquet, .csv, .nc, not in such a file"),
        ("z.csv", "no such file (paths are relative to"),
        ("x.nc", "cannot be read: "),
        ("x.parquet", "cannot be read: "),
        ("y.nc", "log_lik has dimensions ('fold',); they are ('fold', 'chain', 'draw', 'slot')"),
    ):
        assert said in refusal(pcv.from_log_lik, tmp_path / name, OF_R)


# What becomes of the result


def test_what_needs_the_model_says_so(both, tmp_path):
    cv = both[1]
    alone = "log likelihoods are all that is known here; this needs the model itself"
    for call in (cv.predictions, cv.table, cv.plot_pit, cv.plot_calibration, cv.plot_predictions):
        assert refusal(call) == f"there are no predictions: {alone}"
    for call in (cv.fold_summary, cv.plot_fold_summary):
        assert refusal(call, "mu") == f"fold_summary: {alone}"
    assert refusal(cv.score, "crps").endswith("log likelihoods alone have the log score")
    assert "what needs" not in repr(cv)
    without = pcv.from_log_lik(DRAWS, OF_R)
    assert "no log likelihoods of the full data" in refusal(without.plot_full_data)
    for found in (cv, without):
        found.save(tmp_path / "cv.zarr")
        assert repr(pcv.load(tmp_path / "cv.zarr")) == repr(found)
    with pytest.raises(PcvError, match="its log likelihoods are all that is known; predictions"):
        _ = cv.problem.model


def test_folds_and_outcome_are_of_the_data():
    data = {"y": np.arange(7.0), "group": np.array(list("ccaaabb"))}
    by_group = {"scheme": "leave_one_group_out", "group": "group"}
    cv = pcv.from_log_lik([DRAWS[k] for k in (1, 2, 0)], by_group, data=data)
    assert cv.folds.index.tolist() == ["group a", "group b", "group c"]
    assert cv.elpd == pytest.approx(pcv.from_log_lik(DRAWS, OF_R).elpd, rel=1e-12)
    assert "folds: arrays do not say" in refusal(pcv.from_log_lik, DRAWS, data=data)
    for given, said in (
        ({"data": data, "outcome": "x"}, "data: no column 'x'; there are 'y', 'group'"),
        ({}, "folds: a scheme of a config is laid out on data; give data=..., or Folds"),
    ):
        assert refusal(pcv.from_log_lik, DRAWS, by_group, **given) == said
    subsample = {"scheme": "subsample", "m": 2}
    assert "'subsample' needs the model" in refusal(pcv.from_log_lik, DRAWS, subsample, data=data)
    assert refusal(pcv.from_log_lik, DRAWS, OF_R, estimator="both") == (
        "estimator: must be 'two_sided' or 'own', is 'both'"
    )


def test_it_goes_to_arviz(both):
    cv = pcv.from_log_lik(DRAWS, OF_R, both[0], joint=False)
    elpd = cv.to_arviz()
    assert (elpd.elpd, elpd.p) == pytest.approx((cv.elpd, cv.p))
    worse = pcv.from_log_lik([x - 0.1 for x in DRAWS], OF_R, joint=False)
    table = arviz_stats.compare({"a": elpd, "b": worse.to_arviz()})
    assert table.index.tolist() == ["a", "b"]


def test_beside_a_sampled_model(loo):
    """They are compared if they are of the same outcome, which log likelihoods do not tell."""
    cv, samples = loo
    draws, folds = samples["log_joint_draws"].values[..., None] - 0.1, "loo"
    mine = pcv.from_log_lik(draws, folds, full_of(cv) - 0.1, data={"x": X, "y": Y})
    compared = pcv.compare({"ours": cv, "theirs": mine})
    assert compared.frame.loc["theirs", "elpd_diff"] == pytest.approx(-0.1 * N, abs=0.05)
    assert len(compared.by(np.arange(N) % 2)) == 4
    unknown = pcv.from_log_lik(draws, pcv.leave_one_out(N))
    assert "'theirs' does not know its data" in refusal(
        pcv.compare, {"ours": cv, "theirs": unknown}
    )
    again = pcv.from_log_lik(draws + 0.2, pcv.leave_one_out(N))
    assert pcv.compare({"a": unknown, "b": again}).frame.index.tolist() == ["b", "a"]
    other = pcv.from_log_lik(draws, folds, data={"y": Y + 1})
    assert "was scored on other data" in refusal(pcv.compare, {"ours": cv, "theirs": other})
