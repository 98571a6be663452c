"""What steps of the method make, kept by a store; and the blocks of draws of a step that runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pcv.base.monitor import Monitor


@runtime_checkable
class Blocks(Protocol):
    """Saved blocks of a step; the fold is the first axis of all arrays."""

    @property
    def number(self) -> int:
        """Number of blocks saved before."""

    def block(self, index: int) -> dict[str, Any]:
        """One of them."""

    def state(self) -> dict[str, np.ndarray]:
        """The state of the chains after the last of them."""

    def save(self, index: int, block: Any, state: Any) -> None:
        """Save a new block, and the state after it."""


class Unsaved:
    """Blocks that are not saved."""

    number = 0

    def block(self, index: int) -> dict[str, Any]:
        raise IndexError(index)

    def state(self) -> dict[str, np.ndarray]:
        raise IndexError

    def save(self, index: int, block: Any, state: Any) -> None:
        pass


Make = Callable[[np.ndarray, Blocks, int], None]
"""given places of folds, a store and a number of blocks, makes that many blocks of these folds:
those that are added to folds with saved blocks are caught up by it"""
Resume = Callable[[Mapping[str, Any], Make], AbstractContextManager[Blocks]]
"""opens the saved blocks of a step, given what they depend on besides its arguments"""


@contextmanager
def resume_nothing(recipe: Mapping[str, Any], make: Make) -> Iterator[Blocks]:
    """Save no blocks."""
    yield Unsaved()


class Step(NamedTuple):
    """One step of the method, for a model and a batch of its folds."""

    stage: str
    model: str = ""
    batch: str = ""
    round: int = 0


@runtime_checkable
class Store(Protocol):
    """Keeps what steps make, so that an interrupted run does not make it again."""

    def keep(self, step: Step, make: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Return what is kept of a step, or else ``make(*args, **more)``."""

    def resume(self, step: Step) -> Resume:
        """Open the blocks that an interrupted step has left."""


class InMemory:
    """Keeps what is made during one run."""

    def __init__(self) -> None:
        self.results: dict[Step, Any] = {}

    def keep(self, step: Step, make: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if step not in self.results:
            self.results[step] = make(*args, **more)
        return self.results[step]

    def resume(self, step: Step) -> Resume:
        return resume_nothing


def run_step(
    store: Store,
    monitor: Monitor,
    step: Step,
    function: Callable[..., Any],
    *args: Any,
    **more: Any,
) -> Any:
    """Return what a step makes, or what the store keeps of it.

    Args:
        store: keeps the results of finished steps.
        monitor: takes messages and progress.
        step: which one.
        function: makes it, given ``monitor``.
        args, more: further arguments of the function.
    """
    task = f"{step.stage} {step.model}".rstrip()
    return store.keep(step, function, *args, monitor=monitor.of(task, step.batch), **more)
