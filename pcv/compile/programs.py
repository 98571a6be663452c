"""Compiled programs, shared by all functions that lower to the same one.

Every call of pcv builds new functions that close over its data. JAX caches by function identity and
embeds closed-over arrays as constants, so it would compile them all again. Here these arrays become
arguments of the program, which is traced, lowered and looked up by a hash of its StableHLO text:
new data of the same shape, other folds or another seed compile nothing. A program is reused for
what was lowered, never for how a function looks. `pcv.compile.cache` keeps it between processes.
"""

import hashlib
import re
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from pcv.base.devices import in_use

MOST = 200
"""programs kept in memory, by last use"""
_compiled: dict[Any, jax.stages.Compiled] = {}

CALLED_BACK = re.compile(r"custom_call @\w*callback|stablehlo\.(?:send|recv|infeed|outfeed)\b")
"""how a program leaves XLA for Python, where its text does not say what is computed"""


class Program(NamedTuple):
    """A traced function, with closed-over arrays as arguments."""

    jaxpr: core.Jaxpr
    """takes `held` first, then the leaves of the arguments"""
    held: list[Any]
    """closed-over arrays"""
    shape: Any
    """tree of result shapes"""
    types: list[Any]
    """of the results"""


class Uncertain(Exception):
    """A program does more than its text says."""


Held = dict[int, tuple[weakref.ref[np.ndarray], str]]
"""arrays that programs hold, while others do so too, with their digests, by their ids"""
_held: ContextVar[Held | None] = ContextVar("held", default=None)


def record_arrays(held: Held) -> None:
    """Record the NumPy arrays that programs traced from now on hold: these may change in place."""
    _held.set(held)


def array_digest(x: np.ndarray) -> str:
    """A hash of an array's values, shape and type."""
    total = hashlib.blake2b(f"{x.shape} {x.dtype} ".encode(), digest_size=16)
    total.update(repr(x.tolist()).encode() if x.dtype.kind == "O" else x.tobytes())
    return total.hexdigest()


def _owner(x: np.ndarray) -> np.ndarray:
    """The array whose memory a view shows."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def lifted(function: Callable[..., Any], *args: Any) -> Program:
    """Trace a function, turning closed-over arrays into arguments.

    Nested `jax.jit` calls that close over arrays are inlined, so that theirs are lifted too.
    """
    leaves, structure = jax.tree.flatten(args)

    def flat(*leaves: Any) -> Any:
        return function(*jax.tree.unflatten(structure, leaves))

    closed, shape = jax.make_jaxpr(flat, return_shape=True)(*leaves)
    if any(_holding(step) for step in closed.jaxpr.eqns):
        closed = jax.make_jaxpr(_inlined(closed))(*leaves)
    if (held := _held.get()) is not None:
        for x in closed.consts:
            if isinstance(x, np.ndarray):
                array = _owner(getattr(x, "val", x))  # JAX wraps a view of the array
                held.setdefault(id(array), (weakref.ref(array), array_digest(array)))
    program = closed.jaxpr
    open_one = program.replace(
        constvars=[], invars=[*program.constvars, *program.invars], debug_info=_unnamed(program)
    )
    # Copies: JAX remembers the first conversion of an array to a precision while it is alive.
    consts = [np.array(x) if isinstance(x, np.ndarray) else x for x in closed.consts]
    return Program(open_one, consts, shape, closed.out_avals)


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


class Lowered(NamedTuple):
    """A program as it is to be compiled, and the arrays that precede its arguments."""

    program: jax.stages.Lowered
    held: list[Any]
    text: tuple[Any, ...]
    """all that it computes, but for the values of arrays"""


def lower(function: Callable[..., Any], *args: Any, **options: Any) -> Lowered:
    """Trace and lower a function, with closed-over arrays as arguments.

    Args:
        function: of trees of arrays.
        args: arguments, or their shapes.
        options: XLA compiler options.
    """
    traced = lifted(function, *args)
    held = jax.device_put(traced.held)
    # With unused arguments in it, the text says which of them are used.
    jitted = jax.jit(_run(traced), compiler_options=options, keep_unused=True)
    lowered = jitted.lower(held, *args)
    types = [(x.str_short(), getattr(x, "weak_type", None)) for x in traced.types]
    trees = jax.tree.structure(args), jax.tree.structure(traced.shape)
    where = [device.id for device in in_use()], [*map(_signature, jax.tree.leaves((held, args)))]
    return Lowered(lowered, held, (lowered.as_text(), *trees, str(types), str(where)))


def digest(function: Callable[..., Any], *args: Any) -> str:
    """A hash of what a function computes from arguments of given shapes: its lowered program, the
    arrays that it closes over, and the names in the trees of arguments and results.

    Raises:
        Uncertain: it calls back into Python.
    """
    lowered = lower(function, *args)
    text, *trees = lowered.text
    if CALLED_BACK.search(text):
        raise Uncertain("it calls back into Python")
    total = hashlib.sha256("\n".join([text, *map(str, trees)]).encode())
    for x in lowered.held:
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        total.update(np.asarray(jax.random.key_data(x) if is_key else x).tobytes())
    return total.hexdigest()


class Shared:
    """A function with shared programs; call it like the function."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self.function, self.options = function, options
        self.known: dict[Any, tuple[jax.stages.Compiled, list[Any]]] = {}

    def compiled(self, *args: Any) -> tuple[jax.stages.Compiled, list[Any]]:
        """The program for arguments of these types, and the arrays that precede them."""
        leaves, structure = jax.tree.flatten(args)
        kind = structure, *map(_signature, leaves)
        if kind not in self.known:
            lowered = lower(self.function, *args, **self.options)
            self.known[kind] = self._compile(lowered), lowered.held
        return self.known[kind]

    def _compile(self, lowered: Lowered) -> jax.stages.Compiled:
        text, *rest = lowered.text
        if CALLED_BACK.search(text):
            return lowered.program.compile()
        hashed = hashlib.sha256(text.encode()).hexdigest()
        key = hashed, *rest, *sorted(self.options.items())
        program = _compiled.pop(key, None) or lowered.program.compile()
        _compiled[key] = program  # most recently used last
        while len(_compiled) > MOST:
            del _compiled[next(iter(_compiled))]
        return program

    def __call__(self, *args: Any) -> Any:
        run, held = self.compiled(*args)
        return run(held, *args)


def _signature(x: Any) -> tuple[Any, ...]:
    """What a program is compiled for: type of an argument, and its sharding if committed."""
    decided = isinstance(x, jax.ShapeDtypeStruct) or (isinstance(x, jax.Array) and x.committed)
    lies = x.sharding if decided else None
    return jax.typeof(x), lies


def shared(function: Callable[..., Any], **options: Any) -> Shared:
    """`jax.jit`, compiled once for all functions that lower to the same program.

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
            program = lifted(self.function, *example)
            self.known[kind] = jax.jit(_run(program)), program.held
        run, held = self.known[kind]
        return run(held, *args)

    def bytes_held(self, *args: Any) -> int:
        """The size of all closed-over arrays, once it is traced."""
        jax.eval_shape(self, *args)
        return sum(x.nbytes for _, held in self.known.values() for x in held)


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type)


def once(function: Callable[..., Any]) -> Shared:
    """`shared` for a function that runs once or twice, compiled without optimisation."""
    return shared(function, xla_backend_optimization_level=0)
