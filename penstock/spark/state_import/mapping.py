"""Mapping of entries of Spark's state to entries of a store. The fate of each column is decided before anything is
read."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from typing import Annotated, Any, Literal, TypeAlias

from penstock.api.serdes import Bytes, Json, Serde, not_bytes
from penstock.base.wording import argument, flag
from penstock.errors import ConfigError, IncompatibleError, PenstockError
from penstock.facts import Column
from penstock.graph.stores import StoreSpec
from penstock.spark.state_import import files
from penstock.spark.state_import.reader import SparkState
from penstock.spark.state_import.rows import unreadable

MapFunction: TypeAlias = Callable[[dict[str, Any], Any], Any]
"""(key, value) of Spark -> (key, value) of the store, or None to leave the entry out. A third item is the key of the
messages that belong to the entry, as bytes or text, where that is not the store's own key."""


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """A column of Spark's, and its target, or the reason why it cannot be mapped."""

    of: Annotated[Literal["key", "value"], Column("of")]
    column: Annotated[str, Column("column")]
    type: Annotated[str, Column("Spark's type")]
    mapping: Annotated[
        str | None, Column("becomes", of=lambda each: each.mapping or f"CANNOT BE MAPPED: {each.problem}")
    ]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ImportedEntry:
    """An entry of the store, as bytes; the task of `partition_key` owns it."""

    key: bytes
    value: bytes
    partition_key: bytes


@dataclass(frozen=True, slots=True)
class EntryMapping:
    """The fate of each column. With `problems`, of the entries or of columns, nothing can be mapped.

    `convert` makes an entry of Spark's bytes, None if it is left out. It raises IncompatibleError, naming the key, for
    one that the store cannot hold, and PenstockError if the user's function fails.
    """

    columns: tuple[MappedColumn, ...]
    problems: tuple[str, ...]
    convert: Callable[[bytes, bytes], ImportedEntry | None]


def raw_mapping(state: SparkState, store: StoreSpec) -> EntryMapping:
    """Spark's bytes unchanged: rows in its own encoding. Raises ConfigError if the store does not hold bytes."""
    for what, serde in (("key", store.key_serde), ("value", store.value_serde)):
        if not isinstance(serde, Bytes):
            raise ConfigError(f"{flag('raw')} needs a store of Bytes; the {what}s of `{store.name}` are `{serde.name}`")
    return EntryMapping(
        _columns(
            state,
            lambda side, column: MappedColumn(side, column.name, files.type_text(column.type), "within the raw bytes"),
        ),
        (),
        lambda key, value: ImportedEntry(key, value, key),
    )


def function_mapping(state: SparkState, store: StoreSpec, function: MapFunction, name: str) -> EntryMapping:
    """The result of a function over the columns; `name` is the function's name in messages."""

    def given(side: Literal["key", "value"], column: files.StructField) -> MappedColumn:
        why = unreadable(column.type)
        how = f"given to {name} as {_python_name(column.type)}" if why is None else f"not given to {name}: {why}"
        return MappedColumn(side, column.name, files.type_text(column.type), how)

    decode, write = state.decoder(), _Writer(store)

    def convert(key: bytes, value: bytes) -> ImportedEntry | None:
        row = decode(key, value)
        try:
            made = function(*row)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise PenstockError(
                f"{name} raised {type(error).__name__}: {error} ({frame.filename}, line {frame.lineno}) for Spark's "
                f"key {row[0]!r}. Nothing was imported"
            ) from error
        if made is None:
            return None
        if not isinstance(made, tuple) or len(made) not in {2, 3}:
            raise PenstockError(
                f"{name} returned {made!r} for Spark's key {row[0]!r}: it returns (key, value), or None to leave the "
                "entry out. Nothing was imported"
            )
        return write(row[0], *made)

    return EntryMapping(_columns(state, given), (), convert)


def plain_mapping(state: SparkState, store: StoreSpec) -> EntryMapping:
    """Spark's key has one column, which becomes the key. With a Json serde, a value becomes the dict of its columns,
    and a ListState a list of such dicts. With any other serde, a value has one column, which becomes the value."""
    problems = []
    if (count := len(state.schema.key.columns)) != 1:
        problems.append(f"Spark's key has {count} columns, and only a key of one has a plain mapping")
    as_dict = isinstance(store.value_serde, Json)
    if not as_dict and state.is_list:
        problems.append(f"a value is a list of rows, which the value serde `{store.value_serde.name}` has no place for")
    elif not as_dict and (count := len(state.schema.value.columns)) != 1:
        problems.append(
            f"Spark's value has {count} columns, which the value serde `{store.value_serde.name}` has no place for"
        )

    def fitted(side: Literal["key", "value"], column: files.StructField) -> MappedColumn:
        serde = store.key_serde if side == "key" else store.value_serde
        if side == "value" and as_dict:
            return _fit(side, column, f"`{column.name}`", lambda sample: _back(serde, {"x": sample})["x"], serde.name)
        return _fit(side, column, f"the {side}", lambda sample: _back(serde, sample), serde.name)

    decode, write = state.decoder(), _Writer(store)

    def convert(key: bytes, value: bytes) -> ImportedEntry:
        row, columns = decode(key, value)
        (own,) = row.values()
        return write(row, own, columns if as_dict else next(iter(columns.values())))  # type: ignore[union-attr]

    return EntryMapping(_columns(state, fitted), tuple(problems), convert)


class _Writer:
    """Writes the result of a mapping with the store's serdes."""

    def __init__(self, store: StoreSpec) -> None:
        self._store = store

    def __call__(self, spark_key: dict[str, Any], key: Any, value: Any, partition_key: Any = None) -> ImportedEntry:
        for what, obj in (("key", key), ("value", value)):
            if obj is None:
                raise IncompatibleError(
                    f"the {what} of Spark's key {spark_key!r} is null, which store `{self._store.name}` cannot hold: a "
                    f"function ({argument('function')}) may return None for the entry, or another value"
                )
        written = self._bytes("key", self._store.key_serde, key, spark_key)
        owner = partition_key.encode() if isinstance(partition_key, str) else partition_key
        if owner is not None and not isinstance(owner, bytes):
            raise IncompatibleError(
                f"the key of messages {owner!r}, for Spark's key {spark_key!r}, is neither bytes nor text"
            )
        value_bytes = self._bytes("value", self._store.value_serde, value, spark_key)
        if owner is None:  # the messages' key is the store's, in the form that messages have
            owner = self._bytes("key", self._store.key_serde.for_keys(), key, spark_key)
        return ImportedEntry(written, value_bytes, owner)

    def _bytes(self, what: str, serde: Serde[Any], obj: Any, spark_key: dict[str, Any]) -> bytes:
        try:
            data = serde.to_bytes(obj)
            if type(data) is not bytes:
                raise not_bytes(serde, data, f"store `{self._store.name}`")
        except Exception as error:
            raise IncompatibleError(
                f"{what} {obj!r}, of Spark's key {spark_key!r}, cannot be written by the serde `{serde.name}` of store "
                f"`{self._store.name}`: {type(error).__name__}: {error}. Nothing was imported"
            ) from error
        return data


def _columns(
    state: SparkState, map_column: Callable[[Literal["key", "value"], files.StructField], MappedColumn]
) -> tuple[MappedColumn, ...]:
    key = [map_column("key", column) for column in state.schema.key.columns]
    return (*key, *(map_column("value", column) for column in state.schema.value.columns))


def _fit(
    side: Literal["key", "value"], column: files.StructField, target: str, hold: Callable[[Any], Any], serde: str
) -> MappedColumn:
    """Try one value of the column: `hold` writes it and reads it back. The result says if the serde holds such
    values."""
    shown = files.type_text(column.type)
    if (why := unreadable(column.type)) is not None:
        return MappedColumn(side, column.name, shown, None, why)
    sample = _sample(column.type)
    try:
        notes = [_change(sample, hold(sample))]
        if column.type in {"float", "double"}:
            notes.append(_change_of_nan(hold))
    except Exception as error:
        why = f"the serde `{serde}` cannot hold {_python_name(column.type)}: {error}"
        return MappedColumn(side, column.name, shown, None, why)
    return MappedColumn(side, column.name, shown, f"{target}, {_python_name(column.type)}{''.join(notes)}")


def _change_of_nan(hold: Callable[[Any], Any]) -> str:
    try:
        return "" if hold(math.nan) is not None else "; NaN comes back as None"
    except Exception:  # whatever the serde raises: another value was held
        return "; NaN is refused"


def _back(serde: Serde[Any], obj: Any) -> Any:
    return serde.from_bytes(serde.to_bytes(obj))


def _change(sample: Any, back: Any) -> str:
    if type(back) is not type(sample):
        return f"; comes back as {type(back).__name__}"
    return "" if back == sample else f"; {sample!r} comes back as {back!r}"


def _sample(type_: files.SparkType) -> Any:
    """A value of the type that takes as much room as any."""
    match type_:
        case files.StructType(columns):
            return {column.name: _sample(column.type) for column in columns}
        case files.ArrayType(element):
            return [_sample(element)]
        case files.MapType(key, value):
            return {_sample(key): _sample(value)}
        case str(name):
            decimal = files.decimal_of(name)
            return _SAMPLES.get(name, "text") if decimal is None else Number(1).scaleb(-decimal[1])
        case files.UserDefinedType():
            return "text"


_SAMPLES: dict[str, Any] = {
    "boolean": True,
    "byte": -(2**7),
    "short": -(2**15),
    "integer": -(2**31),
    "long": -(2**63),
    "float": 0.5,
    "double": 0.1,
    "date": date(2024, 2, 29),
    "timestamp": datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC),
    "timestamp_ntz": datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC).replace(tzinfo=None),
    "binary": b"\x00\xff",
    "void": None,
}


def _python_name(type_: files.SparkType) -> str:
    return type(_sample(type_)).__name__
