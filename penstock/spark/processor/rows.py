"""The rows that a processor gets and gives; and the pandas form, rows of a key as a DataFrame, and DataFrames as
output. pandas is loaded only where it is used.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.pandas.utils import require_minimum_pandas_version
from pyspark.sql.types import ArrayType, DataType, MapType, Row, StructType

from penstock.errors import ConfigError
from penstock.graph.specs.code import Emit, KeyFailed
from penstock.spark.processor.fields import RowGroups, chunk
from penstock.spark.versions import arrow_type

if TYPE_CHECKING:
    import pandas as pd


_FIRST_DAY, _LAST_DAY = (date(1, 1, 1) - date(1970, 1, 1)).days, (date(9999, 12, 31) - date(1970, 1, 1)).days
_UTC = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z")
_BLOCK_ROWS = 2_048
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
            last = min(end, max(first + 1, bisect_right(ends, begin + _BLOCK_ROWS)))
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


CHUNK = 32_768
"""Rows of a chunk, approximately."""
AT_ONCE = 2_048
"""Rows that become columns at once, approximately: Python's garbage collector then has little to look through."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of output rows: PySpark's own for the row form."""
    return pa.schema(list(arrow_type(schema)))


class Chunks:
    """Joins columns until they are worth a message."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        if self._rows >= CHUNK:
            self.flush()

    def flush(self) -> None:
        batches, self._batches, self._rows = self._batches, [], 0
        if batches:
            self._emit(None, chunk(pa.concat_batches(batches)))


class RowOutput:
    """Rows that a processor returned, sent on as columns."""

    def __init__(self, schema: StructType, emit: Emit) -> None:
        self._schema = arrow_schema(schema)
        self._names = tuple(schema.names)
        self._is_nested = any(_is_nested(field.dataType) for field in schema.fields)
        self._rows: list[Any] = []
        self._chunks = Chunks(emit)
        self._calls: list[tuple[int, Any, str]] = []
        """For each call that returned rows: number of rows before it, key, name of the method."""

    def add(self, key: Any, called: str, rows: Iterable[Row]) -> None:
        """Take the result of a call for a key. It is read now."""
        found = self._rows
        before = len(found)
        try:
            found.extend(rows)
        finally:
            if len(found) > before:
                self._calls.append((before, key, called))
        if len(found) >= AT_ONCE:
            self._convert()

    def flush(self) -> None:
        """Send the remaining rows. Raises KeyFailed for a row that does not fit the schema."""
        self._convert()
        self._chunks.flush()

    def _convert(self) -> None:
        rows, self._rows = self._rows, []
        calls, self._calls = self._calls, []
        if not rows:
            return
        try:
            batch = self._batch(rows)
        except Exception as error:
            failed = self._blamed(rows, calls, error)
            raise failed from failed.__cause__
        self._chunks.add(batch)

    def _batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        if not self._is_nested and _have_fields(rows, self._names):
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return pa.RecordBatch.from_pylist([row.asDict(True) for row in rows], schema=self._schema)

    def _blamed(self, rows: Sequence[Row], calls: Sequence[tuple[int, Any, str]], error: Exception) -> Exception:
        ends = [*(before for before, _, _ in calls[1:]), len(rows)]
        for (before, key, called), end in zip(calls, ends, strict=True):
            try:
                self._batch(rows[before:end])
            except Exception as found:
                failed = KeyFailed(key, f"the rows that {called} returned")
                failed.__cause__ = _misfit(found)
                return failed
        return error


def _misfit(error: Exception) -> Exception:
    if isinstance(error, AttributeError) and "asDict" in str(error):
        return TypeError(f"a processor returns pyspark.sql.Row objects ({error})")
    return error


def _have_fields(rows: Sequence[Any], names: tuple[str, ...]) -> bool:
    """True if all rows have exactly these fields, in this order."""
    if not all(issubclass(kind, Row) for kind in set(map(type, rows))):
        return False
    fields = [*map(getattr, rows, repeat("__fields__"), repeat(None))]  # lists, or Rows, which are tuples
    known = fields.count(list(names)) or fields.count(names)
    return known == [*map(len, rows)].count(len(names)) == len(rows)


def _is_nested(kind: DataType) -> bool:
    return isinstance(kind, StructType | ArrayType | MapType)


_AS_BY_DEFAULT = {"safecheck": False}


def check_pandas() -> None:
    """Raise ConfigError if this Python has no pandas, or one that PySpark cannot use."""
    try:
        require_minimum_pandas_version()
    except ImportError as error:
        raise ConfigError(
            f'form="pandas" needs pandas, on the driver and on executors. In {sys.executable}: {error} Install it '
            "there: pip install pandas"
        ) from None


class KeyFrames:
    """The rows of several keys. Those of each are taken as a DataFrame with the types that PySpark's worker gives
    them."""

    def __init__(self, rows: pa.RecordBatch, ends: Sequence[int], timezone: str) -> None:
        """`ends`: for each key, the index behind its last row. `timezone`: the session's. Times are in it, without a
        zone."""
        import pandas as pd
        from pyspark.sql.conversion import ArrowBatchTransformer  # from Spark 4.2 on

        columns = ArrowBatchTransformer.to_pandas(rows, timezone=timezone, prefer_int_ext_dtype=False)
        found = pd.concat(columns, axis=1)
        found.columns = _names(list(found.columns))
        whole = found.astype({name: wide for name in found.columns if (wide := _wide(found[name].dtype))})
        self._booleans = [
            name
            for name, kind in zip(found.columns, rows.schema.types, strict=True)
            if pa.types.is_boolean(kind) and found[name].dtype == object
        ]
        """Columns of booleans with a null somewhere: they are objects, which a slice without nulls must not have."""
        starts, sizes = [0, *ends[:-1]], np.diff(ends, prepend=0)
        # To group costs a quarter of what it costs to slice.
        grouped = whole.groupby(np.repeat(np.arange(len(ends)), sizes), sort=False)
        self._by_start = {start: frame for start, (_, frame) in zip(starts, grouped, strict=True)}

    def __getitem__(self, place: slice) -> tuple[pd.DataFrame]:
        import pandas as pd

        found = self._by_start.pop(place.start)
        found.index = pd.RangeIndex(len(found))
        for name in self._booleans:
            if found[name].notna().all():
                found[name] = found[name].astype(bool)
        return (found,)


def key_values(column: pa.Array) -> list[Any]:
    """The values of a column of the key: times are those of DataFrames, without their zone."""
    found = values_of(column)
    if not pa.types.is_timestamp(column.type):
        return found
    import pandas as pd

    return [None if each is None else pd.Timestamp(each.replace(tzinfo=None)) for each in found]


def _names(columns: list[str]) -> Sequence[str]:
    """The names of columns once their rows have been named tuples, as in PySpark's worker."""
    made: Any = namedtuple("Names", columns, rename=True)  # type: ignore[misc]
    found: Sequence[str] = made._fields
    return found


def _wide(kind: Any) -> str | None:
    """The type of a numeric column once its rows have been objects of Python."""
    if kind.kind == "i" and kind.itemsize < 8:
        return "int64"
    return "float64" if kind.kind == "f" and kind.itemsize < 8 else None


class FrameOutput:
    """DataFrames that a processor returned, sent on as columns."""

    def __init__(
        self, schema: StructType, emit: Emit, timezone: str, casts: Mapping[str, bool] = _AS_BY_DEFAULT
    ) -> None:
        """`casts`: PySpark's options of the conversion, by argument."""
        self._casts = casts
        self._schema, self._arrow = schema, arrow_schema(schema)
        self._timezone = timezone
        self._chunks = Chunks(emit)
        self._frames: list[tuple[Any, str, pd.DataFrame]] = []
        self._rows = 0

    def add(self, key: Any, called: str, frames: Iterable[Any]) -> None:
        """Take the result of a call for a key. It is read now."""
        import pandas as pd

        for frame in frames:
            if not isinstance(frame, pd.DataFrame):
                raise PySparkValueError(
                    "Invalid return type. Please make sure that the UDF returns a "
                    "pandas.DataFrame when the specified return type is StructType."
                )
            if len(frame):
                self._frames.append((key, called, frame))
                self._rows += len(frame)
        if self._rows >= AT_ONCE:
            self._convert()

    def flush(self) -> None:
        """Send the remaining rows. Raises KeyFailed for a DataFrame that does not fit the schema."""
        self._convert()
        self._chunks.flush()

    def _convert(self) -> None:
        frames, self._frames, self._rows = self._frames, [], 0
        parts = [_Part(*each) for each in frames]
        for _, alike in groupby(parts, lambda part: part.shape):
            some = list(alike)
            try:
                batch = self._batch(_joined(some))
            except Exception:
                self._blame(some)
                raise
            self._chunks.add(batch)

    def _batch(self, frame: pd.DataFrame) -> pa.RecordBatch:
        from pyspark.sql.conversion import PandasToArrowConversion

        batch = PandasToArrowConversion.convert(
            frame,
            self._schema,
            timezone=self._timezone,
            arrow_cast=True,
            assign_cols_by_name=True,
            **self._casts,
        )
        return batch.cast(self._arrow)

    def _blame(self, parts: Sequence[_Part]) -> None:
        for part in parts:
            try:
                self._batch(part.frame)
            except Exception as error:
                raise KeyFailed(part.key, f"the rows that {part.called} returned") from error


class _Part:
    """A DataFrame that a call for a key returned."""

    __slots__ = ("arrays", "called", "frame", "key", "shape")

    def __init__(self, key: Any, called: str, frame: pd.DataFrame) -> None:
        self.key, self.called, self.frame = key, called, frame
        self.arrays = [*frame._iter_column_arrays()]  # noqa: SLF001 - a Series takes 15 us
        self.shape = (*frame.columns, *[array.dtype for array in self.arrays])


def _joined(parts: Sequence[_Part]) -> pd.DataFrame:
    """The rows of DataFrames with equal labels and types. `pd.concat` takes five times as long for many small ones."""
    import pandas as pd

    columns = [
        np.concatenate(arrays)
        if isinstance(arrays[0], np.ndarray)
        else pd.concat([pd.Series(array) for array in arrays], ignore_index=True)
        for arrays in zip(*(part.arrays for part in parts), strict=True)
    ]
    made = pd.DataFrame(dict(enumerate(columns)))
    made.columns = parts[0].frame.columns
    return made
