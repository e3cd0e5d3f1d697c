"""The large state of one container: how long each thing takes that is done with all of it, and how much memory."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import rocksdict

from benchmarks import harness
from benchmarks.harness import files_below
from benchmarks.state.job import KEY_BYTES, StateJob, key_of, settle
from penstock.base.parallel import each
from penstock.container.launch import _ALLOCATOR
from penstock.state.engines.engine import Engine

STORES = ("accounts", "orders")
VALUE_BYTES = 1000
SAMPLED = 1000
"""One of so many values is compared."""
_STEP = 1_000_003
"""A prime: multiples of it, modulo the number of keys, are all keys in another order."""
_PART, _BATCHES = 5_000, 10
_POOL = random.Random(20130101).randbytes(64 << 20)
_GB = 10**9


def value_of(number: int, changed: bool) -> bytes:
    """Random bytes: neighbours have none in common."""
    start = (number * 4099 + changed * 2053) % (len(_POOL) - VALUE_BYTES)
    return b"%d %d " % (number, changed) + _POOL[start : start + VALUE_BYTES - 16]


class Container(StateJob):
    """The storage of a container, epoch after epoch of one process."""

    def __init__(self, work: Path, tasks: int, memory_bytes: int) -> None:
        settings = {"stores.memory.total.bytes": str(memory_bytes)}
        super().__init__(work, settings=settings, stores=STORES, tasks=tasks)
        self.objects = self.roots[0]
        self.places = [(task, store) for task in range(tasks) for store in STORES]

    def change_all(self, keys: int, count: int) -> None:
        """Give that many keys of each store, all different, new values, in some batches."""
        picked = {place: random.Random(str(place)).sample(range(keys), count) for place in self.places}
        for number in range(_BATCHES):
            self.run_batch(lambda *place: {key_of(n): value_of(n, True) for n in picked[place][number::_BATCHES]})  # noqa: B023

    def open_files(self) -> float:
        """Seconds to open links to all files, as an epoch on the same host does with its copies."""
        spent = 0.0
        for task, store in self.places:
            copy = self.local / "links" / f"{store}-{task}"
            self.engine(task, store).copy_to(copy)
            began = time.perf_counter()
            self.folders.open(store, copy, read_only=True).close()
            spent += time.perf_counter() - began
        shutil.rmtree(self.local / "links")
        return spent

    def compact(self) -> None:
        """Write every table again, one store after the other."""
        options = rocksdict.CompactOptions()
        options.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force())
        for place in self.places:
            behind: Any = self.engine(*place)
            behind.settle()
            behind._engine._db.compact_range(None, None, options)

    def cache_bytes(self) -> int:
        """The content of RocksDB's cache, which is one for all stores."""
        return self.engine(*self.places[0]).statistics()["rocksdb.block-cache-usage"]


def measure(parameters: dict[str, Any]) -> dict[str, Any]:
    """All phases, in the side's process."""
    work, keys, tasks = Path(parameters["work"]), parameters["keys"], parameters["tasks"]
    changed, phases = max(_BATCHES, keys // 100), dict[str, dict[str, Any]]()
    before = psutil.Process().memory_info().rss
    container = Container(work, tasks, parameters["memory_bytes"])

    @contextmanager
    def phase(name: str) -> Iterator[dict[str, Any]]:
        """Its seconds and memory; the body adds more figures."""
        own = phases[name] = {}
        Path("/proc/self/clear_refs").write_text("5")  # the highest resident size begins again
        began = time.perf_counter()
        yield own
        own.setdefault("seconds", time.perf_counter() - began)
        highest = re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
        own["peak_resident_bytes"] = int(highest[0]) << 10
        own["cache_bytes"] = container.cache_bytes() if name not in ("remove", "cp -r") else None
        print(name, own, flush=True)  # what there is, if the time is over

    with phase("fill"), ThreadPoolExecutor(os.cpu_count()) as pool:
        each(pool, lambda place: _fill(container.engine(*place), keys, parameters), container.places)
    with phase("first snapshot") as own:
        own |= container.commit()
    container.change_all(keys, changed)
    with phase("commit of 1 %") as own:
        own |= container.commit()
    with phase("next snapshot") as own:
        own |= container.commit(last=True)
        container.finish_snapshots()
    with phase("empty commit") as own:
        own |= container.commit()
    with phase("next epoch, stores open") as own:
        container.epoch.leave(keep=True)
        container.open()
    with phase("open the files") as own:
        own["seconds"] = container.open_files()
        own["files"] = len(files_below(container.local))
    with phase("remove"):
        container.epoch.leave()
    for name in ("cp -r", "restore"):
        settle([container.objects], "cold")
        with phase(name) as own:
            began = time.perf_counter()
            if name == "cp -r":
                subprocess.run(["cp", "-r", str(container.objects), str(work / "copy")], check=True)
            else:
                container.open()
            own["ready_seconds"] = time.perf_counter() - began
            os.sync()
        shutil.rmtree(work / "copy", ignore_errors=True)
    places = container.places
    new = {place: set(random.Random(str(place)).sample(range(keys), changed)) for place in places}
    some, wrong = random.Random(1), 0
    wanted = [(some.choice(places), some.randrange(keys)) for _ in range(parameters["gets"])]
    settle([container.local], "cold")
    for name in ("gets, cold", "gets, warm"):
        spent = []
        with phase(name) as own:
            for place, number in wanted:
                began = time.perf_counter_ns()
                value = container.engine(*place).get(key_of(number))
                spent.append(time.perf_counter_ns() - began)
                wrong += value != value_of(number, number in new[place])
            own |= {"p50_us": harness.percentile(spent, 0.5) / 1000, "p99_us": harness.percentile(spent, 0.99) / 1000}
    with phase("scan") as own:
        found = 0
        for place in places:
            for number, (key, value) in enumerate(container.engine(*place).scan(None, None)):
                found += 1
                if number % SAMPLED == 0:
                    wrong += (key, value) != (key_of(number), value_of(number, number in new[place]))
    shutil.rmtree(container.objects)  # from here on nothing is read from it: less is on disk at once
    container.objects.mkdir()
    with phase("compaction"):
        container.compact()
    for place in places:
        get = container.engine(*place).get
        wrong += sum(get(key_of(n)) != value_of(n, n in new[place]) for n in range(0, keys, SAMPLED))
    container.epoch.leave()
    verified = {"equal": found == keys * len(places) and not wrong, "found": found, "wrong": wrong}
    return {"phases": phases, "before_bytes": before, "verified": verified}


def _fill(engine: Engine, keys: int, parameters: dict[str, Any]) -> None:
    step = _STEP if parameters["shuffled"] else 1
    for first in range(0, keys, _PART):
        numbers = (number * step % keys for number in range(first, min(first + _PART, keys)))
        engine.apply({key_of(number): value_of(number, False) for number in numbers})


@harness.benchmark(
    "large_state", __doc__, gigabytes=1, memory_megabytes=512, tasks=4, gets=20_000, shuffled=False,
    reserve_gigabytes=8, timeout_s=1500,
)  # fmt: skip
def main(bench: harness.Bench) -> int:
    options = bench.options
    places = options.tasks * len(STORES)
    keys = options.gigabytes * _GB // ((KEY_BYTES + VALUE_BYTES) * places)
    keys += keys % _STEP == 0
    # The state and its objects, the changed keys twice, what RocksDB adds, and a store twice while it is compacted.
    needed = options.gigabytes * (2.15 + 1 / places) + options.reserve_gigabytes
    free = shutil.disk_usage(tempfile.gettempdir()).free / _GB
    if free < needed:
        text = f"{needed:.0f} GB must be free in {tempfile.gettempdir()}, {options.reserve_gigabytes} are left"
        harness.console.print(f"{text}; there are {free:.0f}. Set TMPDIR to a folder with more, or --gigabytes to less")
        return 2
    os.environ.update(_ALLOCATOR)  # as containers are started: the side's process has it from here
    parameters = {"keys": keys, "memory_bytes": options.memory_megabytes << 20}
    found = bench.run("penstock", "large_state:measure", parameters, timeout_s=options.timeout_s)
    spent = {"seconds": ",.1f", "ready_seconds": ",.1f", "snapshot_ms": ",.1f", "copies_ms": ",.0f"}
    harness.show("times", found["phases"], **spent, upload_ms=",.0f", p50_us=",.0f", p99_us=",.0f")
    harness.show("sizes", found["phases"], peak_resident_bytes="MB", cache_bytes="MB")
    harness.show("run", {"penstock": found}, before_bytes="MB", peak_bytes="MB", verified="")
    return bench.finish(state_bytes=keys * places * (KEY_BYTES + VALUE_BYTES))
