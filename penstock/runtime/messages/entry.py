"""The entry of messages into a stage: from the bytes of an input or a channel to columns, with their event times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.expressions import Expression
from penstock.api.messages import UNREADABLE, check_readable
from penstock.api.serdes import Bytes, ColumnSerde, Serde
from penstock.arrays.given import ArrowSequence
from penstock.arrays.json_rows import shown_row
from penstock.graph.serdes import Part, SerdePlace
from penstock.runtime.context import OperatorFailedError, Position, failure_in
from penstock.runtime.messages.columns import NOWHERE, MessageColumns, Raw, Target, given_last, locating, making_objects

_LONGEST = 2**62
"""Limit of an event time, in milliseconds before or after 1970, so that delays can be added."""

_INTEGERS = frozenset({int})


class StageEntry:
    """The entry of serialised messages into a stage, from an input or a channel. They go to outlets as they are, and
    decoded to operators."""

    def __init__(
        self,
        source: str,
        place: SerdePlace,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        position: Position,
        target: Target,
        raw: Sequence[Callable[[Raw, Raw, Sequence[int]], None]] = (),
        timestamp: Callable[[Any], int] | None = None,
    ) -> None:
        """`source` is the operator that they come from, named when one does not decode; `place` is the declaration of
        its serdes. `timestamp` gives the event time of a value; without it the message's own timestamp holds."""
        self._source = source
        self._place = place
        self.key_serde = key_serde
        self.value_serde = value_serde
        self._position = position
        self._target = target
        self._raw = raw
        self._timestamp = timestamp
        self.by_column = isinstance(value_serde, ColumnSerde)
        """Its values are rows of a schema, which go on in columns."""

    @property
    def source(self) -> str:
        """The operator that the messages come from."""
        return self._source

    @property
    def gives_times(self) -> bool:
        """True if it replaces the timestamps of the page, which are then in a list."""
        return self._timestamp is not None

    def received(self, keys: pa.Array, values: pa.Array) -> tuple[Raw, Raw]:
        """The columns of a packet, as they are to be run."""
        if self.by_column:
            return ArrowSequence(keys), ArrowSequence(values)
        return keys.to_pylist(), values.to_pylist()

    def value_bytes(self, one: Raw) -> bytes | None:
        """The bytes of a single value."""
        serde = self.value_serde
        if isinstance(one, ArrowSequence) and isinstance(serde, ColumnSerde):
            try:
                return serde.write(one.array)[0]
            except Exception:  # what has no JSON is no reason to lose the rest, nor to end the run
                shown: bytes | None = shown_row(one.array)
                return shown
        return one[0]

    def run(self, keys: Raw, values: Raw, first: int) -> None:
        """Send messages on their way; `first` is the page's row of the first one. Raises OperatorFailedError."""
        rows = range(first, first + len(keys))
        if self._position.page.unreadable:
            self._check_headers(rows)
        decoded = None if self._timestamp is None else self._timed(self._timestamp, values, rows)
        for add in self._raw:
            add(keys, values, rows)
        if self._target is not NOWHERE:
            if decoded is None:
                decoded = self.decoded("value", values, rows)
            with making_objects(self._source, self._position):
                self._target.accept(
                    MessageColumns(self, None, decoded, rows, keys, None if decoded is values else values)
                )

    def _check_headers(self, rows: range) -> None:
        """Raises OperatorFailedError for the first row whose headers could not be read."""
        page = self._position.page
        row = min(page.unreadable & set(rows), default=None)
        if row is None:
            return
        self._position.row = row
        if self._timestamp is not None:
            page.untimed.add(row)
        try:
            check_readable(UNREADABLE)
        except ValueError as error:
            raise failure_in(self._source, error) from error

    def _timed(self, timestamp: Callable[[Any], int], values: Raw, rows: range) -> Sequence[Any]:
        """The decoded values. Sets their event times in the page, before any operator or outlet looks there."""
        page = self._position.page
        try:
            decoded = self.decoded("value", values, rows)
            if isinstance(timestamp, Expression) and isinstance(decoded, ArrowSequence):
                page.set_times(rows.start, self._times_by_column(timestamp, decoded, rows))
                return decoded
            with making_objects(self._source, self._position):
                elements = iter(decoded)
            with locating(elements, rows, self._position, self._source):
                times = [timestamp(value) for value in elements]
            if not are_event_times(times):
                found = iter(times)
                with locating(found, rows, self._position, self._source):
                    times = [event_time(each) for each in found]
        except OperatorFailedError:
            page.untimed.add(self._position.row)
            raise
        page.set_times(rows.start, times)
        return decoded

    def _times_by_column(self, timestamp: Expression, values: ArrowSequence, rows: range) -> Any:
        """The event times that an expression gives: a point in time, or epoch milliseconds. Raises
        OperatorFailedError."""
        try:
            found = timestamp.of_batch(pa.RecordBatch.from_struct_array(values.array))
            if pa.types.is_timestamp(found.type):
                found = found.cast(pa.timestamp("ms", found.type.tz), safe=False)
            times = found.cast(pa.int64())
        except Exception as error:
            self._position.row = rows.start
            raise failure_in(self._source, error) from error
        plain: Any = times.fill_null(_LONGEST + 1).to_numpy()
        if len(plain) and (int(plain.min()) < -_LONGEST or int(plain.max()) > _LONGEST):
            number = int(np.flatnonzero((plain < -_LONGEST) | (plain > _LONGEST))[0])
            self._position.row = rows[number]
            wrong = ValueError(
                "the event time is null"
                if not times[number].is_valid
                else f"the event time is {times[number]}: epoch milliseconds are at most {_LONGEST} from 1970"
            )
            raise failure_in(self._source, wrong)
        return plain.tolist()

    def _rows(self, serde: ColumnSerde, column: Raw, rows: Sequence[int]) -> Sequence[Any]:
        """The rows in columns. Raises OperatorFailedError for the first one that does not fit the schema."""
        if isinstance(column, ArrowSequence) and pa.types.is_struct(column.array.type):
            return column
        found, problems = serde.read(column)
        if problems:
            first = min(problems)
            self._position.row = int(rows[first])
            error = self._place.unreadable("value", serde, column[first] or b"", ValueError(problems[first]))
            raise failure_in(self._source, error)
        return ArrowSequence(found)

    def decoded(self, part: Part, column: Raw, rows: Sequence[int]) -> Sequence[Any]:
        """The objects of the bytes; None stays None."""
        serde = self.key_serde if part == "key" else self.value_serde
        if type(serde) is Bytes:  # a subclass may decode
            return column
        if part == "value" and isinstance(serde, ColumnSerde):
            return self._rows(serde, column, rows)
        decode, elements = serde.from_bytes, iter(column)
        with locating(elements, rows, self._position, self._source):
            try:
                if serde.reads_headers:
                    own, page = serde.from_message, self._position.page
                    pairs = zip(elements, rows, strict=True)
                    return [None if data is None else own(data, page.headers(row)) for data, row in pairs]
                return [None if data is None else decode(data) for data in elements]
            except Exception as error:
                raise self._place.unreadable(part, serde, given_last(column, elements) or b"", error) from error


def are_event_times(found: Sequence[int]) -> bool:
    if not _INTEGERS.issuperset(map(type, found)):
        return False
    return not found or (min(found) >= -_LONGEST and max(found) <= _LONGEST)


def event_time(found: object) -> int:
    """The event time that a function of the application gave. Raises TypeError or ValueError if it is none."""
    if type(found) is not int:
        if isinstance(found, bool) or not hasattr(found, "__index__"):
            raise TypeError(f"the event time is {found!r}: expected epoch milliseconds, an int")
        found = index(found)
    if not -_LONGEST <= found <= _LONGEST:
        raise ValueError(f"the event time is {found}: epoch milliseconds are at most {_LONGEST} from 1970")
    return found
