"""The sample of keys: right shares for any mix of keys, a bounded size, and windows that pass."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from penstock.arrays.given import ArrowSequence
from penstock.runtime.meters import _LONGEST, _MOST, STEP, HotKeys


@pytest.mark.parametrize("page", [1, 7, STEP, 1_000, 40_000])
@pytest.mark.parametrize("by_column", [False, True])
def test_hot_keys_are_found_with_about_their_share(page: int, by_column: bool) -> None:
    chosen, found = random.Random(page), HotKeys()
    keys = [
        b"hot" if chosen.random() < 0.5 else b"warm" if chosen.random() < 0.3 else b"k%d" % chosen.randrange(20_000)
        for _ in range(80_000)
    ]
    for first in range(0, len(keys), page):
        part = keys[first : first + page]
        found.look(ArrowSequence(pa.array(part, pa.binary())) if by_column else part)
    (first_key, most), (second_key, next_most), *_ = found.top(10)[0]
    total = found.top(0)[1]
    counts = Counter(keys)
    assert (first_key, second_key) == (b"hot", b"warm")
    assert most == pytest.approx(counts[b"hot"], rel=0.15)
    assert next_most == pytest.approx(counts[b"warm"], rel=0.3)
    assert total == pytest.approx(len(keys), rel=0.15)


def test_keys_in_turn_are_not_mistaken_for_hot_ones() -> None:
    """A sample with a fixed step would see one key of an input that repeats with the step."""
    found = HotKeys()
    for _ in range(2_000):
        found.look([b"k%d" % number for number in range(STEP)])
    top, total = found.top(STEP)
    assert len(top) == STEP
    assert top[0][1] < 2.5 * total / STEP


def test_the_sample_is_bounded_and_long_keys_are_cut() -> None:
    found, chosen = HotKeys(), random.Random(2)
    for _ in range(300):
        found.look([b"hot", *(chosen.randbytes(8) for _ in range(999))] + [b"hot"] * 100)
        assert len(found._now) <= _MOST
    assert found.top(1)[0][0][0] == b"hot"
    long = HotKeys()
    for _ in range(200):
        long.look([b"x" * 1_000_000 + b"1", b"x" * 1_000_000 + b"2"] * STEP)
    (a, _), (b, _) = long.top(10)[0]
    assert a != b
    assert max(len(a), len(b)) <= _LONGEST


def test_a_key_that_is_no_longer_hot_disappears() -> None:
    found = HotKeys()
    found.look([b"old"] * 10_000)
    found.rotate()
    found.look([b"new", None] * 1_000)
    assert {key for key, _ in found.top(10)[0]} == {b"old", b"new"}
    found.rotate()
    assert {key for key, _ in found.top(10)[0]} == {b"new"}
    found.rotate()
    assert found.top(10) == ([], 0)
