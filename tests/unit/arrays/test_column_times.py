"""Times in JSON: what is written is RFC 3339, and the same moment when it is read."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps

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
