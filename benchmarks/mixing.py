"""How often the benchmarks of R-hat max and of nested R-hat raise an alarm.

    .venv/bin/python benchmarks/mixing.py

30 folds; share of 200 replications in which at most 1% (5%) of the benchmark's replicates reach the
observed value. Chains are AR(1) with unit variance; in one of one fold something may be wrong.
"""

from collections.abc import Callable

import numpy as np

from pcv.analysis.diagnostics import Benchmark, batch_sums, nested_benchmark, rhat_max_benchmark

FOLDS, REPLICATIONS = 30, 200
Spoil = Callable[[np.ndarray], None]


def chains(rng: np.random.Generator, num_chains: int, num_draws: int, phi: float) -> np.ndarray:
    x = rng.normal(size=(FOLDS, num_chains, num_draws))
    for t in range(1, num_draws):
        x[..., t] = phi * x[..., t - 1] + np.sqrt(1 - phi**2) * x[..., t]
    return x


def shift(by: float, num_chains: int = 1) -> Spoil:
    def spoil(x: np.ndarray) -> None:
        x[7, :num_chains] += by

    return spoil


def stick(x: np.ndarray) -> None:
    x[7, 0] = x[7, 0, :1]


def nothing(x: np.ndarray) -> None:
    pass


def alarms(
    num_chains: int,
    num_draws: int,
    phi: float,
    spoil: Spoil,
    test: Callable[[np.random.Generator, np.ndarray], Benchmark],
    replications: int = REPLICATIONS,
) -> str:
    shares = []
    for seed in range(replications):
        rng = np.random.default_rng(seed)
        x = chains(rng, num_chains, num_draws, phi)
        spoil(x)
        shares.append(test(rng, x).share_above)
    found = np.array(shares)
    return f"{(found <= 0.01).mean():6.1%} {(found <= 0.05).mean():6.1%}"


def of_rhat(rng: np.random.Generator, x: np.ndarray) -> Benchmark:
    return rhat_max_benchmark(rng, batch_sums(x, 50), replicates=200)


def of_nested_rhat(rng: np.random.Generator, x: np.ndarray) -> Benchmark:
    return nested_benchmark(rng, batch_sums(x, 1), 4, replicates=200)


if __name__ == "__main__":
    print("R-hat max, 8 chains x 200 draws, batches of 50           <= 1%  <= 5%")
    for phi in (0.0, 0.5, 0.8, 0.9):
        print(f"  healthy, AR(1) {phi:<3}                                  ", end="")
        print(alarms(8, 200, phi, nothing, of_rhat))
    for name, spoil in (
        ("one chain shifted by 0.5 sd", shift(0.5)),
        ("one chain shifted by 1 sd", shift(1.0)),
        ("one chain shifted by 5 sd", shift(5.0)),
        ("one chain stuck", stick),
    ):
        print(f"  {name:<30} AR(1) 0.5             ", alarms(8, 200, 0.5, spoil, of_rhat))
    print("Nested R-hat, 4 superchains of 16 chains                 <= 1%  <= 5%")
    for num_draws in (1, 5):
        for name, spoil in (
            ("healthy", nothing),
            ("one superchain shifted by 0.5 sd", shift(0.5, 16)),
            ("one superchain shifted by 1 sd", shift(1.0, 16)),
            ("one superchain shifted by 2 sd", shift(2.0, 16)),
        ):
            number = 1000 if spoil is nothing else REPLICATIONS
            found = alarms(64, num_draws, 0.5, spoil, of_nested_rhat, number)
            print(f"  {name:<34} {num_draws} draw{'s' * (num_draws > 1)} a chain      ", found)
