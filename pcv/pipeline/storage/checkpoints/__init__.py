"""Checkpoints: blocks of draws saved as a job samples, from which it can resume if killed.

Each job (of a model's fold batch) has a folder named after a hash of its folds. It holds one file
per block, the chains' states after the last two blocks and every 16th, the recipe, and a lock.
Folders lie outside the artifacts, as Snakemake deletes incomplete ones, and are kept when the job
is finished, so that draws and folds can be added.

`files` writes and reads blocks and states, `locks` restrict a folder to one process, `checkpoint`
is the folder of one job, and `merging` takes over folds from other jobs' folders.
"""
