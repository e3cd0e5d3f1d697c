"""Messages in columns: how a page passes the stateless operators before anything that keeps state.

Where a page takes a single way through operators that only look at values, each operator is run over the whole column
before the next one: what is paid for each message is the user's function and little else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple, TypeAlias

from penstock.api.graph import FilterSpec, FlatMapSpec, MapSpec, OperatorSpec, PartitionBySpec, ProcessSpec, SinkSpec
from penstock.api.serdes import Bytes, Serde, not_bytes
from penstock.runtime.context import Position, failure_in

_SERIALISED = frozenset({bytes, type(None)})

Push: TypeAlias = Callable[[Any, Any], None]
"""Takes one message: key and value."""


class Columns(NamedTuple):
    """Some messages. Every column has the same length."""

    keys: Sequence[Any]
    values: Sequence[Any]
    rows: Sequence[int]
    """For each message, the row of the page it was made from."""
    key_bytes: Sequence[bytes | None] | None
    """The keys as they were read, until an operator replaces them."""
    value_bytes: Sequence[bytes | None] | None
    """The values as they were read, until an operator replaces them."""


Step: TypeAlias = Callable[[Columns, Position], Columns]
"""An operator over columns. If the user's function fails, the position is left at the row that it failed for."""

End: TypeAlias = Callable[[Columns, Position], None]
"""Takes what came through the steps."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way serialised messages take into a stage: decoded, through the steps, to the end."""

    source: str
    """The operator the messages come from, named when one does not decode."""
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    steps: tuple[Step, ...]
    end: End

    def run(self, keys: Sequence[bytes | None], values: Sequence[bytes | None], first: int, position: Position) -> None:
        """Send messages on their way; `first` is the page's row of the first one. Raises OperatorFailedError."""
        rows = range(first, first + len(keys))
        columns = Columns(
            decode_column(self.key_serde, keys, rows, position, self.source),
            decode_column(self.value_serde, values, rows, position, self.source),
            rows,
            keys,
            values,
        )
        for step in self.steps:
            columns = step(columns, position)
        self.end(columns, position)


def decode_column(
    serde: Serde[Any], column: Sequence[bytes | None], rows: Sequence[int], position: Position, operator: str
) -> Sequence[Any]:
    """The objects of the bytes; None stays None."""
    if type(serde) is Bytes:  # a subclass may decode
        return column
    decode, elements = serde.from_bytes, iter(column)
    with _locating(elements, rows, position, operator):
        return [None if data is None else decode(data) for data in elements]


def encode_column(
    serde: Serde[Any], column: Sequence[Any], rows: Sequence[int], position: Position, operator: str, what: str
) -> Sequence[bytes | None]:
    """The bytes of the objects; None stays None. `what` says what they are, for an error."""
    encode, elements = serde.to_bytes, iter(column)
    with _locating(elements, rows, position, operator):
        encoded = [None if value is None else encode(value) for value in elements]
    if not _SERIALISED.issuperset(map(type, encoded)):
        results = iter(encoded)
        with _locating(results, rows, position, operator):
            for data in results:
                if type(data) not in _SERIALISED:
                    raise not_bytes(serde, data, what)
    return encoded


def _apply(
    function: Callable[[Any], Any], column: Sequence[Any], rows: Sequence[int], position: Position, operator: str
) -> list[Any]:
    """The function of each element."""
    elements = iter(column)
    with _locating(elements, rows, position, operator):
        return [function(element) for element in elements]


@contextmanager
def _locating(elements: Iterator[Any], rows: Sequence[int], position: Position, operator: str) -> Iterator[None]:
    """Turn a failure into OperatorFailedError, with the position at the row of the element given out last.

    An iterator over a list or a tuple knows how many it has left, so nothing is counted while nothing fails.
    """
    position.elements = elements
    try:
        yield
    except BaseException as error:
        left: int = elements.__length_hint__()  # type: ignore[attr-defined]
        position.row = rows[len(rows) - left - 1]
        raise failure_in(operator, error) from error
    finally:
        position.elements = None


def is_stateless(op: OperatorSpec) -> bool:
    """Whether the operator only looks at values, so that it may be run over a column."""
    return not isinstance(op, ProcessSpec | SinkSpec)


def step_of(op: OperatorSpec) -> Step | None:
    """The stateless operator as a step; None for one that passes messages on as they are."""
    match op:
        case MapSpec():
            return _map_step(op)
        case FlatMapSpec():
            return _flat_map_step(op)
        case FilterSpec():
            return _filter_step(op)
        case PartitionBySpec():
            return _partition_by_step(op)
        case _:
            return None


def _map_step(op: MapSpec) -> Step:
    def step(columns: Columns, position: Position) -> Columns:
        values = _apply(op.function, columns.values, columns.rows, position, op.id)
        return columns._replace(values=values, value_bytes=None)

    return step


def _flat_map_step(op: FlatMapSpec) -> Step:
    def results_of(value: Any) -> list[Any]:
        return list(op.function(value))

    def step(columns: Columns, position: Position) -> Columns:
        results = _apply(results_of, columns.values, columns.rows, position, op.id)
        return Columns(
            [key for key, some in zip(columns.keys, results, strict=True) for _ in some],
            [value for some in results for value in some],
            [row for row, some in zip(columns.rows, results, strict=True) for _ in some],
            None,
            None,
        )

    return step


def _filter_step(op: FilterSpec) -> Step:
    function = op.function

    def step(columns: Columns, position: Position) -> Columns:
        elements = iter(columns.values)
        with _locating(elements, columns.rows, position, op.id):
            kept = [True if function(value) else False for value in elements]  # noqa: SIM210 - bool() is a call more
        return Columns(*(None if column is None else list(compress(column, kept)) for column in columns))  # type: ignore[arg-type]

    return step


def _partition_by_step(op: PartitionBySpec) -> Step:
    def step(columns: Columns, position: Position) -> Columns:
        keys = _apply(op.key_function, columns.values, columns.rows, position, op.id)
        return columns._replace(keys=keys, key_bytes=None)

    return step


def one_by_one(push: Push) -> End:
    """An end that takes each message by itself, with the position at its row."""

    def end(columns: Columns, position: Position) -> None:
        for position.row, key, value in zip(columns.rows, columns.keys, columns.values, strict=True):
            push(key, value)

    return end
