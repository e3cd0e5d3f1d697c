"""The keys with the most messages, from a sample of bounded size."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.arrays.sequences import ArrowSequence

STEP = 31
"""One message of so many is looked at. A prime: a power of 2 would meet the steps in which keys of some inputs come."""
_MOST = 2_000
_KEPT = 500
"""Once there are more than `_MOST` different keys, those with the most messages stay."""
_LONGEST = 120


class HotKeys:
    """Counts the keys of a sample of messages. At any time the last one to two windows count, so that a key which is
    no longer hot disappears.

    `look` may be called by several threads: nothing depends on a count that is lost between two of them.
    """

    def __init__(self) -> None:
        self._now = Counter[bytes]()
        self._before = Counter[bytes]()

    def look(self, keys: Sequence[bytes | None] | ArrowSequence) -> None:
        """Take a sample of the keys of some messages. A message without a key counts for no key."""
        skip, count = int(random.random() * STEP), len(keys)  # noqa: S311 - a sample, no secret
        if skip >= count:
            return  # so that a page of one message is looked at as rarely as it should be
        if isinstance(keys, ArrowSequence):
            taken: Any = keys.array.take(pa.array(range(skip, count, STEP), pa.int64())).to_pylist()
        else:
            taken = keys[skip::STEP]
        found = [key for key in taken if key is not None]
        if found and max(map(len, found)) > _LONGEST:
            found = [_cut(key) for key in found]
        self._now.update(found)
        if len(self._now) > _MOST:
            self._now = Counter(dict(self._now.most_common(_KEPT)))

    def rotate(self) -> None:
        """Begin another window."""
        self._before, self._now = self._now, Counter()

    def top(self, most: int) -> tuple[list[tuple[bytes, int]], int]:
        """The keys with the most messages, each with about how many, and about how many all have."""
        both = Counter(dict(self._before)) + Counter(dict(self._now))
        return [(key, count * STEP) for key, count in both.most_common(most)], both.total() * STEP


def _cut(key: bytes) -> bytes:
    """A long key is known by its beginning and a digest."""
    if len(key) <= _LONGEST:
        return key
    return key[: _LONGEST // 2] + b"... " + hashlib.blake2b(key, digest_size=8).hexdigest().encode()
