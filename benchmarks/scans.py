"""Scans of a store within a batch, beside a plain RocksDB iterator, which decodes the same values.

Where a queue takes longer than `--limit-s`, it has no figure, and later rounds leave it out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import rocksdict

import penstock as ps
from benchmarks import harness
from penstock.graph.stores import StoreSpec
from penstock.state.engines.open import WriteBehindEngine
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.state.stores.build import build_store

SIDES = ("store", "rocksdb")
FIGURES = ("queue_us", "entry_us")
"""Microseconds of a message of the queue, and of an entry of the scan."""
FLAT = 1.5
"""The largest cost of a queue's message, as a multiple of the cost in the smallest batch."""
_VALUE = {"flight": "UA1545", "miles": 1400}
_CACHE_BYTES, _BUFFER_BYTES = 32 << 20, 16 << 20
_LAST = 1000
"""Messages at the end of a batch that are timed."""


def middle(runs: Sequence[harness.Run]) -> dict[str, float | None]:
    """The median of each figure; None if a round took too long."""
    found = {figure: [run[figure] for run in runs] for figure in FIGURES}
    return {figure: None if None in own else round(statistics.median(own), 2) for figure, own in found.items()}


def store(parameters: dict[str, Any]) -> dict[str, Any]:
    """A store in a batch, as the container opens it."""
    folder = Path(parameters["work"]) / "store"
    engine = RocksDbEngine(folder, block_cache_bytes=_CACHE_BYTES, write_buffer_bytes=_BUFFER_BYTES)
    with ThreadPoolExecutor(1) as writer:
        behind = WriteBehindEngine(engine, writer, _BUFFER_BYTES)
        task_store = build_store(StoreSpec("s", ps.String(), ps.Json()), behind, 100_000)
        overlay = task_store.begin()

        def end() -> None:
            """The batch ends, and all of it is in RocksDB; the next one begins."""
            nonlocal overlay
            behind.apply(overlay.take())
            behind.settle()
            overlay = task_store.begin()

        found = _measure(parameters, task_store.put, task_store.range, task_store.delete, end)
        behind.close()
    return found


def rocksdb(parameters: dict[str, Any]) -> dict[str, Any]:
    """The same with RocksDB's own iterator, every write going to RocksDB at once, without a write-ahead log."""
    folder = Path(parameters["work"]) / "rocksdb"
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_BUFFER_BYTES)
    database: Any = rocksdict.Rdict(str(folder), options)
    without_log = rocksdict.WriteOptions()
    setattr(without_log, "disable_wal", True)  # noqa: B010 - rocksdict's stub calls this setter a method

    def put(key: str, value: Any) -> None:
        database.put(key.encode(), orjson.dumps(value), write_opt=without_log)

    def delete(key: str) -> None:
        database.delete(key.encode(), write_opt=without_log)

    def scan(start: str, end: str) -> Iterator[tuple[str, Any]]:
        bounds = rocksdict.ReadOptions()
        bounds.set_iterate_upper_bound(end.encode())
        for key, value in database.items(from_key=start.encode(), read_opt=bounds):
            yield key.decode(), orjson.loads(value)

    found = _measure(parameters, put, scan, delete, lambda: None)
    database.close()
    return found


def _measure(
    parameters: dict[str, Any],
    put: Callable[[str, Any], None],
    scan: Callable[[str, str], Iterator[tuple[str, Any]]],
    delete: Callable[[str], None],
    end: Callable[[], None],
) -> dict[str, Any]:
    """Microseconds of a message of the queue, among the last ones of a batch, and of an entry of the scan. A message
    puts an entry at the end of the queue and takes its first one; None if that takes longer than it may."""
    messages, waiting = parameters["messages"], parameters["waiting"]
    for n in range(waiting):
        put(f"q{n:09}", _VALUE)
    end()
    deadline = time.monotonic() + parameters["limit_s"]
    queue_us, began, timed = None, time.perf_counter(), min(_LAST, messages)
    for n in range(messages):
        if n == messages - timed:
            began = time.perf_counter()
        put(f"q{waiting + n:09}", _VALUE)
        found = next(scan("q", "r"), None)
        if found is None or found[0] != f"q{n:09}":
            raise AssertionError(f"message {n} found {found}")
        delete(found[0])
        if time.monotonic() > deadline:
            break
    else:
        queue_us = (time.perf_counter() - began) / timed * 1e6
    for half in range(2):  # the batch of the second half is running when the scan begins
        end()
        for n in range(half, messages, 2):
            put(f"s{n:09}", _VALUE)
    began = time.perf_counter()
    entries = sum(1 for _ in scan("s", "t"))
    entry_us = (time.perf_counter() - began) / messages * 1e6
    if entries != messages:
        raise AssertionError(f"a scan found {entries} of {messages} entries")
    return {"queue_us": queue_us, "entry_us": entry_us}


@harness.benchmark("scans", __doc__, messages=[1_000, 10_000, 100_000], waiting=1000, repeat=3, limit_s=20.0)
def main(bench: harness.Bench) -> int:
    options = bench.options
    for messages in sorted(options.messages):
        for side in bench.turns(SIDES, options.repeat):
            name = f"{side}, {messages:,} messages"
            took_too_long = any(run["queue_us"] is None for run in bench.runs.get(name, ()))
            limit_s = 0 if took_too_long else options.limit_s
            parameters = {"messages": messages, "waiting": options.waiting, "limit_s": limit_s}
            bench.run(name, f"scans:{side}", parameters)
    sides = {name: middle(runs) for name, runs in bench.runs.items()}
    harness.show("microseconds, median", sides, **dict.fromkeys(FIGURES, ",.1f"))
    queues = [own["queue_us"] for name, own in sides.items() if name.startswith("store") and own["queue_us"]]
    bench.target("a queue's message, over that of the smallest batch", max(queues) / queues[0], at_most=FLAT)
    return bench.finish(sides)
