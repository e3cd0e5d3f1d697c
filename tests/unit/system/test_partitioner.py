"""The partitioner gives Kafka's numbers, and the Arrow form gives the scalar one's."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.system.partitioner import murmur2, partition_of, partitions_of
from tests.support.tools.profiles import examples

# From Kafka's own UtilsTest.
KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}

TYPES = [pa.binary(), pa.large_binary()]
keys_lists = st.lists(st.none() | st.binary(max_size=13) | st.binary(min_size=8, max_size=8), max_size=40)


@pytest.mark.parametrize(("key", "expected"), KAFKA.items())
def test_kafka_vectors(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected
    for partitions in (1, 8, 1 << 30, 2**31 - 1):
        assert partition_of(key, partitions) == (expected & 0x7FFFFFFF) % partitions
        assert partitions_of(pa.array([key], pa.binary()), partitions).tolist() == [partition_of(key, partitions)]


@examples(3)
@given(keys_lists, st.integers(1, 2**31 - 1), st.sampled_from(TYPES), st.data())
def test_arrow_equals_scalar(keys: list[bytes | None], partitions: int, kind: pa.DataType, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(keys)))
    end = data.draw(st.integers(start, len(keys)))
    found = partitions_of(pa.array(keys, kind)[start:end], partitions)
    assert found.dtype == np.int64
    assert found.tolist() == [partition_of(key, partitions) for key in keys[start:end]]


@given(st.lists(st.text(max_size=6), max_size=20), st.sampled_from([pa.string(), pa.large_string()]))
def test_strings_are_their_utf8(keys: list[str], kind: pa.DataType) -> None:
    assert partitions_of(pa.array(keys, kind), 7).tolist() == [partition_of(key.encode(), 7) for key in keys]


@pytest.mark.few(3)
@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 70_000])
def test_more_keys_than_a_block(length: int) -> None:
    count = 40_000 if length < 100 else 3
    keys = [(b"%d" % i).rjust(length, b"\xff")[:length] for i in range(count)]
    expected = [partition_of(key, 11) for key in keys]
    assert partitions_of(pa.array(keys, pa.binary()), 11).tolist() == expected
    mixed = [None, *keys, b"another"]
    assert partitions_of(pa.array(mixed, pa.large_binary()), 11).tolist() == [
        0,
        *expected,
        partition_of(b"another", 11),
    ]


def test_a_null_that_covers_bytes_is_still_a_null() -> None:
    offsets, data = np.array([0, 3, 6], np.int32), b"abcdef"
    keys = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(offsets), pa.py_buffer(data)])
    assert keys.to_pylist() == [None, b"def"]
    assert partitions_of(keys, 1000).tolist() == [0, partition_of(b"def", 1000)]


def test_nothing_and_only_nulls() -> None:
    assert partitions_of(pa.array([], pa.binary()), 3).tolist() == []
    assert partitions_of(pa.array([None, None], pa.binary()), 3).tolist() == [0, 0]
    assert partition_of(None, 3) == 0


def test_other_types_are_refused() -> None:
    with pytest.raises(ConfigError, match="int64"):
        partitions_of(pa.array([1, 2]), 3)
