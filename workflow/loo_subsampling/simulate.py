r"""Simulated regressions, and draws of their posteriors from sums over the data.

    python simulate.py data linear_r10 OUTPUT.zarr
    python simulate.py draws DATA.zarr MODEL OUTPUT.zarr

A linear regression's likelihood depends on the data through :math:`X^\top X`, :math:`X^\top y` and
:math:`y^\top y`, so that a posterior costs the same for any n.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float

from pcv.base import devices
from pcv.pipeline.storage import store

SEED = 20201
COLUMNS, RELEVANT = 110, 100
"""of the data sets with a given R²: the first 100 have coefficient 1, the others 0"""
CHAINS, WARMUP = 4, 500
GRID = 10_000


def simulated(name: str) -> xr.Dataset:
    """``linear_r10``: 10,000 rows, R² = .10. ``sparse_1e6``: 10⁶ rows, one coefficient of 1 among
    100, and noise of scale 1."""
    kind, size = name.split("_")
    rng = np.random.default_rng([SEED, *name.encode()])
    if kind == "linear":
        share = int(size[1:]) / 100
        n, columns, relevant = 10_000, COLUMNS, RELEVANT
        sigma = np.sqrt(relevant * (1 - share) / share)
    else:
        n, columns, relevant, sigma = int(float(size)), 100, 1, 1.0
    x = rng.standard_normal((n, columns))
    y = x[:, :relevant].sum(1) + sigma * rng.standard_normal(n)
    return xr.Dataset({"x": (("row", "column"), x), "y": ("row", y)})


class Sums(NamedTuple):
    """What the likelihood of a linear regression depends on."""

    xx: Float[np.ndarray, "column column"]
    xy: Float[np.ndarray, " column"]
    yy: float
    n: int


def posterior(
    data: xr.Dataset, covariates: int, horseshoe: bool = False, draws: int = 500
) -> xr.DataTree:
    """Draws from the posterior of `models.linear`, in ArviZ's groups."""
    x, y = data["x"].values[:, :covariates], data["y"].values
    sums = Sums(x.T @ x, x.T @ y, float(y @ y), len(y))
    drawn = (_by_nuts if horseshoe else _exactly)(sums, draws)
    variables = {
        name: (("chain", "draw", *(f"{name}_dim",) * (x.ndim - 2)), np.asarray(x))
        for name, x in drawn.items()
    }
    return xr.DataTree.from_dict({"posterior": xr.Dataset(variables)})


def _exactly(sums: Sums, draws: int) -> dict[str, np.ndarray]:
    """With the normal prior: the noise by its marginal density, then the coefficients."""
    from loo_subsampling.models import NOISE

    rng = np.random.default_rng(SEED)
    values, vectors = np.linalg.eigh(sums.xx)
    along = vectors.T @ sums.xy
    fitted = np.sqrt((sums.yy - sums.xy @ np.linalg.solve(sums.xx, sums.xy)) / sums.n)
    sigma = fitted * (1 + np.linspace(-8, 8, GRID) / np.sqrt(2 * sums.n))
    precision = 1 + values / sigma[:, None] ** 2
    log_density = (
        -sums.n * np.log(sigma)
        - (sums.yy - (along**2 / sigma[:, None] ** 2 / precision).sum(1)) / sigma**2 / 2
        - np.log(precision).sum(1) / 2
        + np.asarray(NOISE.log_prob(sigma))
    )
    share = np.cumsum(np.exp(log_density - log_density.max()))
    drawn = np.interp(rng.random((CHAINS, draws)), share / share[-1], sigma)[..., None]
    precision = 1 + values / drawn**2
    noise = rng.standard_normal(precision.shape)
    coefficients = along / drawn**2 / precision + noise / np.sqrt(precision)
    return {"sigma": drawn[..., 0], "beta": coefficients @ vectors.T}


def _by_nuts(sums: Sums, draws: int) -> dict[str, Any]:
    """With the horseshoe: NUTS moves each coefficient on the scale of its posterior, given the
    other parameters, as if covariates were orthogonal."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    from loo_subsampling.models import LOCAL, NOISE, SLAB, horseshoe_scale

    (covariates,), diagonal = sums.xy.shape, np.diag(sums.xx)
    estimate = np.linalg.solve(sums.xx, sums.xy)
    least = sums.yy - sums.xy @ estimate  # squares of residuals

    def model() -> None:
        theta = {"sigma": numpyro.sample("sigma", NOISE)}
        ratio = numpyro.sample("ratio", LOCAL)
        tau = ratio * theta["sigma"] / ((covariates - 1) * np.sqrt(sums.n))
        theta["tau"] = numpyro.deterministic("tau", tau)
        theta["local"] = numpyro.sample("local", LOCAL.expand((covariates,)))
        theta["slab"] = numpyro.sample("slab", SLAB)
        prior, variance = horseshoe_scale(theta), theta["sigma"] ** 2
        sd = (prior**-2 + diagonal / variance) ** -0.5
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), (covariates,)))
        beta = numpyro.deterministic("beta", sd * (sd * diagonal / variance * estimate + z))
        off = beta - estimate
        log_lik = -sums.n * jnp.log(theta["sigma"]) - (least + off @ sums.xx @ off) / variance / 2
        log_prior = dist.Normal(0.0, prior).log_prob(beta).sum()
        numpyro.factor("coefficients", log_lik + log_prior + jnp.log(sd).sum())

    ways = {"num_chains": CHAINS, "chain_method": "vectorized", "progress_bar": False}
    sampler = MCMC(NUTS(model), num_warmup=WARMUP, num_samples=draws, **ways)
    sampler.run(jax.random.key(SEED))
    drawn = sampler.get_samples(group_by_chain=True)
    return {name: x for name, x in drawn.items() if name not in ("ratio", "z")}


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulated regressions and their posteriors.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("data").add_argument("name")
    of_draws = commands.add_parser("draws")
    of_draws.add_argument("data")
    of_draws.add_argument("model", help="d90, of the first 90 columns, or normal or horseshoe")
    of_draws.add_argument("--draws", type=int, default=500, help="of each chain")
    for one in commands.choices.values():
        one.add_argument("output")
    args = parser.parse_args()
    if args.command == "data":
        store.put(args.output, simulated(args.name), mode="w")
        return
    with devices.at_work("float64"), store.opened(args.data) as data:
        first = int(args.model[1:]) if args.model[1:].isdigit() else data.sizes["column"]
        found = posterior(data, first, args.model == "horseshoe", args.draws)
        store.put(args.output, found, mode="w")


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    main()
