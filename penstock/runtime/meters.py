"""Measurements made while messages are processed.

The keys with the most messages come from a sample of bounded size. An operator's time is without that of the
operators behind it. Uses of a store are counted once for each batch that has ended, never for each message.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, TypeVar

import pyarrow as pa

from penstock.arrays.given import ArrowSequence
from penstock.metrics.registry import MetricsRegistry
from penstock.state.stores.task_store import TaskStore

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


A = TypeVar("A")
B = TypeVar("B")

REPORTED_NS = 10_000_000
"""An operator is reported once it has taken this long: in a small batch of many tasks most take less."""


class _SpentTime:
    """The time of one operator since it was reported last."""

    __slots__ = ("ns", "operator")

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.ns = 0


class OperatorClock:
    """Times calls that take many messages at once. If an operator emits row by row, the operators behind it in the
    stage count with it: a clock around each message would cost more than some operators do.

    Used by one thread at a time; any thread may read `current`.
    """

    __slots__ = ("_mark", "_now", "_spent")

    def __init__(self) -> None:
        self._spent: dict[str, _SpentTime] = {}
        self._now = _SpentTime("")
        """The time in no operator is not looked at."""
        self._mark = 0

    @property
    def current(self) -> str:
        """The operator that is busy, by its id; empty if none is."""
        return self._now.operator

    def timed(self, operator: str, call: Callable[[A], B]) -> Callable[[A], B]:
        """The call, which counts as the operator's, without calls in it that are timed as well."""
        own = self._of(operator)

        def timed(given: A) -> B:
            outer, now = self._now, perf_counter_ns()
            outer.ns += now - self._mark
            self._mark, self._now = now, own
            try:
                return call(given)
            finally:
                now = perf_counter_ns()
                own.ns += now - self._mark
                self._mark, self._now = now, outer

        return timed

    def take(self, metrics: MetricsRegistry) -> None:
        """Move the times that are long enough to the metrics, as `busy-ns`."""
        for spent in self._spent.values():
            if spent.ns >= REPORTED_NS:
                metrics.new_timer(spent.operator, "busy-ns").update(spent.ns)
                spent.ns = 0

    def _of(self, operator: str) -> _SpentTime:
        return self._spent.setdefault(operator, _SpentTime(operator))


class StoreMeter:
    """The counters of one store of a task."""

    def __init__(self, metrics: MetricsRegistry, store: str) -> None:
        group = f"store.{store}"
        self._new_expired = partial(metrics.new_counter, group, "expired")
        self._gets = metrics.new_counter(group, "gets")
        self._cache_hits = metrics.new_counter(group, "cache-hits")
        self._scans = metrics.new_counter(group, "scans")
        self._puts = metrics.new_counter(group, "puts")
        self._deletes = metrics.new_counter(group, "deletes")
        self._bytes_written = metrics.new_counter(group, "bytes-written")

    def read(self, store: TaskStore) -> None:
        reads = store.take_reads()
        self._gets.inc(reads.gets)
        self._cache_hits.inc(reads.gets - reads.engine_gets)
        self._scans.inc(reads.scans)
        if store.spec.ttl is not None:
            self._new_expired().inc(store.take_expired())

    def wrote(self, keys: int, deletes: int, size_bytes: int) -> None:
        """Add the writes of an applied attempt. `keys` includes the deletes; several writes of a key within the batch
        count once."""
        self._puts.inc(keys - deletes)
        self._deletes.inc(deletes)
        self._bytes_written.inc(size_bytes)
