"""Scoring rules: a statistic of every draw, and how its sums become the score.

>>> from pcv.scores import SCORES
>>> list(SCORES)
['log']
"""

from pcv.scores.log import log
from pcv.scores.score import Score

SCORES: dict[str, Score] = {"log": log}
"""Scores by their name in the config."""

__all__ = ["SCORES", "Score", "log"]
