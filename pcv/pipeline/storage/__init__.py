"""Artifacts on disk: written whole or not at all, and stamped with what they were made of.

`store` reads and writes one, `growing` writes one batch by batch, `storable` makes variable names
storable, `idata` lays a fit out in ArviZ's groups, `artifacts` finds those of a job, whose paths
are in `pcv.pipeline.graph`, `paths` what lies beside them, `checkpoints` keep blocks of draws of a
running job, and `recipes` tell Snakemake what has changed.
"""
