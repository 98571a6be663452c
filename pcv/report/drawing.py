"""The figures of a report, their captions and their files."""

import io
import re
from collections.abc import Mapping
from typing import NamedTuple

import matplotlib
import xarray as xr
from matplotlib.figure import Figure

from pcv.report import plots

DPI = 200

CAPTIONS = {
    "difference": (
        "The answer, and its two uncertainties",
        "Each line is a model's estimate from the draws so far, as its difference from the "
        "comparator (the horizontal line at 0); negative means that the comparator predicts "
        "better. The band is ± 2 Monte Carlo standard errors: it shrinks as chains run longer, "
        "and the line should have settled inside it. The bar at the right is ± 1 standard error "
        "of the final estimate, which comes from the limited number of folds: only more data make "
        "it shorter. A bar that reaches 0 leaves the order of the two models open. A single model "
        "is shown by its elpd.",
    ),
    "uncertainty": (
        "Have the chains run long enough?",
        "Solid: the standard error that the limited data leave (epistemic). Dashed: the Monte "
        "Carlo standard error that the limited number of draws adds. Once the dashed line is far "
        "below the solid one (a tenth, say), longer chains no longer change the answer. The axis "
        "is logarithmic.",
    ),
    "probability": (
        "Probability of predicting better",
        "The probability that a model predicts new data better than the comparator, given the "
        "draws so far. 50% is a toss-up. It should have settled; close to 0% or 100%, the order of "
        "the models is clear.",
    ),
    "fold_differences": (
        "Which folds make the difference?",
        "One mark per fold and model, ± 2 Monte Carlo standard errors (often hidden by the mark), "
        "in the order of the joint differences. To the left of 0 (or below it), the comparator "
        "predicts that fold better. Look for single folds that carry the total. Beyond "
        f"{plots.MAX_NAMED_FOLDS} folds, each model's folds stand in order of value and only the "
        "extremes are named. With a single model, the elpd of each fold is shown.",
    ),
    "predictions": (
        "What do its predictions look like?",
        "One mark per unit: its outcome against the median of its predictive, made without the "
        "unit's fold. Lines are 90% intervals. Nine of ten outcomes should lie inside; the others, "
        "in another colour, should scatter along the whole range. On the diagonal, outcome and "
        "median are equal. Binary outcomes and categories stand against the probability that they "
        "were given: the better the predictions, the closer to 1. Of the best model.",
    ),
    "pit": (
        "Are the predictives calibrated?",
        "The PIT of a unit is the predictive probability of an outcome below its own. If the "
        "predictives are right, PITs are uniform, and the line stays near 0. One hill: they are "
        "biased high; one valley: biased low. A hill, then a valley: too narrow. A valley, then "
        "a hill: too wide. Where PITs do not depend on each other, a band holds the whole line "
        "with probability 98%, and the points that deviate most are marked if the test of "
        "uniformity fails.",
    ),
    "calibration": (
        "How often are they right?",
        "Of continuous outcomes and counts: the share of outcomes inside central intervals of each "
        "level, less that level. Below 0, intervals are too narrow. Of binary outcomes and ordered "
        "categories: observed frequencies against predicted probabilities, by isotonic regression. "
        "They should follow the diagonal, within the band. Of the best model.",
    ),
    "rhat": (
        "Do the chains of each fold agree?",
        "Thin lines: R-hat of the log score of each fold, over draws. Bold: the largest of them, "
        f"R-hat max. The dashed line is the usual limit of {plots.GOOD_RHAT:g} for a single "
        "posterior; the largest of many folds often lies above it even if all chains have mixed, "
        "hence the next figure. The axis is linear near 1 and logarithmic far above it.",
    ),
    "benchmark": (
        "Is R-hat max too large?",
        "The histogram shows what R-hat max would be if all chains had mixed: blocks of draws are "
        "repeatedly shuffled between the chains of a fold. A vertical line inside the histogram "
        "is what well-mixed chains give. A line to the right of it says that at least one chain "
        "is stuck, shifted, or still warming up.",
    ),
    "ess": (
        "How many independent draws is each score worth?",
        "Effective sample size of the joint log score, over all chains of a fold: that many "
        "independent draws would have the same Monte Carlo error. Thin lines: of each fold. Bold: "
        "of the model's elpd, where folds weigh by their error; the panel at the top: of the "
        "differences. Lines should rise steadily; one that levels off comes from a heavy tail or a "
        "chain that is stuck.",
    ),
    "khat": (
        "Can each fold's Monte Carlo error be trusted?",
        "Pareto k-hat of the predictive density over the draws of each fold. Above the dotted "
        "line, a few draws dominate its average; above the dashed line at 1, its mean is infinite. "
        "This does no harm where the fold is estimated from both its sides (see the next figure). "
        "Elsewhere its Monte Carlo error is understated; the remedy is a predictive with the "
        "left-out effects integrated out (marginal), or far more draws.",
    ),
    "overlap": (
        "Do the fold and the full data overlap?",
        "A fold that holds out its test set and nothing else is estimated from both sides: from "
        "its own draws and from full-data draws, which also condition on the test set. The figure "
        "shows the overlap of the two posteriors, 1 where they are the same. Where it is small, "
        "few draws of one side lie where the other's do, and the Monte Carlo error is large; "
        "filled marks are folds with too few such draws for the error to be trusted.",
    ),
    "full_data": (
        "Is each model's full-data fit sound?",
        "One mark per parameter of the fit to all data, which gives cross-validation its starting "
        f"points and sampler settings. Sound parameters lie below R-hat {plots.GOOD_RHAT:g} "
        f"and to the right of an effective sample size of {plots.GOOD_ESS}. The parameters with "
        "the largest R-hat and with the smallest sample size are named.",
    ),
}

NESTED_CAPTIONS = {
    "rhat": (
        "Do chains from different starts agree?",
        "Thin lines: nested R-hat of the log score of each fold, over draws, which compares sets "
        "of chains that start at one point (superchains). Bold: the largest of them, nested R-hat "
        "max. It exceeds 1 by chance alone, the more so the fewer draws and chains a superchain "
        f"has, so the dashed line at {plots.GOOD_RHAT:g} is not a limit; the next figure has "
        "one. The axis is linear near 1 and logarithmic far above it.",
    ),
    "benchmark": (
        "Is nested R-hat max too large?",
        "The histogram shows what nested R-hat max would be if starting points did not matter: "
        "whole chains of a fold are repeatedly reassigned to its superchains at random. A "
        "vertical line inside the histogram is what well-mixed chains give. A line to the right "
        "of it says that chains from at least one starting point differ from the others.",
    ),
}
"""for runs whose chains have a single batch"""


OVER_DRAWS = ("uncertainty", "probability")
OF_CHAINS = ("rhat", "benchmark", "ess", "overlap")
"""figures that need the progress of all folds over draws, and their chains"""


OF_PREDICTIONS = ("predictions", "pit", "calibration")


def figures(
    comparison: xr.Dataset,
    diagnostics: Mapping[str, xr.Dataset],
    predictions: Mapping[str, xr.Dataset],
) -> dict[str, Figure]:
    """All figures of an experiment by name, the same names for every experiment.

    Args:
        comparison: the contents of comparison.zarr.
        diagnostics: the contents of each model's diagnostics.zarr, by model name.
        predictions: the predictions of models that have them, by model name.
    """
    names = [name for name in ranked(comparison) if name in predictions]
    return _of_scores(comparison, diagnostics) | _of_predictions({x: predictions[x] for x in names})


def _of_predictions(predictions: Mapping[str, xr.Dataset]) -> dict[str, Figure]:
    """Figures of predictions, best model first."""
    if not predictions:
        return {name: plots.none("there are no predictions") for name in OF_PREDICTIONS}
    best, *_ = predictions
    return {
        "predictions": plots.observed(predictions[best], best),
        "pit": plots.pit(predictions),
        "calibration": plots.calibration({best: predictions[best]}),
    }


def _of_scores(comparison: xr.Dataset, diagnostics: Mapping[str, xr.Dataset]) -> dict[str, Figure]:
    """Figures of scores, and of the chains that they come from."""
    ordered = {name: diagnostics[name] for name in models_of(comparison)}
    if not all("rhat_at" in d for d in ordered.values()):
        return {
            **{
                name: plots.none("no progress over draws to show")
                for name in ("difference", *OVER_DRAWS)
            },
            **{name: plots.none("folds of the full-data fit have no chains") for name in OF_CHAINS},
            "fold_differences": plots.fold_differences(comparison),
            "khat": plots.khat(ordered),
            "full_data": plots.full_data(ordered),
        }
    runs = {"all models": comparison, **ordered} if len(ordered) > 1 else ordered
    return {
        "difference": plots.difference(comparison),
        "uncertainty": plots.uncertainty(comparison),
        "probability": plots.probability(comparison),
        "fold_differences": plots.fold_differences(comparison),
        "rhat": plots.rhat(ordered),
        "benchmark": plots.benchmark(runs),
        "ess": plots.ess(ordered, comparison),
        "khat": plots.khat(ordered),
        "overlap": plots.overlap(ordered),
        "full_data": plots.full_data(ordered),
    }


def missing(
    diagnostics: Mapping[str, xr.Dataset], predictions: Mapping[str, xr.Dataset]
) -> tuple[str, ...]:
    """Names of figures that say only that there is nothing to show."""
    of_predictions = () if predictions else OF_PREDICTIONS
    if all("rhat_at" in d for d in diagnostics.values()):
        return ("probability",) * (len(diagnostics) == 1) + of_predictions
    return ("difference", *OVER_DRAWS, *OF_CHAINS, *of_predictions)


class Picture(NamedTuple):
    """A rendered figure."""

    png: bytes
    """at 200 dpi"""
    svg: str


def drawn(figs: Mapping[str, Figure]) -> dict[str, Picture]:
    """Render figures, by name; all ids of an SVG begin with its name."""
    pictures = {}
    for name, figure in figs.items():
        text, png = svg(figure, name), io.BytesIO()
        figure.set_layout_engine("none")  # keep the layout computed for the SVG
        figure.savefig(png, dpi=DPI)
        pictures[name] = Picture(png.getvalue(), text)
    return pictures


def svg(figure: Figure, name: str) -> str:
    """A figure as SVG with selectable text; all its ids begin with `name`.

    Reproducible: the same figure gives the same text.

    >>> '<svg ' in svg(Figure(), "empty")
    True
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(["Creator", "Date", "Format", "Type"])
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=nothing)

    def prefix(tag: re.Match[str]) -> str:
        return re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", tag[0])

    return re.sub(r"<[^>]+>", prefix, buffer.getvalue())


def inline(text: str, name: str) -> str:
    """The bare svg element, sized by the page, labelled by its caption for screen readers."""
    head, body = text[text.index("<svg") :].split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-labelledby="caption-{name}">{body}'


def models_of(comparison: xr.Dataset) -> list[str]:
    return [str(name) for name in comparison["model"].to_numpy()]


def ranked(comparison: xr.Dataset) -> list[str]:
    """The models, best first by the first kind of log score."""
    rank = dict(zip(models_of(comparison), comparison["rank"].isel(kind=0).to_numpy().tolist()))
    return sorted(rank, key=rank.__getitem__)
