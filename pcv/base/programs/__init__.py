"""Compiled programs cached by what they compute, not by function identity.

Every call of pcv builds new functions that close over its data. JAX caches by function identity and
embeds closed-over arrays as constants, so it would recompile them all. Here these arrays become
arguments of the program, cached by a digest of the rest: new data of the same shape, other folds or
another seed compile nothing. A function equal to an earlier one, arrays included or but for `Given`
ones, is not even traced again, nor in another process (`pcv.base.programs.compile_cache`).
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from pcv.base.programs import compile_cache, digests


class Program(NamedTuple):
    """A traced function, with closed-over arrays as arguments."""

    jaxpr: core.Jaxpr
    """takes `held` first, then the leaves of the arguments"""
    held: list[Any]
    """closed-over arrays, then `Given` ones"""
    shape: Any
    """tree of result shapes"""


class Given:
    """An array whose values are not part of the trace; call it to get the array.

    >>> import numpy as np
    >>> wide, narrow = (shared(lambda b, by=Given(np.full(3, x)): (b * by()).sum()) for x in (2, 1))
    >>> float(wide(2.0)), float(narrow(2.0)), wide.compiled(2.0)[0] is narrow.compiled(2.0)[0]
    (12.0, 6.0, True)
    """

    def __init__(self, value: np.ndarray) -> None:
        self.value = value
        self.now: Any = None
        """its tracer, during tracing"""

    def __call__(self) -> Any:
        return jnp.asarray(self.value) if self.now is None else self.now


@contextmanager
def _traced_as(given: list[Given], values: list[Any]) -> Iterator[None]:
    before = [x.now for x in given]
    try:
        for x, value in zip(given, values):
            x.now = value
        yield
    finally:
        for x, value in zip(given, before):
            x.now = value


def _at_hand(held: list[Any]) -> list[Any]:
    return [x() if isinstance(x, Given) else x for x in held]


MOST = 200
"""programs kept in memory, by last use"""
_compiled: dict[Any, jax.stages.Compiled] = {}
HELD = 2**28
"""bytes of arrays kept with functions already traced"""
_traced: dict[Any, tuple[jax.stages.Compiled, list[Any]]] = {}
_shapes: dict[Any, Any] = {}
TRACED_IN = (
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion"),
    *("jax_default_prng_impl", "jax_threefry_partitionable", "jax_default_device"),
    "jax_random_seed_offset",
)
"""JAX settings that a trace depends on"""


def lifted(function: Callable[..., Any], given: list[Given], *args: Any) -> Program:
    """Trace a function, turning closed-over arrays into arguments, with `given` ones last.

    Nested `jax.jit` calls that close over arrays are inlined, so that theirs are lifted too.
    """
    leaves, structure = jax.tree.flatten(args)
    leaves = [*_at_hand(given), *leaves]

    def flat(*leaves: Any) -> Any:
        with _traced_as(given, list(leaves[: len(given)])):
            return function(*jax.tree.unflatten(structure, leaves[len(given) :]))

    closed, shape = jax.make_jaxpr(flat, return_shape=True)(*leaves)
    if any(_holding(step) for step in closed.jaxpr.eqns):
        closed = jax.make_jaxpr(_inlined(closed))(*leaves)
    program = closed.jaxpr
    open_one = program.replace(
        constvars=[], invars=[*program.constvars, *program.invars], debug_info=_unnamed(program)
    )
    return Program(open_one, [*map(_unconverted, closed.consts), *given], shape)


def _unconverted(x: Any) -> Any:
    """A copy of an array that JAX has to convert to another precision: it remembers the conversion
    while the array is alive."""
    converted = isinstance(x, np.ndarray) and jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype
    return np.array(x) if converted else x


def _run(program: Program) -> Callable[..., Any]:
    """The program as a function of `held` and its arguments."""
    structure = jax.tree.structure(program.shape)
    steps = core.jaxpr_as_fun(core.ClosedJaxpr(program.jaxpr, ()))
    return lambda held, *args: jax.tree.unflatten(structure, steps(*held, *jax.tree.leaves(args)))


def _unnamed(program: core.Jaxpr) -> Any:
    """Debug info without argument names, as their number has changed."""
    return program.debug_info._replace(arg_names=None, result_paths=None)


def _holding(step: Any) -> bool:
    """Whether a step calls a jitted function that closes over arrays, directly or not."""
    if step.primitive.name not in ("jit", "pjit"):
        return False
    inner = step.params["jaxpr"]
    return bool(inner.consts) or any(map(_holding, inner.jaxpr.eqns))


def _inlined(closed: core.ClosedJaxpr) -> Callable[..., list[Any]]:
    """A program with such calls inlined."""

    def run(*args: Any) -> list[Any]:
        program = closed.jaxpr
        known: dict[Any, Any] = dict(zip(program.constvars, closed.consts))
        known.update(zip(program.invars, args))

        def value(x: Any) -> Any:
            return x.val if isinstance(x, core.Literal) else known[x]

        for step in program.eqns:
            inner = step.params["jaxpr"] if _holding(step) else _alone(step, program)
            function = _inlined(inner) if _holding(step) else core.jaxpr_as_fun(inner)
            known.update(zip(step.outvars, function(*map(value, step.invars))))
        return [value(x) for x in program.outvars]

    return run


def _alone(step: Any, program: core.Jaxpr) -> core.ClosedJaxpr:
    """One step as a program, with literals as arguments."""
    given = [core.Var(x.aval) for x in step.invars]
    renamed = step.replace(invars=given)
    alone = core.Jaxpr((), given, step.outvars, [renamed], debug_info=_unnamed(program))
    return core.ClosedJaxpr(alone, ())


class Shared:
    """A function with shared programs; call it like the function."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self.function, self.options = function, options
        self.found: dict[Any, tuple[jax.stages.Compiled, list[Any]]] = {}

    def compiled(self, *args: Any) -> tuple[jax.stages.Compiled, list[Any]]:
        """The program for arguments of these types, and the arrays that precede them."""
        leaves, structure = jax.tree.flatten(args)
        known = structure, *map(_signature, leaves)
        if known not in self.found:
            self.found[known] = self._find(known, args)
        return self.found[known]

    def _find(self, known: Any, args: tuple) -> tuple[jax.stages.Compiled, list[Any]]:
        same, given = _same(self.function, *known, *self.options.items())
        values = jax.device_put([x.value for x in given])
        if same not in _traced:
            found = None if same is None else _kept(same)
            if found is None:
                found, name = self._trace(known, given, args)
                if same is None or name is None:
                    return found[0], [*found[1], *values]
                compile_cache.note(same, name, found[1])
            _traced[same] = found[0], list(map(_alone_in_memory, found[1]))
        run, held = _traced[same] = _traced.pop(same)  # most recently used last
        while len(_traced) > MOST or sum(map(_bytes_held, _traced.values())) > HELD:
            del _traced[next(iter(_traced))]
        return run, [*held, *values]

    def _trace(
        self, known: Any, given: list[Given], args: tuple
    ) -> tuple[tuple[jax.stages.Compiled, list[Any]], Any]:
        """The program with its closed-over arrays, and its cache name if it could be digested."""
        program = lifted(self.function, given, *args)
        arrays = jax.device_put(_at_hand(program.held))
        held, structure = arrays[: len(arrays) - len(given)], jax.tree.structure(program.shape)

        def lowered() -> jax.stages.Lowered:
            jitted = jax.jit(_run(program), compiler_options=dict(self.options))
            return jitted.lower(arrays, *args)

        try:
            digest = digests.of_program(program.jaxpr)
        except digests.Uncertain:
            return (lowered().compile(), held), None
        of_arrays = tuple(map(_signature, arrays))
        key = digest, known, structure, of_arrays, tuple(self.options.items()), _settings()
        name = compile_cache.name_of(key, known[0], structure)
        found = _of_name(name, key) or compile_cache.compiled(name, lowered)
        return (_remember(name or key, found), held), name

    def __call__(self, *args: Any) -> Any:
        run, held = self.compiled(*args)
        return run(held, *args)


def _of_name(name: str, key: Any = None) -> jax.stages.Compiled | None:
    """A cached program, by name, or without one by key from this process only."""
    found = _compiled.get(name or key) or compile_cache.load(name)
    return found and _remember(name or key, found)


def _remember(key: Any, found: jax.stages.Compiled) -> jax.stages.Compiled:
    _compiled.pop(key, None)
    _compiled[key] = found  # most recently used last
    while len(_compiled) > MOST:
        del _compiled[next(iter(_compiled))]
    return found


def _kept(same: Any) -> tuple[jax.stages.Compiled, list[Any]] | None:
    """A function's program as cached by another process."""
    known = compile_cache.noted(same)
    found = known and _of_name(known[0])
    return (found, known[1]) if known and found else None


def _settings() -> tuple[Any, ...]:
    return tuple(getattr(jax.config, name) for name in TRACED_IN)


def _alone_in_memory(x: Any) -> Any:
    """A copy: JAX may alias a NumPy array, which its owner may modify."""
    is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return x if is_key else jax.device_put(np.array(x), x.sharding if x.committed else None)


def _bytes_held(traced: tuple[jax.stages.Compiled, list[Any]]) -> int:
    return sum(x.nbytes for x in traced[1])


def _same(
    function: Callable[..., Any], structure: Any = None, *of_call: Any
) -> tuple[Any, list[Given]]:
    """The cache key of a trace, None if uncertain, and the function's `Given` arrays. The tree of
    arguments is digested too, as its classes have code of their own."""
    if getattr(sys.modules.get("numpyro.primitives"), "_PYRO_STACK", ()):  # inside NumPyro handlers
        return None, []
    try:
        digest, given = digests.of_pure(function, structure)
    except digests.Uncertain:
        return None, []
    return (digest, structure, *of_call, *_settings()), given


def shapes(function: Callable[..., Any], *args: Any) -> Any:
    """`jax.eval_shape`, cached by what the function computes."""
    leaves, structure = jax.tree.flatten(args)
    same, _ = _same(function, structure, *map(_abstract, leaves))
    if same is None:
        return jax.eval_shape(function, *args)
    if same not in _shapes:
        _shapes[same] = jax.eval_shape(function, *args)
        if len(_shapes) > MOST:
            del _shapes[next(iter(_shapes))]
    return _shapes[same]


def _abstract(x: Any) -> tuple[Any, ...]:
    return np.shape(x), getattr(x, "dtype", type(x)), getattr(x, "weak_type", None)


def _signature(x: Any) -> tuple[Any, ...]:
    """What a program is compiled for: type of an argument, and its sharding if committed."""
    decided = isinstance(x, jax.ShapeDtypeStruct) or (isinstance(x, jax.Array) and x.committed)
    lies = x.sharding if decided else None
    return jax.typeof(x), lies


def shared(function: Callable[..., Any], **options: Any) -> Shared:
    """`jax.jit`, compiled once for all functions that compute the same.

    Args:
        function: of trees of arrays.
        options: XLA compiler options.

    >>> import numpy as np
    >>> sums = [shared(lambda b, x=x: (b * x).sum()) for x in (np.ones(3), np.arange(3.0))]
    >>> [float(total(2.0)) for total in sums], len({id(total.compiled(2.0)[0]) for total in sums})
    ([6.0, 6.0], 1)
    """
    return Shared(function, options)


class Inner:
    """`jax.jit` inside other programs, with closed-over arrays as arguments of the inner call.

    Otherwise they would be constants of the enclosing loop's body, which are not lifted.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.known: dict[Any, tuple[Callable[..., Any], list[Any]]] = {}

    def __call__(self, *args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        kind = structure, *map(jax.typeof, leaves)
        if kind not in self.known:
            example = jax.tree.unflatten(structure, map(_shape, kind[1:]))
            program = lifted(self.function, _same(self.function)[1], *example)
            self.known[kind] = jax.jit(_run(program)), program.held
        run, held = self.known[kind]
        return run(_at_hand(held), *args)

    def bytes_held(self, *args: Any) -> int:
        """The size of all closed-over arrays, once it is traced."""
        jax.eval_shape(self, *args)
        return sum(x.nbytes for _, held in self.known.values() for x in _at_hand(held))

    def as_read(self) -> Any:
        """What `pcv.base.programs.digests` reads: unaffected by calls."""
        return self.function


class Traced:
    """A function traced once per precision, for digests of its program where its code cannot be
    read."""

    def __init__(self, function: Callable[..., Any], *example: Any) -> None:
        self.function, self.example = function, example
        self.known: dict[Any, tuple[core.ClosedJaxpr, Any]] = {}
        self.digests: dict[Any, str] = {}

    def program(self) -> tuple[core.ClosedJaxpr, Any]:
        """The program in the current precision, and the tree of its result shapes."""
        now = _settings()
        if now not in self.known:
            self.known[now] = jax.make_jaxpr(self.function, return_shape=True)(*self.example)
        return self.known[now]

    def __call__(self, *args: Any) -> Any:
        steps, shape = self.program()
        found = core.jaxpr_as_fun(steps)(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    def as_read(self) -> str:
        """What `pcv.base.programs.digests` reads."""
        steps, shape = self.program()
        if _settings() not in self.digests:
            self.digests[_settings()] = digests.of(steps, jax.tree.structure(shape))
        return self.digests[_settings()]


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type)


def once(function: Callable[..., Any]) -> Shared:
    """`shared` for a function that runs once or twice, compiled without optimisation."""
    return shared(function, xla_backend_optimization_level=0)
