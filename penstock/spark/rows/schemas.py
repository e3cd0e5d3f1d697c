"""The columns of a DataFrame in Spark, and schemas that were given as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from penstock.errors import ConfigError

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
