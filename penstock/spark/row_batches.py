"""Rows of DataFrames in columns of Arrow, on the way in and on the way out.

As the values of messages, all rows of a column are converted at once. A stream with a schema keeps its rows in
columns. On their way to the task that owns their key, rows are in chunks, each a single message. The columns of a
DataFrame in Spark, and schemas that were given as text, are read here too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (PySpark's name)
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, UserDefinedType

from penstock.api.serdes import ColumnSerde, PackedColumns
from penstock.base.retry import SYSTEM_CLOCK
from penstock.errors import ConfigError, IncompatibleError
from penstock.runtime.messages.packet import read_batch
from penstock.spark.processor.codec import RowCodec
from penstock.spark.processor.fields import FixedField, KeyCodec, chunk, field_of
from penstock.spark.row_serde import in_utc
from penstock.spark.versions import arrow_schema as arrow_schema_of
from penstock.system.contract.messages import ColumnChunk, RawMessage
from penstock.system.partitioner import partitions_of

_AT_ONCE = 4096
"""Rows that become messages, or columns, together."""
_Elements: TypeAlias = Sequence[Any]


@dataclass(frozen=True, slots=True)
class RowsReader:
    """Makes a message of each row."""

    schema: StructType
    event_time: str | None = None
    """The column with the event time; None: the time of a row is when it is read."""

    def read(self, batches: Iterable[pa.RecordBatch], offset: int, tasks: int) -> Iterator[list[RawMessage]]:
        encoder = ColumnEncoder(self.schema)
        for batch in batches:
            for start in range(0, batch.num_rows, _AT_ONCE):
                rows = batch.slice(start, _AT_ONCE)
                times = times_of(rows, self.event_time).tolist()
                yield list(zip(repeat(offset), times, repeat(None), encoder.encode(rows)))


def times_of(rows: pa.RecordBatch, event_time: str | None) -> npt.NDArray[np.int64]:
    """The times of the rows, in epoch milliseconds: those in the column of this name, or without one the present. A
    null counts as 1970."""
    if event_time is None:
        return np.full(rows.num_rows, SYSTEM_CLOCK.now_ms(), np.int64)
    times: Any = rows.column(rows.schema.get_field_index(event_time))
    if pa.types.is_struct(times.type):
        times = pc.struct_field(times, "end")
    micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).fill_null(0)
    found: npt.NDArray[np.int64] = micros.to_numpy(zero_copy_only=False) // 1000
    return found


@dataclass(frozen=True, slots=True)
class RowsWriter:
    """Makes rows of messages."""

    schema: StructType

    def write(self, values: Sequence[bytes | None], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        decode = RowCodec(in_utc(self.schema), "row").decode
        for start in range(0, len(values), _AT_ONCE):
            rows = [decode(value) for value in values[start : start + _AT_ONCE] if value is not None]
            columns = zip(*rows, strict=True) if rows else [()] * len(schema)
            arrays = [
                _array(list(column), field, known.type)
                for column, field, known in zip(columns, self.schema.fields, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: list[Any], field: StructField, kind: pa.DataType) -> pa.Array:
    if not values or not isinstance(field.dataType, StructType | ArrayType | MapType | UserDefinedType):
        return pa.array(values, kind)
    one = StructType([StructField("value", field.dataType, field.nullable)])
    table = LocalDataToArrowConversion.convert([(value,) for value in values], one, False)
    return table.column(0).combine_chunks().cast(kind)


class ColumnEncoder:
    """Encodes the rows of a batch as `RowCodec.encode` does each of them."""

    def __init__(self, schema: StructType) -> None:
        kinds = [_stored(field.dataType) for field in schema.fields]
        self._fields = [field_of(kind, f"row.{name}") for kind, name in zip(kinds, schema.names, strict=True)]
        self._null_bytes = (len(kinds) + 7) // 8
        codes = "".join(field.code if isinstance(field, FixedField) else "I" for field in self._fields)
        self._pack = struct.Struct(f"<H{self._null_bytes}s{codes}").pack

    def encode(self, rows: pa.RecordBatch) -> Sequence[bytes]:
        fixed, varying = list[_Elements](), list[_Elements]()
        for column, field in zip(rows.columns, self._fields, strict=True):
            if isinstance(field, FixedField):
                fixed.append(_numbers(column, field))
            else:
                data = _bytes(column, field.to)
                fixed.append([*map(len, data)])
                varying.append(data)
        heads = map(self._pack, repeat(len(self._fields), rows.num_rows), self._nulls(rows), *fixed)
        return list(map(b"".join, zip(heads, *varying, strict=True)) if varying else heads)

    def _nulls(self, rows: pa.RecordBatch) -> Iterable[bytes]:
        size = self._null_bytes
        if not any(column.null_count for column in rows.columns):
            return repeat(bytes(size), rows.num_rows)
        bits = np.zeros((rows.num_rows, 8 * size), bool)
        for number, column in enumerate(rows.columns):
            bits[:, number] = column.is_null().to_numpy(zero_copy_only=False)
        packed = np.packbits(bits, axis=1, bitorder="little").tobytes()
        return [packed[at : at + size] for at in range(0, len(packed), size)]


def _stored(kind: DataType) -> DataType:
    """The type of the values in Arrow: a user's type is not serialized a second time."""
    match kind:
        case UserDefinedType():
            return _stored(kind.sqlType())
        case ArrayType():
            return ArrayType(_stored(kind.elementType), kind.containsNull)
        case MapType():
            return MapType(_stored(kind.keyType), _stored(kind.valueType), kind.valueContainsNull)
        case StructType():
            return StructType([StructField(field.name, _stored(field.dataType)) for field in kind.fields])
    return kind


_AS_NUMBERS = (
    (pa.types.is_date32, pa.int32()),
    (pa.types.is_timestamp, pa.int64()),
    (pa.types.is_time64, pa.int64()),
    (pa.types.is_duration, pa.int64()),
)


def _numbers(column: Any, field: FixedField) -> _Elements:
    kind = column.type
    for is_one, number in _AS_NUMBERS:
        if is_one(kind):
            column = column.cast(number)
    if pa.types.is_boolean(column.type):
        flags: list[Any] = column.fill_null(False).to_pylist()
        return flags
    found: list[Any] = column.fill_null(0).to_numpy(zero_copy_only=False).tolist()
    return found


def _bytes(column: Any, to: Any) -> Sequence[bytes]:
    kind = column.type
    if any(is_one(kind) for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)):
        found: list[bytes] = column.cast(pa.binary()).fill_null(b"").to_pylist()
        return found
    return [b"" if value is None else to(value) for value in column.to_pylist()]


_WATERMARK = "spark.watermarkDelayMs"


def event_time_columns(schema: StructType) -> list[StructField]:
    return [field for field in schema.fields if _WATERMARK in (field.metadata or {})]


def event_time_column(schema: StructType) -> StructField | None:
    return next(iter(event_time_columns(schema)), None)


def delay_ms(column: StructField) -> int:
    """The delay of a column's watermark behind its highest event time, in milliseconds."""
    return int(column.metadata[_WATERMARK])


def parsed_schema(ddl: str, what: str) -> StructType:
    """A schema of DDL text. Raises ConfigError, which begins with `what`, if it is none."""
    try:
        found = StructType.fromDDL(ddl)
    except Exception as error:
        raise ConfigError(f"{what}: Spark cannot read this schema: {str(error).strip().splitlines()[0]}") from error
    if not isinstance(found, StructType):
        raise ConfigError(f"{what} is the type of a value, not a schema with named columns")
    return found


def operators(df: DataFrame) -> Iterator[str]:
    waiting: list[Any] = [df._jdf.queryExecution().analyzed()]  # noqa: SLF001
    while waiting:
        node = waiting.pop()
        yield node.nodeName()
        children = node.children()
        waiting += [children.apply(number) for number in range(children.size())]


_CHUNK_ROWS = 1 << 15
"""Rows that become a chunk together."""


def arrow_schema(rows: DataFrame | StructType | str) -> pa.Schema:
    """The columns of a DataFrame as a schema of Arrow, for `ps.Columns`.

    Args:
        rows: a DataFrame, the schema of one, or such a schema as DDL.

    Raises:
        ConfigError: Spark cannot read the DDL, or sends one of the types in no columns.

    Example:
        >>> from pyspark.sql.types import LongType, StringType, StructType
        >>> pss.arrow_schema(StructType().add("user", StringType()).add("n", LongType())).names
        ['user', 'n']
    """
    schema = rows.schema if isinstance(rows, DataFrame) else rows
    if isinstance(schema, str):
        schema = parsed_schema(schema, f"arrow_schema({schema!r})")
    try:
        return arrow_schema_of(schema)
    except Exception as error:
        raise ConfigError(f"arrow_schema(): {str(error).splitlines()[0]}. Cast the column, or leave it out") from error


@dataclass(frozen=True, slots=True)
class ColumnsReader:
    """Makes messages of rows without an object for each."""

    stream: str
    serde: ColumnSerde
    event_time: str | None = None
    """The column with the event time; None: the time of a row is when it is read."""

    def read(self, batches: Iterable[pa.RecordBatch], offset: int, tasks: int) -> Iterator[ColumnChunk]:
        """See `FrameReader.read`. Raises IncompatibleError for a value that does not fit its column."""
        for batch in batches:
            for start in range(0, batch.num_rows, _CHUNK_ROWS):
                rows = batch.slice(start, _CHUNK_ROWS)
                try:
                    values = self.serde.fitted(rows.select(self.serde.schema.names))
                except ValueError as error:
                    raise IncompatibleError(f"the DataFrame of `{self.stream}`: {error}") from error
                offsets, keys = np.full(len(values), offset, np.int64), pa.nulls(len(values), pa.binary())
                yield ColumnChunk(offsets, times_of(rows, self.event_time), keys, values)


@dataclass(frozen=True, slots=True)
class ColumnsWriter:
    """Makes rows of packed values, all of an object at once."""

    serde: PackedColumns

    def write(self, values: Sequence[bytes | None], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See `RowWriter.write`."""
        rows, _ = self.serde.read([value for value in values if value is not None])
        columns = [column.cast(field.type) for column, field in zip(rows.flatten(), schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def needed(frame: DataFrame, stream: str, serde: ColumnSerde) -> DataFrame:
    """The DataFrame with the columns of the serde and the one with the event time: Spark reads no others.

    Raises:
        ConfigError: a column is missing, or has a type that does not fit.
    """
    names = serde.schema.names
    if missing := [name for name in names if name not in frame.columns]:
        kind = serde.schema.field(missing[0]).type
        raise ConfigError(
            f"the DataFrame of `{stream}` has no column `{missing[0]}`, which is declared as {kind}; it has "
            f"{', '.join(frame.columns)}"
        )
    event_time = event_time_column(frame.schema)
    own = [] if event_time is None or event_time.name in names else [event_time.name]
    chosen = frame.select(*("`" + name.replace("`", "``") + "`" for name in (*names, *own)))
    try:
        serde.fitted(pa.RecordBatch.from_pylist([], arrow_schema(chosen)).select(names))
    except ValueError as error:
        raise ConfigError(f"the DataFrame of `{stream}`: {error}") from error
    return chosen


def spark_schema(stream: str, serde: ColumnSerde) -> StructType:
    """The columns of an output as Spark has them. Raises ConfigError for a type that Spark does not have."""
    for field in serde.schema:
        try:
            from_arrow_schema(pa.schema([field]))
            if "[ns" in str(field.type):
                raise ValueError("Spark counts time in microseconds")
        except Exception as error:
            raise ConfigError(
                f"output `{stream}`, column `{field.name}` of type {field.type}: {str(error).splitlines()[0]}. "
                "Declare another type"
            ) from error
    return from_arrow_schema(serde.schema)


_ROW, _INITIAL = "penstock.row", "penstock.initial"
_ROWS = 32_768
"""Rows that are split together: of fewer, each task would get very small chunks."""


@dataclass(frozen=True, slots=True)
class ChunkReader:
    """Splits rows by the task of their key."""

    key: StructType
    event_time: str | None = None
    """The column with the event time; None: there is none."""

    def read(self, batches: Iterable[pa.RecordBatch], offset: int, tasks: int) -> Iterator[list[RawMessage]]:
        codec = KeyCodec(self.key)
        for found in _gathered(batches):
            for rows, initial in _told_apart(found):
                keys = codec.encode_columns(rows)
                yield [
                    (offset, self._time(part, initial), keys[first].as_py(), chunk(part, initial=initial))
                    for first, part in _parted(rows, partitions_of(keys, tasks))
                ]

    def _time(self, rows: pa.RecordBatch, initial: bool) -> int:
        """The highest event time of the rows, in epoch milliseconds."""
        if self.event_time is None or initial:
            return 0
        times: Any = rows.column(rows.schema.get_field_index(self.event_time))
        if pa.types.is_struct(times.type):
            times = pc.struct_field(times, "end")
        micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
        return (pc.max(micros).as_py() or 0) // 1000


def with_initial(rows: DataFrame, initial: DataFrame) -> DataFrame:
    """The rows of a batch and the initial state as one DataFrame, for `ChunkReader`. Each has its own schema."""
    columns = (_ROW, _INITIAL)
    kinds = [StructType(rows.schema.fields), StructType(initial.schema.fields)]
    made = []
    for own, frame in enumerate((rows, initial)):
        whole = F.struct(*(frame[_quoted(name)] for name in frame.columns))
        made.append(
            frame.select(
                *(
                    (whole if at == own else F.lit(None).cast(kind)).alias(column)
                    for at, (column, kind) in enumerate(zip(columns, kinds, strict=True))
                )
            )
        )
    return made[0].unionAll(made[1])


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _told_apart(rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Rows of `with_initial`, separated; the flag is True for initial state. Other rows are unchanged."""
    if rows.schema.names != [_ROW, _INITIAL]:
        yield rows, False
        return
    for number in (1, 0):
        column: Any = rows.column(number)
        own = column.filter(column.is_valid())
        if len(own):
            yield pa.RecordBatch.from_struct_array(own), number == 1


@dataclass(frozen=True, slots=True)
class ChunkWriter:
    """Takes rows out of chunks."""

    def write(self, values: Sequence[bytes | None], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for data in values:
            yield read_batch(data or b"", schema)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
        if rows >= _ROWS:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)


def _parted(rows: pa.RecordBatch, targets: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each task, in the order in which they came, with the index of the first one."""
    order = np.argsort(targets, kind="stable")
    ordered = rows.take(pa.array(order))
    ends = np.flatnonzero(np.diff(targets[order], append=-1)) + 1
    start = 0
    for end in ends.tolist():
        yield int(order[start]), ordered.slice(start, end - start)
        start = end
