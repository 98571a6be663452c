"""From Python: models and data as they are, through the stages in memory, to a result.

`inputs` says as a config does what a call is given, `calls` makes a job of it, `cross_validation`
runs its stages, `loo` does so where PSIS is not enough, `result` is what comes back, `saved` keeps
it, and `comparisons` sets several beside one another.
"""
