"""Messages in columns, which is how they pass the operators of a stage.

An operator takes several messages as columns, and hands on columns, so that a message costs little more than the
application's function. Messages that the application's own code emits are handed on one at a time, by `Target.push`,
because the application may change an emitted object as soon as the call has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import compress, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.api.messages import IncomingMessageEnvelope
from penstock.api.serdes import ColumnSerde, Serde, not_bytes
from penstock.arrays.given import ArrowSequence, NoObjectError
from penstock.graph.serdes import Part, SerdePlace
from penstock.runtime.context import MessagePage, Position, failure_in

if TYPE_CHECKING:
    from penstock.runtime.messages.entry import StageEntry

_SERIALISED = frozenset({bytes, type(None)})

Push: TypeAlias = Callable[[Any, Any], None]

Raw: TypeAlias = Sequence[bytes | None]

Accept: TypeAlias = "Callable[[MessageColumns], None]"

Step: TypeAlias = "Callable[[MessageColumns], MessageColumns]"


class Target(Protocol):
    """The receiver of messages: an operator, an outlet, or several of them."""

    @property
    def accept(self) -> Accept:
        """Take messages. If the application's function fails, the position is left at the row that it failed for."""

    @property
    def push(self) -> Push:
        """Take one message, which was made from the message at the position."""


class MessageColumns:
    """Some messages. Every column has the same length and never changes.

    Keys that no operator looks at are not decoded.
    """

    __slots__ = ("_keys", "entry", "key_bytes", "rows", "value_bytes", "values")

    def __init__(
        self,
        entry: StageEntry | None,
        keys: Sequence[Any] | None,
        values: Sequence[Any],
        rows: Sequence[int],
        key_bytes: Raw | None = None,
        value_bytes: Raw | None = None,
    ) -> None:
        """`keys` may be None if there are `key_bytes`, which `entry` decodes."""
        self.entry = entry
        self._keys = keys
        self.values = values
        self.rows = rows
        """For each message, the row of the page it was made from."""
        self.key_bytes = key_bytes
        """The keys as they were read, until an operator replaces them."""
        self.value_bytes = value_bytes
        """The values as they were read, until an operator replaces them."""
        if type(values) is ArrowSequence:
            values.rows = rows

    @property
    def keys(self) -> Sequence[Any]:
        """The keys, decoded at the first use. Raises OperatorFailedError."""
        if self._keys is None:
            if self.entry is None or self.key_bytes is None:
                raise ValueError("these messages have no keys")
            self._keys = self.entry.decoded("key", self.key_bytes, self.rows)
        return self._keys

    @property
    def has_keys(self) -> bool:
        return self._keys is not None

    def with_values(self, values: Sequence[Any]) -> MessageColumns:
        return MessageColumns(self.entry, self._keys, values, self.rows, self.key_bytes, None)

    def with_keys(self, keys: Sequence[Any]) -> MessageColumns:
        return MessageColumns(self.entry, keys, self.values, self.rows, None, self.value_bytes)

    def where(self, kept: Sequence[bool]) -> MessageColumns:
        columns = (self._keys, self.values, self.rows, self.key_bytes, self.value_bytes)
        if isinstance(self.values, ArrowSequence):
            mask = np.asarray(kept, np.bool_)
            return MessageColumns(self.entry, *(None if c is None else _masked(c, mask) for c in columns))  # type: ignore[arg-type]
        return MessageColumns(self.entry, *(None if c is None else list(compress(c, kept)) for c in columns))  # type: ignore[arg-type]

    def with_key_bytes(self, key_bytes: Raw, entry: StageEntry) -> MessageColumns:
        """The same messages with other keys, which `entry` decodes if somebody looks at them."""
        return MessageColumns(entry, None, self.values, self.rows, key_bytes, None)

    def expanded(self, results: Sequence[Sequence[Any]]) -> MessageColumns:
        """Each message once for each of its results, which becomes the value."""
        return MessageColumns(
            self.entry,
            _repeated(self._keys, results),
            [value for some in results for value in some],
            [row for row, some in zip(self.rows, results, strict=True) for _ in some],
            _repeated(self.key_bytes, results),
            None,
        )

    def written_by(self, part: Part, serde: Serde[Any]) -> Raw | None:
        """The keys or values as the serde writes them, if it read them and no operator replaced them."""
        if self.entry is None:
            return None
        if part == "key":
            return self.key_bytes if serde is self.entry.key_serde else None
        return self.value_bytes if serde is self.entry.value_serde else None


def _masked(column: Any, mask: Any) -> Any:
    if isinstance(column, ArrowSequence):
        return ArrowSequence(column.array.filter(pa.array(mask)))
    if isinstance(column, range):
        return np.arange(column.start, column.stop)[mask]
    if isinstance(column, np.ndarray):
        return column[mask]
    return list(compress(column, mask))


def _repeated(column: Sequence[Any] | None, results: Sequence[Sequence[Any]]) -> Sequence[Any] | None:
    return None if column is None else [each for each, some in zip(column, results, strict=True) for _ in some]


def rows_of(columns: MessageColumns, serde: ColumnSerde, position: Position, operator: str) -> pa.StructArray:
    """The values as columns of the serde's schema. Rows that became objects are made columns again."""
    values = columns.values
    if isinstance(values, ArrowSequence):
        return values.array
    elements = iter(values if isinstance(values, list | tuple) else list(values))
    try:
        return serde.rows_of(list(values))
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        with locating(elements, columns.rows, position, operator):
            for value in elements:
                serde.rows_of([value])
        raise


@contextmanager
def locating_row(
    operator: str, columns: MessageColumns, position: Position, again: Callable[[pa.RecordBatch], object]
) -> Iterator[None]:
    """Turn a failure for all rows at once into one of the row that fails by itself: `again` is called with each of
    them. If none does, the first row counts."""
    try:
        yield
    except BaseException as error:
        position.row = int(columns.rows[0]) if len(columns.rows) else 0
        values = columns.values
        if isinstance(error, Exception) and isinstance(values, ArrowSequence):
            for number in range(len(values)):
                try:
                    again(pa.RecordBatch.from_struct_array(values.array.slice(number, 1)))
                except Exception as found:
                    position.row = int(columns.rows[number])
                    raise failure_in(operator, found) from found
        raise failure_in(operator, error) from error


def key_bytes_of(
    columns: MessageColumns, serde: Serde[Any], position: Position, operator: str, place: SerdePlace
) -> pa.Array:
    """The bytes of the keys, as a column."""
    keys = columns.written_by("key", serde)
    if keys is None:
        keys = encode_column("key", serde, columns.keys, columns.rows, position, operator, place)
    return keys.array if isinstance(keys, ArrowSequence) else pa.array(keys, pa.binary())


def encode_column(
    part: Part,
    serde: Serde[Any],
    column: Sequence[Any],
    rows: Sequence[int],
    position: Position,
    operator: str,
    place: SerdePlace,
) -> Raw:
    """The bytes of the objects; None stays None."""
    if isinstance(serde, ColumnSerde) and isinstance(column, ArrowSequence):
        return _written(serde, column, rows, position, operator, place)
    encode, elements = serde.to_bytes, iter(column)
    with locating(elements, rows, position, operator):
        try:
            encoded = [None if value is None else encode(value) for value in elements]
        except Exception as error:
            raise place.unwritable(part, serde, given_last(column, elements), error) from error
    if not _SERIALISED.issuperset(map(type, encoded)):
        results = iter(encoded)
        with locating(results, rows, position, operator):
            for data in results:
                if type(data) not in _SERIALISED:
                    raise not_bytes(serde, data, f"{place.name}, a {part}")
    return encoded


def _written(
    serde: ColumnSerde, column: ArrowSequence, rows: Sequence[int], position: Position, operator: str, place: SerdePlace
) -> Raw:
    array = _in_order(column.array, serde.type)
    if array.type == serde.type:
        with suppress(Exception):  # one row is not written, and is found below
            return serde.write(array)
    elements = iter(column)
    with locating(elements, rows, position, operator):
        try:
            return [None if value is None else serde.to_bytes(value) for value in elements]
        except Exception as error:
            raise place.unwritable("value", serde, given_last(column, elements), error) from error


def _in_order(rows: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    """The rows with their fields in the order of the type, if they have the same names and no row is null."""
    names = [field.name for field in kind]
    if rows.null_count or rows.type == kind or sorted(names) != sorted(field.name for field in rows.type):
        return rows
    columns = dict(zip((field.name for field in rows.type), rows.flatten(), strict=True))
    return pa.StructArray.from_arrays([columns[name] for name in names], names=names)


def given_last(column: Sequence[Any], elements: Iterator[Any]) -> Any:
    return column[index_of_last(elements, len(column))]


def index_of_last(elements: Iterator[Any], length: int) -> int:
    """The index of the element that an iterator over a list or a tuple gave out last. The iterator knows how many it
    has left, so nothing is counted while nothing fails."""
    left: int = elements.__length_hint__()  # type: ignore[attr-defined]
    return length - left - 1


@contextmanager
def locating(elements: Iterator[Any], rows: Sequence[int], position: Position, operator: str) -> Iterator[None]:
    """Turn a failure into OperatorFailedError, with the position at the row of the element given out last."""
    position.elements = elements
    try:
        yield
    except BaseException as error:
        position.row = int(rows[index_of_last(elements, len(rows))])
        raise failure_in(operator, error) from error
    finally:
        position.elements = None


class making_objects:  # noqa: N801 - as `blaming`
    """Turn the failure to make objects of the rows in columns into one of the message, with the position at its row."""

    __slots__ = ("_operator", "_position")

    def __init__(self, operator: str, position: Position) -> None:
        self._operator = operator
        self._position = position

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, NoObjectError):
            if error.row is not None:
                self._position.row = error.row
            raise failure_in(self._operator, error) from error


def envelope_of(key: Any, value: Any, page: MessagePage, row: int) -> IncomingMessageEnvelope:
    """A message as the application sees it. Equals the NamedTuple's own constructor, without its Python frame."""
    return tuple.__new__(IncomingMessageEnvelope, (key, value, page, row))


def envelopes_of(columns: MessageColumns, page: MessagePage) -> Iterator[IncomingMessageEnvelope]:
    """The envelopes of all messages in the columns, without a Python frame."""
    parts = zip(columns.keys, columns.values, repeat(page), columns.rows)
    return map(tuple.__new__, repeat(IncomingMessageEnvelope), parts)


def one_by_one(push: Push, position: Position) -> Accept:
    """Makes an `accept` that pushes each message by itself, with the position at its row."""

    def accept(columns: MessageColumns) -> None:
        for row, key, value in zip(columns.rows, columns.keys, columns.values, strict=True):
            position.row = row
            push(key, value)

    return accept


def as_columns(accept: Accept, position: Position) -> Push:
    making = making_objects("columns", position)

    def push(key: Any, value: Any) -> None:
        with making:
            accept(MessageColumns(None, (key,), (value,), (position.row,)))

    return push


class Fork:
    """Several targets of the same messages."""

    def __init__(self, targets: Sequence[Target]) -> None:
        pushes = [target.push for target in targets]
        accepts = [target.accept for target in targets]

        def push_all(key: Any, value: Any) -> None:
            for push in pushes:
                push(key, value)

        def accept_all(columns: MessageColumns) -> None:
            for accept in accepts:
                accept(columns)

        self.push: Push = push_all
        self.accept: Accept = accept_all


class MeetingFork(Fork):
    """Several targets that lead to the same operator or store, where the order of the results shows. So each message
    passes all of them before the next one does.

    Branches that only call functions, and end at one target, run by column all the same: their results are put in that
    order where they end.
    """

    def __init__(self, targets: Sequence[Target], position: Position, branches: Sequence[Branch]) -> None:
        super().__init__(targets)
        each = one_by_one(self.push, position)
        ends = [branch.end for branch in branches]
        end = ends[0]

        def accept_together(columns: MessageColumns) -> None:
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
    """The way from a fork to the first target that is more than a function of each message."""

    steps: tuple[Step, ...]
    end: Accept

    def run(self, columns: MessageColumns) -> MessageColumns:
        """Run the steps. Keeps only the last columns: a loop holds no others."""
        for step in self.steps:
            columns = step(columns)
            if not len(columns.rows):
                break
        return columns


def interleaved(parts: Sequence[MessageColumns]) -> MessageColumns:
    """The messages of two or more parts, in the order of the rows that they were made from; within a row, in the order
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
    return MessageColumns(
        parts[0].entry,
        sort(part.keys for part in parts) if decoded else None,
        sort(part.values for part in parts) or (),
        order(rows),
        key_bytes,
        sort(part.value_bytes for part in parts),
    )


class _NoTarget:
    def accept(self, columns: MessageColumns) -> None: ...

    def push(self, key: Any, value: Any) -> None: ...


NOWHERE: Target = _NoTarget()
