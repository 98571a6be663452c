"""Stages and their artifacts: what Snakemake and `pcv` run, and everything that touches the disk.

A stage reads artifacts, calls the same function as the Python interface, and writes its own.
"""
