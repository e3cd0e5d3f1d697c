"""The position of an attempt in its input, and the error by which a failure in user code travels up to the attempt."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from penstock.api.messages import UNREADABLE, Headers, pack_headers, unpack_headers
from penstock.api.ssp import SystemStreamPartition
from penstock.base.application_code import missing_code
from penstock.base.secrets import without_secrets
from penstock.errors import FIRED_OFFSET, ConfigError, FailedMessage, Interrupted, SerdeError
from penstock.graph.specs import ApplicationGraph
from penstock.host.position_page import Span
from penstock.runtime.messages.packet import origin_code, split_origin
from penstock.state.engines.engine import EngineFailedError


class OperatorFailedError(BaseException):
    """User code raised in an operator, or a message did not decode for it. `cause` is the user's exception.

    Not an Exception, because it travels up through the code of tasks before it, whose own `except Exception` must not
    swallow the failure of an operator after them.
    """

    def __init__(self, operator: str, cause: BaseException, key: object = None, what: str = "") -> None:
        """`key` and `what` name the part of a message or of a firing for which the operator raised `cause`, if it was
        not the whole."""
        self.operator = operator
        self.cause = cause
        self.key = key
        self.what = what
        super().__init__(operator)

    def describe(
        self, ssp: SystemStreamPartition, offset: int, key: object, what: str = "", sender: str = ""
    ) -> FailedMessage:
        """The failure at this place. `sender`: the operator that the message came from, if it failed for one."""
        error = self.cause
        inner = error.__traceback__
        while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith(_RUNTIME):
            inner = inner.tb_next
        text = _traceback(error, inner)
        return FailedMessage(
            stream=str(ssp.system_stream),
            partition=ssp.partition,
            offset=offset,
            key=_printable(key if self.key is None else self.key),
            operator=self.operator,
            reason=_encodable(_reason(error)),
            traceback=_encodable(text),
            what=_encodable(self.what or what),
            sender=sender if offset == FIRED_OFFSET else "",
        )


def failure_in(operator: str, error: BaseException) -> OperatorFailedError:
    """Returns the error to raise for anything that the application's code raised in an operator: `sys.exit()`, a
    cancelled coroutine or the panic of an extension must not end the container, and may become a dead letter.

    Raises the error itself if it only passes through: a failure of an operator further down, which the task's `emit`
    called, of a store's engine, or Ctrl-C in this process.
    """
    if isinstance(error, OperatorFailedError | EngineFailedError | Interrupted):
        raise error
    return OperatorFailedError(operator, error)


class blaming:  # noqa: N801 - reads as a statement; a generator would cost five times as much
    """Turn any error into a failure of the operator; see `failure_in`."""

    __slots__ = ("_operator",)

    def __init__(self, operator: str) -> None:
        self._operator = operator

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None:
            raise failure_in(self._operator, error) from error


Int64: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"
_RUNTIME = (f"{__package__}.", "penstock.side.", "penstock.spark.processor.", "penstock.testing.runner.check")


def _reason(error: BaseException) -> str:
    name = type(error).__name__
    try:
        advice = missing_code(error)
        return without_secrets(f"{name}: {error}") + ("" if advice is None else f". {advice}")
    except BaseException as failure:
        if isinstance(failure, Interrupted):
            raise
        return f"{name} (its text cannot be shown: __str__ raised {type(failure).__name__})"


def _traceback(error: BaseException, inner: TracebackType | None) -> str:
    try:
        shown = traceback.TracebackException(type(error), error, inner)
        if isinstance(error, SerdeError) and error.__cause__ is not None and error.__cause__.__traceback__ is None:
            shown.__cause__ = None  # it was raised in a serde of Penstock, and the error says more
        return without_secrets("".join(shown.format()))
    except BaseException as failure:
        if isinstance(failure, Interrupted):
            raise
        return f"{''.join(traceback.format_tb(inner))}{_reason(error)}\n"


def _printable(key: object) -> str:
    text = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else repr(key)
    return _encodable(text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)")


def _encodable(text: str) -> str:
    """Escapes lone surrogates, which a report could not carry."""
    return text.encode("utf-8", "backslashreplace").decode()


_UNREADABLE = pack_headers(UNREADABLE)


class MessagePage:
    """The origins and headers of some input messages, in columns. A row never changes; more may be added."""

    __slots__ = ("_received", "_ssps", "_untimed", "offsets", "origins", "packed_headers", "timestamps", "unreadable")

    def __init__(
        self,
        ssps: SspTable,
        timestamps: Sequence[int],
        origins: Sequence[int],
        offsets: Sequence[int],
        packed_headers: dict[int, bytes] | None = None,
    ) -> None:
        self._ssps = ssps
        self.timestamps = timestamps
        self.origins = origins
        self.offsets = offsets
        self._untimed: set[int] | None = None
        self.packed_headers = packed_headers or {}
        """By row, the headers of the messages that have some, as `pack_headers` makes them."""
        self.unreadable: Set[int] = frozenset()
        """The rows whose headers could not be read: these messages fail."""
        if packed_headers:
            self._take_unreadable()
        self._received: int | None = None
        """The number of rows that came, if others were added."""

    @property
    def untimed(self) -> set[int]:
        """The rows without an event time, because the application's function for it failed."""
        if self._untimed is None:
            self._untimed = set()
        return self._untimed

    def set_times(self, first: int, times: Sequence[int]) -> None:
        """Set the event times of rows, from the row `first` on."""
        self.timestamps[first : first + len(times)] = times  # type: ignore[index]

    def highest_time(self, limit_ms: int) -> tuple[int | None, int]:
        """The highest event time up to the limit, and the number of messages above the limit."""
        times = self.timestamps if self._received is None else self.timestamps[: self._received]
        if not self._untimed and (highest := max(times)) <= limit_ms:
            return highest, 0
        timed = [each for row, each in enumerate(times) if row not in self.untimed]
        near = [each for each in timed if each <= limit_ms]
        return max(near, default=None), len(timed) - len(near)

    def _take_unreadable(self) -> None:
        """Note the rows whose headers could not be read, and leave the mark of these out."""
        self.unreadable = {row for row, packed in self.packed_headers.items() if packed == _UNREADABLE}
        for row in self.unreadable:
            del self.packed_headers[row]

    def times_of(self, rows: Any) -> Int64:
        """The event times of these rows, a range or an array of numbers."""
        times = self.columns()[0]
        found: Int64 = times[rows.start : rows.stop] if isinstance(rows, range) else times[np.asarray(rows)]
        return found

    def without_time(self) -> ConfigError | None:
        """The error to report if a message's timestamp is not an event time; None if all are."""
        for row, time in enumerate(self.timestamps):
            if type(time) is not int or not -(1 << 63) <= time < 1 << 63:
                ssp = self.ssp(row)
                return ConfigError(
                    f"the message at offset {self.offsets[row]} of `{ssp}` has the timestamp {time!r}: the reader of "
                    f"the system `{ssp.system}` must give epoch milliseconds, as an int. Correct the reader"
                )
        return None

    def derived(self, row: int, *, timestamp_ms: int | None = None, headers: Headers | None = None) -> int:
        """Add a row of the same origin, for a result with another time or other headers. Returns the new row."""
        if self._received is None:
            self._received = len(self.offsets)
        columns = self._growing()
        for column, value in zip(columns, (timestamp_ms, None, None), strict=True):
            column.append(column[row] if value is None else value)
        packed = self.packed_headers.get(row) if headers is None else headers and pack_headers(headers)
        if packed:
            self.packed_headers[len(columns[0]) - 1] = packed
        return len(columns[0]) - 1

    def _growing(self) -> tuple[list[int], list[int], list[int]]:
        """The timestamps, origins and offsets as lists."""
        for name in ("timestamps", "origins", "offsets"):
            if not isinstance(column := getattr(self, name), list):
                setattr(self, name, list(column))
        return self.timestamps, self.origins, self.offsets  # type: ignore[return-value]

    def span(self, first: int, end: int) -> Span:
        """The origins and offsets of these rows, all of one partition and in the order of their offsets."""
        return Span(self.origins[first], self.origins[end - 1], self.offsets[first], self.offsets[end - 1])

    def ssp(self, row: int) -> SystemStreamPartition:
        return self._ssps[self.origins[row]]

    def headers(self, row: int) -> Headers:
        packed = self.packed_headers.get(row)
        return () if packed is None else unpack_headers(packed)

    def columns(self) -> tuple[Int64, Int64, Int64]:
        timestamps, origins, offsets = (_int64(each) for each in (self.timestamps, self.origins, self.offsets))
        return timestamps, origins, offsets


class ReceivedPage(MessagePage):
    """A page that came as arrays. They become lists only when somebody asks for a row."""

    __slots__ = ("_columns", "_lists")

    def __init__(
        self,
        ssps: SspTable,
        timestamps: Int64,
        origins: Int64,
        offsets: Int64,
        packed_headers: dict[int, bytes] | None = None,
    ) -> None:
        self._ssps = ssps
        self._untimed = None
        self.unreadable = frozenset()
        self._received = None
        self.packed_headers = packed_headers or {}
        self._columns = (timestamps, origins, offsets)
        self._lists: dict[int, list[int]] = {}

    def _list(self, column: int) -> list[int]:
        found = self._lists.get(column)
        if found is None:
            found = self._lists[column] = self._columns[column].tolist()
        return found

    @property
    def timestamps(self) -> Sequence[int]:  # type: ignore[override]
        return self._list(0)

    @property
    def origins(self) -> Sequence[int]:  # type: ignore[override]
        return self._list(1)

    @property
    def offsets(self) -> Sequence[int]:  # type: ignore[override]
        return self._list(2)

    def span(self, first: int, end: int) -> Span:
        origins, offsets = (column[first:end] for column in self._columns[1:])
        if end - first == 1:
            return Span(int(origins[0]), int(origins[0]), int(offsets[0]), int(offsets[0]))
        return Span(int(origins.min()), int(origins.max()), int(offsets.min()), int(offsets.max()))

    def set_times(self, first: int, times: Sequence[int]) -> None:
        self._columns[0][first : first + len(times)] = times
        if 0 in self._lists:  # it may have more rows
            self._lists[0][first : first + len(times)] = times

    def _growing(self) -> tuple[list[int], list[int], list[int]]:
        return self._list(0), self._list(1), self._list(2)

    def columns(self) -> tuple[Int64, Int64, Int64]:
        more = 0 if self._received is None else len(self._list(0)) - self._received
        if not more:
            return self._columns
        first, second, third = (np.concatenate((c, _int64(self._list(n)[-more:]))) for n, c in enumerate(self._columns))
        return first, second, third


@dataclass(frozen=True, slots=True)
class MessageOrigin:
    """The place of the input message behind a message that waited, and its headers as `pack_headers` makes them."""

    ssp: SystemStreamPartition
    offset: int
    headers: bytes
    sender: str
    """The operator that the message came from."""


class FiredPage(MessagePage):
    """The origins of messages that operators fired without an input message. It grows with each firing."""

    __slots__ = ()

    def __init__(self, ssps: SspTable) -> None:
        super().__init__(ssps, [], [], [])

    def add_message(self, timestamp: int, place: MessageOrigin, unknown: int) -> int:
        """Add the row of a message that waited. `unknown` is the origin if its stream is no input any more."""
        code = self._ssps.code_of(place.ssp)
        first = self.add(timestamp, *((unknown, FIRED_OFFSET) if code is None else (code, place.offset)))
        if place.headers:
            self.packed_headers[first] = place.headers
        return first

    def add(self, timestamp: int, origin: int, offset: int, count: int = 1) -> int:
        """Add `count` rows; returns the index of the first."""
        first = len(self.offsets)
        for column, value in zip(self._growing(), (timestamp, origin, offset), strict=True):
            column.extend([value] * count)
        return first


def _int64(column: Sequence[int]) -> Int64:
    return np.fromiter(column, np.int64, len(column))


class Position:
    """The input message that is being processed: a row of a page. Set by the attempt's loop."""

    __slots__ = ("elements", "page", "row")

    def __init__(self, page: MessagePage) -> None:
        self.page = page
        self.row = 0
        self.elements: Iterator[object] | None = None
        """The iterator over the column while an operator runs over it. It knows its own progress."""

    def progress(self) -> object:
        """A value that changes whenever another message has been processed. May be called from any thread."""
        elements = self.elements
        left = 0 if elements is None else elements.__length_hint__()  # type: ignore[attr-defined]
        return (id(self.page), self.row, id(elements), left)

    def describe(self) -> str:
        """The message in words. May be called from any thread."""
        page, row = self.page, self.row
        if not 0 <= row < len(page.offsets):
            return "no message yet"
        ssp = page.ssp(row)
        if page.offsets[row] == FIRED_OFFSET:
            return f"a timer, a window or the end of input of task {ssp.partition}, or what it made"
        return f"about offset {page.offsets[row]} of stream `{ssp.system_stream}` partition {ssp.partition}"


class SspTable(dict[int, SystemStreamPartition]):
    """Maps origin codes to SSPs, and makes each SSP once."""

    def __init__(self, inputs: tuple[tuple[str, str], ...]) -> None:
        super().__init__()
        self._inputs = inputs
        self._codes: dict[SystemStreamPartition, int | None] = {}
        self.streams = tuple(f"{system}.{stream}" for system, stream in inputs)
        """The inputs, as `system.stream`."""

    @classmethod
    def of(cls, graph: ApplicationGraph) -> SspTable:
        return cls(tuple((op.stream.system, op.stream.stream) for op in graph.sources))

    def code_of(self, ssp: SystemStreamPartition) -> int | None:
        """The origin code of a partition; None if its stream is no input."""
        if ssp not in self._codes:
            name = (ssp.system, ssp.stream)
            known = name in self._inputs
            self._codes[ssp] = origin_code(self._inputs.index(name), ssp.partition) if known else None
        return self._codes[ssp]

    def __missing__(self, origin: int) -> SystemStreamPartition:
        index, partition = split_origin(origin)
        system, stream = self._inputs[index] if index >= 0 else ("none", "none")
        ssp = self[origin] = SystemStreamPartition(system, stream, partition)
        return ssp
