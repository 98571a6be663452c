"""From the stored sums of draws to answers: NumPy only, no JAX and no files.

`samples` is the layout of what is stored; `diagnostics` has estimates, their errors and convergence
diagnostics; `results` arranges them by fold, unit and model, as numbers and in words; `comparison`,
`weights`, `verdicts` and `run_verdict` draw conclusions, and `stopping` decides when there are
enough draws. `subsampling` estimates sums over all units from a few exact terms.
"""
