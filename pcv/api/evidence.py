"""Evidence and cumulative cross-validation from Python."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pcv.analysis.results.comparable import outcome_print, shared_prints
from pcv.api import calls
from pcv.api.calls import Call
from pcv.api.cumulative import CumulativeCV, OneEvidence
from pcv.api.inputs import AnyModel
from pcv.base.errors import PcvError, nearest
from pcv.core import evidence as core
from pcv.core.check import check
from pcv.folds.sections.cumulative import Cumulative

METHODS = ["auto", "path", "bridge", "laplace"]


def evidence(
    model: AnyModel | Mapping[str, AnyModel],
    splits: int = 64,
    *,
    particles: int = 512,
    data: Any = None,
    seed: int = 0,
    fit: Any = None,
    precision: str = "float64",
    results: str | Path | None = None,
    cores: int | None = None,
    progress: bool = True,
    method: str = "auto",
) -> Any:
    r"""The log evidence of a model, its log marginal likelihood.

    .. math:: \log p(y) = \log \int p(y \mid \theta) \, p(\theta) \, d\theta
              = \sum_{i=1}^n \log p(y_i \mid y_1, \dots, y_{i-1})

    By bridge sampling from the full-data fit, where Laplace's approximation agrees for every model
    (k-hat at most 0.7) and the priors integrate to 1. Otherwise by sequential Monte Carlo along
    training sets that grow from none to all units, in random orders (`pcv.sampling.path`), beside
    both (`CumulativeCV.ways`). Differences between models are log Bayes factors (``pcv.compare``).

    Args:
        model, data, seed, precision, results, cores, progress: as for `cross_validate`. Draws of
            the model's `init` must be of its prior, which must be proper.
        splits: number of random orders, where growing training sets are followed.
        particles: in each of the two sets that follow each order; a multiple of 16.
        fit: settings of the full-data fit, or draws of it, as for `cross_validate`.
        method: "path" to follow growing training sets in any case, as `cumulative` does; "bridge"
            for bridge sampling alone; "laplace" for importance sampling from Laplace's
            approximation alone, which takes no fit, and suffices where k-hat is at most 0.7.

    Returns:
        `OneEvidence`, or `CumulativeCV` where growing training sets were followed, which `results`
        keeps; or a dict of either by the models' names.

    Raises:
        PcvError: the prior is improper, or what else is wrong, where, and what to do.
    """
    settings = {"splits": splits, "particles": particles}
    if method not in METHODS:
        raise PcvError(f"method is {method!r}; {nearest(method, METHODS)}")
    kept = results if method in ("auto", "path") else None
    several = isinstance(model, Mapping)
    with _checked(model, settings, data, seed, fit, precision, kept, cores, progress) as call:
        core.check_priors(call.problems)
        if method == "path":
            return _followed(call, several)
        answers = {}
        for name, problem in call.problems.items():
            fit_of = None
            if method != "laplace":
                of_fit = call.settings.fit, call.monitor, call.store, call.draws.get(name)
                fit_of = core.fit_once(name, problem, *of_fit)
            monitor = call.monitor.of(f"evidence {name}")
            answer = core.answer(problem, fit_of, method == "auto", monitor)
            if answer is None:
                return _followed(call, several)
            marks = () if fit_of is None else tuple(fit_of.attrs["marks"])
            shared = outcome_print(problem.data, problem.outcome)
            answers[name] = OneEvidence(*answer, marks, shared)
        return answers if several else next(iter(answers.values()))


def cumulative(
    model: AnyModel | Mapping[str, AnyModel],
    prepare: float = 0.1,
    splits: int = 64,
    *,
    particles: int = 512,
    data: Any = None,
    seed: int = 0,
    fit: Any = None,
    precision: str = "float64",
    results: str | Path | None = None,
    cores: int | None = None,
    progress: bool = True,
) -> Any:
    r"""Cumulative cross-validation: the evidence after a preparatory training set.

    .. math:: S_\mathrm{CCV}(P) = \mathrm E \log p(y_\mathrm{test} \mid y_\mathrm{train})
              = \sum_{p=1}^P S_\mathrm{CV}(p), \qquad |\mathrm{test}| = P = (1 - q)\, n

    over random test sets of P units (Fong and Holmes 2020, corollary 2). Unlike the evidence,
    which adds the score of training sets that are smaller still, it hardly depends on how vague the
    prior is, which may be improper. See `pcv.analysis.evidence`.

    Args:
        model, data, seed, precision, results, cores, progress: as for `cross_validate`.
        prepare: q, the share of units that train first, between 0 and 1.
        splits, particles, fit: as for `evidence`.

    Returns:
        `CumulativeCV`, or a dict of them by the models' names. Their `curve` has up to 100 P, and
        `at` any.

    Raises:
        PcvError: what is wrong, where, and what to do.
    """
    settings = {"prepare": prepare, "splits": splits, "particles": particles}
    with _checked(model, settings, data, seed, fit, precision, results, cores, progress) as call:
        return _followed(call, isinstance(model, Mapping))


@contextmanager
def _checked(
    model: AnyModel | Mapping[str, AnyModel],
    settings: Mapping[str, Any],
    data: Any,
    seed: int,
    fit: Any,
    precision: str,
    results: str | Path | None,
    cores: int | None,
    progress: bool,
) -> Iterator[Call]:
    """The call, after checks of its models."""
    folds, sections = {"scheme": "cumulative", **settings}, {"fit": {} if fit is None else fit}
    with calls.prepared(
        model, folds, data, sections, seed, precision, results, cores, progress, flat=True
    ) as call:
        check(call.problems, call.settings, call.monitor.only_warnings(), look_for_leaks=False)
        yield call


def _followed(call: Call, several: bool) -> Any:
    """Growing training sets of all models."""
    problems, scheme, fit = call.problems, call.settings.folds, call.settings.fit
    assert isinstance(scheme, Cumulative)
    followed = core.follow(problems, scheme, fit, call.monitor, call.store, call.draws)
    curves = {}
    for name, (tree, curve) in followed.items():
        problem = problems[name]
        shared = shared_prints(problem.data, problem.outcome, problem.layout)
        about = curve.load().assign_attrs(shared, marks=tree.attrs["marks"])
        curves[name] = CumulativeCV(about, name if several else "model")
    return curves if several else next(iter(curves.values()))
