"""Stan programs, as they are."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from pcv.base.errors import PcvError, kind_of, nearest
from pcv.models.frontends.rows import Layout, observations
from pcv.models.frontends.stan import calls
from pcv.models.frontends.stan.check import check_terms
from pcv.models.frontends.stan.data import as_named, of_program, without_sizes
from pcv.models.frontends.stan.loaded import (
    Compiled,
    Loaded,
    Stan,
    as_json,
    by_bridgestan,
    by_stanli,
    of_mask,
    of_weights,
)
from pcv.models.frontends.stan.program import (
    MASKS,
    SNIPPET,
    TERMS,
    Declared,
    blocks,
    data_of,
    mask_of,
    read,
    uncommented,
)
from pcv.models.frontends.stan.rewriting import generating, random_in, weighted
from pcv.models.frontends.stan.variables import Variable, variables
from pcv.models.model import Data, Model, Outcome, Params
from pcv.models.observations import append_rows

RADIUS = 2.0
"""how far from 0, on the unconstrained scale, chains may start"""
REPLICATES = "y_rep"
SEEDS = 2**24
"""of random numbers in Stan, which single precision can tell apart"""


class Source(NamedTuple):
    """A program, and who compiles it."""

    text: str
    where: str
    """its name, for messages"""
    compiled: Callable[[str, str], Compiled]
    """compiles a text of this name"""
    data: str | None = None
    """of a StanModel, as JSON"""


def from_stan(
    program: Any,
    data: Any = None,
    outcome: str = "",
    *,
    replicates: str | None = REPLICATES,
    columns: Mapping[str, Any] | None = None,
) -> Model:
    r"""A Stan program on its data, for cross-validation.

    The program is the one that is used with loo, unchanged: `log_lik` in its generated quantities
    has a term for every unit. The density of a fold is the program's, less the held-out terms:

    .. math:: \log p(\theta, y) - \sum_{i \in \mathrm{held\ out}} \log p(y_i \mid \theta)

    A program with a data variable ``array[N] int train`` (1: trained on) or ``holdout`` (1: held
    out) obeys that itself, and is run with the mask of each fold. Either way `log_lik` is compared
    with the density before anything is sampled: a change of one outcome must change both alike.

    Args:
        program: file, or text, of the program; or a `bridgestan.StanModel` whose program lies
            beside its library.
        data: its data by name, the columns of a table, or a JSON file. Whole numbers that it lacks
            are taken from the sizes and bounds of others (``N``, ``J``), and text is numbered from
            1. None: those of the StanModel.
        outcome: the variable that is predicted, with an element for each term of `log_lik`; of
            more elements the last count.
        replicates: generated quantity that redraws the outcome, for predictions; None: none.
        columns: further columns of the data, one value per unit, that folds can name.

    Raises:
        PcvError: the program cannot be read or compiled, or the data do not fit it; it has no
            `log_lik`, or one that is not what its density has; or no parameters.

    >>> coin = '''
    ... data { int N; array[N] int<lower=0, upper=1> y; }
    ... parameters { real<lower=0, upper=1> p; }
    ... model { p ~ beta(2, 2); y ~ bernoulli(p); }
    ... generated quantities {
    ...   vector[N] log_lik;
    ...   for (n in 1:N) log_lik[n] = bernoulli_lpmf(y[n] | p);
    ... }
    ... '''
    >>> made = from_stan(coin, {"y": np.array([0, 1, 1])}, "y")
    >>> made.log_lik({"p": jnp.zeros(())}, {}).shape
    (3,)
    """
    source = _source(program)
    where, known = source.where, blocks(source.text, source.where)
    declared = data_of(known, where)
    given = as_named(source.data if data is None else data, where)
    mask = mask_of(declared)
    arrays = _arrays(declared, given, outcome, mask, where)
    base = source.compiled(_with_terms(known, where), where)
    size = _number_of_terms(base(arrays).model.param_names(include_tp=True, include_gq=True), where)
    y = arrays[outcome]
    if y.ndim == 0 or len(y) < size:
        raise PcvError(
            f"{where}: log_lik has {size} terms, and the outcome '{outcome}' has shape {y.shape}; "
            "it needs an element for each"
        )
    by_weights = source.compiled(weighted(known, size, where), where)
    build = partial(_stan, base, by_weights, outcome=outcome, mask=mask)
    stan = build(arrays)
    if not stan.num_params:
        raise PcvError(f"{where}: it has no parameters; there is nothing to sample")
    notes = check_terms(build, stan, arrays, outcome, size, where)
    observed = y[len(y) - size :]
    dims = [f"{outcome}_dim_{axis}" for axis in range(y.ndim)]
    layouts = {outcome: Layout((dims[0],), tuple(dims[1:]), observed.shape)}
    of_rows = {outcome: observed}, layouts, (dims[0],), given, columns or {}, where
    identity = as_json({**arrays, "": [source.text, replicates, stan.loaded.model.model_info()]})

    def append(new_data: Any) -> Model:
        rows = append_rows(without_sizes(given, declared, outcome), new_data, len(y), outcome)
        return from_stan(program, rows, outcome, replicates=replicates)

    model = _model(stan, y, size, outcome)._replace(
        data=observations(outcome, *of_rows),
        append=append,
        notes=notes,
        identity=hashlib.sha256(identity.encode()).hexdigest(),
    )
    drawing = None if replicates is None else generating(known, replicates, where)
    if drawing is None:
        if replicates in (None, REPLICATES):
            return model
        raise PcvError(f"{where}: replicates '{replicates}' is no generated quantity of it")
    drawn = source.compiled(drawing, where)(arrays)
    return _with_replicates(model, drawn, str(replicates), observed.shape, where)


def _arrays(
    declared: Mapping[str, Declared],
    given: Mapping[str, np.ndarray],
    outcome: str,
    mask: str | None,
    where: str,
) -> dict[str, np.ndarray]:
    """The program's data, which train on all units."""
    if outcome not in declared:
        there = [name for name, one in declared.items() if one.arrays or one.sizes]
        hint = nearest(outcome, there, f"it declares {', '.join(there) or 'none'}")
        raise PcvError(f"{where}: outcome '{outcome}' is no variable of its data block; {hint}")
    if outcome not in given:
        raise PcvError(f"{where}: the outcome '{outcome}' is not in the data")
    if mask is None:
        return of_program(given, declared, outcome, where)
    whole = np.full(len(given[outcome]), int(MASKS[mask]))
    known = given.get(mask, whole)
    if not np.array_equal(known, np.full(np.shape(known), int(MASKS[mask]))):
        raise PcvError(
            f"{where}: data: '{mask}' leaves units out, or is no mask; pcv sets it for each fold: "
            "leave it out of the data, and drop rows that no fold is to use"
        )
    return of_program({**given, mask: known}, declared, outcome, where)


def _with_terms(known: Mapping[str, str], where: str) -> str:
    """The program that generates `log_lik` alone."""
    text = generating(known, TERMS, where)
    if text is None:
        raise PcvError(f"{where}: it has no '{TERMS}' in generated quantities; add {SNIPPET}")
    if random := random_in(known, TERMS, where):
        raise PcvError(
            f"{where}: '{TERMS}' depends on random numbers ({random}), so it is no density of the "
            "parameters; let it depend on parameters and data alone"
        )
    return text


def _source(program: Any) -> Source:
    """The text of a program, and what compiles it."""
    if isinstance(program, str | Path):
        is_text = "{" in str(program)
        text = uncommented(str(program)) if is_text else read(Path(program))
        where = "Stan program" if is_text else f"Stan program '{program}'"
        by_stanli(text, where)  # its errors name lines of the file
        return Source(text, where, by_stanli)
    if not hasattr(program, "lib_path"):
        raise PcvError(
            f"from_stan: {kind_of(program)} is no Stan program; give its file, its text, or a "
            "bridgestan.StanModel"
        )
    file = Path(program.lib_path)
    file = file.with_name(f"{file.stem.removesuffix('_model')}.stan")
    if not file.is_file():
        raise PcvError(
            f"from_stan: the program of the StanModel, {file}, is not beside its library; give "
            "the program's file"
        )
    return Source(read(file), f"Stan program '{file}'", by_bridgestan, program.data)


def _number_of_terms(names: list[str], where: str) -> int:
    terms = [name for name in names if name.split(".")[0] == TERMS]
    if not terms or any(name.count(".") != 1 for name in terms):
        raise PcvError(
            f"{where}: '{TERMS}' must be a vector, or an array of real, with an element for each "
            "unit"
        )
    return len(terms)


def _stan(
    program: Compiled,
    weighted: Compiled,
    data: Mapping[str, Any],
    *,
    outcome: str,
    mask: str | None,
) -> Stan:
    if mask is None:
        return of_weights(program, weighted, data, outcome)
    return of_mask(program, weighted, data, outcome, mask, MASKS[mask])


def _model(stan: Stan, y: np.ndarray, size: int, outcome: str) -> Model:
    """The functions of a model, for `size` units, which are the last elements of `y`."""
    joint, prior = calls.log_joint(stan), calls.log_prior(stan, size)
    terms = calls.log_lik(stan, size)
    unconstrained = variables(stan.loaded.model.param_unc_names())
    before, shape = y[: len(y) - size], y[len(y) - size :].shape

    flat = partial(_flat, unconstrained)

    def init(key: Key[Array, ""]) -> Params:
        x = jax.random.uniform(key, (stan.num_params,), minval=-RADIUS, maxval=RADIUS)
        return {name: one.of(x) for name, one in unconstrained.items()}

    def log_lik(params: Params, data: Data) -> Array:
        q = flat(params)
        if outcome not in data or _equal(data[outcome], y[len(y) - size :]):
            return terms(q)
        changed = jnp.reshape(data[outcome], shape)
        whole = jnp.concatenate([jnp.asarray(before, changed.dtype), changed])
        return calls.call(lambda q, y: [stan.terms_of(q, y)], ((size,),), q, whole)[0]

    constrain, unconstrain = _variables(stan, flat, unconstrained)
    return Model(
        init,
        lambda params: prior(flat(params)),
        log_lik,
        constrain,
        Outcome(outcome, discrete=y.dtype.kind in "biu"),
        unconstrain=unconstrain,
        log_joint=lambda params, weights: joint(flat(params), jnp.broadcast_to(weights, size)),
    )


def _equal(x: Any, y: np.ndarray) -> bool:
    """Whether an outcome is known to be that of the data."""
    if isinstance(x, jax.core.Tracer):
        return False
    return np.array_equal(np.ravel(x), np.ravel(y).astype(np.asarray(x).dtype))


def _variables(
    stan: Stan, flat: Callable[[Params], Array], unconstrained: Mapping[str, Variable]
) -> tuple[Callable[[Params], dict[str, Array]], Callable[[Mapping[str, Array]], Params]]:
    """The variables of the posterior from parameters, and back."""
    model = stan.loaded.model
    shown, number = variables(model.param_names(include_tp=True)), model.param_num()
    size = model.param_num(include_tp=True)
    parameters = {name: one for name, one in shown.items() if one.begin < number}

    def constrained(q: np.ndarray) -> list[np.ndarray]:
        return [np.array([_or_nan(model.param_constrain, x, size, include_tp=True) for x in q])]

    def back(x: np.ndarray) -> list[np.ndarray]:
        return [np.array([_or_nan(model.param_unconstrain, row, stan.num_params) for row in x])]

    def constrain(params: Params) -> dict[str, Array]:
        (listed,) = calls.call(constrained, ((size,),), flat(params))
        return {name: one.of(listed) for name, one in shown.items()}

    def unconstrain(values: Mapping[str, Array]) -> Params:
        listed = jnp.concatenate([jnp.ravel(jnp.asarray(values[name]).T) for name in parameters])
        (q,) = calls.call(back, ((stan.num_params,),), listed)
        return {name: one.of(q) for name, one in unconstrained.items()}

    return constrain, unconstrain


def _or_nan(function: Any, x: np.ndarray, size: int, **options: Any) -> np.ndarray:
    """What the program returns, NaN where it fails."""
    try:
        return function(x, **options)
    except RuntimeError:
        return np.full(size, np.nan)


def _flat(unconstrained: Iterable[str], params: Params) -> Array:
    """Parameters as Stan lists them."""
    return jnp.concatenate([jnp.ravel(params[name]) for name in unconstrained])


def _with_replicates(
    model: Model, drawn: Loaded, name: str, shape: tuple[int, ...], where: str
) -> Model:
    """The model with replicates of its outcome, by a generated quantity."""
    program = drawn.model
    unconstrained = variables(program.param_unc_names())
    one = variables(program.param_names(include_tp=True, include_gq=True)).get(name)
    total = program.param_num(include_tp=True, include_gq=True)
    if one is None:
        note = f"{program.model_info().split()[0]} cannot draw its '{name}': it has no predictions"
        return model._replace(notes=[*model.notes, note])
    size = int(np.prod(shape))
    if one.shape != shape:
        said = f"'{name}' has shape {one.shape}, and scored outcomes have {shape}"
        if name == REPLICATES:
            note = f"{said}: it is taken for something else, and there are no predictions"
            return model._replace(notes=[*model.notes, note])
        raise PcvError(f"{where}: replicates {said}; they need a value for each")

    def replicated(q: np.ndarray, seeds: np.ndarray) -> list[np.ndarray]:
        options = {"include_tp": True, "include_gq": True}
        each = (
            _or_nan(program.param_constrain, x, total, rng=program.new_rng(int(seed)), **options)
            for x, seed in zip(q, seeds)
        )
        return [np.array([np.ravel(one.of(x)) for x in each])]

    def predict(key: Key[Array, ""], params: Params, data: Data) -> Array:
        seed = jax.random.randint(key, (), 0, SEEDS).astype(float)
        return calls.call(replicated, ((size,),), _flat(unconstrained, params), seed)[0]

    return model._replace(predict=predict)
