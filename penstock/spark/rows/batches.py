"""DataFrames as streams with a schema: their rows stay in columns of Arrow, on the way in and on the way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.api.serdes import ColumnSerde, PackedColumns
from penstock.errors import ConfigError, IncompatibleError
from penstock.spark.rows.columns import times_of
from penstock.spark.rows.schemas import event_time_column, parsed_schema
from penstock.spark.versions import arrow_schema as arrow_schema_of
from penstock.system.contract.messages import ColumnChunk

_AT_ONCE = 1 << 15
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
            for start in range(0, batch.num_rows, _AT_ONCE):
                rows = batch.slice(start, _AT_ONCE)
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
