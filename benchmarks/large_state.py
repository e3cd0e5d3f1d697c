"""The large state of one container: how long each thing takes that is done with all of it, and how much memory.

A container's own storage, without Spark: some tasks with two stores each, RocksDB on disk, `changelog-files` on the
same disk, `stores.memory.total.bytes` set. Values do not compress. In turn: the state is filled, backed up as a whole,
1 % of its keys change and are committed, a snapshot follows, the next epoch takes the stores over, the working copies
are removed, their objects are copied with `cp -r`, the state is restored, read at random and whole, and compacted.
Every 1000th value is compared with what was written, by scans and, after the compaction, by gets.

A phase's memory is the most that the process had resident in it, as the kernel counted it. At most twice the state is
on disk at once; the benchmark does not begin unless `--reserve-gigabytes` are left free beside it.

    python -m benchmarks.large_state [--gigabytes N] [--memory-megabytes N] [--tasks N] [--shuffled] [--gets N]
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import rocksdict

import penstock as ps
from benchmarks import harness
from benchmarks.state.job import Idle, files_below
from benchmarks.state.penstock import settle
from penstock.base.parallel import each
from penstock.batch.batch import Batch
from penstock.checkpoint.record import CheckpointId
from penstock.config.load import load_config
from penstock.container.epoch.container import Epoch
from penstock.container.process.launch import _ALLOCATOR
from penstock.container.shared import EpochResources
from penstock.graph.topology import plan_topology
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.attempt import new_token
from penstock.state.engines.engine import Engine
from penstock.state.kept import KeptStores
from penstock.wire.ports import JobPackage
from penstock.wire.protocol import CleanUp, Markers, OpenEpoch, TakeSnapshot, UploadSnapshot

STORES = ("accounts", "orders")
VALUE_BYTES, KEY_BYTES = 1000, 16
SAMPLED = 1000
"""One of so many values is compared."""
_STEP = 1_000_003
"""A prime: multiples of it, modulo the number of keys, are all keys in another order."""
_PART, _BATCHES, _STAGE = 5_000, 10, 1
_POOL = random.Random(20130101).randbytes(64 << 20)
_GB = 10**9


def key_of(number: int) -> bytes:
    return b"key-%012d" % number


def value_of(number: int, changed: bool) -> bytes:
    """Random bytes: neighbours have none in common."""
    start = (number * 4099 + changed * 2053) % (len(_POOL) - VALUE_BYTES)
    return b"%d %d " % (number, changed) + _POOL[start : start + VALUE_BYTES - 16]


class Container:
    """The storage of a container, epoch after epoch of one process."""

    def __init__(self, work: Path, tasks: int, memory_bytes: int) -> None:
        self.objects, self.local = work / "jobs", work / "local"
        app = ps.StreamApplication("large")
        for store in STORES:
            app.store(store, key=ps.Bytes(), value=ps.Bytes())
        app.input("local.events").partition_by(str).process(Idle, stores=list(STORES), id="use")
        overrides = {
            "job.root": str(self.objects),
            "job.logged.store.base.dir": str(self.local),
            "stores.memory.total.bytes": str(memory_bytes),
        }
        config = load_config(overrides=overrides, environ={}, default_job_name=app.name)
        runtime = RuntimeSettings(app.name, tasks, {})
        self._package = JobPackage(plan_topology(app.graph()), runtime, config, "uid", "probe", {})
        self._tasks, self._number, self._batch = tuple(range(tasks)), 0, 0
        self._open_copies = KeptStores("benchmark")
        self._id = CheckpointId.next_after(None, time.time_ns() // 1_000_000, 0)
        self._markers: Markers = {}
        self.places = [(task, store) for task in self._tasks for store in STORES]
        self.open()

    def open(self) -> None:
        """The next epoch: stores that are open are taken over, the others restored from the last commit."""
        self._number += 1
        resources = EpochResources(
            self._package, "benchmark", self._number, len(self._tasks), kept_stores=self._open_copies
        )
        covered = STORES if self._markers else ()
        request = OpenEpoch(b"", self._batch, str(self._id), self._markers, covered, self._tasks)
        self.epoch = Epoch(resources, request, threading.Event(), lambda _: None)
        self._resources = resources

    def engine(self, task: int, store: str) -> Engine:
        return self.epoch.tasks[task].engine(store)

    def change(self, keys: int, count: int) -> None:
        """Give that many keys of each store, all different, new values, in some batches."""
        picked = {place: random.Random(str(place)).sample(range(keys), count) for place in self.places}
        for number in range(_BATCHES):
            self._batch += 1
            for task, instance in self.epoch.tasks.items():
                token = new_token()
                attempt = instance.start_attempt(_STAGE, token, Batch(self._batch, 1, 0))
                for store in STORES:
                    part = picked[task, store][number::_BATCHES]
                    attempt.instance.overlays[store].changes.update({key_of(n): value_of(n, True) for n in part})
                instance.finish_attempt(attempt)
                instance.end(self._batch, {_STAGE: token})

    def commit(self, *, last: bool = False) -> dict[str, float]:
        """A commit of all tasks, as a container does it. Processing waits for the first two parts."""
        self._id = CheckpointId.next_after(self._id, time.time_ns() // 1_000_000, 0)
        began = time.perf_counter()
        self.epoch.snapshot(TakeSnapshot(str(self._id), last))
        taken = time.perf_counter()
        for commit in self.epoch._commits._commits.values():
            commit.await_copies()
        copied = time.perf_counter()
        self._markers = self.epoch.upload(UploadSnapshot(str(self._id))).markers
        self.epoch.clean_up(CleanUp(str(self._id), self._markers))
        end = time.perf_counter()
        return {"snapshot_ms": 1000 * (taken - began), "copies_ms": 1000 * (copied - taken), "upload_s": end - copied}

    def open_files(self) -> float:
        """Seconds to open links to all files, as an epoch on the same host does with its copies."""
        spent = 0.0
        for task, store in self.places:
            copy = self.local / "links" / f"{store}-{task}"
            self.engine(task, store).copy_to(copy)
            began = time.perf_counter()
            self._resources.folders.open(store, copy, read_only=True).close()
            spent += time.perf_counter() - began
        shutil.rmtree(self.local / "links")
        return spent

    def compact(self) -> None:
        """Write every table again, one store after the other."""
        options = rocksdict.CompactOptions()
        options.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force())
        for task, store in self.places:
            behind: Any = self.engine(task, store)
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
        own["pss_bytes"] = int(psutil.Process().memory_full_info().pss)
        own |= {"live_bytes": _bytes_below(container.local), "object_bytes": _bytes_below(container.objects)}
        own["cache_bytes"] = container.cache_bytes() if name not in ("remove", "cp -r") else None
        print(name, own, flush=True)  # what there is, if the time is over

    with phase("fill"), ThreadPoolExecutor(os.cpu_count()) as pool:
        each(pool, lambda place: _fill(container.engine(*place), keys, parameters), container.places)
    with phase("first snapshot") as own:
        own |= container.commit()
    container.change(keys, changed)
    with phase("commit of 1 %") as own:
        own |= container.commit()
    with phase("next snapshot") as own:
        own |= container.commit(last=True)
        container.epoch.services.wind_down(600)
    with phase("empty commit") as own:
        own |= container.commit()
    with phase("next epoch, stores open") as own:
        container.epoch.leave(keep=True)
        container.open()
        own["tasks_in_place"] = len(container.epoch.in_place)
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
        times = []
        with phase(name) as own:
            for place, number in wanted:
                began = time.perf_counter_ns()
                value = container.engine(*place).get(key_of(number))
                times.append(time.perf_counter_ns() - began)
                wrong += value != value_of(number, number in new[place])
            own |= {"p50_us": harness.percentile(times, 0.5) / 1000, "p99_us": harness.percentile(times, 0.99) / 1000}
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


def _bytes_below(folder: Path) -> int:
    """As `folder_bytes`, while RocksDB removes files."""
    size = 0
    for path in files_below(folder):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def _fill(engine: Engine, keys: int, parameters: dict[str, Any]) -> None:
    step = _STEP if parameters["shuffled"] else 1
    for first in range(0, keys, _PART):
        numbers = (number * step % keys for number in range(first, min(first + _PART, keys)))
        engine.apply({key_of(number): value_of(number, False) for number in numbers})


def main(given: Sequence[str] | None = None) -> int:
    options = harness.options(
        "large_state", __doc__, given, gigabytes=1, memory_megabytes=512, tasks=4, gets=20_000, shuffled=False,
        reserve_gigabytes=8, timeout_s=1500,
    )  # fmt: skip
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
    with harness.Bench("large_state", options) as bench:
        own = {name: getattr(options, name) for name in ("tasks", "gets", "shuffled")}
        parameters = {"keys": keys, "memory_bytes": options.memory_megabytes << 20, **own}
        found = bench.run("penstock", "large_state:measure", parameters, timeout_s=options.timeout_s)
        times = {"seconds": ",.1f", "ready_seconds": ",.1f", "snapshot_ms": ",.1f", "copies_ms": ",.0f"}
        harness.show("times", found["phases"], **times, upload_s=",.1f", p50_us=",.0f", p99_us=",.0f")
        memory = ("peak_resident", "pss", "cache", "live", "object")
        harness.show("sizes", found["phases"], **{f"{name}_bytes": "MB" for name in memory})
        harness.show("run", {"penstock": found}, before_bytes="MB", peak_bytes="MB", verified="")
        return bench.finish(state_bytes=keys * places * (KEY_BYTES + VALUE_BYTES))


if __name__ == "__main__":
    sys.exit(main())
