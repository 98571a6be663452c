"""The log score: log posterior predictive density of what was left out."""

from typing import Any

import numpy as np
from jaxtyping import Array, Key

from pcv.accumulate import log_sums
from pcv.diagnostics import LogSums, elpd
from pcv.model import Fold, Target
from pcv.scores.score import Score


def _statistic(key: Key[Array, ""], target: Target, params: Any, fold: Fold) -> dict[str, Array]:
    joint, pointwise = target.log_predictive(params, fold)
    return {"joint": joint, "pointwise": pointwise}


def _estimate(sums: dict[str, np.ndarray]) -> np.ndarray:
    return elpd(LogSums(**sums))


log = Score("log", _statistic, log_sums, _estimate)
r"""elpd of a fold: :math:`\eta_k = \log \frac{1}{LN}\sum_{l,t} p(y_{\mathrm{test}_k}\mid
\theta_{klt})` (joint), or of each of its units (pointwise). PCV eq. 8."""
