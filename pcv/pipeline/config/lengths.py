"""Numbers of draws per chain at which folds, or the comparison, are looked at. No NumPy."""

GROWTH = 1.5


def looks(min_draws: int, max_draws: int, batch_size: int) -> list[int]:
    """Numbers of draws per chain at which folds may end: whole batches, growing by half.

    >>> looks(100, 500, 50)
    [100, 150, 200, 300, 450, 500]
    """
    found = [min_draws]
    while found[-1] < max_draws:
        further = max(int(found[-1] * GROWTH) // batch_size * batch_size, found[-1] + batch_size)
        found.append(min(further, max_draws))
    return found


def doubling(min_draws: int, max_draws: int) -> list[int]:
    """Draws per chain after each round of sampling.

    >>> doubling(200, 1000)
    [200, 400, 800, 1000]
    """
    found = [min_draws]
    while found[-1] < max_draws:
        found.append(min(2 * found[-1], max_draws))
    return found
