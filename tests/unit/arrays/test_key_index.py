"""An index of keys beside a dict, and byte strings in columns beside lists."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.arrays.byte_arrays import ByteArray, Heap
from penstock.arrays.entries import Entries, KeyIndex, hash_bytes, hash_one

KEYS = st.lists(st.one_of(st.binary(max_size=3), st.sampled_from([b"", b"a", b"key-0001", b"k" * 40])), max_size=60)


def array(elements: list[bytes]) -> ByteArray:
    """As a slice of a longer array of Arrow."""
    return ByteArray.of(pa.array([b"before", *elements, b"behind"], pa.binary()).slice(1, len(elements)))


@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=6), st.integers(0, 2**64 - 1))
def test_an_index_is_a_dict_of_row_numbers(steps: list[tuple[list[bytes], bool]], seed: int) -> None:
    index, expected = KeyIndex(seed), dict[bytes, int]()
    for keys, adds in steps:
        assert index.find(array(keys)).tolist() == [expected.get(key, -1) for key in keys]
        if adds:
            for key, row in zip(keys, index.add(array(keys)).tolist(), strict=True):
                assert expected.setdefault(key, row) == row
        assert [index.find_one(key) for key in keys] == [expected.get(key, -1) for key in keys]
        assert sorted(expected.values()) == list(range(len(expected))) == list(range(len(index)))


def test_it_grows_through_many_tables() -> None:
    index, keys = KeyIndex(), [b"%d" % (number % 30_000) for number in range(90_000)]
    rows = index.add(array(keys))
    assert len(index) == 30_000
    assert (index.find(array(keys)) == rows).all()
    assert [index.keys.get(row) for row in rows[:1000].tolist()] == keys[:1000]
    assert index.find(array([b"30000", b"-1"])).tolist() == [-1, -1]


def test_keys_whose_hashes_collide_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.arrays.entries.hash_bytes", lambda keys, seed: np.full(len(keys), 7, np.uint64))
    monkeypatch.setattr("penstock.arrays.entries.hash_one", lambda key, seed: 7)
    index, keys = KeyIndex(), [b"%03d" % number for number in range(200)]
    rows = index.add(array([*keys, *keys]))
    assert rows.tolist() == [*range(200), *range(200)]
    assert index.find(array([*keys, b"200"])).tolist() == [*range(200), -1]
    assert index.find_one(b"123") == 123


@given(KEYS, st.integers(0, 2**64 - 1))
def test_one_key_has_the_hash_that_it_has_among_many(keys: list[bytes], seed: int) -> None:
    assert hash_bytes(array(keys), seed).tolist() == [hash_one(key, seed) for key in keys]


@given(KEYS, KEYS)
def test_elements_are_equal_where_their_bytes_are(one: list[bytes], other: list[bytes]) -> None:
    count = min(len(one), len(other))
    expected = [a == b for a, b in zip(one[:count], other[:count], strict=True)]
    assert array(one[:count]).equal(array(other[:count])).tolist() == expected


@given(KEYS, KEYS)
def test_columns_of_bytes_are_lists(one: list[bytes], other: list[bytes]) -> None:
    both = ByteArray.concat([array(one), array(other)])
    assert both.to_arrow().to_pylist() == one + other
    assert both.copied().to_arrow().to_pylist() == one + other
    assert [both[number] for number in range(len(both))] == one + other
    order = random.Random(len(one)).sample(range(len(both)), len(both))
    assert both.take(np.array(order, np.int64)).to_arrow().to_pylist() == [(one + other)[n] for n in order]
    assert both.size == sum(map(len, one + other))


@given(st.lists(KEYS, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_a_heap_is_a_list_whose_elements_are_replaced(steps: list[list[bytes]], chance: random.Random) -> None:
    heap, expected = Heap(), list[bytes]()
    for elements in steps:
        if expected and chance.random() < 0.6:
            numbers = chance.sample(range(len(expected)), min(len(elements), len(expected)))
            heap.put(np.array(numbers, np.int64), array(elements[: len(numbers)]))
            for number, element in zip(numbers, elements, strict=False):
                expected[number] = element
        else:
            heap.add(array(elements))
            expected += elements
        assert heap.all().to_arrow().to_pylist() == expected
        assert [heap.get(number) for number in range(len(expected))] == expected


def test_a_heap_gives_back_what_was_replaced() -> None:
    heap = Heap()
    heap.add(array([b"x" * 100] * 100))
    for length in range(1, 400):
        heap.put(np.arange(100), array([b"y" * length] * 100))
    assert heap.all().to_arrow().to_pylist() == [b"y" * 399] * 100
    assert heap.nbytes < 4 * 100 * 399 + 10_000


@given(st.lists(st.dictionaries(st.binary(max_size=2), st.none() | st.binary(max_size=3)), min_size=1, max_size=4))
def test_of_the_same_keys_the_last_entry_counts(parts: list[dict[bytes, bytes | None]]) -> None:
    expected: dict[bytes, bytes | None] = {}
    for part in parts:
        expected |= part
    found = Entries.last_of(map(Entries.of, parts))
    assert dict(found) == expected
    assert found.deletes == list(expected.values()).count(None)
    assert found.size == sum(len(key) + len(value or b"") for key, value in expected.items())
