"""The checks of a `TestRunner`: it watches the application for mistakes with values, and runs the same test on several
jobs, whose inputs fall into different batches.

No operator may change a message's value in place. Stores find mistakes of a task with the values that a store gave
it. All jobs of a test must have the same outputs.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, TypeAlias, TypeVar

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.store import KeyValueStore
from penstock.batch.batch import TaskSsp
from penstock.batch.portions import Portion
from penstock.graph.specs import ApplicationGraph
from penstock.runtime.operators.base import operator_of
from penstock.state.stores.task_store import StoreLayer, TaskStore
from penstock.system.base import OffsetRange, System

_UNCHANGEABLE = (str, bytes, int, float, bool, type(None))
_OURS = 2
"""References to a value that only its `_KnownValue` holds: that one, and the argument of `getrefcount`."""


class UnwrittenChangeError(AssertionError):
    """A value from a store was changed in place, but not put. The store does not have the change.

    Example:
        >>> class Forgets(ps.StreamTask):
        ...     def init(self, context):
        ...         self.seen = context.store("seen")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         self.seen.put("all", [])
        ...         self.seen.get("all").append(envelope.value)
        >>> app = ps.TaskApplication("forgets", Forgets)
        >>> app.store("seen")
        >>> app.input("local.trips")
        >>> try:
        ...     TestRunner(app).input("local.trips", ["a"]).run()
        ... except ps.UserCodeError as error:
        ...     print(error.failed.reason)
        UnwrittenChangeError: store `seen`: the value of key 'all' was changed after get or put without a put; ...
    """


class StaleValueError(AssertionError):
    """A value was changed and put although it is out of date: its key had another `put` since the `get`, or the message
    that got it failed. The other change would be lost."""


@dataclass(slots=True)
class _KnownValue:
    """A value that the application got from the store, or put into it."""

    value: Any
    key: bytes
    data: bytes
    """Its bytes at the last get or put."""
    stored: bytes | None
    """The store's bytes under the key at that time."""
    of_this_call: bool = True
    undone: bool = False
    """True if the message failed, so that its writes were undone."""


class CheckedStore(StoreLayer):
    """Records every value that it returns or takes, and compares it when the call of `process` has ended.

    A changed value must be put afterwards, under any key, unless its own key has another value by then or was deleted.
    A value that the application kept from an earlier call is compared for as long as the application holds it.
    """

    def __init__(self, inner: TaskStore) -> None:
        super().__init__(inner)
        self._encode_key, self._encode = self.spec.key_serde.to_bytes, self.spec.value_serde.to_bytes
        self._handed: dict[int, _KnownValue] = {}
        """By the identity of the value."""
        self._depth = 0
        self.mistakes: list[AssertionError] = []
        """The mistakes found: the application, or a dead-letter stream, may catch those that are raised."""

    def enter(self) -> None:
        """Note that an operator that uses the store is called. Calls nest if an operator emits to another one."""
        self._depth += 1

    def leave(self, *, failed: bool = False) -> None:
        """Note that the operator has returned. The last one raises UnwrittenChangeError, unless its call failed."""
        self._depth -= 1
        if not self._depth and not failed:
            self.check()

    def get(self, key: Any, default: Any = None) -> Any:
        value = self.inner.get(key)
        self._note(key, value)
        return default if value is None else value

    def put(self, key: Any, value: Any) -> None:
        known = self._handed.get(id(value))
        if known is not None:
            self._check_fresh(key, known)
        self.inner.put(key, value)
        self._note(key, value)

    def range(self, from_key: Any, to_key: Any) -> Iterator[tuple[Any, Any]]:
        return self._noted(self.inner.range(from_key, to_key))

    def all(self) -> Iterator[tuple[Any, Any]]:
        return self._noted(self.inner.all())

    def items(self, *, prefix: Any = None) -> Iterator[tuple[Any, Any]]:
        return self._noted(self.inner.items(prefix=prefix))

    def _noted(self, entries: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        for key, value in entries:
            self._note(key, value)
            yield key, value

    def undo(self) -> None:
        self.inner.undo()
        for known in self._handed.values():
            known.undone = known.undone or known.of_this_call

    def check(self) -> None:
        self.inner.check()
        for known in self._handed.values():
            if not known.undone and known.stored == self._stored(known.key) and self._changed(known):
                self._handed = {}
                key = self.spec.key_serde.from_bytes(known.key)
                self._found(
                    UnwrittenChangeError(
                        f"store `{self.name}`: the value of key {key!r} was changed after get or put without a put; "
                        "call put once it has its final value"
                    )
                )
        self._handed = {i: known for i, known in self._handed.items() if sys.getrefcount(known.value) > _OURS}
        for known in self._handed.values():
            known.of_this_call = False

    def _check_fresh(self, key: Any, known: _KnownValue) -> None:
        """Raise StaleValueError for a changed value whose key had another `put` since the `get`."""
        if known.key != self.key_bytes(key) or not self._changed(known):
            return
        if known.undone:
            why = "it was got by a message that failed, whose changes are undone"
        elif known.stored != self._stored(known.key):
            why = "another value was put under the key since it was got, and would be lost"
        else:
            return
        self._found(
            StaleValueError(f"store `{self.name}`, put of key {key!r}: {why}. Call get again before you change it")
        )

    def _found(self, error: AssertionError) -> NoReturn:
        self.mistakes.append(error)
        raise error

    def _note(self, key: Any, value: Any) -> None:
        if not isinstance(value, _UNCHANGEABLE):
            key_bytes = self._encode_key(key)
            self._handed[id(value)] = _KnownValue(value, key_bytes, self._encode(value), self._stored(key_bytes))

    def _stored(self, key: bytes) -> bytes | None:
        return self.inner.stored(key)

    def _changed(self, known: _KnownValue) -> bool:
        try:
            return self._encode(known.value) != known.data
        except Exception:  # it cannot be written any more
            return True


class ChangedMessageError(AssertionError):
    """An operator changed the value of a message in place. Other operators get the same object.

    Example:
        >>> app = ps.StreamApplication("changes")
        >>> _ = app.input("local.trips").map(lambda trip: trip.pop("miles")).send_to(app.output("local.miles"))
        >>> try:
        ...     TestRunner(app).input("local.trips", [{"miles": 5}]).run()
        ... except ps.UserCodeError as error:
        ...     print(error.failed.reason)
        ChangedMessageError: operator `map-1` changed the value of a message in place. ...
    """


def checked_graph(graph: ApplicationGraph, mistakes: list[AssertionError]) -> ApplicationGraph:
    """The same application with watched operators. They raise ChangedMessageError, UnwrittenChangeError and
    StaleValueError, and add them to `mistakes`, because a dead-letter stream or the application may catch them."""
    watch = _Checks(mistakes)
    return replace(graph, operators=tuple(operator_of(op).watched(watch) for op in graph.operators))


class _Checks:
    """The `CallWatch` that finds these mistakes."""

    def __init__(self, mistakes: list[AssertionError]) -> None:
        self._mistakes = mistakes

    def opens(self, stores: Sequence[KeyValueStore[Any, Any]]) -> None:
        for store in _checked(stores):
            store.mistakes = self._mistakes

    def call(self, operator: str, value: Any, stores: Sequence[KeyValueStore[Any, Any]] = ()) -> _CheckedCall:
        return _CheckedCall(operator, value, _checked(stores), self._mistakes)


class _CheckedCall:
    """One call of the application's code."""

    def __init__(
        self, operator: str, value: Any, stores: Sequence[CheckedStore], mistakes: list[AssertionError]
    ) -> None:
        self._operator = operator
        self._value = value
        self._stores = stores
        self._mistakes = mistakes

    def __enter__(self) -> None:
        self._before = _fingerprint(self._value)
        for store in self._stores:
            store.enter()

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        with ExitStack() as leaving:
            for store in self._stores:
                leaving.callback(store.leave, failed=kind is not None)
        if kind is None:
            _compare(self._operator, self._before, self._value, self._mistakes)


def _checked(stores: Sequence[KeyValueStore[Any, Any]]) -> list[CheckedStore]:
    found = [store.find(CheckedStore) for store in stores if isinstance(store, TaskStore)]
    return [store for store in found if store is not None]


def _fingerprint(value: Any) -> bytes | None:
    """Bytes that change with the value; None if it cannot be pickled."""
    try:
        return pickle.dumps(value)
    except Exception:
        return None


def _compare(op_id: str, before: bytes | None, value: Any, mistakes: list[AssertionError]) -> None:
    if before is not None and _fingerprint(value) != before:
        error = ChangedMessageError(
            f"operator `{op_id}` changed the value of a message in place. Other operators that read the same stream "
            "see the same object: make a copy and change that, for example {**value, 'name': 1}"
        )
        mistakes.append(error)
        raise error


P = ParamSpec("P")
Message: TypeAlias = tuple[bytes | None, int, str]
"""The value, timestamp and headers of a message."""
Outputs: TypeAlias = Mapping[tuple[SystemStream, bytes | None], Counter[Message]]
"""The messages by output and key."""

_SHOWN = 12
_LONGEST = 200


class CutsDifferError(AssertionError):
    """An output depends on how the messages of the inputs fall into batches, which no job promises.

    Example:
        >>> class Longest(ps.BatchProcessor):
        ...     def process(self, batch, collector):
        ...         collector.emit(batch.keys[:1], batch.values[:1])  # one message of each batch
        >>> import pyarrow as pa
        >>> app = ps.StreamApplication("longest")
        >>> trips = app.input("local.trips", value=ps.Columns(pa.schema({"miles": pa.int64()})))
        >>> _ = trips.process_batch(Longest).send_to(app.output("local.longest"))
        >>> runner = TestRunner(app, cuts=5).input("local.trips", [{"miles": miles} for miles in range(9)])
        >>> try:
        ...     runner.run()
        ... except CutsDifferError as error:
        ...     print(error)
        output `local.longest` depends on how messages fall into batches: ...
        >>> runner.close()
    """


@dataclass
class RandomCut:
    """Cuts what the inputs hold into random batches."""

    seed: int
    sizes: list[int] = field(default_factory=list)
    """The messages of each batch."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - a test, not a secret

    def __call__(self, portions: Mapping[TaskSsp, Portion]) -> Mapping[TaskSsp, Portion]:
        """Some messages of some of the portions: at least one message, if there are any."""
        rng, found = self._random, dict[TaskSsp, Portion]()
        for at, portion in portions.items():
            held = min(portion.messages, portion.offsets.end - portion.offsets.start)
            if (count := rng.choice((0, 1, rng.randint(0, held), held))) > 0:
                found[at] = replace(portion, messages=count)
        if portions and not found:
            at = rng.choice(sorted(portions))
            found[at] = replace(portions[at], messages=1)
        if found:
            self.sizes.append(sum(portion.messages for portion in found.values()))
        return found

    def __str__(self) -> str:
        some = ", ".join(map(str, self.sizes[:_SHOWN])) + (", ..." if len(self.sizes) > _SHOWN else "")
        return f"in batches of {some or 'no'} messages"


class CutRunner(Protocol):
    """A `TestRunner`, as other jobs of its test see it."""

    dead_letters: int
    _cuts: Cuts[Any] | None


R = TypeVar("R", bound=CutRunner)


class Cuts(Generic[R]):
    """The other jobs of a test: the same application and calls, with inputs that are cut at random."""

    def __init__(self, make: Callable[[RandomCut], R], outputs: Callable[[R], Outputs], count: int) -> None:
        """`make` makes the runner for a cut. Each number of a cut gives the same batches in each run of the test."""
        self._outputs = outputs
        self._cuts = [RandomCut(seed) for seed in range(count)]
        self._runners = [make(cut) for cut in self._cuts]

    def call(self, method: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call the method of each of the other runners."""
        for runner in self._runners:
            method(runner, *args, **kwargs)

    def fails_too(self, error: Exception, method: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call a method that fails for the test's own runner. Raises CutsDifferError if it does not for another."""
        for cut, runner in zip(self._cuts, self._runners, strict=True):
            try:
                method(runner, *args, **kwargs)
            except type(error):
                continue
            raise CutsDifferError(f"in one batch the test fails, and {cut} it does not") from error

    def compare(self, runner: R) -> None:
        """Raise CutsDifferError if another job has other outputs than the test's own runner."""
        own, dead_letters = self._outputs(runner), runner.dead_letters
        for cut, runner in zip(self._cuts, self._runners, strict=True):
            other = self._outputs(runner)
            for stream, key in sorted(own.keys() | other.keys(), key=lambda at: (str(at[0]), at[1] or b"")):
                _compare_outputs(
                    stream, key, own.get((stream, key), Counter()), other.get((stream, key), Counter()), cut
                )
            if dead_letters != runner.dead_letters:
                raise CutsDifferError(
                    f"the number of dead letters depends on how messages fall into batches: it is {dead_letters} in "
                    f"one batch, and {runner.dead_letters} {cut}"
                )


def in_every_cut(
    method: Callable[Concatenate[R, P], R],
) -> Callable[Concatenate[R, P], R]:
    """The method calls itself for the other jobs of the test as well, and compares the outputs."""

    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._cuts is None:
            return method(self, *args, **kwargs)
        given = [list(each) if isinstance(each, Iterator) else each for each in args]
        try:
            method(self, *given, **kwargs)  # type: ignore[arg-type]
        except Exception as error:
            self._cuts.fails_too(error, method, *given, **kwargs)
            raise
        self._cuts.call(method, *given, **kwargs)
        self._cuts.compare(self)
        return self

    update_wrapper(call, method)
    return call


def outputs_of(graph: ApplicationGraph, systems: Mapping[str, System]) -> Outputs:
    """All messages of the outputs, without their order: that in which a join finds its pairs, for example, is not
    specified."""
    found: dict[tuple[SystemStream, bytes | None], Counter[Message]] = {}
    for name in (spec.stream for spec in graph.outputs):
        system = systems[name.system]
        for partition, ends in system.admin().offsets(name.stream).items():
            ssp = SystemStreamPartition(name.system, name.stream, partition)
            for chunk in system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 4096):
                for _, timestamp, key, value, *headers in chunk:
                    found.setdefault((name, key), Counter())[value, timestamp, repr(headers)] += 1
    return found


def _compare_outputs(
    stream: SystemStream, key: bytes | None, own: Counter[Message], other: Counter[Message], cut: RandomCut
) -> None:
    if own == other:
        return
    of_key = "without a key" if key is None else f"of key {_shown(key)}"
    only = [
        f"its message {_message(min(found, key=repr))} {of_key} is there only {where}"
        for found, where in ((own - other, f"in one batch, and not {cut}"), (other - own, f"{cut}, and not in one"))
        if found
    ]
    raise CutsDifferError(
        f"output `{stream}` depends on how messages fall into batches: {'; '.join(only)}. "
        'If the application depends on the order of messages or timers, declare order="event-time"; if it keeps '
        "anything of a message in a field, keep it in a store"
    )


def _message(message: Message) -> str:
    return f"{_shown(message[0])} at {message[1]}"


def _shown(data: bytes | None) -> str:
    text = "None" if data is None else repr(data.decode("utf-8", "backslashreplace"))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
