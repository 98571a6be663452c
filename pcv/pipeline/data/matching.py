"""Log likelihoods that were made elsewhere, brought into the order of folds and units.

>>> from pcv.pipeline.data.log_lik import RawLogLik
>>> draws = np.zeros((2, 10, 2))
>>> raw = RawLogLik("file", [draws, draws[..., :1]], ["1", "2"], [["1", "3"], ["2"]], None, [])
>>> index = index_units(raw)
>>> folds = make_folds(raw, index)
>>> folds
2 folds of 3 units: test 1 to 2, training 1 to 2, no gap
>>> [x.shape for x in match_folds(raw, folds, index).folds]
[(2, 10, 2), (2, 10, 1)]
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from pcv.base.errors import PcvError
from pcv.core.log_lik import LogLik
from pcv.folds.base import Folds, from_sets
from pcv.folds.checks import some
from pcv.pipeline.data.log_lik import RawLogLik

FEWEST_CHAINS, FEWEST_DRAWS = 2, 10
"""of a fold, and draws of each chain"""
NO_UNITS = (
    "folds: arrays do not say which units they are of; give the folds, as pcv.cross_validate takes "
    "them"
)


def make_folds(raw: RawLogLik, index: Mapping[str, int]) -> Folds:
    """Make folds of the units of a file, each of which trains on all units that it does not test.

    Args:
        raw: log likelihoods.
        index: of each unit, by its names.

    Raises:
        PcvError: no such unit, or no units at all.
    """
    if not raw.units:
        raise PcvError(NO_UNITS)
    _check_units(raw, index)
    names = [f"fold {x}" if x.isdigit() else x for x in raw.names]
    test = [np.array([index[x] for x in of_fold]) for of_fold in raw.units]
    return from_sets(names, test, None, len(set(index.values())))


def index_units(raw: RawLogLik) -> dict[str, int]:
    """Index units by their labels: numbers of rows, from 1, or else names, in the order in which
    they come.

    Raises:
        PcvError: there are no labels.
    """
    if not raw.units:
        raise PcvError(NO_UNITS)
    known = list(dict.fromkeys([*raw.full_units, *(x for row in raw.units for x in row)]))
    if all(x.isdigit() for x in known):
        number = max(map(int, known))
        if raw.full is not None:
            number = max(number, raw.full.shape[2])
        return {str(i + 1): i for i in range(number)}
    return {x: i for i, x in enumerate(known)}


def match_folds(raw: RawLogLik, folds: Folds, index: Mapping[str, int]) -> LogLik:
    """Bring log likelihoods into the order of folds and of the units that they test.

    Args:
        raw: log likelihoods.
        folds: of all units.
        index: of each unit, by its names.

    Raises:
        PcvError: they are of other folds or units, of too few chains or draws, or a value is not a
            log likelihood.
    """
    if raw.units:
        each = _match_by_units(raw, folds, index)
    else:
        number = len(set(index.values()))
        each = [
            _pick_tested(raw, place, folds.some(slice(k, k + 1)), number)
            for k, place in enumerate(_order_folds(raw, folds))
        ]
    first = each[0].shape[0]
    for name, x in zip(folds.id.tolist(), each):
        where = f"{raw.source}: fold '{name}'"
        if len(x) != first:
            raise PcvError(
                f"{where} has {len(x)} chains, '{folds.id[0]}' has {first}; give as many"
            )
        _check_values(x, where)
    return LogLik(tuple(each), match_full(raw, index))


def match_full(
    raw: RawLogLik, index: Mapping[str, int]
) -> Float[np.ndarray, "chain draw unit"] | None:
    """Bring log likelihoods of the full data into the order of units; None: unknown.

    Args:
        raw: log likelihoods.
        index: of each unit, by its names.

    Raises:
        PcvError: as `match_folds` does.
    """
    full = raw.full
    if full is None:
        return None
    number = len(set(index.values()))
    if raw.full_units:
        where = f"{raw.source}: the full data"
        full = full[..., _find_places(raw.full_units, range(number), index, where)]
    if full.shape[2] != number:
        raise PcvError(f"full: {full.shape[2]} units, but the folds are of {number}")
    _check_values(full, "full")
    return full


def _order_folds(raw: RawLogLik, folds: Folds) -> list[int]:
    """Find the place of each fold among the log likelihoods."""
    ids, number = folds.id.tolist(), len(raw.folds)
    if number != len(ids):
        raise PcvError(
            f"{raw.source}: {number} folds, but there are {len(ids)}; give log likelihoods of "
            "each, in their order"
        )
    if not raw.names:
        return list(range(number))
    if sorted(raw.names) != sorted(ids):
        unknown = [name for name in raw.names if name not in ids]
        raise PcvError(
            f"{raw.source}: folds {some(unknown)} are not among those tested, {some(ids)}"
        )
    return [raw.names.index(name) for name in ids]


def _pick_tested(raw: RawLogLik, place: int, fold: Folds, num_units: int) -> np.ndarray:
    """Pick the log likelihoods of a fold's tested units: all that it has, or some of all units."""
    x, slots = raw.folds[place], fold.test.shape[1]
    test = fold.test[0][fold.test[0] >= 0]
    size = x.shape[2]
    if size == test.size:
        return x
    if raw.padded and size == slots:
        return x[..., : test.size]
    if size == num_units:
        return x[..., test]
    raise PcvError(
        f"{raw.source}: fold '{fold.id[0]}' tests {test.size} units, but has log likelihoods of "
        f"{size}; give those of its tested units, in their order, or of all {num_units}"
    )


def _check_units(raw: RawLogLik, index: Mapping[str, int]) -> None:
    """Refuse units that are not there."""
    for k, units in enumerate(raw.units):
        for name in units:
            if name not in index:
                raise PcvError(
                    f"{raw.source}: fold '{raw.names[k]}': no unit '{name}'; units are numbers "
                    f"of rows of the data, 1 to {len(set(index.values()))}, or their names, such "
                    f"as '{next(iter(index))}'"
                )


def _match_by_units(raw: RawLogLik, folds: Folds, index: Mapping[str, int]) -> list[np.ndarray]:
    """The log likelihoods of each fold, raw by the units that it tests."""
    _check_units(raw, index)
    sets: dict[frozenset[int], list[int]] = {}
    for k, of_fold in enumerate(raw.units):
        sets.setdefault(frozenset(index[x] for x in of_fold), []).append(k)
    each, used = [], set()
    for name, test in zip(folds.id.tolist(), folds.test):
        units = test[test >= 0].tolist()
        alike = sets.get(frozenset(units), [])
        if len(alike) > 1:
            alike = [k for k in alike if raw.names[k] == name]
        if not alike:
            names = {i: x for x, i in reversed(list(index.items()))}
            raise PcvError(
                f"{raw.source}: no fold tests what '{name}' does, unit"
                f"{'s' * (len(units) > 1)} {some(names[i] for i in units)}; give log likelihoods "
                "of the same folds"
            )
        k = alike[0]
        used.add(k)
        places = _find_places(raw.units[k], units, index, f"{raw.source}: fold '{raw.names[k]}'")
        each.append(raw.folds[k][..., places])
    if len(used) < len(raw.folds):
        others = [x for k, x in enumerate(raw.names) if k not in used]
        raise PcvError(
            f"{raw.source}: {len(raw.folds)} folds, but there are {len(folds.id)}; none tests "
            f"what {some(others)} do"
        )
    return each


def _find_places(
    names: Sequence[str], units: Sequence[int], index: Mapping[str, int], where: str
) -> list[int]:
    """Find the place of each unit among names."""
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
