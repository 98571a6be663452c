"""Stan programs on their data, called through BridgeStan's C interface.

`stanli` compiles a program in milliseconds, without a toolchain; a `bridgestan.StanModel` of one's
own uses BridgeStan's.
"""

import ctypes
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import platformdirs
from jaxtyping import Float

from pcv.base.errors import PcvError, in_one_line
from pcv.models.frontends.stan.program import TERMS

try:
    import bridgestan
    import stanli
except ModuleNotFoundError as error:
    raise PcvError(
        "models of Stan need stanli and bridgestan: install pcv with its extra, pcv-bayes[stan]"
    ) from error

Gradient = Callable[
    [Float[np.ndarray, "point param"]],
    tuple[Float[np.ndarray, " point"], Float[np.ndarray, "point param"]],
]
"""log densities and gradients at points; -inf and NaN where the program fails"""
RECENT = 4
"""calls whose points are remembered"""
MOST = 4096
"""programs on other data that are kept"""


class Loaded(NamedTuple):
    """A program on its data."""

    model: bridgestan.StanModel
    gradient: Gradient


Compiled = Callable[[Mapping[str, Any]], Loaded]
"""puts a program on data"""


def by_stanli(text: str, where: str) -> Compiled:
    """Compile a program with stanli."""
    try:
        mir = stanli.stan_to_mir(text)
    except (RuntimeError, ValueError) as error:
        raise PcvError(f"{where}, {_of_stanc(str(error))}") from error
    return lambda data: _loaded(lambda: stanli.bridgestan_model(mir=mir, data=as_json(data)), where)


def _of_stanc(said: str) -> str:
    """The line and the reason of a compiler's message, in one line."""
    line, reason = re.search(r"line \d+", said), said.rpartition("-----\n")[2]
    return f"{line[0] if line else 'as stanc says'}: {' '.join(reason.split()).rstrip('.')}"


def by_bridgestan(text: str, where: str) -> Compiled:
    """Compile a program with BridgeStan's toolchain, in the user's cache folder."""
    of_text = hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = platformdirs.user_cache_path("pcv", appauthor=False) / "stan" / of_text
    file = folder / "program.stan"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.write_text(text)
        library = bridgestan.compile_model(file, make_args=["STAN_THREADS=true"])
    except (RuntimeError, ValueError, OSError) as error:
        raise PcvError(f"{where}: {in_one_line(error)}") from error
    make = partial(bridgestan.StanModel, library, warn=False)
    return lambda data: _loaded(lambda: make(as_json(data)), where)


def as_json(data: Mapping[str, Any]) -> str:
    """The data as Stan reads them."""
    return json.dumps({name: np.asarray(x).tolist() for name, x in data.items()})


def _loaded(make: Callable[[], Any], where: str) -> Loaded:
    try:
        model = make()
    except (RuntimeError, ValueError) as error:
        said = in_one_line(error)
        if "unsupported" in said or "mir:" in said:
            raise PcvError(
                f"{where}: {said}; compile it by BridgeStan, and give the bridgestan.StanModel"
            ) from error
        raise PcvError(f"{where}: the data do not fit the program: {said}") from error
    return Loaded(model, gradient_of(model))


def gradient_of(model: bridgestan.StanModel) -> Gradient:
    """The log density and its gradient, up to a constant, at any number of points.

    Programs that are safe to call from several threads are called without Python's lock.
    """
    threads = "STAN_THREADS=true" in model.model_info()
    library = (ctypes.CDLL if threads else ctypes.PyDLL)(model.lib_path)
    call, free = library.bs_log_density_gradient, library.bs_free_error_msg
    pointer = ctypes.c_void_p
    call.argtypes = [pointer, ctypes.c_bool, ctypes.c_bool, *[pointer] * 4]
    free.argtypes = [pointer]
    size = model.param_unc_num()

    def gradient(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        points = np.ascontiguousarray(points, np.float64)
        value, slope = np.empty(len(points)), np.empty_like(points)
        message = pointer()
        to_message = ctypes.addressof(message)
        first, into, of_slope = (x.ctypes.data for x in (points, value, slope))
        for i in range(len(points)):
            row = 8 * size * i
            if call(model.model, True, True, first + row, into + 8 * i, of_slope + row, to_message):
                free(message)
                message.value = None
                value[i], slope[i] = -np.inf, np.nan
        return value, slope

    return gradient


def log_lik(loaded: Loaded, q: Float[np.ndarray, " param"]) -> Float[np.ndarray, " unit"]:
    """The terms that the program itself computes at a point."""
    names = loaded.model.param_names(include_tp=True, include_gq=True)
    rng = loaded.model.new_rng(0)
    shown = loaded.model.param_constrain(q, include_tp=True, include_gq=True, rng=rng)
    return np.asarray(shown)[[name.split(".")[0] == TERMS for name in names]]


class Stan(NamedTuple):
    """A program on its data, as folds need it."""

    program: Compiled
    """as it is"""
    loaded: Loaded
    num_params: int
    joint: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    """log prior plus weighted log likelihood, and its gradient, of points and their weights"""
    prior: Callable[[np.ndarray], np.ndarray]
    """log prior at points"""
    terms: Callable[[np.ndarray], np.ndarray]
    """log likelihood of each unit at points"""
    terms_of: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """the same for other outcomes, one set for each point"""
    masked: bool = False
    """whether the program obeys a mask of training units"""


def of_weights(
    program: Compiled, weighted: Compiled, data: Mapping[str, Any], outcome: str
) -> Stan:
    """A program whose terms are weighted.

    Args:
        program: as it is.
        weighted: with a weight for each term, as its last parameters.
        data: by name.
        outcome: which of them is predicted.
    """
    loaded, own = program(data), weighted(data)
    size = loaded.model.param_unc_num()

    def joint(q: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = own.gradient(np.concatenate([q, weights - 1.0], axis=1))
        return _finite(value, slope[:, :size])

    @lru_cache(RECENT)
    def without_terms(points: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Log prior, and log likelihoods as derivatives in the weights: integrals over effects ask
        for both at the same points."""
        q = np.frombuffer(points).reshape(-1, size)
        number = own.model.param_unc_num() - size
        value, slope = own.gradient(np.concatenate([q, np.full((len(q), number), -1.0)], axis=1))
        return value, slope[:, size:]

    def prior(q: np.ndarray) -> np.ndarray:
        return without_terms(q.tobytes())[0]

    def terms(q: np.ndarray) -> np.ndarray:
        return without_terms(q.tobytes())[1]

    others = _terms_of_others(weighted, data, outcome, size)
    return Stan(program, loaded, size, joint, prior, terms, others)


def of_mask(
    program: Compiled,
    weighted: Compiled,
    data: Mapping[str, Any],
    outcome: str,
    mask: str,
    in_training: bool,
) -> Stan:
    """A program that obeys a mask of training units among its data.

    Args:
        program, weighted, data, outcome: as for `of_weights`.
        mask: name of the mask.
        in_training: its value for training units.
    """
    loaded, own, changed = program(data), weighted(data), _changed(program, data, mask)
    size, length = loaded.model.param_unc_num(), len(data[mask])
    kind = np.asarray(data[mask]).dtype

    def joint(q: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = np.empty(len(q)), np.empty_like(q)
        masks, which = np.unique(weights > 0, axis=0, return_inverse=True)
        for i, row in enumerate(masks):
            of_mask = which.ravel() == i
            before = np.full(length - len(row), True)  # outcomes that others are given
            trained = np.concatenate([before, row]) == in_training
            fold = changed(trained.astype(kind).tobytes())
            value[of_mask], slope[of_mask] = fold.gradient(q[of_mask])
        return _finite(value, slope)

    def prior(q: np.ndarray) -> np.ndarray:
        return joint(q, np.zeros((len(q), number)))[0]

    number = own.model.param_unc_num() - size
    others = _terms_of_others(weighted, data, outcome, size)
    return Stan(program, loaded, size, joint, prior, partial(_terms, own, size), others, True)


def _terms(loaded: Loaded, size: int, q: np.ndarray) -> np.ndarray:
    """Log likelihoods as derivatives in the weights."""
    number = loaded.model.param_unc_num() - size
    return loaded.gradient(np.concatenate([q, np.zeros((len(q), number))], axis=1))[1][:, size:]


def _terms_of_others(
    weighted: Compiled, data: Mapping[str, Any], outcome: str, size: int
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Log likelihoods of other outcomes than the data have."""
    changed, y = _changed(weighted, data, outcome), np.asarray(data[outcome])

    def of_others(q: np.ndarray, others: np.ndarray) -> np.ndarray:
        same = others == y.astype(np.float32)  # of chains in single precision
        each = (changed(one.astype(y.dtype).tobytes()) for one in np.where(same, y, others))
        return np.concatenate([_terms(one, size, point[None]) for one, point in zip(each, q)])

    return of_others


def _finite(value: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Density 0, and no slope, where one of them is not finite."""
    lost = ~(np.isfinite(value) & np.isfinite(slope).all(1))
    return np.where(lost, -np.inf, value), np.where(lost[:, None], 0.0, slope)


def _changed(compiled: Compiled, data: Mapping[str, Any], name: str) -> Callable[[bytes], Loaded]:
    """The program with other values of one variable, the last of which are kept."""
    x = np.asarray(data[name])

    @lru_cache(MOST)
    def changed(values: bytes) -> Loaded:
        return compiled({**data, name: np.frombuffer(values, x.dtype).reshape(x.shape)})

    return changed
