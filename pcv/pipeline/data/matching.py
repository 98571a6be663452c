"""Log likelihoods that were made elsewhere, brought into the order of folds and units.

>>> from pcv.pipeline.data.log_lik import Given
>>> draws = np.zeros((2, 10, 2))
>>> found = Given("file", [draws, draws[..., :1]], ["1", "2"], [["1", "3"], ["2"]], None, [])
>>> index = numbers_of(found)
>>> folds = derived(found, index)
>>> folds
2 folds of 3 units: test 1 to 2, training 1 to 2, no gap
>>> [x.shape for x in matched(found, folds, index).folds]
[(2, 10, 2), (2, 10, 1)]
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from pcv.base.errors import PcvError
from pcv.core.log_lik import LogLik
from pcv.folds.base import Folds, from_sets
from pcv.folds.checks import some
from pcv.pipeline.data.log_lik import Given

FEWEST_CHAINS, FEWEST_DRAWS = 2, 10
"""of a fold, and draws of each chain"""
NO_UNITS = (
    "folds: arrays do not say which units they are of; give the folds, as pcv.cross_validate takes "
    "them"
)


def derived(found: Given, index: Mapping[str, int]) -> Folds:
    """The folds that the units of a file make, each of which trains on all units that it does not
    test.

    Args:
        found: as they are given.
        index: of each unit, by its names.

    Raises:
        PcvError: no such unit.
    """
    _check_units(found, index)
    names = [f"fold {x}" if x.isdigit() else x for x in found.names]
    test = [np.array([index[x] for x in of_fold]) for of_fold in found.units]
    return from_sets(names, test, None, len(set(index.values())))


def numbers_of(found: Given) -> dict[str, int]:
    """The index of each unit, by its label: a number of a row, from 1, or else a name, in the order
    in which they come.

    Raises:
        PcvError: there are no labels.
    """
    if not found.units:
        raise PcvError(NO_UNITS)
    known = list(dict.fromkeys([*found.full_units, *(x for row in found.units for x in row)]))
    if all(x.isdigit() for x in known):
        number = max(map(int, known))
        if found.full is not None:
            number = max(number, found.full.shape[2])
        return {str(i + 1): i for i in range(number)}
    return {x: i for i, x in enumerate(known)}


def matched(found: Given, folds: Folds, index: Mapping[str, int]) -> LogLik:
    """Log likelihoods in the order of folds and of the units that they test.

    Args:
        found: as they are given.
        folds: of all units.
        index: of each unit, by its names.

    Raises:
        PcvError: they are of other folds or units, of too few chains or draws, or a value is not a
            log likelihood.
    """
    tested = [test[test >= 0] for test in folds.test]
    if found.units:
        each = _by_units(found, folds, index)
    else:
        order = _order(found, folds)
        each = [
            _of_tested(
                found.folds[k],
                test,
                len(set(index.values())),
                folds,
                found.padded,
                f"fold '{name}'",
            )
            for k, test, name in zip(order, tested, folds.id.tolist())
        ]
    first = each[0].shape[0]
    for name, x in zip(folds.id.tolist(), each):
        where = f"{found.source}: fold '{name}'"
        if len(x) != first:
            raise PcvError(
                f"{where} has {len(x)} chains, '{folds.id[0]}' has {first}; give as many"
            )
        _check_values(x, where)
    return LogLik(tuple(each), full_of(found, index))


def full_of(found: Given, index: Mapping[str, int]) -> Float[np.ndarray, "chain draw unit"] | None:
    """Log likelihoods of the full data in the order of units; None: unknown.

    Args:
        found: as they are given.
        index: of each unit, by its names.

    Raises:
        PcvError: as `matched` does.
    """
    full = found.full
    if full is None:
        return None
    number = len(set(index.values()))
    if found.full_units:
        where = f"{found.source}: the full data"
        full = full[..., _places(found.full_units, range(number), index, where)]
    if full.shape[2] != number:
        raise PcvError(f"full: {full.shape[2]} units, but the folds are of {number}")
    _check_values(full, "full")
    return full


def _order(found: Given, folds: Folds) -> list[int]:
    """The place of each fold among what is given."""
    ids, number = folds.id.tolist(), len(found.folds)
    if number != len(ids):
        raise PcvError(
            f"{found.source}: {number} folds, but there are {len(ids)}; give log likelihoods of "
            "each, in their order"
        )
    if not found.names:
        return list(range(number))
    if sorted(found.names) != sorted(ids):
        unknown = [name for name in found.names if name not in ids]
        raise PcvError(
            f"{found.source}: folds {some(unknown)} are not among those tested, {some(ids)}"
        )
    return [found.names.index(name) for name in ids]


def _of_tested(
    x: np.ndarray, test: np.ndarray, num_units: int, folds: Folds, padded: bool, where: str
) -> np.ndarray:
    """The log likelihoods of the tested units: these alone, or picked from those of all units."""
    size = x.shape[2]
    if size == test.size:
        return x
    if padded and size == folds.test.shape[1]:
        return x[..., : test.size]
    if size == num_units:
        return x[..., test]
    raise PcvError(
        f"{where} tests {test.size} units, but has log likelihoods of {size}; give those of its "
        f"tested units, in their order, or of all {num_units}"
    )


def _check_units(found: Given, index: Mapping[str, int]) -> None:
    """Refuse units that are not there."""
    for k, units in enumerate(found.units):
        for name in units:
            if name not in index:
                raise PcvError(
                    f"{found.source}: fold '{found.names[k]}': no unit '{name}'; units are numbers "
                    f"of rows of the data, 1 to {len(set(index.values()))}, or their names, such "
                    f"as '{next(iter(index))}'"
                )


def _by_units(found: Given, folds: Folds, index: Mapping[str, int]) -> list[np.ndarray]:
    """The log likelihoods of each fold, found by the units that it tests."""
    _check_units(found, index)
    sets: dict[frozenset[int], list[int]] = {}
    for k, of_fold in enumerate(found.units):
        sets.setdefault(frozenset(index[x] for x in of_fold), []).append(k)
    each, used = [], set()
    for name, test in zip(folds.id.tolist(), folds.test):
        units = test[test >= 0].tolist()
        alike = sets.get(frozenset(units), [])
        if len(alike) > 1:
            alike = [k for k in alike if found.names[k] == name]
        if not alike:
            names = {i: x for x, i in reversed(list(index.items()))}
            raise PcvError(
                f"{found.source}: no fold tests what '{name}' does, unit"
                f"{'s' * (len(units) > 1)} {some(names[i] for i in units)}; give log likelihoods "
                "of the same folds"
            )
        k = alike[0]
        used.add(k)
        places = _places(found.units[k], units, index, f"{found.source}: fold '{found.names[k]}'")
        each.append(found.folds[k][..., places])
    if len(used) < len(found.folds):
        others = [x for k, x in enumerate(found.names) if k not in used]
        raise PcvError(
            f"{found.source}: {len(found.folds)} folds, but there are {len(folds.id)}; none tests "
            f"what {some(others)} do"
        )
    return each


def _places(
    names: Sequence[str], units: Sequence[int], index: Mapping[str, int], where: str
) -> list[int]:
    """The place of each unit among names."""
    place = {index[name]: i for i, name in enumerate(names) if name in index}
    if len(place) < len(names) or set(place) != set(units):
        unknown = [name for name in names if name not in index]
        what = f"no unit {some(unknown)} in the data" if unknown else "other units than tested"
        if len(place) < len(names) and not unknown:
            what = "a unit is there twice"
        elif not unknown and set(place) < set(units):
            what = f"{len(place)} of {len(units)} units"
        raise PcvError(f"{where}: {what}; give the log likelihood of each")
    return [place[unit] for unit in units]


def _check_values(x: Float[np.ndarray, "chain draw term"], where: str) -> None:
    """Refuse too few chains and draws, and values that are no log likelihoods."""
    chains, draws, _ = x.shape
    if chains < FEWEST_CHAINS:
        raise PcvError(
            f"{where} has {chains} chain; R-hat compares chains, so give {FEWEST_CHAINS} or more"
        )
    if draws < FEWEST_DRAWS:
        raise PcvError(f"{where} has {draws} draws per chain; give {FEWEST_DRAWS} or more")
    wrong = np.isnan(x) | (x == np.inf)
    if wrong.any():
        place = tuple(map(int, np.unravel_index(wrong.argmax(), x.shape)))
        raise PcvError(
            f"{where}: log_lik{list(place)} (chain, draw, unit) is {x[place]}, which is no log "
            "likelihood"
        )
