"""Avro of messages and of state, through changes of its schema."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest
from fastavro.utils import generate_many
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.admin.state.serdes import serde_of
from penstock.schemas.avro import AvroState
from penstock.schemas.avro_types import why_unreadable
from penstock.schemas.client import MEMORY, memory_registry
from penstock.schemas.registry import Schema
from penstock.testing import TestRunner


def record(name: str, **fields: Any) -> dict[str, Any]:
    """A schema. The value of a field is its type, or its type and its default."""
    made = [
        {"name": field, "type": kind[0], "default": kind[1]}
        if isinstance(kind, tuple)
        else {"name": field, "type": kind}
        for field, kind in fields.items()
    ]
    return {"type": "record", "name": name, "fields": made}


TRIP = record("Trip", tail="string", miles="int")
MORE = record("Trip", tail="string", miles="int", carrier=("string", "unknown"))


def test_types_of_python_come_back() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    schema = record(
        "All",
        price=decimal,
        day={"type": "int", "logicalType": "date"},
        at={"type": "long", "logicalType": "timestamp-micros"},
        id={"type": "string", "logicalType": "uuid"},
        tags={"type": "array", "items": "string"},
        more=(["null", {"type": "map", "values": "double"}], None),
    )
    row = {
        "price": Decimal("12.50"),
        "day": date(2026, 3, 1),
        "at": datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC),
        "id": UUID(int=7),
        "tags": ["a", "b"],
        "more": {"x": 1.5},
    }
    serde = ps.Avro(schema)
    data = serde.to_bytes(row)
    assert serde.from_bytes(data) == row
    assert AvroState.of(schema).from_bytes(AvroState.of(schema).to_bytes(row)) == row


def test_a_schema_is_json_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "trip.avsc"
    file.write_text(json.dumps(TRIP), encoding="utf-8")
    row = {"tail": "N1", "miles": 5}
    assert {ps.Avro(given).to_bytes(row) for given in (TRIP, json.dumps(TRIP), str(file), file)} == {b"\x04N1\n"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"type": "record", "name": "A", "fields": [{"name": "x", "type": "Nowhere"}]}, "not valid: UnknownType"),
        ("{", "is no JSON"),
        ("missing.avsc", "cannot be read"),
        (5, "a schema is a dict, text, or the path"),
        (None, "takes a schema, registry="),
    ],
)
def test_what_is_no_schema_is_refused(given: Any, why: str) -> None:
    with pytest.raises(ps.ConfigError, match=why):
        ps.Avro(given)


@pytest.mark.parametrize(
    "row",
    [{"tail": "N1"}, {"tail": "N1", "miles": 5, "x": 1}, {"tail": 5, "miles": 5}],
)
def test_a_row_that_does_not_fit_is_one_failed_message(row: dict[str, Any]) -> None:
    app = ps.StreamApplication("a")
    app.input("kafka.in").send_to(app.output("kafka.out", value=ps.Avro(TRIP)))
    runner = TestRunner(app, dead_letter="kafka.dead").input("kafka.in", [row, {"tail": "N2", "miles": 1}]).run()
    assert [message.value for message in runner.output("kafka.out")] == [{"tail": "N2", "miles": 1}]
    (letter,) = runner.output("kafka.dead")
    assert "cannot be written by" in str(letter.value)


NESTED = record(
    "Nested",
    id="int",
    at={"type": "long", "logicalType": "timestamp-millis"},
    maybe=(["null", "int"], None),
    legs=({"type": "array", "items": record("Leg", miles="int", next=(["null", "Leg"], None))}, []),
    sums=({"type": "map", "values": "long"}, {}),
    last=(["null", "Leg"], None),
)


@pytest.mark.parametrize(
    ("field", "wrong", "why"),
    [
        ("id", 2**31, "`id`: 2147483648 is out of the range of Avro's int, -2^31 to 2^31 - 1"),
        ("id", -(2**31) - 1, "`id`: -2147483649 is out of"),
        ("at", 2**63, "`at`: 9223372036854775808 is out of the range of Avro's long, -2^63 to 2^63 - 1"),
        ("maybe", 2**40, "`maybe`: 1099511627776 is out of the range of Avro's int"),
        ("legs", [{"miles": 5}, {"miles": 5, "next": {"miles": 2**31}}], "`legs[].next.miles`: 2147483648 is"),
        ("sums", {"a": 1, "b": -(2**64)}, "`sums[]`: -18446744073709551616 is out of the range of Avro's long"),
        ("last", {"miles": 2**31}, "`last.miles`: 2147483648 is out of"),
    ],
)
def test_a_number_out_of_range_is_refused_with_its_field(field: str, wrong: Any, why: str) -> None:
    for serde in (ps.Avro(NESTED), AvroState.of(NESTED)):
        with pytest.raises(ValueError, match=re.escape(why)):
            serde.to_bytes({"id": 1, "at": 1, field: wrong})


def test_numbers_at_the_ends_of_their_range_come_back() -> None:
    serde = ps.Avro(NESTED)
    for sign in (-1, 1):
        small, large = sign * 2**31 - (sign > 0), sign * 2**63 - (sign > 0)
        leg = {"miles": small, "next": None}
        row = {"id": small, "maybe": small, "legs": [leg, leg], "sums": {"a": large}, "last": leg}
        at = datetime(2026, 3, 1, tzinfo=UTC)
        assert serde.from_bytes(serde.to_bytes({**row, "at": at})) == {**row, "at": at}
    numbers = ps.Avro({"type": "array", "items": "int"})
    assert numbers.from_bytes(numbers.to_bytes([])) == []
    with pytest.raises(ValueError, match=r"`\[\]`: 2147483648 is out"):
        numbers.to_bytes([1, 2**31])
    with pytest.raises(ValueError, match=r"^2147483648 is out"):
        ps.Avro("int").to_bytes(2**31)
    with pytest.raises(TypeError, match="`miles`: None is no Avro int"):
        ps.Avro(TRIP).to_bytes({"tail": "N1", "miles": None})


def test_a_number_out_of_range_is_one_failed_message() -> None:
    app = ps.StreamApplication("a")
    app.input("kafka.in").send_to(app.output("kafka.out", value=ps.Avro(TRIP)))
    with pytest.raises(ps.UserCodeError, match=r"SerdeError: output `kafka.out`: the value .* `miles`: 2147483648 is"):
        TestRunner(app).input("kafka.in", [{"tail": "N1", "miles": 2**31}]).run()


@pytest.mark.parametrize("data", [b"", b"\x04N", b"\x04N1\n\x00"])
def test_bytes_of_another_schema_are_refused(data: bytes) -> None:
    with pytest.raises((EOFError, ValueError)):
        ps.Avro(TRIP).from_bytes(data)


def test_bytes_without_an_id_are_no_message_of_a_registry() -> None:
    with pytest.raises(ValueError, match="not in the wire format"):
        ps.Avro(TRIP, registry=ps.SchemaRegistry()).from_bytes(ps.Avro(TRIP).to_bytes({"tail": "N1", "miles": 5}))


# State.


class Miles(ps.StreamTask):
    """Keeps the newest trip of each key, with the sum of all miles."""

    def init(self, context: ps.TaskContext) -> None:
        self.trips: ps.KeyValueStore[str, Any] = context.store("trips")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        before = self.trips.get(envelope.key)
        trip = {**envelope.value, "miles": envelope.value["miles"] + (before["miles"] if before else 0)}
        self.trips.put(envelope.key, trip)
        collector.emit(key=envelope.key, value=before)


def keeping(schema: dict[str, Any]) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    app.store("trips", value=ps.Avro(schema))
    app.input("kafka.in").process(Miles, stores=["trips"], id="miles").send_to(app.output("kafka.out"))
    return app


def test_state_is_read_with_a_later_and_with_an_earlier_schema() -> None:
    runner = TestRunner(keeping(TRIP)).input("kafka.in", [("a", {"tail": "N1", "miles": 1})]).run().commit().crash()
    runner = runner.restore(keeping(MORE)).input("kafka.in", [("b", {"tail": "N2", "miles": 2, "carrier": "UA"})]).run()
    runner = runner.commit().crash().restore(keeping(TRIP))
    runner.input("kafka.in", [("a", {"tail": "N3", "miles": 5}), ("b", {"tail": "N4", "miles": 5})]).run()
    assert [message.value for message in runner.output("kafka.out")][2:] == [
        {"tail": "N1", "miles": 1},
        {"tail": "N2", "miles": 2},
    ]
    runner = runner.commit().crash().restore(keeping(MORE))
    runner.input("kafka.in", [("a", {"tail": "N5", "miles": 5, "carrier": "AA"})]).run()
    assert runner.output("kafka.out")[-1].value == {"tail": "N3", "miles": 6, "carrier": "unknown"}


def test_the_content_of_a_store_is_read_with_the_schemas_that_it_was_written_with() -> None:
    def with_fields(*names: str) -> ps.StreamApplication:
        return keeping(record("Trip", **dict.fromkeys(("miles", *names), ("int", 7))))

    runner = TestRunner(with_fields("a", "b")).input("kafka.in", [("k", {"miles": 1, "a": 2, "b": 3})]).run().commit()
    runner = runner.crash().restore(with_fields("b", "a", "c"))
    assert runner.store("trips") == {"k": {"miles": 1, "a": 2, "b": 3, "c": 7}}
    layout = runner._running().job.plan.layout["trips"].split(" ")[-1]
    found = serde_of(layout)
    assert isinstance(found, AvroState)
    assert [found.from_bytes(value) for _, value in runner._engine(0, "trips").scan(None, None)] in (
        [{"miles": 1, "b": 3, "a": 2, "c": 7}],
        [],
    )


def test_a_schema_that_cannot_read_the_state_is_refused_with_the_field() -> None:
    runner = TestRunner(keeping(TRIP)).input("kafka.in", [("a", {"tail": "N1", "miles": 1})]).run().commit().crash()
    with pytest.raises(ps.IncompatibleError, match=r"store `trips`.*`carrier` has no default.*Give it a default\."):
        runner.restore(keeping(record("Trip", tail="string", miles="int", carrier="string")))
    runner.restore(keeping(TRIP)).input("kafka.in", [("a", {"tail": "N1", "miles": 1})]).run()
    assert runner.output("kafka.out")[-1].value == {"tail": "N1", "miles": 1}


ENUM = {"type": "enum", "name": "E", "symbols": ["a", "b"]}
FIXED = {"type": "fixed", "name": "F", "size": 2}


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({}, {"x": "int"}, "the field `x` has no default, and is not in what was written. Give it a default"),
        ({"x": "string"}, {"x": "int"}, "`x`: string is no int. Keep the type, or use a new field that has a default"),
        ({"x": ["null", "int"]}, {"x": "int"}, "`x`: null is no int. Keep the type"),
        ({"x": "int"}, {"x": ["null", "string"]}, "`x`: no branch of the union takes int. Add one that does"),
        ({"x": ENUM}, {"x": {**ENUM, "symbols": ["a"]}}, "`x`: the symbol `b` is gone. Keep it, or give the enum"),
        ({"x": FIXED}, {"x": {**FIXED, "size": 3}}, "`x`: `F` is no `F`. Keep its name and its size"),
        ({"x": record("A")}, {"x": record("B")}, "`x`: `A` is no `B`. Keep the name, or give the new one `aliases: "),
    ],
)
def test_the_hint_fits_what_is_incompatible(before: dict[str, Any], after: dict[str, Any], why: str) -> None:
    known, registry = AvroState.of(record("R", **before)), memory_registry(f"{MEMORY}{why}")
    with pytest.raises(ps.IncompatibleError, match=re.escape(why)):
        AvroState.of(record("R", **after)).continuing(known.name)
    registry.register("s", Schema("AVRO", json.dumps(record("R", **before))))
    with pytest.raises(ps.IncompatibleError, match=re.escape(why)):
        registry.register("s", Schema("AVRO", json.dumps(record("R", **after))))


def test_the_name_of_stored_avro_has_all_schemas() -> None:
    odd = {**record("Odd", tail=("string", "a ) (! é")), "doc": "not kept"}
    first, second = AvroState.of(odd), AvroState.of(MORE)
    serde = AvroState((*first.schemas, *second.schemas))
    assert not set(" !()") & set(serde.name.removeprefix("avro(")[:-1])
    found = AvroState.named(serde.name)
    assert found is not None
    assert (found.schemas, found.number) == (serde.schemas, 1)
    assert [json.loads(each) for each in serde.schemas] == [record("Odd", tail=("string", "a ) (! é")), MORE]
    assert AvroState.named("json") is AvroState.named("avro({)") is None


# Registries.


def passing(value: ps.Serde[Any], out: ps.Serde[Any]) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    trips = app.input("kafka.in", value=value).partition_by(lambda trip: trip["tail"]).filter(lambda trip: True)
    trips.send_to(app.output("kafka.out", value=out))
    return app


def test_messages_are_read_with_the_schema_that_they_were_written_with(monkeypatch: pytest.MonkeyPatch) -> None:
    url, registry = f"{MEMORY}evolution", ps.SchemaRegistry()
    known = memory_registry(url)
    old, new = (known.register("in-value", Schema("AVRO", json.dumps(each))) for each in (TRIP, MORE))
    rows = [{"tail": "N1", "miles": 1}, {"tail": "N2", "miles": 2, "carrier": "UA"}]
    sent = [
        b"\x00" + each.to_bytes(4, "big") + ps.Avro(schema).to_bytes(row)
        for each, schema, row in zip((old, new), (TRIP, MORE), rows, strict=True)
    ]
    config = {"schema.registry.url": url}

    def results(value: ps.Serde[Any], out: dict[str, Any]) -> list[Any]:
        app = passing(value, ps.Avro(out, registry=registry))
        runner = TestRunner(app, config=config)
        messages = [(0, None, each) for each in sent]
        runner._home.streams.systems["kafka"].writer(None).append(ps.SystemStreamPartition("kafka", "in", 0), messages)
        return [message.value for message in runner.run().output("kafka.out")]

    assert results(ps.Avro(MORE, registry=registry), MORE) == [{**rows[0], "carrier": "unknown"}, rows[1]]
    assert results(ps.Avro(TRIP, registry=registry), TRIP) == [rows[0], {"tail": "N2", "miles": 2}]
    assert results(ps.Avro(registry=registry), MORE) == [{**rows[0], "carrier": "unknown"}, rows[1]]


def test_the_registry_in_memory_compares_a_schema_with_the_newest_of_its_subject() -> None:
    registry = memory_registry(f"{MEMORY}compared")
    schemas = [Schema("AVRO", json.dumps(record("R", **{name: "int"}, z=("int", 0)))) for name in ("a", "b")]
    first = registry.register("s", schemas[1])
    with pytest.raises(ps.IncompatibleError, match=r"subject `s`: messages of its newest schema \(version 1\) .*`a`"):
        registry.register("s", schemas[0])
    with pytest.raises(ps.NotFoundError):
        registry.lookup("s", schemas[0])
    with pytest.raises(ps.IncompatibleError, match="it is JSON, and the other AVRO"):
        registry.register("s", Schema("JSON", "{}"))
    assert registry.register("s", schemas[1]) == registry.lookup("s", schemas[1]) == first
    assert registry.register("other", schemas[0]) != first


def test_a_test_finds_an_output_whose_schema_the_registry_would_refuse() -> None:
    registry = ps.SchemaRegistry()
    config = {"schema.registry.url": f"{MEMORY}outputs"}
    TestRunner(passing(ps.Json(), ps.Avro(TRIP, registry=registry)), config=config)
    TestRunner(passing(ps.Json(), ps.Avro(MORE, registry=registry)), config=config)
    other = ps.Avro(record("Trip", tail="string", miles="string"), registry=registry)
    with pytest.raises(ps.IncompatibleError, match=r"subject `out-value`.*`miles`: int is no string"):
        TestRunner(passing(ps.Json(), other), config=config)


@pytest.mark.parametrize("options", [{"register": "no"}, {"register": None}, {"subjects": 5}, {"url": 5}])
def test_wrong_arguments_of_a_registry_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ps.ConfigError, match=rf"SchemaRegistry\({name}=.*\): .*(True or False|it is `topic`|is text)"):
        ps.SchemaRegistry(**options)


NAMES = st.sampled_from(["a", "b", "c"])
PRIMITIVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "string", "bytes"])


def types(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(lambda kind: {"type": "array", "items": kind}, inner),
        st.builds(lambda kind: {"type": "map", "values": kind}, inner),
        st.builds(lambda kind: ["null", kind] if kind != "null" and not isinstance(kind, list) else kind, inner),
    )


KINDS = st.recursive(PRIMITIVES, types, max_leaves=3)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(st.dictionaries(NAMES, KINDS, min_size=1, max_size=3))
    if draw(st.booleans()):
        fields["c"] = (["null", "int"], None)
    return record("R", **fields)


@given(records(), records())
def test_schemas_are_refused_exactly_if_values_cannot_be_read(written: dict[str, Any], read: dict[str, Any]) -> None:
    """Beside what fastavro does with values of the schema."""
    one, other = (fastavro.parse_schema(each, _write_hint=False) for each in (written, read))
    why, fails = why_unreadable(written, read), []
    for value in generate_many(one, 20):
        data = ps.Avro(written).to_bytes(value)
        try:
            fastavro.schemaless_reader(io.BytesIO(data), one, other)
        except UnicodeDecodeError:
            continue  # Avro lets bytes be read as a string, although some are none
        except Exception as error:  # whatever it raises, the value is not read
            fails.append(error)
    assert why or not fails, fails
