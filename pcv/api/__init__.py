"""From Python: models and data as they are, through the stages in memory, to a result.

`inputs` translates a call's arguments into config terms, `calls` makes a job of them,
`cross_validation` runs its stages, `leave_one_out` runs them only where PSIS fails, `result` is
what comes back, `saved` stores it, and `comparisons` compares several.
"""
