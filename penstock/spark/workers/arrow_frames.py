"""DataFrames that Python workers make, as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from penstock.spark.versions import is_connect


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
