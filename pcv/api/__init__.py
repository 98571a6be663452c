"""From Python: models and data as they are, to a result.

`calls` makes problems and settings of a call's arguments, which `inputs` checks;
`cross_validation`, `loo` and `evidence` pass them to `pcv.core`; `result`, `comparisons` and
`cumulative` are what comes back.
"""
