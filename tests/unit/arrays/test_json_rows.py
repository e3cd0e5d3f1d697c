"""Rows as JSON objects and as bytes come back as they were written; times are RFC 3339."""

from __future__ import annotations

import json
import math
import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.json_rows import JsonRows
from penstock.arrays.packed_rows import PackedRows
from tests.unit.arrays.arrays import rows, types


def finite(value: Any) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case dict():
            return all(map(finite, value.values()))
        case list() | tuple():
            return all(map(finite, value))
    return True


@given(st.lists(types(), min_size=1, max_size=4), st.integers(0, 10), st.randoms(use_true_random=False))
def test_rows_come_back(kinds: list[pa.DataType], count: int, chance: random.Random) -> None:
    assume(not any("timestamp[ns" in str(kind) and pa.types.is_nested(kind) for kind in kinds))
    given_rows = rows(kinds, count, chance)
    expected = [row for row in given_rows.to_pylist() if finite(row)]
    form = JsonRows(list(given_rows.type))
    kept = pa.array([finite(row) for row in given_rows.to_pylist()], pa.bool_())
    written = form.write(given_rows.filter(kept))
    assert all(isinstance(json.loads(value or b""), dict) for value in written)
    found, problems = form.read(written)
    found.validate(full=True)
    assert problems == {}
    assert found.type == given_rows.type
    assert repr(found.to_pylist()) == repr(expected)


FORM = JsonRows([pa.field("n", pa.int32()), pa.field("at", pa.timestamp("ms", "UTC")), pa.field("s", pa.string())], "s")


def test_one_bad_row_is_one_bad_row() -> None:
    values = [
        b'{"n": 1, "s": "a", "more": [1]}',
        b'{"n": "1", "s": "b"}',
        None,
        b'{"n": 2147483648, "s": "c"}',
        b"nonsense",
        b'{"n": 5}',
        b'{"at": "2024-01-01T00:00:00", "s": "e"}',
        b'{"at": "2024-01-01T01:00:00+01:00", "s": "f"}',
        b'{"at": 1704067200000, "s": "g"}',
        b"[]",
        b'{"s": "h"}{"s": "i"}',
    ]
    found, problems = FORM.read(values)
    assert [row and row["s"] for row in found.to_pylist()] == [
        "a", None, None, None, None, None, None, "f", "g", None, None
    ]  # fmt: skip
    assert found.field("at")[7] == found.field("at")[8]
    assert sorted(problems) == [1, 3, 4, 5, 6, 9, 10]
    assert "$.n" in problems[1]
    assert problems[5] == "field `s` must not be null"
    assert "2024-01-01T00:00:00Z" in problems[6]


@given(st.lists(types(), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_json_has_no_nan(kinds: list[pa.DataType], chance: random.Random) -> None:
    assume(not any("timestamp[ns" in str(kind) and pa.types.is_nested(kind) for kind in kinds))
    given_rows = rows(kinds, 5, chance)
    form = JsonRows(list(given_rows.type))
    for number, row in enumerate(given_rows.to_pylist()):
        if finite(row):
            form.write(given_rows.slice(number, 1))
        else:
            with pytest.raises(ValueError, match=r"field `.*` has a NaN or an infinity"):
                form.write(given_rows.slice(number, 1))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_json_has_no_nan_in_nested_values(number: float) -> None:
    kinds = {
        "list": (pa.list_(pa.float64()), [1.0, number]),
        "struct": (pa.struct({"a": pa.list_(pa.float32())}), {"a": [number]}),
        "map": (pa.map_(pa.string(), pa.float64()), [("a", number)]),
        "fixed": (pa.list_(pa.float64(), 2), [1.0, number]),
        "half": (pa.float16(), number),
    }
    for name, (kind, value) in kinds.items():
        serde = ps.Columns(pa.schema({name: kind}))
        for rows_before in ([], [{name: None}]):
            with pytest.raises(ValueError, match=f"field `{name}` has a NaN or an infinity"):
                serde.write(serde.rows_of([*rows_before, {name: value}]))
        with pytest.raises(ValueError, match=f"field `{name}` has a NaN or an infinity"):
            serde.to_bytes({name: value})
        stored = serde.for_store_values()
        assert repr(stored.from_bytes(stored.to_bytes({name: value}))) == repr({name: value})


def test_a_number_beyond_a_small_float_is_one_bad_row() -> None:
    form = JsonRows([pa.field("x", pa.float32()), pa.field("xs", pa.list_(pa.float32()))])
    found, problems = form.read([b'{"x":1.5,"xs":[2]}', b'{"x":1e300}', b'{"xs":[1,-1e39]}'])
    assert found.to_pylist() == [{"x": 1.5, "xs": [2.0]}, None, None]
    assert sorted(problems) == [1, 2]


def test_types_without_json_are_refused() -> None:
    with pytest.raises(TypeError, match="field `f` has a map with keys of date32"):
        JsonRows([pa.field("f", pa.map_(pa.date32(), pa.int8()))])
    with pytest.raises(TypeError, match="field `f` has nested values of the type timestamp"):
        JsonRows([pa.field("f", pa.list_(pa.timestamp("ns")))])
    with pytest.raises(TypeError, match="field `f` has the type string_view"):
        JsonRows([pa.field("f", pa.list_(pa.string_view()))])


@given(st.lists(types(), min_size=1, max_size=5), st.integers(0, 20), st.randoms(use_true_random=False))
def test_packed_rows_come_back(kinds: list[pa.DataType], count: int, chance: random.Random) -> None:
    given_rows = rows(kinds, count, chance)
    packed = PackedRows(list(given_rows.type))
    data = packed.pack(given_rows)
    found = packed.unpack(data)
    found.validate(full=True)
    assert found.type == given_rows.type
    assert repr(found.to_pylist()) == repr(given_rows.to_pylist())  # NaN equals itself there
    again = packed.pack(found)
    assert again.to_arrow() == data.to_arrow()
    valid = np.array([chance.random() < 0.5 for _ in range(count)], bool)
    some = packed.unpack(data, valid).to_pylist()
    assert repr(some) == repr([row if kept else None for row, kept in zip(given_rows.to_pylist(), valid, strict=True)])


def test_rows_of_fixed_size_have_one_length() -> None:
    packed = PackedRows([pa.field("n", pa.int64()), pa.field("x", pa.float64()), pa.field("ok", pa.bool_())])
    data = packed.pack(pa.array([{"n": 1, "x": 2.0, "ok": True}, None, {}], packed.type))
    assert data.width == 1 + 8 + 8 + 1
    assert data[1] == data[2] == b"\x07" + bytes(17)


@pytest.mark.parametrize("data", [b"", b"\x00", bytes(12) + b"x", bytes(11)])
def test_other_bytes_are_refused(data: bytes) -> None:
    packed = PackedRows([pa.field("n", pa.int64()), pa.field("s", pa.string())])
    with pytest.raises(ValueError, match=r"a row has (\d+ bytes; at least 13|another length|a field that ends before)"):
        packed.unpack(ByteArray.of_list([data]))


@given(
    st.lists(types(), min_size=2, max_size=5), st.integers(1, 3), st.integers(0, 12), st.randoms(use_true_random=False)
)
def test_rows_of_fewer_fields_have_nulls(
    kinds: list[pa.DataType], fewer: int, count: int, chance: random.Random
) -> None:
    given_rows = rows(kinds, count, chance)
    fields = list(given_rows.type)
    whole, part = PackedRows(fields, counted=True), PackedRows(fields[: max(1, len(fields) - fewer)], counted=True)
    short = pa.StructArray.from_arrays(given_rows.flatten()[: len(part.fields)], fields=list(part.fields))
    data = [*whole.pack(given_rows).to_arrow().to_pylist(), *part.pack(short).to_arrow().to_pylist()]
    expected = [row or {} for row in (*given_rows.to_pylist(), *short.to_pylist())]
    order = chance.sample(range(len(data)), len(data))
    found = whole.unpack(ByteArray.of_list([data[number] for number in order]))
    found.validate(full=True)
    wanted = [{field.name: expected[number].get(field.name) for field in fields} for number in order]
    assert repr(found.to_pylist()) == repr(wanted)
    for number in order:
        one = whole.unpack_one(data[number])
        assert one is None or repr(one) == repr({field.name: expected[number].get(field.name) for field in fields})


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.float64(), pa.string()])
@pytest.mark.parametrize("value", [None, 1])
def test_one_row_of_fewer_fields_has_nulls_in_the_order_of_the_schema(kind: pa.DataType, value: int | None) -> None:
    """Fields of a type that needs no Arrow, up to more than one byte of nulls."""
    written = None if value is None else pa.scalar(value).cast(kind).as_py()
    for count in (2, 3, 9, 17):
        names = [f"f{number}" for number in range(count)]
        whole = PackedRows([pa.field(name, kind) for name in names], counted=True)
        for fewer in range(1, count):
            short = PackedRows([pa.field(name, kind) for name in names[:fewer]], counted=True)
            data = short.pack_one(dict.fromkeys(names[:fewer], written))
            assert data is not None
            one = whole.unpack_one(data)
            assert one is not None
            assert [*one.items()] == [(name, written if number < fewer else None) for number, name in enumerate(names)]
            assert whole.unpack(ByteArray.of_list([data])).to_pylist() == [one]


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x00\x00", b"\x03\x00" + bytes(20)])
def test_counted_rows_with_another_number_of_fields_are_refused(data: bytes) -> None:
    packed = PackedRows([pa.field("n", pa.int64()), pa.field("s", pa.string())], counted=True)
    for unpack in (lambda: packed.unpack(ByteArray.of_list([data])), lambda: packed.unpack_one(data)):
        with pytest.raises(ValueError, match=r"a row has \d+ (bytes, and no number|fields, and the schema has 2)"):
            unpack()


def test_types_without_values_of_their_own_are_refused() -> None:
    for kind in (pa.dictionary(pa.int8(), pa.string()), pa.string_view(), pa.list_(pa.dense_union([]))):
        with pytest.raises(TypeError, match="field `f` has"):
            PackedRows([pa.field("f", kind)])
    with pytest.raises(TypeError, match="at least one field"):
        PackedRows([])


DATE_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?"
WITH_ZONE = re.compile(DATE_TIME + r"(Z|[+-]\d\d:\d\d)")
WITHOUT = re.compile(DATE_TIME)
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "+05:30", "Africa/Monrovia", "Pacific/Apia", None]
PER_SECOND = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}


def serde_of(unit: Any, zone: str | None) -> ps.Columns:
    return ps.Columns(pa.schema({"x": pa.timestamp(unit, zone)}))


@given(st.sampled_from(["s", "ms", "us", "ns"]), st.sampled_from(ZONES), st.data())
def test_times_come_back(unit: str, zone: str | None, data: st.DataObject) -> None:
    second = PER_SECOND[unit]
    years = (-9_000_000_000, 9_000_000_000) if unit == "ns" else (-62_135_000_000, 253_402_000_000)
    numbers = data.draw(st.lists(st.integers(years[0] * second, years[1] * second), max_size=5))
    serde = serde_of(unit, zone)
    times = pa.array(numbers, pa.int64()).cast(pa.timestamp(unit, zone))
    written = serde.write(pa.StructArray.from_arrays([times], names=["x"]))
    for line in written:
        text = (line or b"").decode().removeprefix('{"x":"').removesuffix('"}')
        assert (WITHOUT if zone is None else WITH_ZONE).fullmatch(text), text
    rows, problems = serde.read(written)
    assert problems == {}
    assert rows.field("x").cast(pa.int64()).to_pylist() == numbers


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+05:30"])
@pytest.mark.parametrize("milliseconds", [1_700_000_000_000, 0, -1000, -9_000_000_000_000, 9_000_000_000_000])
def test_epoch_milliseconds_are_a_time_in_every_unit(unit: Any, zone: str, milliseconds: int) -> None:
    serde = serde_of(unit, zone)
    rows, problems = serde.read([b'{"x": %d}' % milliseconds])
    assert problems == {}
    assert rows.field("x").cast(pa.int64())[0].as_py() == milliseconds * PER_SECOND[unit] // 1000
    text = (serde.write(rows)[0] or b"").decode()[6:-2]
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    assert datetime.fromisoformat(text) == moment


def test_nanoseconds_keep_their_digits() -> None:
    serde = serde_of("ns", "Europe/Berlin")
    rows, problems = serde.read([b'{"x": "2023-11-14T22:13:20.123456789Z"}', b'{"x": null}', None])
    assert problems == {}
    assert serde.write(rows) == [b'{"x":"2023-11-14T23:13:20.123456789+01:00"}', b'{"x":null}', None]


def test_an_offset_with_seconds_is_written_in_utc() -> None:
    serde = serde_of("us", "Europe/Berlin")
    rows, _ = serde.read([b'{"x": "1800-01-01T00:00:00Z"}', b'{"x": "2000-01-01T00:00:00Z"}'])
    assert serde.write(rows) == [b'{"x":"1800-01-01T00:00:00Z"}', b'{"x":"2000-01-01T01:00:00+01:00"}']
