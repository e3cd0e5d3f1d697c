"""The exports of a running job: its metrics at an HTTP endpoint, in a stream, and with its graph on boards in its
folder.

The ends of the inputs are looked at here while nobody else does: while a batch runs, or hangs.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeVar

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.http_hosts import is_loopback
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import size_text
from penstock.batch.batch import Positions, TaskSsp
from penstock.config.optional_settings import MetricsSettings
from penstock.config.settings import JobSettings
from penstock.driver.show.progress import ProgressBoard
from penstock.errors import PenstockError
from penstock.graph.specs import OperatorSpec
from penstock.graph.topology import DEAD_LETTER_CHANNEL, Channel, Topology
from penstock.job.board import Board, Shown
from penstock.job.shown import (
    GraphEdge,
    GraphOperator,
    GraphStage,
    JobGraph,
    MetricsBoard,
    RunOutage,
    RunPhase,
    ShownRun,
    graph_board,
    outage_board,
    phase_board,
)
from penstock.metrics.snapshot import MetricsHeader, Snapshot, samza_messages
from penstock.start.job import ClaimedJob
from penstock.system.base import System, SystemAdmin
from penstock.system.contract.definition import QUERY_SYSTEM
from penstock.system.partitioner import partition_of
from penstock.system.registry import open_system

if TYPE_CHECKING:
    from penstock.metrics.prometheus import PrometheusEndpoint

logger = logging.getLogger(__name__)


class EndWatch:
    """Watches the ends of the inputs with separate admins, so a system that does not answer delays no batch. One
    thread uses it."""

    def __init__(
        self,
        inputs: Collection[SystemStream],
        systems: Mapping[str, System],
        note: Callable[[Mapping[SystemStreamPartition, int]], None],
    ) -> None:
        """`note` gets the ends of each stream that answers."""
        self._inputs = [
            stream
            for stream in inputs
            if stream.system != QUERY_SYSTEM and systems[stream.system].lag_unit == "message"
        ]
        self._systems = systems
        self._note = note
        self._admins: dict[str, SystemAdmin] = {}
        self._closing = threading.Event()

    def look(self) -> None:
        """Note the present ends. What a system that does not answer had last stays."""
        for stream in self._inputs:
            if self._closing.is_set():
                return
            try:
                if stream.system not in self._admins:
                    self._admins[stream.system] = self._systems[stream.system].admin()
                ends = self._admins[stream.system].offsets(stream.stream)
            except PenstockError as error:
                logger.debug("the ends of %s are not known now: %s", stream, error)
                continue
            self._note(
                {
                    SystemStreamPartition(stream.system, stream.stream, partition): end.upcoming
                    for partition, end in ends.items()
                }
            )

    def stop(self) -> None:
        """Let the last look end early: the run ends, whatever a system does. From any thread."""
        self._closing.set()

    def close(self) -> None:
        """Close the admins. No call follows."""
        for admin in self._admins.values():
            admin.close()


def graph_of(topology: Topology, run_id: str) -> JobGraph:
    """The stages with operators, and the edges between them and the streams.

    Sinks and the outbox are part of the edges that end in their streams. The dead-letter stream has one edge for each
    stage.
    """
    stages = tuple(
        GraphStage(stage.number, tuple(map(_operator, stage.operators))) for stage in topology.stages if stage.operators
    )
    reads = (
        GraphEdge(str(op.input_stream), stage.number)
        for stage in topology.stages
        for op in stage.operators
        if op.input_stream is not None
    )
    channels = map(_of_channel, topology.channels)
    through = (GraphEdge(str(op.stream), topology.stage_of(op.id)) for op in topology.graph.intermediates)
    return JobGraph(run_id, stages, tuple(dict.fromkeys((*reads, *channels, *through))))


def _of_channel(channel: Channel) -> GraphEdge:
    name = "" if channel.name == DEAD_LETTER_CHANNEL else channel.source
    target = channel.target_stage if channel.output is None else str(channel.output)
    return GraphEdge(channel.source_stage, target, name)


def _operator(op: OperatorSpec) -> GraphOperator:
    words = re.findall("[A-Z][a-z]*", type(op).__name__.removesuffix("Spec"))
    stream = "" if op.input_stream is None else str(op.input_stream)
    return GraphOperator(op.id, " ".join(words).lower(), op.stores, stream)


SHOW_SECONDS = 10.0
SHOW_CHANGES_SECONDS = 1.0
_LAST_SECONDS = 10.0
"""The time that the end of a run waits for each last export."""
T = TypeVar("T")


class MetricsExports:
    """All exports of a run's metrics, from its start to its end. A failure is logged, and never ends the run."""

    def __init__(
        self,
        job: ClaimedJob,
        run_id: str,
        board: ProgressBoard,
        owns_job: Callable[[], bool],
        driver: str = "",
        shown: Sequence[Shown] = (),
    ) -> None:
        """Begin. The board's replay continues from where the last run ended.

        Exports write to the job's folder only while `owns_job` holds: a driver that lost its job to another one leaves
        that one's metrics alone. `driver` is the token of the driver's lease. `shown` are the documents of wings.

        Raises:
            ConfigError: the endpoint's address cannot be listened on.
            NotFoundError: the reporter's stream does not exist.
        """
        self.prometheus_port: int | None = None
        settings, snapshot = job.config.metrics, board.metrics.snapshot
        with ExitStack() as undo:
            if settings.prometheus_port is not None:
                endpoint = _endpoint(job, settings, settings.prometheus_port, snapshot)
                self.prometheus_port = endpoint.port
                undo.callback(endpoint.close)
            metrics = MetricsBoard(job.objects, job.paths)
            board.replay.continues(_reached(metrics))
            undo.callback(ExportThread(*_board_exports(job, run_id, board, metrics, owns_job, driver, shown)).close)
            ends = EndWatch(job.plan.inputs, job.streams.systems, board.note_ends)
            undo.callback(ends.close)
            undo.callback(ExportThread(Export("about what is unread", SHOW_SECONDS, ends.look)).close)
            undo.callback(ends.stop)
            if settings.reporter_stream is not None:
                # A separate thread: neither the stream's system nor the object store delays the other's exports.
                export = _stream_export(job, run_id, settings, settings.reporter_stream, snapshot)
                undo.callback(ExportThread(export).close)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Export once more, and end."""
        self._undo.close()


def _endpoint(
    job: ClaimedJob, settings: MetricsSettings, port: int, snapshot: Callable[[], Snapshot]
) -> PrometheusEndpoint:
    from penstock.metrics.prometheus import PrometheusEndpoint  # only a job that has one pays for it

    host, token = settings.prometheus_host, settings.prometheus_token
    endpoint = PrometheusEndpoint(job.paths.root, host, port, snapshot, token, settings.prometheus_tls)
    if token is None:
        who = "every user of this host" if is_loopback(host) else "who reaches this host"
        says = "%s can read the metrics of this job on port %s: set metrics.prometheus.token"
        logger.warning(says, who, endpoint.port)
    return endpoint


def _stream_export(
    job: ClaimedJob, run_id: str, settings: MetricsSettings, stream: SystemStream, snapshot: Callable[[], Snapshot]
) -> Export:
    system = job.streams.systems.get(stream.system) or open_system(job.config.system(stream.system))
    reporter = SnapshotReporter(job.config.job, run_id, system, stream, snapshot)
    return Export(f"to stream `{stream}`", settings.reporter_interval_s, reporter.report)


def _board_exports(
    job: ClaimedJob,
    run_id: str,
    board: ProgressBoard,
    metrics: MetricsBoard,
    owns_job: Callable[[], bool],
    driver: str,
    shown: Sequence[Shown],
) -> list[Export]:
    objects, paths = job.objects, job.paths

    def put_metrics() -> None:
        if owns_job():
            now_at, reached = board.replay.now_at, board.replay.reached
            metrics_now, work = board.metrics.snapshot(), board.work_now()
            run = ShownRun(run_id, SYSTEM_CLOCK.now_ms(), metrics_now, _plain(reached), driver, _plain(now_at), work)
            metrics.put(run)

    def outage() -> RunOutage:
        return RunOutage(run_id, board.outage)

    def phase() -> RunPhase:
        return RunPhase(run_id, board.phase, board.phase_since_ms, driver, _progress(board))

    graph = graph_of(job.topology, run_id)
    put_graph = put_changes(graph_board(objects, paths), lambda: graph, owns_job)
    put_phase = put_changes(phase_board(objects, paths), phase, owns_job)
    exports = [
        Export("about the graph", SHOW_CHANGES_SECONDS, put_graph),
        Export("about the phase", SHOW_CHANGES_SECONDS, put_phase),
        Export("to the job's folder", SHOW_SECONDS, put_metrics),
        Export(
            "about what the run waits for",
            SHOW_CHANGES_SECONDS,
            put_changes(outage_board(objects, paths), outage, owns_job, RunOutage(run_id, None)),
        ),
    ]
    for each in shown:
        put = put_changes(each.board, each.document, owns_job, each.before)
        exports.append(Export(each.about, SHOW_CHANGES_SECONDS, put))
    return exports


def _plain(positions: Positions) -> dict[tuple[int, SystemStreamPartition], int]:
    return {(at.task, at.ssp): offset for at, offset in positions.items()}


def _progress(board: ProgressBoard) -> str:
    if board.phase == "restoring":
        return size_text(board.restored_bytes)
    shown = board.told(board.phase_of)
    return "" if shown is None else str(shown)


def put_changes(
    board: Board[T], document: Callable[[], T | None], owns_job: Callable[[], bool], last: T | None = None
) -> Callable[[], None]:
    """A call that puts a document on the board if it differs from `last`, the one before; None puts nothing."""

    def export() -> None:
        nonlocal last
        now = document()
        if now is not None and now != last and owns_job():
            board.put(now)
            last = now

    return export


def _reached(metrics: MetricsBoard) -> Positions:
    """The offsets that the last run came to, if it wrote any."""
    try:
        run = metrics.get()
    except PenstockError as error:
        logger.warning("how far the last run came is not known, so replayed messages are not counted: %s", error)
        return {}
    return {} if run is None else {TaskSsp(task, ssp): offset for (task, ssp), offset in run.reached.items()}


@dataclass(frozen=True, slots=True)
class Export:
    """A call that writes metrics somewhere, at an interval."""

    where: str
    """Follows "the metrics were not written" in warnings."""
    interval_s: float
    write: Callable[[], object]


class ExportThread:
    """A thread that makes each export at its interval, and once more when it is closed.

    A failed export is logged and made again after its interval; the others go on. A slow one delays the others.
    """

    def __init__(self, *exports: Export) -> None:
        self._exports = exports
        self._left = list(exports)
        """The exports whose last write has not ended."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-metrics", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = _LAST_SECONDS) -> None:
        """Make each export once more, and end the thread. The run ends without the exports that are left once none has
        ended for `timeout_s`."""
        self._closing.set()
        before = None
        while self._thread.is_alive() and len(self._left) != before:
            before = len(self._left)
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            for export in tuple(self._left):
                logger.warning(
                    "the last metrics were not written %s within %.0f s: the run ends without them",
                    export.where,
                    timeout_s,
                )

    def _run(self) -> None:
        due = {export: time.monotonic() + export.interval_s for export in self._exports}
        while not self._closing.wait(max(0.0, min(due.values()) - time.monotonic())):
            export = min(due, key=due.__getitem__)
            self._write(export)
            due[export] = time.monotonic() + export.interval_s
        while self._left:
            self._write(self._left[0])
            del self._left[0]

    def _write(self, export: Export) -> None:
        try:
            export.write()
        except Exception as error:  # must not end the other exports
            logger.warning(
                "the metrics were not written %s; the next interval tries again: %s",
                export.where,
                error,
                exc_info=not isinstance(error, PenstockError),
            )


class SnapshotReporter:
    """Appends all metrics to a stream, as Samza's MetricsSnapshotReporter does: a message for each source."""

    def __init__(
        self, job: JobSettings, run_id: str, system: System, stream: SystemStream, snapshot: Callable[[], Snapshot]
    ) -> None:
        """Raises NotFoundError if there is no such stream."""
        self._origin = MetricsHeader(
            job.name, job.id, run_id, version("penstock-streams"), socket.gethostname(), SYSTEM_CLOCK.now_ms()
        )
        self._system = system
        self._stream = stream
        self._snapshot = snapshot
        with closing(system.admin()) as admin:
            self._partitions = admin.partition_count(stream.stream)

    def report(self) -> None:
        """Append the present metrics. Raises PenstockError if the system does not take them."""
        time_ms = SYSTEM_CLOCK.now_ms()
        with closing(self._system.writer(None)) as writer:
            for source, message in samza_messages(self._snapshot(), self._origin, time_ms):
                key = source.encode()
                partition = partition_of(key, self._partitions)
                ssp = SystemStreamPartition(self._stream.system, self._stream.stream, partition)
                writer.append(ssp, [(time_ms, key, message)])
