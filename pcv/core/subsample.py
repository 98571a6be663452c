"""Leave-one-out of large data: which terms are computed exactly, and the sum of all of them."""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from pcv.analysis import comparison
from pcv.analysis.results import scores
from pcv.analysis.results.by_psis import merged
from pcv.analysis.stopping.rule import SETTLED, UNDECIDED, needs_terms
from pcv.analysis.subsampling import Subsample, Sum
from pcv.base.monitor import Monitor
from pcv.folds.sections.subsampling import Subsampling

OF_SUBSAMPLE = ("chosen", "stratum", "stratum_size")
"""variables of the chosen terms"""


def choose_terms(
    layout: xr.Dataset,
    surrogates: Mapping[str, xr.DataTree],
    scheme: Subsampling,
    reference: str | None,
    monitor: Monitor,
) -> xr.Dataset:
    """Choose the terms that are computed exactly, the same for all models.

    The subsample grows until the estimates by PSIS satisfy the scheme's rule; a larger one contains
    the smaller.

    Args:
        layout: all folds, with the order in which terms are chosen.
        surrogates: by model: "folds" of `estimate_by_psis`, "terms" of `approximate_terms`.
        scheme: how many terms, and until when they grow.
        reference: the model that others are compared with; None: the best.
        monitor: takes messages.

    Returns:
        The folds of the chosen terms, with the terms' strata.
    """
    number, until, about = layout.sizes["fold"], scheme.until, {}
    for size in (min(m, number) for m in scheme.sizes):
        chosen = layout.sel(fold=layout["place"] < size)
        if until is None:
            break
        each = [_scores(of_model, chosen) for of_model in surrogates.values()]
        compared = comparison.compare(each, reference)
        decide = until.decide.probability if until.decide else None
        words = needs_terms(compared, until.subsampling_se_over_se, decide)
        monitor.of("").log(f"subsample of {size}: {words}")
        about = {"until": f"until: {words}, with {size} terms"}
        if words in (SETTLED, UNDECIDED):
            break
    return chosen[list(OF_SUBSAMPLE)].assign_attrs(about)


def _scores(surrogates: xr.DataTree, chosen: xr.Dataset) -> comparison.Scores:
    """The scores of a model's chosen terms by PSIS."""
    of_folds = surrogates["folds"].to_dataset().sel(fold=chosen["fold"].values)
    terms = surrogates["terms"].to_dataset()
    return scores(_with_terms(merged(of_folds, None), terms, chosen), "joint", "", "")


def merge_subsample(
    surrogates: xr.DataTree, sampled: xr.Dataset | None, chosen: xr.Dataset
) -> xr.Dataset:
    """Diagnostics of the chosen terms, with what the sum over all terms is estimated from.

    Args:
        surrogates: "folds" of `estimate_by_psis`, "terms" of `approximate_terms`.
        sampled: diagnostics of the folds that are sampled; None: none is.
        chosen: of `choose_terms`.
    """
    of_terms = Subsample(*(chosen[name].values for name in OF_SUBSAMPLE))
    terms = surrogates["terms"].to_dataset().load()
    of_folds = surrogates["folds"].to_dataset().load().sel(fold=chosen["fold"].values)
    mcse = None
    if of_terms.term.size < of_terms.sizes.sum():
        mcse = float(terms.attrs["mcse"])
    return _with_terms(merged(of_folds, sampled, of_terms, mcse), terms, chosen)


def _with_terms(diagnosed: xr.Dataset, terms: xr.Dataset, chosen: xr.Dataset) -> xr.Dataset:
    """Diagnostics with the surrogates of all terms, and the sums by each surrogate that is asked
    for, and by none."""
    names: Sequence[str] = np.atleast_1d(terms.attrs["surrogates"]).tolist()
    of_chosen = {name: chosen[name].variable for name in OF_SUBSAMPLE}
    surrogate = {"surrogate": ("any_term", terms[names[0]].values)}
    whole = diagnosed.assign({**of_chosen, **surrogate})
    grown = {key: x for key, x in chosen.attrs.items() if key == "until"}
    whole.attrs |= {**terms.attrs, "surrogate": names[0], **grown}
    known = scores(whole, "joint", "", "")
    each = [terms[name].values for name in names]
    sums = [comparison.total(known._replace(surrogate=x)) for x in (*each, None)]
    return whole.assign(
        {f"{name}_by": ("by", [getattr(x, name) for x in sums]) for name in Sum._fields}
    ).assign_coords(by=[*names, "none"])
