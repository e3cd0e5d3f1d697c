"""Schemas as text, in Spark's words: `user STRING, visits BIGINT`. Read without Spark.

Messages to write are rows of a schema, and are checked when they are made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from penstock.arrays.json_rows import JsonRows
from penstock.errors import ConfigError
from penstock.system.base import RawRecord, RecordLimits

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z0-9_]+|[<>(),:])")
_TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    **dict.fromkeys(("tinyint", "byte"), pa.int8()),
    **dict.fromkeys(("smallint", "short"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("bigint", "long"), pa.int64()),
    **dict.fromkeys(("float", "real"), pa.float32()),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def parse_schema(text: str) -> pa.Schema:
    """The schema that a text describes.

    Raises:
        ConfigError: the text is not a schema; says where.

    Example:
        >>> parse_schema("user STRING, places ARRAY<STRUCT<name: STRING>>").names
        ['user', 'places']
    """
    parser = _Parser(text)
    try:
        fields = parser.fields("", lambda: parser.left == 0)
    except RecursionError:
        raise ConfigError(f"`{text[:100]}...` is not a schema: its types are nested too deeply") from None
    if not fields:
        raise ConfigError("a schema has at least one column, as in `user STRING, visits BIGINT`")
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise ConfigError(f"`{text}` has a column twice")
    return pa.schema(fields)


def split_schemas(name: str, options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The schemas among the options of a system, `schema` and `schema.<stream>`, and the options without them.

    The schemas are by stream; the empty name is for all others. Raises ConfigError if one is none.

    Example:
        >>> split_schemas("in", {"folder": "/srv", "schema.visits": "user STRING"})
        ({'visits': 'user STRING'}, {'folder': '/srv'})
    """
    schemas, rest = dict[str, str](), dict[str, str]()
    for key, text in options.items():
        option, _, stream = key.partition(".")
        if option != "schema":
            rest[key] = text
            continue
        try:
            parse_schema(text)
        except ConfigError as error:
            raise ConfigError(f"`systems.{name}.{key}`: {error}") from error
        schemas[stream] = text
    return schemas, rest


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise ConfigError(f"`{text}` is not a schema: `{text[at:].strip()}` is not understood")
            self._tokens.append(found[1])
            at = found.end()
        self._next = 0

    @property
    def left(self) -> int:
        return len(self._tokens) - self._next

    def fields(self, colon: str, at_end: Callable[[], bool]) -> list[pa.Field]:
        found: list[pa.Field] = []
        while not at_end():
            if found:
                self._take(",")
            name = self._take()
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            if self._peek() == ":" or colon:
                self._take(":")
            found.append(pa.field(name, self._type()))
        return found

    def _type(self) -> pa.DataType:
        name = self._take()
        match name.lower():
            case "array":
                self._take("<")
                inner = self._type()
                self._take(">")
                return pa.list_(inner)
            case "map":
                self._take("<")
                key = self._type()
                self._take(",")
                value = self._type()
                self._take(">")
                return pa.map_(key, value)
            case "struct":
                self._take("<")
                fields = self.fields(":", lambda: self._peek() == ">")
                self._take(">")
                return pa.struct(fields)
            case "decimal" | "dec" | "numeric":
                return self._decimal()
        if name.lower() not in _TYPES:
            raise ConfigError(
                f"`{self._text}`: `{name}` is not a type; known are {', '.join(_TYPES)}, decimal, array, map and struct"
            )
        return _TYPES[name.lower()]

    def _decimal(self) -> pa.DataType:
        if self._peek() != "(":
            return pa.decimal128(10, 0)
        self._take("(")
        precision, scale = self._take(), "0"
        if self._peek() == ",":
            self._take(",")
            scale = self._take()
        self._take(")")
        try:
            return pa.decimal128(int(precision), int(scale))
        except (ValueError, OverflowError) as error:
            raise ConfigError(f"`{self._text}`: decimal({precision},{scale}) is not a type: {error}") from error

    def _peek(self) -> str:
        return self._tokens[self._next] if self.left else ""

    def _take(self, expected: str = "") -> str:
        found = self._peek()
        if not found or (expected and found != expected):
            raise ConfigError(
                f"`{self._text}` is not a schema: expected {f'`{expected}`' if expected else 'more'}, found "
                f"{f'`{found}`' if found else 'its end'}. It reads as `user STRING, visits BIGINT`"
            )
        self._next += 1
        return found


class RowForm:
    """The rows of a schema, from messages whose values are JSON objects."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._rows = JsonRows(list(self.schema))
        self._required = [field.name for field in schema if not field.nullable]

    def problem(self, value: bytes | None) -> str | None:
        """The reason why a value is not a row; None if it is one."""
        if value is None:
            return "it has no value, and a file has rows alone"
        rows, problems = self._rows.read([value])
        if problems:
            return f"its value does not fit the schema: {problems[0]}"
        missing = next((name for name in self._required if rows.field(name).null_count), None)
        return None if missing is None else f"its value does not fit the schema: `{missing}` is null, and must not be"

    def batch(self, values: Sequence[bytes | None]) -> pa.RecordBatch:
        """These rows. Raises ConfigError if a value is not a row."""
        rows, problems = self._rows.read(values)
        if problems or None in values or any(rows.field(name).null_count for name in self._required):
            bad = next(value for value in values if self.problem(value) is not None)
            raise ConfigError(f"a record cannot be written to a file: {self.problem(bad)}")
        return pa.RecordBatch.from_arrays(rows.flatten(), schema=self.schema)


def row_value(record: RawRecord) -> bytes | None:
    """The value of a record. Raises ConfigError if it is not bytes."""
    value = record[2]
    if value is not None and not isinstance(value, bytes):
        raise ConfigError(f"a record's value is bytes, not {type(value).__name__}")
    return value


@cache
def row_form(text: str) -> RowForm:
    """The rows of a schema in Spark's words. Raises ConfigError if the text is none."""
    return RowForm(parse_schema(text))


@cache
def row_form_of(serialized: bytes) -> RowForm:
    """The rows of a schema as Arrow writes it."""
    return RowForm(pa.ipc.read_schema(pa.py_buffer(serialized)))


@dataclass(frozen=True, slots=True)
class RowLimits(RecordLimits):
    """The limits of a stream of rows: it refuses values that are not rows of its schema.

    Args:
        schema: the schema in Spark's words, or as Arrow writes it.
    """

    schema: str | bytes = ""

    @property
    def least_bytes(self) -> int | None:
        """No record is accepted unchecked."""
        return -1

    def refused(self, key: bytes | None, value: bytes | None, headers_bytes: int = 0) -> str | None:
        form = row_form(self.schema) if isinstance(self.schema, str) else row_form_of(self.schema)
        return form.problem(value)
