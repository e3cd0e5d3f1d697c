"""The interface of an operator to the runtime, and the operator of each spec.

The operators are in the files beside this one; a spec names its own. A step without a message is a turn of an
operator as well: timers and windows that fire, drains, and writes of outputs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from penstock.api.serdes import ColumnSerde, Serde
from penstock.api.store import KeyValueStore
from penstock.base.plugins import load
from penstock.batch.batch import NOTHING_DUE, Batch, Due
from penstock.errors import PenstockTimeoutError
from penstock.graph.serdes import SerdePlace, output_place
from penstock.graph.specs import ApplicationGraph, OperatorSpec
from penstock.graph.topology import Channel
from penstock.metrics.registry import MetricsRegistry
from penstock.runtime.context import MessageOrigin, Position
from penstock.runtime.messages.columns import Accept, MessageColumns, Push, Target, as_columns
from penstock.runtime.messages.partial import Adder
from penstock.runtime.meters import OperatorClock
from penstock.runtime.operators.application_code import Requests
from penstock.runtime.settings import GENERAL, StepLimit

S = TypeVar("S", bound=OperatorSpec)
KeyValue = KeyValueStore[Any, Any]


@dataclass(frozen=True, slots=True)
class StageContext:
    """The services of the stage that an operator runs in."""

    job_name: str
    config: Mapping[str, str]
    task: int
    position: Position
    requests: Requests
    stores: Mapping[str, KeyValue]
    outputs: Mapping[str, Push]
    """The operator's outputs: by `system.stream`, and by `stream` if no other output has that name. Empty unless it
    `sends`."""
    metrics: MetricsRegistry = field(default_factory=lambda: MetricsRegistry("none"))
    """The operators' own counters; the group is the operator's id."""
    user_metrics: MetricsRegistry = field(default_factory=lambda: MetricsRegistry("none"))
    window_ms: int = -1
    """The interval between calls of a task's `window`; below 1: never."""
    undoable: bool = False
    """A failed message is undone in the stores, for the dead-letter stream. Messages then come one at a time, and no
    write to a store may be held back between two of them."""
    store_users: Mapping[str, Sequence[str]] = field(default_factory=dict)
    next_list_place: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """The place of the next element of a list state; see `ListPlaces`."""
    clock: OperatorClock = field(default_factory=OperatorClock)
    """Times the operators. An operator that runs within another one's call times itself."""
    followed: bool = False
    """A later operator in the stage uses one of its stores. The results of a message must then be passed on before the
    next message is looked at."""


@dataclass(frozen=True, slots=True)
class Firing:
    """An action of an operator without a message, such as a timer or a window that closes.

    Its results have its time as the timestamp. With a dead-letter stream, a firing that fails is undone and reported
    there, as a message is; without one the run ends.
    """

    key: bytes | None
    timestamp_ms: int
    name: str
    run: Callable[[], None]
    what: str = ""
    """A description, for firings other than the end of input."""
    time_ms: int | None = None
    """When it was to fire, if that is not its timestamp."""
    value: bytes | None = None
    """The message that waited for it, as it goes to the dead letters."""
    must_succeed: bool = False
    """The run ends if it fails, even with a dead-letter stream."""
    origin: MessageOrigin | None = None
    """The message that is processed now, because it waited. What it leads to has its place and headers, and so has its
    dead letter. None: no message leads to the action."""


@dataclass(frozen=True, slots=True)
class Firings:
    """Several firings of one time that run together. Of those that fail together, a part runs again with a dead-letter
    stream, until one is left."""

    keys: Sequence[bytes | None]
    timestamp_ms: int
    name: str
    run: Callable[[slice, int], None]
    """Runs a slice of them; the number is the page's row of the first. If one fails, the position is left at its
    row."""


class Timeline(Protocol):
    """The firings of a node in event time, one by one."""

    def next_ms(self) -> int | None:
        """The time of the next one; None if none is left. Asked again after each message, which may change it."""

    def take(self, now_ms: int) -> Firing | None:
        """The next one, which is taken out. None if the node drops it. `now_ms`: the time of the message or firing
        before it, which its timestamp is not below."""


class _NoTimeline:
    def next_ms(self) -> int | None:
        return None

    def take(self, now_ms: int) -> Firing | None:
        return None


NO_TIMELINE: Timeline = _NoTimeline()


class Partial(NamedTuple):
    """States that messages were added up to before they came."""

    keys: pa.Array
    states: pa.Array
    times: pa.Array
    """A time that belongs to each, as the operator has given it."""


class Node:
    """A running operator of one stage and task. Used by one thread at a time."""

    def __init__(self, accept: Accept, position: Position, push: Push | None = None) -> None:
        """`push`: takes a single message, where that costs much less than columns of one."""
        self.accept = accept
        self.push = push or as_columns(accept, position)

    def inlet(self, source: str) -> Target:
        """The target for the messages of operator `source`. Differs from the node itself only if the node tells its
        sources apart."""
        return self

    def merge(self, states: Partial) -> None:
        """Take states in the place of messages, as its operator's `adder` makes them. Raises CorruptError if they are
        damaged."""
        raise NotImplementedError

    def begin(self, batch: Batch) -> None:
        """Begin an attempt of the batch. Called once in an attempt, before the first message, in topological order. It
        runs none of the application's code, and emits nothing."""

    def on_start_of_input(self, batch: Batch) -> Iterable[Firing]:
        """The firings before the first message of the batch, in order. Called once in an attempt, after `begin`,
        operator by operator in topological order, and read while firings run."""
        return ()

    def on_end_of_input(self, batch: Batch) -> Iterable[Firing | Firings]:
        """The firings after the last message of the batch, in order. Called once in an attempt, after the earlier
        operators of the stage have done theirs. Read while firings run: one may change the next."""
        return ()

    def timeline(self, batch: Batch) -> Timeline | None:
        """The firings in event time that come between messages, if the operator takes its messages in that order. The
        other firings of `on_end_of_input` follow after all messages. None: none come between."""
        return None

    def fired(self, count: int) -> None: ...

    def mark(self) -> int:
        """A mark before a message, to which `undo` goes back. A node that keeps something of a message outside its
        stores has both."""
        return 0

    def undo(self, mark: int) -> None: ...

    def next_due(self) -> Due | None:
        """`Operator.next_due` after all firings of this attempt, if it is known without a look into the store;
        otherwise None."""
        return None

    def close(self) -> None:
        """Called at most once, after the last message."""


class GatheringNode(Node, ABC):
    """A node that gathers the rows of its messages until the end of the input."""

    @abstractmethod
    def columns_of(self, columns: MessageColumns) -> tuple[pa.Array, pa.StructArray, Any]:
        """The bytes of the keys, the rows, and the event times of messages."""

    @abstractmethod
    def take(self, keys: pa.Array, rows: pa.StructArray, times: Any) -> None:
        """Take messages, as `columns_of` gives them."""


class CallWatch(Protocol):
    """A test's hook around every call of the application's code."""

    def opens(self, stores: Sequence[KeyValue]) -> None: ...

    def call(self, operator: str, value: Any, stores: Sequence[KeyValue] = ()) -> AbstractContextManager[object]:
        """Surrounds a call of the application's code with a message of this value."""


@dataclass(frozen=True, slots=True)
class KeyInEntry:
    """The part of an entry's key that is the key of a message: its task owns the entry."""

    serde: Serde[Any]
    find: Callable[[bytes], bytes | None]
    """Entry's key → message's key, in the form of the serde; None: there is none."""
    keyless_of_task: bool = False
    """An entry without a key belongs to the task, and not to messages without a key."""
    merges: Mapping[bytes, Callable[[bytes, bytes], bytes]] = field(default_factory=dict)
    """The entries that every task has, by their keys: a value that serves for both of two tasks."""


class Operator(ABC, Generic[S]):
    """A kind of operator: its properties for the plan of a job, and its `build`.

    A new kind is a subclass in a separate file, and the line in `table.py` that names its spec.
    """

    undoes_many: ClassVar[bool] = False
    """Many messages can be undone together, by its stores and by its node's `undo`: it keeps nothing else of them."""

    def __init__(self, spec: S) -> None:
        self.spec = spec

    @property
    def time_stores(self) -> tuple[str, ...]:
        """The stores whose entries wait for their time."""
        return ()

    def next_due(self, store: KeyValue) -> Due:
        """The times of the oldest timers and windows that wait in one of a task's `time_stores`. The next batch begins
        at once if one of them is due. Reads only the first entry of each order of time."""
        return NOTHING_DUE

    def key_in(self, store: str) -> KeyInEntry | None:
        """The message's key in the entries of one of its stores; None: the store is no store of the operator alone, or
        its keys are the application's."""
        return None

    def place(self, name: str) -> SerdePlace:
        """The declaration of the serdes of its output; `name` says of which messages."""
        return SerdePlace(name, "")

    def adder(self, carried: ColumnSerde) -> Adder | None:
        """Adds up messages with these rows before they come, if its spec says so (`OperatorSpec.may_get_partial`)."""
        return None

    @abstractmethod
    def build(self, stage: StageContext, downstream: Target) -> Node:
        """Make the running operator. `downstream` takes its output. Raises OperatorFailedError."""

    def watched(self, watch: CallWatch) -> OperatorSpec:
        return self.spec


def operator_of(spec: OperatorSpec) -> Operator[Any]:
    if spec.ordering is not None:
        around: Callable[[OperatorSpec, Operator[Any]], Operator[Any]] = load(spec.ordering.operator)
        return around(spec, operator_of(spec.without_order()))
    operator: type[Operator[Any]] = load(spec.operator)
    return operator(spec)


def place_of_channel(channel: Channel, graph: ApplicationGraph) -> SerdePlace:
    if channel.output is not None:
        return output_place(channel.output)
    op = next(op for op in graph.operators if op.id == channel.source)
    targets = ", ".join(f"`{target}`" for target in channel.targets)
    return operator_of(op).place(f"messages of operator `{op.id}` to {targets}")


@dataclass(slots=True)
class Step:
    """The step of an operator without a message, at the start or at the end of an attempt's input. May be read by any
    thread."""

    operator: str
    limit: StepLimit = GENERAL
    began: float = field(default_factory=lambda: time.monotonic())
    """On the machine's monotonic clock, in seconds."""
    firing: Firing | Firings | None = None

    def __str__(self) -> str:
        firing = self.firing
        what = "" if firing is None else firing.name if isinstance(firing, Firings) else firing.what or firing.name
        return f"operator `{self.operator}`" + (f" ({what})" if what else "")

    def late(self, stage: int, task: int) -> PenstockTimeoutError | None:
        """The error if it has taken too long; otherwise None. `stage` and `task` say where it runs."""
        now = time.monotonic()
        if not self.limit.is_over(self.began, now):
            return None
        return self.limit.error(f"{self} in task {task}, stage {stage}", now - self.began)
