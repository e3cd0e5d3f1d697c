"""Common patterns, as operators that are made of others."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.api.expressions import Expression
from penstock.api.messages import IncomingMessageEnvelope
from penstock.api.serdes import Bytes, JsonKey, Serde
from penstock.api.serdes.base import BytesWithKey
from penstock.api.task import OperatorTask
from penstock.api.task_context import MessageCollector, TaskContext, TaskCoordinator
from penstock.base.application_code import Callback, check_all
from penstock.base.exact_json import exact_bytes
from penstock.base.wording import Duration, milliseconds, whole_number
from penstock.errors import ConfigError
from penstock.graph.declarations import Declarations
from penstock.graph.serdes import SerdePlace, process_place
from penstock.graph.specs import FilterSpec, MapAsyncSpec, OperatorSpec, ProcessSpec
from penstock.graph.store_declarations import time_to_live

if TYPE_CHECKING:
    from penstock.application.message_stream import MessageStream

T = TypeVar("T")

_LENGTH = 4
"""`deduplicate` stores each key behind its length, which has so many bytes."""
_NO_KEY = "the message has no key: give each message one with .partition_by, or leave out those without one"


class Patterns(Generic[T]):
    """The part of `MessageStream` for common patterns."""

    _declared: Declarations
    _operator: OperatorSpec

    def _next(
        self, kind: str, op_id: str | None, make: Callable[[str], OperatorSpec], renamed_from: str | None = None
    ) -> MessageStream[Any]:
        raise NotImplementedError

    def _same(self) -> dict[str, Any]:
        raise NotImplementedError

    def _changed(self) -> dict[str, Any]:
        raise NotImplementedError

    def peek(self, function: Callable[[T], Any], *, id: str | None = None) -> MessageStream[T]:  # noqa: A002
        """Call a function with each value, and pass the message on unchanged. The function may be called again for a
        message, if its batch runs again.

        Args:
            function: gets the value. What it returns is not used.
            id: the operator's stable name.

        Example:
            >>> app = ps.StreamApplication("seen")
            >>> _ = app.input("local.trips").peek(print).send_to(app.output("local.copies"))
            >>> _ = TestRunner(app).input("local.trips", ["N1"]).run()
            N1
        """
        check_all([Callback("the function", function, needed=True)], "peek()")
        return self._next("peek", id, lambda i: FilterSpec(id=i, function=_Peek(function), **self._same()))

    def branch(self, *conditions: Callable[[T], Any], id: str | None = None) -> tuple[MessageStream[T], ...]:  # noqa: A002
        """Divide the stream. A message goes to the stream of the first condition that is true for it, and to the last
        stream if none is.

        Args:
            conditions: functions of the value, or expressions.
            id: the stable name, to which each stream adds its number.

        Returns:
            One stream for each condition, and one for the other messages.

        Raises:
            ConfigError: there is no condition.

        Example:
            >>> app = ps.StreamApplication("sizes")
            >>> small, large, other = app.input("local.sizes").branch(lambda n: 0 < n < 10, lambda n: n >= 10)
            >>> for name, stream in (("small", small), ("large", large), ("other", other)):
            ...     _ = stream.send_to(app.output(f"local.{name}"))
            >>> runner = TestRunner(app).input("local.sizes", [5, 50, -1]).run()
            >>> [message.value for message in runner.output("local.large")]
            [50]
        """
        if not conditions:
            raise ConfigError("branch() takes at least one condition")
        for each in conditions:
            check_all([Callback("a condition", each, needed=True)], "branch()")
        streams = []
        for number in range(len(conditions) + 1):
            own = _Branch(conditions, number)
            name = None if id is None else f"{id}-{number + 1}"
            function: Any = own.expression() if all(isinstance(c, Expression) for c in conditions) else own
            streams.append(
                self._next("branch", name, lambda i, f=function: FilterSpec(id=i, function=f, **self._same()))  # type: ignore[misc]
            )
        return tuple(streams)

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        *,
        value: Serde[Any] | None = None,
        id: str | None = None,  # noqa: A002
        renamed_from: str | None = None,
    ) -> MessageStream[Any]:
        """Keep one value for each key, and emit it with each message. The first message of a key is its first value.
        Messages without a value are passed over.

        The values are in a store that has the operator's name, so `penstock state get JOB NAME KEY` shows one.

        Args:
            function: gets the value so far and the message's value, and returns the new one.
            value: the serde of the values; by default that of the stream.
            id: the operator's stable name.
            renamed_from: the id that the operator had when its state was made, if it has another one now. Its stores
                keep that name.

        Example:
            >>> app = ps.StreamApplication("records")
            >>> highest = app.input("local.scores").reduce(max, id="highest")
            >>> _ = highest.send_to(app.output("local.highest"))
            >>> runner = TestRunner(app).input("local.scores", [("ann", 5), ("ann", 3), ("ann", 9)]).run()
            >>> [message.value for message in runner.output("local.highest")]
            [5, 5, 9]
        """
        check_all([Callback("the function", function, needed=True)], "reduce()")

        def make(i: str) -> ProcessSpec:
            same = self._same()
            serde = process_place(f"operator `{i}`").serde("value", value, same["value_serde"])
            store = self._declared.state_id(i)
            self._declared.store(store, same["key_serde"], serde)
            same["value_serde"] = serde
            return ProcessSpec(id=i, task=partial(_Reduce, store, function), stores=(store,), **same)

        return self._next("reduce", id, make, renamed_from)

    def deduplicate(
        self,
        within: Duration,
        *,
        by: Callable[[T], Any] | None = None,
        id: str | None = None,  # noqa: A002
        renamed_from: str | None = None,
    ) -> MessageStream[T]:
        """Pass on the first of several equal messages of a key.

        What was seen is in a store that has the operator's name. Messages of different keys are never compared, because
        they may be in different tasks: after `partition_by` of the message's id, each id is a key.

        Args:
            within: how long a message is remembered, in batch time, whatever the messages' own times are: milliseconds,
                a text such as "1d", or a timedelta.
            by: what is compared of values, as JSON. None: the key alone.
            id: the operator's stable name.
            renamed_from: the id that the operator had when its state was made, if it has another one now. Its stores
                keep that name.

        Raises:
            ConfigError: `within` is no duration.

        Example:
            >>> app = ps.StreamApplication("once")
            >>> orders = app.input("local.orders").partition_by(lambda order: order["id"]).deduplicate("1d")
            >>> _ = orders.send_to(app.output("local.once"))
            >>> runner = TestRunner(app).input("local.orders", [{"id": "A"}, {"id": "B"}, {"id": "A"}]).run()
            >>> sorted(message.value["id"] for message in runner.output("local.once"))
            ['A', 'B']
        """
        check_all([Callback("`by`", by, needed=by is not None)], "deduplicate()")
        ttl = time_to_live("deduplicate()", milliseconds("deduplicate(): within", within), "write")

        def make(i: str) -> ProcessSpec:
            same = self._same()
            store = self._declared.state_id(i)
            keys = BytesWithKey(same["key_serde"], _key_alone if by is None else _first_part)
            self._declared.store(store, keys, Bytes(), ttl)
            return ProcessSpec(id=i, task=partial(_Deduplicate, store, same["key_serde"], by), stores=(store,), **same)

        return self._next("deduplicate", id, make, renamed_from)

    def map_async(
        self,
        function: Callable[..., Any],
        *,
        parallel: int = 100,
        timeout: Duration = "30s",
        retries: int = 0,
        retry_on: Collection[type[Exception]] = (OSError, TimeoutError),
        client: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        key: Callable[[T], Any] | None = None,
        remember: Duration | None = None,
        id: str | None = None,  # noqa: A002
    ) -> MessageStream[Any]:
        """Replace each value with what an `async` function returns for it, as for look-ups over HTTP or in a database.
        Many calls run at the same time, and the messages keep their order.

        A batch that runs again calls the function again for its messages, so a call must not do any harm twice. While a
        call raises `ps.SystemAwayError`, the job waits and tries again.

        Args:
            function: gets the value, and the client if there is one.
            parallel: the most calls at the same time, in each task.
            timeout: how long a call may take: milliseconds, a text such as "10s", or a timedelta. A call that takes
                longer fails.
            retries: how often a call that failed is tried again, after 0.1 s, 0.2 s, 0.4 s and so on.
            retry_on: the errors after which it is tried again.
            client: makes an async context manager, such as `httpx.AsyncClient`. It is entered once in a process, and
                what it gives is the function's second argument.
            key: what a result depends on, as a hashable value. Values with the same key share one call, whose result is
                remembered. None: each message has its own call.
            remember: how long results are remembered, with `key`; by default 5 minutes. At most 10,000 are.
            id: the operator's stable name.

        Raises:
            ConfigError: the function is not `async`, an argument is not valid, or there is `remember` without `key`.

        Example:
            >>> import asyncio
            >>> async def carrier_of(flight):
            ...     await asyncio.sleep(0)  # a request
            ...     return {**flight, "carrier": flight["number"][:2]}
            >>> app = ps.StreamApplication("carriers")
            >>> _ = app.input("local.flights").map_async(carrier_of).send_to(app.output("local.carriers"))
            >>> runner = TestRunner(app).input("local.flights", [{"number": "UA1"}]).run()
            >>> [message.value["carrier"] for message in runner.output("local.carriers")]
            ['UA']
        """
        errors = tuple(retry_on) if isinstance(retry_on, Collection) else (retry_on,)
        if not all(isinstance(each, type) and issubclass(each, Exception) for each in errors):
            raise ConfigError(f"map_async(): retry_on={retry_on!r}: give classes of exceptions, as (OSError,)")
        if remember is not None and key is None:
            raise ConfigError(
                f"map_async(): remember={remember!r} has no effect without key=, which says what a result depends on: "
                'give key=, as key=lambda payment: payment["currency"], or leave out remember='
            )
        calls: dict[str, Any] = {
            "function": function,
            "parallel": whole_number("map_async(): parallel", parallel, "calls"),
            "timeout_ms": milliseconds("map_async(): timeout", timeout),
            "retries": whole_number("map_async(): retries", retries, "retries", least=0),
            "retry_on": errors,
            "client": client,
            "key": key,
            "remember_ms": milliseconds("map_async(): remember", "5min" if remember is None else remember),
        }
        return self._next("map_async", id, lambda i: MapAsyncSpec(id=i, **calls, **self._changed()))


class _Peek:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, value: Any) -> bool:
        self._function(value)
        return True


class _Branch:
    """True for the messages of one branch."""

    def __init__(self, conditions: tuple[Callable[[Any], Any], ...], number: int) -> None:
        self._conditions = conditions
        self._number = number

    def __call__(self, value: Any) -> bool:
        found = next((n for n, condition in enumerate(self._conditions) if condition(value)), len(self._conditions))
        return found == self._number

    def expression(self) -> Any:
        """The same as one expression, if all conditions are expressions."""
        conditions: Any = self._conditions
        own: Any = conditions[self._number] if self._number < len(conditions) else None
        for earlier in conditions[: self._number]:
            other = ~earlier.fill_null(False)
            own = other if own is None else own & other
        return own


class _Reduce(OperatorTask):
    def __init__(self, store: str, function: Callable[[Any, Any], Any]) -> None:
        self._store = store
        self._function = function

    def init(self, context: TaskContext) -> None:
        self._values = context.store(self._store)

    def process(
        self, envelope: IncomingMessageEnvelope, collector: MessageCollector, coordinator: TaskCoordinator
    ) -> None:
        if envelope.key is None:
            raise ValueError(_NO_KEY)
        if envelope.value is None:
            return
        before = self._values.get(envelope.key)
        value = envelope.value if before is None else self._function(before, envelope.value)
        self._values.put(envelope.key, value)
        collector.emit(key=envelope.key, value=value)


def _key_alone(seen: bytes) -> bytes:
    return seen


def _first_part(seen: bytes) -> bytes:
    return seen[_LENGTH : _LENGTH + int.from_bytes(seen[:_LENGTH], "big")]


def _compared(value: Any) -> bytes:
    """Equal values have equal bytes; NaN is equal to itself alone."""
    if type(value) is float and not isfinite(value):
        return exact_bytes(value)
    try:
        return _COMPARED.to_bytes(value)
    except Exception as error:
        raise SerdePlace("deduplicate", "").unwritable("value", _COMPARED, value, error) from error


_COMPARED = JsonKey()


class _Deduplicate(OperatorTask):
    def __init__(self, store: str, key: Serde[Any], by: Callable[[Any], Any] | None) -> None:
        self._store = store
        self._key = key
        self._by = by

    def init(self, context: TaskContext) -> None:
        self._seen = context.store(self._store)

    def process(
        self, envelope: IncomingMessageEnvelope, collector: MessageCollector, coordinator: TaskCoordinator
    ) -> None:
        if envelope.key is None:
            raise ValueError(_NO_KEY)
        key = self._key.to_bytes(envelope.key)
        if self._by is not None:
            key = len(key).to_bytes(_LENGTH, "big") + key + _compared(self._by(envelope.value))
        if self._seen.get(key) is None:
            self._seen.put(key, b"")
            collector.emit(key=envelope.key, value=envelope.value)
