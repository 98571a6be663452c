"""From Python: models and data as they are, through the stages in memory, to a result.

`inputs` makes a job of what a call is given, `cross_validation` runs its stages, `loo` does so
where PSIS is not enough, `result` is what comes back, and
`comparisons` sets several beside one another.
"""
