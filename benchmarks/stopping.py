"""Does stopping folds when their answer is in bias them? Rules side by side on one set of chains.

    .venv/bin/python -m benchmarks.stopping

First the rule `decide`, then folds that end for themselves: AR(1) chains of a log score
s ~ N(0, σ), whose exact elpd is σ²/2; every row uses the same draws.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.special import ndtri

from pcv.analysis.diagnostics import LogSums, batch_sums, elpd, mcse
from pcv.analysis.stopping.config import looks
from pcv.analysis.stopping.rule import Rule, finished
from tests.looks import by_share

FOLDS, CHAINS, BATCH, LONGEST = 4000, 4, 50, 2000
PHI = 0.5
COMPARISONS, ROUNDS = 100_000, 4
TOLERANCE = 0.03


def chains(rng: np.random.Generator, sigma: float) -> np.ndarray:
    s = np.empty((FOLDS, CHAINS, LONGEST), np.float32)
    s[:, :, 0] = rng.normal(size=(FOLDS, CHAINS))
    for t in range(1, LONGEST):
        noise = rng.normal(size=(FOLDS, CHAINS))
        s[:, :, t] = PHI * s[:, :, t - 1] + np.sqrt(1 - PHI**2) * noise
    return sigma * s


def stopped(
    sums: LogSums, lengths: list[int], done: Callable[[LogSums], np.ndarray]
) -> tuple[np.ndarray, LogSums]:
    number = np.full(FOLDS, lengths[-1])
    for length in reversed(lengths[:-1]):
        number[done(LogSums(*(x[:, :, : length // BATCH] for x in sums)))] = length
    there = np.arange(LONGEST // BATCH) * BATCH < number[:, None, None]
    return number, sums._replace(count=np.where(there, sums.count, 0))


def decided(diff: float, mcse_over_se: float, rng: np.random.Generator) -> dict[str, str]:
    """Rounds of twice the draws until a difference is clear with probability .99, if ever.

    Normal errors: a difference with standard error 1, and the MCSE of the first round.
    """
    error = rng.normal(0, mcse_over_se, COMPARISONS)
    found, used = np.full(COMPARISONS, np.nan), np.full(COMPARISONS, 2.0**ROUNDS)
    for r in range(ROUNDS + 1):
        mcse_now = mcse_over_se / 2 ** (r / 2)
        open_ = np.isnan(found)
        found[open_ & ((np.abs(diff + error) - ndtri(0.99)) / 2 >= mcse_now)] = 1
        new = open_ & (found == 1)
        used[new] = 2.0**r
        found[new] = (diff + error)[new]
        # twice the draws: the mean of the old error and an independent one of equal size
        error = (error + rng.normal(0, mcse_now, COMPARISONS)) / 2
    clear = ~np.isnan(found)
    return {
        "difference / SE": f"{diff:g}",
        "first MCSE / SE": f"{mcse_over_se:g}",
        "decided": f"{clear.mean():.0%}",
        "for the wrong model": f"{(found < 0).mean():.2%}",
        "bias / SE, where decided": f"{np.nanmean(found) - diff:+.3f}" if clear.any() else "",
        "draws, in first rounds": f"{used.mean():.1f}",
    }


def of_totals(share: float) -> dict[str, str]:
    """Sums of 20 folds that end by a share of the SE, as tests/looks.py makes them."""
    found = by_share(share, 8)
    error, z = found.early.error, found.early.error / found.early.mcse
    size = error.std(ddof=1)
    return {
        "share of the SE": f"{share:g}",
        "draws": f"{found.draws.mean():.0f}",
        "bias / Monte Carlo error": f"{error.mean() / size:+.3f} ± {2 / np.sqrt(len(error)):.3f}",
        "sd of z": f"{z.std(ddof=1):.2f}",
    }


def main() -> None:
    shares = [of_totals(share) for share in (0.04, 0.05, 0.06, 0.08)]
    print(pd.DataFrame(shares).to_string(index=False), "\n")
    rng = np.random.default_rng(1)
    cases = [(diff, share) for share in (0.1, 0.4) for diff in (0.0, 2.0, 2.5, 3.0, 4.0)]
    print(pd.DataFrame([decided(*case, rng) for case in cases]).to_string(index=False), "\n")
    rows = []
    rule = Rule(np.full(FOLDS, TOLERANCE), 1.05)
    rules = {
        "fixed: 400 draws": ([400], None),
        "pcv: from 200 draws on, growing by half": (looks(200, LONGEST, BATCH), rule),
        "pcv: from 100 draws on, growing by half": (looks(100, LONGEST, BATCH), rule),
        "from 50 draws on, every batch, MCSE alone": (list(range(50, LONGEST + 1, BATCH)), None),
    }
    for sigma in (0.3, 0.6, 1.0):
        drawn = chains(np.random.default_rng(1), sigma)
        parts = [batch_sums(drawn[i : i + 500].astype(float), BATCH) for i in range(0, FOLDS, 500)]
        sums = LogSums(*(np.concatenate(x) for x in zip(*parts)))
        for name, (lengths, own) in rules.items():

            def done(so_far: LogSums, own: Rule | None = own) -> np.ndarray:
                return finished(so_far, own) if own else mcse(so_far) <= TOLERANCE

            number, kept = stopped(sums, lengths, done)
            error = elpd(kept) - sigma**2 / 2
            z = error / mcse(kept)
            rows.append(
                {
                    "sd of s": sigma,
                    "rule": name,
                    "draws": f"{number.mean():.0f}",
                    "bias": f"{error.mean():.4f} ± {2 * error.std() / np.sqrt(FOLDS):.4f}",
                    "RMSE": f"{np.sqrt((error**2).mean()):.4f}",
                    "sd of z": f"{z.std():.2f}",
                }
            )
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
