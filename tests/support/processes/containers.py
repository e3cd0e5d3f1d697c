"""Real container processes, and batches run through them as a driver and its Spark workers would."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.config.load import load_config
from penstock.container.launch import _await_address, _spawn
from penstock.graph.topology import plan_topology
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.runtime.messages.incoming import Spool
from penstock.runtime.messages.packet import REPORT_STAGE, Packet, from_batch, to_batch
from penstock.runtime.reports import Outcome, Report, SuccessfulBatch, decide_outcome
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.sink import OutputWriters, SinkAttempts
from penstock.runtime.stage.source import InputReaders, run_source
from penstock.state.backends.base import BackendContext, RestoreProgress, RestoreTarget
from penstock.state.backends.changelog_files.factory import ChangelogFilesFactory
from penstock.state.engines.memory import MemoryEngine
from penstock.system.base import OffsetRange, WriterIdentity
from penstock.system.memory import MemorySystem
from penstock.wire.client import ContainerClient, exchange
from penstock.wire.containers import ContainerAddress, ContainerSpec
from penstock.wire.ports import JobPackage
from penstock.wire.protocol import (
    CLEAN_UP,
    END,
    OPEN,
    SNAPSHOT,
    START_RUN,
    UPLOAD,
    WIND_DOWN,
    AttemptCall,
    CleanUp,
    EndBatch,
    Identity,
    OpenEpoch,
    StartRun,
    TakeSnapshot,
    UploadSnapshot,
    WindDown,
)
from penstock.wire.security import TlsIdentity
from tests.support.apps.container_app import Message, totals_graph
from tests.support.tools.places import ROOT

SECRET = "5f0c3a9e77d14b12"
DEADLINE_S = 60.0
STAGE = 1
"""The stage that runs in the containers."""
_epochs = count(1)
_names = count(1)


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait for a condition; fails, saying for what, once the deadline has passed."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain: {what}"
        time.sleep(0.01)


class ContainerProcess:
    """A container, child of this process, and a client of it. With TLS, `tls` is who its callers are."""

    def __init__(self, folder: Path, parent: int | None = None, tls: TlsIdentity | None = None) -> None:
        if str(ROOT) not in sys.path:  # the container unpickles what tests define
            sys.path.append(str(ROOT))
        callers = None if tls is None else tls.certificate
        spec = ContainerSpec("run", SECRET, "127.0.0.1", str(folder), tls=tls is not None, callers=callers)
        name = f"c{next(_names)}"
        self.process = _spawn(spec, name, parent or os.getpid())
        self.address: ContainerAddress = _await_address(self.process, time.monotonic() + DEADLINE_S)
        assert self.address.container == name
        self.client = ContainerClient(self.address, SECRET, tls)

    @property
    def log(self) -> str:
        return Path(self.address.log_path).read_text(encoding="utf-8")

    def ended(self, timeout_s: float = DEADLINE_S) -> int:
        """Wait for its end; the exit status."""
        return self.process.shell.wait(timeout_s)

    def kill(self) -> None:
        """End it, if it still lives."""
        with suppress(ProcessLookupError):
            os.kill(self.address.pid, signal.SIGKILL)
        self.process.shell.wait(DEADLINE_S)


@dataclass
class Run:
    """One run of a batch: the packets for the containers, what came back."""

    batch: int
    run: int
    packets: list[Packet]
    results: list[Packet] = field(default_factory=list)

    def for_task(self, task: int) -> list[Packet]:
        """The packets of a task."""
        return [p for p in self.packets if p.stage == STAGE and p.dest == task]


class Job:
    """The totals application on some containers: task t lives in container t modulo their number."""

    def __init__(
        self,
        folder: Path,
        containers: Sequence[ContainerProcess],
        *,
        tasks: int = 2,
        config: Mapping[str, object] | None = None,
        dead_letter: str | None = None,
        cache_entries: int = 100_000,
    ) -> None:
        self.folder = folder
        self.tasks = tasks
        self.homes = {task: containers[task % len(containers)] for task in range(tasks)}
        self.root = folder / "root"
        base = {"job.root": str(self.root), "job.logged.store.base.dir": str(folder / "local")}
        self._given = {**base, **(config or {})}
        self.config = load_config(overrides=self._given, default_job_name="totals", environ={})
        dead = SystemStream.parse(dead_letter) if dead_letter else None
        self.topology = plan_topology(totals_graph(folder), dead)
        outputs = {str(stream): tasks for stream in ("local.totals", dead) if stream}
        caches = {"totals": cache_entries}
        self.settings = RuntimeSettings("totals", tasks, outputs, caches, dead_letter=dead is not None)
        self.system = MemorySystem("local")
        for stream in ("events", "totals", *([dead.stream] if dead else [])):
            self.system.admin().create_stream(stream, tasks)
        self.objects = open_store(self.config.job.root)
        self.objects.put_if_absent("probe", b"")
        self.package = self._package()
        self.epoch = 0

    def _package(self) -> bytes:
        return pickle.dumps(JobPackage(self.topology, self.settings, self.config, "uid", "probe", {}))

    def begin_another_run(self) -> None:
        """Let no container keep the stores that it has open, as in a new process."""
        given = {**self._given, "job.retry.max": 100 + next(_epochs)}
        self.config = load_config(overrides=given, default_job_name="totals", environ={})
        self.package = self._package()

    @property
    def clients(self) -> list[ContainerClient]:
        """The containers in use."""
        used = {home.address.container: home.client for home in self.homes.values()}
        return list(used.values())

    def tasks_of(self, client: ContainerClient) -> list[int]:
        """The tasks that live in a container."""
        return [task for task, home in self.homes.items() if home.client is client]

    def open(self, last_ended: int = 0, markers: Mapping[str, dict[str, dict[str, str]]] | None = None) -> None:
        """Enter a new epoch everywhere."""
        self.epoch = next(_epochs)
        if markers is None:
            request = OpenEpoch(self.package, last_ended, None, {}, ())
        else:
            request = OpenEpoch(self.package, last_ended, "1-0", markers, ("totals",))
        for client in self.clients:
            client.ask(OPEN, self.epoch, request.for_container(self.tasks_of(client), ()), DEADLINE_S)

    def start(self, batch: int, messages: Sequence[Message], run: int = 1) -> Run:
        """Append the messages, tell the containers that a run begins, and run the sources over exactly them."""
        ranges: dict[int, list[tuple[int, Portion]]] = {}
        for task in range(self.tasks):
            ssp = SystemStreamPartition("local", "events", task)
            value = self.topology.graph.inputs[0].value_serde.to_bytes
            mine = [(0, None, value(m)) for m in messages[task :: self.tasks]]
            if mine:
                first = self.system.writer(None).append(ssp, mine)
                ranges[task] = [(0, Portion(OffsetRange(ssp, first, first + len(mine)), len(mine)))]
        self.start_run(batch, run)
        with closing(InputReaders(self._systems)) as readers:
            sent = (
                run_source(self.topology, self.settings, Batch(batch, run, 0), t, ranges.get(t, ()), readers)
                for t in range(self.tasks)
            )
            return Run(batch, run, [packet for packets in sent for packet in packets])

    def start_run(self, batch: int, run: int) -> None:
        """A run of a batch begins."""
        for client in self.clients:
            client.ask(START_RUN, self.epoch, StartRun(Batch(batch, run, 0)), DEADLINE_S)

    def call(self, started: Run, number: int, **changed: object) -> AttemptCall:
        """The call of an attempt of a task of the run."""
        identity = Identity(self.homes[number].address.incarnation, self.epoch)
        fields = {"identity": identity, "batch": Batch(started.batch, started.run, 0), "stage": STAGE}
        return AttemptCall(**{**fields, "tasks": [number], **changed})  # type: ignore[arg-type]

    def attempt(self, run: Run, task: int, packets: Sequence[Packet] | None = None) -> tuple[list[Packet], Report]:
        """Run an attempt to its end: all it sent, and its report."""
        mine = run.for_task(task) if packets is None else packets
        found = attempt(self.homes[task].address, self.call(run, task), [to_batch([packet]) for packet in mine])
        return found, Report.decode(bytes(found[-1].payload or b""))

    def outcome(self, run: Run, results: Sequence[Packet]) -> Outcome:
        """Write the outputs; what came of the run."""
        reports = [p for p in (*run.packets, *results) if p.stage == REPORT_STAGE]
        for task in range(self.tasks):
            identity = WriterIdentity("totals", self.epoch)
            sinks = SinkAttempts(self.topology, self.settings, Batch(run.batch, run.run, 0), [task], Spool())
            with closing(sinks), closing(OutputWriters(self._systems, identity)) as writers:
                for packet in (*run.packets, *results):
                    if packet.stage == self.topology.sink and packet.dest == task:
                        sinks.accept(packet)
                reports += sinks.write(writers)
        found = [Report.decode(bytes(packet.payload or b"")) for packet in reports]
        return decide_outcome(found, self.topology, self.tasks)

    def run_batch(self, batch: int, messages: Sequence[Message], run: int = 1) -> SuccessfulBatch:
        """A whole batch that goes well, End included."""
        started = self.start(batch, messages, run)
        results = [packet for task in range(self.tasks) for packet in self.attempt(started, task)[0]]
        outcome = self.outcome(started, results)
        assert isinstance(outcome, SuccessfulBatch), outcome
        self.end(batch, outcome.tokens)
        return outcome

    def end(self, batch: int, tokens: Mapping[int, Mapping[int, str]]) -> None:
        """End the batch everywhere."""
        for client in self.clients:
            self.end_in(client, batch, tokens)

    def end_in(self, client: ContainerClient, batch: int, tokens: Mapping[int, Mapping[int, str]]) -> None:
        """End the batch in one container."""
        own = EndBatch(Batch(batch, 1, 0), tokens).for_tasks(self.tasks_of(client))
        client.ask(END, self.epoch, own, DEADLINE_S)

    def commit(self, number: int = 1) -> dict[str, dict[str, dict[str, str]]]:
        """Snapshot and upload everywhere; the markers."""
        markers: dict[str, dict[str, dict[str, str]]] = {}
        for client in self.clients:
            client.ask(SNAPSHOT, self.epoch, TakeSnapshot(f"{number}-0"), DEADLINE_S)
            markers |= client.ask(UPLOAD, self.epoch, UploadSnapshot(f"{number}-0"), DEADLINE_S).markers  # type: ignore[arg-type]
        return markers

    def emitted(self, results: Sequence[Packet]) -> int:
        """Messages that results hold for the sinks."""
        return sum(p.messages for p in results if p.stage == self.topology.sink and p.kind == 0)

    @property
    def _systems(self) -> dict[str, MemorySystem]:
        return {"local": self.system}


def everything(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """All packets are this attempt's."""
    return batch, batch.slice(0, 0)


def attempt(
    address: ContainerAddress, call: AttemptCall, batches: Sequence[pa.RecordBatch] | Iterator[pa.RecordBatch]
) -> list[Packet]:
    """Run an attempt to its end."""
    return [p for b in exchange(address, SECRET, call, iter(batches), everything) for p in from_batch(b)]


def half_client(address: ContainerAddress, call: AttemptCall, batches: list[pa.RecordBatch]) -> subprocess.Popen[bytes]:
    """A process that sends these batches to the container and then waits for ever, in the middle of its attempt."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    client = subprocess.Popen(
        [sys.executable, "-m", "tests.support.processes.half_client"], stdin=subprocess.PIPE, env=environment
    )
    assert client.stdin is not None
    client.stdin.write(pickle.dumps((address, SECRET, call, batches)))
    client.stdin.flush()
    return client


def calls_with(job: Job, container: ContainerProcess, identity: Identity) -> list[Callable[[], object]]:
    """Every call of a driver that changes something, under an identity. The first one is `open`."""
    address, epoch, timeout = replace(container.address, incarnation=identity.incarnation), identity.epoch, DEADLINE_S
    client = ContainerClient(address, SECRET)
    return [
        lambda: client.ask(OPEN, 10**6, OpenEpoch(job.package, 0, None, {}, (), (0,)), timeout),
        lambda: client.ask(START_RUN, epoch, StartRun(Batch(2, 1, 0)), timeout),
        lambda: client.ask(END, epoch, EndBatch(Batch(1, 1, 0), {}), timeout),
        lambda: client.ask(SNAPSHOT, epoch, TakeSnapshot("1-0"), timeout),
        lambda: client.ask(UPLOAD, epoch, UploadSnapshot("1-0"), timeout),
        lambda: client.ask(CLEAN_UP, epoch, CleanUp("1-0", {}), timeout),
        lambda: client.ask(WIND_DOWN, epoch, WindDown(), timeout),
    ]


def stored(job: Job, markers: dict[str, dict[str, dict[str, str]]]) -> dict[bytes, bytes]:
    """The content that a restore from the job root finds."""
    found: dict[bytes, bytes] = {}
    for task in range(job.tasks):
        engine = MemoryEngine()
        context = BackendContext(job.objects, JobPaths("totals", "1"), task, ("totals",), job.epoch, job.config)
        marker = markers[str(task)]["changelog-files"]["totals"]
        target = RestoreTarget(Path(), partial(_same, engine))
        progress = RestoreProgress(threading.Event(), lambda _: None)
        ChangelogFilesFactory().restore_manager(context).restore("totals", marker, target, progress)
        found |= dict(engine.scan(None, None))
    return found


def _same(engine: MemoryEngine) -> MemoryEngine:
    return engine
