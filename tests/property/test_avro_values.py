"""Avro against its specification: what a type takes, what it refuses, what others read, and what bytes may cost.

fastavro is the oracle of the bytes: it reads and writes the same for values that are exactly of their type.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from penstock.schemas.avro import AvroState
from penstock.schemas.avro_resolved import reader_of
from penstock.schemas.avro_types import AvroTypes, why_unreadable
from tests.support.faults.damaged_bytes import memory_budget

Typed = tuple[Any, st.SearchStrategy[Any]]
"""A schema and its values."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
LOCAL = datetime(2020, 1, 1, 1, 2, 3, 4567, UTC).replace(tzinfo=None)


def logical(kind: str, of: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": of, **more}


def whole_millis(value: Any) -> Any:
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def narrow(value: float) -> float:
    found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return found


UTC_TIMES = st.datetimes(timezones=st.just(UTC))
PRIMITIVES: list[Typed] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-(2**31), 2**31 - 1, -64, 63, 64])),
    ("long", st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1])),
    ("float", st.floats(width=32)),
    ("double", st.floats()),
    ("string", TEXT),
    ("bytes", st.binary(max_size=5)),
    (logical("int", "date"), st.dates()),
    (logical("int", "time-millis"), st.times().map(whole_millis)),
    (logical("long", "time-micros"), st.times()),
    (logical("long", "timestamp-millis"), UTC_TIMES.map(whole_millis)),
    (logical("long", "timestamp-micros"), UTC_TIMES),
    (logical("long", "local-timestamp-millis"), st.datetimes().map(whole_millis)),
    (logical("long", "local-timestamp-micros"), st.datetimes()),
    (logical("string", "uuid"), st.uuids()),
    (logical("bytes", "decimal", precision=9, scale=3), st.decimals(-999999, 999999, places=3)),
]


@st.composite
def schemas(draw: st.DrawFn, names: list[int] | None = None, levels: int = 3) -> Typed:
    """Any schema, with names that it has once."""
    names = [] if names is None else names
    kinds = ["plain"] * 3 + ["enum", "fixed", "decimal"] + ["record", "array", "map", "union", "list"] * bool(levels)
    kind = draw(st.sampled_from(kinds))
    if kind == "plain":
        return draw(st.sampled_from(PRIMITIVES))
    if kind in ("array", "map"):
        inner, values = draw(schemas(names, levels - 1))
        if kind == "array":
            return {"type": "array", "items": inner}, st.lists(values, max_size=3)
        return {"type": "map", "values": inner}, st.dictionaries(TEXT, values, max_size=3)
    if kind == "union":
        inner, values = draw(schemas(names, levels - 1).filter(lambda each: not isinstance(each[0], list)))
        return (inner, values) if inner == "null" else (["null", inner], st.none() | values)
    names.append(len(names))
    name = f"N{names[-1]}"
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B"]}, st.sampled_from("AB")
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": 3}, st.binary(min_size=3, max_size=3)
    if kind == "decimal":
        fixed = logical("fixed", "decimal", name=name, size=5, precision=9, scale=2)
        return fixed, st.decimals(-9999999, 9999999, places=2)
    fields = {f"f{n}": draw(schemas(names, levels - 1)) for n in range(draw(st.integers(0, 3)))}
    made = {field: values for field, (_, values) in fields.items()}
    parts: list[Any] = [{"name": field, "type": inner} for field, (inner, _) in fields.items()]
    schema = {"type": "record", "name": name, "fields": parts}
    if kind == "record":
        return schema, st.fixed_dictionaries(made)
    parts.append({"name": "next", "type": ["null", name]})
    end = st.fixed_dictionaries({**made, "next": st.none()})
    return schema, st.fixed_dictionaries({**made, "next": st.none() | end})


def same(one: Any, other: Any) -> bool:
    """Equal, of equal types, NaN and the signs of zero included."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("<d", one) == struct.pack("<d", other) or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and bool(one == other)


def written_by_fastavro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema, _write_hint=False), value)
    return stream.getvalue()


def read_by_fastavro(schema: Any, data: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema, _write_hint=False), None)


@given(typed=schemas(), data=st.data())
def test_values_come_back_and_have_the_bytes_of_avro(typed: Typed, data: st.DataObject) -> None:
    schema, values = typed
    value = data.draw(values)
    serde = ps.Avro(schema)
    written = serde.to_bytes(value)
    assert same(serde.from_bytes(written), value)
    assert written == written_by_fastavro(schema, value)
    assert same(read_by_fastavro(schema, written), value)
    state = AvroState.of(schema)
    assert state.to_bytes(value) == b"\x00" + written
    assert same(state.from_bytes(b"\x00" + written), value)


ODD: list[Any] = [
    *[None, True, False, 0, 1, -1, 65, 1.0, 1.7, -0.0, 0.1, 1e300, -1e300, 1e-300, math.inf, -math.inf, math.nan],
    *[2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**400, 16777217],
    *["", "A", "C", "1", "1.5", "2020-01-01", "\ud800", str(UUID(int=5)), b"", b"abc", b"\xff\xff\xff\xff\xff"],
    *[bytearray(b"abc"), memoryview(b"ab"), [], [1], (), (1, 2), {1}, {}, {"a": 1}, {1: 2}, {"f0": 1}, {"f0": None}],
    *[date(2020, 1, 1), date.max, LOCAL, datetime(2020, 1, 1, tzinfo=UTC)],
    *[datetime(2020, 1, 1, microsecond=1, tzinfo=timezone(timedelta(hours=5))), time(1), time(1, 2, 3, 4567)],
    *[time(1, tzinfo=UTC), timedelta(1), Decimal("1.5"), Decimal("1.0005"), Decimal("1E+300000000")],
    *[Decimal("1E-300000000"), Decimal("NaN"), Decimal("-Infinity"), Decimal("-0"), Decimal(10**9), UUID(int=5)],
    *[Fraction(1, 3), Fraction(1, 2), 1j, object(), np.int64(5), np.float32(0.1), np.bool_(True), np.array([1, 2])],
]
NAMED: list[Any] = [
    {"type": "enum", "name": "E", "symbols": ["A", "B"]},
    {"type": "fixed", "name": "F", "size": 3},
    logical("fixed", "decimal", name="D", size=3, precision=5, scale=2),
    {"type": "record", "name": "R", "fields": [{"name": "f0", "type": "long"}]},
    {"type": "array", "items": "int"},
    {"type": "map", "values": "int"},
]


def is_rendering(value: Any, found: Any, schema: Any) -> bool:
    """True if what was read is the value, in a type of Python that stands for it."""
    if isinstance(value, bool | np.bool_):
        return found is bool(value)
    if schema == "float" and isinstance(value, float | np.floating):
        return same(found, narrow(float(value))) and (found != 0 or value == 0)
    if isinstance(value, float | np.floating):
        return same(found, float(value))
    if isinstance(value, bytearray | memoryview):
        return bool(found == bytes(value))
    if isinstance(value, np.ndarray | tuple):
        return bool(found == list(value))
    plain = schema.get("logicalType") if isinstance(schema, dict) else None
    if plain and isinstance(value, int | str | bytes) and not isinstance(found, Decimal):
        return bool(read_by_fastavro(schema, written_by_fastavro(schema, value)) == found)
    if isinstance(found, Decimal) and isinstance(value, bytes):
        return found.scaleb(schema["scale"]) == int.from_bytes(value, "big", signed=True)
    if isinstance(value, str | bytes | dict | list) or isinstance(found, bool):
        return same(found, value)
    return bool(found == value)


@pytest.mark.parametrize("schema", [*(each for each, _ in PRIMITIVES if each != "null"), *NAMED], ids=str)
def test_a_value_comes_back_or_is_refused(schema: Any) -> None:
    """Alone, optional, and in a record, an array and a map."""
    forms: list[tuple[Any, Callable[[Any], Any]]] = [
        (schema, lambda value: value),
        (["null", schema], lambda value: value),
        ({"type": "array", "items": schema}, lambda value: [value]),
        ({"type": "map", "values": schema}, lambda value: {"k": value}),
        ({"type": "record", "name": "Outer", "fields": [{"name": "x", "type": schema}]}, lambda value: {"x": value}),
    ]
    kept = 0
    for form, wrapped in forms:
        serde = ps.Avro(form)
        for value in ODD:
            if value is None and isinstance(form, list):
                continue
            try:
                data = serde.to_bytes(wrapped(value))
            except (TypeError, ValueError):
                continue
            found = serde.from_bytes(data)
            inner = (
                found if wrapped(value) is value else next(iter(found.values() if isinstance(found, dict) else found))
            )
            assert is_rendering(value, inner, schema), (value, inner)
            assert same(serde.from_bytes(serde.to_bytes(found)), found), "what was read can be put back"
            kept += 1
    assert kept >= len(forms)


WRONG = [
    ("long", 1.7, "1.7 is no Avro long"),
    ("int", True, "True is no Avro int"),
    ("double", False, "False is no Avro double"),
    ("float", 1e300, "out of the range of Avro's float"),
    ("float", -3.5e38, "out of the range of Avro's float"),
    ("float", 1e-300, "1e-300 is no Avro float: the nearest one is 0.0"),
    ("double", 2**53 + 1, "is no Avro double: the nearest one is 9007199254740992.0"),
    ("double", "1.5", "'1.5' is no Avro double"),
    ("boolean", 1, "1 is no Avro boolean"),
    ("string", b"x", "b'x' is no Avro string"),
    ("bytes", "x", "'x' is no Avro bytes"),
    (logical("int", "date"), LOCAL, "is no Avro date"),
    (logical("long", "timestamp-micros"), LOCAL, "has no time zone.*tzinfo=UTC"),
    (logical("long", "local-timestamp-micros"), datetime(2020, 1, 1, tzinfo=UTC), "has a time zone"),
    (
        logical("long", "timestamp-millis"),
        datetime(2020, 1, 1, 0, 0, 0, 1500, tzinfo=UTC),
        "between two values.*round it",
    ),
    (logical("bytes", "decimal", precision=4, scale=2), Decimal("1.005"), "round it"),
    (
        logical("bytes", "decimal", precision=4, scale=2),
        Decimal("100.00"),
        "is no Avro decimal with 4 digits, 2 of them",
    ),
    (["int", "string"], 1.5, r"1.5 fits no branch of a union of int, string"),
    ({"type": "array", "items": "int"}, {1}, "is no list"),
    ({"type": "array", "items": "int"}, "1", "is no list"),
    ({"type": "map", "values": "int"}, {1: 1}, "1 is no Avro string"),
    (NAMED[0], "C", "'C' is no symbol of the Avro enum `E`: A, B"),
    (NAMED[1], b"ab", "it has 2 bytes, and the Avro fixed `F` has 3"),
    (NAMED[3], {}, "`f0`: the field is missing, and has no default"),
    (NAMED[3], {"f0": 1, "f1": 1}, "there is no field 'f1' in the record `R`; its fields are f0"),
    (NAMED[3], [1], "is no dict with the fields"),
]


@pytest.mark.parametrize(("schema", "value", "why"), WRONG)
def test_what_is_no_value_of_the_type_is_refused_with_the_reason(schema: Any, value: Any, why: str) -> None:
    for serde in (ps.Avro(schema), AvroState.of(schema)):
        with pytest.raises((TypeError, ValueError), match=why):
            serde.to_bytes(value)


def test_a_union_takes_the_branch_of_the_value() -> None:
    numbers = ps.Avro(["null", "float", "double", "int", "long", "boolean", logical("bytes", "decimal", precision=4)])
    value: Any
    for value in (None, 1.5, 0.1, 1e300, 5, 2**40, -(2**63), True, Decimal(5)):
        assert same(numbers.from_bytes(numbers.to_bytes(value)), value)
    small = {"type": "record", "name": "Small", "fields": [{"name": "x", "type": "int"}]}
    text = {
        "type": "record",
        "name": "Text",
        "fields": [{"name": "x", "type": "string"}, {"name": "y", "type": "int", "default": 7}],
    }
    objects = ps.Avro([{"type": "map", "values": "double"}, small, text, {"type": "array", "items": "string"}])
    for value in ({"x": 1}, {"x": 1.5}, {"x": "a", "y": 5}, {"z": 1.0}, {}, ["a"]):
        assert same(objects.from_bytes(objects.to_bytes(value)), value)
    assert objects.from_bytes(objects.to_bytes({"x": "a"})) == {"x": "a", "y": 7}
    assert objects.to_bytes(("Small", {"x": 1})) == b"\x02\x02"
    with pytest.raises(ValueError, match=r"fits no branch of a union .*`x`: 'a' is no Avro int"):
        ps.Avro([{"type": "map", "values": "int"}, small]).to_bytes({"x": "a"})
    with pytest.raises(ValueError, match=r"^9007199254740993 is no Avro double"):
        ps.Avro(["double", "string"]).to_bytes(2**53 + 1)


# Defaults, and values of other schemas.

NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "n", "type": "int", "default": 3}, {"name": "next", "type": ["null", "Node"], "default": None}],
}
DEFAULTS: list[tuple[Any, Any, Any]] = [
    ("bytes", "\u00ff", b"\xff"),
    ({"type": "fixed", "name": "F", "size": 2}, "\u0000\u00ff", b"\x00\xff"),
    (logical("bytes", "decimal", precision=4, scale=2), "\u0001\u0000", Decimal("2.56")),
    (logical("fixed", "decimal", name="D", size=2, precision=4, scale=2), "\u00ff\u00ff", Decimal("-0.01")),
    (logical("int", "date"), 5, date(1970, 1, 6)),
    (logical("int", "time-millis"), 5, time(0, 0, 0, 5000)),
    (logical("long", "time-micros"), 5, time(0, 0, 0, 5)),
    (logical("long", "timestamp-millis"), 5, datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=UTC)),
    (logical("long", "local-timestamp-micros"), 0, datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)),
    (logical("string", "uuid"), str(UUID(int=5)), UUID(int=5)),
    (["bytes", "null"], "\u00ff", b"\xff"),
    (["null", "bytes"], None, None),
    (["null", "bytes"], "\u00ff", b"\xff"),
    ("double", 1, 1.0),
    ("double", "NaN", math.nan),
    ("float", 0.1, 0.1),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ({"type": "array", "items": "bytes"}, ["\u00ff", "a"], [b"\xff", b"a"]),
    ({"type": "map", "values": logical("int", "date")}, {"k": 5}, {"k": date(1970, 1, 6)}),
    (NODE, {}, {"n": 3, "next": None}),
    (NODE, {"next": {"n": 5}}, {"n": 3, "next": {"n": 5, "next": None}}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "default", "value"), DEFAULTS)
def test_a_default_is_a_value_of_its_type_in_messages_and_in_state(kind: Any, default: Any, value: Any) -> None:
    before = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    field = {"name": "b", "type": kind, "default": default}
    schema = {**before, "fields": [*before["fields"], field]}
    state = AvroState.of(schema).continuing(AvroState.of(before).name)
    found = state.from_bytes(AvroState.of(before).to_bytes({"a": 1}))
    assert same(found, {"a": 1, "b": value})
    expected = {"a": 1, "b": narrow(value) if kind == "float" else value}
    assert same(state.from_bytes(state.to_bytes(found)), expected)
    assert same(ps.Avro(schema).from_bytes(ps.Avro(schema).to_bytes({"a": 1})), expected)
    again = state.from_bytes(AvroState.of(before).to_bytes({"a": 1}))
    assert not isinstance(found["b"], dict | list) or again["b"] is not found["b"], "a task may change it"


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        *[("bytes", "\u0100"), ("int", 2**31), ("int", True), (NAMED[0], "C"), (NAMED[1], "ab"), (NAMED[3], {})],
        *[(["int", "bytes"], 1.5), (logical("string", "uuid"), "x"), (logical("long", "timestamp-millis"), 2**62)],
    ],
)
def test_a_default_that_is_none_of_its_type_is_refused_at_the_start(kind: Any, default: Any) -> None:
    with pytest.raises(ps.ConfigError, match=r"`Outer.x`|must match"):
        ps.Avro({"type": "record", "name": "Outer", "fields": [{"name": "x", "type": kind, "default": default}]})


PROMOTIONS = [
    *[("int", kind, 2**31 - 1) for kind in ("long", "double")],
    *[("int", "float", 5), ("long", "float", -7), ("long", "double", 2**53), ("float", "double", narrow(0.1))],
    *[("string", "bytes", "é"), ("bytes", "string", "é".encode())],
]


@pytest.mark.parametrize(("written", "read", "value"), PROMOTIONS)
def test_a_promoted_value_is_one_of_the_readers_type(written: str, read: str, value: Any) -> None:
    expected = value.encode() if read == "bytes" else value.decode() if read == "string" else value
    if read in ("float", "double"):
        expected = float(value)
    for one, other in ((written, read), ([written, "null"], ["null", read]), (written, ["null", read])):
        state = AvroState.of(other).continuing(AvroState.of(one).name)
        found = state.from_bytes(AvroState.of(one).to_bytes(value))
        assert same(found, expected)
        assert same(state.from_bytes(state.to_bytes(found)), expected)


def test_the_branch_of_a_value_stays_its_branch_when_a_schema_changes() -> None:
    """The value's own type comes before those that it could be promoted to."""

    def holder(kind: Any, *more: Any) -> dict[str, Any]:
        return {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}, *more]}

    more = {"name": "y", "type": "int", "default": 0}
    for kind, values in (
        (["bytes", "string"], ["a", b"b"]),
        (["double", "long"], [5, 1.5]),
        (["float", "double"], [0.1]),
    ):
        state = AvroState.of(holder(kind, more)).continuing(AvroState.of(holder(kind)).name)
        for value in values:
            found = state.from_bytes(AvroState.of(holder(kind)).to_bytes({"x": value}))
            assert same(found, {"x": value, "y": 0})


LOGICAL = [
    (
        logical("long", "timestamp-millis"),
        logical("long", "timestamp-micros"),
        datetime(2020, 1, 1, 0, 0, 1, tzinfo=UTC),
        ...,
    ),
    (logical("int", "time-millis"), logical("long", "time-micros"), time(1, 2, 3, 4000), ...),
    (logical("long", "timestamp-micros"), "long", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1_000_000),
    ("int", logical("int", "date"), 5, date(1970, 1, 6)),
    (logical("int", "date"), "double", date(1970, 1, 6), 5.0),
    (logical("string", "uuid"), "string", UUID(int=5), str(UUID(int=5))),
    (logical("bytes", "decimal", precision=4, scale=1), "bytes", Decimal("1.6"), b"\x10"),
    ("bytes", logical("bytes", "decimal", precision=4, scale=1), b"\x10", Decimal("1.6")),
    (
        logical("bytes", "decimal", precision=4, scale=1),
        logical("bytes", "decimal", precision=9, scale=1),
        Decimal("999.9"),
        ...,
    ),
]


@pytest.mark.parametrize(("written", "read", "value", "expected"), LOGICAL)
def test_a_value_is_read_as_the_logical_type_of_the_reader(written: Any, read: Any, value: Any, expected: Any) -> None:
    state = AvroState.of(read).continuing(AvroState.of(written).name)
    assert same(state.from_bytes(AvroState.of(written).to_bytes(value)), value if expected is ... else expected)


def test_a_decimal_with_more_digits_than_the_readers_is_refused() -> None:
    wide, narrow_one = (logical("bytes", "decimal", precision=each, scale=1) for each in (9, 4))
    read = reader_of(AvroTypes(wide), AvroTypes(narrow_one))
    assert read(ps.Avro(wide).to_bytes(Decimal("999.9"))) == Decimal("999.9")
    with pytest.raises(ValueError, match="is no Avro decimal with 4 digits"):
        read(ps.Avro(wide).to_bytes(Decimal("1000.0")))


@given(written=schemas(), read=schemas(), data=st.data())
def test_what_another_schema_reads_can_be_put_back(written: Typed, read: Typed, data: st.DataObject) -> None:
    """As the field of a record, which either schema may have and the other not, and which has a default if it can."""
    value = data.draw(written[1])

    def holder(kind: Any, *, extra: bool) -> dict[str, Any]:
        fields = [{"name": "x", "type": kind}]
        if extra:
            fields.append({"name": "y", "type": ["bytes", "null"], "default": "\u00ff"})
        return {"type": "record", "name": "Holder", "fields": fields}

    one = holder(written[0], extra=data.draw(st.booleans()))
    kinds = [written[0], read[0]]
    if written[0] != "null" and not isinstance(written[0], list):
        kinds.append(["null", written[0]])
    other = holder(data.draw(st.sampled_from(kinds)), extra=True)
    assume(not why_unreadable(one, other))
    serde = AvroState.of(one)
    state = AvroState.of(other).continuing(serde.name)
    found = state.from_bytes(serde.to_bytes({"x": value}))
    assert found["y"] == b"\xff"
    if written[0] == read[0]:
        assert same(found["x"], value)
    assert same(state.from_bytes(state.to_bytes(found)), found)


# Bytes from outside.


@pytest.mark.attack
@given(typed=schemas(), data=st.data())
def test_damaged_bytes_are_refused_or_are_values(typed: Typed, data: st.DataObject) -> None:
    schema, values = typed
    serde = ps.Avro(schema)
    good = bytearray(serde.to_bytes(data.draw(values)))
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, max(len(good) - 1, 0)), st.integers(0, 255)), max_size=3)
    ):
        good[place : place + 1] = bytes([byte])
    damaged = bytes(good[: data.draw(st.integers(0, len(good)))]) + data.draw(st.binary(max_size=4))
    try:
        found = serde.from_bytes(damaged)
    except (ValueError, EOFError):
        return
    assert same(serde.from_bytes(serde.to_bytes(found)), found)


EMPTY: list[Any] = [
    "null",
    {"type": "fixed", "name": "F", "size": 0},
    {"type": "record", "name": "E", "fields": []},
    {
        "type": "record",
        "name": "E",
        "fields": [{"name": "a", "type": "null"}, {"name": "b", "type": {"type": "record", "name": "G", "fields": []}}],
    },
]
LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
TREE = {"type": "record", "name": "T", "fields": [{"name": "more", "type": {"type": "array", "items": "T"}}]}
DECIMAL = logical("bytes", "decimal", precision=20, scale=2)
MANY = 0x7FFFFFFF


def varint(number: int) -> bytes:
    return ps.Avro("long").to_bytes(number)


def nested(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = {"next": value}
    return value


def doubled(levels: int) -> Any:
    """A record that has no bytes, and 10^levels values."""
    kind: Any = {"type": "record", "name": "R0", "fields": [{"name": f"f{n}", "type": "null"} for n in range(10)]}
    for level in range(1, levels):
        more = [{"name": f"f{n}", "type": f"R{level - 1}"} for n in range(1, 10)]
        kind = {"type": "record", "name": f"R{level}", "fields": [{"name": "f0", "type": kind}, *more]}
    return kind


ATTACKS: list[tuple[Any, bytes]] = [
    ({"type": "array", "items": "null"}, bytes.fromhex("feffffff0f00")),
    *[({"type": "array", "items": each}, varint(MANY) + b"\x00") for each in EMPTY],
    *[({"type": "array", "items": each}, varint(-MANY) + b"\x00\x00") for each in EMPTY],
    ({"type": "array", "items": {"type": "array", "items": "null"}}, varint(300) + (b"\x88\x0e\x00") * 300 + b"\x00"),
    ({"type": "array", "items": "int"}, varint(MANY) + b"\x00" * 100),
    ({"type": "map", "values": "null"}, varint(MANY) + b"\x00" * 100),
    ({"type": "map", "values": doubled(3)}, varint(100) + b"\x00" * 100 + b"\x00"),
    (LIST, b"\x02" * 5000 + b"\x00"),
    (LIST, b"\x02" * 1_000_000 + b"\x00"),
    (TREE, b"\x02" * 5000 + b"\x00" * 5001),
    ({"type": "record", "name": "Endless", "fields": [{"name": "me", "type": "Endless"}]}, b""),
    (doubled(30), b""),
    (["null", doubled(30)], b"\x02"),
    (DECIMAL, varint(300_000) + b"\x7f" * 300_000),
    (DECIMAL, varint(2_000_000) + b"\x80" * 2_000_000),
    ("string", varint(MANY)),
    ("bytes", varint(-5) + b"abc"),
    ("long", b"\xff" * 1000),
    ("int", varint(2**40)),
    ("boolean", b"\x02"),
    (["null", "int"], varint(-1) + b"\x02"),
    (["null", "int"], b"\x04"),
    (NAMED[0], varint(-1)),
    ({"type": "array", "items": "int"}, varint(-1) + varint(100) + b"\x02\x00"),
]  # fmt: skip


@pytest.mark.attack
@pytest.mark.parametrize(("schema", "data"), ATTACKS, ids=lambda each: str(each)[:40])
def test_bytes_that_would_cost_more_than_they_are_are_refused(schema: Any, data: bytes) -> None:
    """The schema is also a registry's, with another one that reads it, and that of a field that is passed over."""
    other = {"type": "record", "name": "Other", "fields": []}
    holder = {**other, "fields": [{"name": "x", "type": schema}]}
    more = {**holder, "fields": [*holder["fields"], {"name": "y", "type": "int", "default": 0}]}
    readers = [
        reader_of(AvroTypes(schema), None),
        reader_of(AvroTypes(holder), AvroTypes(more)),
        reader_of(AvroTypes(holder), AvroTypes(other)),
    ]
    for read in readers:
        with memory_budget(64 << 20), pytest.raises((ValueError, EOFError)):
            read(data)


def test_the_budget_is_the_same_for_writing() -> None:
    lists, nulls = ps.Avro(LIST), ps.Avro({"type": "array", "items": "null"})
    assert lists.from_bytes(lists.to_bytes(nested(120))) == nested(120)
    assert nulls.from_bytes(nulls.to_bytes([None] * 1000)) == [None] * 1000
    for serde, value in ((lists, nested(150)), (lists, nested(5000)), (nulls, [None] * 2000)):
        with pytest.raises(ValueError, match=r"more than 128 levels|too many values without bytes"):
            serde.to_bytes(value)


@pytest.mark.attack
def test_schemas_that_exceed_the_budget_are_refused() -> None:
    deep: Any = "null"
    for _ in range(1100):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ps.ConfigError, match=r"not valid|too deep"):
        ps.Avro({"type": "array", "items": deep})
    with pytest.raises(ps.ConfigError, match="a precision of 100000; at most 1,000 digits"):
        ps.Avro(logical("bytes", "decimal", precision=100_000))
