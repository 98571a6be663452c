"""Compiled programs that are found by what they compute, whoever calls them.

Every call of pcv builds its functions anew, closed over its data. JAX keeps what it compiled by the
functions themselves, and takes arrays that they hold for constants: so it would compile all of them
again. Here the arrays that a function holds become arguments of its program, and programs are told
apart by a digest of what is left: other data of the same shape, other folds or another seed compile
nothing. A function that is what one before it was, arrays included, is not even traced, in another
process neither (`pcv.base.programs.compile_cache`); nor is one that differs in `Given` arrays
alone.
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
    """A function without the arrays that it holds."""

    jaxpr: core.Jaxpr
    """takes these first, then the leaves of the arguments"""
    held: list[Any]
    """arrays, and after them those that are `Given`"""
    shape: Any
    """tree of the results"""


class Given:
    """An array that a function calls for, whose values its program is not traced for.

    >>> import numpy as np
    >>> wide, narrow = (shared(lambda b, by=Given(np.full(3, x)): (b * by()).sum()) for x in (2, 1))
    >>> float(wide(2.0)), float(narrow(2.0)), wide.compiled(2.0)[0] is narrow.compiled(2.0)[0]
    (12.0, 6.0, True)
    """

    def __init__(self, value: np.ndarray) -> None:
        self.value = value
        self.now: Any = None
        """what stands for it in the program that is being traced"""

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
"""programs that are kept, those that were used last"""
_compiled: dict[Any, jax.stages.Compiled] = {}
HELD = 2**28
"""bytes of arrays that are kept for functions that need not be traced again"""
_traced: dict[Any, tuple[jax.stages.Compiled, list[Any]]] = {}
_shapes: dict[Any, Any] = {}
TRACED_IN = (
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion"),
    *("jax_default_prng_impl", "jax_threefry_partitionable", "jax_default_device"),
    "jax_random_seed_offset",
)
"""settings of JAX that a trace depends on"""


def lifted(function: Callable[..., Any], given: list[Given], *args: Any) -> Program:
    """A function as traced at some arguments, the arrays that it holds among its own, and after
    them those that are given.

    Also those that functions which it calls through `jax.jit` hold: that call is then undone.
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
    # JAX takes an array for what it saw of it in another precision, as long as that is referred to
    held = [np.array(x) if isinstance(x, np.ndarray) else x for x in closed.consts]
    return Program(open_one, [*held, *given], shape)


def _run(program: Program) -> Callable[..., Any]:
    """The program as a function of the arrays that it holds and its arguments."""
    structure = jax.tree.structure(program.shape)
    steps = core.jaxpr_as_fun(core.ClosedJaxpr(program.jaxpr, ()))
    return lambda held, *args: jax.tree.unflatten(structure, steps(*held, *jax.tree.leaves(args)))


def _unnamed(program: core.Jaxpr) -> Any:
    """Names of arguments, which would be too few."""
    return program.debug_info._replace(arg_names=None, result_paths=None)


def _holding(step: Any) -> bool:
    """Is it a call of a jitted function that holds arrays, or calls another that does?"""
    if step.primitive.name not in ("jit", "pjit"):
        return False
    inner = step.params["jaxpr"]
    return bool(inner.consts) or any(map(_holding, inner.jaxpr.eqns))


def _inlined(closed: core.ClosedJaxpr) -> Callable[..., list[Any]]:
    """A program that takes the steps of such calls itself."""

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
    """One step as a program, which takes literals too."""
    given = [core.Var(x.aval) for x in step.invars]
    renamed = step.replace(invars=given)
    alone = core.Jaxpr((), given, step.outvars, [renamed], debug_info=_unnamed(program))
    return core.ClosedJaxpr(alone, ())


class Shared:
    """A function whose programs are shared; called as the function is."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self.function, self.options = function, options
        self.found: dict[Any, tuple[jax.stages.Compiled, list[Any]]] = {}

    def compiled(self, *args: Any) -> tuple[jax.stages.Compiled, list[Any]]:
        """The program for such arguments, and the arrays that it takes before them."""
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
        run, held = _traced[same] = _traced.pop(same)  # the last one used comes last
        while len(_traced) > MOST or sum(map(_bytes_held, _traced.values())) > HELD:
            del _traced[next(iter(_traced))]
        return run, [*held, *values]

    def _trace(
        self, known: Any, given: list[Given], args: tuple
    ) -> tuple[tuple[jax.stages.Compiled, list[Any]], Any]:
        """The program with the arrays that it takes before the given ones, and what it is kept as,
        if it could be read."""
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
    """A program that this process or another has kept; without a name, this process by its key."""
    found = _compiled.get(name or key) or compile_cache.load(name)
    return found and _remember(name or key, found)


def _remember(key: Any, found: jax.stages.Compiled) -> jax.stages.Compiled:
    _compiled.pop(key, None)
    _compiled[key] = found  # the last one used comes last
    while len(_compiled) > MOST:
        del _compiled[next(iter(_compiled))]
    return found


def _kept(same: Any) -> tuple[jax.stages.Compiled, list[Any]] | None:
    """What another process has traced."""
    known = compile_cache.noted(same)
    found = known and _of_name(known[0])
    return (found, known[1]) if known and found else None


def _settings() -> tuple[Any, ...]:
    return tuple(getattr(jax.config, name) for name in TRACED_IN)


def _alone_in_memory(x: Any) -> Any:
    """JAX may take an array of NumPy's as its own, which its owner may change."""
    is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return x if is_key else jax.device_put(np.array(x), x.sharding if x.committed else None)


def _bytes_held(traced: tuple[jax.stages.Compiled, list[Any]]) -> int:
    return sum(x.nbytes for x in traced[1])


def _same(
    function: Callable[..., Any], structure: Any = None, *of_call: Any
) -> tuple[Any, list[Given]]:
    """What tells a trace from others, None where that is not certain; and arrays of whatever values
    that it may have. The tree of arguments is read, for what the classes in it do."""
    if getattr(sys.modules.get("numpyro.primitives"), "_PYRO_STACK", ()):  # handlers around a call
        return None, []
    try:
        digest, given = digests.of_pure(function, structure)
    except digests.Uncertain:
        return None, []
    return (digest, structure, *of_call, *_settings()), given


def shapes(function: Callable[..., Any], *args: Any) -> Any:
    """`jax.eval_shape`, which is not traced again for what it was traced for before."""
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
    """What an argument is compiled for: its type, and where it lies if that was decided."""
    decided = isinstance(x, jax.ShapeDtypeStruct) or (isinstance(x, jax.Array) and x.committed)
    lies = x.sharding if decided else None
    return jax.typeof(x), lies


def shared(function: Callable[..., Any], **options: Any) -> Shared:
    """`jax.jit` of a function of arrays, compiled once for all that compute the same.

    Args:
        function: of trees of arrays.
        options: of XLA's compiler.

    >>> import numpy as np
    >>> sums = [shared(lambda b, x=x: (b * x).sum()) for x in (np.ones(3), np.arange(3.0))]
    >>> [float(total(2.0)) for total in sums], len({id(total.compiled(2.0)[0]) for total in sums})
    ([6.0, 6.0], 1)
    """
    return Shared(function, options)


class Inner:
    """`jax.jit` inside other programs: arrays that the function holds are arguments of that call.

    Without, they would be constants of a loop's body that calls it, which are not lifted.
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

    def as_read(self) -> Any:
        """What `pcv.base.programs.digests` reads of it: the same before it is called and after."""
        return self.function


class Traced:
    """A function as traced once in each precision: known by its program, where what it is made of
    cannot be read."""

    def __init__(self, function: Callable[..., Any], *example: Any) -> None:
        self.function, self.example = function, example
        self.known: dict[Any, tuple[core.ClosedJaxpr, Any]] = {}
        self.digests: dict[Any, str] = {}

    def program(self) -> tuple[core.ClosedJaxpr, Any]:
        """In the present precision, and the tree of its results."""
        now = _settings()
        if now not in self.known:
            self.known[now] = jax.make_jaxpr(self.function, return_shape=True)(*self.example)
        return self.known[now]

    def __call__(self, *args: Any) -> Any:
        steps, shape = self.program()
        found = core.jaxpr_as_fun(steps)(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    def as_read(self) -> str:
        """What `pcv.base.programs.digests` reads of it."""
        steps, shape = self.program()
        if _settings() not in self.digests:
            self.digests[_settings()] = digests.of(steps, jax.tree.structure(shape))
        return self.digests[_settings()]


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type)


def once(function: Callable[..., Any]) -> Shared:
    """`shared` of a function that runs once or twice: compiling it is all that it costs."""
    return shared(function, xla_backend_optimization_level=0)
