"""How many CPU cores there are to use. Loads no JAX."""

import os


def all_cores() -> int:
    """Those that this process may use, where the system tells (a job's allocation on a cluster)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
