"""Timestamps, origins and offsets in a few bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptError
from penstock.runtime.messages.packet import pack_places, unpack_places

LONG = st.integers(-(2**63), 2**63 - 1)
NEAR = st.builds(lambda least, more: min(least + more, 2**63 - 1), st.just(2**62), st.integers(0, 70_000))


@given(st.lists(st.tuples(LONG, NEAR, st.just(7)), min_size=1, max_size=50))
def test_columns_come_back(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    found = unpack_places(pack_places(columns), 3, len(rows))
    assert [column.tolist() for column in found] == [column.tolist() for column in columns]


def test_columns_that_hardly_differ_are_short() -> None:
    offsets = np.arange(1 << 40, (1 << 40) + 50_000)
    packed = pack_places([np.full(50_000, -1), np.zeros(50_000, np.int64), offsets])
    assert len(packed) == 3 * 16 + 2 * 50_000


@pytest.mark.parametrize("wrong", [b"", b"1234567", bytes(16), b"\x01" * 48])
def test_damaged_places_are_refused(wrong: bytes) -> None:
    with pytest.raises(CorruptError, match="the places of 3 messages are damaged"):
        unpack_places(wrong, 3, 3)


def test_places_of_another_number_of_messages_are_refused() -> None:
    packed = pack_places([np.arange(100)] * 3)
    for count in (96, 105, 300):
        with pytest.raises(CorruptError):
            unpack_places(packed, 3, count)
