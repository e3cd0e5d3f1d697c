"""Adds the columns of rows to an application, once its DataFrames are known."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from pyspark.sql.types import StructType

from penstock.api.serdes import Serde
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import OperatorBytes, StoreSpec
from penstock.spark.rows.serde import Rows


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
