"""Whether scores of models can be compared, and in which order their terms are the same."""

from collections.abc import Sequence

import numpy as np

from pcv.analysis.scores import Scores
from pcv.analysis.subsampling import Subsample
from pcv.base.errors import PcvError, setting


def check(scores: Sequence[Scores]) -> None:
    """Refuse scores that differ in what they are of, or models of one name."""
    if not scores:
        raise PcvError("compare: no models")
    first = scores[0]
    names: set[str] = set()
    for s in scores:
        if s.model in names:
            raise PcvError(f"compare: two models are named '{s.model}'; rename one")
        names.add(s.model)
    plain = setting("predictive", value="plain")
    remedy = {
        "kind": "compare joint with joint and pointwise with pointwise scores",
        "score": "compare one score at a time",
        "outcome": "let both models score the same variable on the same scale",
        "predictive": f"set {plain}, or give each model a `marginal`",
        "data": "rerun both models on the same data",
        "folds": "rerun both models on the same folds",
        "joint_by": "give both the same joint_by",
    }
    for s in scores[1:]:
        for field, what_to_do in remedy.items():
            a, b = getattr(first, field), getattr(s, field)
            if a != b and not (field == "predictive" and "either" in (a, b)):
                raise PcvError(
                    f"cannot compare '{first.model}' with '{s.model}': different {field}"
                    f" ({a}, {b}); {what_to_do}"
                )
        if not _one_subsample(first.chosen, s.chosen):
            raise PcvError(
                f"cannot compare '{first.model}' with '{s.model}': different subsamples; give both "
                "the same seed, m and group_by, and one stratum"
            )


def _one_subsample(one: Subsample | None, other: Subsample | None) -> bool:
    """Whether both are subsamples of the same number of terms, chosen alike."""
    if one is None or other is None:
        return one is other
    a, b = ((np.sort(x.term), x.stratum[np.argsort(x.term)], x.sizes) for x in (one, other))
    return all(map(np.array_equal, a, b))


def _terms(scores: Scores) -> list[tuple[str, str]]:
    """Identify terms by fold and name, since several folds may leave out the same unit."""
    return [(scores.fold[k], name) for k, name in zip(scores.fold_of_term, scores.term)]


def order(first: Scores, other: Scores) -> list[int]:
    """Index in `other` of each term of `first`."""
    terms = {s.model: _terms(s) for s in (first, other)}

    def named(term: tuple[str, str]) -> str:
        fold = f"fold '{term[0]}'"
        return fold if first.kind == "joint" else f"unit '{term[1]}' in {fold}"

    for model, own in terms.items():
        if len(set(own)) < len(own):
            twice = next(term for term in own if own.count(term) > 1)
            raise PcvError(f"scores of '{model}': {named(twice)} occurs more than once")
        missing = sorted({*terms[first.model], *terms[other.model]} - set(own))
        if missing:
            raise PcvError(
                f"cannot compare '{first.model}' with '{other.model}': '{model}' has no score of"
                f" {named(missing[0])} ({len(missing)} missing); rerun both on the same folds"
            )
    place = {term: i for i, term in enumerate(terms[other.model])}
    return [place[term] for term in terms[first.model]]
