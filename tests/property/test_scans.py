"""Scans against a sorted dict: open while the task writes, over deleted keys, over batches, in every layer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import penstock as ps
from penstock.graph.stores import StoreSpec
from penstock.state.engines import overlay
from penstock.state.engines.engine import Engine
from penstock.state.engines.memory import MemoryEngine
from penstock.state.engines.open import WriteBehindEngine
from penstock.state.engines.overlay import Gaps
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.state.stores.build import build_store

KEYS = st.integers(0, 30).map(lambda n: b"%02d" % n)
BOUNDS = st.tuples(KEYS, KEYS).map(sorted)
SPEC = StoreSpec("s", ps.Bytes(), ps.Bytes())
Model = dict[bytes, bytes]


@pytest.fixture(autouse=True)
def _small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few keys show what takes many."""
    monkeypatch.setattr(overlay, "_MANY", 2)
    monkeypatch.setattr(overlay, "_FIRST", 1)
    monkeypatch.setattr(overlay, "_MOST", 4)
    monkeypatch.setattr(overlay, "_MOST_GAPS", 5)


class ScanMachine(RuleBasedStateMachine):
    """Each open scan knows what it must still show: the rest of the model's entries when it began."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = self.make_engine()
        self.committed: Model = {}
        self.scans: list[tuple[Iterator[tuple[Any, Any]], list[tuple[bytes, bytes]]]] = []
        self.number = 0

    def make_engine(self) -> Engine:
        return MemoryEngine()

    @initialize()
    def begin(self) -> None:
        assert overlay._MANY == 2
        self.store = build_store(SPEC, self.engine, 3, undoable=True)
        self.overlay = self.store.begin()
        self.seen, self.scans = dict(self.committed), []
        self.mark()

    @rule()
    def mark(self) -> None:
        self.store.mark()
        self.marked = dict(self.seen)

    @rule()
    def undo(self) -> None:
        self.store.undo()
        self.seen = dict(self.marked)

    @rule(keys=st.lists(KEYS, max_size=4))
    def put(self, keys: list[bytes]) -> None:
        for key in keys:
            self.number += 1
            self.store.put(key, b"%d" % self.number)
            self.seen[key] = b"%d" % self.number

    @rule(bounds=BOUNDS)
    def delete(self, bounds: list[bytes]) -> None:
        for key in [key for key in self.seen if bounds[0] <= key < bounds[1]]:
            self.store.delete(key)
            del self.seen[key]

    @rule()
    def delete_the_first(self) -> None:
        for key, _ in islice(self.store.range(b"", b"99"), 3):
            self.store.delete(key)
            assert key == min(self.seen)
            del self.seen[key]

    @rule(key=KEYS)
    def delete_what_may_be_absent(self, key: bytes) -> None:
        self.store.delete(key)
        self.seen.pop(key, None)

    def part(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        return sorted((key, value) for key, value in self.seen.items() if start <= key < end)

    @rule(bounds=BOUNDS)
    def scan(self, bounds: list[bytes]) -> None:
        assert list(self.store.range(*bounds)) == self.part(*bounds)

    @rule(bounds=BOUNDS, number=st.integers(0, 5))
    def open_a_scan(self, bounds: list[bytes], number: int) -> None:
        self.scans.append((self.store.range(*bounds), self.part(*bounds)))
        self.go_on(len(self.scans) - 1, number)

    @rule(which=st.integers(0, 9), number=st.integers(1, 9))
    def go_on(self, which: int, number: int) -> None:
        if self.scans:
            scan, rest = self.scans[which % len(self.scans)]
            assert list(islice(scan, number)) == rest[:number]
            del rest[:number]

    @rule(bounds=BOUNDS, gone=st.lists(KEYS), number=st.integers(0, 3), back=st.lists(KEYS), more=st.lists(KEYS))
    def write_among_deleted_keys_during_a_scan(
        self, bounds: list[bytes], gone: list[bytes], number: int, back: list[bytes], more: list[bytes]
    ) -> None:
        for key in gone:
            self.delete_what_may_be_absent(key)
        self.open_a_scan(bounds, number)
        self.put(back)
        for key in more:
            self.delete_what_may_be_absent(key)
        if len(more) % 2:
            assert list(self.store.all()) == sorted(self.seen.items())
        scan, rest = self.scans.pop()
        assert list(scan) == rest
        self.scan(bounds)

    @rule(which=st.integers(0, 9))
    def give_a_scan_up(self, which: int) -> None:
        if self.scans:
            del self.scans[which % len(self.scans)]

    @invariant()
    def all(self) -> None:
        if self.number % 3 == 1:  # not always: it would learn all gaps at once
            assert list(self.store.all()) == sorted(self.seen.items())

    @rule()
    def the_batch_ends(self) -> None:
        self.engine.apply(self.overlay.take())
        self.committed = dict(self.seen)
        self.overlay = self.store.begin()
        self.mark()

    @rule()
    def the_attempt_is_discarded(self) -> None:
        self.begin()

    def teardown(self) -> None:
        for scan, rest in self.scans:
            assert list(scan) == rest
        assert dict(self.engine.scan(None, None)) == self.committed
        assert all(self.engine.get(key) == value for key, value in self.committed.items())


class WriteBehindMachine(ScanMachine):
    """Over RocksDB, with changes above it that are written now and then."""

    gather_bytes = 2000

    def make_engine(self) -> Engine:
        self.folder = tempfile.TemporaryDirectory()
        self.writer = ThreadPoolExecutor(1)
        below = RocksDbEngine(Path(self.folder.name) / "db", block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
        return WriteBehindEngine(below, self.writer, self.gather_bytes)

    @rule()
    def everything_is_written(self) -> None:
        assert isinstance(self.engine, WriteBehindEngine)
        self.engine.settle()

    def teardown(self) -> None:
        super().teardown()
        self.scans.clear()
        self.engine.close()
        self.writer.shutdown()
        self.folder.cleanup()


class GatheringMachine(WriteBehindMachine):
    """The same with changes that stay above."""

    gather_bytes = 1 << 20


TestMemory = ScanMachine.TestCase
TestWriteBehind = WriteBehindMachine.TestCase
TestGathering = GatheringMachine.TestCase


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 30))))
def test_gaps_are_what_was_added_without_what_was_put(steps: list[tuple[bool, int, int]]) -> None:
    found, model, full = Gaps(), set[bytes](), False
    keys = [bytes([n]) for n in range(31)]
    for adds, low, high in steps:
        if adds:
            found.add(keys[low], keys[high])
            model |= {key for key in keys if keys[low] <= key < keys[high]}
        else:
            found.put(keys[low])
            model.discard(keys[low])
        ends = [found.end_of(key) for key in keys]
        inside = {key for key, end in zip(keys, ends, strict=True) if end is not None}
        full = full or len(found) >= 4
        assert inside <= model if full else inside == model
        assert all(end is None or end > key for key, end in zip(keys, ends, strict=True))


# What a scan costs, counted.


class Counting(MemoryEngine):
    """Counts the entries that scans take from it."""

    taken = 0

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        for entry in super().scan(start, end):
            self.taken += 1
            yield entry


@pytest.mark.parametrize("stored", [0, 5000])
def test_a_queue_passes_each_deleted_key_a_few_times_at_most(stored: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    engine = Counting()
    engine.apply({b"q%06d" % n: b"" for n in range(stored)})
    looked_up = 0
    original = overlay.Overlay._changed

    def counting(self: Any, *args: Any) -> Iterator[Any]:
        nonlocal looked_up
        for change in original(self, *args):
            looked_up += 1
            yield change

    monkeypatch.setattr(overlay.Overlay, "_changed", counting)
    store = build_store(SPEC, engine, 10, undoable=True)
    store.begin()
    messages = 5000
    for n in range(messages):
        store.put(b"q%06d" % (stored + n), b"")
        key, _ = next(store.range(b"q", b"r"))
        assert key == b"q%06d" % n
        store.delete(key)
    assert engine.taken + looked_up < 40 * messages


def test_the_first_entry_of_a_large_overlay_costs_no_more_than_that() -> None:
    engine = Counting()
    engine.apply({b"%06d" % (2 * n): b"" for n in range(10_000)})
    store = build_store(SPEC, engine, 10, undoable=True)
    store.begin()
    for n in range(10_000):
        store.put(b"%06d" % (2 * n + 1), b"")
    for _ in range(100):
        assert [key for key, _ in islice(store.all(), 3)] == [b"000000", b"000001", b"000002"]
    assert engine.taken < 1000
