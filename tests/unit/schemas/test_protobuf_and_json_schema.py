"""Protobuf and JSON Schema, without a registry and in the wire format of one."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.schemas.protobuf import _read_varint, _varint
from penstock.testing import TestRunner
from tests.support.faults.damaged_bytes import grows_too_fast, memory_budget
from tests.support.streams import trips_pb2

REGISTRY = ps.SchemaRegistry()
TRIP = {
    "title": "Trip",
    "type": "object",
    "properties": {"tail": {"type": "string"}, "miles": {"type": "integer", "minimum": 0}},
    "required": ["tail"],
}


CLASSES: dict[str, type[Any]] = {
    "air.Plane": trips_pb2.Plane,
    "air.Trip": trips_pb2.Trip,
    "air.Trip.Leg": trips_pb2.Trip.Leg,
    "air.Other": trips_pb2.Other,
}


@pytest.mark.parametrize(("name", "head"), [("air.Other", "00"), ("air.Trip", "0202"), ("air.Trip.Leg", "040200")])
def test_a_message_says_which_one_of_its_file_it_is(name: str, head: str) -> None:
    serde, message = ps.Protobuf(CLASSES[name], registry=REGISTRY), CLASSES[name]()
    data = serde.to_bytes(message)
    assert data.hex() == f"0000000000{head}"
    assert serde.from_bytes(data) == message
    others = [
        ps.Protobuf(other, registry=REGISTRY) for each, other in CLASSES.items() if each not in (name, "air.Plane")
    ]
    for other in others:
        with pytest.raises(ValueError, match="of its file"):
            other.from_bytes(data)


def test_the_file_comes_with_those_that_it_imports() -> None:
    schema = ps.Protobuf(CLASSES["air.Trip"]).schema
    assert schema is not None
    assert [(each.name, each.subject) for each in schema.references] == [("planes.proto", "planes.proto")]
    assert schema != ps.Protobuf(CLASSES["air.Plane"]).schema == schema.references[0].schema


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02\x82", b"\x04\x02", b"\xff" * 12, b"\x02\x02\xff"])
def test_damaged_messages_of_protobuf_are_refused(data: bytes) -> None:
    with pytest.raises(Exception, match=r"head|file|parsing|decod"):
        ps.Protobuf(CLASSES["air.Trip"], registry=REGISTRY).from_bytes(b"\x00\x00\x00\x00\x00" + data)


@given(st.integers(-(2**62), 2**62), st.binary(max_size=3))
def test_numbers_of_protobuf_come_back(number: int, more: bytes) -> None:
    data = _varint(number)
    assert _read_varint(data + more, 0) == (number, len(data))


def test_a_class_of_something_else_is_refused() -> None:
    for wrong in (dict, 5, "Trip", CLASSES["air.Trip"]()):
        with pytest.raises(ps.ConfigError, match="that protoc has generated"):
            ps.Protobuf(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"takes a Trip, not a Plane"):
        ps.Protobuf(CLASSES["air.Trip"]).to_bytes(CLASSES["air.Plane"]())


@pytest.mark.parametrize(
    ("row", "why"),
    [({"miles": 1}, "'tail' is a required property"), ({"tail": "N1", "miles": -1}, "`miles`: -1 is less than")],
)
def test_json_that_does_not_fit_its_schema_is_one_failed_message(row: dict[str, Any], why: str) -> None:
    app = ps.StreamApplication("a")
    app.input("kafka.in").send_to(app.output("kafka.out", value=ps.JsonSchema(TRIP)))
    runner = TestRunner(app, dead_letter="kafka.dead").input("kafka.in", [row, {"tail": "N2", "miles": 1}]).run()
    assert [message.value for message in runner.output("kafka.out")] == [{"tail": "N2", "miles": 1}]
    (letter,) = runner.output("kafka.dead")
    assert why in letter.value.decode()
    with pytest.raises(ValueError, match=r"required|minimum"):
        ps.JsonSchema(TRIP).from_bytes(ps.Json().to_bytes(row))


@pytest.mark.parametrize("given", [{"type": "nothing"}, "{", "[]", "missing.json", 5, None])
def test_what_is_no_json_schema_is_refused(given: Any) -> None:
    with pytest.raises(ps.ConfigError, match=r"ps\.JsonSchema\(\)"):
        ps.JsonSchema(given)


@pytest.mark.parametrize(
    "given",
    [
        {"$ref": "#/$defs/trip"},
        {"properties": {"legs": {"items": {"$ref": "#leg"}}}},
        {"$defs": {"trip": {"$ref": "https://example.com/trip.json"}}},
        {"type": "object", "$ref": "#/type/x"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"$ref": "#/definitions/a"}}},
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(given: Any) -> None:
    with pytest.raises(ps.ConfigError, match=r"`\$ref` '.*', which leads nowhere"):
        ps.JsonSchema(given)


@pytest.mark.parametrize(
    "given",
    [
        {"$ref": "#/$defs/trip", "$defs": {"trip": {"type": "object"}}},
        {"$ref": "#trip", "$defs": {"t": {"$anchor": "trip", "type": "object"}}},
        {"$id": "https://example.com/a", "$ref": "b", "$defs": {"b": {"$id": "b", "type": "object"}}},
        {"type": "object", "properties": {"$ref": {"type": "string"}, "next": {"$ref": "#"}}},
        {"type": "object", "not": {"const": {"$ref": "#/nowhere"}}},
    ],
)
def test_references_within_a_schema_are_followed(given: Any) -> None:
    serde = ps.JsonSchema(given)
    assert serde.from_bytes(b"{}") == {}
    with pytest.raises(ValueError, match="is not of type 'object'"):
        serde.from_bytes(b"5")


def test_json_with_a_schema_is_read_where_json_was_before() -> None:
    """In stores its bytes and its name are those of JSON, so a schema can be added later."""

    def keeping(value: ps.Serde[Any]) -> ps.StreamApplication:
        app = ps.StreamApplication("a")
        table = app.table("trips", value=value)
        app.input("kafka.trips", value=ps.Json()).send_to(table)
        app.input("kafka.in").join_table(table, lambda _, trip: trip).send_to(app.output("kafka.out"))
        return app

    runner = TestRunner(keeping(ps.Json())).input("kafka.trips", [("a", {"tail": "N1"})]).run().commit().crash()
    runner.restore(keeping(ps.JsonSchema(TRIP))).input("kafka.in", [("a", 0)]).run()
    assert [message.value for message in runner.output("kafka.out")] == [{"tail": "N1"}]


UNIQUE = ps.JsonSchema({"type": "array", "uniqueItems": True})


@pytest.mark.parametrize(
    ("data", "is_unique"),
    [
        (b"[]", True),
        (b'[1, "1", true, null, [1], {"a": 1}, {"a": "1"}, {"1": 1}, 1.5, 0, false, ""]', True),
        (b"[1, 1.0]", False),
        (b'[{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}]', False),
        (b"[[1, 2], [2, 1]]", True),
        (b"[[true], [1]]", True),
        (b"[null, null]", False),
    ],
)
def test_unique_items(data: bytes, is_unique: bool) -> None:
    if is_unique:
        UNIQUE.from_bytes(data)
    else:
        with pytest.raises(ValueError, match="1 of its items are equal to others"):
            UNIQUE.from_bytes(data)


def test_the_check_of_unique_items_grows_with_the_items() -> None:
    def objects(count: int) -> bytes:
        return b"[%b]" % b",".join(b'{"a":%d}' % number for number in range(count))

    assert not grows_too_fast(UNIQUE.from_bytes, objects, 1000)


@pytest.mark.parametrize("data", [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000, b"1" * 1_000_000])
def test_json_that_is_too_deep_or_too_long_a_number_is_one_failed_message(data: bytes) -> None:
    for serde in (ps.Json(), UNIQUE, ps.Columns(pa.schema({"a": pa.int64()}))):
        with pytest.raises((ValueError, RecursionError)):
            serde.from_bytes(data)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (
            {"properties": {"a": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}, "required": ["b"]},
            b'{"a":' * 25 + b"{}" + b"}" * 25,
        ),
        ({"anyOf": [{"type": "array", "items": {"$ref": "#"}}] * 2}, b"[" * 25 + b'""' + b"]" * 25),
        ({"contains": {"const": 1}, "unevaluatedItems": False}, b"[%b1]" % (b"1," * 9999)),
        (
            {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "type": "object"}] * 3},
            b'{"a":' * 9 + b'"%b"' % (b"x" * 50_000) + b"}" * 9,
        ),
    ],
)
def test_rules_that_lead_to_each_other_have_a_budget(schema: Any, data: bytes) -> None:
    with memory_budget(64 << 20), pytest.raises(ValueError, match="takes more work to check than its size allows"):
        ps.JsonSchema(schema).from_bytes(data)


@pytest.mark.attack
def test_each_byte_may_be_checked_by_each_rule() -> None:
    branch = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 0}}}
    serde = ps.JsonSchema({"items": {"anyOf": [{**branch, "maxProperties": 0}] * 20 + [branch]}})
    rows = [{"a": number} for number in range(2000)]
    assert serde.from_bytes(ps.Json().to_bytes(rows)) == rows


@pytest.mark.attack
def test_what_a_library_says_of_a_large_value_is_cut() -> None:
    app = ps.StreamApplication("a")
    app.input("kafka.in", value=ps.JsonSchema({"type": "integer"})).send_to(app.output("kafka.out"))
    runner = TestRunner(app, dead_letter="kafka.dead").input("kafka.in", [b'"%b"' % (b"x" * 100_000)], raw=True).run()
    (letter,) = runner.output("kafka.dead")
    assert 2000 < len(json.loads(letter.value)["reason"]) < 3000
