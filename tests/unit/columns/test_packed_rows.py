"""Rows as bytes: what is packed is unpacked, whatever the types."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns.byte_arrays import ByteArray
from penstock.columns.packed_rows import PackedRows
from tests.unit.columns.arrays import rows, types


@given(st.lists(types(), min_size=1, max_size=5), st.integers(0, 20), st.randoms(use_true_random=False))
def test_rows_come_back(kinds: list[pa.DataType], count: int, chance: random.Random) -> None:
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


def test_types_without_values_of_their_own_are_refused() -> None:
    for kind in (pa.dictionary(pa.int8(), pa.string()), pa.string_view(), pa.list_(pa.dense_union([]))):
        with pytest.raises(TypeError, match="field `f` has"):
            PackedRows([pa.field("f", kind)])
    with pytest.raises(TypeError, match="at least one field"):
        PackedRows([])
