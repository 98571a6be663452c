"""The paper's tables, its numbers beside ours."""

from collections.abc import Mapping, Sequence

import numpy as np

from loo_subsampling import files, published
from loo_subsampling.estimates import (
    SUBSETS,
    M,
    Run,
    difference,
    exact_difference,
    from_some,
    hansen_hurwitz_from,
    mean_se,
    sigma,
)
from pcv.report import Cells, Table

Runs = Mapping[str, Run]
BRACKETS = "Ours, and in brackets the paper's"
TABLE_5 = {"plpd": "plpd", "tis_10": "TIS of 10 draws", "tis_1000": "TIS of 1,000 draws"}
CONFIGURED = (
    "The paper's supplement, with its models, is not at hand. Radon: data, models and priors of "
    "posteriordb."
)
KHAT = (
    "Where k-hat is bad, terms by PSIS cannot be trusted, ours or the paper's, and the SEs of such "
    "models depend on a few of them; folds: {exact: auto} would sample these."
)
SHARED = (
    "The paper's SE is that of a surrogate from all draws. Few draws leave noise of their own in "
    "every term; that of the draws behind the exact terms is the same in both, and cancels."
)
NOTES = {
    3: [
        "HH: Hansen–Hurwitz, from terms drawn with replacement, in proportion to the surrogate; "
        f"every model and surrogate needs a subsample of its own. {CONFIGURED}",
        KHAT,
    ],
    4: [
        "The variances of the Δ-methods are subtracted from plpd. Δ₂WAIC, minutes for a model of "
        "hundreds of effects, is left out of quick.yaml.",
        KHAT,
    ],
    5: [
        SHARED + " For 10 draws, 100 coefficients and n = 10⁵, that noise is "
        "√(100/n)/√10 = .01 nats a term, and the SE 100 nats."
    ],
    6: [
        "One subsample, in the paper and here; its SE is itself an estimate, from the few terms "
        "whose surrogate is poor, if they are in it. " + KHAT
    ],
    7: [
        "The paper does not give its formulas. Ours: distance, arsenic, education and association; "
        "the first three with their interactions, or with a penalised spline of each."
    ],
    8: [
        SHARED,
        "The sign of the paper's last difference is a slip: fewer relevant covariates predict "
        "worse.",
    ],
}
HEAD = ("", "elpd difference", "subsampling SE", "SE", "all terms", "units with bad k-hat")


def tables(runs: Runs, seed: int) -> dict[int, Table]:
    """Those whose experiments were run, by the paper's numbers."""
    made = {3: _table_3, 4: _table_4, 5: _table_5, 6: _table_6, 7: _table_7, 8: _table_8}
    return {n: make(runs, seed) for n, make in made.items() if set(files.TABLES[n]) & set(runs)}


def _table_3(runs: Runs, seed: int) -> Table:
    rows: list[Cells] = []
    for (experiment, model), paper in published.SES.items():
        if experiment not in runs:
            continue
        run = runs[experiment]
        terms = run.models[model]
        ours = [
            mean_se(from_some(terms, "waic_2000"), seed),
            mean_se(hansen_hurwitz_from(terms, "plpd"), seed),
            mean_se(hansen_hurwitz_from(terms, "waic_2000"), seed),
            mean_se(from_some(terms, None), seed),
            sigma(terms),
        ]
        name = published.LINEAR.get(experiment) or f"radon {published.RADON[model]}"
        rows.append((name, *map(_beside, ours, paper), _bad(run, model)))
    head = ("", "difference, WAIC", "HH, plpd", "HH, WAIC", "plain expansion", "σ_loo", HEAD[-1])
    caption = (
        f"Table 3: SE of subsampling of elpd by estimator, m = {M}, mean over {SUBSETS} "
        f"subsamples; and the SE of elpd over terms, σ_loo. {BRACKETS}"
    )
    return Table(caption, head, rows, [False] * len(rows), NOTES[3])


def _table_4(runs: Runs, seed: int) -> Table:
    rows: list[Cells] = []
    run = runs["radon"]
    for model, paper in published.BY_SURROGATE.items():
        terms = run.models[model]
        ours = [
            mean_se(from_some(terms, name), seed) if name in terms.surrogates else np.nan
            for name in published.SURROGATES
        ]
        rows.append((published.RADON[model], *map(_beside, ours, paper), _bad(run, model)))
    head = ("", *published.SURROGATES.values(), HEAD[-1])
    caption = (
        f"Table 4: SE of subsampling of elpd by surrogate, radon, m = {M}, mean over {SUBSETS} "
        f"subsamples. {BRACKETS}"
    )
    return Table(caption, head, rows, [False] * len(rows), NOTES[4])


def _table_5(runs: Runs, seed: int) -> Table:
    rows: list[Cells] = []
    for experiment, words in published.ROWS.items():
        for surrogate, name in TABLE_5.items():
            if experiment in runs:
                pair = "normal", "horseshoe"
                paper = published.PRIORS.get((experiment, surrogate), (np.nan,) * 3)
                rows.append(_row(f"{words}, {name}", runs[experiment], *pair, surrogate, M, paper))
    caption = f"Table 5: normal prior against regularised horseshoe, m = {M}. {BRACKETS}"
    return Table(caption, HEAD, rows, [False] * len(rows), NOTES[5])


def _table_6(runs: Runs, seed: int) -> Table:
    rows: list[Cells] = []
    for m, by_model in published.DIFFERENCES.items():
        for model, paper in by_model.items():
            name = f"m = {m}, {published.RADON[model]}"
            rows.append(_row(name, runs["radon"], model, "both", "tis_100", m, paper))
    caption = f"Table 6: radon, differences to model 6, TIS of 100 draws. {BRACKETS}"
    return Table(caption, HEAD, rows, [False] * len(rows), NOTES[6])


def _table_7(runs: Runs, seed: int) -> Table:
    rows: list[Cells] = []
    for model, paper in published.OF_WELLS.items():
        name = published.WELLS[model]
        rows.append(_row(name, runs["wells"], model, "smooth", "tis_100", 300, paper))
    caption = f"Table 7: wells, m = 300, TIS of 100 draws. {BRACKETS}"
    return Table(caption, HEAD, rows, [False] * len(rows), NOTES[7])


def _table_8(runs: Runs, seed: int) -> Table:
    rows: list[Cells] = []
    for surrogate, number in (("tis_100", "100"), ("tis_2000", "2,000")):
        for model, paper in published.BY_SIZE.items():
            name = f"{model[1:]} covariates against 100, TIS of {number} draws"
            rows.append(_row(name, runs["linear_r10"], model, "d100", surrogate, M, paper))
    caption = f"Table 8: linear regression with R² = .1, m = {M}. {BRACKETS}"
    return Table(caption, HEAD, rows, [False] * len(rows), NOTES[8])


def _row(
    name: str, run: Run, model: str, other: str, surrogate: str, m: int, paper: Sequence[float]
) -> Cells:
    found = difference(run, model, other, surrogate, m)
    ours = found.elpd, found.elpd_subsampling_se, found.se
    whole = _rounded(exact_difference(run, model, other))
    return (name, *map(_beside, ours, paper), whole, _bad(run, model, other))


def _bad(run: Run, *models: str) -> str:
    """Units whose importance sampling fails."""
    bad = {unit for name in models for unit in _fails(run, name)}
    return f"{len(bad):,} of {run.models[models[0]].exact.size:,}"


def _fails(run: Run, model: str) -> list[int]:
    terms = run.models[model]
    return terms.chosen[~(terms.khat <= run.good_k)].tolist()


def _beside(ours: float, paper: float) -> str:
    """Ours, and the paper's in brackets as printed.

    >>> _beside(0.0123, 0.03), _beside(1049.7, 1050), _beside(-52.31, np.nan)
    ('0.012 (0.03)', '1,050 (1,050)', '−52.3')
    """
    printed = f" ({paper:,})" if np.isfinite(paper) else ""
    return f"{_rounded(ours)}{printed}".replace("-", "\N{MINUS SIGN}")


def _rounded(x: float) -> str:
    if not np.isfinite(x):
        return "\N{EN DASH}"
    size = abs(x)
    text = f"{x:,.0f}" if size >= 100 else f"{x:.1f}" if size >= 0.995 else f"{x:.2g}"
    return text.replace("-", "\N{MINUS SIGN}")
