"""The plan of a round: which folds need more draws for the comparison to be settled."""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from pcv.analysis import comparison as comparing
from pcv.analysis import diagnostics as diag
from pcv.analysis.comparison import Comparison, Scores
from pcv.analysis.diagnostics.jackknife import shared
from pcv.analysis.results.diagnosed import khats
from pcv.analysis.samples import log_sums, sides_of
from pcv.analysis.standard_errors import overlap_of
from pcv.analysis.stopping.config import UntilConfig
from pcv.analysis.stopping.rule import SETTLED, Needs, Rule, finished, needs
from pcv.analysis.verdicts import MIN_ESS, heavy_tail


def plan(
    samples: Mapping[str, Sequence[xr.Dataset]],
    folds: xr.Dataset,
    until: UntilConfig,
    reference: str | None,
    num_superchains: int,
    active: np.ndarray | None,
) -> xr.Dataset:
    """Which folds of which models need more draws for the comparison to be settled.

    Args:
        samples: by model, the samples so far of all fold batches.
        folds: the folds artifact.
        until: the stopping rule.
        reference: the comparator; None: the best model.
        num_superchains: number of superchains per fold; 0: none.
        active: (model, fold), those sampled in the previous round; None: all.

    Returns:
        ``more`` (model, fold), whether to continue; attribute ``words``, the reason.
    """
    joint = {name: log_sums(parts, "joint") for name, parts in samples.items()}
    tails = {}
    for name, parts in samples.items():
        m3 = np.concatenate([part["log_joint_m3"].values for part in parts])
        tails[name] = khats(parts), diag.hidden_variance(joint[name], m3)
    inflation = {
        name: diag.batch_inflation(diag.autocorrelation(sums)) for name, sums in joint.items()
    }
    first = next(iter(samples.values()))[0].attrs
    fold, slot = np.nonzero(folds["test"].values >= 0)
    overlap = overlap_of(folds["test"].values[fold, slot], fold)
    ids = folds["fold"].values.tolist()
    sides = {name: sides_of(parts) for name, parts in samples.items()}
    both = {name: diag.two_sided(joint[name], sides[name]) for name in samples}
    scored = [
        Scores(
            model=name,
            kind="joint",
            score="log",
            outcome=first["outcome"],
            predictive=first["predictive"],
            data="",
            folds="",
            fold=ids,
            elpd=both[name].elpd,
            mcse=diag.two_sided_mcse(both[name], inflation[name]),
            fold_of_term=np.arange(len(ids)),
            term=ids,
            verdict="ok",
            mcse_is_bound=heavy_tail(sums, *tails[name], both[name].carry),
            shared=shared(np.nan_to_num(both[name].full_deviation.T)),
            overlap=overlap,
        )
        for name, sums in joint.items()
    ]
    compared = comparing.compare(scored, reference)
    wanted = needed(compared, until)
    more = np.stack(
        [
            ~finished(
                joint[name],
                Rule(
                    np.full(len(ids), wanted.tolerance[compared.models.index(name)]),
                    until.rhat,
                    num_superchains,
                ),
                *tails[name],
                inflation[name],
                sides[name],
            )
            for name in samples
        ]
    )
    more = more if active is None else more & active
    words = wanted.words
    if words == SETTLED and more.any():
        words += (
            f", except for folds with R-hat above {until.rhat:g} or an ESS below {MIN_ESS}, whose"
            " errors cannot be trusted yet"
        )
    return xr.Dataset(
        {"more": (("model", "fold"), more)},
        {"model": list(samples), "fold": ids},
        {"words": words},
    )


def needed(joint: Comparison, until: UntilConfig) -> Needs:
    """What the joint comparison still needs, by the stopping rule."""
    return needs(joint, until.mcse_over_se, until.decide.probability if until.decide else None)
