"""The threads of a container beside RocksDB: the delay of one that does a little every millisecond, such as the one
that answers heartbeats."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from penstock.state.engines.open import WriteBehindEngine
from penstock.state.engines.rocksdb import RocksDbEngine

_TICK_S = 0.001
_VALUE_BYTES = 100
_PHASES = ("open", "commit", "load", "scan", "get")


class Ticks:
    """A thread that sleeps for a millisecond, again and again, and notes how much later it wakes."""

    def __init__(self) -> None:
        self._delays: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ticks")

    def _run(self) -> None:
        last = time.perf_counter()
        while not self._ended.is_set():
            time.sleep(_TICK_S)
            now = time.perf_counter()
            self._delays.append((now - last - _TICK_S) * 1000)
            last = now

    @contextmanager
    def of(self, phase: str, found: dict[str, float]) -> Iterator[None]:
        """Note the delays, in milliseconds, while something is done."""
        self._delays.clear()
        yield
        time.sleep(2 * _TICK_S)
        delays = np.array(self._delays)
        found[f"{phase}_p99"], found[f"{phase}_longest"] = float(np.quantile(delays, 0.99)), float(delays.max())

    def __enter__(self) -> Ticks:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


def measure(parameters: dict[str, Any]) -> dict[str, Any]:
    """The phases of some stores, one after the other; the work of each phase is done by two threads."""
    work, stores = Path(parameters["work"]), parameters["stores"]
    rng = np.random.default_rng(1)
    entries = parameters["entries"] // stores
    data = rng.bytes(entries * _VALUE_BYTES)
    values = [data[at : at + _VALUE_BYTES] for at in range(0, len(data), _VALUE_BYTES)]
    changes = {b"%012d" % key: value for key, value in zip(rng.permutation(entries).tolist(), values, strict=True)}
    found: dict[str, float] = {}

    def engine(number: int) -> RocksDbEngine:
        return RocksDbEngine(
            work / f"{number}", block_cache_bytes=64 << 20, write_buffer_bytes=64 << 20, total_bytes=512 << 20
        )

    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(2) as writers, Ticks() as ticks:

        def each(do: Callable[[int], Any]) -> list[Any]:
            return list(pool.map(do, range(stores)))

        with ticks.of("open", found):
            engines = each(engine)
        gathering = [WriteBehindEngine(own, writers, 64 << 20) for own in engines]
        with ticks.of("commit", found):
            each(lambda number: gathering[number].apply(changes))
            each(lambda number: gathering[number].copy_to(work / f"{number}-copy"))
        with ticks.of("load", found):
            each(lambda number: engines[number].load(changes))
        with ticks.of("scan", found):
            counts = each(lambda number: sum(1 for _ in engines[number].scan(None, None)))
        with ticks.of("get", found):
            each(lambda number: [engines[number].get(key) for key in list(changes)[: 50_000 // stores]])
        each(lambda number: gathering[number].close())
    return {**found, "verified": {"equal": counts == [entries] * stores}}


@harness.benchmark("ticks", __doc__, stores=[1, 8, 50], entries=800_000, limit_ms=50.0)
def main(bench: harness.Bench) -> int:
    sides = {}
    for stores in bench.options.stores:
        side = f"{stores} stores" if stores > 1 else "1 store"
        sides[side] = bench.run(side, "ticks:measure", {"stores": stores})
        for phase in _PHASES:
            bench.target(f"{side}, {phase}, ms", sides[side][f"{phase}_longest"], at_most=bench.options.limit_ms)
    forms = {f"{phase}_{figure}": ".1f" for phase in _PHASES for figure in ("p99", "longest")}
    harness.show("the delay of another thread, in milliseconds", sides, **forms, peak_bytes="MB", verified="")
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
