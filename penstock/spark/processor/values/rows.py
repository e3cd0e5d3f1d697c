"""Columns of Arrow as PySpark's rows, with the values that PySpark's worker makes of them."""

from __future__ import annotations

from bisect import bisect_right
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from itertools import repeat
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import Row

from penstock.spark.processor.groups import RowGroups

_FIRST_DAY, _LAST_DAY = (date(1, 1, 1) - date(1970, 1, 1)).days, (date(9999, 12, 31) - date(1970, 1, 1)).days
_UTC = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z")
AT_ONCE = 2_048
"""Rows of a block, approximately."""


def values_of(column: pa.Array) -> list[Any]:
    """The values of a column, each as its `as_py`."""
    if column.null_count == 0 and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        found: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return found
    if column.null_count == 0 and (times := _times_of(column)) is not None:
        return times
    values: list[Any] = column.to_pylist()
    return values


def _times_of(column: pa.Array) -> list[Any] | None:
    """The values of a column of dates or of times, each as its `as_py`, which takes several microseconds for one. None
    for any other column, and where Python has no such time."""
    kind = column.type
    if pa.types.is_date32(kind):
        days = column.cast(pa.int32()).to_numpy()
        return days.astype("datetime64[D]").tolist() if _in_years(days, 1) else None
    if not pa.types.is_timestamp(kind) or kind.unit != "us" or not len(column):
        return None
    micros = column.cast(pa.int64()).to_numpy()
    if not _in_years(micros, 86_400_000_000):
        return None
    zone = column[0].as_py().tzinfo
    if zone is None:
        found: list[Any] = micros.astype("datetime64[us]").tolist()
        return found
    deltas = micros.astype("timedelta64[us]").tolist()
    if kind.tz in _UTC:
        # Adding to it takes a sixth of what it takes to give a zone to each time.
        epoch = datetime(1970, 1, 1, tzinfo=zone)
        return [epoch + since for since in deltas]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    try:
        return [(epoch + since).astimezone(zone) for since in deltas]
    except OverflowError:  # the first or the last day that Python has
        return None


def _in_years(numbers: Any, per_day: int) -> bool:
    """True if these numbers, counted from 1970, are in the years 1 to 9999."""
    return not len(numbers) or (_FIRST_DAY * per_day <= numbers.min() and numbers.max() < _LAST_DAY * per_day)


@lru_cache(64)
def row_class(names: tuple[str, ...]) -> type[Row]:
    """A Row that knows its fields by its class: making one costs no more than a tuple, and a field is found at once."""
    known: dict[str, Any] = {"__fields__": list(names), "__module__": Row.__module__, "__qualname__": "Row"}
    getters = namedtuple("getters", [f"f{number}" for number in range(len(names))])  # type: ignore[misc]
    for number, name in reversed(list(enumerate(names))):
        if not hasattr(Row, name):
            known[name] = getters.__dict__[f"f{number}"]  # it passes by Row's own __getitem__, which is slow
    return type("Row", (Row,), known)


def as_rows(batch: pa.RecordBatch, made: type[Row]) -> list[Row]:
    if batch.num_columns == 0:
        return [tuple.__new__(made) for _ in range(batch.num_rows)]
    columns = zip(*map(values_of, batch.columns), strict=True)
    return list(map(tuple.__new__, repeat(made), columns))


MakeRows: TypeAlias = Callable[[pa.RecordBatch, Sequence[int]], Any]
"""Makes an object of the rows of several keys and of the end of each; slices of it are the rows of one key."""


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of several keys."""

    encoded: Sequence[bytes]
    keys: Sequence[tuple[Any, ...]]
    """As a processor gets them."""
    starts: Sequence[int]
    ends: Sequence[int]
    rows: Any
    """Rows, or one DataFrame. A processor gets slices of it."""

    def each(self) -> Iterator[tuple[bytes, tuple[Any, ...], int, int]]:
        """For each key: its bytes, its form for processors, and the begin and end of its rows."""
        return zip(self.encoded, self.keys, self.starts, self.ends, strict=True)


class KeyedRows:
    """The rows of a batch by key. They become objects block by block: most of them never live at the same time, and
    Python's garbage collector has little to look through."""

    def __init__(
        self,
        groups: RowGroups,
        names: Sequence[str],
        made: MakeRows,
        key_values: Callable[[pa.Array], list[Any]] = values_of,
    ) -> None:
        """
        Args:
            groups: the rows.
            names: the columns of the key.
            made: makes the rows of a block.
            key_values: converts a column of the key.
        """
        self._groups, self._made, self._key_values = groups, made, key_values
        self._columns = [groups.rows.schema.get_field_index(name) for name in names]
        self.encoded = groups.keys

    def blocks(self, first: int = 0, end: int | None = None) -> Iterator[Block]:
        ends = self._groups.ends
        end = len(ends) if end is None else end
        while first < end:
            begin = ends[first - 1] if first else 0
            last = min(end, max(first + 1, bisect_right(ends, begin + AT_ONCE)))
            yield self._block(first, last, begin)
            first = last

    def _block(self, first: int, last: int, begin: int) -> Block:
        groups = self._groups
        ends = [end - begin for end in groups.ends[first:last]]
        starts = [0, *ends[:-1]]
        rows = groups.rows.slice(begin, ends[-1])
        some = pa.array(starts, pa.int64())
        keys = zip(*(self._key_values(rows.column(number).take(some)) for number in self._columns), strict=True)
        return Block(groups.keys[first:last], list(keys), starts, ends, self._made(rows, ends))
