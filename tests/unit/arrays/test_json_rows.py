"""Rows as JSON objects: they come back as they were written, and one that does not fit is one row."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from penstock.arrays.json_rows import JsonRows
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
