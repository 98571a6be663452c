"""From the sums of draws that folds leave to answers: NumPy alone, no JAX and no files.

`diagnostics` estimates scores and their errors and says whether chains can be trusted; `results`
lays them out by fold, unit and model; `comparison`, `weights` and `verdicts` say what follows, and
`stopping` when there are draws enough.
"""
