"""Whole jobs for tests: streams with seeded events, drivers as processes, who to kill, and what must come out."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self

import orjson
import psutil

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog, LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.job.identity import adopt
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.objects.open import open_store
from penstock.state.reading.reader import read_store
from penstock.system.base import OffsetRange, PartitionOffsets
from penstock.system.local import LocalSystem
from tests.support.apps.job_app import Event, add_event, add_region
from tests.support.faults.plan import Faults
from tests.support.processes.inspection import HEARD, containers_of, print_logs, write_stacks
from tests.support.tools.places import ROOT

DRIVER = ROOT / "tests" / "support" / "faults" / "driver.py"
LOCK = ".penstock-lock"
"""The lock of a folder of a file store, which is no object."""
DEADLINE_S = 240.0
"""For one step of a driver under load."""
REGIONS = 5
Totals = dict[str, Event]


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait for a condition; fails, saying for what, once the deadline has passed."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain: {what}"
        time.sleep(0.02)


class Home:
    """Everything of one test's job: streams, job root, local state; and the input as it was published."""

    faults: Faults | None = None
    """The faults that its drivers and containers meet."""

    def __init__(self, folder: Path, *, partitions: int = 2, **config: object) -> None:
        self.folder = folder
        self.partitions = partitions
        self.system = LocalSystem("local", str(folder / "streams"))
        self.config: dict[str, object] = {
            "job.root": str(folder / "jobs"),
            "job.logged.store.base.dir": str(folder / "state"),
            "systems.local.path": str(folder / "streams"),
            "job.batch.interval.ms": 20,
            "job.batch.max.messages": 200,
            "job.batch.target.ms": 0,
            "task.commit.ms": 300,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        self.events: dict[str, dict[int, list[Event | None]]] = {}
        """Stream -> partition -> what lies at each offset; None for what is not an event."""
        self._sequences: dict[tuple[str, str], int] = {}
        self.create("events", partitions)

    def copy(self, folder: Path, *, moved: bool = True) -> Home:
        """The same in another folder; with `moved` the job goes on there as the one it was."""
        shutil.copytree(self.folder, folder)
        twin = copy.deepcopy(self)
        twin.folder = folder
        twin.system = LocalSystem("local", str(folder / "streams"))
        twin.config |= {
            "job.root": str(folder / "jobs"),
            "job.logged.store.base.dir": str(folder / "state"),
            "systems.local.path": str(folder / "streams"),
        }
        if moved:
            objects = FileObjectStore(folder / "jobs")
            for job in (path.parent.name for path in folder.glob("jobs/*/uid")):
                adopt(objects, JobPaths(*job.rsplit("-", 1)), str(folder / "jobs"), moved=True)
        return twin

    # Streams.

    def create(self, stream: str, partitions: int) -> None:
        self.system.admin().create_stream(stream, partitions)
        self.events[stream] = {partition: [] for partition in range(partitions)}

    def publish(
        self, number: int, *, seed: int = 1, keys: int = 40, stream: str = "events", new_keys: bool = False
    ) -> None:
        """Append seeded events to random partitions; `new_keys` are ones that no other call has used."""
        chance = random.Random(seed)
        first = seed * 1000 if new_keys else 0
        found: dict[int, list[Event]] = {partition: [] for partition in self.events[stream]}
        for _ in range(number):
            found[chance.choice(list(found))].append(
                {"key": f"k{first + chance.randrange(keys)}", "n": chance.randrange(1000)}
            )
        for partition, events in found.items():
            self.append(partition, events, stream=stream)

    def append(self, partition: int, events: Iterable[Event], *, stream: str = "events") -> int:
        """Append events to one partition; returns the first one's offset."""
        whole = []
        for event in events:
            source = f"{stream}-{partition}"
            place = (source, event["key"])
            seq = self._sequences[place] = self._sequences.get(place, -1) + 1
            region = f"r{int(event['key'][1:]) % REGIONS}"
            whole.append({**event, "region": region, "source": source, "seq": seq})
        first = self.append_raw(partition, [orjson.dumps(event) for event in whole], stream=stream)
        self.events[stream][partition][first:] = whole
        return first

    def append_raw(self, partition: int, values: Sequence[bytes], *, stream: str = "events") -> int:
        """Append values as they are."""
        writer = self.system.writer(None)
        ssp = SystemStreamPartition("local", stream, partition)
        first = writer.append(ssp, [(1_700_000_000_000, None, value) for value in values])
        writer.close()
        self.events[stream][partition].extend([None] * len(values))
        return first

    def offsets(self, stream: str) -> dict[int, PartitionOffsets]:
        """The ends of a stream; none if it does not exist yet."""
        if not (self.folder / "streams" / stream).exists():
            return {}
        admin = self.system.admin()
        try:
            return admin.offsets(stream)
        finally:
            admin.close()

    def length(self, stream: str) -> int:
        return sum(ends.upcoming for ends in self.offsets(stream).values())

    def messages(self, stream: str) -> Iterator[tuple[int, int, str, Any]]:
        """(partition, offset, key, value) of every message."""
        reader = self.system.reader()
        for partition, ends in self.offsets(stream).items():
            wanted = OffsetRange(SystemStreamPartition("local", stream, partition), ends.oldest, ends.upcoming)
            for chunk in reader.read(wanted, 1000):
                for offset, _, key, value, *_ in chunk:
                    yield partition, offset, (key or b"").decode(), orjson.loads(value or b"null")
        reader.close()

    def last_values(self, stream: str) -> Totals:
        """The last value of every key."""
        return {key: value for _, _, key, value in self.messages(stream)}

    # The job's own files.

    def loaded(self, **config: object) -> JobConfig:
        """The configuration as the job reads it."""
        overrides = {**self.config, **{key.replace("_", "."): value for key, value in config.items()}}
        return load_config(overrides=overrides, default_job_name="totals", environ={})

    @property
    def log(self) -> LogView:
        config = self.loaded()
        objects = open_store(config.job.root)
        try:
            return CheckpointLog(objects, JobPaths(config.job.name, config.job.id)).read()
        finally:
            objects.close()

    @property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        return self.log.checkpoints

    def stored(self, store: str, record: CheckpointRecord | None = None) -> Totals:
        """A store as of a checkpoint, the last one by default."""
        found = list(read_store(self.loaded(), store, record))
        keys = [key for _, key, _ in found]
        assert len(set(keys)) == len(keys), f"a key of store {store} is in two tasks"
        return {key.decode(): orjson.loads(value) for _, key, value in found}

    def job_files(self) -> dict[str, bytes]:
        """Every object under job.root."""
        root = Path(str(self.config["job.root"]))
        return {
            str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file() and p.name != LOCK
        }

    # What must come out.

    @property
    def all_committed(self) -> bool:
        """True if the last checkpoint is behind the last message."""
        checkpoints = self.checkpoints
        if not checkpoints:
            return False
        positions = [offset for own in checkpoints[-1].next_offsets.values() for offset in own.values()]
        return sum(positions) == sum(len(events) for own in self.events.values() for events in own.values())

    @property
    def published(self) -> dict[str, dict[int, list[Event]]]:
        """`events` without what is not an event."""
        return {
            stream: {partition: [event for event in events if event] for partition, events in partitions.items()}
            for stream, partitions in self.events.items()
        }

    def events_until(self, record: CheckpointRecord | None = None) -> Iterator[Event]:
        """The events up to a checkpoint's offsets, all by default."""
        for stream, partitions in self.events.items():
            for partition, events in partitions.items():
                end = len(events)
                if record is not None:
                    end = record.next_offsets[partition][SystemStreamPartition("local", stream, partition)]
                yield from (event for event in events[:end] if event is not None)

    def expected(self, record: CheckpointRecord | None = None) -> tuple[Totals, Totals]:
        """Totals by key and by region, by a plain loop over the input, up to a checkpoint's offsets."""
        by_key: Totals = {}
        by_region: Totals = {}
        for event in self.events_until(record):
            by_key[event["key"]] = add_event(by_key.get(event["key"]), event)
            by_region[event["region"]] = add_region(by_region.get(event["region"]), event)
        assert not any(total["disorder"] for total in by_key.values())
        return by_key, by_region

    def verify_checkpoint(self, record: CheckpointRecord) -> None:
        """State is exactly once with respect to the input offsets of the same checkpoint."""
        by_key, by_region = self.expected(record)
        same(self.stored("totals", record), by_key, f"store totals at {record.id}")
        same(self.stored("regions", record), by_region, f"store regions at {record.id}")

    def verify(self) -> None:
        """Every message was counted once in the last checkpoint, every output ends with the final totals, and every
        checkpoint on the way holds exactly its own offsets."""
        log = self.log
        self.verify_ended(log)
        for record in log.checkpoints:
            self.verify_checkpoint(record)

    def verify_ended(self, log: LogView | None = None) -> None:
        """The last checkpoint and the outputs."""
        last = (log or self.log).checkpoints[-1]
        for stream, partitions in self.events.items():
            for partition, events in partitions.items():
                assert last.next_offsets[partition][SystemStreamPartition("local", stream, partition)] == len(events)
        by_key, by_region = self.expected()
        self.verify_checkpoint(last)
        same(self.last_values("totals"), by_key, "output totals")
        same(self.last_values("regions"), by_region, "output regions")

    # Drivers.

    def driver(self, *, app: str = "totals", until: str | None = "latest", **config: object) -> DriverProcess:
        return DriverProcess(self, app, until, {key.replace("_", "."): value for key, value in config.items()})


def same(found: Totals, expected: Totals, what: str) -> None:
    """Fail with the first few differences."""
    wrong = [
        f"{key}: expected {expected.get(key)}, found {found.get(key)}"
        for key in sorted(found.keys() | expected.keys())
        if found.get(key) != expected.get(key)
    ]
    assert not wrong, f"{what}: {len(wrong)} of {len(expected)} differ:\n" + "\n".join(wrong[:8])


_numbers = count(1)


@dataclass(frozen=True)
class Ended:
    """The end of a driver."""

    status: int
    error: str | None
    text: str
    facts: Mapping[str, Any]
    log: str


class StartedProcess:
    """A process, with everything it started."""

    def __init__(
        self,
        folder: Path,
        log: Path,
        command: Sequence[str],
        *,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            folder: its working directory, and somewhere below it the logs of its containers.
            log: gets its output.
            prefix: what comes before the command, such as what runs it on another host.
            environ: its environment, by default that of this process.
        """
        self._folder = folder
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*prefix, *command],
                cwd=folder,
                env={
                    **(os.environ if environ is None else environ),
                    **HEARD,
                    "PENSTOCK_HOME": str(folder / "home"),
                    "PYTHONUNBUFFERED": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._jvms: set[psutil.Process] = set()
        self._containers: set[psutil.Process] = set()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Explain it if the block failed, and clean up."""
        try:
            if kind is not None:
                self.explain()
        finally:
            self.clean_up()

    # Who it started.

    def descendants(self) -> list[psutil.Process]:
        """Every process below it, as long as it lives."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def jvms(self) -> list[psutil.Process]:
        """Every JVM: the driver's and, on a local cluster, the executors'."""
        self._jvms.update(p for p in self.descendants() if _is(p, lambda c: "java" in Path(c[0]).name))
        return [p for p in self._jvms if p.is_running()]

    def executors(self) -> list[psutil.Process]:
        return [p for p in self.jvms() if _is(p, lambda c: any("CoarseGrainedExecutorBackend" in part for part in c))]

    def direct_workers(self) -> list[psutil.Process]:
        """The process that runs small batches; none between two of them."""
        return [p for p in self.descendants() if _is(p, lambda c: "penstock.direct" in c)]

    def workers(self) -> list[psutil.Process]:
        """PySpark's workers: the children of its daemons."""
        daemons = [p for p in self.descendants() if _is(p, lambda c: "penstock.spark.workers.worker_daemon" in c)]
        pids = {p.pid for p in daemons}
        return [p for p in daemons if _parent(p) in pids]

    def containers(self) -> list[psutil.Process]:
        found = containers_of(self.jvms())
        self._containers.update(found)
        return found

    # Waiting.

    def await_containers(self) -> list[psutil.Process]:
        """Wait until it has some."""
        wait_until(lambda: self.containers() or not self.running, "containers")
        assert self.running, self.log
        return self.containers()

    def explain(self) -> None:
        """Print what it and all that it started are doing, which ends them, and what they have logged."""
        own = [psutil.Process(self.pid)] if self.running else []
        write_stacks([*own, *self.descendants(), *self.containers()], self._log)
        print_logs(self._log, self._folder)

    # Signals.

    def signal(self, number: signal.Signals) -> None:
        """Send the driver's Python process a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL the driver's Python process, nothing else."""
        self.jvms()
        self.containers()
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def clean_up(self) -> None:
        """End everything it started, whatever state it is in."""
        self.jvms()
        self.containers()
        rest = {*self.descendants(), *self._jvms, *self._containers}
        self.process.kill()
        self.process.wait(DEADLINE_S)
        for process in rest:
            kill(process)


class DriverProcess(StartedProcess):
    """A driver of the tests' own program."""

    def __init__(
        self,
        home: Home,
        app: str,
        until: str | None,
        config: Mapping[str, object],
        *,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`prefix`: what comes before the command, such as what runs it on another host."""
        self.home = home
        number = next(_numbers)
        self._result = home.folder / f"result-{number}.json"
        parameters = {
            "app": app,
            "config": {"spark.master": "local[2]", **home.config, **config},
            "until": until,
            "from_checkpoint": None,
            "faults": None if home.faults is None else str(home.faults.folder),
            "result": str(self._result),
            "path": str(ROOT),
        }
        file = home.folder / f"parameters-{number}.json"
        file.write_text(json.dumps(parameters), encoding="utf-8")
        command = [sys.executable, str(DRIVER), str(file)]
        super().__init__(home.folder, home.folder / f"driver-{number}.log", command, prefix=prefix, environ=environ)

    def await_output(self, number: int, stream: str = "totals") -> bool:
        """Wait until the output has at least so many messages; False if the driver ended before."""
        wait_until(lambda: self.home.length(stream) >= number or not self.running, f"{number} messages in {stream}")
        return self.running

    def await_started(self) -> None:
        """Wait until it owns the job and its SIGTERM handler is there."""
        started = self._result.with_suffix(".started")
        wait_until(lambda: started.exists() or not self.running, "the job's handle")
        assert self.running, self.log

    def ended(self, timeout_s: float = DEADLINE_S) -> Ended:
        """Wait for its end; what came of it."""
        try:
            wait_until(lambda: not self.running, "the driver's end", timeout_s)
        except AssertionError:
            self.explain()
            raise
        facts = json.loads(self._result.read_text(encoding="utf-8")) if self._result.exists() else {"error": "killed"}
        return Ended(self.process.returncode, facts["error"], facts.get("text", ""), facts, self.log)

    def stopped(self) -> Ended:
        """Wait until everything is in a checkpoint, and stop it; its end must be a good one."""
        wait_until(lambda: not self.running or self.home.all_committed, "a checkpoint of all messages")
        self.process.send_signal(signal.SIGTERM)
        return self.succeeded()

    def succeeded(self, timeout_s: float = DEADLINE_S) -> Ended:
        """Wait for its end, which must be a good one."""
        ended = self.ended(timeout_s)
        assert ended.status == 0, ended.log[-8000:]
        return ended


def kill(process: psutil.Process) -> bool:
    """SIGKILL; False if it had just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
        return True
    return False


def _is(process: psutil.Process, test: Callable[[list[str]], bool]) -> bool:
    with contextlib.suppress(psutil.Error):
        command = process.cmdline()
        return bool(command) and test(command)
    return False


def _parent(process: psutil.Process) -> int | None:
    with contextlib.suppress(psutil.Error):
        return process.ppid()
    return None
