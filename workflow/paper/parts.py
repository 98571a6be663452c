"""The paper's examples, our runs of them, and why a run differs from what the paper plots."""

from typing import NamedTuple


class Part(NamedTuple):
    """One of the paper's examples."""

    experiment: str
    title: str
    text: str
    variants: dict[str, str]
    """our runs of it: experiment → description, the paper's way first"""


GROWTH = "example4_growth"
"""example 4 with the paper's densities: another row, not another experiment"""

PARTS = [
    Part(
        "example1",
        "Example 1: grouped Gaussian regression",
        "50 simulated groups of 5, one left out at a time. A has all four covariates, B three. The "
        "paper's data are not available. Ours are simulated in the same way, with parameters from "
        "the priors, by the first key with which the last covariate, which B lacks, matters about "
        "as much. Differences from the paper come from other data.",
        {
            "example1": "paper's priors, α of the left-out group integrated out",
            "example1_authors": "authors' code: σ with scale 10, α of the left-out group drawn, "
            "own draws alone",
        },
    ),
    Part(
        "example2",
        "Example 2: rats",
        "30 rats weighed five times, one rat left out at a time. A has a slope for each rat, B a "
        "common one.",
        {
            "example2": "paper's priors, α and β of the left-out rat integrated out",
            "example2_plain": "paper's priors, α and β of the left-out rat drawn, own draws alone",
            "example2_authors": "authors' code: its priors, α and β of the left-out rat drawn, "
            "own draws alone",
        },
    ),
    Part(
        "example3",
        "Example 3: radon",
        "12,573 homes in 386 counties by name, one left out at a time (73 of the names stand for "
        "counties of several states: units: [county_idx, log_uppm]). A has the floor of the "
        "measurement as a covariate, B does not.",
        {
            "example3": "paper's priors, α of the left-out county integrated out",
            "example3_authors": "authors' code: priors on σ, log_uppm, α of the left-out county "
            "drawn, own draws alone",
            "example3_cleaned": "as the first, without homes of unknown floor (code 9), upper "
            "floors merged",
        },
    ),
    Part(
        "example4",
        "Example 4: air passengers",
        "420 months, 1985 to 2019. A models month-on-month growth by 12 lags and the seasons, B "
        "year-on-year growth by 3 lags. Both are scored on the number of passengers, with the "
        "Jacobian of growth, since their densities of growth are of different variables.",
        {
            "example4": "one month ahead, expanding window; density of passengers",
            GROWTH: "the same run, densities of growth: the paper's sum",
            "example4_blocks": "hv-block: 3 months tested, 15 more left out on each side",
        },
    ),
]

WHY = {
    "example1": "Other simulated data, with other parameters from the priors.",
    "example1_authors": "Other simulated data, with other parameters from the priors.",
    "example2": "The paper draws α and β of the left-out rat: few draws then carry one rat's "
    "average, and both its value and its MCSE are off.",
    "example2_plain": "Few draws carry the average over the left-out rat's α and β: the MCSE, here "
    "and in the paper, is too small.",
    "example2_authors": "Few draws carry the average over the left-out rat's α and β: repeated "
    "runs differ by far more than their MCSE says, here and in the paper.",
    "example3": "The paper's plot is from the authors' code: other priors, a second covariate, and "
    "α of the left-out county drawn.",
    "example3_authors": "Few draws carry the average over the left-out county's α, and the "
    "authors' fit of A had not converged (R-hat 1.07).",
    "example3_cleaned": "Other data: the paper uses the code 9 for an unknown floor as a number. A "
    "county without other homes scores 0 in both models, and is flagged for that.",
    "example4": "The paper subtracts a density of year-on-year growth from one of month-on-month "
    "growth; the next row undoes the Jacobian.",
    GROWTH: "394 folds here, 395 there, and the paper's number is read off a plot.",
    "example4_blocks": "Another question: months in the middle of the series. Each is in three "
    "overlapping blocks, so Δ counts it three times, and the SE is too small.",
}
"""why a run differs from the paper's plot, where it does"""
OTHER_DATA = ("example1", "example1_authors")
