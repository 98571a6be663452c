"""Models, as users write them and as the sampler sees them.

`model` defines the records, `parameters` flattens their parameters; `normal` makes a target from a
mean and a covariance, `frontends` converts models of NumPyro, PyMC, Bambi and Stan, `zoo` has the
paper's models; `checks` validates models, `scores` defines what is averaged over draws, and
`effects` finds and integrates out the effects of left-out groups.
"""
