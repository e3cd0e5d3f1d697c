"""The pandas form: rows of a key as a DataFrame, and DataFrames as output. pandas is loaded only where it is used."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.pandas.utils import require_minimum_pandas_version
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.graph.batch_task import Emit, KeyFailed
from penstock.spark.processor.outputs import AT_ONCE, Chunks, arrow_schema
from penstock.spark.processor.values.rows import values_of

if TYPE_CHECKING:
    import pandas as pd


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
