"""Keys of stores: the order of their bytes is the order of the keys, and the bytes never change."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.api.serdes.base import end_of_prefix
from penstock.graph.stores import StoreSpec
from penstock.state.engines.memory import MemoryEngine
from penstock.state.stores.build import build_store
from penstock.state.stores.task_store import TaskStore

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ODD_TEXT = st.text(st.sampled_from("\x00\x01a\x7f\xff\uffff\U00010000"))
ODD_BYTES = st.lists(st.sampled_from([b"\x00", b"\x01", b"\xff", b"\x00\x01", b"a"])).map(b"".join)
NUMBERS = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, 5e-324, -5e-324])
FIELDS: list[tuple[ps.Serde[Any], st.SearchStrategy[Any]]] = [
    (ps.Bytes(), st.binary() | ODD_BYTES),
    (ps.String(), TEXT | ODD_TEXT),
    (ps.Integer(), st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 2)),
    (ps.Long(), st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)),
    (ps.Double(), NUMBERS | st.integers(-(2**53), 2**53)),
]
TUPLES: list[tuple[ps.Serde[Any], st.SearchStrategy[Any]]] = [
    (ps.Tuple(FIELDS[1][0], FIELDS[3][0]), st.tuples(FIELDS[1][1], FIELDS[3][1])),
    (ps.Tuple(*(f for f, _ in FIELDS)), st.tuples(*(s for _, s in FIELDS))),
    (
        ps.Tuple(ps.Tuple(ps.Bytes(), ps.Integer()), ps.String()),
        st.tuples(st.tuples(FIELDS[0][1], FIELDS[2][1]), FIELDS[1][1]),
    ),
]


@pytest.mark.parametrize(("declared", "keys"), [*FIELDS, *TUPLES], ids=lambda p: getattr(p, "name", ""))
@given(data=st.data())
def test_bytes_sort_as_the_keys_do(declared: ps.Serde[Any], keys: st.SearchStrategy[Any], data: st.DataObject) -> None:
    serde = declared.for_store_keys()
    assert serde.ordered
    a, b = data.draw(keys), data.draw(keys)
    a_bytes, b_bytes = serde.to_bytes(a), serde.to_bytes(b)
    assert (a < b, a == b, a > b) == (a_bytes < b_bytes, a_bytes == b_bytes, a_bytes > b_bytes)
    assert serde.from_bytes(a_bytes) == a


@pytest.mark.parametrize(("serde", "keys"), TUPLES, ids=lambda p: getattr(p, "name", ""))
@given(data=st.data())
def test_a_prefix_of_a_tuple_holds_exactly_the_tuples_that_begin_so(
    serde: ps.Serde[Any], keys: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    key, other = data.draw(keys), data.draw(keys)
    prefix = other[: data.draw(st.integers(0, len(other)))]
    assert serde.to_bytes(key).startswith(serde.prefix_to_bytes(prefix)) == (key[: len(prefix)] == prefix)
    assert (serde.bound_to_bytes(prefix) <= serde.to_bytes(key)) == (prefix <= key)


@given(st.lists(ODD_BYTES), ODD_BYTES)
def test_the_end_of_a_prefix(keys: list[bytes], prefix: bytes) -> None:
    end = end_of_prefix(prefix)
    for key in keys:
        assert (prefix <= key and (end is None or key < end)) == key.startswith(prefix)


@pytest.mark.parametrize(
    ("declared", "key", "golden"),
    [
        (ps.Bytes(), b"\x00a", "0061"),
        (ps.String(), "\x00é", "00c3a9"),
        (ps.Integer(), -1, "7fffffff"),
        (ps.Integer(), 0, "80000000"),
        (ps.Integer(), 517, "80000205"),
        (ps.Integer(), -(2**31), "00000000"),
        (ps.Long(), -1, "7fffffffffffffff"),
        (ps.Long(), 258, "8000000000000102"),
        (ps.Long(), 2**63 - 1, "ffffffffffffffff"),
        (ps.Double(), 1.5, "bff8000000000000"),
        (ps.Double(), 0.0, "8000000000000000"),
        (ps.Double(), -0.0, "8000000000000000"),
        (ps.Double(), -1.5, "4007ffffffffffff"),
        (ps.Double(), math.inf, "fff0000000000000"),
        (ps.Double(), -math.inf, "000fffffffffffff"),
        (ps.SamzaInteger(), -1, "ffffffff"),
        (ps.SamzaLong(), -1, "ffffffffffffffff"),
        (ps.SamzaDouble(), -1.5, "bff8000000000000"),
        (ps.SamzaDouble(), -0.0, "0000000000000000"),
        (ps.Tuple(ps.String(), ps.Long()), ("u", 9), "7500018000000000000009"),
        (ps.Tuple(ps.Integer(), ps.Double()), (-1, -1.5), "7fffffff4007ffffffffffff"),
        (ps.Tuple(ps.Bytes(), ps.String()), (b"\x00\x01", ""), "00ff0100010001"),
        (ps.Tuple(ps.Tuple(ps.String()), ps.String()), (("a",), "b"), "6100ff010001620001"),
    ],
    ids=lambda p: getattr(p, "name", None),
)  # fmt: skip
def test_the_bytes_of_store_keys(declared: ps.Serde[Any], key: Any, golden: str) -> None:
    serde = declared.for_store_keys()
    assert serde.to_bytes(key).hex() == golden
    assert serde.from_bytes(bytes.fromhex(golden)) == key


@pytest.mark.parametrize(
    ("declared", "store", "message", "value"),
    [
        (ps.Integer(), "ordered-integer", "integer", "integer"), (ps.SamzaInteger(), "integer", "integer", "integer"),
        (ps.Long(), "ordered-long", "long", "long"), (ps.SamzaLong(), "long", "long", "long"),
        (ps.Double(), "ordered-double", "double", "double"), (ps.SamzaDouble(), "double", "double", "double"),
        (ps.String(), "string", "string", "string"), (ps.Json(), "json", "json", "json"),
        (
            ps.Tuple(ps.String(), ps.Tuple(ps.Long(), ps.Bytes())), "tuple(string,tuple(ordered-long,bytes))",
            "tuple(string,tuple(ordered-long,bytes))", "tuple(string,tuple(ordered-long,bytes))",
        ),
    ],
    ids=lambda p: getattr(p, "name", p),
)  # fmt: skip
def test_names_and_forms(declared: ps.Serde[Any], store: str, message: str, value: str) -> None:
    """A stored form never changes under its name: `long` is what was always written under it."""
    stored = declared.for_store_keys()
    assert (stored.name, declared.for_keys().name, declared.name) == (store, message, value)
    assert stored.for_store_keys().name == store
    assert stored.for_keys().name == message


def test_integers_of_numpy_are_keys_as_well() -> None:
    cases: list[tuple[ps.Serde[Any], Any]] = [
        (ps.Integer(), np.int32(-5)),
        (ps.Long(), np.int64(2**62)),
        (ps.Double(), np.float64(0.5)),
    ]
    for declared, number in cases:
        serde = declared.for_store_keys()
        assert serde.from_bytes(serde.to_bytes(number)) == number


def test_messages_keep_samzas_form() -> None:
    for declared in (ps.Integer(), ps.Long(), ps.Double()):
        message = declared.for_store_keys().for_keys()
        assert message.to_bytes(-2) == declared.for_keys().to_bytes(-2) == declared.to_bytes(-2)
    assert ps.Double().for_keys().to_bytes(-0.0) == ps.Double().to_bytes(0.0)


@pytest.mark.parametrize(
    ("declared", "key"),
    [
        (ps.Integer(), 2**31), (ps.Integer(), -(2**31) - 1), (ps.Integer(), 1.0), (ps.Integer(), "1"),
        (ps.Long(), 2**63), (ps.Long(), -(2**63) - 1), (ps.Long(), 0.5), (ps.Long(), b"1"),
        (ps.Double(), math.nan), (ps.Double(), 2**53 + 1), (ps.Double(), "1.0"), (ps.Double(), None),
        (ps.Tuple(ps.String()), "a"), (ps.Tuple(ps.String()), ["a"]), (ps.Tuple(ps.String()), ()),
        (ps.Tuple(ps.String()), ("a", "b")), (ps.Tuple(ps.String(), ps.Long()), ("a",)),
        (ps.Tuple(ps.String(), ps.Long()), ("a", None)), (ps.Tuple(ps.Long()), ("a",)),
    ],
)  # fmt: skip
def test_what_cannot_be_a_key(declared: ps.Serde[Any], key: Any) -> None:
    with pytest.raises(Exception, match=r".+"):
        declared.for_store_keys().to_bytes(key)


@pytest.mark.parametrize("data", [b"", b"a", b"a\x00\x01", b"a\x00\x01\0\0\0\0\0\0\0\0\0", b"a\x00\xff\0\0\0"])
def test_what_is_no_tuple(data: bytes) -> None:
    with pytest.raises(Exception, match=r".+"):
        ps.Tuple(ps.String(), ps.Long()).from_bytes(data)


@pytest.mark.parametrize("fields", [(), (ps.Json(),), (ps.String(), ps.SamzaLong()), ("a",), (ps.String,)])
def test_what_cannot_be_the_fields_of_a_tuple(fields: tuple[Any, ...]) -> None:
    with pytest.raises(ps.ConfigError, match=r"ps\.Tuple\(\)"):
        ps.Tuple(*fields)


def store_of(key: ps.Serde[Any], keys: list[Any]) -> TaskStore:
    """Half of the keys are committed, half are the running batch's."""
    engine = MemoryEngine()
    spec = StoreSpec("s", key.for_store_keys(), ps.Json())
    for half in (keys[::2], keys[1::2]):
        store = build_store(spec, engine, 100)
        overlay = store.begin()
        for each in half:
            store.put(each, 1)
        if half is not keys[1::2]:
            engine.apply(overlay.changes)
    return store


@pytest.mark.parametrize(
    ("key", "keys", "start", "end"),
    [
        (ps.Long(), [-100, -9, -1, 0, 9, 100], -10, 10),
        (ps.Integer(), [-100, -9, -1, 0, 9, 100], -10, 10),
        (ps.Double(), [-1e300, -1.5, 0.0, 1.5, 1e300], -2, 1.5),
        (ps.Tuple(ps.String(), ps.Long()), [("t", 1), ("u", -1), ("u", 9), ("u", 100), ("v", 0)], ("u", 9), ("u", 101)),
        (ps.Tuple(ps.String(), ps.Long()), [("t", 1), ("u", -1), ("u", 9), ("u", 100), ("v", 0)], ("u",), ("v",)),
    ],
)
def test_a_range_is_what_python_says(key: ps.Serde[Any], keys: list[Any], start: Any, end: Any) -> None:
    store = store_of(key, keys)
    expected = [each for each in sorted(keys) if start <= each < end]
    assert [each for each, _ in store.range(start, end)] == expected
    assert [each for each, _ in store.snapshot(start, end)] == expected
    assert [each for each, _ in store.all()] == sorted(keys)


class Celsius(ps.Serde[float]):
    """One of a user's own."""

    def to_bytes(self, obj: float) -> bytes:
        return f"{obj}C".encode()

    def from_bytes(self, data: bytes) -> float:
        return float(data[:-1])


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        (ps.Json(), r"ps\.Tuple\(\)"),
        (ps.SamzaLong(), r"with ps\.Long\(\)"),
        (ps.SamzaInteger(), r"with ps\.Integer\(\)"),
        (ps.SamzaDouble(), r"with ps\.Double\(\)"),
        (Celsius(), "set `ordered = True` in `Celsius`"),
    ],
)
def test_keys_without_an_order_have_no_ranges(key: ps.Serde[Any], advice: str) -> None:
    store = store_of(key, [1, 2])
    for scan in (store.range, store.snapshot):
        with pytest.raises(ps.ConfigError, match=rf'store `s` has no ranges.*app\.store\("s", key=.*{advice}'):
            scan(1, 2)
    assert {each for each, _ in store.all()} == {1, 2}


def test_a_range_that_begins_after_its_end() -> None:
    store = store_of(ps.Long(), [1, 2])
    with pytest.raises(ps.ConfigError, match="the range from 2 to 1 begins after its end"):
        store.range(2, 1)
    assert list(store.range(2, 2)) == []
