"""The pandas form: rows of a key as a DataFrame, and DataFrames as output. pandas is loaded only where it is used."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.types import StructType

from penstock.api.batch_task import Emit, KeyFailed
from penstock.spark.processor.outputs import AT_ONCE, Chunks, arrow_schema

if TYPE_CHECKING:
    import pandas as pd


class Frames:
    """The rows of a batch, of which slices are taken as DataFrames with the types that PySpark's worker gives them."""

    def __init__(self, rows: pa.RecordBatch, timezone: str) -> None:
        """`timezone` is the session's: times are without a zone, in this one."""
        import pandas as pd

        columns = ArrowBatchTransformer.to_pandas(rows, timezone=timezone, prefer_int_ext_dtype=False)
        found = pd.concat(columns, axis=1)
        found.columns = _names(list(found.columns))
        self._whole = found.astype({name: wide for name in found.columns if (wide := _wide(found[name].dtype))})
        self._booleans = [
            name
            for name, kind in zip(found.columns, rows.schema.types, strict=True)
            if pa.types.is_boolean(kind) and found[name].dtype == object
        ]
        """Those that have nulls somewhere: a slice without any has no objects."""

    def __getitem__(self, place: slice) -> tuple[pd.DataFrame]:
        found = self._whole.iloc[place].reset_index(drop=True)
        for name in self._booleans:
            if found[name].notna().all():
                found[name] = found[name].astype(bool)
        return (found,)


def _names(columns: list[str]) -> Sequence[str]:
    """The names of columns once their rows have been named tuples, as in PySpark's worker."""
    made: Any = namedtuple("Names", columns, rename=True)  # type: ignore[misc]
    found: Sequence[str] = made._fields
    return found


def _wide(kind: Any) -> str | None:
    """What a column of numbers becomes once its rows have been objects of Python."""
    if kind.kind == "i" and kind.itemsize < 8:
        return "int64"
    return "float64" if kind.kind == "f" and kind.itemsize < 8 else None


class FrameOutput:
    """DataFrames that a processor returned, which leave as columns."""

    def __init__(self, schema: StructType, emit: Emit, timezone: str) -> None:
        self._schema, self._arrow = schema, arrow_schema(schema)
        self._timezone = timezone
        self._chunks = Chunks(emit)
        self._frames: list[tuple[Any, str, pd.DataFrame]] = []
        self._rows = 0

    def add(self, key: Any, called: str, frames: Iterable[Any]) -> None:
        """What a call for a key returned, which is read now."""
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
        """Send on what there is. Raises KeyFailed for a DataFrame that does not fit the schema."""
        self._convert()
        self._chunks.flush()

    def _convert(self) -> None:
        frames, self._frames, self._rows = self._frames, [], 0
        for _, alike in groupby(frames, lambda each: _shape(each[2])):
            some = list(alike)
            try:
                batch = self._batch([frame for _, _, frame in some])
            except Exception:
                self._blame(some)
                raise
            self._chunks.add(batch)

    def _batch(self, frames: Sequence[pd.DataFrame]) -> pa.RecordBatch:
        import pandas as pd

        batch = PandasToArrowConversion.convert(
            frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True),
            self._schema,
            timezone=self._timezone,
            safecheck=False,
            arrow_cast=True,
            assign_cols_by_name=True,
        )
        return batch.cast(self._arrow)

    def _blame(self, frames: Sequence[tuple[Any, str, pd.DataFrame]]) -> None:
        for key, called, frame in frames:
            try:
                self._batch([frame])
            except Exception as error:
                raise KeyFailed(key, f"the rows that {called} returned") from error


def _shape(frame: pd.DataFrame) -> tuple[Any, ...]:
    return tuple(frame.columns), tuple(frame.dtypes)
