"""What both sides of a fold are worth: `PCV_DATA=... python -m benchmarks.two_sided`, ten minutes.

First normal sides in d dimensions, whose elpd is exact: errors against those that are stated, from
both sides and from the fold's draws alone. Then models: the error of a fold is the spread of its
estimates over seeds, each with a fit of its own, from the same draws.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd

import pcv
from benchmarks.data import data_file
from benchmarks.loo import rats, wells
from pcv.analysis import diagnostics as diag
from pcv.api.result import CV
from pcv.base import devices
from pcv.base.process import all_cores

REPLICATIONS, DRAWS, BATCH_SIZE = 1000, 1600, 50
SEEDS = range(1, 11)


def normal_sides(dim: int, apart: float, rng: np.random.Generator) -> dict[str, str]:
    """y ~ N(theta, 1) with theta ~ N(0, 1), in every dimension, for y so far from 0."""

    def score(theta: np.ndarray) -> np.ndarray:
        return -(((apart - theta) ** 2).sum(-1) + dim * np.log(2 * np.pi)) / 2

    def own(number: int) -> np.ndarray:
        return score(rng.normal(size=(REPLICATIONS, number, dim)))

    def full(number: int) -> np.ndarray:
        return score((apart + np.sqrt(2) * rng.normal(size=(REPLICATIONS, number, dim))) / 2)

    exact = -dim * (apart**2 / 4 + np.log(4 * np.pi) / 2)
    shift, s0, s1 = diag.balanced_shift(own(200), full(100)), own(DRAWS), full(DRAWS)
    in_batches = s0.reshape(REPLICATIONS, 8, -1, BATCH_SIZE)
    sides = diag.Sides(
        shift,
        diag.crossing(in_batches, shift, own=True),
        diag.crossing(s1.reshape(REPLICATIONS, -1, BATCH_SIZE), shift, own=False),
        DRAWS,
    )
    sums = diag.batch_sums(s0.reshape(REPLICATIONS, 8, -1), BATCH_SIZE)
    two, one = diag.two_sided(sums, sides), diag.two_sided(sums, None)
    row = {
        "d": str(dim),
        "sides apart (sd)": f"{apart * np.sqrt(dim):.1f}",
        "sd of s": f"{s0.std(1).mean():.1f}",
        "overlap": f"{two.overlap.mean():.2g}",
        "draws that cross": f"{two.carry.mean():.0f}",
        "gap p < .01": f"{(two.gap_p < 0.01).mean():.1%}",
    }
    for name, found in (("both sides", two), ("one side", one)):
        error, stated = found.elpd - exact, diag.two_sided_mcse(found)
        z = error / stated
        row[f"{name}: error, stated"] = f"{_rms(error):.3f}, {_rms(stated):.3f}"
        row[f"{name}: z, sd"] = f"{z.mean():+.2f}, {z.std():.2f}"
    return row


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


def of_rats(predictive: str, seed: int) -> CV:
    model, table = rats()
    folds = {"scheme": "leave_one_group_out", "group": "rat"}
    at = {"data": table, "predictive": predictive, "seed": seed, "progress": False}
    return pcv.cross_validate(model, folds, **at)


def homes(y: np.ndarray, floor: np.ndarray, county: np.ndarray) -> None:
    mean, slope = (numpyro.sample(name, dist.Normal(0, 2)) for name in ("mean", "slope"))
    between, within = (numpyro.sample(name, dist.HalfNormal(1)) for name in ("between", "within"))
    with numpyro.plate("counties", county.max() + 1):
        z = numpyro.sample("z", dist.Normal(0, 1))
    with numpyro.plate("homes", len(y)):
        middle = mean + between * z[county] + slope * floor
        numpyro.sample("log_radon", dist.Normal(middle, within), obs=y)


def of_radon(predictive: str, seed: int) -> CV:
    table = pd.read_csv(data_file("radon_mn.csv"))
    y, floor = table["log_radon"].to_numpy(), table["floor_measure"].to_numpy(float)
    county = np.unique(table["county_idx"], return_inverse=True)[1]
    model = pcv.from_numpyro(homes, {"y": y, "floor": floor, "county": county})
    at = {"predictive": predictive, "seed": seed, "progress": False}
    return pcv.cross_validate(model, pcv.leave_one_group_out(county), **at)


def of_wells(seed: int) -> CV:
    return pcv.cross_validate(wells(604), "loo", seed=seed, progress=False)


def of_model(call: Callable[[int], CV]) -> dict[str, str]:
    found = [call(seed).diagnostics for seed in SEEDS]
    row = {"folds": str(found[0].sizes["fold"])}
    spread = {}
    for name, what in (("joint_elpd", "both sides"), ("own_elpd", "one side")):
        each = np.stack([d[name].values for d in found])
        spread[what] = each.std(axis=0, ddof=1)
        stated = np.stack([d[name.replace("elpd", "mcse")].values for d in found])
        row[f"{what}: error, stated"] = f"{_rms(spread[what]):.4f}, {_rms(stated):.4f}"
        row[f"{what}: worst fold"] = f"{spread[what].max():.3f}"
        row[f"{what}: sd of the sum"] = f"{each.sum(1).std(ddof=1):.3f}"
    row["ratio"] = f"{_rms(spread['both sides']) / _rms(spread['one side']):.2f}"
    row["least overlap"] = f"{min(float(d['overlap'].min()) for d in found):.2g}"
    row["flagged"] = str(sum(int((d["verdict"] != "ok").sum()) for d in found))
    return row


def main() -> None:
    rng = np.random.default_rng(1)
    cases = ((1, 1.0), (1, 3.0), (5, 1.0), (5, 2.0), (20, 1.0), (50, 1.0), (60, 1.0))
    print(pd.DataFrame([normal_sides(*case, rng) for case in cases]).to_string(index=False))
    devices.setup(all_cores())
    for name, call in (
        ("rats, marginal", partial(of_rats, "auto")),
        ("rats, plain", partial(of_rats, "plain")),
        ("radon MN, marginal", partial(of_radon, "auto")),
        ("radon MN, plain", partial(of_radon, "plain")),
        ("wells, 604 folds", of_wells),
    ):
        print(f"\n{name}\n{pd.DataFrame([of_model(call)]).T.to_string(header=False)}", flush=True)


if __name__ == "__main__":
    main()
