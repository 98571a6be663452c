"""Functions of a user's classes are known again, but not for others, nor where they may change."""

import abc
import dataclasses
import functools
import subprocess
import sys
from collections import defaultdict
from enum import Enum
from types import MethodType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import tree_util
from numpyro.distributions.transforms import AffineTransform, biject_to

from pcv.base import programs
from pcv.base.programs import digests


def of(x):
    return digests.of_pure(x)[0]


def line(by=1.0, power=1, offset=0.0, slope=1.0, base=0.0):
    """A class of which each argument changes one member, or what that refers to."""

    class Base(abc.ABC):
        def below(self):
            return base

        @abc.abstractmethod
        def __call__(self, b): ...

    class Line(Base):
        width = by

        def __init__(self, x):
            self.x = x

        def __call__(self, b):
            return self.sloped(self.moved) * b**power + super().below()

        @property
        def moved(self):
            return self.x + offset

        @staticmethod
        def sloped(x):
            return slope * x

        @classmethod
        def at_0(cls):
            return cls(0.0)

    return Line


MADE = {}, {"by": 2.0}, {"power": 2}, {"offset": 1.0}, {"slope": 2.0}, {"base": 1.0}


@pytest.mark.parametrize("part", [lambda x: x, lambda x: x(3.0), lambda x: x(3.0).__call__])
def test_classes_are_their_bases_and_members(part):
    found = [of(part(line(**changes))) for changes in MADE]
    assert found == [of(part(line(**changes))) for changes in MADE]
    assert len(set(found)) == len(MADE)


class Slots:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


@dataclasses.dataclass(frozen=True)
class Fields:
    x: np.ndarray
    names: list = dataclasses.field(default_factory=list)


class Tupled(NamedTuple):
    x: float
    n: int = 3


class Mapped(dict):
    pass


class MappedOtherwise(dict):
    def items(self):
        return {}.items()


class Listed(list):
    def __iter__(self):
        return iter(())


class TupledOtherwise(tuple):
    def __getnewargs__(self):
        return ((),)


class Twice(dist.Normal):
    def log_prob(self, value):
        return 2 * super().log_prob(value)


class Kept:
    def __init__(self, x):
        self.x = x

    @functools.cached_property
    def double(self):
        return 2 * self.x


@pytest.mark.parametrize(
    "make",
    [
        *(Slots, Fields, Tupled, Kept),
        lambda x: Mapped(x=x),
        lambda x: MappedOtherwise(x=x),
        lambda x: Listed([x]),
        lambda x: TupledOtherwise([x]),
        lambda x: defaultdict(lambda: x),
        lambda x: Twice(0.0, x),
        lambda x: lambda b: Twice(x, 1.0).log_prob(b),
        lambda x: functools.partial(Fields, x),
        lambda x: Slots(Fields([Tupled(x)])),
    ],
)
def test_objects_are_their_class_and_what_they_hold(make):
    assert of(make(1.0)) == of(make(1.0)) != of(make(2.0))


def test_what_is_kept_in_an_object_is_read():
    """It may have been set, or be of a state before."""
    one, other = Kept(1.0), Kept(1.0)
    one.double = 5.0
    assert of(one) != of(other)


def test_methods_are_known_by_their_functions():
    made = line()(3.0)
    made.one, made.other = (lambda by: lambda b: b * by)(1.0), (lambda by: lambda b: b * by)(2.0)
    bound = [MethodType(function, made) for function in (made.one, made.other)]
    assert of(bound[0]) != of(bound[1])


class Reduced(Slots):
    """Says itself what is all of it."""

    def __reduce__(self):
        return Reduced, (0.0,)


class Stated(Slots):
    def __getstate__(self):
        return None


class Number(float):
    def __getnewargs__(self):
        return (0.0,)


def stating_itself():
    made = Kept(1.0)
    made.__getstate__ = lambda: None
    return made


class Kind(Enum):
    ONE = 1


class Meta(type):
    def __call__(cls, x):
        return x


class OfMeta(metaclass=Meta):
    pass


class Drawn:
    def __init__(self):
        self.rng = np.random.default_rng(1)

    def __call__(self, b):
        return b * self.rng.normal()


class Read:
    def __call__(self, b):
        return b * np.load("x.npy")


def kind(b):
    return b


def named(name):
    def scaled(b):
        return b * len(scaled.__name__)

    scaled.__name__ = name
    return scaled


def of_kind(name):
    class Kind:
        pass

    Kind.__name__ = name
    return lambda b: b * len(Kind.__name__)


@pytest.mark.parametrize("make", [named, of_kind])
def test_functions_may_use_their_names(make):
    assert of(make("one")) == of(make("one")) != of(make("other"))


@pytest.mark.parametrize(
    "x",
    [
        lambda b: b * len(kind.__doc__),
        lambda b: b * len(kind.__annotations__),
        lambda b: b * len(kind.__code__.co_name),
        lambda b: b * kind.__globals__["SCALE"],
        lambda b: b * len(Slots.__subclasses__()),
        lambda b: b * (id(kind) % 7),
    ],
)
def test_what_is_not_read_is_not_computed_with(x):
    with pytest.raises(digests.Uncertain, match="may be impure"):
        of(x)


@pytest.mark.parametrize(
    "x",
    [
        Reduced(1.0),
        Stated(1.0),
        Number(1.0),
        stating_itself(),
        Kind.ONE,
        OfMeta,
        Drawn(),
        Read(),
        Slots(sys.__stdout__),
    ],
)
def test_what_may_hold_or_give_something_else_is_not_read(x):
    with pytest.raises(digests.Uncertain):
        of(x)


@pytest.mark.parametrize("x", [Tupled(1.0), Mapped(x=1.0), Listed([1.0]), Number(1.0)])
def test_scores_are_not_known_by_objects_of_users(x):
    with pytest.raises(digests.Uncertain, match=r"an object of tests\.test_purity"):
        digests.of(lambda means, y: x)


def test_a_member_that_changes_is_noticed():
    made = line()
    before = of(made)
    made.width = 5.0
    assert of(made) != before


def registered(by):
    """A class of which JAX is told apart."""

    class Pair:
        def __init__(self, x):
            self.x = x

    tree_util.register_pytree_node(Pair, lambda pair: ((by * pair.x,), None), lambda _, x: Pair(*x))
    return Pair


def given_fields(by):
    @dataclasses.dataclass
    class Pair:
        x: float
        y: float

    fields = ["x", "y"][:: 1 if by == 1 else -1]
    return tree_util.register_dataclass(Pair, fields, [])


def bijected(by):
    """A constraint of which NumPyro is told apart."""

    class Own(dist.constraints.Constraint):
        pass

    biject_to.register(Own)(lambda _: AffineTransform(0.0, by))
    return Own


@pytest.mark.parametrize("make", [registered, given_fields, bijected])
def test_registrations_are_part_of_a_class(make):
    assert of(make(1.0)) == of(make(1.0)) != of(make(2.0))


def node(by):
    class Node(NamedTuple):
        x: float

        def total(self):
            return by * self.x

    return Node(1.0)


def aux(by):
    return registered(by)(1.0)


def test_classes_of_arguments_are_read():
    """Another process may have others of their names."""
    same = [
        programs._same(abs, jax.tree.structure([made(by)]))[0][0]
        for made in (node, aux)
        for by in (1.0, 1.0, 2.0)
    ]
    assert same[0] == same[1] != same[2] != same[3] == same[4] != same[5]


def looped(own):
    """A list that holds another, which holds itself or the first."""
    outer, inner = [], []
    inner.append([inner if own else outer])
    outer.append(inner)
    return outer


def entwined(own):
    """Two lists, the second of which is held by what it holds, or holds what the first does."""
    first, second = [1.0], [2.0]
    first.append([[first]])
    second.append([[second]] if own else first[1])
    return [first, second]


@pytest.mark.parametrize("make", [looped, entwined])
def test_what_holds_itself_says_which(make):
    assert of(make(True)) == of(make(True)) != of(make(False)) == of(make(False))


def odd():
    class Meta(type):
        def __getattr__(cls, name):
            raise ValueError(name)

    class Odd(metaclass=Meta):
        pass

    return Odd


def unbound():
    def scaled(b):
        return b * by

    return scaled
    by = 1.0


def deep():
    found = []
    for _ in range(10_000):
        found = [found]
    return found


@pytest.mark.parametrize("make", [odd, unbound, deep])
@pytest.mark.parametrize("read", [digests.of, digests.of_pure])
def test_errors_of_what_is_read_are_no_crash(read, make):
    with pytest.raises(digests.Uncertain):
        read(make())


def test_digests_of_classes_are_those_of_other_processes():
    code = (
        "from tests import test_purity as t; print(t.of(t.Tupled), t.of(t.Fields), t.of(t.line()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [of(Tupled), of(Fields), of(line())]


def test_classes_of_arrays_are_no_arrays():
    assert of(lambda x: isinstance(x, jnp.ndarray | np.ndarray))
