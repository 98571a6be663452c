"""A tiny project of a user: a CSV, a file of models, a config, and its stages."""

import copy
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from pcv.base.errors import PcvError
from pcv.base.monitor import Monitor
from pcv.pipeline import config, stages
from pcv.pipeline.job import Job
from pcv.pipeline.stages import inputs
from pcv.pipeline.storage.artifacts import Finished, batches, known_to, places, require

MODELS = '''
"""Models of the yield of plots in fields."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import pcv
from pcv import Model, Outcome, support


def built(prior, mean, data):
    """A Gaussian model whose mean is a function of the parameters and the data."""
    space = support({name: p.support for name, p in prior.items()})

    def init(key):
        keys = jax.random.split(key, len(prior))
        draws = {name: p.sample(k) for (name, p), k in zip(prior.items(), keys)}
        return space.unconstrain(draws)

    def log_prior(params):
        theta = space.constrain(params)
        total = sum(p.log_prob(theta[name]) for name, p in prior.items())
        return total + space.log_jacobian(params)

    def log_lik(params, data):
        theta = space.constrain(params)
        sd = theta.get("sigma", 1.0)
        return dist.Normal(mean(theta, data), sd).log_prob(data["yield_t"])

    def predict(key, params, data):
        theta = space.constrain(params)
        middle = mean(theta, data) + 0 * data["rain"]
        return dist.Normal(middle, theta.get("sigma", 1.0)).sample(key)

    def moments(params, data):
        theta = space.constrain(params)
        middle = mean(theta, data) + 0 * data["rain"]
        return middle, theta.get("sigma", 1.0) ** 2 + 0 * middle

    return Model(
        init, log_prior, log_lik, space.constrain, Outcome("yield_t"), predict=predict,
        moments=moments,
    )


def linear(data, scale=5.0):
    prior = {
        "a": dist.Normal(0.0, scale), "b": dist.Normal(0.0, 1.0), "sigma": dist.HalfNormal(2.0)
    }
    return built(prior, lambda theta, data: theta["a"] + theta["b"] * data["rain"], data)


def flat(data, scale=5.0):
    prior = {"a": dist.Normal(0.0, scale), "sigma": dist.HalfNormal(2.0)}
    return built(prior, lambda theta, data: theta["a"], data)


def conjugate(data):
    """A line whose noise is known: its folds have closed forms."""
    prior = {"a": dist.Normal(0.0, 5.0), "b": dist.Normal(0.0, 1.0)}
    return built(prior, lambda theta, data: theta["a"] + theta["b"] * data["rain"], data)


def lagged(data):
    """An autoregression of the yields."""
    before = np.roll(data["yield_t"], 1)
    prior = {"a": dist.Normal(0.0, 1.0), "sigma": dist.HalfNormal(2.0)}
    return built(prior, lambda theta, data: theta["a"] * before, data)


def without_slopes(data):
    """A vector of parameters that happens to be empty."""
    prior = {"a": dist.Normal(0.0, 5.0), "b": dist.Normal(0.0, 1.0).expand([0]).to_event(1)}
    return built(prior, lambda theta, data: theta["a"], data)


def two_peaks(data):
    """Two modes, at a = 3 and a = -3, that no chain leaves."""
    prior = {"a": dist.Normal(0.0, 10.0)}
    return built(prior, lambda theta, data: 40 * (jnp.abs(theta["a"]) - 3) + 2, data)


def funnel(data):
    """Neal's funnel, hardly touched by the data: no step size suits neck and mouth."""
    prior = {"v": dist.Normal(0.0, 3.0), "x": dist.Normal(0.0, 1.0).expand([2])}
    model = built(prior, lambda theta, data: 2 + 1e-3 * theta["v"], data)

    def log_prior(params):
        v = params["v"]
        return (
            dist.Normal(0.0, 3.0).log_prob(v)
            + dist.Normal(0.0, jnp.exp(v / 2)).log_prob(params["x"]).sum()
        )

    return model._replace(log_prior=log_prior)


def noted(data):
    return flat(data)._replace(notes=["its scores are of half a log density"])


def bad(part, function):
    return lambda data: flat(data)._replace(**{part: function})


LIK = flat({}).log_lik
PRIOR = flat({}).log_prior
lik_scalar = bad("log_lik", lambda p, d: LIK(p, d).sum())
lik_short = bad("log_lik", lambda p, d: LIK(p, d)[:-1])
lik_dict = bad("log_lik", lambda p, d: {"yield_t": LIK(p, d)})
lik_nan = bad("log_lik", lambda p, d: LIK(p, d) + jnp.where(d["rain"] > 1.4, jnp.nan, 0.0))
lik_if = bad("log_lik", lambda p, d: LIK(p, d) if p["a"] > 0 else -LIK(p, d))
lik_key = bad("log_lik", lambda p, d: LIK(p, d) + d["rian"])
lik_text = bad("log_lik", lambda p, d: LIK(p, d) + (d["field"] == "a"))
prior_vector = bad("log_prior", lambda p: PRIOR(p) * jnp.ones(3))
prior_nan = bad("log_prior", lambda p: PRIOR(p) + jnp.nan)
gradient_nan = bad("log_prior", lambda p: PRIOR(p) + jnp.sqrt(0.0 * p["a"]))
init_array = bad("init", lambda key: jnp.zeros(2))
init_integer = bad("init", lambda key: {"a": jnp.zeros((), int), "sigma": jnp.zeros(())})
init_name = bad("init", lambda key: {"a": jnp.zeros(()), "sgima": jnp.zeros(())})
constrain_key = bad("constrain", lambda p: {"b": p["b"]})
constrain_array = bad("constrain", lambda p: p["a"])
outcome_name = bad("outcome", Outcome("yeild_t"))
outcome_text = bad("outcome", "yield_t")
marginal_shape = bad("marginal", lambda p, d, test: (LIK(p, d)[test], LIK(p, d)[test]))

group_length = bad("group", np.arange(3))


def number(data):
    return 3


def heavy():
    def above(key, target, params, fold):
        return {"p": target.predict(key, params, fold) > 2.5}

    return pcv.Score(
        "heavy", "pointwise", above, lambda means, y: -((means["p"] - (y > 2.5)) ** 2),
        total="mean", needs=("predict",),
    )
'''
CONFIG = {
    "seed": 1,
    "experiments": {
        "yields": {
            "data": {"file": "data.csv", "outcome": "yield_t", "order": ["plot"]},
            "folds": {"scheme": "leave_one_group_out", "group": "field"},
            "models": {
                "linear": {"model": "models.py:linear", "args": {"scale": 5.0}},
                "flat": {"model": "models.py:flat", "args": {"scale": 5.0}},
            },
            "fit": {"warmup": 200, "draws": 200},
            "cv": {"chains": 4, "warmup": 20, "draws": 60, "batch_size": 12},
        }
    },
}


def table():
    rng = np.random.default_rng(5)
    rain = rng.normal(size=12)
    noise = rng.normal(size=12) / 2
    return pd.DataFrame(
        {
            "plot": np.arange(12, 0, -1),
            "field": np.repeat(list("abcd"), 3),
            "rain": rain.round(3),
            "yield_t": (2 + 0.8 * rain + noise).round(3),
        }
    )


def log_lik_table(full=True):
    """Log likelihoods of the plots as another program writes them, by rows of the table, which the
    config sorts: those of row r are about -1 - r/10. Without a fold: of the full data."""
    rng, field = np.random.default_rng(7), table()["field"].to_numpy()
    parts = []
    for name, rows in [(x, np.flatnonzero(field == x)) for x in "dbca"] + [
        (None, np.arange(12))
    ] * full:
        places = [
            x.ravel()
            for x in np.meshgrid(rows, range(4), range(100 if name else 200), indexing="ij")
        ]
        row, chain, draw = places
        log_lik = -1 - (row + 1) / 10 + rng.normal(0, 0.2, row.size)
        columns = {"chain": chain + 1, "draw": draw + 1, "unit": row + 1, "log_lik": log_lik}
        parts.append(pd.DataFrame({"fold": name, **columns}))
    return pd.concat(parts, ignore_index=True)


class Project(NamedTuple):
    """A folder with data, models and results, and what was said."""

    folder: Path
    said: list[str]

    def job(self, changes=None, model="", batch="", results="results", settings=CONFIG):
        """A job of the config with some keys changed, ``{"fit.draws": 300}``."""
        settings = copy.deepcopy(settings)
        experiment = settings["experiments"]["yields"]
        for key, value in (changes or {}).items():
            *path, last = key.split(".")
            section = settings if key in ("seed", "precision") else experiment
            for name in path:
                section = section.setdefault(name, {})
            section[last] = copy.deepcopy(value)
        monitor = Monitor(emit=self.said.append)
        return Job(config.parse(settings), "yields", Path(results), model, batch, monitor)

    def path(self, name, results="results"):
        return Path(results, "yields", name)


def run(job, *names, allow_bad_fit=False):
    """Run stages one after another, for all models and fold batches, or the job's."""
    result = None
    for name in names:
        models = [job.model] if job.model else list(job.settings.models)
        each = [job]
        if name in ("fit", "warmup", "sample", "diagnose"):
            each = [job._replace(model=model) for model in models]
        if name in ("warmup", "sample"):
            each = [batch for part in each for batch in batches(part)]
        for part in each:
            options = {"allow_bad_fit": True} if name == "fit" and allow_bad_fit else {}
            stage = inputs.check if name == "check" else getattr(stages, name)
            result = stage(part, **options)
    return result


def run_all(job):
    """Run every stage before the comparison, reusing artifacts that are up to date."""
    finished = []
    for stage, part in places(job):
        if stage == "compare":
            return
        known = known_to(part, finished)
        try:
            stamp = require(part, stage, known)
        except PcvError:
            getattr(stages, stage)(part)
            stamp = require(part, stage, known)
        finished.append(Finished(stage, part, stamp))


def set_up(folder):
    folder.mkdir(exist_ok=True)
    (folder / "models.py").write_text(MODELS)
    table().to_csv(folder / "data.csv", index=False)
    return Project(folder, [])


EXPERIMENT = CONFIG["experiments"]["yields"]
ONE_MODEL = CONFIG | {
    "experiments": {
        "yields": EXPERIMENT
        | {
            "models": {"flat": EXPERIMENT["models"]["flat"]},
            "scores": ["log", "crps"],
            "cv": EXPERIMENT["cv"] | {"fold_batches": 2},
        }
    }
}
