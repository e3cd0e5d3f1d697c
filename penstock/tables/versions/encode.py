"""Makes entries from rows: the task, key and value of each row, as bytes. Runs in Spark's Python workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from penstock.api.serdes import Serde
from penstock.arrays.plain import has_map
from penstock.base.documents import decode
from penstock.graph.stores import StoreSpec
from penstock.system.partitioner import partitions_of
from penstock.tables.versions.fingerprint import columns, pushed_table

ENTRIES = pa.schema([("task", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])
PROBLEM = -1
"""The task of a row that is no entry, but a reason to refuse the version, as JSON in place of the key."""


@dataclass(frozen=True, slots=True)
class VersionProblem:
    """A reason to refuse a version."""

    text: str = ""
    null_keys: int = 0

    def row(self) -> pa.RecordBatch:
        key = orjson.dumps([self.text, self.null_keys])
        return pa.RecordBatch.from_pydict({"task": [PROBLEM], "key": [key], "value": [b""]}, schema=ENTRIES)

    @classmethod
    def decode(cls, key: bytes) -> VersionProblem:
        """Decode the key that `row` wrote. Raises CorruptError."""
        text, null_keys = decode(tuple[str, int], key, "the reason to refuse a version is damaged")
        return cls(text, null_keys)


@dataclass(frozen=True, slots=True)
class RowEncoder:
    """Makes entries from rows. Pickled for Spark's workers."""

    table: str
    key_columns: tuple[str, ...]
    value_columns: tuple[str, ...] | None
    single_value: bool
    key_serde: Serde[Any]
    stream_key: Serde[Any]
    value_serde: Serde[Any]
    tasks: int
    """1 if every task has everything."""

    @classmethod
    def of(cls, spec: StoreSpec, tasks: int) -> RowEncoder:
        side = pushed_table(spec)
        return cls(
            spec.name,
            columns(side.key),
            None if side.value is None else columns(side.value),
            isinstance(side.value, str),
            spec.key_serde,
            side.stream_key or spec.key_serde,
            spec.value_serde,
            1 if side.broadcast else tasks,
        )

    def needed(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.key_columns, *(self.value_columns or ()))))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The entries of batches of rows; then the problems. After a row that cannot be an entry, nothing more is
        read."""
        null_keys = 0
        try:
            for batch in batches:
                rows = self._rows(batch)
                keys = self._keys(batch)
                whole = [at for at, key in enumerate(keys) if key is not None]
                null_keys += len(keys) - len(whole)
                if not null_keys:
                    yield self._entries(keys, rows)
        except _RowError as error:
            yield VersionProblem(str(error)).row()
        if null_keys:
            yield VersionProblem("", null_keys).row()

    def _keys(self, batch: pa.RecordBatch) -> list[Any]:
        """The key of each row; None if a column of it is null."""
        parts: list[list[Any]] = [batch.column(name).to_pylist() for name in self.key_columns]
        if len(parts) == 1:
            return parts[0]
        return [None if None in key else key for key in zip(*parts, strict=True)]

    def _rows(self, batch: pa.RecordBatch) -> list[Any]:
        chosen = batch if self.value_columns is None else batch.select(list(self.value_columns))
        if self.single_value:
            return chosen.column(0).to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]
        maps = "strict" if any(map(has_map, chosen.schema)) else None
        return chosen.to_pylist(maps_as_pydicts=maps)  # type: ignore[no-any-return]

    def _entries(self, keys: list[Any], rows: list[Any]) -> pa.RecordBatch:
        stored = pa.array(self._all(keys, keys, self.key_serde.to_bytes, self._bad_key), pa.binary())
        values = pa.array(self._all(rows, keys, self._value, self._bad_value), pa.binary())
        tasks: npt.NDArray[Any]
        if self.tasks == 1:
            tasks = np.zeros(len(keys), np.int32)
        elif self.stream_key is self.key_serde:
            tasks = partitions_of(stored, self.tasks)
        else:
            routed = self._all(keys, keys, self.stream_key.to_bytes, self._bad_key)
            tasks = partitions_of(pa.array(routed, pa.binary()), self.tasks)
        return pa.RecordBatch.from_arrays([pa.array(tasks.astype(np.int32)), stored, values], schema=ENTRIES)

    def _value(self, row: Any) -> bytes:
        if row is None:
            raise TypeError("it is null, and a key without a value is no entry")
        return self.value_serde.to_bytes(row)

    def _all(
        self,
        objects: list[Any],
        keys: list[Any],
        to_bytes: Callable[[Any], bytes],
        bad: Callable[[Any, Any, Exception], _RowError],
    ) -> list[bytes]:
        """The bytes of all objects. Only after a failure it looks for the bad object, so that encoding is as fast as
        the serde."""
        try:
            return [to_bytes(each) for each in objects]
        except Exception:
            for key, each in zip(keys, objects, strict=True):
                try:
                    to_bytes(each)
                except Exception as error:
                    raise bad(key, each, error) from error
            raise

    def _bad_key(self, key: Any, _: Any, error: Exception) -> _RowError:
        is_type = isinstance(error, TypeError | AttributeError) and not isinstance(key, tuple)
        reason = f"it is of type {type(key).__name__}" if is_type else _said(error)
        return _RowError(
            f"the key {key!r}, from {_named(self.key_columns)}, does not fit the serde `{self.key_serde.name}`: "
            f"{reason}. Declare another key serde for table `{self.table}`, or cast the column"
        )

    def _bad_value(self, key: Any, row: Any, error: Exception) -> _RowError:
        where = "its value"
        if self.single_value and self.value_columns is not None:
            where = f"column `{self.value_columns[0]}`"
        elif isinstance(row, dict):
            culprits = [name for name, value in row.items() if not self._fits({name: value})]
            where = f"{_named(culprits)} ({type(row[culprits[0]]).__name__})" if culprits else where
        return _RowError(
            f"the row with the key {key!r}: {where} does not fit the serde `{self.value_serde.name}`: {_said(error)}. "
            f"Cast the column, leave it out with `value=`, or declare another value serde for table `{self.table}`"
        )

    def _fits(self, row: dict[str, Any]) -> bool:
        try:
            self.value_serde.to_bytes(row)
        except Exception:
            return False
        return True


class _RowError(Exception):
    """A row is no entry."""


def _said(error: Exception) -> str:
    return str(error)[:500] or type(error).__name__


def _named(names: Iterable[str]) -> str:
    found = [f"`{name}`" for name in names]
    return f"column {found[0]}" if len(found) == 1 else f"columns {', '.join(found)}"
