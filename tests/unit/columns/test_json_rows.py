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

from penstock.columns.json_rows import JsonRows
from tests.unit.columns.arrays import rows, types


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


def test_json_has_no_nan() -> None:
    form = JsonRows([pa.field("x", pa.float64())])
    with pytest.raises(ValueError, match="field `x` has a NaN or an infinity"):
        form.write(pa.array([{"x": 1.0}, {"x": math.inf}], form.type))


def test_types_without_json_are_refused() -> None:
    with pytest.raises(TypeError, match="field `f` has a map with keys of date32"):
        JsonRows([pa.field("f", pa.map_(pa.date32(), pa.int8()))])
    with pytest.raises(TypeError, match="field `f` has nested values of the type timestamp"):
        JsonRows([pa.field("f", pa.list_(pa.timestamp("ns")))])
    with pytest.raises(TypeError, match="field `f` has the type string_view"):
        JsonRows([pa.field("f", pa.list_(pa.string_view()))])
