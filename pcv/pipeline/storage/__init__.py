"""Artifacts on the disk: stores that are whole or not there, stamped with what they were made of.

`layout` says where lies what belongs to them, `store` reads and writes one, `growing` one batch by
batch, `storable` gives variables names that a store takes, `idata` lays a fit out as ArviZ has it,
`artifacts` finds those of a job, `checkpoints` keep blocks of draws of a job under way, and
`recipes` tell Snakemake what has changed.
"""
