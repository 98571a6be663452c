"""Artifacts on the disk: stores that are whole or not there, stamped with what they were made of.

`layout` says where each lies, `store` reads and writes one, `storable` gives variables names that a
store takes, `artifacts` finds those of a job, `checkpoint` keeps blocks of draws of a job under
way, and `recipes` tell Snakemake what has changed.
"""
