"""RocksDB's counts and times, the memory of all stores of a process, and that of a store in columns."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.config.key import ResolvedValues
from penstock.config.settings import StoreSettings
from penstock.errors import ConfigError
from penstock.metrics.snapshot import CounterValue, TimerValue
from penstock.state.engines.memory import ColumnEngine, ColumnLimit
from penstock.state.engines.open import open_rocksdb
from penstock.state.engines.rocksdb import RocksDbEngine, measurements_in
from tests.support.jobs.home import wait_until
from tests.support.world.sums_job import SumsWorld, drain

TOTAL = 8 << 20
ENGINES = 8
WRITES = 10_000
VALUE_BYTES = 200
"""Each engine gets twice its share of the total."""


@contextmanager
def filled(folder: Path, given: dict[str, object]) -> Iterator[list[RocksDbEngine]]:
    """Engines with the same entries, all of which were read once."""
    with ExitStack() as stack:
        engines = []
        for number in range(ENGINES):
            engine = open_rocksdb(StoreSettings(ResolvedValues(folder, given), "s"), folder / str(number))
            stack.callback(engine.close)
            engines.append(engine)
        values = random.Random(1)
        for first in range(0, WRITES, 1000):
            changes = {b"%08d" % n: values.randbytes(VALUE_BYTES) for n in range(first, first + 1000)}
            for engine in engines:
                engine.apply(changes)
        for engine in engines:
            assert sum(len(value) for _, value in engine.scan(None, None)) == WRITES * VALUE_BYTES
        yield engines


def written(engines: list[RocksDbEngine]) -> int:
    """The bytes in all write buffers. RocksDB looks at them with each write, and frees them beside it."""
    for engine in engines:
        engine.apply({b"more": b"value"})
    return sum(engine.statistics()["rocksdb.cur-size-all-mem-tables"] for engine in engines)


def cached(engines: list[RocksDbEngine]) -> int:
    """The bytes in the fullest cache, of which shared buffers are a part."""
    return max(engine.statistics()["rocksdb.block-cache-usage"] for engine in engines)


def test_all_stores_together_stay_below_the_total(tmp_path: Path) -> None:
    with filled(tmp_path / "each", {}) as engines:
        assert written(engines) > 2 * TOTAL // 3
    with filled(tmp_path / "together", {"stores.memory.total.bytes": TOTAL}) as engines:
        wait_until(lambda: written(engines) < 1.1 * TOTAL // 3, "buffers to be written, as they are too large together")
        wait_until(lambda: cached(engines) < 1.1 * TOTAL, "the cache to have room for the buffers")


def open_engine(path: Path) -> RocksDbEngine:
    return RocksDbEngine(path / "store", block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)


def test_reads_writes_scans_and_files(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    for part in range(3):
        engine.apply({b"%d" % key: b"%d" % part * 100 for key in range(1000)})
        engine.flush()
    for key in range(7):
        engine.get(b"%d" % key)
    list(engine.scan(None, b"5"))
    found = engine.measurements()
    timers = {name: value for name, value in found.items() if isinstance(value, TimerValue)}
    counts = {name: value.count for name, value in found.items() if isinstance(value, CounterValue)}
    assert [timers[name].count for name in ("get-ns", "write-ns")] == [7, 3]
    assert timers["seek-ns"].count >= 1
    assert timers["write-ns"].total_ns >= timers["write-ns"].max_ns > 0
    assert counts["flush-bytes-written"] > 3000
    assert counts["block-cache-misses"] > 0
    assert set(counts) == {
        "block-cache-hits",
        "block-cache-misses",
        "compaction-bytes-read",
        "compaction-bytes-written",
        "flush-bytes-written",
    }
    engine.close()
    assert engine.measurements() == found, "they are there when the epoch is over"


def test_lines_that_are_missing_or_other_than_expected_are_no_numbers() -> None:
    assert measurements_in("") == {}
    text = "rocksdb.block.cache.miss COUNT : 7\nrocksdb.db.get.micros P50 : 1 P100 : 12.5 COUNT : 3 SUM : 20\nnothing"
    assert measurements_in(text) == {"block-cache-misses": CounterValue(7), "get-ns": TimerValue(3, 20_000, 12_500)}


def test_an_engine_within_its_limit_works_and_one_beyond_it_says_what_to_do() -> None:
    engine = ColumnEngine(limit=ColumnLimit("sums", 100_000))
    engine.apply({f"{n}".encode(): b"value" for n in range(100)})
    with pytest.raises(ConfigError) as caught:
        engine.apply({f"{n}".encode(): b"value" for n in range(10_000)})
    for part in ("store `sums`", "stores.sums.columns.max.bytes=100000", "stores.sums.factory=rocksdb"):
        assert part in str(caught.value)


def test_a_run_that_ends_at_the_limit_loses_nothing(tmp_path: Path) -> None:
    world = SumsWorld(tmp_path)
    first = world.started(stores_sums_factory="columns")
    world.put(*range(20))
    drain(first)
    first.loop.finish()
    first.close()
    second = world.driver(stores_sums_factory="columns", stores_sums_columns_max_bytes=1)
    with pytest.raises(ConfigError, match=r"Set stores\.sums\.factory=rocksdb"):
        second.loop.start()
    second.close()
    third = world.started(stores_sums_factory="rocksdb")
    world.put(*range(7))
    drain(third)
    world.check(third)
    third.loop.finish()
    third.close()


def test_a_batch_that_passes_the_limit_ends_the_run_at_once(tmp_path: Path) -> None:
    world = SumsWorld(tmp_path)
    driver = world.started(stores_sums_factory="columns", stores_sums_columns_max_bytes=1)
    world.put(1)
    with pytest.raises(ConfigError, match=r"store `sums` is kept in memory, in columns"):
        drain(driver)
    driver.close()
