"""Names as numbers, so that random keys do not depend on positions."""

import hashlib


def name_bits(name: str) -> int:
    """The first 32 bits of a name's SHA-256.

    >>> name_bits("rat 9")
    2411413555
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
