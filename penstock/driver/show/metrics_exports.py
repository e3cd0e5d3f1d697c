"""What shows a running job's metrics outside its process: an HTTP endpoint, a stream, and an object in its folder."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib.metadata import version

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.positions import Positions, TaskSsp
from penstock.config.model import JobSettings
from penstock.drain.shown import ShownDrain
from penstock.driver.show.progress import ProgressBoard
from penstock.errors import PenstockError
from penstock.job.shown_metrics import ShownMetrics
from penstock.job.shown_outage import Outage, ShownOutage
from penstock.metrics.samza import Origin, samza_messages
from penstock.metrics.snapshot import Snapshot
from penstock.standby.shown import ShownStandbys
from penstock.start.prepare import PreparedJob
from penstock.system.base import System
from penstock.system.partitioner import partition_of
from penstock.system.registry import open_system

logger = logging.getLogger(__name__)
SHOW_SECONDS = 10.0
SHOW_DRAIN_SECONDS = 1.0
SHOW_STANDBYS_SECONDS = 1.0
SHOW_OUTAGE_SECONDS = 1.0
_LAST_SECONDS = 10.0
"""How long the end of a run waits for the last export."""


class MetricsExports:
    """Everything that exports the metrics of a run, from its start to its end. A failure to export is logged, and
    never ends the run."""

    def __init__(self, job: PreparedJob, run_id: str, board: ProgressBoard, owns_job: Callable[[], bool]) -> None:
        """Begin. The board's replay continues from how far the last run came.

        Only while `owns_job` holds is anything written to the job's folder: a driver that lost its job to another one
        leaves that one's metrics alone.

        Raises:
            ConfigError: the endpoint's address cannot be listened on.
            NotFoundError: the reporter's stream does not exist.
        """
        self.prometheus_port: int | None = None
        settings, snapshot = job.config.metrics, board.metrics.snapshot
        with ExitStack() as undo:
            if settings.prometheus_port is not None:
                from penstock.metrics.prometheus import PrometheusEndpoint  # only a job that has one pays for it

                host, port, token = settings.prometheus_host, settings.prometheus_port, settings.prometheus_token
                endpoint = PrometheusEndpoint(job.paths.root, host, port, snapshot, token, settings.prometheus_tls)
                if token is None and not host.startswith("127.") and host not in ("localhost", "::1"):
                    logger.warning(
                        "the endpoint for Prometheus on %s answers every request: set metrics.prometheus.token",
                        host,
                    )
                self.prometheus_port = endpoint.port
                undo.callback(endpoint.close)
            shown = ShownMetrics(job.objects, job.paths)
            board.replay.continues(_reached(shown))

            def show() -> None:
                if owns_job():
                    reached = {(at.task, at.ssp): offset for at, offset in board.replay.reached.items()}
                    shown.put(run_id, snapshot(), reached)

            undo.callback(Every(SHOW_SECONDS, show, "to the job's folder").close)
            undo.callback(Every(SHOW_DRAIN_SECONDS, shows_drain(job, board, owns_job), "about the drain").close)
            waits = shows_outage(job, run_id, board, owns_job)
            undo.callback(Every(SHOW_OUTAGE_SECONDS, waits, "about what the run waits for").close)
            if job.config.job.standbys:
                shows = shows_standbys(job, run_id, board, owns_job)
                undo.callback(Every(SHOW_STANDBYS_SECONDS, shows, "about the standbys").close)
            if settings.reporter_stream is not None:
                stream = settings.reporter_stream
                system = job.streams.systems.get(stream.system) or open_system(job.config.system(stream.system))
                reporter = SnapshotReporter(job.config.job, run_id, system, stream, snapshot)
                every = Every(settings.reporter_interval_s, reporter.report, f"to stream `{stream}`")
                undo.callback(every.close)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Export once more, and end."""
        self._undo.close()


def shows_drain(job: PreparedJob, board: ProgressBoard, owns_job: Callable[[], bool]) -> Callable[[], None]:
    """What puts the progress of a drain into the job's folder, whenever it has changed."""
    shown, last = ShownDrain(job.objects, job.paths), None

    def show() -> None:
        nonlocal last
        drain = board.drain_now()
        if drain is not None and drain != last and drain.phase != "drained" and owns_job():
            shown.put(drain)
            last = drain

    return show


def shows_standbys(
    job: PreparedJob, run_id: str, board: ProgressBoard, owns_job: Callable[[], bool]
) -> Callable[[], None]:
    """What puts the state of the standbys into the job's folder, whenever it has changed."""
    shown, last = ShownStandbys(job.objects, job.paths), None

    def show() -> None:
        nonlocal last
        now = board.standbys()
        if now != last and owns_job():
            shown.put(run_id, now)
            last = now

    return show


def shows_outage(
    job: PreparedJob, run_id: str, board: ProgressBoard, owns_job: Callable[[], bool]
) -> Callable[[], None]:
    """What puts the system that the run waits for into the job's folder, whenever it has changed."""
    shown = ShownOutage(job.objects, job.paths)
    last: Outage | None = None

    def show() -> None:
        nonlocal last
        now = board.outage
        if now != last and owns_job():
            shown.put(run_id, now)
            last = now

    return show


def _reached(shown: ShownMetrics) -> Positions:
    """How far the last run came, as far as it said so."""
    try:
        run = shown.get()
    except PenstockError as error:
        logger.warning("how far the last run came is not known, so replayed messages are not counted: %s", error)
        return {}
    return {} if run is None else {TaskSsp(task, ssp): offset for (task, ssp), offset in run.reached.items()}


class Every:
    """Calls something at an interval, on a separate thread, and once more when it is closed."""

    def __init__(self, seconds: float, export: Callable[[], None], where: str) -> None:
        self._seconds = seconds
        self._export = export
        self._where = where
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-metrics", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = _LAST_SECONDS) -> None:
        """Export once more, and end the thread. A run ends without an export that takes longer."""
        self._closing.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning(
                "the last metrics were not written %s within %.0f s: the run ends without them", self._where, timeout_s
            )

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._closing.wait(self._seconds)
            try:
                self._export()
            except PenstockError as error:
                logger.warning("the metrics were not written %s; the next interval tries again: %s", self._where, error)


class SnapshotReporter:
    """Appends all metrics to a stream, as Samza's MetricsSnapshotReporter does: a message for each source."""

    def __init__(
        self, job: JobSettings, run_id: str, system: System, stream: SystemStream, snapshot: Callable[[], Snapshot]
    ) -> None:
        """Raises NotFoundError if there is no such stream."""
        self._origin = Origin(job.name, job.id, run_id, version("penstock"), socket.gethostname(), _now_ms())
        self._system = system
        self._stream = stream
        self._snapshot = snapshot
        with closing(system.admin()) as admin:
            self._partitions = admin.partition_count(stream.stream)

    def report(self) -> None:
        """Append the metrics of this moment. Raises PenstockError if the system does not take them."""
        now_ms = _now_ms()
        with closing(self._system.writer(None)) as writer:
            for source, message in samza_messages(self._snapshot(), self._origin, now_ms):
                key = source.encode()
                partition = partition_of(key, self._partitions)
                ssp = SystemStreamPartition(self._stream.system, self._stream.stream, partition)
                writer.append(ssp, [(now_ms, key, message)])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
