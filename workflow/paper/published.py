"""Results of Cooper, Vehtari, Forbes, Simpson and Kennedy (2024) and their code for the examples.

Printed numbers are from text, tables or the authors' notebooks; plotted ones were read off figures,
and are only as accurate as that. Neither are exact values.
"""

from typing import NamedTuple


class Difference(NamedTuple):
    """Difference of joint log scores, A minus B, as plotted."""

    value: float
    se: float
    mcse: float
    p_better: float
    figure: int
    text: str = ""
    """what the text adds"""


class Mean(NamedTuple):
    """A full-data posterior mean printed by the authors, for the priors of their code."""

    experiment: str
    model: int
    """0 is A, 1 is B"""
    variable: str
    """name in the posterior, with an index in brackets for an array"""
    label: str
    value: float
    decimals: int = 3


class Inference(NamedTuple):
    """One row of tables 2 to 4, as printed."""

    chains: int
    posteriors: int
    warmup: int
    draws: int
    seconds: tuple[float, float]
    """warmup (with compilation) and sampling"""


class Mixing(NamedTuple):
    """The paper's captions on R-hat, and on when the answer has settled."""

    rhat_figure: int
    above: str
    """how long the largest R-hat of all folds stays above 1.01"""
    above_draws: int
    """the same in draws per chain, at least"""
    benchmark_figure: int
    mixed: dict[int, bool]
    """draws per chain → whether the benchmark suggests that the chains have mixed"""
    settles: str
    """when Pr(A better) settles"""
    settles_by: int
    """the same in draws per chain, at most"""


class RunTimes(NamedTuple):
    """Tables 2 to 4."""

    experiment: str
    caption: str
    a: Inference
    b: Inference
    folds: Inference
    device: str
    brute_force: str
    """the paper's estimate for fitting every fold in turn"""
    text: str
    """what the text says about all folds"""


DIFFERENCES = {
    "example1": Difference(14.5, 5.8, 0.5, 0.99, 1),
    "example2": Difference(11.3, 7.9, 0.8, 0.92, 6, "Pr about 90%"),
    "example3": Difference(59.0, 15.6, 2.7, 1.0, 7, "Pr about 100%"),
    "example4": Difference(65.0, 14.3, 0.3, 1.0, 8),
}

MIXING = {
    "example1": Mixing(
        3,
        "for most of 1,000 draws",
        500,
        4,
        {50: False, 100: True},
        "after a few hundred draws",
        500,
    ),
    "example2": Mixing(
        9,
        "for at least 1,750 draws",
        1_750,
        10,
        {50: False, 500: True},
        "after about 1,000 draws",
        1_000,
    ),
    "example3": Mixing(
        11, "for all 4,000 draws", 4_000, 12, {4_000: True}, "within a few hundred draws", 500
    ),
    "example4": Mixing(
        15, "for all 2,000 draws", 2_000, 16, {2_000: True}, "within a few hundred draws", 500
    ),
}

MEANS = [
    Mean("example2_authors", 0, "sigma_alpha", "σ_α", 13.84, 2),
    Mean("example2_authors", 0, "sigma_beta", "σ_β", 0.553),
    Mean("example2_authors", 0, "sigma_y", "σ_y", 6.055),
    Mean("example2_authors", 0, "mu_alpha", "μ_α", 242.76, 2),
    Mean("example2_authors", 0, "mu_beta", "μ_β", 6.187),
    Mean("example2_authors", 1, "sigma_alpha", "σ_α", 13.67, 2),
    Mean("example2_authors", 1, "sigma_y", "σ_y", 7.818),
    Mean("example2_authors", 1, "beta", "β", 6.185),
    Mean("example3_authors", 0, "beta[1]", "β of log_uppm", -0.062),
    Mean("example3_authors", 0, "beta[0]", "β of the floor", -0.076),
    Mean("example3_authors", 0, "sigma_alpha", "σ_α", 0.553),
    Mean("example3_authors", 0, "mu", "μ", 0.992),
    Mean("example3_authors", 0, "sigma_y", "σ_y", 0.925),
    Mean("example3_authors", 1, "sigma_alpha", "σ_α", 0.573),
    Mean("example3_authors", 1, "sigma_y", "σ_y", 0.930),
    Mean("example4", 0, "sigma", "σ", 0.037),
    Mean("example4", 0, "rho[11]", "ρ of lag 12", 0.267),
    Mean("example4", 0, "rho[0]", "ρ of lag 1", -0.424),
    Mean("example4", 1, "sigma", "σ", 0.048),
    Mean("example4", 1, "rho[2]", "ρ of lag 3", 0.174),
    Mean("example4", 1, "rho[1]", "ρ of lag 2", 0.026),
    Mean("example4", 1, "rho[0]", "ρ of lag 1", 0.557),
]

NOT_CONVERGED = "example3_authors", 0
"""a fit whose printed R-hat is 1.07"""

RUN_TIMES = {
    2: RunTimes(
        "example2",
        "Rats: chains, lengths and wall times",
        Inference(8, 1, 7_000, 2_000, (14.7, 0.5)),
        Inference(8, 1, 7_000, 2_000, (10.5, 0.5)),
        Inference(480, 60, 1_000, 500, (10.0, 7.9)),
        "NVIDIA T4",
        "13 minutes",
        "18 s, 10 of them for the warmup",
    ),
    3: RunTimes(
        "example3",
        "Radon: chains, lengths and wall times",
        Inference(4, 1, 7_000, 5_000, (36.8, 9.4)),
        Inference(4, 1, 7_000, 5_000, (28.8, 7.9)),
        Inference(3_088, 772, 2_000, 2_000, (47.1, 45.2)),
        "NVIDIA A100",
        "7.5 hours",
        "92 s, both models one after the other",
    ),
    4: RunTimes(
        "example4",
        "Air passengers: chains, lengths and wall times",
        Inference(4, 1, 10_000, 2_000, (19.3, 2.5)),
        Inference(4, 1, 10_000, 2_000, (15.4, 2.0)),
        Inference(3_160, 790, 6_000, 6_000, (12.9, 9.8)),
        "NVIDIA T4",
        "4.4 hours",
        "6.1 s for 500 draws per chain",
    ),
}
