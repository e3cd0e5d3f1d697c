"""What an operator is to the runtime. Each kind has a file beside this one, and a line in `table.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from penstock.api.serdes.failures import Place
from penstock.api.state.store import KeyValueStore
from penstock.batch.batch import NOTHING_DUE, Batch, Due
from penstock.graph.specs import OperatorSpec
from penstock.metrics.registry import MetricsRegistry
from penstock.runtime.context import Position
from penstock.runtime.messages.columns import Accept, Push, Target, as_columns
from penstock.runtime.operators.tasks.application_code import Requests

S = TypeVar("S", bound=OperatorSpec)
KeyValue = KeyValueStore[Any, Any]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an operator gets of the stage that it runs in."""

    job_name: str
    config: Mapping[str, str]
    """What a task sees of the configuration."""
    task: int
    position: Position
    """The message that is being processed."""
    requests: Requests
    stores: Mapping[str, KeyValue]
    """The operator's own, by name."""
    outputs: Mapping[str, Push]
    """Where it may send to: `system.stream`, and `stream` where no other output has it. Empty unless it `sends`."""
    metrics: MetricsRegistry = field(default_factory=lambda: MetricsRegistry("none"))
    """What operators count; the group is the operator's id."""
    user_metrics: MetricsRegistry = field(default_factory=lambda: MetricsRegistry("none"))
    """The application's own metrics of the task."""
    window_ms: int = -1
    """How often tasks are called that have a `window`; below 1: never."""
    undoable: bool = False
    """Whether a message that fails is undone in the stores, for the dead-letter stream. Messages then come one at a
    time, and nothing may be held back from the stores between two of them."""
    store_users: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By store, the operators of the application that use it."""
    next_list_place: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """Where the next element of a list state is; see `ListPlaces`."""
    followed: bool = False
    """Whether an operator behind it in the stage uses one of its stores. What becomes of a message must then be passed
    on before the next message is looked at."""


@dataclass(frozen=True, slots=True)
class Firing:
    """Something that an operator does without a message, such as a timer or a window that closes.

    What it emits has its time as the timestamp. With a dead-letter stream, a firing that fails is undone and reported
    there, as a message is; without one the run ends.
    """

    key: bytes | None
    timestamp_ms: int
    name: str
    run: Callable[[], None]
    what: str = ""
    """What it is, in words, where that is more than the end of input."""
    time_ms: int | None = None
    """When it was to fire, where that is not its timestamp."""
    value: bytes | None = None
    """The message that waited for it, as it goes to the dead letters."""
    must_succeed: bool = False
    """Whether the run ends if it fails, with a dead-letter stream as without one."""


@dataclass(frozen=True, slots=True)
class Firings:
    """Several firings of one time, which an operator runs at once: only without a dead-letter stream, because none of
    them can be undone alone."""

    keys: Sequence[bytes | None]
    timestamp_ms: int
    name: str
    run: Callable[[slice, int], None]
    """Runs some of them, which are the rows of the page from the number that it gets. If one fails, the position is
    left at its row."""


class Node:
    """A running operator of one stage and task. Used by one thread at a time."""

    def __init__(self, accept: Accept, push: Push) -> None:
        self.accept = accept
        """Take messages; see `Target`."""
        self.push = push
        """Take one message; see `Target`."""

    @classmethod
    def of_columns(cls, accept: Accept, position: Position) -> Node:
        """A node that takes a single message as columns of one."""
        return cls(accept, as_columns(accept, position))

    def inlet(self, source: str) -> Target:
        """What takes the messages of the operator `source`, where it matters which one they come from."""
        return self

    def begin(self, batch: Batch) -> None:
        """An attempt of the batch begins. Called once in an attempt, before the first message, in topological order. It
        runs none of the application's code, and emits nothing."""

    def on_start_of_input(self, batch: Batch) -> Iterable[Firing]:
        """What is to be done before the first message of the batch, in order. Called once in an attempt, after `begin`,
        operator by operator in topological order, and read while firings run."""
        return ()

    def on_end_of_input(self, batch: Batch) -> Iterable[Firing | Firings]:
        """What is to be done once all messages of the batch have come, in order. Called once in an attempt, after the
        operators before it in the stage have done theirs, and read while firings run: one may change what follows."""
        return ()

    def fired(self, count: int) -> None:
        """So many of its firings have run in a step of this attempt, for what it counts."""

    def next_due(self) -> Due | None:
        """As `Operator.next_due`, once everything has fired that fires in this attempt, if it need not look into the
        store for that; None: it has to."""
        return None

    def close(self) -> None:
        """Called at most once, after the last message."""


class Watch(Protocol):
    """What a test puts around every call of the application's code."""

    def opens(self, stores: Sequence[KeyValue]) -> None:
        """A task that uses these stores is made."""

    def call(self, operator: str, value: Any, stores: Sequence[KeyValue] = ()) -> AbstractContextManager[object]:
        """The application's code is called with a message of this value."""


class Operator(ABC, Generic[S]):
    """A kind of operator: what the plan of a job has to know of it, and how it is built.

    A new kind is a subclass in a separate file, and the line in `table.py` that names its spec.
    """

    def __init__(self, spec: S) -> None:
        self.spec = spec

    @property
    def time_store(self) -> str | None:
        """The store in which something may wait for its time; None: nothing waits."""
        return None

    def next_due(self, store: KeyValue) -> Due:
        """The times of the oldest timers and windows that wait in a task's `time_store`. The next batch begins at once
        if one of them is due. It reads the first entry of each order of time, however many there are."""
        return NOTHING_DUE

    def place(self, name: str) -> Place:
        """Where the serdes of what it emits are declared; `name` says of which messages."""
        return Place(name, "")

    @abstractmethod
    def build(self, surroundings: Surroundings, downstream: Target) -> Node:
        """The operator, ready to run. `downstream` takes what it emits. Raises OperatorFailedError."""

    def watched(self, watch: Watch) -> OperatorSpec:
        """The same operator with the application's code watched."""
        return self.spec
