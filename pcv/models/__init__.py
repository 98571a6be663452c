"""What a user writes, and what is derived from it.

`model` has the records, `normal` makes one of a mean and a covariance, `frontends` reads those of
NumPyro, PyMC and Bambi, `zoo` has the paper's; `checks` and `shapes` refuse what cannot be right,
and `effects` finds and integrates out what a fold leaves undetermined.
"""
