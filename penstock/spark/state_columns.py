"""Columns of the keys and values of a store, from their bytes: Spark's type of each, and the conversion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql import types

from penstock.api.serdes import Bytes, Json, JsonKey, Serde, String, Tuple
from penstock.api.serdes.values import (
    Double,
    DoubleKey,
    Integer,
    Long,
    OrderedDouble,
    OrderedInteger,
    OrderedLong,
    SamzaDouble,
    SamzaInteger,
    SamzaLong,
)
from penstock.errors import ConfigError, SerdeError
from penstock.graph.event_time import LatestFirst, VersionKey, VersionValue
from penstock.spark.versions import arrow_type
from penstock.state.reading.comparison import View

T = TypeVar("T")

_ROWS = 8192
_BYTES = 4 << 20
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class StateColumn:
    """A conversion of the bytes of keys or values to a column. Picklable."""

    what: str
    """`key`, `user_key` or `value`."""
    type: pa.DataType
    decode: Callable[[bytes], Any] | None = None
    """Decodes the element; None: it is the bytes."""

    def array(self, store: str, task: int, parts: Sequence[bytes | None]) -> pa.Array:
        """The column of these keys or values; null where one is None.

        Raises:
            SerdeError: one does not have the column's type, or is not of its serde.
        """
        decode = self.decode
        try:
            elements = parts if decode is None else [None if part is None else decode(part) for part in parts]
            return pa.array(elements, self.type)
        except Exception as error:
            for part in parts:
                self._check(store, task, part)
            raise SerdeError(f"the {self.what}s of store `{store}`, task {task}: {error}") from error

    def _check(self, store: str, task: int, part: bytes | None) -> None:
        if part is None:
            return
        place = f"store `{store}`, task {task}: the {self.what} {_shown(part)}"
        try:
            element = part if self.decode is None else self.decode(part)
        except Exception as error:
            raise SerdeError(f"{place} cannot be decoded: {type(error).__name__}: {error}") from error
        try:
            pa.array([element], self.type)
        except _UNFIT as error:
            raise SerdeError(
                f"{place} does not have the type {self.type}: {error}. Give another `{self.what}_type`, or a "
                f"`{self.what}_function` that makes what the column needs"
            ) from error


@dataclass(frozen=True, slots=True)
class StateColumns:
    """The columns of a store's entries. Picklable."""

    store: str
    keys: tuple[tuple[str, StateColumn], ...]
    value: StateColumn
    view: View | None = None
    """Makes the shown entries from the stored ones, where they differ."""

    def entries(self, task: int, entries: Iterable[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
        """Batches with the columns task, those of the key, value."""
        names = ["task", *(name for name, _ in self.keys), "value"]
        for some in pieces(entries, lambda each: len(each[0]) + len(each[1])):
            keys, values = zip(*some, strict=True)
            columns = [
                _tasks(task, len(some)),
                *self._key_arrays(task, keys),
                self.value.array(self.store, task, values),
            ]
            yield pa.record_batch(columns, names)

    def changes(
        self, task: int, changes: Iterable[tuple[str, bytes, bytes | None, bytes | None]]
    ) -> Iterator[pa.RecordBatch]:
        """Batches with the columns change, task, those of the key, before, after, from (change, key, before, after)."""
        names = ["change", "task", *(name for name, _ in self.keys), "before", "after"]
        for some in pieces(changes, lambda each: sum(map(len, filter(None, each[1:])))):
            kinds, keys, before, after = zip(*some, strict=True)
            columns = [
                pa.array(kinds, pa.string()),
                _tasks(task, len(some)),
                *self._key_arrays(task, keys),
                self.value.array(self.store, task, before),
                self.value.array(self.store, task, after),
            ]
            yield pa.record_batch(columns, names)

    def _key_arrays(self, task: int, keys: Sequence[bytes]) -> list[pa.Array]:
        return [column.array(self.store, task, keys) for _, column in self.keys]


def pieces(things: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """The things in lists of bounded length and size, in order; no list is empty."""
    some: list[T] = []
    held = 0
    for each in things:
        some.append(each)
        held += size(each)
        if len(some) >= _ROWS or held >= _BYTES:
            yield some
            some, held = [], 0
    if some:
        yield some


def _tasks(task: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(task, pa.int32()), count)


def _shown(part: bytes) -> str:
    text = repr(part[:60])
    return f"{text}..." if len(part) > 60 else text


GivenType: TypeAlias = str | types.DataType
Function: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """The keys or the values of a store, with the caller's type and function for their column."""

    what: str
    """`key` or `value`."""
    store: str
    serde_name: str
    serde: Serde[Any] | None
    """None if it is not known."""
    type: GivenType | None
    function: Function | None


def column_of(part: ColumnSource) -> tuple[types.DataType, StateColumn]:
    """The type and conversion of a column.

    Without a given type, Penstock's serdes have the types that follow from them, JSON is text, and values of other
    serdes are bytes.

    Raises:
        ConfigError: the type is none, or there is a function without a type, or a serde that is not known without which
        the type cannot be made.
    """
    own = f"{part.what}_type"
    if part.type is None:
        if part.function is not None:
            raise ConfigError(
                f"`{part.what}_function` needs `{own}`, the Spark type of what it returns, as in "
                f'{own}="name STRING, visits LONG"'
            )
        return _derived(part)
    wanted = _parsed(own, part.type)
    if part.function is not None:
        first = None if part.serde is None else part.serde.from_bytes
        decode = part.function if first is None else _TwoFunctions(first, part.function)
    elif isinstance(wanted, types.BinaryType):
        decode = None
    elif part.serde is None:
        raise ConfigError(
            f"the {part.what}s of store `{part.store}` have the serde `{part.serde_name}`, which is not one of "
            f"Penstock's: give `app`, the application that declares it, or a `{part.what}_function`, which gets bytes"
        )
    else:
        decode = part.serde.from_bytes
    return wanted, StateColumn(part.what, _arrow(wanted), decode)


def _derived(part: ColumnSource) -> tuple[types.DataType, StateColumn]:
    found = types.BinaryType() if part.serde is None else _type_of(part.serde)
    if found is None:
        raise ConfigError(
            f"the {part.what}s of store `{part.store}` have serde `{part.serde_name}`, whose Spark type is not known. "
            f'Give it, as in {part.what}_type="name STRING, visits LONG"; {part.what}_type="BINARY" is their bytes'
        )
    decode = None if part.serde is None else _decoder(part.serde)
    return found, StateColumn(part.what, _arrow(found), decode)


_TYPES: Mapping[type, types.DataType] = {
    String: types.StringType(),
    Json: types.StringType(),
    JsonKey: types.StringType(),
    Bytes: types.BinaryType(),
    **dict.fromkeys((Integer, SamzaInteger, OrderedInteger), types.IntegerType()),
    **dict.fromkeys((Long, SamzaLong, OrderedLong, LatestFirst), types.LongType()),
    **dict.fromkeys((Double, SamzaDouble, DoubleKey, OrderedDouble), types.DoubleType()),
}
_TEXT = (String, Json, JsonKey, Bytes)


def _type_of(serde: Serde[Any]) -> types.DataType | None:
    """The type that follows from a serde; None if none does, as from a subclass."""
    if type(serde) is VersionKey:
        return _struct([("key", _type_of(serde.fields[0])), ("time_ms", types.LongType())])
    if type(serde) is Tuple:
        return _struct([(f"_{n}", _type_of(field)) for n, field in enumerate(serde.fields, 1)])
    if type(serde) is VersionValue:
        return _type_of(serde.value)
    return _TYPES.get(type(serde))


def _struct(fields: list[tuple[str, types.DataType | None]]) -> types.StructType | None:
    known = [types.StructField(name, kind) for name, kind in fields if kind is not None]
    return types.StructType(known) if len(known) == len(fields) else None


def _decoder(serde: Serde[Any]) -> Callable[[bytes], Any] | None:
    """Decodes elements of the type that follows from the serde. Arrow takes text in UTF-8 as it is."""
    if type(serde) in _TEXT:
        return None
    if type(serde) is VersionValue:
        return _Version(_decoder(serde.value))
    return serde.from_bytes


@dataclass(frozen=True, slots=True)
class _TwoFunctions:
    first: Callable[[bytes], Any]
    second: Function

    def __call__(self, data: bytes) -> Any:
        return self.second(self.first(data))


@dataclass(frozen=True, slots=True)
class _Version:
    """The value of a version, or None if its key has none as of its time."""

    inner: Callable[[bytes], Any] | None

    def __call__(self, data: bytes) -> Any:
        if not data[0]:
            return None
        return data[1:] if self.inner is None else self.inner(data[1:])


def _parsed(name: str, given: GivenType) -> types.DataType:
    if isinstance(given, types.DataType):
        return given
    try:
        return types.DataType.fromDDL(given)
    except Exception as error:  # of the parser, which is Spark's
        raise ConfigError(f"{name}={given!r} is not a type that Spark knows: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _arrow(kind: types.DataType) -> Any:
    return arrow_type(kind)
