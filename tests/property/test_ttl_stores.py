"""Stores with a time to live against a dict with times: attempts, discards, undone messages, restores, and entries from
before the store had one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import penstock as ps
from penstock.graph.stores import StoreSpec, TimeToLive
from penstock.state.engines.engine import Engine
from penstock.state.engines.memory import MemoryEngine
from penstock.state.engines.open import WriteBehindEngine
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.state.reading.comparison import expiry_problem
from penstock.state.stores import build
from penstock.state.stores.build import build_store
from penstock.state.stores.task_store import StoreLayer
from penstock.state.stores.timed_entries import MEMBER, META, RESERVED, RESERVED_END, live_view
from penstock.testing.runner.checks import CheckedStore
from tests.support.tools.profiles import examples

KEYS = st.sampled_from(
    [
        b"",
        b"a",
        b"aa",
        b"b",
        b"\x7f",
        RESERVED,
        RESERVED + b"\x00",
        RESERVED + b"\x01a",
        MEMBER,
        RESERVED_END,
        b"\xff\xff",
    ]
)
VALUES = st.integers(0, 9)
TTLS = st.sampled_from([1, 5, 40, 1000])


@dataclass
class Kept:
    """The oracle's value of a key, and when it expires."""

    value: list[int]
    expires: int


Model = dict[bytes, Kept]


def copied(model: Model) -> Model:
    return {key: Kept(list(kept.value), kept.expires) for key, kept in model.items()}


class Replacing(StoreLayer):
    """A layer that replaces nothing."""


class TtlMachine(RuleBasedStateMachine):
    """`committed` is what ended batches left; `seen` what the running one has; `now` its batch time."""

    undoable = False
    since: Any = "write"
    layers: tuple[type[StoreLayer], ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(build, "AT_MOST", 2)
        self.folder = tempfile.TemporaryDirectory()
        self.engine = self.make_engine()
        self.committed: Model = {}
        self.seen: Model = {}
        self.marked: Model | None = None

    def make_engine(self) -> Engine:
        return MemoryEngine()

    # The life of the store.

    @initialize(ttl=TTLS, now=st.integers(0, 50), before=st.dictionaries(KEYS, VALUES))
    def declare(self, ttl: int, now: int, before: dict[bytes, int]) -> None:
        """The store may have entries from before it had a time to live: they count from the first batch."""
        self.engine.apply({key: b"[%d]" % value for key, value in before.items()})
        self.ttl, self.now = ttl, now
        self.committed = {key: Kept([value], now + ttl) for key, value in before.items()}
        self.open()

    def open(self) -> None:
        spec = StoreSpec("s", ps.Bytes(), ps.Json(), TimeToLive(self.ttl, self.since))
        self.store = build_store(spec, self.engine, 2, time_ms=self.now, undoable=self.undoable, layers=self.layers)
        self.overlay = self.store.begin(self.now)
        self.seen = copied(self.committed)
        self.marked = None

    @rule(ms=st.integers(0, 60))
    def the_batch_ends(self, ms: int) -> None:
        self.store.reclaim()
        self.engine.apply(self.overlay.take())
        self.committed = copied({key: kept for key, kept in self.seen.items() if kept.expires > self.now})
        assert expiry_problem(self.engine) is None
        self.now += ms
        self.overlay = self.store.begin(self.now)
        self.marked = None

    @rule(reclaimed=st.booleans())
    def the_attempt_is_discarded(self, reclaimed: bool) -> None:
        if reclaimed:
            self.store.reclaim()
        self.open()

    @rule(ms=st.integers(0, 60), ttl=TTLS)
    def the_process_dies_and_the_store_is_restored(self, ms: int, ttl: int) -> None:
        """Into another engine, and the application may declare another time to live."""
        content = dict(self.engine.scan(None, None))
        self.engine.close()
        self.folder.cleanup()
        self.folder = tempfile.TemporaryDirectory()
        self.engine = self.make_engine()
        self.engine.load(content)
        if META in content:  # before, the adoption has not begun
            self.now += ms
            self.ttl = ttl
        self.open()

    # What the task does.

    def alive(self, key: bytes) -> list[int] | None:
        kept = self.seen.get(key)
        return None if kept is None or kept.expires <= self.now else kept.value

    def accessed(self, key: bytes) -> None:
        kept = self.seen.get(key)
        if self.since == "access" and kept is not None and kept.expires > self.now:
            expires = self.now + self.ttl
            if kept.expires < expires - self.ttl // 16:
                kept.expires = expires

    def entries(self) -> list[tuple[bytes, list[int]]]:
        return [(key, value) for key in sorted(self.seen) if (value := self.alive(key)) is not None]

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        assert self.store.get(key) == self.alive(key)
        self.accessed(key)

    @rule(key=KEYS)
    def contains(self, key: bytes) -> None:
        assert (key in self.store) == (self.alive(key) is not None)
        self.accessed(key)

    @rule(keys=st.lists(KEYS))
    def get_all(self, keys: list[bytes]) -> None:
        assert self.store.get_all(keys) == {key: self.alive(key) for key in keys}
        for key in keys:
            self.accessed(key)

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: int) -> None:
        self.store.put(key, [value])
        self.seen[key] = Kept([value], self.now + self.ttl)

    @rule(key=KEYS, value=VALUES)
    def change_in_place_and_put(self, key: bytes, value: int) -> None:
        found = [*(self.alive(key) or []), value]
        self.store.put(key, [*(self.store.get(key) or []), value])
        self.seen[key] = Kept(found, self.now + self.ttl)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.store.delete(key)
        self.seen.pop(key, None)

    @rule(start=KEYS, end=KEYS)
    def range(self, start: bytes, end: bytes) -> None:
        start, end = min(start, end), max(start, end)
        expected = [(key, value) for key, value in self.entries() if start <= key < end]
        assert list(self.store.range(start, end)) == expected
        assert self.store.snapshot(start, end) == expected

    @rule(prefix=KEYS)
    def items(self, prefix: bytes) -> None:
        assert list(self.store.items(prefix=prefix)) == [each for each in self.entries() if each[0].startswith(prefix)]

    @rule(key=KEYS, value=VALUES)
    def an_open_scan_is_unmoved(self, key: bytes, value: int) -> None:
        expected = [(found, list(kept)) for found, kept in self.entries()]
        scan: Iterator[tuple[bytes, list[int]]] = self.store.all()
        self.put(key, value)
        self.delete(b"a")
        assert list(scan) == expected

    @invariant()
    def all(self) -> None:
        if hasattr(self, "store"):
            assert list(self.store.all()) == self.entries()

    @invariant()
    def readers_see_what_ended_batches_left(self) -> None:
        if hasattr(self, "store"):
            view = live_view(self.engine, self.now)
            expected = {key: kept.value for key, kept in self.committed.items() if kept.expires > self.now}
            assert {key: ps.Json().from_bytes(data) for key, data in view.scan(None, None)} == expected
            assert all(view.get(key) is not None for key in expected)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.everything_expires()
        self.engine.close()
        self.folder.cleanup()
        self.patch.undo()

    def everything_expires(self) -> None:
        """In the end nothing is left but the note that every entry has a header."""
        self.open()
        for _ in range(20):
            self.the_batch_ends(2000)
        assert len(list(self.engine.scan(None, None))) == 1


class UndoMachine(TtlMachine):
    """The same with a mark before each message, messages that fail, and reads that count."""

    undoable = True
    since = "access"
    layers = (Replacing, CheckedStore)

    @rule()
    def mark(self) -> None:
        self.store.mark()
        self.marked = copied(self.seen)

    @precondition(lambda self: self.marked is not None)
    @rule()
    def undo(self) -> None:
        assert self.marked is not None
        self.store.undo()
        self.seen = copied(self.marked)


class RocksMachine(UndoMachine):
    """The same on the engine of a job, which writes behind."""

    def __init__(self) -> None:
        self.writer = ThreadPoolExecutor(1)
        super().__init__()

    def make_engine(self) -> Engine:
        folder = Path(self.folder.name) / "db"
        engine = RocksDbEngine(folder, block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
        return WriteBehindEngine(engine, self.writer, gather_bytes=2000)

    def teardown(self) -> None:
        super().teardown()
        self.writer.shutdown()


TestWritten: Any = TtlMachine.TestCase
TestWritten.settings = examples(0.3)
TestAccessedAndUndone: Any = UndoMachine.TestCase
TestAccessedAndUndone.settings = examples(0.4)
TestRocks: Any = RocksMachine.TestCase
TestRocks.settings = examples(0.1)
