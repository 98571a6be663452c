"""What a user writes, and what is derived from it.

`model` has the records, `parameters` makes a vector of what they are functions of; `normal` makes a
target of a mean and a covariance, `frontends` reads models of NumPyro, PyMC and Bambi, `zoo` has
the paper's; `checks` refuses what cannot be right, `scores` has what is averaged over draws, and
`effects` finds and integrates out what a fold leaves undetermined.
"""
