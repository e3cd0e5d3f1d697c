"""The versions of Spark: what differs between them, and from which one a feature works.

PySpark and Spark have no public way to much of what is used here. Where versions differ in that, the difference is
in this file alone. `map_in_arrow` is here too: PySpark's own has needs that Penstock has not.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark import version as pyspark_version
from pyspark.serializers import Serializer
from pyspark.sql import DataFrame, types
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType, _load_from_socket

from penstock.errors import ConfigError

SPARK_VERSION: tuple[int, int] = tuple(map(int, re.findall(r"\d+", pyspark_version.__version__)[:2]))  # type: ignore[assignment]
"""The version of the PySpark that is installed."""

QUERIES = (4, 3)
"""The version from which on queries of PySpark, with processors or applications, are tested. Jobs run from 4.0 on."""

TIME_TYPES: tuple[type[types.DataType], ...] = (
    types.TimestampType,
    types.TimestampNTZType,
    types.DayTimeIntervalType,
    *filter(None, [getattr(types, "TimeType", None)]),  # from Spark 4.1 on
)
"""The types whose values are stored as numbers of a unit of time."""


def needs(version: tuple[int, int], feature: str) -> None:
    """Raise ConfigError if the installed PySpark is older than the first version that has what a feature needs.

    Args:
        version: the first version.
        feature: the feature, as the beginning of the error.
    """
    if version > SPARK_VERSION:
        needed, found = (".".join(map(str, each)) for each in (version, SPARK_VERSION))
        raise ConfigError(f"{feature} needs Spark {needed} or newer; this is Spark {found}")


def is_connect(given: object) -> bool:
    """True if a session or a DataFrame is of Spark Connect."""
    return type(given).__module__.startswith("pyspark.sql.connect.")


def needs_classic(given: object, what: str) -> None:
    """Raise ConfigError for a session or a DataFrame of Spark Connect, whose client has no driver in it.

    Args:
        given: the session or the DataFrame.
        what: the feature that it is given to, as the beginning of the error.
    """
    if is_connect(given):
        raise ConfigError(
            f"{what} runs in the driver of Spark, and this is a client of Spark Connect. Submit the program to the "
            "cluster (docs/deployment.md), with a session of the classic kind. `read_state` works with either"
        )


def read_socket(serve: Any, serializer: Serializer) -> list[Any]:
    """Everything that Spark serves on a socket, as the serializer reads it."""
    found: Any = _load_from_socket(serve, serializer)
    if hasattr(found, "__enter__"):  # not in Spark 4.0: it closes the socket
        with found as elements:
            return list(elements)
    return list(found)


def arrow_type(kind: types.DataType, timezone: str = "UTC") -> pa.DataType:
    """The type of Arrow that Spark's has.

    Args:
        kind: the type.
        timezone: of timestamps with a zone.
    """
    if _HAS_ZONES:
        return to_arrow_type(kind, timezone=timezone, prefers_large_types=False)
    return _in_zone(to_arrow_type(kind), timezone)


def arrow_schema(schema: types.StructType, timezone: str = "UTC") -> pa.Schema:
    """The schema of Arrow that Spark's has; see `arrow_type`."""
    if _HAS_ZONES:
        return to_arrow_schema(schema, timezone=timezone)
    return pa.schema([field.with_type(_in_zone(field.type, timezone)) for field in to_arrow_schema(schema)])


_HAS_ZONES = "timezone" in inspect.signature(to_arrow_schema).parameters
"""From Spark 4.2 on. Before, all timestamps are in UTC."""


def _in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    def of(field: pa.Field) -> pa.Field:
        return field.with_type(_in_zone(field.type, zone))

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, zone)
    if pa.types.is_struct(kind):
        return pa.struct([of(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(of(kind.key_field), of(kind.item_field))
    return pa.list_(of(kind.value_field)) if pa.types.is_list(kind) else kind


def plain(value: Any) -> Any:
    """The value with Python's own scalars in place of those of numpy and pandas, as PySpark's state has them."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, types.Row) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return kind(*map(plain, value))
    if isinstance(value, list | tuple):
        return kind(map(plain, value))
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    numpy: Any = sys.modules.get("numpy")  # a scalar of numpy exists only where it is imported
    if numpy is not None and isinstance(value, numpy.generic):
        return value.tolist()
    for convert in ("to_pytimedelta", "to_pydatetime"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    return value


_PLAIN = frozenset({str, int, float, bool, bytes, datetime, type(None)})


def map_in_arrow(
    rows: DataFrame,
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: str | StructType,
) -> DataFrame:
    """As `DataFrame.mapInArrow`, which refuses to start without pandas and does not use it. The client of Spark Connect
    needs pandas anyway."""
    if is_connect(rows):
        return rows.mapInArrow(function, schema)
    udf = UserDefinedFunction(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    frame: Any = rows
    mapped = frame._jdf.mapInArrow(udf(*[rows[_quoted(name)] for name in rows.columns])._jc, False, None)  # noqa: SLF001
    return DataFrame(mapped, rows.sparkSession)


def _quoted(name: str) -> str:
    """A column by its name, which may have dots."""
    return "`" + name.replace("`", "``") + "`"
