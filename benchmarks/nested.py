"""How many superchains, and for how long: what `cv.warmup: auto` leaves of the bias of starts.

    .venv/bin/python -m benchmarks.nested
    .venv/bin/python -m benchmarks.nested rats

A score of two AR(1) components, a fast one (φ = .3) and a slow one with a share of its variance.
Chains start one or two standard deviations off, in the same direction in all folds, as draws of the
full data do, and with the spread of the score. The bias of each fold, given its starts, is known.

Or the rats of the quickstart, by 256 chains of 10 draws, with several warmups.
"""

import itertools
import sys
from unittest import mock

import numpy as np
import pandas as pd
from jaxtyping import Float

import pcv
from pcv.analysis.diagnostics import batch_sums, nested_limit, nested_rhat, tolerated
from pcv.analysis.stopping.config import looks
from pcv.models.zoo.rats import random_slopes
from pcv.sampling.folds import lasting
from pcv.sampling.folds.lasting import FIRST, KEPT, LAST, enough

FOLDS = 100
FAST = 0.3
CASES = (*itertools.product((0.8, 0.9), (1.0, 0.1), (1.0, 2.0)), (0.95, 0.03, 1.0))
"""φ of the slow component, its share of the variance, and how far off chains start"""
SUPERCHAINS = {
    32: (4, 8),
    100: (4, 10, 20, 50),
    1000: (4, 10, 25, 50, 200),
    10_000: (4, 10, 25, 100),
}


def warmed_up(
    rng: np.random.Generator, chains: int, superchains: int, phi: float, share: float, off: float
) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, "2 fold"]]:
    """Draws at the look at which each fold's superchains agree, and in all; biases after either."""
    memory, size = np.array([FAST, phi]), np.sqrt([1 - share, share])
    start = off + rng.normal(size=(FOLDS, superchains, 1, 2))
    x = np.broadcast_to(start, (FOLDS, superchains, chains // superchains, 2))
    x = x.reshape(FOLDS, chains, 2).copy()
    agreed, left, done = np.full(FOLDS, LAST), np.arange(FOLDS), 0
    for until in (KEPT, *looks(FIRST, LAST, 1)):
        scores = np.empty((len(left), chains, until - done))
        for t in range(until - done):
            x = memory * x + np.sqrt(1 - memory**2) * rng.normal(size=x.shape)
            scores[..., t] = x @ size
        done = until
        if done < FIRST:
            continue
        sums = batch_sums(scores, scores.shape[2])
        limit = nested_limit(sums, superchains, tolerated(chains))
        agree = nested_rhat(sums, superchains) <= limit
        agreed[left[agree]] = done
        left, x = left[~agree], x[~agree]
        if not len(left):
            break
    total = np.array([enough(look, chains, superchains) for look in agreed])
    mean = start.mean((1, 2))
    biases = [(mean * size * memory ** at[:, None]).sum(1) for at in (agreed, total)]
    return agreed, total, np.array(biases)


def rows(rng: np.random.Generator) -> pd.DataFrame:
    """The worst and the typical case of every design."""
    found = []
    for chains, numbers in SUPERCHAINS.items():
        for superchains in numbers:
            made = [warmed_up(rng, chains, superchains, *case) for case in CASES]
            agreed, total = (np.array([x[i].mean() for x in made]) for i in (0, 1))
            # of the sum over folds, in Monte Carlo errors of one draw of each chain
            off = np.abs([x[2].sum(1) for x in made]) * np.sqrt(chains / FOLDS)
            found.append(
                {
                    "chains": chains,
                    "K × M": f"{superchains} × {chains // superchains}",
                    "agree after": f"{np.median(agreed):.0f}",
                    "off": f"{np.median(off[:, 0]):.2f}, {off[:, 0].max():.1f}",
                    "warmup": f"{np.median(total):.0f}, {total.max():.0f}",
                    "off then": f"{np.median(off[:, 1]):.3f}, {off[:, 1].max():.2f}",
                }
            )
            print(found[-1], flush=True)
    return pd.DataFrame(found)


def of_rats() -> None:
    """elpd by short chains, beside that of 200 draws each."""
    table = pd.read_csv("resources/rats.csv").sort_values(["rat", "day"])
    data = {name: table[name].to_numpy() for name in table}
    model = random_slopes(data, priors="paper")
    auto = [{"warmup": "auto", "seed": seed} for seed in range(3)]
    for name, settings in [
        ("200 draws", {"draws": 200}),
        ("a warmup of 50", {}),
        *((f"auto, seed {x['seed']}", x) for x in auto),
        *((f"until superchains agree, seed {x['seed']}", x) for x in auto),
    ]:
        at_once = name.startswith("until")
        with mock.patch.object(lasting, "enough", at_agreement if at_once else enough):
            cv = pcv.cross_validate(
                model,
                {"scheme": "leave_one_group_out", "group": "rat"},
                data=data,
                chains=256,
                progress=False,
                **{"draws": 10, **settings},
            )
        print(f"{name}: elpd {cv.elpd:.2f}, MCSE {cv.mcse:.3f}", flush=True)


def at_agreement(look: int, *_: int) -> int:
    return look + KEPT


if __name__ == "__main__":
    if sys.argv[1:] == ["rats"]:
        of_rats()
    else:
        print(rows(np.random.default_rng(1)).to_markdown(index=False))
