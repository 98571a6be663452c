"""How often is the whole verdict wrong? `python -m benchmarks.verdicts [tails] [healthy]
[chains] [psis]`, some 40 minutes.

Log scores whose exact elpd is known, as AR(1) chains of all folds (10 to 1,000 folds, 8 to 256
chains of 50 to 1,000 draws, φ of 0 to .8), judged as by default, with superchains from 32 chains
on: healthy designs, in which every flag is a false alarm, and designs in one fold of which
something is wrong. There it is a miss where that fold is not flagged although its estimate is off
by more than four of its MCSEs.
"""

import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.signal import lfilter
from scipy.stats import norm

from pcv.analysis.diagnostics import (
    autocorrelation,
    batch_inflation,
    batch_sums,
    elpd,
    hidden_variance,
    mcse,
    mixing_benchmark,
    pareto_khat,
    third_moments,
)
from pcv.analysis.diagnostics.psis import MOST_INFORMED, psis
from pcv.analysis.run_verdict import run_verdict
from pcv.analysis.verdicts import faults, heavy_tail
from pcv.core.settings import CvConfig

HEALTHY, FAULTY = 200, 40
"""designs, of each fault"""
MOST_DRAWS = 2**21
"""of all folds of a design"""
CHAINS = (8, 32, 64, 256)
BAD = 3
"""the fold in which something is wrong"""


class Design(NamedTuple):
    folds: int
    chains: int
    draws: int
    phi: float
    sd: float

    @property
    def effective(self) -> float:
        """Draws of s that would be as good if they were independent."""
        return self.chains * self.draws * (1 - self.phi) / (1 + self.phi)


def drawn(
    rng: np.random.Generator,
    enough: float,
    most: float,
    sd: tuple[float, ...],
    chains: tuple[int, ...] = CHAINS,
) -> Design:
    """A design whose effective draws are from `enough` to `most`."""
    while True:
        design = Design(
            int(rng.choice([10, 30, 100, 300, 1000])),
            int(rng.choice(chains)),
            int(rng.choice([50, 100, 200, 400, 1000])),
            float(rng.choice([0.0, 0.3, 0.5, 0.7, 0.8])),
            float(rng.choice(sd)),
        )
        if (
            enough <= design.effective < most
            and design.folds * design.chains * design.draws <= MOST_DRAWS
        ):
            return design


def chains(rng: np.random.Generator, shape: tuple[int, ...], phi: float) -> np.ndarray:
    """Stationary AR(1) along the last axis, normal with variance 1."""
    steps = rng.normal(size=shape)
    steps[..., 1:] *= np.sqrt(1 - phi**2)
    return lfilter([1], [1, -phi], steps)


def stuck(rng: np.random.Generator, d: Design, x: np.ndarray) -> None:
    """One chain stays at its first draw."""
    x[0] = x[0, :1]


def shifted(rng: np.random.Generator, d: Design, x: np.ndarray) -> None:
    """One chain lies 2 sd above the others."""
    x[0] += 2


def two_modes(rng: np.random.Generator, d: Design, x: np.ndarray) -> None:
    """A second mode lies 4 sd higher, in which one chain of eight stays instead of half of them."""
    x += 4 * (np.arange(len(x)) < max(len(x) // 8, 1))[:, None]


def drifting(rng: np.random.Generator, d: Design, x: np.ndarray) -> None:
    """All chains are still on their way, by 3 sd from the first to the last draw."""
    x -= 3 * np.linspace(1, 0, x.shape[1])


def slow(rng: np.random.Generator, d: Design, x: np.ndarray) -> None:
    """Chains of that fold need as many draws as there are to forget where they started."""
    x[:] = chains(rng, x.shape, np.exp(-1 / x.shape[1]))


def frozen(rng: np.random.Generator, d: Design, x: np.ndarray) -> None:
    """No chain of the fold moves."""
    x[:] = x[:, :1]


def heavy(rng: np.random.Generator, d: Design, x: np.ndarray) -> None:
    """s is normal with an sd of 3, so that few draws carry exp(s)."""
    x *= 3 / d.sd


def pareto(rng: np.random.Generator, d: Design, x: np.ndarray) -> None:
    """exp(s) has no mean: s is exponential with mean 1.2."""
    x[:] = rng.exponential(1.2 / d.sd, x.shape)


EXACT: dict[Callable, Callable[[Design], float]] = {
    two_modes: lambda d: d.sd**2 / 2 + np.log((1 + np.exp(4 * d.sd)) / 2),
    heavy: lambda d: 4.5,
    pareto: lambda d: np.inf,
}
"""elpd of the bad fold, where it is not that of the others"""


FAULTS = (stuck, shifted, two_modes, drifting, slow, frozen, heavy, pareto)


class Found(NamedTuple):
    said: str
    """of the run"""
    flagged: np.ndarray
    """which folds"""
    off: np.ndarray
    """error of each fold in MCSEs"""
    total_off: float
    """error of their sum in MCSEs"""


def verdict(seed: int, design: Design, fault: Callable | None) -> Found:
    rng = np.random.default_rng(seed)
    x = chains(rng, (design.folds, design.chains, design.draws), design.phi)
    if fault:
        fault(rng, design, x[BAD])
    s = design.sd * x
    batch = min(50, design.draws // 2)
    sums = batch_sums(s, batch)
    exact = np.full(design.folds, design.sd**2 / 2)
    if fault in EXACT:
        exact[BAD] = EXACT[fault](design)
    superchains = CvConfig(chains=design.chains).num_superchains
    benchmark = mixing_benchmark(rng, sums, superchains)
    inflation = batch_inflation(autocorrelation(sums))
    words = faults(
        sums,
        pareto_khat(s),
        np.zeros(design.folds),
        benchmark,
        "plain",
        superchains,
        hidden=hidden_variance(sums, third_moments(s, batch)),
        inflation=inflation,
    ).words()
    said = run_verdict([f"fold {k}" for k in range(design.folds)], words, benchmark, superchains)
    error, size = elpd(sums) - exact, np.sqrt(inflation) * mcse(sums)
    with np.errstate(divide="ignore"):
        off = np.abs(error) / size
    return Found(said, words != "ok", off, float(abs(error.sum()) / np.sqrt((size**2).sum())))


def reason(words: str) -> str:
    """What kind of flag it is, for the table of false alarms."""
    kinds = {
        "implies a variance": "hidden variance",
        "k-hat": "k-hat",
        "with an ESS": "R-hat above 1.05, few draws",
        "halves of the chains": "drift",
        "from different starts disagree": "nested R-hat",
        "chains disagree": "R-hat",
        "Nested R-hat max": "nested R-hat max",
        "have not mixed": "R-hat max",
        "ESS": "ESS below 50",
    }
    return next((kind for sign, kind in kinds.items() if sign in words), "other")


def why(found: list[Found]) -> str:
    counts = Counter(reason(each.said) for each in found if each.said != "ok")
    return ", ".join(f"{kind} {number}" for kind, number in counts.most_common())


def percent(x: list[bool]) -> str:
    return f"{np.mean(x):.1%}"


def tails(s: np.ndarray, exact: float) -> str:
    """What 1,600 independent draws of s say of a fold, over and over."""
    sums, khat = batch_sums(s, 50), pareto_khat(s)
    z = (elpd(sums) - exact) / mcse(sums)
    alone = heavy_tail(sums, khat)
    both = heavy_tail(sums, khat, hidden_variance(sums, third_moments(s, 50)))
    of_sums = heavy_tail(sums, np.full(len(s), np.nan))
    far = np.abs(z) > 4
    cells = [f"{np.median(khat):.2f}", f"{z.mean():.2f}", f"{z.std():.2f}", f"{far.mean():.1%}"]
    for flagged in (alone, both, of_sums):
        cells += [f"{flagged.mean():.1%}", f"{(far & ~flagged).mean():.1%}"]
    return " | ".join(cells)


def of_tails() -> None:
    """When the MCSE of a score is too small, and what tells."""
    rng = np.random.default_rng(1)
    print("| s | sd | k-hat | mean z | sd of z | over 4 MCSE | by k-hat | missed", end=" ")
    print("| or hidden variance | missed | by sums alone | missed |")
    print("|---" * 12 + "|")
    shape = (1000, 8, 200)
    for sd in (0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0):
        words = tails(rng.normal(0, sd, shape), sd**2 / 2)
        print(f"| normal | {sd} | {words} |", flush=True)
    for sd in (1.0, 2.0, 4.0):
        words = tails(-rng.gamma(4, sd / 2, shape), -4 * np.log1p(sd / 2))
        print(f"| minus gamma, shape 4 | {sd} | {words} |", flush=True)
    for sd in (0.5, 1.0, 1.5):
        words = tails(rng.gamma(25, sd / 5, shape), -25 * np.log1p(-sd / 5))
        print(f"| gamma, shape 25 | {sd} | {words} |", flush=True)


def designs(rng: np.random.Generator, number: int, fault: Callable | None, *of: Any) -> list[Found]:
    return [verdict(int(rng.integers(2**32)), drawn(rng, *of), fault) for _ in range(number)]


def of_healthy() -> None:
    """False alarms by the number of effective draws and the sd of s."""
    rng = np.random.default_rng(2)
    head = ("effective draws", "sd of s", "designs", "any flag", "folds flagged")
    print("|", " | ".join((*head, "sum off by over 4 MCSE", "first reasons")), "|")
    print("|---" * 7 + "|")
    for low, high in ((400, 1000), (1000, np.inf), (100, 400)):
        for sds in ((0.1, 0.3, 0.6, 1.0), (1.25, 1.5), (2.0,)):
            number = HEALTHY if low > 100 and sds[0] == 0.1 else HEALTHY // 4
            found = designs(rng, number, None, low, high, sds)
            cells = (
                f"{low} to {high:.0f}".replace("to inf", "and more"),
                ", ".join(map(str, sds)),
                str(number),
                percent([each.said != "ok" for each in found]),
                f"{np.concatenate([each.flagged for each in found]).mean():.2%}",
                percent([each.total_off > 4 for each in found]),
                why(found),
            )
            print("|", " | ".join(cells), "|", flush=True)


def of_chains() -> None:
    """False alarms and misses of what users of so many chains get."""
    rng, enough = np.random.default_rng(3), (400, np.inf)
    print("| chains | designs | any flag | folds flagged | first reasons |")
    print("|---" * 5 + "|")
    for number in CHAINS:
        found = designs(rng, HEALTHY, None, *enough, (0.1, 0.3, 0.6, 1.0), (number,))
        flagged = np.concatenate([each.flagged for each in found])
        cells = (str(number), str(HEALTHY), percent([each.said != "ok" for each in found]))
        print("|", " | ".join((*cells, f"{flagged.mean():.2%}", why(found))), "|", flush=True)
    print("\n| fault of one fold: flagged, missed of those off by over 4 MCSE |", end=" ")
    print(" | ".join(f"{number} chains" for number in CHAINS), "|")
    print("|---" * (1 + len(CHAINS)) + "|")
    for fault in FAULTS:
        cells = [fault.__doc__.rstrip(".").lower() if fault.__doc__ else ""]
        for number in CHAINS:
            found = designs(rng, FAULTY, fault, *enough, (0.3, 0.6, 1.0), (number,))
            off = [each for each in found if not each.off[BAD] <= 4]
            missed = sum(not each.flagged[BAD] for each in off)
            seen = percent([each.flagged[BAD] for each in found])
            cells.append(f"{seen}, {missed} of {len(off)}")
        print("|", " | ".join(cells), "|", flush=True)


def of_psis() -> None:
    """Folds by PSIS, beside exact answers: test sets that inform one to six directions of a normal
    posterior, each by .15 to 3 times as much as the prior; some outlying. Those with a k-hat of .4
    to .7, of 2,000 for each number of draws."""
    rng = np.random.default_rng(4)
    print("| draws | lpd - elpd (nats) | folds | off by over 3 MCSE | over .3 nats | over 1 nat |")
    print("|---" * 6 + "|")
    bounds = (-np.inf, 0.25, MOST_INFORMED, 1.0, np.inf)
    for number in (1000, 4000):
        p, khat, mcse_, error = (np.empty(2000) for _ in range(4))
        for k in range(len(p)):
            dim = int(rng.choice([1, 1, 2, 3, 4, 6]))
            prior = rng.uniform(0.3, 3, dim) * rng.choice([1.0, 1.0, 0.5])
            y = rng.normal(size=dim) * np.sqrt(prior + 1) * rng.choice([1.0, 1.0, 1.5])
            sd = np.sqrt(prior / (1 + prior))
            theta = y * sd**2 + sd * rng.normal(size=(4, number // 4, 1, dim))
            joint = norm.logpdf(y, theta).sum(-1)
            found = psis(joint, joint[..., None], np.zeros((1, 1), int))
            exact = norm.logpdf(y, 0, np.sqrt(1 + prior)).sum()
            p[k], khat[k] = found.joint_lpd[0] - found.joint_elpd[0], found.khat[0]
            mcse_[k], error[k] = found.joint_mcse[0], found.joint_elpd[0] - exact
        near = (khat > 0.4) & (khat <= 0.7)
        for low, high in pairwise(bounds):
            some = near & (p > low) & (p <= high)
            off = np.abs(error[some])
            cells = [percent(off > x) for x in (3 * mcse_[some], 0.3, 1.0)]
            place = f"{low:g} to {high:g}".replace("-inf to", "up to").replace("to inf", "and more")
            print("|", " | ".join((str(number), place, str(some.sum()), *cells)), "|", flush=True)


PARTS = {"tails": of_tails, "healthy": of_healthy, "chains": of_chains, "psis": of_psis}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        print(f"{PARTS[name].__doc__}\n")
        PARTS[name]()
        print()
