"""Stan programs as they are: what they are read as, and what folds make of them."""

import json
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

import pcv
from pcv.base import reference
from pcv.base.errors import PcvError
from pcv.models.zoo import rats
from pcv.pipeline.config import ModelConfig
from pcv.pipeline.problems import build
from tests.bounds import z_limit
from tests.data import DATA, needs_data

pytest.importorskip("stanli", reason="no wheel of stanli for this platform")

PROGRAMS = Path(__file__).parent / "stan"
RNG = np.random.default_rng(0)
X, SITE = RNG.normal(size=60), np.repeat(np.arange(12), 5) + 1
GROUP = np.repeat([1, 2, 3, 4, 5, 6], [3, 4, 2, 5, 4, 2])
SCHOOLS = {
    "y": np.array([28.0, 8, -3, 7, -1, 1, 18, 12]),
    "sigma": np.array([15.0, 10, 16, 11, 9, 11, 10, 18]),
}
RATS = {
    "rat": np.repeat(np.arange(6), 5) + 1,
    "age": np.tile([-14.0, -7, 0, 7, 14], 6),
    "weight": np.repeat(RNG.normal(250, 14, 6), 5)
    + np.tile([-14.0, -7, 0, 7, 14], 6) * 6
    + RNG.normal(0, 6, 30),
}
TIMES = np.arange(1, 13) / 2
CONJUGATE = {
    "group": GROUP,
    "x": X[:20],
    "y": 1 + 0.8 * RNG.normal(size=6)[GROUP - 1] + 0.5 * X[:20] + 0.5 * RNG.normal(size=20),
}
DATA_OF = {
    "autoregression": ({"K": 2, "y": RNG.normal(size=40)}, "y"),
    "conjugate": (CONJUGATE, "y"),
    "counts": ({"site": SITE, "x": X, "y": RNG.poisson(np.exp(1 + 0.3 * X))}, "y"),
    "garch": ({"y": RNG.normal(5, 1, size=40), "sigma1": 0.5}, "y"),
    "growth_ode": (
        {"time": TIMES, "size": 3 / (1 + 5 * np.exp(-TIMES)) * np.exp(0.1 * RNG.normal(size=12))},
        "size",
    ),
    "held_out": ({"x": X, "y": X + RNG.normal(size=60)}, "y"),
    "kidscore": (
        {
            "kid_score": RNG.uniform(20, 140, 40).round(),
            "mom_hs": (RNG.random(40) < 0.8).astype(float),
            "mom_iq": RNG.normal(100, 15, 40),
        },
        "kid_score",
    ),
    "mixture": ({"y": np.concatenate([RNG.normal(-2, 1, 30), RNG.normal(2, 1, 30)])}, "y"),
    "multinormal": ({"y": RNG.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], 40)}, "y"),
    "ordered": ({"x": X, "y": 1 + np.digitize(X + RNG.logistic(size=60), [-1, 0, 1])}, "y"),
    "radon": (
        {
            "county_idx": SITE,
            "log_uppm": RNG.normal(size=12)[SITE - 1],
            "floor_measure": (RNG.random(60) < 0.2).astype(float),
            "log_radon": RNG.normal(1, 1, 60),
        },
        "log_radon",
    ),
    "rats_levels": (RATS, "weight"),
    "rats_slopes": (RATS, "weight"),
    "robust": ({"x": RNG.normal(size=(60, 3)), "y": X + RNG.standard_t(3, size=60)}, "y"),
    "schools_centred": (SCHOOLS, "y"),
    "schools_noncentred": (SCHOOLS, "y"),
    "survival": (
        {
            "time": RNG.weibull(2, 60) * np.exp(0.3 * X),
            "event": (RNG.random(60) < 0.8).astype(int),
            "x": X,
        },
        "time",
    ),
    "wells": ({"x": RNG.normal(size=(60, 2)), "y": (RNG.random(60) < 0.5).astype(int)}, "y"),
}


def file(name):
    return PROGRAMS / f"{name}.stan"


@cache
def model_of(name):
    return pcv.from_stan(file(name), *DATA_OF[name])


def text(name, *changes):
    """A program with some text replaced."""
    program = file(name).read_text()
    for before, after in changes:
        assert before in program
        program = program.replace(before, after)
    return program


@pytest.mark.parametrize("name", sorted(DATA_OF))
class TestPrograms:
    def test_a_fold_lacks_its_held_out_terms(self, name):
        """The density of a fold is that of all units less the held-out terms, for any program."""
        model = model_of(name)
        params = jax.tree.map(lambda x: x / 4, model.init(jax.random.key(1)))
        terms = np.asarray(model.log_lik(params, {}))
        some = RNG.random((3, len(terms))) < 0.7
        whole, none = (model.log_joint(params, jnp.full(len(terms), x)) for x in (1.0, 0.0))
        at = 1e-9 * (np.abs(whole) + np.abs(terms).sum())
        constant = whole - none - terms.sum() if name == "held_out" else 0.0
        for train in some:
            fold = model.log_joint(params, jnp.asarray(train, float))
            dropped = 0.0
            if name == "held_out":  # constants of terms that the program itself leaves out
                dropped = constant * (~train).mean()
            assert fold == pytest.approx(float(whole - terms[~train].sum() - dropped), abs=at)
        assert none == pytest.approx(float(whole - terms.sum() - constant), abs=at)
        assert model.log_prior(params) == none

    def test_gradients_are_slopes(self, name):
        model = model_of(name)
        params = jax.tree.map(lambda x: x / 4, model.init(jax.random.key(2)))
        flat, unravel = jax.flatten_util.ravel_pytree(params)
        size = model.log_lik(params, {}).size
        train = jnp.asarray(RNG.random(size) < 0.7, float)

        def density(x):
            return model.log_joint(unravel(x), train)

        gradient, move = jax.grad(density)(flat), jnp.asarray(RNG.normal(size=flat.size))
        slope = (density(flat + 1e-5 * move) - density(flat - 1e-5 * move)) / 2e-5
        assert gradient @ move == pytest.approx(float(slope), rel=1e-5, abs=1e-5)
        of_terms = jax.jvp(lambda x: model.log_lik(unravel(x), {}), (flat,), (move,))[1]
        whole = jax.grad(lambda x: model.log_joint(unravel(x), jnp.ones(size)))(flat)
        prior = jax.grad(lambda x: model.log_prior(unravel(x)))(flat)
        assert of_terms.sum() == pytest.approx(float((whole - prior) @ move), rel=1e-4, abs=1e-4)

    def test_parameters_come_back(self, name):
        model = model_of(name)
        params = model.init(jax.random.key(3))
        back = model.unconstrain(model.constrain(params))
        for parameter, x in params.items():
            assert np.allclose(back[parameter], x, atol=1e-6)


def test_replicates_follow_the_program():
    """Means and variances of replicates are those of the conjugate program, for three keys."""
    model = model_of("conjugate")
    params = model.init(jax.random.key(0))
    mean = params["mu"] + 0.8 * params["z"][GROUP - 1] + params["slope"] * CONJUGATE["x"]
    for seed in range(3):
        keys = jax.random.split(jax.random.key(seed), 400)
        drawn = np.asarray(jax.vmap(lambda key: model.predict(key, params, {}))(keys))
        z = (drawn - np.asarray(mean)) / 0.5
        limit = z_limit(3 * 2 * z.shape[1])
        assert np.abs(z.mean(0) * 20).max() < limit
        assert np.abs((z**2).mean(0) - 1).max() * np.sqrt(400 / 2) < 1.5 * limit
        assert len(np.unique(drawn)) == drawn.size


LEVELS = "normal_lpdf(weight[n] | alpha[rat[n]] + beta * age[n], sigma_y)"
FAULTS = {
    "a shifted index of the mean": ("alpha[rat[n]]", "alpha[rat[max(n - 1, 1)]]"),
    "a shifted index of the outcome": (
        "normal_lpdf(weight[n]",
        "normal_lpdf(weight[max(n - 1, 1)]",
    ),
    "the term of another unit": ("log_lik[n] =", "log_lik[N + 1 - n] ="),
    "a missing factor": (LEVELS, f"{LEVELS} + log(sigma_y)"),
    "a missing covariate": (" + beta * age[n]", ""),
    "a constant factor": ("log_lik[n] = ", "log_lik[n] = 0.5 * "),
    "another scale": ("age[n], sigma_y)", "age[n], square(sigma_y))"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_log_lik_is_caught(fault):
    with pytest.raises(PcvError, match=r"log_lik of unit \d+ .* \S*\d"):
        pcv.from_stan(text("rats_levels", FAULTS[fault]), RATS, "weight")


def test_a_program_that_ignores_its_mask_is_caught():
    ignoring = text("held_out", ("if (holdout[n] == 0)", ""))
    with pytest.raises(PcvError, match="that holds out unit 1 depends on its outcome: it changes"):
        pcv.from_stan(ignoring, *DATA_OF["held_out"])


def test_masks_may_be_vectors():
    """Of the program that the page on CmdStan shows."""
    growth = Path(__file__).parents[1] / "docs/howto/growth.stan"
    model = pcv.from_stan(growth, RATS, "weight")
    params = model.init(jax.random.key(0))
    train = jnp.arange(30) % 5 > 0
    whole, fold = (model.log_joint(params, x) for x in (jnp.ones(30), train.astype(float)))
    terms = model.log_lik(params, {})
    assert fold == pytest.approx(float(whole - terms[~train].sum()), rel=1e-9)


def test_a_prior_that_looks_at_the_outcome_is_caught():
    looking = text(
        "rats_levels", ("mu_alpha ~ normal(250, 20)", "mu_alpha ~ normal(mean(weight), 20)")
    )
    with pytest.raises(PcvError, match="let no prior depend on the outcome"):
        pcv.from_stan(looking, RATS, "weight")


COIN = """
data { int N; array[N] int<lower=0, upper=1> y; }
parameters { real<lower=0, upper=1> p; }
model { y ~ bernoulli(p); }
generated quantities { vector[N] log_lik; for (n in 1:N) log_lik[n] = bernoulli_lpmf(y[n] | p); }
"""
TOSSES = {"y": np.array([0, 1, 1])}


@pytest.mark.parametrize(
    ("program", "data", "outcome", "message"),
    [
        (
            COIN.replace("log_lik", "ll"),
            TOSSES,
            "y",
            "no 'log_lik' in generated quantities; add gen",
        ),
        (COIN, TOSSES, "x", "outcome 'x' is no variable of its data block; it declares y"),
        (COIN, {"y": np.array([0.5, 1])}, "y", r"'y' is declared as int, and has 0.5 at \[0\]"),
        (COIN, {"y": np.array([0, 2])}, "y", "the data do not fit the program: .* 2"),
        (
            COIN.replace("int N;", "int N; real a;"),
            TOSSES,
            "y",
            "declares 'a', which the data lack",
        ),
        (COIN.replace("y ~ bernoulli(p)", "y ~ bernouli(p)"), TOSSES, "y", 'line 4: .* "bernouli"'),
        (COIN.replace("model {", "model { {"), TOSSES, "y", 'line 5: .* Expected .* "}"'),
        (COIN.replace("| p)", "| beta_rng(1, 1))"), TOSSES, "y", r"random numbers \(beta_rng\)"),
        ("parameters { }", TOSSES, "y", "no parameters, or no model block"),
        (COIN, 3, "y", "data is of type int; give arrays by name"),
        ("no.stan", TOSSES, "y", "no.stan: cannot be read: No such file"),
        (COIN, "no.json", "y", "data 'no.json': cannot be read: No such file"),
        (3, TOSSES, "y", "of type int is no Stan program"),
    ],
)
def test_refusals_are_one_clear_line(program, data, outcome, message):
    with pytest.raises(PcvError, match=message) as caught:
        pcv.from_stan(program, data, outcome)
    assert "\n" not in str(caught.value)


def test_files_that_include_others(tmp_path):
    (tmp_path / "terms").mkdir()
    (tmp_path / "terms" / "coin.stan").write_text(
        "log_lik[n] = bernoulli_lpmf(y[n] | p); // it }\n"
    )
    whole = COIN.replace(
        "log_lik[n] = bernoulli_lpmf(y[n] | p); }", "\n#include terms/coin.stan\n}"
    )
    (tmp_path / "program.stan").write_text(whole)
    (tmp_path / "data.json").write_text('{"N": 3, "y": [0, 1, 1]}')
    model = pcv.from_stan(tmp_path / "program.stan", tmp_path / "data.json", "y")
    assert np.allclose(model.log_lik({"p": jnp.zeros(())}, {}), np.log(0.5))
    (tmp_path / "terms" / "coin.stan").unlink()
    with pytest.raises(
        PcvError, match=r"terms/coin.stan \(included by .*program.stan\): cannot be r"
    ):
        pcv.from_stan(tmp_path / "program.stan", tmp_path / "data.json", "y")


def test_columns_of_a_table_fill_the_data():
    """Sizes come from columns, and text is numbered."""
    named = {**RATS, "rat": np.array(list("abcdef"))[RATS["rat"] - 1], "sex": np.array(["m"] * 30)}
    model, numbered = pcv.from_stan(file("rats_levels"), named, "weight"), model_of("rats_levels")
    params = model.init(jax.random.key(0))
    assert np.allclose(model.log_lik(params, {}), numbered.log_lik(params, {}))
    assert {"rat", "sex", "age"} <= set(model.data.columns)


SHORT = {"chains": 4, "draws": 200, "warmup": 30, "progress": False}


def off(cv, exact, df):
    """How many standard errors the elpd of each fold is off, and their limit."""
    elpd, mcse = cv.folds["elpd"].to_numpy(), cv.folds["mcse"].to_numpy()
    return np.abs(elpd - exact) / mcse, z_limit(len(exact), df)


def exact_conjugate(left_out):
    """Closed forms of folds that leave out these units."""
    y, each = CONJUGATE["y"], []
    design = np.column_stack([np.ones(20), CONJUGATE["x"], 0.8 * np.eye(6)[GROUP - 1]])
    cov = design @ design.T + 0.25 * np.eye(20)

    def evidence(units):
        return multivariate_normal.logpdf(y[units], cov=cov[np.ix_(units, units)])

    for test in left_out:
        train = np.setdiff1d(np.arange(20), test)
        each.append(evidence(np.arange(20)) - evidence(train))
    return np.array(each)


@pytest.mark.parametrize("seed", [0, 1])
def test_left_out_groups_have_exact_scores(seed):
    """Effects of left-out groups are found, and integrated out exactly."""
    folds = pcv.leave_one_group_out(GROUP, "group")
    cv = pcv.cross_validate(model_of("conjugate"), folds, seed=seed, **SHORT)
    assert "integrated exactly" in str(cv)
    exact = exact_conjugate([np.flatnonzero(g == GROUP) for g in range(1, 7)])
    z, limit = off(cv, exact, df=15)
    assert z.max() < limit
    pit = cv.table()["pit"]
    assert pit.between(0, 1).all()


def exact_schools():
    """Log predictive density of each school given the others, by quadrature over mu and log tau."""
    y, sigma = SCHOOLS["y"], SCHOOLS["sigma"]
    mu, log_tau = np.meshgrid(np.linspace(-35, 45, 401), np.linspace(-12, 7, 801), indexing="ij")
    tau = np.exp(log_tau)
    prior = norm.logpdf(mu, 0, 5) + np.log(2 / (np.pi * 5 * (1 + (tau / 5) ** 2))) + log_tau
    terms = np.array([norm.logpdf(a, mu, np.hypot(tau, b)) for a, b in zip(y, sigma)])
    whole = logsumexp(prior + terms.sum(0))
    return np.array([whole - logsumexp(prior + terms.sum(0) - one) for one in terms])


def test_eight_schools():
    """Each school's own effect is integrated out; every one against quadrature."""
    model = model_of("schools_noncentred")
    cv = pcv.cross_validate(model, pcv.leave_one_out(8), fit={"target_accept": 0.95}, **SHORT)
    assert cv.diagnostics.attrs["predictive"] == "marginal"
    z, limit = off(cv, exact_schools(), df=15)
    assert z.max() < limit


@pytest.fixture(scope="module")
def of_cmdstanpy(tmp_path_factory):
    """A fit of CmdStanPy, read from files as CmdStan writes them, with stanli's draws."""
    import cmdstanpy
    import stanli

    data = {**CONJUGATE, "N": 20, "J": 6}
    model = stanli.Model(stan_file=str(file("conjugate")), data=data)
    drawn = model.sample(seed=1, chains=2, samples=500, warmup=500, refresh=0)
    folder = tmp_path_factory.mktemp("csv")
    names = ["lp__", "accept_stat__", "stepsize__", "treedepth__", "n_leapfrog__", "divergent__"]
    columns = ["mu", "slope", *(f"z.{j}" for j in range(1, 7))]
    head = [
        *("stan_version_major = 2", "stan_version_minor = 37", "stan_version_patch = 0"),
        *("model = conjugate_model", "method = sample (Default)", "  sample"),
        *("    num_samples = 500", "    num_warmup = 500", "    save_warmup = false (Default)"),
        *("    thin = 1 (Default)", "    algorithm = hmc (Default)", "      hmc"),
        *("        engine = nuts (Default)", "          nuts", "            max_depth = 10"),
        "        metric = diag_e (Default)",
    ]
    for chain in range(2):
        lines = [*(f"# {line}" for line in [*head, f"id = {chain + 1}"])]
        lines += [",".join([*names, "energy__", *columns]), "# Adaptation terminated"]
        lines += ["# Step size = 0.5", "# Diagonal elements of inverse mass matrix:"]
        lines += ["# " + ", ".join(["1"] * 8)]
        z = drawn.draws("z")[chain]
        own = np.column_stack([drawn.draws("mu")[chain], drawn.draws("slope")[chain], z])
        stats = np.column_stack(
            [np.zeros(500), np.full(500, 0.9), np.full((500, 5), [1, 2, 3, 0, 1])]
        )
        lines += [",".join(f"{x:.9g}" for x in row) for row in np.column_stack([stats, own])]
        lines += ["# ", "#  Elapsed Time: 1 seconds (Sampling)", "# "]
        (folder / f"conjugate-{chain + 1}.csv").write_text("\n".join(lines) + "\n")
    return cmdstanpy.from_csv(str(folder))


def test_a_fit_of_cmdstanpy_is_not_made_again(of_cmdstanpy):
    folds = pcv.kfold(20, 4)
    cv = pcv.cross_validate(model_of("conjugate"), folds, fit=of_cmdstanpy, **SHORT)
    units = [test[test >= 0] for test in folds.test]
    z, limit = off(cv, exact_conjugate(units), df=15)
    assert z.max() < limit
    fit = cv.tree["posterior"].to_dataset()
    assert np.allclose(
        fit["mu"].to_numpy(), of_cmdstanpy.draws_xr("mu")["mu"].to_numpy(), atol=1e-6
    )


def test_a_fit_of_other_data_is_refused(of_cmdstanpy):
    other = pcv.from_stan(file("conjugate"), {**CONJUGATE, "y": CONJUGATE["y"][::-1]}, "y")
    with pytest.raises(PcvError, match="not that of this model and these data"):
        pcv.cross_validate(other, pcv.kfold(20, 4), fit=of_cmdstanpy, **SHORT)


def test_results_are_reused_by_what_a_program_computes(tmp_path):
    """Its text and its data are hashed: the same are used again, others are not."""
    call = dict(folds=pcv.kfold(20, 4), results=tmp_path, **SHORT)
    first = pcv.cross_validate(model_of("conjugate"), **call)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*zarr.json")}
    again = pcv.cross_validate(pcv.from_stan(file("conjugate"), CONJUGATE, "y"), **call)
    assert again.elpd == first.elpd
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*zarr.json")}
    prior = text("conjugate", ("mu ~ normal(0, 1)", "mu ~ normal(0, 2)"))
    other = pcv.cross_validate(pcv.from_stan(prior, CONJUGATE, "y"), **call)
    assert other.elpd != first.elpd


class TestConfigs:
    """A config names programs, and columns and numbers as their data."""

    ROWS = {"sex": np.array(["f", "m"] * 10), "unit": np.arange(20)} | CONJUGATE

    def built(self, tmp_path, name="y", **settings):
        rows = {name if column == "y" else column: x for column, x in self.ROWS.items()}
        return build(ModelConfig(model=str(file("conjugate")), **settings), name, rows)

    def test_columns_are_data(self, tmp_path):
        model = self.built(tmp_path)
        params = model.init(jax.random.key(0))
        assert np.allclose(model.log_lik(params, {}), model_of("conjugate").log_lik(params, {}))
        assert model.outcome.name == "y"

    @pytest.mark.parametrize("data", [{"y": "weight"}, "{file}:of_stan"])
    def test_names_are_the_programs(self, tmp_path, data):
        module = tmp_path / "data.py"
        module.write_text("def of_stan(data):\n    return {**data, 'y': data['weight']}\n")
        data = data.format(file=module) if isinstance(data, str) else data
        model = self.built(tmp_path, "weight", data=data)
        params = model.init(jax.random.key(0))
        assert np.allclose(model.log_lik(params, {}), model_of("conjugate").log_lik(params, {}))
        assert model.outcome.name == "weight"
        assert model.predict(jax.random.key(0), params, {}).shape == (20,)

    def test_a_column_that_is_not_there(self, tmp_path):
        with pytest.raises(PcvError, match=r"data\.x: no column 'z'; there are sex, group, x, y"):
            self.built(tmp_path, data={"x": "z"})

    def test_included_files_belong_to_a_program(self, tmp_path):
        (tmp_path / "a.stan").write_text('#include <b.stan>\nmodel { } // #include "none.stan"\n')
        (tmp_path / "b.stan").write_text("parameters { real x; }\n")
        found = reference.sources(str(tmp_path / "a.stan"))
        assert [path.name for path in found] == ["a.stan", "b.stan"]


def test_there_is_no_evidence(tmp_path):
    with pytest.raises(PcvError, match="a program of Stan gives no draws from its prior"):
        pcv.evidence(model_of("conjugate"), progress=False)


def test_scores_without_derivatives_in_the_outcome():
    folds = pcv.kfold(20, 4)
    cv = pcv.cross_validate(model_of("conjugate"), folds, scores=["log", "crps", "dss"], **SHORT)
    assert np.isfinite(cv.score("crps")["estimate"])
    assert np.isfinite(cv.score("dss")["estimate"])
    with pytest.raises(PcvError, match="a program of Stan has no derivative in its outcome"):
        pcv.cross_validate(model_of("conjugate"), folds, scores=["hyvarinen"], **SHORT)


def ordered_in_numpyro(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 1))
    ordered = dist.constraints.ordered_vector
    cut = numpyro.sample("cutpoints", dist.ImproperUniform(ordered, (), (3,)))
    numpyro.factor("prior", dist.Normal(0, 2).log_prob(cut).sum())
    with numpyro.plate("n", len(y)):
        numpyro.sample("y", dist.OrderedLogistic(beta * x, cut), obs=y - 1)


def counts_in_numpyro(site, x, y):
    mu, slope = numpyro.sample("mu", dist.Normal(1, 1)), numpyro.sample("slope", dist.Normal(0, 1))
    tau, phi = numpyro.sample("tau", dist.HalfNormal(1)), numpyro.sample("phi", dist.Gamma(4, 1))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([12]))
    with numpyro.plate("n", len(y)):
        rate = jnp.exp(mu + tau * z[site - 1] + slope * x)
        numpyro.sample("y", dist.NegativeBinomial2(rate, phi), obs=y)


def wells_in_numpyro(x, y):
    alpha = numpyro.sample("alpha", dist.Normal(0, 1))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]))
    with numpyro.plate("n", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=alpha + x @ beta), obs=y)


def radon_in_numpyro(county_idx, log_uppm, floor_measure, log_radon):
    raw = numpyro.sample("raw", dist.Normal(0, 1).expand([int(county_idx.max())]))
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([2]))
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    between, within = (numpyro.sample(name, dist.HalfNormal(1)) for name in ("between", "within"))
    mean = mu + between * raw[county_idx - 1] + log_uppm * beta[0] + floor_measure * beta[1]
    with numpyro.plate("n", len(log_radon)):
        numpyro.sample("log_radon", dist.Normal(mean, within), obs=log_radon)


def schools_in_numpyro(y, sigma):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([8]))
    with numpyro.plate("n", 8):
        numpyro.sample("y", dist.Normal(mu + tau * z, sigma), obs=y)


def rats_table():
    table = pd.read_csv(Path(__file__).parents[1] / "resources/rats.csv")
    data = {"rat": table["rat"].to_numpy(), "age": table["day"].to_numpy() - 22.0}
    return table, data | {"weight": table["weight_g"].to_numpy(float)}


def wells_table():
    table = pd.read_csv(Path(DATA) / "wells.csv")
    x = np.column_stack([table["dist"] / 100, table["arsenic"]])
    return {"x": x, "y": table["switch"].to_numpy()}


def radon_table():
    table = pd.read_csv(Path(DATA) / "radon_mn.csv")
    names = ["county_idx", "log_uppm", "floor_measure", "log_radon"]
    return {name: table[name].to_numpy() for name in names}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "function", "table", "group"),
    [
        ("ordered", ordered_in_numpyro, lambda: DATA_OF["ordered"][0], None),
        ("counts", counts_in_numpyro, lambda: DATA_OF["counts"][0], "site"),
        ("schools_noncentred", schools_in_numpyro, lambda: SCHOOLS, None),
        pytest.param("wells", wells_in_numpyro, wells_table, None, marks=needs_data),
        pytest.param("radon", radon_in_numpyro, radon_table, None, marks=needs_data),
    ],
)
def test_numpyro_agrees(name, function, table, group):
    """elpd of every fold, in Stan and in NumPyro."""
    data, outcome = table(), DATA_OF[name][1]
    number = len(data[outcome])
    folds = pcv.kfold(number, min(number, 5)) if group is None else None
    if group is not None:
        folds = pcv.leave_one_group_out(data[group], group)
    call = partial(pcv.cross_validate, folds=folds, fit={"target_accept": 0.95}, **SHORT)
    ours = call(pcv.from_stan(file(name), data, outcome))
    theirs = call(pcv.from_numpyro(function, data))
    agree(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slopes", "levels"])
def test_rats_agree(name):
    """Both models of the rats, whose effects pcv's own models integrate out analytically."""
    table, data = rats_table()
    folds = pcv.leave_one_group_out(data["rat"], "rat")
    ours = pcv.cross_validate(pcv.from_stan(file(f"rats_{name}"), data, "weight"), folds, **SHORT)
    make = rats.random_slopes if name == "slopes" else rats.common_slope
    columns = {str(column): table[column].to_numpy() for column in table}
    theirs = pcv.cross_validate(make(columns), folds, data=columns, **SHORT)
    assert ours.diagnostics.attrs["integration"] == "exactly"
    agree(ours, theirs)
    known = {"slopes": -560.5, "levels": -574.5}[name]
    assert abs(ours.elpd - known) < z_limit(df=20) * ours.mcse + 0.1


def agree(ours, theirs):
    elpd, mcse = (
        [cv.folds[column].to_numpy() for cv in (ours, theirs)] for column in ("elpd", "mcse")
    )
    z = np.abs(elpd[0] - elpd[1]) / np.hypot(*mcse)
    assert z.max() < z_limit(len(z), df=20)
    assert abs(ours.elpd - theirs.elpd) < z_limit(df=20) * np.hypot(ours.mcse, theirs.mcse)


def test_held_out_data_are_appended():
    """A test set that was never part of the data, against the closed form, with and without N."""
    some = np.arange(20) < 16
    known = {name: x[some] for name, x in CONJUGATE.items()} | {"N": 16, "J": 6}
    new = {name: x[~some] for name, x in CONJUGATE.items()}
    model = pcv.from_stan(file("conjugate"), known, "y")
    result = pcv.score(model, new, progress=False)
    exact = exact_conjugate([np.flatnonzero(~some)])[0]
    joint = result.diagnostics["joint_elpd"].item(), result.diagnostics["joint_mcse"].item()
    assert abs(joint[0] - exact) < z_limit(df=15) * joint[1]


def test_missing_values_are_refused():
    y = CONJUGATE["y"].copy()
    y[3] = np.nan
    with pytest.raises(PcvError, match=r"'y' is missing at \[3\], 1 in all"):
        pcv.from_stan(file("conjugate"), {**CONJUGATE, "y": y}, "y")


LINE = """
data { int N; vector[N] x; vector[N] y; }
transformed data { vector[N] xc = x - mean(x); }
parameters { real a; real b; real<lower=0> s; }
model { a ~ normal(0, 5); b ~ normal(0, 5); s ~ normal(0, 3); MODEL }
generated quantities { GENERATED }
"""
SEEN = {"x": X[:24], "y": 1 + 0.5 * X[:24] + 0.3 * RNG.normal(size=24)}
ALL_TERMS = "for (n in 1:N) log_lik[n] = normal_lpdf(y[n] | a + b * xc[n], s);"
VECTORS = "y ~ normal(a + b * xc, s);"


def line(model, generated, data=SEEN, outcome="y", **options):
    program = LINE.replace("MODEL", model).replace("GENERATED", generated)
    return pcv.from_stan(program, data, outcome, **options)


class TestWaysOfWriting:
    """Programs as others write them, on one regression."""

    @pytest.mark.parametrize(
        "generated",
        [
            "vector[N] log_lik, y_rep; for (n in 1:N) { log_lik[n] = normal_lpdf(y[n] | a + b * "
            "xc[n], s); y_rep[n] = normal_rng(a + b * xc[n], s); }",
            "vector[N] log_lik; vector[N] y_rep; for (n in 1:N) { real m = normal_rng(a, s); "
            "y_rep[n] = m; } for (n in 1:N) { real m = a + b * xc[n]; log_lik[n] = "
            "normal_lpdf(y[n] | m, s); }",
            f"vector[N] log_lik; vector[N] y_rep; {ALL_TERMS} for (n in 1:N) while (1) {{ y_rep[n]"
            " = normal_rng(a, s); if (y_rep[n] > -100) break; }",
            "vector[N] log_lik; for (n in 1:N) { log_lik[n] = normal_lpdf(y[n] | a + b * xc[n], s);"
            ' print("log_lik[", n, "] = ", log_lik[n]); }',
            "vector[N] log_lik; int n = 0; while (1) { n += 1; if (n > N) break; log_lik[n] = "
            "normal_lpdf(y[n] | a + b * xc[n], s); }",
        ],
    )
    def test_generated_quantities(self, generated, capfd):
        model, plain = (line(VECTORS, x) for x in (generated, f"vector[N] log_lik; {ALL_TERMS}"))
        params = model.init(jax.random.key(0))
        assert np.allclose(model.log_lik(params, {}), plain.log_lik(params, {}))
        assert "log_lik[" not in capfd.readouterr().out

    def test_terms_among_transformed_parameters(self):
        program = LINE.replace(
            "model {", f"transformed parameters {{ vector[N] log_lik; {ALL_TERMS} }}\nmodel {{"
        )
        program = program.replace("MODEL", "target += sum(log_lik);").replace("GENERATED", "")
        model, plain = (
            pcv.from_stan(program, SEEN, "y"),
            line(VECTORS, f"vector[N] log_lik; {ALL_TERMS}"),
        )
        params = model.init(jax.random.key(0))
        assert np.allclose(model.log_lik(params, {}), plain.log_lik(params, {}))

    @pytest.mark.parametrize(
        ("model", "terms", "scale"),
        [
            (VECTORS, ALL_TERMS.replace(", s);", ", s) + log(s);"), 1),
            ("for (n in 1:N) y[n] ~ normal(a + b * xc[n], s) T[0,];", ALL_TERMS, 1),
            (VECTORS, ALL_TERMS.replace(", s);", ", s) + log(s);"), 1000),
        ],
    )
    def test_missing_terms_without_the_outcome_are_caught(self, model, terms, scale):
        data = {**SEEN, "y": scale * np.abs(SEEN["y"])}
        with pytest.raises(PcvError, match="lacks a term, or has one too many: with its row"):
            line(model, f"vector[N] log_lik; {terms}", data)

    def test_what_cannot_be_compared_is_said(self):
        only = "y ~ normal(a + b * xc, s);"
        reject = LINE.replace(
            "parameters {", 'transformed data { if (N < 24) reject("few"); }\nparameters {', 1
        ).replace("transformed data { vector[N] xc = x - mean(x); }", "")
        program = reject.replace("MODEL", only).replace(
            "GENERATED", f"vector[N] log_lik; {ALL_TERMS}"
        )
        program = program.replace("xc[n]", "x[n]").replace("xc", "x")
        (note,) = pcv.from_stan(program, SEEN, "y").notes
        assert "rows of the data cannot be left out" in note


class TestData:
    @pytest.mark.parametrize(
        "y", [pd.Series([0, 3, 10, 2], dtype=object), np.array(["0", "3", "10", "2"])]
    )
    def test_numbers_as_text_are_numbers(self, y):
        program = COIN.replace("<lower=0, upper=1> y", " y").replace("bernoulli", "poisson")
        program = program.replace(", upper=1> p", "> p")
        given = (pcv.from_stan(program, {"y": x}, "y") for x in (y, np.array([0, 3, 10, 2])))
        one, other = (model.log_lik({"p": jnp.zeros(())}, {}) for model in given)
        assert np.array_equal(one, other)

    def test_ordered_categories_keep_their_order(self):
        labels = np.array(["low", "medium", "high"])[np.arange(60) % 3]
        order = pd.Categorical(labels, ["low", "medium", "high"], ordered=True)
        data = {"x": X, "K": 3}
        one = pcv.from_stan(file("ordered"), {**data, "y": order}, "y")
        other = pcv.from_stan(file("ordered"), {**data, "y": np.arange(60) % 3 + 1}, "y")
        params = one.init(jax.random.key(0))
        assert np.array_equal(one.log_lik(params, {}), other.log_lik(params, {}))
        with pytest.raises(PcvError, match="'y' holds 'low', which is not a number"):
            pcv.from_stan(file("ordered"), {**data, "y": labels}, "y")

    def test_an_outcome_is_what_the_program_declares(self):
        whole = {**SEEN, "y": np.round(SEEN["y"]).astype(int)}
        model = line(VECTORS, f"vector[N] log_lik; {ALL_TERMS}", whole)
        assert not model.outcome.discrete
        params = model.init(jax.random.key(0))
        moved = model.log_lik(params, {"y": jnp.asarray(whole["y"] + 0.7)})
        other = line(VECTORS, f"vector[N] log_lik; {ALL_TERMS}", {**whole, "y": whole["y"] + 0.7})
        assert np.allclose(moved, other.log_lik(params, {}))

    def test_replicates_have_the_shape_of_the_outcome(self):
        drawn = "array[3] real y_rep = normal_rng(rep_vector(a, 3), s); vector[N] log_lik;"
        model = line(VECTORS, f"{drawn} {ALL_TERMS}")
        assert model.predict is None
        assert "it is taken for something else" in model.notes[-1]
        assert line(VECTORS, f"{drawn} {ALL_TERMS}", replicates=None).notes == []

    def test_a_mask_of_ones_own_is_refused(self):
        data = {**DATA_OF["held_out"][0], "holdout": np.arange(60) % 2}
        with pytest.raises(PcvError, match="'holdout' leaves units out, or is no mask"):
            pcv.from_stan(file("held_out"), data, "y")


def test_single_precision():
    model = line(VECTORS, f"vector[N] log_lik; {ALL_TERMS}")
    cv = pcv.cross_validate(model, pcv.kfold(24, 4), precision="float32", **SHORT)
    other = pcv.cross_validate(model, pcv.kfold(24, 4), **SHORT)
    assert abs(cv.elpd - other.elpd) < z_limit(df=15) * np.hypot(cv.mcse, other.mcse)


def test_a_model_of_bridgestan(tmp_path, monkeypatch):
    """Its program is read beside its library, and compiled anew by its toolchain, here stanli's."""
    import bridgestan
    import stanli

    real = bridgestan.StanModel

    def loaded(library, data, **options):
        if "libstanli" in str(library):
            return real(library, data, warn=False)
        return stanli.bridgestan_model(stan_file=library, data=data)

    compiled = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(bridgestan, "compile_model", lambda x, **_: compiled.append(x) or x)
    monkeypatch.setattr(bridgestan, "StanModel", loaded)
    (tmp_path / "conjugate.stan").write_text(text("conjugate"))
    data = {name: x.tolist() for name, x in CONJUGATE.items()} | {"N": 20, "J": 6}
    library = str(tmp_path / "conjugate_model.so")
    model = pcv.from_stan(SimpleNamespace(lib_path=library, data=json.dumps(data)), outcome="y")
    params = model.init(jax.random.key(0))
    assert np.allclose(model.log_lik(params, {}), model_of("conjugate").log_lik(params, {}))
    assert len(compiled) == 3
    (tmp_path / "conjugate.stan").unlink()
    with pytest.raises(PcvError, match=r"conjugate\.stan, is not beside its library"):
        pcv.from_stan(SimpleNamespace(lib_path=library, data="{}"), outcome="y")
