"""The serdes of a store by their names, and those of the states of aggregates; keys and values as text and JSON, and
back.

The serdes of Penstock are known by the names a checkpoint has; what is of another serde, or does not decode, is shown
as hex and named once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec.json
import orjson
import pyarrow as pa

from penstock.api import serdes
from penstock.api.serdes.values import OrderedDouble, OrderedInteger, OrderedLong
from penstock.application.application import Application
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.types import types_of_text
from penstock.base.exact_json import exact_value, float_of, whole_of
from penstock.base.wording import argument, flag, printable, size_text
from penstock.checkpoint.record import CheckpointRecord
from penstock.columns.aggregates import StateRows, state_columns
from penstock.columns.folds import has_word, whole_sum
from penstock.errors import ConfigError
from penstock.graph.aggregation import AggregateLayout
from penstock.graph.event_time import VersionKey, VersionValue
from penstock.graph.stores import StoreLayout
from penstock.schemas.avro import AvroState
from penstock.state.reading.reader import check_store

_BUILT_IN: Mapping[str, serdes.Serde[Any]] = {
    serde.name: serde
    for serde in (
        serdes.Bytes(),
        serdes.String(),
        OrderedInteger(),
        OrderedLong(),
        OrderedDouble(),
        serdes.SamzaInteger(),
        serdes.SamzaLong(),
        serdes.SamzaDouble(),
        serdes.JsonKey(),
    )
}


@dataclass(frozen=True, slots=True)
class StoreSerdes:
    """The serdes of a store, and their names. One that is not Penstock's is known from the application only."""

    key_name: str
    value_name: str
    key: serdes.Serde[Any] | None
    value: serdes.Serde[Any] | None


def store_serdes(
    record: CheckpointRecord, store: str, app: Application | None = None, called: str | None = None
) -> StoreSerdes:
    """The serdes of a store: those that the checkpoint names, or those of the application.

    Args:
        record: the checkpoint.
        store: the store.
        app: the application, for serdes that are not Penstock's.
        called: what messages call the application; its name, if None.

    Raises:
        NotFoundError: the checkpoint has no such store.
        ConfigError: the application has not this store with these serdes.
    """
    check_store(record, store)
    layout = StoreLayout.parse(record.stores[store])
    key, value = layout.key, layout.value
    if app is None:
        return StoreSerdes(key, value, serde_of(key), serde_of(value))
    called = called or app.name
    specs = {spec.name: spec for spec in app.graph().stores}
    if store not in specs:
        raise ConfigError(f"`{called}` declares no store `{store}`; it has: {', '.join(specs) or 'none'}")
    own = specs[store]
    if (own.key_serde.name, own.value_serde.name) != (key, value):
        raise ConfigError(
            f"store `{store}` was written with the serdes `{key}` and `{value}` (checkpoint {record.id}); `{called}` "
            f"declares `{own.key_serde.name}` and `{own.value_serde.name}`"
        )
    return StoreSerdes(key, value, own.key_serde, aggregate_states(value) or own.value_serde)


def serde_of(name: str) -> serdes.Serde[Any] | None:
    """The serde of a name that a checkpoint has, if it is one of Penstock's."""
    if (states := aggregate_states(name)) is not None:
        return states
    kind, bracket, inner = name.partition("(")
    if not (bracket and name.endswith(")")):
        return _BUILT_IN.get(name)
    if kind == "columns":
        return _rows(inner[:-1])
    if kind == "avro":
        return AvroState.named(name)
    fields = [serde_of(field) for field in _split(inner[:-1])]
    known = [field for field in fields if field is not None]
    if len(known) < len(fields):
        return None
    match kind:
        case "tuple":
            return serdes.Tuple(*known) if all(field.ordered for field in known) else None
        case "version-key":
            return VersionKey(known[0])
        case "version":
            return VersionValue(known[0])
    return None


def _rows(columns: str) -> serdes.PackedColumns | None:
    """The serde of rows with these columns, if their types have names that Arrow reads."""

    fields = []
    for text in columns.replace("%20", " ").split(","):
        name, _, kind = text.rpartition(":")
        try:
            fields.append(pa.field(name, pa.type_for_alias(kind.removesuffix("!")), nullable=not kind.endswith("!")))
        except ValueError:
            return None
    return serdes.PackedColumns(pa.schema(fields))


def _split(names: str) -> list[str]:
    """The names between the commas, those inside of brackets left alone."""
    parts, depth = [""], 0
    for character in names:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


class _States(serdes.Serde[dict[str, Any]]):
    def to_bytes(self, obj: dict[str, Any]) -> bytes:
        raise TypeError("states of aggregates are only read")


class JsonStates(_States):
    """States of messages that are added one at a time: a list."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def from_bytes(self, data: bytes) -> dict[str, Any]:
        return dict(zip(self._names, exact_value(data), strict=True))


class ColumnStates(_States):
    """States in columns: a packed row. Each aggregate has a dict of its columns."""

    def __init__(self, columns: Sequence[tuple[str, str]], types: Sequence[pa.DataType]) -> None:
        """`columns`: the aggregate of each column, and the column's name."""
        self._columns = columns
        self._sums = [
            number
            for number, ((_, column), kind) in enumerate(zip(columns, types, strict=True))
            if has_word(column, kind)
        ]
        self._rows = StateRows([pa.field(str(number), kind) for number, kind in enumerate(types)], len(self._sums))

    def from_bytes(self, data: bytes) -> dict[str, Any]:
        rows, words = self._rows.unpack(ByteArray.of(pa.array([data], pa.large_binary())))
        row = rows[0].as_py()
        for number, word in zip(self._sums, words, strict=True):
            if word[0]:
                row[str(number)] = whole_sum(row[str(number)], int(word[0]))
        found: dict[str, dict[str, Any]] = {}
        for (aggregate, column), value in zip(self._columns, row.values(), strict=True):
            found.setdefault(aggregate, {})[column] = value
        return found


def aggregate_states(definition: str) -> _States | None:
    """Reads the values of a store with this definition; None if it has no declared aggregates, or a column of a
    nested type.

    Example:
        >>> aggregate_states("aggregate(flights=Count,miles=Mean)").from_bytes(b"[2,[1490,2]]")
        {'flights': 2, 'miles': [1490, 2]}
    """
    layout = AggregateLayout.parse(definition)
    if layout is None:
        return None
    if layout.types is None:
        return JsonStates([name for name, _ in layout.kinds])
    of_kinds = state_columns()
    columns = [(name, column) for name, kind in layout.kinds for column in of_kinds.get(kind, ())]
    try:
        types = types_of_text(layout.types)
        return ColumnStates(columns, types) if len(columns) == len(types) else None
    except (TypeError, ValueError):
        return None


_JSON = (serdes.Json, serdes.JsonKey)
_WHOLE = (serdes.Integer, serdes.Long, OrderedInteger, OrderedLong)
_DOUBLE = (serdes.Double, OrderedDouble)
_HOW = f"{argument('app')} takes it from the application"
_OF_PROCESSOR = re.compile(r"(key|value|list|map)-\d+\(")
_HOW_PROCESSOR = "`penstock.spark.read_state` shows the state of a PySpark processor as a DataFrame"
_SHOWN = 60
"""Characters of a key or value in a table."""
_CONTROLS = re.compile(r"[\x7f-\x9f]")
_ESCAPES = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


class Texts:
    """The keys, or the values, of a store. `trouble` says, once, why some or all of them are shown as hex."""

    def __init__(self, what: str, name: str, serde: serdes.Serde[Any] | None = None) -> None:
        """`what` is `key` or `value`, `name` the serde's; `serde` is the application's own, if it was given."""
        self.trouble: str | None = None
        self._what = what
        self._name = name
        self._serde = serde or serde_of(name)
        if self._serde is None:
            self.trouble = (
                f"the {what} serde `{name}` is not one of Penstock's, so every {what} is shown as hex; "
                f"{_HOW_PROCESSOR if _OF_PROCESSOR.match(name) else _HOW}"
            )

    def parse(self, text: str) -> bytes:
        """The bytes of a key or value. A serde of the application's own is given the text; a tuple is a JSON list.

        Raises:
            ConfigError: the text is none, or keys of this serde have no text.
        """
        return self._parsed(text, lambda serde, key: serde.to_bytes(key))

    def parse_bound(self, text: str) -> bytes:
        """The bytes of an end of a range: a key, or the first fields of one that is a tuple. Raises as `parse`."""
        return self._parsed(text, lambda serde, key: serde.bound_to_bytes(key))

    def _parsed(self, text: str, write: Callable[[serdes.Serde[Any], Any], bytes]) -> bytes:
        if self._serde is None or type(self._serde) is serdes.Bytes:
            raise ConfigError(
                f"{self._what}s of the serde `{self._name}` cannot be given as text"
                + (f": give them as hex, with {flag('as_hex')}" if self._what == "key" else "")
            )
        try:
            return write(self._serde, _key_of(self._serde, text))
        except Exception as error:
            hint = " A text is written in quotes, as '\"text\"'." if self._serde.name == "json" else ""
            if isinstance(self._serde, serdes.Tuple):
                hint = " A tuple is written as a JSON list of its fields, as '[\"text\", 5]', bytes as hex."
            raise ConfigError(
                f"`{text}` is not a {self._what} of the serde `{self._name}` ({error}).{hint}"
                + (f" {flag('as_hex')} takes a key's bytes" if self._what == "key" else "")
            ) from error

    def parse_prefix(self, text: str) -> bytes:
        """The bytes that keys begin with: a text, or the first fields of tuples. Raises ConfigError for other keys."""
        if isinstance(self._serde, serdes.Tuple):
            return self._parsed(text, lambda serde, key: serde.prefix_to_bytes(key))
        if not isinstance(self._serde, (serdes.String, *_JSON)):
            raise ConfigError(
                f"keys of the serde `{self._name}` do not begin with text: give the prefix with {flag('as_hex')}"
            )
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{text!r} is not UTF-8: give the prefix as hex, with {flag('as_hex')}") from error

    def field(self, name: str, data: bytes) -> dict[str, Any]:
        """A field of a JSON object: the value under `name`, or its hex under `<name>Hex`."""
        found = self._decode(data)
        return {f"{name}Hex": data.hex()} if found is None else {name: found[0]}

    def full(self, data: bytes) -> str:
        """The whole of it for people; JSON is indented, hex begins with 0x."""
        found = self._decode(data)
        if found is None:
            return f"0x{data.hex()}"
        return self._text(found[0]) or _json(found[0], orjson.OPT_INDENT_2)

    def short(self, data: bytes) -> str:
        """On one line, as much of it as a table's cell holds, and the size of what is longer."""
        found = self._decode(data)
        text = f"0x{data[:_SHOWN].hex()}" if found is None else self._text(found[0]) or _json(found[0])
        text = text.translate(_ESCAPES)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({size_text(len(data))})"

    def _text(self, value: object) -> str | None:
        """A text that may be printed as it is. JSON is shown as such, and so is an empty text."""
        if isinstance(self._serde, _JSON) or not isinstance(value, str) or not value:
            return None
        return value if printable(value.encode()) is not None else None

    def _decode(self, data: bytes) -> tuple[Any] | None:
        """The value as JSON, in a tuple because it may be None; None if it is shown as hex."""
        if self._serde is None:
            return None
        try:
            value = self._serde.from_bytes(data)
            return None if isinstance(value, bytes | bytearray) else (_plain(value),)
        except Exception as error:
            self.trouble = self.trouble or (
                f"a {self._what} that the serde `{self._name}` cannot read is shown as hex ({type(error).__name__}: "
                f"{error})"
            )
            return None


def parse_hex(text: str) -> bytes:
    """Bytes of hex, with or without 0x before it. Raises ConfigError."""
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise ConfigError(f"`{text}` is not hex: {error}") from error


def _plain(value: object) -> object:
    """The value as JSON. An object of the application's own becomes its fields, or its `repr`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, tuple):  # of a Tuple
        return [field.hex() if isinstance(field, bytes) else _plain(field) for field in value]
    return orjson.loads(orjson.dumps(value, default=_text_of, option=orjson.OPT_NON_STR_KEYS))


def _text_of(value: object) -> str:
    return str(value) if isinstance(value, Decimal) else repr(value)


def _json(value: object, option: int = 0) -> str:
    text = orjson.dumps(value, option=option).decode()
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _key_of(serde: serdes.Serde[Any], text: str) -> Any:
    if isinstance(serde, _WHOLE):
        return whole_of(text)
    if isinstance(serde, _DOUBLE):
        return float_of(text)
    if isinstance(serde, _JSON):
        return msgspec.json.decode(text)
    if isinstance(serde, serdes.Tuple):
        return _fields_of(serde, msgspec.json.decode(text, type=list[Any]))
    return text


def _fields_of(serde: serdes.Tuple, values: list[Any]) -> tuple[Any, ...]:
    """The fields of a tuple, from JSON: bytes are hex, an infinite double is a text."""
    made: list[Any] = []
    for field, value in zip(serde.fields, values, strict=False):
        if isinstance(field, serdes.Tuple):
            made.append(_fields_of(field, value))
        elif isinstance(field, serdes.Bytes):
            made.append(bytes.fromhex(value))
        else:
            made.append(_double(value) if isinstance(field, OrderedDouble) else value)
    return (*made, *values[len(serde.fields) :])


def _double(value: Any) -> float:
    return float_of(value) if isinstance(value, str) else float(value)
