"""Stages that leave artifacts: what Snakemake and `pcv` run, and all that touches the disk for it.

A stage reads artifacts, calls the same function as a call from Python does, and writes its own.
"""
