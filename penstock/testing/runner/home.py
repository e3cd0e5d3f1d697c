"""The home of a `TestRunner`'s job, in memory and in a temporary folder, the assembly of the job, and the batches of a
run.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from penstock.admin.jobs import FoundJob
from penstock.admin.state.repartition import planned_for, repartition
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import NO_WATERMARK
from penstock.application.application import Application
from penstock.base.plugins import PICKLERS, load
from penstock.batch.batch import Ends, TaskSsp
from penstock.batch.portions import (
    BatchPace,
    BatchRanges,
    InputOrder,
    Portion,
    PortionRead,
    UnreadMessages,
    plan_with_unread,
)
from penstock.config.kinds import BroadcastInputs, PartitionRange, RefusedError
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.config.optional_settings import SchemaRegistrySettings
from penstock.config.settings import DEFAULT_SYSTEM, JobSettings, StreamSettings, SystemKeys, TaskSettings
from penstock.driver.feed.boundary import BatchTime, Boundary
from penstock.driver.feed.event_time import EventTime
from penstock.driver.feed.feed import ClosingFeed, End, Next, PlannedBatch
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.topology import Topology, plan_topology
from penstock.job.paths import JobPaths
from penstock.objects.open import forget_memory_store, open_job_root
from penstock.repartition.placement import Rule
from penstock.schemas.serde import with_registry
from penstock.start.inputs import with_matches
from penstock.start.job_streams import JobStreams
from penstock.start.part import complete
from penstock.testing.clock import SettableClock
from penstock.testing.in_process import InProcessDriver
from penstock.testing.runner.checks import CheckedStore, checked_graph
from penstock.testing.runner.sides import TablesInProcess
from penstock.testing.runner.streams import StreamsOfTest

Cut: TypeAlias = Callable[[Mapping[TaskSsp, Portion]], Mapping[TaskSsp, Portion]]
"""Leaves out a part of what a batch might read."""


class RunnerFeed:
    """Batches of at most `messages`, until everything is read and nothing is due."""

    def __init__(
        self,
        ends: Callable[[], Ends],
        graph: ApplicationGraph,
        event_time: EventTime,
        clock: SettableClock,
        order: InputOrder,
        cut: Cut | None = None,
    ) -> None:
        """`cut` makes smaller batches."""
        self._cut = cut
        self._order = order
        self._targets: Mapping[SystemStreamPartition, int] | None = None
        self._ends = ends
        self._sources = tuple(op.stream for op in graph.sources)
        self._operators = tuple(op.id for op in graph.operators)
        self._raises = graph.parts()[0]
        """Behind durable intermediate streams, watermarks follow with the messages that are in them."""
        self._event_time = event_time
        self._closing = ClosingFeed(graph, event_time, clock)
        self._clock = clock
        self.messages = sys.maxsize
        self.watermark = NO_WATERMARK
        """The lowest watermark that an operator may have."""
        self.ending = False

    def begin(self) -> None:
        """Do nothing: each run of a test has one epoch."""
        self._event_time.begin()
        self._targets = None

    def begin_again(self) -> None:
        """Forget the event time that the test set: the stream ended in the run before."""
        self.watermark, self.ending = NO_WATERMARK, False

    def next(self, boundary: Boundary) -> Next:
        ends, pace, unread = (
            self._ends(),
            BatchPace(self.messages, sys.maxsize),
            UnreadMessages.of(boundary.unread, boundary.left),
        )
        if boundary.partly_closed:
            return self._closing.next(boundary, "end-of-stream", pace, {})
        targets = self._targets = self._order.targets(ends) if self._targets is None else self._targets

        def of_inputs(left: BatchPace) -> dict[TaskSsp, Portion]:
            planned = self._order.plan(boundary.positions, ends, left, None, targets)
            return planned if self._cut is None else dict(self._cut(planned))

        portions = {} if boundary.is_behind else plan_with_unread(of_inputs, pace, unread)
        moment = self._raised(self._event_time.look(boundary, ends, self._clock.now_ms()))
        latest = {ssp: end.upcoming for ssp, end in ends.items()}
        if portions or self._event_time.is_due(boundary, moment) or self._is_behind(boundary):
            return PlannedBatch(BatchRanges.group(portions, self._sources), latest, moment)
        if self.ending and not boundary.closed:
            return self._closing.close(boundary, "end-of-stream", moment, latest)
        self._event_time.tell(boundary, moment)
        return End()

    def _is_behind(self, boundary: Boundary) -> bool:
        marks = boundary.watermarks
        return self._event_time.used and any(marks.get(op, NO_WATERMARK) < self.watermark for op in self._operators)

    def _raised(self, moment: BatchTime) -> BatchTime:
        if self.watermark == NO_WATERMARK or not self._event_time.used:
            return moment
        marks = moment.watermarks
        raised = {op: max(self.watermark, marks.firing.get(op, NO_WATERMARK)) for op in self._raises}
        return replace(moment, watermarks=replace(marks, firing={**marks.firing, **raised}))

    def drain(self, boundary: Boundary, operators: Set[str] | None = None) -> Next:
        pace = BatchPace(self.messages, sys.maxsize)
        if operators is not None:
            return self._closing.drain(boundary, operators, pace, {})
        return self._closing.next(boundary, "drain", pace, {})

    def has_lost(self, ranges: BatchRanges) -> bool:
        """False: the streams of a test keep their messages."""
        return False

    def ended(self, took_ms: float, read: Mapping[TaskSsp, PortionRead]) -> None:
        """Do nothing: the test chooses the size of batches."""

    def remaining(self, boundary: Boundary) -> int | None:
        """None: nothing shows it."""
        return None


_OF_INPUTS = (".idle.ms", ".samza.bootstrap", ".samza.priority")


@dataclass(frozen=True, slots=True)
class RunnerJob:
    """The parts of a job that drivers run. A changed application is another one."""

    graph: ApplicationGraph
    config: JobConfig
    task_config: Mapping[str, str]
    feed: RunnerFeed
    tables: TablesInProcess


class RunnerHome:
    """The parts of a runner that outlive its drivers: streams, object store, clock, and the test's arguments."""

    def __init__(
        self,
        name: str,
        partitions: int,
        dead_letter: str | None,
        broadcast_inputs: str | Sequence[str],
        given: Mapping[str, object] | None,
        existing: Sequence[str],
        now_ms: int,
        cut: Cut | None,
    ) -> None:
        """
        Args:
            name: of the job, unless `given` has one.
            partitions: how many partitions each stream has.
            dead_letter: the stream for messages that fail.
            broadcast_inputs: as `task.broadcast.inputs`.
            given: the keys that tasks find.
            existing: streams that patterns may match.
            now_ms: when the clock begins, in epoch milliseconds.
            cut: makes smaller batches.
        """
        self._name = name
        self._partitions = partitions
        self._dead = SystemStream.parse(dead_letter) if dead_letter else None
        self._broadcast_inputs = broadcast_inputs
        self._given = given
        self._existing = tuple(map(SystemStream.parse, existing))
        self.tasks = partitions
        """The number of the job's tasks."""
        self._root, self._folder = f"memory://{uuid.uuid4().hex}", Path(tempfile.mkdtemp(prefix="penstock-test-"))
        self.release = weakref.finalize(self, _release, self._root, self._folder)
        self.streams = StreamsOfTest(partitions)
        self.clock = SettableClock(now_ms)
        self._cut = cut
        self.mistakes: list[AssertionError] = []

    def job(self, app: Application) -> RunnerJob:
        """Make the job of this application, and the streams that it needs.

        Raises:
            ConfigError: something cannot run. No stream is made then.
        """
        declared = app.graph()
        given = self._given or {}
        added = _unconfigured(declared, given)
        loaded = load_config(overrides={**added, **given}, default_job_name=self._name)
        graph = complete(declared, loaded)
        self.streams.make(self._existing, [op.pattern.system for op in graph.patterns])
        graph = with_matches(graph, loaded, self.streams.systems)
        _check_sendable(plan_topology(graph, self._dead, loaded.exactly_once_streams))
        graph = checked_graph(graph, self.mistakes)
        config = self._driver_config(graph, loaded)
        graph = with_registry(graph, config)
        outputs = [spec.stream for spec in graph.outputs] + ([self._dead] if self._dead else [])
        streams = [*(op.stream for op in graph.sources), *outputs, *sorted(graph.side_streams())]
        changelogs = {config.store(spec.name).changelog.system for spec in graph.written_stores}
        self.streams.make(streams, sorted(changelogs))
        order = InputOrder.of({op.stream for op in graph.inputs}, config)
        event_time = EventTime.of(graph, config)
        feed = RunnerFeed(lambda: self.streams.ends(graph), graph, event_time, self.clock, order, self._cut)
        tables = self._tables(graph, config)
        seen = {key: value for key, value in loaded.for_tasks().items() if key not in added}
        return RunnerJob(graph, config, seen, feed, tables)

    def _tables(self, graph: ApplicationGraph, config: JobConfig) -> TablesInProcess:
        paths = JobPaths(config.job.name, config.job.id)
        return TablesInProcess(open_job_root(config.job), paths, graph, self.tasks)

    def repartition(self, job: RunnerJob, tasks: int, rules: Mapping[str, Rule]) -> RunnerJob:
        """Move the state of the last checkpoint to another number of tasks. Returns the job with these."""
        config = job.config
        found = FoundJob(config, JobPaths(config.job.name, config.job.id), open_job_root(config.job))
        with closing(JobStreams.open(job.graph, config, self.streams.systems)) as streams:
            repartition(planned_for(found, job.graph, streams, tasks, rules))
        self.tasks = tasks
        config = config.put(JobSettings.intermediate_stream_partitions, tasks)
        return replace(job, config=config, tables=self._tables(job.graph, config))

    def driver(self, job: RunnerJob) -> InProcessDriver:
        driver = InProcessDriver(
            job.graph,
            job.config,
            open_job_root(job.config.job),
            self.streams.systems,
            containers=1,
            layers=(CheckedStore,),
            task_config=job.task_config,
            feed=job.feed,
            tools={"tables": lambda _job, _needed: job.tables},
            clock=self.clock,
        )
        driver.fleet.at = self._check
        return driver

    def _check(self, step: str) -> None:
        """Raise the application's first mistake before a batch is applied."""
        if step == "end" and self.mistakes:
            raise self.mistakes.pop(0)

    def _driver_config(self, graph: ApplicationGraph, given: JobConfig) -> JobConfig:
        """The configuration of a job in memory. It commits only when asked to, and retries nothing."""
        keys: dict[str, object] = {
            "job.name": given.job.name,
            "task.window.ms": given.task.window_ms,
            "job.root": self._root,
            "job.logged.store.base.dir": str(self._folder),
            "job.retry.max": 0,
            SchemaRegistrySettings.url.name: self._root,
            "task.commit.ms": 0,
            # Nobody else asks for a drain, and the thread of a monitor would keep a runner alive that nobody closes.
            "job.drain-monitor.enabled": False,
            **{key: value for key, value in given.flat().items() if _is_used(key)},
            **_exactly_once(given),
            **{f"stores.{spec.name}.factory": "memory" for spec in graph.stores if not spec.by_column},
        }
        config = load_config(overrides=keys, environ={})
        if self.tasks != self._partitions:
            config = config.put(JobSettings.intermediate_stream_partitions, self.tasks)
        config = config.put(TaskSettings.dead_letter_stream, self._dead)
        return config.put(TaskSettings.broadcast_inputs, _broadcast(self._broadcast_inputs))


def _check_sendable(topology: Topology) -> None:
    """Raise ConfigError, as the start of a real job, if the application cannot be pickled. The test runs the original
    all the same: it may look at objects that its functions capture."""
    load(PICKLERS["spark"])(topology)


def _is_used(key: str) -> bool:
    """True if the runner takes the key from the test: side inputs, a registry, idle partitions, and the order of
    inputs."""
    of_input = key.startswith("streams.") and key.endswith(_OF_INPUTS)
    return of_input or key.startswith(("side.inputs.", "schema.registry."))


def _unconfigured(graph: ApplicationGraph, given: Mapping[str, object]) -> dict[str, object]:
    streams = [*(op.stream for op in graph.sources), *(spec.stream for spec in graph.outputs), *graph.side_streams()]
    names = {stream.system for stream in streams} - {DEFAULT_SYSTEM}
    return {
        SystemKeys.factory.full(name): "memory"
        for name in sorted(names)
        if not any(key == "systems" or key.startswith(f"systems.{name}.") for key in given)
    }


def _exactly_once(given: JobConfig) -> dict[str, object]:
    streams = given.exactly_once_streams
    systems = {stream.system for stream in streams} - {DEFAULT_SYSTEM}
    return {
        **{StreamSettings.output_guarantee.full(str(stream)): "exactly-once" for stream in streams},
        **{SystemKeys.factory.full(name): "memory" for name in systems},
    }


def _release(root: str, folder: Path) -> None:
    forget_memory_store(root)
    shutil.rmtree(folder, ignore_errors=True)


def _broadcast(inputs: str | Sequence[str]) -> tuple[PartitionRange, ...]:
    if not inputs:
        return ()
    kind = BroadcastInputs()
    try:
        return kind.parse(inputs if isinstance(inputs, str) else tuple(inputs))
    except RefusedError as error:
        raise ConfigError(f"broadcast_inputs: expected {kind.expected} ({error})") from error
