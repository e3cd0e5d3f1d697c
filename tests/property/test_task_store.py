"""Stores against a plain dict: as state machines, in each stack of layers, on both engines; overlay and cache."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import penstock as ps
from penstock.graph.stores import StoreSpec
from penstock.state.engines.engine import Engine
from penstock.state.engines.memory import MemoryEngine
from penstock.state.engines.overlay import MISSING, Overlay
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.state.stores.build import build_store
from penstock.state.stores.serdes import ValueCache
from penstock.state.stores.task_store import StoreLayer
from penstock.testing.runner.checks import CheckedStore
from tests.support.tools.profiles import examples

KEYS = st.sampled_from([b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"aa", b"b", b"\x7f", b"\x80", b"\xff", b"\xff\xff"])
VALUES = st.integers(0, 9)
SPEC = StoreSpec("s", ps.Bytes(), ps.Json())
Model = dict[bytes, list[int]]


def rocksdb(folder: str) -> Engine:
    return RocksDbEngine(Path(folder) / "db", block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)


def part(model: Model, start: bytes, end: bytes) -> list[tuple[bytes, list[int]]]:
    return [(key, model[key]) for key in sorted(model) if start <= key < end]


class StoreMachine(RuleBasedStateMachine):
    """`committed` is what ended batches left, `seen` what the running one sees. The cache holds two entries."""

    undoable = False
    layers: tuple[type[StoreLayer], ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.engine = self.make_engine()
        self.committed: Model = {}

    def make_engine(self) -> Engine:
        return MemoryEngine()

    @initialize()
    def begin(self) -> None:
        self.store = build_store(SPEC, self.engine, 2, undoable=self.undoable, layers=self.layers)
        self.overlay = self.store.begin()
        self.seen: Model = {key: list(value) for key, value in self.committed.items()}

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        assert self.store.get(key) == self.seen.get(key)

    @rule(keys=st.lists(KEYS))
    def get_all(self, keys: list[bytes]) -> None:
        assert self.store.get_all(keys) == {key: self.seen.get(key) for key in keys}

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: int) -> None:
        self.store.put(key, [value])
        self.seen[key] = [value]

    @rule(entries=st.dictionaries(KEYS, VALUES))
    def put_all(self, entries: dict[bytes, int]) -> None:
        self.store.put_all({key: [value] for key, value in entries.items()})
        self.seen |= {key: [value] for key, value in entries.items()}

    @rule(key=KEYS, value=VALUES)
    def change_in_place_and_put(self, key: bytes, value: int) -> None:
        found = self.store.get(key) or []
        found.append(value)
        self.store.put(key, found)
        self.seen[key] = [*self.seen.get(key, []), value]

    @rule(key=KEYS, none=st.booleans())
    def delete(self, key: bytes, none: bool) -> None:
        if none:
            self.store.put(key, None)
        else:
            self.store.delete(key)
        self.seen.pop(key, None)

    @rule(keys=st.lists(KEYS))
    def delete_all(self, keys: list[bytes]) -> None:
        self.store.delete_all(keys)
        for key in keys:
            self.seen.pop(key, None)

    @rule(start=KEYS, end=KEYS)
    def range(self, start: bytes, end: bytes) -> None:
        if start > end:
            with pytest.raises(ps.ConfigError, match="begins after its end"):
                self.store.range(start, end)
        else:
            assert list(self.store.range(start, end)) == part(self.seen, start, end)

    @rule(start=KEYS, end=KEYS, key=KEYS)
    def snapshot_is_unmoved(self, start: bytes, end: bytes, key: bytes) -> None:
        start, end = min(start, end), max(start, end)
        expected = part(self.seen, start, end)
        found = self.store.snapshot(start, end)
        self.delete(key, none=False)
        assert found == expected

    @invariant()
    def all(self) -> None:
        if hasattr(self, "store"):
            assert list(self.store.all()) == sorted(self.seen.items())

    @rule()
    def the_batch_ends(self) -> None:
        self.engine.apply(self.overlay.changes)
        self.committed = {key: list(value) for key, value in self.seen.items()}
        self.overlay = self.store.begin()

    @rule()
    def the_attempt_is_discarded(self) -> None:
        self.begin()

    def teardown(self) -> None:
        expected = sorted(self.committed.items())
        found = [(key, ps.Json().from_bytes(value)) for key, value in self.engine.scan(None, None)]
        self.engine.close()
        self.folder.cleanup()
        assert found == expected


class UndoMachine(StoreMachine):
    """The same with a mark before each message, and messages that fail."""

    undoable = True
    marked: Model | None = None

    @rule()
    def mark(self) -> None:
        self.store.mark()
        self.marked = {key: list(value) for key, value in self.seen.items()}

    @precondition(lambda self: self.marked is not None)
    @rule()
    def undo(self) -> None:
        assert self.marked is not None
        self.store.undo()
        self.seen = {key: list(value) for key, value in self.marked.items()}

    @precondition(lambda self: self.marked is not None)
    @rule(key=KEYS)
    def change_without_put_and_undo(self, key: bytes) -> None:
        (self.store.get(key) or []).append(77)
        self.undo()

    @rule()
    def the_batch_ends(self) -> None:
        self.engine.apply(self.overlay.changes)
        self.committed = {key: list(value) for key, value in self.seen.items()}
        self.overlay = self.store.begin()
        self.marked = None

    @rule()
    def the_attempt_is_discarded(self) -> None:
        self.begin()
        self.marked = None


class CheckedUndoMachine(UndoMachine):
    """The same with a layer around it."""

    layers = (CheckedStore,)


class RocksStoreMachine(StoreMachine):
    def make_engine(self) -> Engine:
        return rocksdb(self.folder.name)


class RocksUndoMachine(UndoMachine):
    def make_engine(self) -> Engine:
        return rocksdb(self.folder.name)


TestMemoryStore: Any = StoreMachine.TestCase
TestMemoryUndo: Any = UndoMachine.TestCase
TestCheckedUndo: Any = CheckedUndoMachine.TestCase
TestRocksStore: Any = RocksStoreMachine.TestCase
TestRocksStore.settings = examples(0.2)
TestRocksUndo: Any = RocksUndoMachine.TestCase
TestRocksUndo.settings = examples(0.2)

CHANGES = st.dictionaries(KEYS, st.none() | st.sampled_from([b"", b"1", b"2"]))


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@given(stored=CHANGES, changed=CHANGES, start=st.none() | KEYS, end=st.none() | KEYS)
@examples(0.4)
def test_an_overlay_reads_through_and_never_writes(
    kind: str, stored: dict[bytes, bytes | None], changed: dict[bytes, bytes | None], start: bytes, end: bytes
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = MemoryEngine() if kind == "memory" else rocksdb(folder)
        engine.apply(stored)
        before = list(engine.scan(None, None))
        overlay = Overlay(engine)
        overlay.changes.update(changed)
        model = {k: v for k, v in {**stored, **changed}.items() if v is not None}
        inside = [k for k in sorted(model) if (start is None or k >= start) and (end is None or k < end)]
        found = overlay.scan(start, end)
        overlay.changes[b"later"] = b"x"
        assert list(found) == [(k, model[k]) for k in inside]
        assert all(overlay.get(k) == model.get(k) for k in {*stored, *changed})
        assert list(engine.scan(None, None)) == before
        engine.close()


def test_an_open_scan_of_an_engine_does_not_move(tmp_path: Path) -> None:
    for engine in (MemoryEngine(), rocksdb(str(tmp_path))):
        engine.apply({b"%d" % n: b"old" for n in range(9)})
        found = engine.scan(None, None)
        first = next(found)
        engine.apply({b"%d" % n: None if n % 2 else b"new" for n in range(12)})
        assert [first, *found] == [(b"%d" % n, b"old") for n in range(9)]
        engine.close()


@given(st.integers(0, 5), st.lists(st.tuples(st.sampled_from("gpa"), KEYS, st.dictionaries(KEYS, st.binary()))))
def test_the_cache_never_says_anything_old(entries: int, steps: list[tuple[str, bytes, dict[bytes, bytes]]]) -> None:
    cache = ValueCache(entries)
    last: dict[bytes, bytes] = {}
    for what, key, values in steps:
        match what:
            case "g":
                assert cache.get(key) in (MISSING, last.get(key, MISSING))
            case "p":
                cache.put(key, b"one")
                last[key] = b"one"
            case _:
                cache.put_all(values)
                last |= values
        assert len(cache.young) + len(cache._old) <= 2 * max(1, entries)


def test_a_hot_key_stays_in_the_cache() -> None:
    cache = ValueCache(10)
    cache.put(b"hot", b"1")
    for n in range(1000):
        cache.put(b"%d" % n, b"")
        assert cache.get(b"hot") == b"1"
