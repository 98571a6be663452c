"""One test set: a single fold, and new data."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, multivariate_t, t

import pcv
from pcv.analysis.results import held_out as sets
from pcv.core import held_out
from pcv.folds.exchangeable import from_column
from pcv.folds.splitters import from_object
from tests.bounds import z_limit
from tests.folds import refusal
from tests.slow import repeated

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


@pytest.mark.slow
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


# New data: linear regression with 150 + 50 rows, of which all is known


def regression(x, y):
    variance = numpyro.sample("variance", dist.InverseGamma(3.0, 2.0))
    prior = dist.Normal(jnp.zeros(2), 2 * jnp.sqrt(variance)).to_event(1)
    slopes = numpyro.sample("slopes", prior)
    with numpyro.plate("i", len(y)):
        mean = slopes[0] + slopes[1] * x
        numpyro.sample("y", dist.Normal(mean, jnp.sqrt(variance)), obs=y)


class Exact:
    """The normal-inverse-gamma posterior of the regression, and its predictive."""

    def __init__(self, x, y):
        design = np.stack([np.ones_like(x), x], 1)
        self.precision = np.eye(2) / 4 + design.T @ design
        self.mean = np.linalg.solve(self.precision, design.T @ y)
        self.shape = 3 + len(y) / 2
        self.rate = 2 + (y @ y - self.mean @ self.precision @ self.mean) / 2

    def draws(self, seed, chains=4, number=400):
        rng = np.random.default_rng(seed)
        variance = self.rate / rng.gamma(self.shape, size=(chains, number))
        root = np.linalg.cholesky(np.linalg.inv(self.precision))
        moved = rng.normal(size=(chains, number, 2)) @ root.T
        slopes = self.mean + np.sqrt(variance)[..., None] * moved
        dims = ("chain", "draw")
        return xr.DataTree.from_dict(
            {
                "posterior": xr.Dataset(
                    {"variance": (dims, variance), "slopes": ((*dims, "k"), slopes)}
                )
            }
        )

    def predictive(self, x):
        """Degrees of freedom, means and the scale matrix of Student's t."""
        design = np.stack([np.ones_like(x), x], 1)
        spread = np.eye(len(x)) + design @ np.linalg.solve(self.precision, design.T)
        return 2 * self.shape, design @ self.mean, self.rate / self.shape * spread

    def units(self, x):
        df, mean, scale = self.predictive(x)
        return t(df, mean, np.sqrt(np.diag(scale)))

    def joint(self, x, y):
        df, mean, scale = self.predictive(x)
        return multivariate_t(mean, scale, df).logpdf(y)


OLD, NEW = points(150, 1), points(50, 2)


@pytest.fixture(scope="module")
def model():
    return pcv.from_numpyro(regression, OLD)


def test_a_test_set_has_its_exact_scores_and_predictions(model):
    """At three sets of draws; of a posterior that has seen the test set (the twin), it fails."""
    exact = Exact(**OLD)
    both = {name: np.concatenate([x, NEW[name]]) for name, x in OLD.items()}
    leaky = Exact(**both).units(NEW["x"]).logpdf(NEW["y"]).sum()
    of_units = exact.units(NEW["x"])
    elpd = of_units.logpdf(NEW["y"])
    z, of_twin = [], []
    for seed in range(3):
        test = pcv.score(model, NEW, fit=exact.draws(seed), progress=False)
        joint = test.diagnostics["joint_elpd"].item(), test.diagnostics["joint_mcse"].item()
        table = test.table()
        z += [
            (test.elpd - elpd.sum()) / test.mcse,
            (joint[0] - exact.joint(NEW["x"], NEW["y"])) / joint[1],
            *(table["elpd"] - elpd) / table["mcse"],
            *(table["mean"] - of_units.mean()) / (of_units.std() / np.sqrt(400)),
        ]
        of_twin.append((test.elpd - leaky) / test.mcse)
        assert np.abs(table["pit"] - of_units.cdf(NEW["y"])).max() < 0.01
        assert test.se == pytest.approx(np.sqrt(50) * elpd.std(ddof=1), rel=0.01)
    assert np.abs(z).max() < z_limit(len(z), df=30)
    assert np.abs(of_twin).min() > z_limit(len(z), df=30)
    assert list(table.index[[0, -1]]) == ["i 150", "i 199"]


def test_sets_side_by_side_have_their_exact_scores(model):
    exact, draws = Exact(**OLD), Exact(**OLD).draws(9)
    thirds = np.arange(150) % 3
    cv = pcv.cross_validate(
        model,
        [(np.flatnonzero(thirds != k), np.flatnonzero(thirds == k)) for k in range(3)],
        fit=draws,
        chains=4,
        draws=100,
        progress=False,
    )
    held = np.empty(150)
    for k in range(3):
        train = {name: x[thirds != k] for name, x in OLD.items()}
        at = {name: x[thirds == k] for name, x in OLD.items()}
        held[thirds == k] = Exact(**train).units(at["x"]).logpdf(at["y"])
    seen = exact.units(OLD["x"]).logpdf(OLD["y"])
    new = exact.units(NEW["x"]).logpdf(NEW["y"])
    table = pcv.compare_sets(cv, pcv.score(model, NEW, fit=draws, progress=False))

    def error(*terms):
        return np.sqrt(sum(x.var(ddof=1) / len(x) for x in terms))

    expected = {
        "in-sample": (seen.mean(), error(seen)),
        "cross-validated": (held.mean(), error(held)),
        "test set": (new.mean(), error(new)),
        "in-sample − cross-validated": ((seen - held).mean(), error(seen - held)),
        "cross-validated − test set": (held.mean() - new.mean(), error(held, new)),
    }
    assert list(table.index) == list(expected)
    assert table["n_units"].tolist() == [150, 150, 50, 150, 200]
    z = (table["elpd"] - [x for x, _ in expected.values()]) / table["mcse"]
    assert np.abs(z).max() < z_limit(len(z), df=20)
    assert (table["mcse"] > 0).all()
    np.testing.assert_allclose(table["se"], [x for _, x in expected.values()], rtol=0.03)
    assert len(pcv.compare_sets(cv)) == 3
    twin = (table["elpd"]["cross-validated"] - seen.mean()) / table["mcse"]["cross-validated"]
    assert np.abs(twin) > z_limit(len(z), df=20)
    said = refusal(pcv.compare_sets, cv, cv)
    assert said == "compare_sets: test is not what pcv.score returns"


def test_mcse_of_in_sample_scores_is_their_spread():
    """Over 200 sets of independent draws."""
    rng, found = np.random.default_rng(1), []
    for _ in range(200):
        draws = rng.normal(0, 0.5, (4, 100, 3))
        tree = xr.DataTree.from_dict(
            {
                "/": xr.Dataset(attrs={"outcome": "y"}),
                "log_likelihood": xr.Dataset({"y": (("chain", "draw", "unit"), draws)}),
                "folds": xr.Dataset({"test": (("fold", "slot"), [[0, 1, 2]])}),
            }
        )
        total = (logsumexp(draws, axis=(0, 1)) - np.log(400)).sum()
        found.append((total, sets._mcse_in_sample(tree, "plain")))
    totals, errors = np.transpose(found)
    assert 0.8 < totals.std() / np.sqrt((errors**2).mean()) < 1.2


# Groups: normal effects of normal outcomes, with known variances


def rats(rat, y, number=None):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("rats", len(np.unique(rat)) if number is None else number):
        level = numpyro.sample("level", dist.Normal(mu, 1))
    with numpyro.plate("i", len(y)):
        numpyro.sample("y", dist.Normal(level[rat], 0.5), obs=y)


def weighings():
    """Old rows of 6 rats; new rows of one of them, and of two others."""
    rng = np.random.default_rng(3)
    level, rat = rng.normal(1, 1, 8), np.repeat(np.arange(6), 3)
    new = np.array([2, 2, 6, 6, 6, 7])
    y = [level[group] + 0.5 * rng.normal(size=len(group)) for group in (rat, new)]
    return {"rat": rat, "y": y[0]}, {"rat": new, "y": y[1]}


def moments(old, new):
    """Exact mean and covariance of new rows; and of (mu, levels of old rats), given old ones."""
    rat = np.concatenate([old["rat"], new["rat"]])
    made_of = np.diag([1.0, *np.ones(8)])  # mu and 8 levels, of mu and deviations from it
    made_of[:, 0] = 1
    prior = made_of @ np.diag([4.0, *np.ones(8)]) @ made_of.T
    design = np.eye(9)[rat + 1]
    n = len(old["rat"])
    whole = design @ prior @ design.T + 0.25 * np.eye(len(rat))
    gain = np.linalg.solve(whole[:n, :n], np.c_[whole[:n, n:], (design @ prior)[:n]])
    mean = gain.T @ old["y"]
    m = len(rat) - n
    of_rows = whole[n:, n:] - whole[n:, :n] @ gain[:, :m]
    of_levels = prior - (design @ prior)[:n].T @ gain[:, m:]
    return (mean[:m], of_rows), (mean[m:][:7], of_levels[:7, :7])


def posterior_of_rats(mean, covariance):
    """Independent draws of mu and the levels of the old rats."""
    drawn = np.random.default_rng(5).multivariate_normal(mean, covariance, size=(4, 400))
    dims = ("chain", "draw")
    values = {"mu": (dims, drawn[..., 0]), "level": ((*dims, "rats"), drawn[..., 1:])}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(values)})


@pytest.mark.parametrize("predictive", repeated(["auto", "plain"]))
def test_known_and_new_groups_are_predicted_as_such(predictive, monkeypatch):
    old, new = weighings()
    (mean, spread), of_levels = moments(old, new)
    fit, model = posterior_of_rats(*of_levels), pcv.from_numpyro(rats, old)

    def errors():
        test = pcv.score(model, new, fit=fit, predictive=predictive, progress=False)
        d, table = test.diagnostics, test.table()
        exact = multivariate_normal(mean, spread).logpdf(new["y"])
        sd = np.sqrt(np.diag(spread))
        elpd = -0.5 * ((new["y"] - mean) / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))
        joint = (d["joint_elpd"].item() - exact) / d["joint_mcse"].item()
        centre = (table["mean"] - mean) / (sd / np.sqrt(400))
        return np.abs([joint, *(table["elpd"] - elpd) / table["mcse"], *centre]), d

    z, d = errors()
    assert d.attrs["predictive"] == ("marginal" if predictive == "auto" else "plain")
    assert z.max() < z_limit(len(z), df=30)
    if predictive == "plain":  # the twin: a new rat has the mean level of the others
        monkeypatch.setattr(held_out, "_with_new_effects", lambda problem, flat, *rest: flat)
        assert errors()[0].max() > z_limit(len(z), df=30)


# What is refused


def test_new_data_that_do_not_fit_the_model_are_refused(model):
    def message(new_data, of=model, **options):
        return refusal(pcv.score, of, new_data, progress=False, **options)

    x, y = [0.0, 1.0], [1.0, 2.0]
    assert message({"x": x}) == "new_data: no outcome 'y'; scores need its observed values"
    assert message({"y": y}) == "new_data: no column 'x'; there are 'y'"
    assert message({"x": [0.0, np.nan], "y": y}) == (
        "new_data: 'x' is missing in row 2; fill it in, or drop the row"
    )
    assert message({"x": x, "y": y[:1]}).endswith("must be the same, and above 0: 'x' 2, 'y' 1")
    assert message({"x": [], "y": []}).endswith("above 0: 'x' 0, 'y' 0")
    assert message({"x": ["a", "b"], "y": y}) == (
        "new_data: 'x' holds no numbers, in the data numbers"
    )
    assert message({"x": [x, x], "y": y}) == "new_data: 'x' has shape (2, 2), in the data (150,)"
    assert message([x, y]) == "new_data is of type list; give arrays by name, or a table"
    assert message(NEW, data=OLD) == "model 'model' holds its data; leave data out"
    assert message(NEW, regression) == (
        "model 'model' is a function; give the data of its posterior: data=..."
    )
    fixed = pcv.Model(None, None, None, None, pcv.Outcome("y"))
    assert message(NEW, fixed).startswith("model 'model' (of type Model) holds its data; give")


def test_models_that_new_rows_change_are_refused():
    old, new = weighings()
    known = pcv.from_numpyro(rats, {**old, "number": 6})
    _, of_levels = moments(old, new)

    def message(model, new_data, fit):
        return refusal(pcv.score, model, new_data, fit=fit, progress=False)

    fit = posterior_of_rats(*of_levels)
    assert message(known, new, fit).startswith(
        "model 'model': new_data have a group that the model has no effect for (index 6 is out of"
    )
    assert message(known, {**new, "number": 5}, fit) == (
        "model 'model': parameter 'level' is (6,) and, with new_data, (5,): parameters may only "
        "get longer, by effects of new groups"
    )
    assert message(known, {**new, "number": 9}, fit) == (
        "model 'model': with new_data it has 3 more parameters, such as level[8], which cannot be "
        "drawn given the others: they are no effects of new groups alone"
    )
    assert message(pcv.from_numpyro(regression, OLD), NEW, fit).startswith("fit model: the given")

    def centred(x, y):
        return regression(x - x.mean(), y)

    fit = Exact(OLD["x"] - OLD["x"].mean(), OLD["y"]).draws(1)
    assert message(pcv.from_numpyro(centred, OLD), NEW, fit).startswith(
        "model 'model': new_data change the log likelihood of unit 'i 0' of the data, from"
    )


def test_a_function_of_data_makes_the_model_of_both_sets(model):
    """The same model in another front-end's way."""
    fit = Exact(**OLD).draws(1)
    options = {"fit": fit, "predictions": 0, "progress": False}
    test = pcv.score(lambda data: pcv.from_numpyro(regression, data), NEW, data=OLD, **options)
    assert test.elpd == pcv.score(model, NEW, **options).elpd
    assert refusal(pcv.score, lambda data: None, NEW, data=OLD).startswith("model 'model': its")
