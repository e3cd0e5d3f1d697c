"""RocksDB's own counts and times, against what a test has it do."""

from __future__ import annotations

from pathlib import Path

from penstock.metrics.snapshot import CounterValue, TimerValue
from penstock.state.engines.rocksdb import RocksDbEngine, measurements_in


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
