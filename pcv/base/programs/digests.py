"""Digests of what functions compute: equal only if results are.

JAX functions are digested by their program with all nested constants (its repr shows few of them),
Python functions by their code and everything that it refers to.
"""

import builtins
import hashlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cache, partial
from inspect import getattr_static
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import tree_util
from jax.extend import core

from pcv.base.errors import in_one_line
from pcv.base.programs.purity import UNREAD, is_library, is_pure, is_steady, named, names_in

ORDERS = 3
"""orders of derivative read of functions with custom rules: the highest used here"""
DERIVED = ("custom_jvp_call", "custom_vjp_call")
RULES = ("jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees")
"""their parameters that are covered by reading the derivatives"""
OF_CODE = (
    *("co_code", "co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_exceptiontable"),
)

OBJECTS = "__reduce__", "__reduce_ex__", "__getstate__"
"""methods whose defaults expose the whole state of an object"""
LARGE = 2**24
"""bytes above which an array is not read to save a trace"""

PLAIN = bool, int, float, complex, str, np.dtype, type(None), type(...), type(NotImplemented)
SAID_WHOLE = jax.tree_util.PyTreeDef, jax.ShapeDtypeStruct, jax.sharding.PartitionSpec
"""JAX objects with a complete repr"""

Seen = dict[tuple[int, int], tuple[bytes, Any]]
"""digests by `id` of the object and order; the object is kept alive, so that its id stays unique"""


class Reading(NamedTuple):
    """State and options of a digest."""

    seen: Seen
    loops: list[Any]
    """objects that contain themselves"""
    order: int = 0
    """orders of derivatives left to read"""
    pure: bool = False
    """whether functions must be pure"""
    given: list[Any] | None = None
    """`pcv.base.programs.Given` arrays found, whose values are not read"""


class Uncertain(Exception):
    """Some part cannot be digested."""


def of_program(program: core.Jaxpr) -> str:
    """Digest of a program to run, not to differentiate further.

    Raises:
        Uncertain: a step cannot be digested.
    """
    with _certain():
        return _digest(program, Reading({}, [])).hex()


def of_function(function: Callable[..., Any], *args: Any) -> str:
    """Digest of a JAX function at arguments of given shapes.

    Raises:
        Uncertain: it cannot be traced, or calls other primitives than JAX's.
    """
    with _certain():
        return of(jax.make_jaxpr(function)(*args))


def of(*parts: Any) -> str:
    """Digest of programs, Python functions, arrays and plain values.

    >>> halves = [lambda x, by=by: x / by for by in (2, 2, 3)]
    >>> of(halves[0]) == of(halves[1]), of(halves[0]) == of(halves[2])
    (True, False)

    Raises:
        Uncertain: a part is none of these.
    """
    with _certain():
        return _digest(parts, Reading({}, [], ORDERS)).hex()[:16]


def of_pure(*parts: Any) -> tuple[str, list[Any]]:
    """Digest of pure Python functions and trees of arguments, with their `Given` arrays: functions
    of equal digest need not be traced again, in any process.

    Raises:
        Uncertain: parts cannot be read, are large, or may depend on the world outside the process.
    """
    given: list[Any] = []
    with _certain():
        return _digest(parts, Reading({}, [], pure=True, given=given)).hex(), given


@contextmanager
def _certain() -> Iterator[None]:
    """Turn errors of users' functions and objects into `Uncertain`."""
    try:
        yield
    except Uncertain:
        raise
    except Exception as error:
        raise Uncertain(in_one_line(error)) from error


def _digest(x: Any, how: Reading) -> bytes:
    seen, at = how.seen, (id(x), how.order)
    if at in seen and not seen[at][0]:  # numbered among enclosing objects
        how.loops.append(x)
        seen[at] = b"loop %d" % len(how.loops), x
    if at in seen:
        return seen[at][0]
    seen[at] = b"", x
    content = _program(x, how) if hasattr(type(x), "eqns") else _content(x, how)
    if isinstance(content, bytes):
        whole = content
    else:
        whole = b"".join(_digest(part, how) for part in content)
    found = hashlib.sha256(_kind(x).encode() + b"\0" + whole + seen[at][0]).digest()
    seen[at] = found, x
    return found


def _kind(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"


def _content(x: Any, how: Reading) -> bytes | Iterable[Any]:
    """The content of a value, as bytes or as parts to digest."""
    package = type(x).__module__.split(".")[0]  # compiled classes may name no module
    if not (is_pure(type(x).__module__) if how.pure else is_library(package)):
        return _users(x, how)
    if _kind(x) in ("pcv.base.programs.Inner", "pcv.base.programs.Traced"):
        return [x.as_read()]
    if _kind(x) == "pcv.base.programs.Given":
        if how.given is None:
            return [x.value]
        how.given.append(x)
        return [len(how.given), x.value.dtype, x.value.shape]
    if isinstance(x, bytes):
        return x
    if isinstance(x, PLAIN):
        return repr(x).encode()
    if isinstance(x, Enum | slice | range | jax.sharding.AbstractMesh):
        return repr(x).encode()
    if isinstance(x, jax.sharding.Mesh):
        return [repr(x), list(map(repr, x.devices.flat))]
    if isinstance(x, defaultdict):
        return [x.default_factory, dict(x)]
    if how.pure and isinstance(x, Mapping):
        return [part for item in x.items() for part in item]  # order may matter to functions
    if isinstance(x, Mapping):
        return [part for name in sorted(x, key=repr) for part in (name, x[name])]
    if isinstance(x, set | frozenset):
        return sorted(x, key=repr)
    if _kind(x) == "jax._src.random.prng.PRNGImpl":
        return str(x.name).encode()
    if isinstance(x, tuple | list):
        return list(x)
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return [str(jax.random.key_impl(x)), jax.random.key_data(x)]
    if isinstance(x, jax.core.Tracer):
        raise Uncertain("a value that is being traced")
    is_array = all(hasattr(x, name) for name in ("__array__", "dtype", "shape"))
    if is_array and not isinstance(x, type):
        array = np.asarray(x)
        if array.dtype.hasobject or array.dtype.fields or isinstance(x, np.ma.MaskedArray):
            raise Uncertain("an array of Python objects, of fields, or masked")
        if how.pure and array.nbytes > LARGE:
            raise Uncertain("a large array")
        weak = [x.weak_type] if how.pure and isinstance(x, jax.Array) else []
        return [array.dtype.str, repr(array.dtype), array.shape, array.tobytes(), *weak]
    if isinstance(x, core.Primitive):
        return _primitive(x)
    of_jax = type(x).__module__.split(".")[0] in ("jax", "jaxlib")
    if of_jax and any(known.__name__ == "HiPrim" for known in type(x).__mro__):
        return [vars(x)]  # a primitive with parameters
    if isinstance(x, MethodType):
        return [x.__func__, x.__self__]
    if isinstance(x, property):
        return [x.fget, x.fset, x.fdel]
    if isinstance(x, staticmethod | classmethod):
        return [x.__func__]
    if how.pure and isinstance(x, jax.tree_util.PyTreeDef) and "CustomNode" in repr(x):
        return [x.node_data(), x.children()]
    if callable(x) or isinstance(x, CodeType | ModuleType):
        return _code(x, how)
    if how.pure and not isinstance(x, SAID_WHOLE):
        return _object(x, how)
    if of_jax and not ("..." in (said := repr(x)) or " at 0x" in said):
        return said.encode()  # layouts and trees, without arrays
    return _object(x, how)


def _program(closed: Any, how: Reading) -> list[Any]:
    """The steps of a program, with variables numbered in order."""
    program = getattr(closed, "jaxpr", closed)
    number: dict[Any, int] = {}

    def bound(variables: Iterable[Any]) -> list[str]:
        for x in variables:
            number[x] = len(number)
        return [_type(x) for x in variables]

    def used(variables: Iterable[Any]) -> list[Any]:
        return [(_type(x), x.val) if isinstance(x, core.Literal) else number[x] for x in variables]

    constants = dict(zip(program.constvars, getattr(closed, "consts", ())))
    steps: list[Any] = [bound(constants), list(constants.values()), bound(program.invars)]
    for step in program.eqns:
        of_step = {name: x for name, x in step.params.items() if name not in RULES}
        steps.append([step.primitive, used(step.invars), of_step])
        if step.primitive.name in DERIVED and how.order:
            if step.params["symbolic_zeros"]:
                raise Uncertain("a derivative with symbolic zeros")
            once_more = how._replace(order=how.order - 1)
            steps.append(_digest(_derivative(step, program, constants), once_more))
        steps.append(bound(step.outvars))
    return [*steps, used(program.outvars)]


def _type(variable: Any) -> str:
    return f"{variable.aval} {getattr(variable.aval, 'weak_type', False)}"


def _derivative(step: Any, program: Any, constants: Mapping[Any, Any]) -> Any:
    """The program of a step's derivative, traced because its rule is Python code."""
    given = list(dict.fromkeys(x for x in step.invars if not isinstance(x, core.Literal)))
    alone = core.Jaxpr((), given, step.outvars, [step], debug_info=program.debug_info)
    function = core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))
    free = [x for x in given if x not in constants]
    arguments = step.invars[step.params["num_consts"] :]  # the rest are captured
    smooth = [
        i
        for i, x in enumerate(free)
        if _is_smooth(x.aval) and any(x is argument for argument in arguments)
    ]
    if not smooth or not any(_is_smooth(x.aval) for x in step.outvars):
        return ()

    def total(*args: Any) -> Any:
        known = {**constants, **dict(zip(free, args))}
        outcomes = function(*(known[x] for x in given))
        return sum(jnp.sum(jnp.real(x)) for x in outcomes if _is_smooth(x))

    return jax.make_jaxpr(jax.grad(total, smooth))(*(x.aval for x in free))


def _is_smooth(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _primitive(x: Any) -> bytes:
    if id(x) not in _of_jax(len(sys.modules)):
        raise Uncertain(f"the primitive '{x.name}', which is not JAX's")
    return str(x.name).encode()


@cache
def _of_jax(loaded: int) -> set[int]:
    """JAX's primitives; cached by the number of loaded modules, as some load late."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("jax.")]
    return {id(x) for m in modules for x in vars(m).values() if isinstance(x, core.Primitive)}


def _code(x: Any, how: Reading) -> bytes | list[Any]:
    """A Python function, by its code and what that refers to; a library's by name."""
    name = f"{getattr(x, '__module__', '')}.{getattr(x, '__qualname__', '')}"
    fixed = is_pure if how.pure else is_library
    if isinstance(x, CodeType):
        return _of_code(x)
    module = x.__name__ if isinstance(x, ModuleType) else getattr(x, "__module__", None) or ""
    if is_library(module) and (isinstance(x, ModuleType) or named(x)):
        if how.pure and not is_pure(module):
            raise Uncertain(f"{name}, which may be impure")
        return (x.__name__ if isinstance(x, ModuleType) else name).encode()
    if isinstance(x, partial):
        return [x.func, x.args, x.keywords]
    if isinstance(x, FunctionType) and x.__globals__["__name__"].startswith("jaxtyping."):
        return [vars(x)["__wrapped__"]]  # only type checks
    if isinstance(x, FunctionType):
        bound = [cell.cell_contents for cell in x.__closure__ or ()]
        known = {**vars(builtins), **x.__globals__}
        place = sys.modules.get(known["__name__"])
        if place is not None and x.__globals__ is vars(place) and fixed(known["__name__"]):
            known = {}  # such as what jax.vmap returns
        names = names_in(x.__code__)
        used = {name: known[name] for name in sorted(names) if name in known}
        if how.pure and known and not is_steady(x.__code__, names, used):
            raise Uncertain(f"{name}, which may be impure")
        of = [name, x.__name__] if how.pure else []
        return [x.__code__, x.__defaults__, x.__kwdefaults__, bound, used, vars(x), *of]
    if type(x).__name__ == "PjitFunction" and hasattr(x, "__wrapped__"):
        return [x.__wrapped__]
    if isinstance(x, BuiltinFunctionType) and isinstance(x.__self__, type):
        return [x.__self__, x.__name__]  # such as tuple.__new__
    if how.pure and isinstance(x, type) and not is_library(module):
        members = {k: v for k, v in vars(x).items() if k not in UNREAD}
        return [name, x.__name__, x.__bases__, members, _registered(x)]
    if isinstance(x, type | BuiltinFunctionType):
        raise Uncertain(name)
    return _object(x, how)


def _registered(kind: type) -> list[Any]:
    """What was registered for a class with JAX and, if loaded, NumPyro."""
    numpyro: Any = sys.modules.get("numpyro.distributions.transforms")
    known = [tree_util._registry, *([numpyro.biject_to._registry] if numpyro else [])]
    return [registry[kind] for registry in known if kind in registry]


@cache
def _of_code(code: CodeType) -> bytes:
    """Digest of a code object; independent of reading options."""
    return _digest([getattr(code, field) for field in OF_CODE], Reading({}, []))


def _users(x: Any, how: Reading) -> list[Any]:
    """An object of a user's class: its state and its class, hence its code."""
    own = any(getattr(x, name) != getattr(object, name).__get__(x) for name in OBJECTS)
    of_python = isinstance(x, int | float | complex | str | bytes)
    if own or of_python or is_library(type(x).__module__):  # its class may do anything
        raise Uncertain(f"an object of {_kind(x)}")
    # Its class may override iteration.
    ways: dict[type, Any] = {tuple: tuple.__iter__, list: list.__iter__, dict: dict.items}
    return [*_object(x, how), *(list(way(x)) for kind, way in ways.items() if isinstance(x, kind))]


def _object(x: Any, how: Reading) -> list[Any]:
    """A library object, by the parts that would rebuild it."""
    if not how.pure:
        raise Uncertain(f"an object of {_kind(x)}")
    try:
        parts = x.__reduce_ex__(4)
    except Exception as error:  # of any kind
        raise Uncertain(f"an object of {_kind(x)}") from error
    if isinstance(parts, str):  # the name of a global
        raise Uncertain(f"an object of {_kind(x)}")
    make, args, state, *items = (*parts, None)[: max(len(parts), 3)]
    # Of library objects, skip cached properties and class attributes.
    if isinstance(state, dict) and is_library(type(x).__module__):
        of_class = {name: getattr_static(type(x), name, ...) for name in state}
        computed = ("cached_property", "lazy_property")
        state = {
            name: value
            for name, value in state.items()
            if type(of_class[name]).__name__ not in computed and value is not of_class[name]
        }
    return [make, args, state, *map(list, filter(None, items))]
