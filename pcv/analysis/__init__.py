"""From the stored sums of draws to answers: NumPy only, no JAX and no files.

`diagnostics` has estimates, their errors and convergence diagnostics; `results` arranges them by
fold, unit and model; `comparison`, `weights` and `verdicts` draw conclusions, and `stopping`
decides when there are enough draws.
"""
