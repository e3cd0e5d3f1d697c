"""Messages in columns, which is how they pass the operators of a stage.

An operator takes some messages at a time, as columns, and hands on columns: what is paid for each message is the
application's function and little else. What the application's own code emits is handed on one message at a time, by
`Target.push`, because the application may change what it emitted as soon as the call has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress, repeat
from operator import index, itemgetter
from typing import Any, Protocol, TypeAlias

from penstock.api.serdes import Bytes, Serde, not_bytes
from penstock.api.serdes.failures import Part, Place
from penstock.api.task import IncomingMessageEnvelope
from penstock.runtime.context import OperatorFailedError, Page, Position, failure_in

_LONGEST = 2**62
"""Event times are at most so many milliseconds before or after 1970, so that delays can be added."""
_INTEGERS = frozenset({int})
_SERIALISED = frozenset({bytes, type(None)})

Push: TypeAlias = Callable[[Any, Any], None]
"""Takes one message: key and value."""

Raw: TypeAlias = Sequence[bytes | None]
"""Keys or values, serialised."""

Accept: TypeAlias = "Callable[[Columns], None]"
"""Takes some messages."""

Step: TypeAlias = "Callable[[Columns], Columns]"
"""What becomes of some messages."""


class Target(Protocol):
    """What messages go to: an operator, an outlet, or several of them."""

    @property
    def accept(self) -> Accept:
        """Take messages. If the application's function fails, the position is left at the row that it failed for."""

    @property
    def push(self) -> Push:
        """Take one message, which was made from the one at the position."""


class Columns:
    """Some messages. Every column has the same length and never changes.

    Keys that no operator looks at are not decoded.
    """

    __slots__ = ("_keys", "entry", "key_bytes", "rows", "value_bytes", "values")

    def __init__(
        self,
        entry: Entry | None,
        keys: Sequence[Any] | None,
        values: Sequence[Any],
        rows: Sequence[int],
        key_bytes: Raw | None = None,
        value_bytes: Raw | None = None,
    ) -> None:
        """`keys` may be None where `key_bytes` are there, which `entry` decodes."""
        self.entry = entry
        """Where they came in, which decodes them."""
        self._keys = keys
        self.values = values
        self.rows = rows
        """For each message, the row of the page it was made from."""
        self.key_bytes = key_bytes
        """The keys as they were read, until an operator replaces them."""
        self.value_bytes = value_bytes
        """The values as they were read, until an operator replaces them."""

    @property
    def keys(self) -> Sequence[Any]:
        """The keys, decoded by the first one that asks. Raises OperatorFailedError."""
        if self._keys is None:
            if self.entry is None or self.key_bytes is None:
                raise ValueError("these messages have no keys")
            self._keys = self.entry.decoded("key", self.key_bytes, self.rows)
        return self._keys

    @property
    def has_keys(self) -> bool:
        """Whether the keys are decoded."""
        return self._keys is not None

    def with_values(self, values: Sequence[Any]) -> Columns:
        """The same keys with other values."""
        return Columns(self.entry, self._keys, values, self.rows, self.key_bytes, None)

    def with_keys(self, keys: Sequence[Any]) -> Columns:
        """The same values with other keys."""
        return Columns(self.entry, keys, self.values, self.rows, None, self.value_bytes)

    def where(self, kept: Sequence[bool]) -> Columns:
        """The messages for which it is true."""
        columns = (self._keys, self.values, self.rows, self.key_bytes, self.value_bytes)
        return Columns(self.entry, *(None if c is None else list(compress(c, kept)) for c in columns))  # type: ignore[arg-type]

    def expanded(self, results: Sequence[Sequence[Any]]) -> Columns:
        """Each message once for each of its results, which becomes the value."""
        return Columns(
            self.entry,
            _repeated(self._keys, results),
            [value for some in results for value in some],
            [row for row, some in zip(self.rows, results, strict=True) for _ in some],
            _repeated(self.key_bytes, results),
            None,
        )

    def written_by(self, part: Part, serde: Serde[Any]) -> Raw | None:
        """The keys or values as the serde writes them, if they were read by it and no operator replaced them."""
        if self.entry is None:
            return None
        if part == "key":
            return self.key_bytes if serde is self.entry.key_serde else None
        return self.value_bytes if serde is self.entry.value_serde else None


def _repeated(column: Sequence[Any] | None, results: Sequence[Sequence[Any]]) -> Sequence[Any] | None:
    return None if column is None else [each for each, some in zip(column, results, strict=True) for _ in some]


class Entry:
    """Where serialised messages come into a stage, from an input or a channel. They go to outlets as they are, and
    decoded to operators."""

    def __init__(
        self,
        source: str,
        place: Place,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        position: Position,
        target: Target,
        raw: Sequence[Callable[[Raw, Raw, Sequence[int]], None]] = (),
        timestamp: Callable[[Any], int] | None = None,
    ) -> None:
        """`source` is the operator they come from, named when one does not decode; `place` where its serdes are
        declared. `timestamp` gives the event time of a value; without one it is the message's own timestamp."""
        self._source = source
        self._place = place
        self.key_serde = key_serde
        self.value_serde = value_serde
        self._position = position
        self._target = target
        self._raw = raw
        self._timestamp = timestamp

    @property
    def gives_times(self) -> bool:
        """Whether it replaces the timestamps of the page. They are then in a list."""
        return self._timestamp is not None

    def run(self, keys: Raw, values: Raw, first: int) -> None:
        """Send messages on their way; `first` is the page's row of the first one. Raises OperatorFailedError."""
        rows = range(first, first + len(keys))
        decoded = None if self._timestamp is None else self._timed(self._timestamp, values, rows)
        for add in self._raw:
            add(keys, values, rows)
        if self._target is not NOWHERE:
            if decoded is None:
                decoded = self.decoded("value", values, rows)
            self._target.accept(Columns(self, None, decoded, rows, keys, values))

    def _timed(self, timestamp: Callable[[Any], int], values: Raw, rows: range) -> Sequence[Any]:
        """The decoded values. Their event times are in the page, before any operator or outlet looks there."""
        page = self._position.page
        try:
            decoded = self.decoded("value", values, rows)
            elements = iter(decoded)
            with _locating(elements, rows, self._position, self._source):
                times = [timestamp(value) for value in elements]
            if not are_event_times(times):
                found = iter(times)
                with _locating(found, rows, self._position, self._source):
                    times = [event_time(each) for each in found]
        except OperatorFailedError:
            page.untimed.add(self._position.row)
            raise
        page.timestamps[rows.start : rows.stop] = times  # type: ignore[index]
        return decoded

    def decoded(self, part: Part, column: Raw, rows: Sequence[int]) -> Sequence[Any]:
        """The objects of the bytes; None stays None."""
        serde = self.key_serde if part == "key" else self.value_serde
        if type(serde) is Bytes:  # a subclass may decode
            return column
        decode, elements = serde.from_bytes, iter(column)
        with _locating(elements, rows, self._position, self._source):
            try:
                return [None if data is None else decode(data) for data in elements]
            except Exception as error:
                raise self._place.unreadable(part, serde, _given_last(column, elements) or b"", error) from error


def are_event_times(found: Sequence[int]) -> bool:
    """Whether all of these are event times as they are."""
    if not _INTEGERS.issuperset(map(type, found)):
        return False
    return not found or (min(found) >= -_LONGEST and max(found) <= _LONGEST)


def event_time(found: object) -> int:
    """What a function of the application gave as an event time. Raises TypeError or ValueError if it is none."""
    if type(found) is not int:
        if isinstance(found, bool) or not hasattr(found, "__index__"):
            raise TypeError(f"the event time is {found!r}: expected epoch milliseconds, an int")
        found = index(found)
    if not -_LONGEST <= found <= _LONGEST:
        raise ValueError(f"the event time is {found}: epoch milliseconds are at most {_LONGEST} from 1970")
    return found


def encode_column(
    part: Part,
    serde: Serde[Any],
    column: Sequence[Any],
    rows: Sequence[int],
    position: Position,
    operator: str,
    place: Place,
) -> Raw:
    """The bytes of the objects; None stays None."""
    encode, elements = serde.to_bytes, iter(column)
    with _locating(elements, rows, position, operator):
        try:
            encoded = [None if value is None else encode(value) for value in elements]
        except Exception as error:
            raise place.unwritable(part, serde, _given_last(column, elements), error) from error
    if not _SERIALISED.issuperset(map(type, encoded)):
        results = iter(encoded)
        with _locating(results, rows, position, operator):
            for data in results:
                if type(data) not in _SERIALISED:
                    raise not_bytes(serde, data, f"{place.name}, a {part}")
    return encoded


def _given_last(column: Sequence[Any], elements: Iterator[Any]) -> Any:
    """The element that an iterator over the column gave out last."""
    return column[index_of_last(elements, len(column))]


def index_of_last(elements: Iterator[Any], length: int) -> int:
    """The index of the element that an iterator over a list or a tuple gave out last. It knows how many it has left, so
    nothing is counted while nothing fails."""
    left: int = elements.__length_hint__()  # type: ignore[attr-defined]
    return length - left - 1


@contextmanager
def _locating(elements: Iterator[Any], rows: Sequence[int], position: Position, operator: str) -> Iterator[None]:
    """Turn a failure into OperatorFailedError, with the position at the row of the element given out last."""
    position.elements = elements
    try:
        yield
    except BaseException as error:
        position.row = rows[index_of_last(elements, len(rows))]
        raise failure_in(operator, error) from error
    finally:
        position.elements = None


def envelope_of(key: Any, value: Any, page: Page, row: int) -> IncomingMessageEnvelope:
    """A message as the application sees it. As the NamedTuple's own constructor, without its Python frame."""
    return tuple.__new__(IncomingMessageEnvelope, (key, value, page, row))


def envelopes_of(columns: Columns, page: Page) -> Iterator[IncomingMessageEnvelope]:
    """The same for each message of the columns, without a Python frame."""
    parts = zip(columns.keys, columns.values, repeat(page), columns.rows)
    return map(tuple.__new__, repeat(IncomingMessageEnvelope), parts)


def one_by_one(push: Push, position: Position) -> Accept:
    """Takes each message by itself, with the position at its row."""

    def accept(columns: Columns) -> None:
        for row, key, value in zip(columns.rows, columns.keys, columns.values, strict=True):
            position.row = row
            push(key, value)

    return accept


def as_columns(accept: Accept, position: Position) -> Push:
    """Takes one message as columns of one."""

    def push(key: Any, value: Any) -> None:
        accept(Columns(None, (key,), (value,), (position.row,)))

    return push


class Fork:
    """Several targets of the same messages."""

    def __init__(self, targets: Sequence[Target]) -> None:
        pushes = [target.push for target in targets]
        accepts = [target.accept for target in targets]

        def push_all(key: Any, value: Any) -> None:
            for push in pushes:
                push(key, value)

        def accept_all(columns: Columns) -> None:
            for accept in accepts:
                accept(columns)

        self.push: Push = push_all
        self.accept: Accept = accept_all


class MeetingFork(Fork):
    """Several targets that lead to the same operator or store. There the order of what a message led to shows, so each
    message passes all of them before the next one does.

    Branches that only call functions, and end at one target, run by column all the same: what they made is put in that
    order where they end.
    """

    def __init__(self, targets: Sequence[Target], position: Position, branches: Sequence[Branch]) -> None:
        """`branches` are the ways through the targets; see `Branch`."""
        super().__init__(targets)
        each = one_by_one(self.push, position)
        ends = [branch.end for branch in branches]
        end = ends[0]

        def accept_together(columns: Columns) -> None:
            rows = columns.rows
            if type(rows) is not range and len(set(rows)) < len(rows):
                each(columns)  # a row does not say which message it is
                return
            made = [part for branch in branches if len((part := branch.run(columns)).rows)]
            if made:
                end(made[0] if len(made) == 1 else interleaved(made))

        self.accept = accept_together if all(other == end for other in ends) else each


@dataclass(frozen=True, slots=True)
class Branch:
    """The way from where a stream parts to something that is more than a function of each message."""

    steps: tuple[Step, ...]
    end: Accept

    def run(self, columns: Columns) -> Columns:
        """What comes of the messages on the way. A loop keeps no columns but the last."""
        for step in self.steps:
            columns = step(columns)
            if not columns.rows:
                break
        return columns


def interleaved(parts: Sequence[Columns]) -> Columns:
    """All messages of two parts or more, in the order of the rows that they were made from, and of one row in the order
    of the parts."""
    rows = [row for part in parts for row in part.rows]
    order: Callable[[Sequence[Any]], Sequence[Any]] = itemgetter(*sorted(range(len(rows)), key=rows.__getitem__))

    def sort(columns: Iterable[Sequence[Any] | None]) -> Sequence[Any] | None:
        whole: list[Any] = []
        for column in columns:
            if column is None:
                return None
            whole += column
        return order(whole)

    key_bytes = sort(part.key_bytes for part in parts)
    decoded = key_bytes is None or any(part.has_keys for part in parts)
    return Columns(
        parts[0].entry,
        sort(part.keys for part in parts) if decoded else None,
        sort(part.values for part in parts) or (),
        order(rows),
        key_bytes,
        sort(part.value_bytes for part in parts),
    )


class _Nowhere:
    def accept(self, columns: Columns) -> None:
        """Nothing follows."""

    def push(self, key: Any, value: Any) -> None:
        """Nothing follows."""


NOWHERE: Target = _Nowhere()
"""The target of an operator that nothing follows."""
