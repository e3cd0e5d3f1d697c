"""State variables of processors as columns, from the bytes that the processor's own code writes."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    VariantVal,
)

from penstock.graph.stores import StoreLayout
from penstock.spark.processor.codec import RowCodec, StoredLists
from penstock.spark.processor.declared import Variable
from penstock.spark.processor.fields import KeyCodec
from penstock.spark.state_columns import StateColumns
from penstock.spark.state_frames import is_state_variable, variable_columns
from penstock.state.reading.comparison import differences
from penstock.state.reading.reader import VersionEntry

KEY = StructType().add("user", StringType()).add("number", LongType())
NESTED = StructType().add("a b", LongType())
SCHEMA = StructType().add("n", LongType()).add("names, all", ArrayType(StringType())).add("exact", DecimalType(10, 2))
TYPES: Mapping[str, DataType] = {
    kind.simpleString(): kind
    for kind in (
        *(StringType(), LongType(), ArrayType(StringType()), DecimalType(10, 2)),
        *(TimestampType(), TimestampNTZType(), ArrayType(TimestampType()), VariantType()),
    )
}


class Store(dict[bytes, bytes]):
    """A store's entries."""

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.pop(key, None)
        else:
            self[key] = value


def columns(variable: Variable) -> tuple[list[str], StateColumns]:
    """The names and types of the columns, and what a worker gets that makes them."""
    spec = variable.store(KEY)
    layout = StoreLayout.parse(f"op {spec.key_serde.name} {spec.value_serde.name}")
    assert is_state_variable(layout)
    keys, value, made = variable_columns(variable.name, layout, TYPES.__getitem__)
    return [f"{each.name} {each.dataType.simpleString()}" for each in (*keys, value)], pickle.loads(pickle.dumps(made))


def shown(made: StateColumns, entries: Iterable[VersionEntry], now_ms: int = 0) -> list[dict[str, Any]]:
    found = entries if made.view is None else made.view(entries, now_ms)
    pairs = [(each.key, each.value) for each in found]
    return [row for batch in made.entries(3, pairs) for row in batch.to_pylist()]


def entries(store: Mapping[bytes, bytes]) -> list[VersionEntry]:
    return [VersionEntry(key, 3, store[key]) for key in sorted(store)]


def test_a_variant_is_shown_as_arrow_has_it() -> None:
    schema, keys = StructType().add("v", VariantType()), KeyCodec(KEY)
    given = VariantVal.parseJson('{"a": 5}')
    encoded = RowCodec(schema).encode((given,))
    (back,) = RowCodec(schema).decode(encoded)
    assert back.toPython() == {"a": 5}
    store = Store({keys.encode(("ann", 1)): encoded})
    variable = Variable("value", "variants", schema)
    names, made = columns(variable)
    assert names[1] == "value struct<v:variant>"
    (row,) = shown(made, entries(store))
    assert VariantVal(**row["value"]["v"]).toPython() == {"a": 5}


def test_a_value() -> None:
    store, keys, rows = Store(), KeyCodec(KEY), RowCodec(SCHEMA)
    names, made = columns(Variable("value", "totals", SCHEMA))
    assert names == [
        "key struct<user:string,number:bigint>",
        "value struct<n:bigint,names, all:array<string>,exact:decimal(10,2)>",
    ]
    store.put(keys.encode(("ann", 1)), rows.encode((7, ["x", None], Decimal("1.50"))))
    store.put(keys.encode((None, 2)), rows.encode((None, None, None)))
    store.put(keys.encode(("old", 3)), RowCodec(StructType(SCHEMA.fields[:1])).encode((1,)))
    found = {row["key"]["user"]: row for row in shown(made, entries(store))}
    assert found["ann"] == {
        "task": 3,
        "key": {"user": "ann", "number": 1},
        "value": {"n": 7, "names, all": ["x", None], "exact": Decimal("1.50")},
    }
    assert found[None]["value"] == {"n": None, "names, all": None, "exact": None}
    assert found["old"]["value"] == {"n": 1, "names, all": None, "exact": None}


def test_times_are_those_that_were_stored() -> None:
    """Whatever the time zone of the process is."""
    schema = (
        StructType().add("at", TimestampType()).add("all", ArrayType(TimestampType())).add("local", TimestampNTZType())
    )
    at = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
    local = datetime(2024, 5, 1, 12, 30)  # noqa: DTZ001 - Spark has such times
    key = KeyCodec(KEY).encode(("ann", 1))
    _, made = columns(Variable("value", "times", schema))
    (row,) = shown(made, [VersionEntry(key, 3, RowCodec(schema).encode((at, [at, None], local)))])
    assert row["value"] == {"at": at, "all": [at, None], "local": local}


def test_a_map() -> None:
    user_key, value = StructType().add("place", StringType()), StructType().add("n", LongType())
    names, made = columns(Variable("map", "places", value, user_key))
    assert names == ["key struct<user:string,number:bigint>", "user_key struct<place:string>", "value struct<n:bigint>"]
    store, keys, users, rows = Store(), KeyCodec(KEY), KeyCodec(user_key), RowCodec(value)
    for user in ("ann", "annabel"):
        for n, place in enumerate(["here", "there", None]):
            store.put(keys.encode((user, 1)) + users.encode((place,)), rows.encode((n,)))
    found = {(row["key"]["user"], row["user_key"]["place"], row["value"]["n"]) for row in shown(made, entries(store))}
    assert found == {(user, place, n) for user in ("ann", "annabel") for n, place in enumerate(["here", "there", None])}


def test_lists_of_any_length() -> None:
    value = StructType().add("text", StringType())
    for ttl_ms in (None, 1000):
        names, made = columns(Variable("list", "texts", value, None, ttl_ms))
        assert names[1] == "value array<struct<text:string>>"
        store, keys, rows = Store(), KeyCodec(KEY), RowCodec(value)
        time_ms = [0]
        lists = StoredLists(store, ttl_ms, lambda at=time_ms: at[0])  # type: ignore[arg-type, misc]
        expected: dict[str, list[str]] = {}
        for user, count in (("ann", 1), ("annabel", 900), ("bob", 40), ("gone", 3)):
            expected[user] = [f"{user} {n} " + "x" * 100 for n in range(count)]
            for text in expected[user]:
                lists.append(keys.encode((user, 1)), [rows.encode((text,))])
        lists.put(keys.encode(("gone", 1)), [])
        del expected["gone"]
        found = {
            row["key"]["user"]: [each["text"] for each in row["value"]] for row in shown(made, entries(store), 500)
        }
        assert found == expected
        if ttl_ms is not None:
            time_ms[0] = 800
            lists.append(keys.encode(("bob", 1)), [rows.encode(("new",))])
            assert [row["value"] for row in shown(made, entries(store), 1200)] == [[{"text": "new"}]]


def test_changes_of_lists_are_those_of_whole_lists() -> None:
    """An element that moved from the head into a piece is no change."""
    value = StructType().add("text", StringType())
    _, made = columns(Variable("list", "texts", value))
    keys, rows = KeyCodec(KEY), RowCodec(value)
    stores = [Store(), Store()]
    for n, store in enumerate(stores):
        lists = StoredLists(store)  # type: ignore[arg-type]
        elements = [rows.encode((str(k) * 5000,)) for k in range(4)]
        for each in [elements] if n else [[element] for element in elements]:
            lists.append(keys.encode(("same", 1)), each)
        lists.append(keys.encode(("more", 1)), elements[: n + 1])
    assert made.view is not None
    old, new = (made.view(entries(store), 0) for store in stores)
    changes = [(each.change, each.key, each.before, each.after) for each in differences(old, new)]
    (row,) = [row for batch in made.changes(3, changes) for row in batch.to_pylist()]
    assert (row["change"], row["key"]["user"], len(row["before"]), len(row["after"])) == ("changed", "more", 1, 2)
