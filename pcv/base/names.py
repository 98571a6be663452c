"""Names of fold batches; names as numbers, so that random keys do not depend on positions."""

import hashlib

WHOLE = "1-of-1"
"""the only batch, where folds are not cut"""


def batch_names(number: int) -> list[str]:
    """Names of the fold batches, in the format of Snakemake's scatter-gather.

    >>> batch_names(2)
    ['1-of-2', '2-of-2']
    """
    return [f"{i}-of-{number}" for i in range(1, number + 1)]


def name_bits(name: str) -> int:
    """The first 32 bits of a name's SHA-256.

    >>> name_bits("rat 9")
    2411413555
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
