"""An engine that writes behind: what it shows is the same at every moment, and a failed write is not forgotten."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.state.engines.engine import Changes, Engine
from penstock.state.engines.open import WriteBehindEngine
from penstock.state.engines.rocksdb import RocksDbEngine

_BUFFER = 1 << 20


class Gated(RocksDbEngine):
    """RocksDB that writes only while its gate is open, and fails if it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, block_cache_bytes=_BUFFER, write_buffer_bytes=_BUFFER)
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.applied = 0
        """Entries written."""

    def apply(self, changes: Changes) -> None:
        assert self.gate.wait(30)
        if self.failure is not None:
            raise self.failure
        super().apply(changes)
        self.applied += len(changes)


@pytest.fixture
def below(tmp_path: Path) -> Gated:
    return Gated(tmp_path / "db")


@pytest.fixture
def gather_bytes() -> int:
    return 1 << 20


@pytest.fixture
def engine(below: Gated, gather_bytes: int) -> Iterator[WriteBehindEngine]:
    with ThreadPoolExecutor(1) as writer:
        made = WriteBehindEngine(below, writer, gather_bytes)
        yield made
        below.gate.set()
        made.close()


def _all(engine: Engine) -> dict[bytes, bytes]:
    return dict(engine.scan(None, None))


@pytest.mark.parametrize("gather_bytes", [0, 1 << 20])
def test_what_is_gathered_or_being_written_is_seen_as_if_it_were_written(
    engine: WriteBehindEngine, below: Gated, gather_bytes: int
) -> None:
    engine.apply({b"a": b"1", b"b": b"2", b"d": b"4"})
    engine.settle()
    below.gate.clear()
    engine.apply({b"a": b"one", b"b": None, b"c": b"3"})
    assert below.get(b"b") == b"2"  # not written yet
    assert [engine.get(key) for key in (b"a", b"b", b"c", b"d", b"e")] == [b"one", None, b"3", b"4", None]
    assert list(engine.scan(None, None)) == [(b"a", b"one"), (b"c", b"3"), (b"d", b"4")]
    assert list(engine.scan(b"b", b"d")) == [(b"c", b"3")]
    below.gate.set()
    engine.settle()
    assert _all(engine) == _all(below) == {b"a": b"one", b"c": b"3", b"d": b"4"}


@pytest.mark.parametrize("gather_bytes", [0, 20_000, 1 << 20])
def test_random_changes_read_as_a_dict_does_wherever_they_are(engine: WriteBehindEngine, below: Gated) -> None:
    choose = random.Random(7)
    oracle: dict[bytes, bytes] = {}
    for _ in range(60):
        changes = {
            b"%04d" % choose.randrange(3000): None if choose.random() < 0.3 else b"%d" % choose.randrange(100)
            for _ in range(choose.randrange(1, 2000))
        }
        engine.apply(changes)
        oracle.update({key: value for key, value in changes.items() if value is not None})
        for key in [key for key, value in changes.items() if value is None]:
            oracle.pop(key, None)
        for _ in range(5):
            probe = b"%04d" % choose.randrange(3000)
            assert engine.get(probe) == oracle.get(probe)
        if choose.random() < 0.3:
            start, end = sorted((b"%04d" % choose.randrange(3000), b"%04d" % choose.randrange(3000)))
            assert list(engine.scan(start, end)) == sorted((k, v) for k, v in oracle.items() if start <= k < end)
    engine.settle()
    assert _all(below) == oracle


def test_a_key_that_changes_in_every_batch_is_written_once_for_many(engine: WriteBehindEngine, below: Gated) -> None:
    for batch in range(40):
        engine.apply({b"%d" % key: b"%d" % batch for key in range(1000)})
    engine.settle()
    assert below.applied == 1000
    for batch in range(40):
        engine.apply({b"%d-%d" % (batch, key): b"" for key in range(1000)})
        assert len(engine._above.changes) <= 8_000
    engine.settle()
    assert below.applied == 41_000
    assert len(_all(below)) == 41_000


def test_scans_by_several_threads_while_changes_come_see_what_there_is(engine: WriteBehindEngine) -> None:
    """As of an attempt that was given up and is still at work."""
    engine.apply({b"%05d" % key: b"" for key in range(0, 4000, 2)})
    done = threading.Event()

    def scanning() -> int:
        scans = 0
        while not done.is_set() or not scans:
            keys = [key for key, _ in engine.scan(b"01000", b"02000")]
            assert keys == sorted(set(keys))
            assert {b"%05d" % key for key in range(1000, 2000, 2)} <= set(keys)
            scans += 1
        return scans

    with ThreadPoolExecutor(3) as threads:
        scans = [threads.submit(scanning) for _ in range(3)]
        for batch in range(60):
            engine.apply({b"%05d" % (1 + 2 * (batch * 37 % 2000 + n)): b"" for n in range(20)})
        done.set()
        assert all(each.result() for each in scans)
    assert engine.get(b"00001") == b""


@pytest.mark.parametrize("gather_bytes", [0, 1 << 20])
def test_a_copy_has_what_was_gathered_or_being_written(
    engine: WriteBehindEngine, below: Gated, gather_bytes: int, tmp_path: Path
) -> None:
    engine.apply({b"k": b"v", b"l": b"w"})
    below.gate.clear()
    opener = threading.Timer(0.05, below.gate.set)
    opener.start()
    engine.apply({b"k": b"new"})
    engine.copy_to(tmp_path / "copy")
    copied = RocksDbEngine(tmp_path / "copy", block_cache_bytes=_BUFFER, write_buffer_bytes=_BUFFER, read_only=True)
    assert _all(copied) == {b"k": b"new", b"l": b"w"}
    copied.close()


@pytest.mark.parametrize("gather_bytes", [0])
def test_a_failed_write_is_told_at_the_next_one_and_reads_stay_right(engine: WriteBehindEngine, below: Gated) -> None:
    below.failure = OSError("no space left")
    engine.apply({b"k": b"v"})
    with pytest.raises(OSError, match="no space left"):
        engine.apply({b"k": b"later"})
    assert engine.get(b"k") == b"v"
    assert _all(engine) == {b"k": b"v"}
    with pytest.raises(OSError, match="no space left"):
        engine.settle()
