"""Serdes: round trips, the bytes of Samza's serdes, and what they refuse."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@dataclass
class Reading:
    """A dataclass, which orjson writes too."""

    celsius: float


@pytest.mark.parametrize(
    ("serde", "values"),
    [
        (ps.Bytes(), st.binary()),
        (ps.String(), TEXT),
        (ps.Integer(), st.integers(-(2**31), 2**31 - 1)),
        (ps.Long(), st.integers(-(2**63), 2**63 - 1)),
        (ps.Double(), st.floats(allow_nan=False)),
        (ps.Json(), JSON),
    ],
    ids=lambda part: type(part).__name__,
)
@given(data=st.data())
def test_round_trip(serde: ps.Serde[Any], values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    value = data.draw(values)
    encoded = serde.to_bytes(value)
    assert type(encoded) is bytes
    assert serde.from_bytes(encoded) == value


@pytest.mark.parametrize(
    ("serde", "value", "data"),
    [
        (ps.Integer(), -2, b"\xff\xff\xff\xfe"),
        (ps.Long(), 258, b"\0\0\0\0\0\0\x01\x02"),
        (ps.Double(), 1.5, b"\x3f\xf8\0\0\0\0\0\0"),
        (ps.String(), "é", b"\xc3\xa9"),
        (ps.Json(), {"a": [1, None, True, "é"]}, '{"a":[1,null,true,"é"]}'.encode()),
    ],
)
def test_the_bytes(serde: ps.Serde[Any], value: Any, data: bytes) -> None:
    assert serde.to_bytes(value) == data
    assert serde.from_bytes(data) == value


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (ps.Bytes(), "text"),
        (ps.Bytes(), bytearray(b"x")),
        (ps.Bytes(), 5),
        (ps.String(), b"x"),
        (ps.String(), 5),
        (ps.String(), "\ud800"),
        (ps.Integer(), 2**31),
        (ps.Integer(), "5"),
        (ps.Integer(), 1.0),
        (ps.Long(), 2**63),
        (ps.Double(), "1.0"),
        (ps.Json(), object()),
        (ps.Json(), {1: 2}),
        (ps.Json(), b"x"),
        (ps.Json(), 2**64),
        (ps.Json(), [-(2**63) - 1]),
        (ps.Json(), math.nan),
        (ps.Json(), {"a": [None, (1, -math.inf)]}),
        (ps.Json(), [Reading(math.inf)]),
        (ps.Double(), 2**53 + 1),
        (ps.Double(), 10**400),
        (ps.Json().for_keys(), {"a": [math.nan]}),
        (ps.Json().for_keys(), math.inf),
    ],
)
def test_what_cannot_be_written_raises(serde: ps.Serde[Any], value: Any) -> None:
    with pytest.raises(Exception, match=r".+"):
        serde.to_bytes(value)


@pytest.mark.parametrize(
    ("serde", "data"),
    [
        (ps.String(), b"\xff"),
        (ps.Integer(), b""),
        (ps.Integer(), b"12345"),
        (ps.Long(), b"1234"),
        (ps.Double(), b"123456789"),
        (ps.Json(), b""),
        (ps.Json(), b"{"),
        (ps.Json(), b"NaN"),
    ],
)
def test_what_cannot_be_read_raises(serde: ps.Serde[Any], data: bytes) -> None:
    with pytest.raises(Exception, match=r".+"):
        serde.from_bytes(data)


@given(st.integers())
def test_json_reads_integers_of_any_size_exactly(number: int) -> None:
    """They were read as the nearest double before, so that 2^64 and 2^64 + 1 became one."""
    for text, expected in ((f"{number}", number), (f'{{"a":[{number},1]}}', {"a": [number, 1]})):
        for serde in (ps.Json(), ps.Json().for_keys()):
            found = serde.from_bytes(text.encode())
            assert found == expected
            assert type(found) is type(expected)


@given(JSON | st.dictionaries(st.text(), st.integers()), st.booleans())
def test_json_reads_what_others_write(value: Any, ascii_only: bool) -> None:
    try:
        text = json.dumps(value, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    try:
        "".join([json.dumps(value, ensure_ascii=False)]).encode()
    except UnicodeEncodeError:  # a lone surrogate: text that has no UTF-8
        with pytest.raises(ValueError, match=r".+"):
            ps.Json().from_bytes(text)
        return
    assert ps.Json().from_bytes(text) == json.loads(text)


@given(JSON)
def test_json_keys_have_one_form(value: Any) -> None:
    serde = ps.Json().for_keys()
    turned = {name: value[name] for name in reversed(value)} if isinstance(value, dict) else value
    assert serde.to_bytes(turned) == serde.to_bytes(value)
    assert serde.to_bytes(serde.from_bytes(serde.to_bytes(value))) == serde.to_bytes(value)


@pytest.mark.parametrize("value", [None, [None, 1.5], {"null": "null"}, [Reading(1.5), None], "null", (None, {})])
def test_json_writes_null_for_none_alone(value: Any) -> None:
    for serde in (ps.Json(), ps.Json().for_keys()):
        assert serde.to_bytes(value) == json.dumps(value, default=vars, separators=(",", ":")).encode()


def test_dates_come_back_as_text() -> None:
    data = ps.Json().to_bytes(datetime(2013, 1, 1, tzinfo=UTC))
    assert ps.Json().from_bytes(data) == "2013-01-01T00:00:00+00:00"


class Celsius(ps.Serde[float]):
    """One of a user's own."""

    def to_bytes(self, obj: float) -> bytes:
        return f"{obj}C".encode()

    def from_bytes(self, data: bytes) -> float:
        return float(data[:-1])


def test_names_and_pickling() -> None:
    for serde, name in (
        (ps.Bytes(), "bytes"), (ps.String(), "string"), (ps.Integer(), "integer"), (ps.Long(), "long"),
        (ps.Double(), "double"), (ps.Json(), "json"), (Celsius(), "celsius"),
    ):  # fmt: skip
        assert serde.name == name
        assert pickle.loads(pickle.dumps(serde)).name == name
    assert Celsius().from_bytes(Celsius().to_bytes(1.5)) == 1.5


def test_a_serde_without_both_halves_cannot_be_made() -> None:
    class Half(ps.Serde[int]):
        def to_bytes(self, obj: int) -> bytes:
            return b""

    with pytest.raises(TypeError, match="from_bytes"):
        Half()  # type: ignore[abstract]
