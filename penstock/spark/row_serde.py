"""Rows of DataFrames as the values of an application: the serde.

An application declares `Rows` before it has DataFrames. Their columns are added to it once they are known.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.types import ArrayType, DataType, MapType, Row, StructField, StructType, TimestampType, VariantType

from penstock.api.serdes import Serde
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import OperatorBytes, StoreSpec
from penstock.spark.processor.codec import RowCodec
from penstock.spark.processor.rows import row_class

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Rows(Serde[Any]):
    """The serde of rows: the value of a message is a PySpark Row.

    Every input and output of an application that is a DataFrame has this serde (`app.input("spark.clicks",
    value=pss.Rows())`). Any other value may have it as well.

    A row that is read has its columns by name: `row.user`, `row["user"]`. Timestamps are `datetime` objects in UTC. A
    row that is written is a Row (columns by name, each of them), a dict (a column that it lacks is null) or a tuple (in
    the order of the schema). A naive `datetime` is in local time, as everywhere in PySpark.

    Args:
        schema: the columns, as a StructType or as DDL, such as "user STRING, n LONG". None for an input: the
            columns are those of its DataFrame. DDL is parsed by Spark when the application starts, so that
            a test without Spark needs a StructType.

    Raises:
        ConfigError: rows cannot have one of the types, or two columns have the same name.

    Example:
        >>> from pyspark.sql.types import LongType, StringType, StructType
        >>> rows = Rows(StructType().add("user", StringType()).add("n", LongType()))
        >>> row = rows.from_bytes(rows.to_bytes({"n": 7, "user": "Ada"}))
        >>> row, row.n
        (Row(user='Ada', n=7), 7)
    """

    def __init__(self, schema: StructType | str | None = None) -> None:
        if not (schema is None or isinstance(schema, StructType | str)):
            raise ConfigError(f"pss.Rows() takes a StructType or a schema as text, not {schema!r}")
        self.declared = schema
        self._bind(schema if isinstance(schema, StructType) else None)

    def _bind(self, schema: StructType | None) -> None:
        self._schema = schema
        if schema is None:
            return
        for name, count in Counter(schema.names).items():
            if count > 1:
                raise ConfigError(f"{count} columns have the name `{name}`: rename one, as in df.withColumnRenamed")
        self._names = list(schema.names)
        self._required = [number for number, field in enumerate(schema.fields) if not field.nullable]
        try:
            codec = RowCodec(in_utc(schema), "row")
        except ConfigError as error:
            raise ConfigError(f"{error}. Cast the column, or leave it out") from error
        self._encode, self._decode = codec.encode, codec.decode
        self._made = row_class(tuple(self._names))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.declared if self._schema is None else self._schema,)

    def __repr__(self) -> str:
        return f"pss.Rows({'' if self.declared is None else repr(self.declared)})"

    @property
    def schema(self) -> StructType:
        """The columns. Raises ConfigError until they are known."""
        if self._schema is None:
            raise self._unknown()
        return self._schema

    def _unknown(self) -> ConfigError:
        return ConfigError(
            f"the columns of {self!r} are known once the application runs in a query, because Spark reads them: "
            "without one, as in a test, write pss.Rows(StructType(...)) wherever the application has pss.Rows"
        )

    @property
    def name(self) -> str:
        """Two schemas have different names: state is not read with another schema."""
        if self._schema is None:
            return f"rows#{id(self)}"
        columns = ",".join(f"{field.name}:{field.dataType.simpleString()}" for field in self._schema.fields)
        return f"rows({columns})".replace(" ", "%20")

    def to_bytes(self, obj: Any) -> bytes:
        """See `Serde.to_bytes`."""
        if self._schema is None:
            if self.declared is None:
                raise ConfigError(f"{self!r} has no schema: name the columns, as in pss.Rows('user STRING, n LONG')")
            raise self._unknown()
        row = obj if type(obj) is self._made else self._ordered(obj)
        data = self._encode(row)
        for number in self._required:
            if row[number] is None:
                raise ValueError(f"column `{self._names[number]}` is NOT NULL, and its value is None")
        return data

    def from_bytes(self, data: bytes) -> Any:
        """See `Serde.from_bytes`."""
        if self._schema is None:
            return self.schema
        row: Row = tuple.__new__(self._made, self._decode(data))
        return row

    def _ordered(self, obj: Any) -> Sequence[Any]:
        if isinstance(obj, dict):
            self._check(obj)
            return [obj.get(name) for name in self._names]
        if isinstance(obj, Row) and hasattr(obj, "__fields__"):
            fields = list(obj.__fields__)
            if fields == self._names:
                return obj
            self._check(fields)
            if missing := [name for name in self._names if name not in fields]:
                raise ValueError(f"the row has no column `{missing[0]}`; it has {', '.join(fields)}")
            return [obj[fields.index(name)] for name in self._names]
        if isinstance(obj, tuple | list):
            return obj
        raise TypeError(f"a row is a Row, a dict or a tuple, not a value of type {type(obj).__name__}")

    def _check(self, fields: Any) -> None:
        for name in fields:
            if name not in self._names:
                raise ValueError(f"there is no column `{name}`; the columns are {', '.join(self._names)}")


class _UtcTimestamp(TimestampType):
    """A timestamp whose values are in UTC: in local time, an hour of autumn would come twice."""

    def fromInternal(self, ts: int) -> datetime:  # noqa: N802 - Spark's name
        return _EPOCH + timedelta(microseconds=ts)


def in_utc(schema: StructType) -> StructType:
    """The schema with timestamps whose values are in UTC. Raises ConfigError for values that messages cannot have."""
    fields = [StructField(field.name, _utc(field.dataType), field.nullable) for field in schema.fields]
    return StructType(fields)


def _utc(kind: DataType) -> DataType:
    match kind:
        case TimestampType():
            return _UtcTimestamp()
        case ArrayType():
            return ArrayType(_utc(kind.elementType), kind.containsNull)
        case MapType():
            return MapType(_utc(kind.keyType), _utc(kind.valueType), kind.valueContainsNull)
        case StructType():
            return in_utc(kind)
        case VariantType():
            raise ConfigError(f"a row cannot have values of type {kind.simpleString()}")
    return kind


def with_schemas(
    graph: ApplicationGraph, inputs: Mapping[str, StructType], parse: Callable[[str], StructType]
) -> ApplicationGraph:
    """The same graph, where every `Rows` knows its columns. The application's own objects stay as they are.

    Args:
        graph: of an application whose inputs have `Rows` as serdes.
        inputs: the columns of the DataFrames, by the name of the stream.
        parse: makes a schema of DDL.

    Raises:
        ConfigError: a declared schema is not that of its DataFrame.
    """
    known = {id(rows): rows for rows in _rows_in(graph)}
    bound: dict[int, Rows] = {}
    for number, rows in known.items():
        if rows.declared is not None:
            bound[number] = Rows(parse(rows.declared) if isinstance(rows.declared, str) else rows.declared)
    for spec in graph.inputs:
        if spec.stream.stream in inputs and isinstance(spec.value_serde, Rows):
            found, before = inputs[spec.stream.stream], bound.get(id(spec.value_serde))
            if before is None:
                bound[id(spec.value_serde)] = Rows(found)
            else:
                check_same(str(spec.stream), before.schema, found)
    for number, rows in known.items():
        if number not in bound:
            raise ConfigError(
                f"{rows!r} is not the serde of an input: name its columns, as in pss.Rows('user STRING, n LONG')"
            )
    made = copy.deepcopy(graph, dict(bound))
    names = {known[number].name: rows.name for number, rows in bound.items()}
    return replace(made, stores=tuple(_renamed(store, names) for store in made.stores))


def check_same(stream: str, declared: StructType, found: StructType) -> None:
    """Raise ConfigError if the columns of a DataFrame are not those that were declared."""
    wanted = [(field.name, field.dataType.simpleString()) for field in declared.fields]
    there = [(field.name, field.dataType.simpleString()) for field in found.fields]
    for number, (name, kind) in enumerate(wanted):
        if number >= len(there):
            raise ConfigError(f"the DataFrame of `{stream}` has no column `{name}`, which is declared as {kind}")
        if there[number] != (name, kind):
            has = "{} {}".format(*there[number])
            raise ConfigError(
                f"the DataFrame of `{stream}` has `{has}` as column {number + 1}, where `{name} {kind}` is declared: "
                "select the columns in the declared order"
            )
    if len(there) > len(wanted):
        raise ConfigError(
            f"the DataFrame of `{stream}` has the column `{there[len(wanted)][0]}`, which is not declared: select the "
            "declared columns"
        )


def _rows_in(value: Any) -> Iterator[Rows]:
    if isinstance(value, Rows):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _rows_in(each)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _rows_in(getattr(value, field.name))
    elif isinstance(value, Serde):
        for each in getattr(value, "__dict__", {}).values():
            yield from _rows_in(each)


def _renamed(store: StoreSpec, names: Mapping[str, str]) -> StoreSpec:
    """The store of an operator under new names of serdes, which its definition includes."""
    serde = store.value_serde
    if not isinstance(serde, OperatorBytes):
        return store
    definition = serde.name
    for before, after in names.items():
        definition = definition.replace(before, after)
    return replace(store, value_serde=OperatorBytes(definition))


def check_keyed(graph: ApplicationGraph) -> None:
    """Raise ConfigError if an operator with state gets bare rows: they have no key, and can be of any task."""
    unkeyed = set[str]()
    shared = {store.name for store in graph.side_stores if store.side is not None and store.side.broadcast}
    for op in graph.operators:
        if op.spreads_keys or (op.input_stream is None and unkeyed.isdisjoint(op.upstream)):
            continue
        if set(op.stores) - (shared if op.reads_shared_stores else set()):
            raise ConfigError(
                f"operator `{op.id}` has state by key, and the rows of a DataFrame have no key: put "
                ".partition_by(lambda row: row.<column>) before it"
            )
        unkeyed.add(op.id)
