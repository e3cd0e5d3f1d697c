"""map_async: calls an `async` function for many messages at the same time."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import fields, is_dataclass
from datetime import datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any

from penstock.errors import ConfigError, SystemAwayError
from penstock.graph.specs import MapAsyncSpec
from penstock.runtime.context import MessagePage, Position, failure_in
from penstock.runtime.messages.columns import MessageColumns, Target
from penstock.runtime.operators.base import Node, Operator, StageContext

_PAUSE_S = 0.1
_REMEMBERED = 10_000


class MapAsync(Operator[MapAsyncSpec]):
    """Each result is the message's new value."""

    undoes_many = True

    def build(self, stage: StageContext, downstream: Target) -> Node:
        return _AsyncNode(self.spec, stage.position, downstream)


class _AsyncNode(Node):
    """Makes all calls for the messages of a piece before it passes them on.

    In dead-letter mode a piece that fails comes again, in parts. What was found for its rows is kept until then, so
    that no call is made twice.
    """

    def __init__(self, spec: MapAsyncSpec, position: Position, downstream: Target) -> None:
        super().__init__(self._accept, position, self._push)
        self._spec = spec
        self._position = position
        self._downstream = downstream
        self._calls = _Calls(spec)
        self._page: MessagePage | None = None
        self._found: dict[int, tuple[Any, Any]] = {}
        """By row of the page, the value, and the result or the error of its call."""

    def _accept(self, columns: MessageColumns) -> None:
        rows = [int(row) for row in columns.rows]
        if len(set(rows)) < len(rows):  # several messages were made of one: a row does not say which one it is
            found = self._calls.all(list(columns.values))
        else:
            if self._position.page is not self._page:
                self._page, self._found = self._position.page, {}
            new = [
                (row, value) for row, value in zip(rows, columns.values, strict=True) if not self._is_known(row, value)
            ]
            for (row, value), result in zip(new, self._calls.all([value for _, value in new]), strict=True):
                self._found[row] = value, result
            found = [self._found[row][1] for row in rows]
        for row, result in zip(rows, found, strict=True):
            if isinstance(result, _FailedCall):
                self._position.row = row
                raise failure_in(self._spec.id, result.error) from result.error
        self._downstream.accept(columns.with_values(found))

    def _is_known(self, row: int, value: Any) -> bool:
        """True if the call for this value of the row was made: another branch may make another value of a row."""
        if row not in self._found:
            return False
        try:
            return bool(exact_form(self._found[row][0]) == exact_form(value))
        except Exception:  # values that cannot be compared
            return False

    def _push(self, key: Any, value: Any) -> None:
        (result,) = self._calls.all([value])
        if isinstance(result, _FailedCall):
            raise failure_in(self._spec.id, result.error) from result.error
        self._downstream.push(key, result)

    def close(self) -> None:
        self._calls.close()


def exact_form(value: Any) -> Any:
    """A form of the value. Two forms are equal if and only if nobody can tell their values apart. Python's own equality
    does not say this: 1, 1.0 and True are equal, so are 0.0 and -0.0, and NaN is not equal to itself."""
    kind = type(value)
    if kind is str or kind is int:
        return kind, value
    if kind is float:
        return kind, value.hex()
    if kind is list or kind is tuple:
        return kind, tuple(map(exact_form, value))
    if kind is dict:
        return kind, tuple((exact_form(key), exact_form(each)) for key, each in value.items())
    if kind is set or kind is frozenset:
        return kind, frozenset(map(exact_form, value))
    if kind is Decimal:
        return kind, str(value)
    if isinstance(value, datetime | time_of_day):  # equal times of two zones, and the two of an hour that comes twice
        return kind, repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        return kind, tuple(exact_form(getattr(value, field.name, None)) for field in fields(value))
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):  # a number of NumPy
        return kind, value.tobytes()
    return kind, value


class _FailedCall:
    """The outcome of a call that raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Calls:
    """Calls the function, with an event loop for as long as the node is open."""

    def __init__(self, spec: MapAsyncSpec) -> None:
        self._spec = spec
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = AsyncExitStack()
        self._client: tuple[Any, ...] = ()
        self._remembered: OrderedDict[Any, tuple[float, Any]] = OrderedDict()
        """Key → the time until which its result counts, and the result; the oldest first."""

    def all(self, values: Sequence[Any]) -> list[Any]:
        """The results, or `_FailedCall`, in order."""
        if not values:
            return []
        if self._spec.key is None:
            return self._run([self._call(value) for value in values])
        return self._by_key(self._spec.key, values)

    def _by_key(self, key_of: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        now = time.monotonic()
        keys, firsts = [], dict[Any, Any]()
        known: dict[Any, Any] = {}
        for value in values:
            try:
                key = exact_form(key_of(value))
                hash(key)
            except Exception as error:
                key = _FailedCall(error)
                known[key] = key
            keys.append(key)
            if key in known or key in firsts:
                continue
            until, result = self._remembered.get(key, (0.0, None))
            if until > now:
                known[key] = result
            else:
                firsts[key] = value
        results = self._run([self._call(value) for value in firsts.values()]) if firsts else []
        until = time.monotonic() + self._spec.remember_ms / 1000
        for key, result in zip(firsts, results, strict=True):
            known[key] = result
            if not isinstance(result, _FailedCall):
                self._remembered.pop(key, None)
                self._remembered[key] = (until, result)
        while len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return [known[key] for key in keys]

    def _run(self, calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._together(calls))
        except BaseException:  # Ctrl-C, or the client could not be opened: what still runs is ended
            for call in calls:
                call.close()
            self.close()
            raise

    async def _together(self, calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        if self._spec.client is not None and not self._client:
            try:
                self._client = (await self._open.enter_async_context(self._spec.client()),)
            except Exception as error:
                for call in calls:
                    call.close()
                if isinstance(error, SystemAwayError):
                    return [_FailedCall(error)] * len(calls)
                what = f"operator `{self._spec.id}`: `client` of map_async could not be opened"
                raise ConfigError(f"{what}: {type(error).__name__}: {error}") from error
        slots = asyncio.Semaphore(self._spec.parallel)

        async def one(call: Coroutine[Any, Any, Any]) -> Any:
            async with slots:
                return await call

        return list(await asyncio.gather(*map(one, calls)))

    async def _call(self, value: Any) -> Any:
        spec = self._spec
        for number in range(spec.retries + 1):
            try:
                async with asyncio.timeout(spec.timeout_ms / 1000) as limit:
                    return await spec.function(value, *self._client)
            except Exception as raised:
                late = TimeoutError(f"the call took longer than {spec.timeout_ms} ms")
                error = late if limit.expired() else raised
                if isinstance(error, SystemAwayError) or number == spec.retries or not isinstance(error, spec.retry_on):
                    return _FailedCall(error)
            await asyncio.sleep(_PAUSE_S * 2**number)
        raise AssertionError("the last try returns")

    def close(self) -> None:
        loop, self._loop, self._client = self._loop, None, ()
        if loop is None or loop.is_closed():
            return
        try:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(self._open.aclose())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
            self._open = AsyncExitStack()
