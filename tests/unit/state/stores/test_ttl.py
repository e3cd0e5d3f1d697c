"""A store with a time to live: what it reads and writes for its work, and the form of its entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

import penstock as ps
from penstock.errors import IncompatibleError
from penstock.graph.stores import StoreSpec, TimeToLive
from penstock.state.engines.engine import EngineFailedError
from penstock.state.engines.memory import MemoryEngine
from penstock.state.engines.overlay import Overlay
from penstock.state.reading.comparison import expiry_problem
from penstock.state.stores import build
from penstock.state.stores.build import build_store
from penstock.state.stores.task_store import TaskStore
from penstock.state.stores.timed_entries import INDEX, META, RESERVED, has_begun

NOW = 1_700_000_000_000
HOUR = 3_600_000


class CountingEngine(MemoryEngine):
    """Counts what is read of it."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = self.scanned = 0

    def get(self, key: bytes) -> bytes | None:
        self.gets += 1
        return super().get(key)

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        for entry in super().scan(start, end):
            self.scanned += 1
            yield entry

    def take_reads(self) -> tuple[int, int]:
        found = self.gets, self.scanned
        self.gets = self.scanned = 0
        return found


class Life:
    """A store with a time to live, batch by batch."""

    def __init__(self, ttl_ms: int = HOUR, since: Literal["write", "access"] = "write", cache: int = 1000) -> None:
        self.engine = CountingEngine()
        self.spec = StoreSpec("s", ps.String(), ps.Json(), TimeToLive(ttl_ms, since))
        self.cache = cache
        self.now = NOW
        self.written: list[int] = []
        """The number of keys that each batch changed."""
        self.reads: list[tuple[int, int]] = []
        """The gets and the entries of scans with which each batch read the engine at its end."""

    def open(self) -> TaskStore:
        self.store = build_store(self.spec, self.engine, self.cache, time_ms=self.now)
        self.overlay: Overlay = self.store.begin(self.now)
        return self.store

    def end(self, later_ms: int = 0) -> None:
        self.engine.take_reads()
        self.store.reclaim()
        self.reads.append(self.engine.take_reads())
        changes = self.overlay.take()
        self.written.append(len(changes))
        self.engine.apply(changes)
        assert expiry_problem(self.engine) is None
        self.now += later_ms
        self.overlay = self.store.begin(self.now)

    @property
    def entries(self) -> int:
        return sum(1 for key, _ in self.engine.scan(None, None) if not key.startswith(RESERVED))


def test_deleting_touches_what_expires_and_no_more() -> None:
    """100 of 3,000 entries expire: their places in the index are read, and nothing else."""
    life = Life()
    store = life.open()
    store.put_all({f"early {n}": n for n in range(100)})
    life.end(HOUR // 2)
    store.put_all({f"later {n}": n for n in range(2900)})
    life.end(HOUR // 2)
    for _ in range(10):
        life.end(HOUR // 32)
    assert life.entries == 2900
    assert sum(life.written[2:]) == 200, "each expired entry and its place"
    assert [sum(each) for each in zip(*life.reads[2:], strict=True)] == [0, 100]


def test_a_batch_deletes_a_bounded_number_and_the_others_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "AT_MOST", 100)
    life = Life()
    store = life.open()
    keys = [f"k{n:04}" for n in range(1000)]
    store.put_all(dict.fromkeys(keys, 1))
    life.end(2 * HOUR)
    for batch in range(10):
        assert list(store.all()) == []
        assert store.get_all(keys[::250]) == dict.fromkeys(keys[::250])
        life.end(1)
        assert life.entries == 1000 - 100 * (batch + 1)
        assert life.reads[-1][1] <= 101
    assert life.written[1:] == [200] * 10
    assert life.store.take_expired() == 1000
    life.end(1)
    assert (life.written[-1], life.reads[-1]) == (0, (0, 0))


def test_deleting_keeps_up_with_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch may write more than the bound; then as many may expire in each batch later."""
    monkeypatch.setattr(build, "AT_MOST", 10)
    life = Life(ttl_ms=1000)
    store = life.open()
    for batch in range(12):
        store.put_all({f"{batch} {n}": n for n in range(50)})
        life.end(500)
        assert life.entries <= 50 * 4


def test_no_index_is_written_for_a_key_that_is_written_often() -> None:
    life = Life()
    store = life.open()
    for _ in range(160):
        store.put("hot", 1)
        life.end(HOUR // 160)
    assert life.written[0] == 3, "the entry, its place, and the note that entries have headers"
    assert sum(1 for each in life.written if each > 1) <= 33
    assert life.entries == 1


@pytest.mark.parametrize(("since", "writes"), [("write", 0), ("access", 15)])
def test_reads_seldom_write(since: Literal["write", "access"], writes: int) -> None:
    life = Life(since=since)
    store = life.open()
    store.put("k", 1)
    life.end(HOUR // 160)
    for _ in range(159):
        assert store.get("k") == 1
        assert store.get("k") == 1
        life.end(HOUR // 160)
    written = [each for each in life.written[1:] if each]
    assert abs(len(written) - writes) <= 1
    assert (store.get("k") == 1) == (since == "access")


def test_a_put_without_a_get_reads_the_engine_once_and_one_after_a_get_not_at_all() -> None:
    life = Life()
    store = life.open()
    store.put("k", 1)
    life.end(1)
    life.open()
    life.engine.take_reads()
    life.store.put("k", 2)
    life.store.put("k", 3)
    assert life.engine.take_reads()[0] == 1
    assert life.store.take_reads() == (1, 1, 0)
    life.end(1)
    life.engine.take_reads()
    assert life.store.get("k") == 3
    life.store.put("k", 4)
    assert life.engine.take_reads()[0] == 0


def test_adoption_is_bounded_by_entries_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "AT_MOST", 100)
    monkeypatch.setattr(build, "_ADOPTED_BYTES", 10_000)
    life = Life()
    life.engine.apply(
        {b"a%04d" % n: b"1" for n in range(500)} | {b"b%d" % n: b'"%s"' % (b"x" * 3000) for n in range(8)}
    )
    store = life.open()
    batches = 0
    while (life.engine.get(META) or b"")[-1:] != b"\x00" or not has_begun(life.engine.get(META)):
        assert store.get("a0499") == 1
        life.end(10)
        batches += 1
        assert life.written[-1] <= 2 * 100 + 1
    assert batches == 5 + 2
    assert len(list(store.all())) == 508
    life.now += HOUR - 10 * batches
    life.end()
    assert list(store.all()) == []


def test_a_larger_store_costs_a_batch_without_messages_nothing() -> None:
    life = Life()
    store = life.open()
    store.put_all({str(n): n for n in range(1000)})
    life.end(1)
    for _ in range(5):
        life.end(1)
    assert life.reads[-5:] == [(0, 0)] * 5


def test_the_form_of_entries() -> None:
    """Backends hold these bytes: another form needs another version in META, and the layout `ttl-2`."""
    life = Life(ttl_ms=1600)
    store = life.open()
    store.put("k", {"n": 1})
    store.put(RESERVED.decode("latin-1"), 2)
    life.end()
    expires = (NOW + 1600).to_bytes(8, "big")
    place = (-(-(NOW + 1600) >> 6) << 6).to_bytes(8, "big")
    shown = RESERVED.decode("latin-1").encode()
    assert dict(life.engine.scan(None, None)) == {
        b"k": expires + b"\x06" + b'{"n":1}',
        shown: expires + b"\x06" + b"2",
        INDEX + place + b"k": b"",
        INDEX + place + shown: b"",
        META: b"penstock ttl 1\x00",
    }
    bytes_spec = StoreSpec("s", ps.Bytes(), ps.Bytes(), TimeToLive(1600))
    engine = MemoryEngine()
    store = build_store(bytes_spec, engine, 10, time_ms=NOW)
    overlay = store.begin(NOW)
    store.put(RESERVED + b"x", b"v")
    assert overlay.changes[RESERVED + b"\x00x"] == expires + b"\x06v"


def test_a_form_of_a_newer_penstock_is_refused() -> None:
    life = Life()
    life.engine.apply({META: b"penstock ttl 2\x00"})
    with pytest.raises(IncompatibleError, match="has the form `penstock ttl 2`; this Penstock reads `penstock ttl 1`"):
        has_begun(life.engine.get(META))
    with pytest.raises(EngineFailedError, match="a newer one"):
        life.open()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({INDEX: None}, None),
        ({b"k": b"short"}, "the entry of key b'k' does not say when it expires"),
        ({b"k": None}, "the expiry index names 1 entries, and there are 0"),
        ({INDEX + (NOW + HOUR).to_bytes(8, "big") + b"k": None}, None),
        ({INDEX + b"\x00" * 8 + b"other": b""}, "the expiry index names 2 entries, and there are 1"),
        ({RESERVED + b"\x03k": b""}, "the list of adopted entries names 1 entries, and there are 0"),
        (
            {b"new": (NOW + 5 * HOUR).to_bytes(8, "big") + b"\x06x"},
            "the entry of key b'new' is not in the expiry index",
        ),
    ],
)
def test_an_index_that_does_not_fit_is_found(change: dict[bytes, bytes | None], problem: str | None) -> None:
    life = Life()
    life.open().put("k", 1)
    life.end()
    life.engine.apply(change)
    assert expiry_problem(life.engine) == problem


def test_an_engine_that_fails_is_no_failure_of_the_application() -> None:
    class Broken(CountingEngine):
        broken = False

        def get(self, key: bytes) -> bytes | None:
            if self.broken:
                raise OSError("the disk is gone")
            return super().get(key)

        def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
            if self.broken:
                raise OSError("the disk is gone")
            return super().scan(start, end)

    life, engine = Life(ttl_ms=1), Broken()
    life.engine = engine
    store = life.open()
    store.put("k", 1)
    life.end(10)
    engine.broken = True
    for call in (lambda: store.put("other", 1), lambda: store.all(), store.reclaim, life.open):
        with pytest.raises(EngineFailedError, match="the disk is gone"):
            call()
    assert store.failure is not None
