"""Rows as bytes: what is packed is unpacked, whatever the types."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.packed_rows import PackedRows
from tests.unit.arrays.arrays import rows, types


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


@given(
    st.lists(types(), min_size=2, max_size=5), st.integers(1, 3), st.integers(0, 12), st.randoms(use_true_random=False)
)
def test_rows_with_fewer_fields_have_nulls(
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
