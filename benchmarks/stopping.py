"""Does stopping folds when their answer is in bias them? Rules side by side on one set of chains.

    .venv/bin/python benchmarks/stopping.py

AR(1) chains of a log score s ~ N(0, σ): the exact elpd is σ²/2. Every row uses the same draws.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from pcv.diagnostics import LogSums, batch_sums, elpd, mcse
from pcv.stopping import Rule, finished, looks

FOLDS, CHAINS, BATCH, LONGEST = 4000, 4, 50, 2000
PHI = 0.5
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


def main() -> None:
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
