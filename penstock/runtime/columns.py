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
from penstock.api.serdes.failures import Part, Place
from penstock.api.task import IncomingMessageEnvelope
from penstock.runtime.context import Page, Position, failure_in

_SERIALISED = frozenset({bytes, type(None)})

Push: TypeAlias = Callable[[Any, Any], None]
"""Takes one message: key and value."""


class Columns(NamedTuple):
    """Some messages. Every column has the same length."""

    keys: Sequence[Any] | None
    """None until somebody needs them: then they are decoded from `key_bytes`, which are there until then."""
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
    """One way serialised messages take into a stage: decoded, through the steps, to the end.

    Keys that no operator looks at are not decoded.
    """

    source: str
    """The operator the messages come from, named when one does not decode."""
    place: Place
    """Where its serdes are declared."""
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    steps: tuple[Step, ...]
    end: End
    steps_need_keys: bool = False
    end_needs_keys: bool = True

    def run(self, keys: Sequence[bytes | None], values: Sequence[bytes | None], first: int, position: Position) -> None:
        """Send messages on their way; `first` is the page's row of the first one. Raises OperatorFailedError."""
        rows = range(first, first + len(keys))
        columns = Columns(None, self._decoded("value", values, rows, position), rows, keys, values)
        if self.steps_need_keys:
            columns = self._with_keys(columns, position)
        for step in self.steps:
            columns = step(columns, position)
        if self.end_needs_keys:
            columns = self._with_keys(columns, position)
        self.end(columns, position)

    def _with_keys(self, columns: Columns, position: Position) -> Columns:
        if columns.keys is not None or columns.key_bytes is None:
            return columns
        return columns._replace(keys=self._decoded("key", columns.key_bytes, columns.rows, position))

    def _decoded(
        self, part: Part, column: Sequence[bytes | None], rows: Sequence[int], position: Position
    ) -> Sequence[Any]:
        """The objects of the bytes; None stays None."""
        serde = self.key_serde if part == "key" else self.value_serde
        if type(serde) is Bytes:  # a subclass may decode
            return column
        decode, elements = serde.from_bytes, iter(column)
        with _locating(elements, rows, position, self.source):
            try:
                return [None if data is None else decode(data) for data in elements]
            except Exception as error:
                raise self.place.unreadable(part, serde, _given_last(column, elements) or b"", error) from error


def encode_column(
    part: Part,
    serde: Serde[Any],
    column: Sequence[Any] | None,
    rows: Sequence[int],
    position: Position,
    operator: str,
    place: Place,
) -> Sequence[bytes | None]:
    """The bytes of the objects; None stays None."""
    if column is None:
        raise ValueError(f"the {part}s at {place.name} were not decoded")
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


def _apply(
    function: Callable[[Any], Any], column: Sequence[Any], rows: Sequence[int], position: Position, operator: str
) -> list[Any]:
    """The function of each element."""
    elements = iter(column)
    with _locating(elements, rows, position, operator):
        return [function(element) for element in elements]


def _given_last(column: Sequence[Any], elements: Iterator[Any]) -> Any:
    """The element that an iterator over the column gave out last."""
    left: int = elements.__length_hint__()  # type: ignore[attr-defined]
    return column[len(column) - left - 1]


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


def envelope_of(key: Any, value: Any, page: Page, row: int) -> IncomingMessageEnvelope:
    """A message as the application sees it. As the NamedTuple's own constructor, without its Python frame."""
    return tuple.__new__(IncomingMessageEnvelope, (key, value, page, row))


def _given(whole: bool, columns: Columns, position: Position) -> Sequence[Any]:
    """What an operator's function gets: values, or envelopes."""
    if not whole:
        return columns.values
    if columns.keys is None:
        raise ValueError("the keys were not decoded")
    page = position.page
    return [
        envelope_of(key, value, page, row)
        for key, value, row in zip(columns.keys, columns.values, columns.rows, strict=True)
    ]


def needs_keys(op: OperatorSpec) -> bool:
    """Whether a stateless operator looks at keys."""
    return isinstance(op, MapSpec | FlatMapSpec | FilterSpec | PartitionBySpec) and op.envelope


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
        values = _apply(op.function, _given(op.envelope, columns, position), columns.rows, position, op.id)
        return columns._replace(values=values, value_bytes=None)

    return step


def _flat_map_step(op: FlatMapSpec) -> Step:
    def results_of(value: Any) -> list[Any]:
        return list(op.function(value))

    def step(columns: Columns, position: Position) -> Columns:
        results = _apply(results_of, _given(op.envelope, columns, position), columns.rows, position, op.id)
        return Columns(
            _repeated(columns.keys, results),
            [value for some in results for value in some],
            [row for row, some in zip(columns.rows, results, strict=True) for _ in some],
            _repeated(columns.key_bytes, results),
            None,
        )

    return step


def _repeated(column: Sequence[Any] | None, results: Sequence[Sequence[Any]]) -> Sequence[Any] | None:
    return None if column is None else [each for each, some in zip(column, results, strict=True) for _ in some]


def _filter_step(op: FilterSpec) -> Step:
    function = op.function

    def step(columns: Columns, position: Position) -> Columns:
        elements = iter(_given(op.envelope, columns, position))
        with _locating(elements, columns.rows, position, op.id):
            kept = [True if function(value) else False for value in elements]  # noqa: SIM210 - bool() is a call more
        return Columns(*(None if column is None else list(compress(column, kept)) for column in columns))  # type: ignore[arg-type]

    return step


def _partition_by_step(op: PartitionBySpec) -> Step:
    def step(columns: Columns, position: Position) -> Columns:
        keys = _apply(op.key_function, _given(op.envelope, columns, position), columns.rows, position, op.id)
        return columns._replace(keys=keys, key_bytes=None)

    return step


def one_by_one(push: Push) -> End:
    """An end that takes each message by itself, with the position at its row."""

    def end(columns: Columns, position: Position) -> None:
        if columns.keys is None:
            raise ValueError("the keys were not decoded")
        for position.row, key, value in zip(columns.rows, columns.keys, columns.values, strict=True):
            push(key, value)

    return end
