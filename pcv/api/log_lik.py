"""Cross-validation from log likelihoods that were made elsewhere: by brms, CmdStan, JAGS, emcee."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

import pcv
from pcv.api import inputs
from pcv.api.calls import layout_of
from pcv.api.comparisons import check_joint
from pcv.api.cross_validation import cv_of
from pcv.api.result import CV
from pcv.base.errors import PcvError, in_python, no_model
from pcv.base.monitor import TO_LOG
from pcv.base.section import OBJECT
from pcv.core import log_lik as core
from pcv.core.cross_validate import Result
from pcv.core.diagnose import diagnose
from pcv.core.problem import Problem
from pcv.core.settings import Settings
from pcv.folds.base import Folds
from pcv.folds.columns import missing_column
from pcv.folds.schemes import Table
from pcv.folds.splitters import from_object
from pcv.models.model import Observations
from pcv.models.observations import rows
from pcv.pipeline.config import DataConfig
from pcv.pipeline.config.reading import validated
from pcv.pipeline.data import log_lik as reading
from pcv.pipeline.data import matching, tables
from pcv.pipeline.data.log_lik import RawLogLik


def from_log_lik(
    fold_log_lik: Any,
    folds: Any = None,
    full: Any = None,
    *,
    data: Any = None,
    outcome: str = "y",
    joint: bool | None = None,
    estimator: str = "two_sided",
    seed: int = 0,
) -> CV:
    r"""Cross-validation from log likelihoods that another program made, of any model.

    .. math:: \mathrm{elpd} = \sum_k \log \frac{1}{S} \sum_{s=1}^{S}
              \exp \sum_{i \in \mathrm{test}_k} \log p(y_i \mid \theta_{k,s}), \qquad
              \theta_{k,s} \sim p(\theta \mid y_{\mathrm{train}_k})

    The same draws give the same estimates, errors and diagnostics as in `cross_validate`. With
    `full`, folds without a gap are estimated from both sides, by Bennett's acceptance ratio; its
    shift is found from these draws, where `cross_validate` uses those of its warmup, so that such
    estimates agree to much less than their MCSE.

    Args:
        fold_log_lik: log likelihoods :math:`\log p(y_i \mid \theta_{k,s})` of each fold's tested
            units, at draws of the posterior without the fold (nats): an array (fold, chain, draw,
            slot), with tested units in the order of the data, larger test sets filling more slots;
            a list with an array (chain, draw, slot), an xarray object or a group ``log_likelihood``
            of ArviZ for each fold; or, with units by name or number, the path of a
            file: Parquet or CSV with columns fold, chain, draw, unit, log_lik, or NetCDF. Where a
            fold has log likelihoods of all units, those of its test set are taken.
        folds: as for `cross_validate`, in the order of `fold_log_lik`; of a file, None: those that
            its columns fold and unit make, each of which trains on all units that it does not test.
        full: log likelihoods of all units at draws of the full-data posterior: an array (chain,
            draw, unit), an ArviZ DataTree or InferenceData, or a path; None: unknown, or the rows
            of the file that have no fold.
        data: the data, as a table or arrays by name, needed to compare the result with those of
            models that `pcv` samples, and for folds that name columns.
        outcome: name of the outcome: in `data`, in groups of several variables, and in print.
        joint: which score to show, as for `cross_validate`.
        estimator: "two_sided", or "own": each fold's own draws alone.
        seed: of the R-hat max benchmark.

    Returns:
        `CV`, for `pcv.compare`, without what needs the model: predictions, scores besides the log
        score, parameters.

    Raises:
        PcvError: other folds or units than are tested, unequal or too few chains and draws, missing
            values: what is wrong, where, and what to do.

    >>> rng = np.random.default_rng(1)
    >>> draws = rng.normal(-1, 0.3, (5, 4, 200, 2))                # 5 folds of 2 units, 4 chains
    >>> cv = from_log_lik(draws, pcv.kfold(10, 5))
    >>> cv.folds.shape[0], -10 < cv.elpd < -9, cv.mcse < 0.1
    (5, True, True)
    """
    check_joint(joint)
    with in_python():
        raw = reading.collect(fold_log_lik, full, outcome)
        units, observed = _make_units(raw, folds, data, outcome)
        index = {name: i for i, name in enumerate(units["unit"].values.tolist())}
        folds = matching.make_folds(raw, index) if folds is None else folds
        settings, layout = _lay_out(folds, units, observed, outcome, estimator, seed)
        build = partial(no_model, "model")
        problem = Problem("model", build, units, outcome, layout, seed=seed)
        log_lik = matching.match_folds(raw, problem.folds, index)
        fit = core.import_fit(problem, log_lik.full)
        monitor = TO_LOG.only_warnings().of("from_log_lik")
        warmup = core.import_warmup(problem, log_lik, fit, settings, monitor)
        samples = core.import_samples(problem, log_lik, warmup)
        made_of = fit, warmup, [samples], settings.without_model
        diagnosed = diagnose(problem, *made_of, monitor).to_dataset()
        result = Result(fit, diagnosed, xr.Dataset(), None, fit.attrs["marks"])
        cv = cv_of(problem, result, settings.folds, joint)
    if data is None:
        cv.tree.attrs["outcome_print"] = ""  # unknown
    return cv


def _make_units(
    raw: RawLogLik, folds: Any, data: Any, outcome: str
) -> tuple[xr.Dataset, Observations | None]:
    """Lay out the data by unit, or else the units alone; with the rows of the data."""
    if data is not None:
        if outcome not in data:
            raise PcvError(missing_column(outcome, map(str, data), "data", "outcome"))
        observed = Observations({str(name): np.asarray(data[name]) for name in data})
        table, arrays = tables.stacked(rows(observed, outcome), outcome, "data")
        settings = DataConfig(file=f"{OBJECT}table", outcome=outcome)
        return tables.make_data(table, arrays, settings, "data"), observed
    if isinstance(folds, Mapping):
        raise PcvError("folds: a scheme of a config is laid out on data; give data=..., or Folds")
    if folds is None:
        return xr.Dataset(coords={"unit": list(matching.index_units(raw))}), None
    number = folds.num_units if isinstance(folds, Folds) else None
    if number is None and raw.full is not None:
        number = raw.full.shape[2]
    if number is None and isinstance(folds, Folds):
        number = int(max(folds.test.max() + 1, folds.held_out.max()))
    if number is None:
        raise PcvError(
            "folds: the number of units is not known; give Folds such as pcv.leave_one_out(n), or "
            "data=..."
        )
    return xr.Dataset(coords={"unit": [str(i + 1) for i in range(number)]}), None


def _lay_out(
    folds: Any,
    units: xr.Dataset,
    observed: Observations | None,
    outcome: str,
    estimator: str,
    seed: int,
) -> tuple[Settings, xr.Dataset]:
    """Lay out all folds, by settings of the call."""
    number = units.sizes["unit"]
    if observed is None and not isinstance(folds, str | Mapping):
        scheme: Mapping[str, Any] = {"scheme": "file", "file": f"{OBJECT}folds"}
        own: Folds | None = from_object(folds, number, None)
    else:
        known = observed or Observations({outcome: np.zeros(number)})
        scheme, own = inputs.scheme_of(folds, known, outcome, pcv.__all__)
    settings = validated(Settings, {"folds": scheme, "estimator": estimator}, "from_log_lik")
    if settings.folds.from_full_data or not settings.folds.samples:
        raise PcvError(
            f"folds: '{settings.folds.scheme}' needs the model; give folds that hold out test sets"
        )
    return settings, layout_of(settings, Table(units, seed), own)
