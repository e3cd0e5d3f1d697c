"""The Spark type of the keys or values of a store, and the conversion of their bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from penstock.api.serdes import Bytes, Json, JsonKey, Serde, String, Tuple
from penstock.api.serdes.numbers import (
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
from penstock.errors import ConfigError
from penstock.graph.history import LatestFirst, VersionKey, VersionValue
from penstock.spark.state_frames.columns import StateColumn
from penstock.spark.versions import arrow_type

GivenType: TypeAlias = str | DataType
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


def column_of(part: ColumnSource) -> tuple[DataType, StateColumn]:
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
    elif isinstance(wanted, BinaryType):
        decode = None
    elif part.serde is None:
        raise ConfigError(
            f"the {part.what}s of store `{part.store}` have the serde `{part.serde_name}`, which is not one of "
            f"Penstock's: give `app`, the application that declares it, or a `{part.what}_function`, which gets bytes"
        )
    else:
        decode = part.serde.from_bytes
    return wanted, StateColumn(part.what, _arrow(wanted), decode)


def _derived(part: ColumnSource) -> tuple[DataType, StateColumn]:
    found = BinaryType() if part.serde is None else _type_of(part.serde)
    if found is None:
        raise ConfigError(
            f"the {part.what}s of store `{part.store}` have serde `{part.serde_name}`, whose Spark type is not known. "
            f'Give it, as in {part.what}_type="name STRING, visits LONG"; {part.what}_type="BINARY" is their bytes'
        )
    decode = None if part.serde is None else _decoder(part.serde)
    return found, StateColumn(part.what, _arrow(found), decode)


_TYPES: Mapping[type, DataType] = {
    String: StringType(),
    Json: StringType(),
    JsonKey: StringType(),
    Bytes: BinaryType(),
    **dict.fromkeys((Integer, SamzaInteger, OrderedInteger), IntegerType()),
    **dict.fromkeys((Long, SamzaLong, OrderedLong, LatestFirst), LongType()),
    **dict.fromkeys((Double, SamzaDouble, DoubleKey, OrderedDouble), DoubleType()),
}
_TEXT = (String, Json, JsonKey, Bytes)


def _type_of(serde: Serde[Any]) -> DataType | None:
    """The type that follows from a serde; None if none does, as from a subclass."""
    if type(serde) is VersionKey:
        return _struct([("key", _type_of(serde.fields[0])), ("time_ms", LongType())])
    if type(serde) is Tuple:
        return _struct([(f"_{n}", _type_of(field)) for n, field in enumerate(serde.fields, 1)])
    if type(serde) is VersionValue:
        return _type_of(serde.value)
    return _TYPES.get(type(serde))


def _struct(fields: list[tuple[str, DataType | None]]) -> StructType | None:
    known = [StructField(name, kind) for name, kind in fields if kind is not None]
    return StructType(known) if len(known) == len(fields) else None


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


def _parsed(name: str, given: GivenType) -> DataType:
    if isinstance(given, DataType):
        return given
    try:
        return DataType.fromDDL(given)
    except Exception as error:  # of the parser, which is Spark's
        raise ConfigError(f"{name}={given!r} is not a type that Spark knows: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _arrow(kind: DataType) -> Any:
    return arrow_type(kind)
