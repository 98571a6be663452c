"""Blocks of draws on disk while a job makes them, so that a job that was killed can resume.

The jobs of a model's batches have a folder each, named after their folds. It holds a file for each
block, the chains' state after the last two and every 16th, what they are made of, and a lock. The
folders lie outside the artifacts, whose half-made remains Snakemake deletes, and stay when the job
is finished, so that draws and folds can be added.

`files` writes and reads blocks and states, `locks` keep a folder to one process, `checkpoint` is
the folder of one job, and `merging` takes folds from the folders of others.
"""
