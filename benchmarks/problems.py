"""What is timed: models, each written once for PyMC and NumPyro alike, their data and folds.

pcv and nutpie are given the PyMC model, NumPyro's own sampler the other. `PCV_DATA` names the
folder of the data that the repository does not contain.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

import pcv
from benchmarks.data import data_file

Columns = Mapping[str, np.ndarray]
Sides = tuple[Any, ...]
"""what the outcome's distribution is made of"""


class InPyMC:
    """Distributions by the names that models call them by."""

    def normal(self, name: str, mean: Any, sd: Any, size: int | None = None) -> Any:
        import pymc as pm

        return pm.Normal(name, mean, sd, shape=size)

    def half_normal(self, name: str, sd: float) -> Any:
        import pymc as pm

        return pm.HalfNormal(name, sd)

    def beta(self, name: str, a: float, b: float, size: int) -> Any:
        import pymc as pm

        return pm.Beta(name, a, b, shape=size)

    def outcome(self, kind: str, at: Sides, y: Any) -> None:
        import pymc as pm

        if kind == "normal":
            pm.Normal("y", *at, observed=y)
        elif kind == "bernoulli":
            pm.Bernoulli("y", logit_p=at[0], observed=y)
        else:
            pm.Poisson("y", pm.math.exp(at[0]), observed=y)


class InNumPyro:
    """The same; a mask tells which rows are trained on, if not all."""

    def __init__(self, train: Any = None) -> None:
        self.train = train

    def normal(self, name: str, mean: Any, sd: Any, size: int | None = None) -> Any:
        import numpyro
        import numpyro.distributions as dist

        one = dist.Normal(mean, sd)
        return numpyro.sample(name, one if size is None else one.expand([size]))

    def half_normal(self, name: str, sd: float) -> Any:
        import numpyro
        import numpyro.distributions as dist

        return numpyro.sample(name, dist.HalfNormal(sd))

    def beta(self, name: str, a: float, b: float, size: int) -> Any:
        import numpyro
        import numpyro.distributions as dist

        return numpyro.sample(name, dist.Beta(a, b).expand([size]))

    def outcome(self, kind: str, at: Sides, y: Any) -> None:
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as dist

        if kind == "normal":
            each: Any = dist.Normal(*at)
        elif kind == "bernoulli":
            each = dist.Bernoulli(logits=at[0])
        else:
            each = dist.Poisson(jnp.exp(at[0]))
        if self.train is not None:
            each = each.mask(self.train)
        numpyro.sample("y", each, obs=y)


class Written(NamedTuple):
    """A model: its prior, and of what its outcome's distribution is made, for one draw or many."""

    prior: Callable[[Any, Columns], dict[str, Any]]
    kind: str
    """of the outcome: normal, bernoulli or poisson"""
    at: Callable[[Mapping[str, Any], Columns], Sides]
    """of parameters whose leading axis, where they have one, is that of the draws"""


class Problem(NamedTuple):
    table: Callable[[], dict[str, np.ndarray]]
    models: dict[str, Written]
    folds: Callable[[Columns], pcv.Folds]
    looped: int
    """folds that a loop is timed on, evenly spaced; its seconds are of all of them by proportion"""
    long: bool = False
    """is compiling little of it? Then it is measured cold alone"""
    programs: Mapping[str, Path] = {}
    """of Stan, which pcv is given in place of PyMC's models"""


def write(language: InPyMC | InNumPyro, model: Written, d: Columns) -> None:
    """The model, in a `pm.Model` or as a function of NumPyro."""
    language.outcome(model.kind, model.at(model.prior(language, d), d), d["y"])


def log_lik(model: Written, theta: Columns, d: Columns) -> np.ndarray:
    """Of draws (first axis) and rows."""
    at = model.at(theta, d)
    if model.kind == "normal":
        mean, sd = at[0], np.asarray(at[1])[:, None]
        return -(((d["y"] - mean) / sd) ** 2) / 2 - np.log(sd) - np.log(2 * np.pi) / 2
    if model.kind == "bernoulli":
        return -np.logaddexp(0, (1 - 2 * d["y"]) * at[0])
    return d["y"] * at[0] - np.exp(at[0]) - special.gammaln(d["y"] + 1)


def of(theta: Mapping[str, Any], name: str) -> Any:
    """A number for each draw, beside rows."""
    x = theta[name]
    return x[:, None] if isinstance(x, np.ndarray) and x.ndim == 1 else x


def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(data_file(name))


def _by_group(d: Columns) -> pcv.Folds:
    return pcv.leave_one_group_out(d["g"])


def _rats() -> dict[str, np.ndarray]:
    table = pd.read_csv(Path(__file__).parents[1] / "resources/rats.csv")
    return {
        "y": table["weight_g"].to_numpy(float),
        "x": table["day"].to_numpy() - 22.0,
        "g": table["rat"].to_numpy() - 1,
    }


def _rats_prior(say: Any, d: Columns) -> dict[str, Any]:
    mean, sd = say.normal("mu_a", 250, 50), say.half_normal("sd_a", 25)
    return {"a": say.normal("a", mean, sd, 30), "sigma": say.half_normal("sigma", 10)}


def _rats_slopes(say: Any, d: Columns) -> dict[str, Any]:
    mean, sd = say.normal("mu_b", 6, 5), say.half_normal("sd_b", 2)
    return _rats_prior(say, d) | {"b": say.normal("b", mean, sd, 30)}


def _rats_common(say: Any, d: Columns) -> dict[str, Any]:
    return _rats_prior(say, d) | {"b": say.normal("b", 6, 5)}


def _own_lines(theta: Mapping[str, Any], d: Columns) -> Sides:
    return theta["a"][..., d["g"]] + theta["b"][..., d["g"]] * d["x"], theta["sigma"]


def _one_slope(theta: Mapping[str, Any], d: Columns) -> Sides:
    return theta["a"][..., d["g"]] + of(theta, "b") * d["x"], theta["sigma"]


def _levels(theta: Mapping[str, Any], d: Columns) -> Sides:
    return theta["a"][..., d["g"]], theta["sigma"]


def _grouped() -> dict[str, np.ndarray]:
    """50 groups of 5, as example 1 of PCV has them."""
    rng = np.random.default_rng(1)
    x, g = rng.normal(0, np.sqrt(10), (50, 4)), np.repeat(np.arange(50), 5)
    level = rng.normal(0.5, 1.0, 50) + x @ rng.normal(size=4)
    return {"y": level[g] + rng.normal(size=250), "x": x[g], "g": g}


def _grouped_prior(say: Any, d: Columns) -> dict[str, Any]:
    mean, sd = say.normal("mu", 0, 1), say.half_normal("sd_a", np.sqrt(10))
    return {
        "a": say.normal("a", mean, sd, 50),
        "b": say.normal("b", 0, 1, 4),
        "sigma": say.half_normal("sigma", np.sqrt(10)),
    }


def _regression(theta: Mapping[str, Any], d: Columns) -> Sides:
    return theta["a"][..., d["g"]] + theta["b"] @ d["x"].T, theta["sigma"]


def _radon(name: str) -> dict[str, np.ndarray]:
    table = _read(name)
    return {
        "y": table["log_radon"].to_numpy(),
        "x": table["floor_measure"].to_numpy(float),
        "g": pd.factorize(table["county_idx"])[0],
    }


def _radon_prior(num: int, floor: bool) -> Callable[[Any, Columns], dict[str, Any]]:
    def prior(say: Any, d: Columns) -> dict[str, Any]:
        mean, between = say.normal("mu", 0, 4), say.half_normal("tau", 1)
        a = mean + between * say.normal("z", 0, 1, num)
        theta = {"a": a, "sigma": say.half_normal("sigma", 2)}
        return theta | ({"b": say.normal("b", 0, 1)} if floor else {})

    return prior


def _of_z(at: Callable[[Mapping[str, Any], Columns], Sides]) -> Any:
    """Of draws, which have z and no a."""

    def made(theta: Mapping[str, Any], d: Columns) -> Sides:
        if "a" not in theta:
            theta = dict(theta) | {"a": of(theta, "mu") + of(theta, "tau") * theta["z"]}
        return at(theta, d)

    return made


def _air() -> dict[str, np.ndarray]:
    """Monthly growth of outbound passengers, where all its twelve lags are there."""
    table = _read("air_passengers_au.csv")
    level = table["outbound"].to_numpy(float)
    growth = level[1:] / level[:-1] - 1
    month = table["month"].to_numpy()[13:]
    lags = [growth[12 - i : -i] for i in range(1, 13)]
    dummies = (month[:, None] == np.arange(2, 13)).astype(float)
    return {
        "y": growth[12:],
        "x": np.column_stack([np.ones(len(month)), dummies]),
        "lags": np.column_stack(lags),
    }


def _air_prior(say: Any, d: Columns) -> dict[str, Any]:
    return {
        "b": say.normal("b", 0, 1, 12),
        "rho": say.beta("rho", 5, 5, 12),
        "sigma": say.half_normal("sigma", 1),
    }


def _autoregression(theta: Mapping[str, Any], d: Columns) -> Sides:
    return theta["b"] @ d["x"].T + (2 * theta["rho"] - 1) @ d["lags"].T, theta["sigma"]


def _wells() -> dict[str, np.ndarray]:
    table = _read("wells.csv").iloc[::5]
    return {
        "y": table["switch"].to_numpy(),
        "x": table["dist"].to_numpy() / 100,
        "z": table["arsenic"].to_numpy(),
    }


def _wells_prior(say: Any, d: Columns) -> dict[str, Any]:
    return {name: say.normal(name, 0, 1) for name in "abc"}


def _logits(theta: Mapping[str, Any], d: Columns) -> Sides:
    return (of(theta, "a") + of(theta, "b") * d["x"] + of(theta, "c") * d["z"],)


def _counts() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    g = np.repeat(np.arange(400), 5)
    x = rng.normal(size=2000)
    rate = np.exp(0.5 + rng.normal(0, 0.7, 400)[g] + 0.3 * x)
    return {"y": rng.poisson(rate), "x": x, "g": g}


def _counts_prior(say: Any, d: Columns) -> dict[str, Any]:
    a = say.normal("a", say.normal("mu", 0, 2), say.half_normal("tau", 1), 400)
    return {"a": a, "b": say.normal("b", 0, 1)}


def _log_rate(theta: Mapping[str, Any], d: Columns) -> Sides:
    return (theta["a"][..., d["g"]] + of(theta, "b") * d["x"],)


def _one_ahead(d: Columns) -> pcv.Folds:
    return pcv.leave_future_out(len(d["y"]), len(d["y"]) - 394)


PROBLEMS = {
    "rats": Problem(
        _rats,
        {
            "slopes": Written(_rats_slopes, "normal", _own_lines),
            "common": Written(_rats_common, "normal", _one_slope),
        },
        _by_group,
        30,
    ),
    "grouped": Problem(
        _grouped, {"all_four": Written(_grouped_prior, "normal", _regression)}, _by_group, 50
    ),
    "radon_mn": Problem(
        lambda: _radon("radon_mn.csv"),
        {"floor": Written(_radon_prior(85, True), "normal", _of_z(_one_slope))},
        _by_group,
        85,
    ),
    "radon_us": Problem(
        lambda: _radon("radon_us.csv"),
        {
            "floor": Written(_radon_prior(386, True), "normal", _of_z(_one_slope)),
            "levels": Written(_radon_prior(386, False), "normal", _of_z(_levels)),
        },
        _by_group,
        4,
        long=True,
    ),
    "air": Problem(
        _air, {"monthly": Written(_air_prior, "normal", _autoregression)}, _one_ahead, 40
    ),
    "wells": Problem(
        _wells,
        {"linear": Written(_wells_prior, "bernoulli", _logits)},
        lambda d: pcv.leave_one_out(len(d["y"])),
        60,
    ),
    "counts": Problem(
        _counts, {"levels": Written(_counts_prior, "poisson", _log_rate)}, _by_group, 20, long=True
    ),
}
PROBLEMS["rats_stan"] = PROBLEMS["rats"]._replace(
    programs={
        name: Path(__file__).parent / f"stan/rats_{name}.stan" for name in PROBLEMS["rats"].models
    }
)
"""by the names that the results have"""
