"""The handle of a running job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from penstock.base.plugins import DISPLAYS, load
from penstock.driver.part import StopRequest
from penstock.driver.program import JobEnd, RunningWork, count_end_of_program, stop_with_program
from penstock.driver.show.progress import BatchProgress, JobProgress, ProgressBoard
from penstock.errors import NotFoundError
from penstock.facts import Facts, html_of
from penstock.job.shown import Outage, RunWork
from penstock.metrics.snapshot import Snapshot

if TYPE_CHECKING:
    from penstock.drain.wing import DrainProgress
    from penstock.outbox.driver import PublishingProgress
    from penstock.replay.wing import FollowProgress
    from penstock.side.wing import BootstrapProgress
    from penstock.tables.wing import TableStatus

logger = logging.getLogger(__name__)
_CANCEL_SECONDS = 0.2


class JobPage(Protocol):
    """The page of a job, which its driver serves."""

    token: str
    """Every request about the job needs it."""
    host: str
    port: int

    @property
    def url(self) -> str:
        """The address, without the token."""

    @property
    def url_with_token(self) -> str:
        """The address for a browser."""

    @property
    def logged_url(self) -> str:
        """The address for a log, and the file that has the token."""

    @property
    def printed_url(self) -> str:
        """The address for a terminal, and for no log."""

    def close(self, *, wait: bool = True) -> None:
        """End the page.

        Args:
            wait: return only when its thread has ended.
        """


class Job:
    """The handle of a running job, from `app.run(...)`.

    The job's run loop has a separate thread. All methods may be called from any thread. A `with` block stops the job at
    its end, with a last commit, and waits until the job has ended.

    SIGTERM and Ctrl-C stop a job that the main thread started, unless the program handles them itself. The first signal
    ends the job after the current batch, with a last commit; a second one ends it at once. `await_termination` then
    returns. A program that never asks whether its job has ended ends together with the job.

    A program that ends while its job runs waits for the job: it is stopped as at the end of a `with` block, but for at
    most two minutes, and then at once. Ctrl-C stops it at once. The exit status is the program's.

    Example:
        >>> with app.run({"spark.master": "local[2]"}) as job:  # doctest: +SKIP
        ...     job.await_termination(60)
        ...     print(job.phase, job.last_progress["numInputRows"])
        False
        running 1200
    """

    def __init__(
        self,
        name: str,
        run_id: str,
        board: ProgressBoard,
        stop: StopRequest,
        log_directory: str = "",
        dashboard: JobPage | None = None,
    ) -> None:
        self.name = name
        """The job's name and id, `<job.name>-<job.id>`."""
        self.run_id = run_id
        self.log_directory = log_directory
        """The folder of the containers' logs, on each host. `container-*.log` has what the tasks print and log."""
        self.prometheus_port: int | None = None
        """The port of the Prometheus endpoint; None without `metrics.prometheus.port`."""
        self.dashboard = dashboard
        """The dashboard, which ends with the job; None without `job.dashboard.port`."""
        self._close_view: Callable[[], None] = lambda: None
        self._board = board
        self._stop = stop
        self._cancel: Callable[[], None] = lambda: None
        self._drain: Callable[[], None] = lambda: None
        self._error: BaseException | None = None
        self._is_error_known = False
        """True once the program was given the error, or it was logged."""
        self.ending = JobEnd()
        """The job's end, for the launcher and for callers that wait for it."""

    def __repr__(self) -> str:
        batch = "" if self._board.last is None else f", batch {self._board.last.batch_id}"
        return f"<Job {self.name}: {self._board.phase}{batch}, checkpoint {self.last_checkpoint}, run {self.run_id}>"

    def _ipython_display_(self) -> None:
        """Show the job in a notebook. Its tables and plots are drawn again each second, until it ends or is shown
        elsewhere."""
        show: Callable[[Job], Callable[[], None]] = load(DISPLAYS["notebook"])
        self._close_view()
        self._close_view = show(self)

    def _repr_html_(self) -> str:
        """The job as HTML, as it is now."""
        last = self._board.last
        facts = Facts({"phase": self.phase, "run": self.run_id})
        return html_of(Facts({"job": self.name}) + facts if last is None else facts + last.as_facts())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(wait=kind is None)
        if kind is not None:  # the block's own error goes on; the job's would hide it
            self.ending.done.wait()
            self._report()

    def start(self, body: Callable[[], None], drain: Callable[[], None]) -> None:
        """Run the job on a separate thread. Called once, by the launcher.

        Args:
            body: the run loop; its exception is the job's error.
            drain: asks the run to drain.
        """
        self._drain = drain
        threading.Thread(target=self._run, args=(body,), name=f"penstock-{self.name}", daemon=True).start()
        name, done = f"job {self.name}", self.ending.done
        stop_with_program(RunningWork(name, done, self._end_with_program, self._end_at_once, self._report))

    def follow(
        self, run_id: str, board: ProgressBoard, cancel: Callable[[], None], prometheus_port: int | None
    ) -> None:
        """Show another start of the job's run, which takes the place of the one before. Called by the launcher.

        Args:
            run_id: the id of the run.
            board: the progress of the run since that start.
            cancel: interrupts the Spark job of the running batch.
            prometheus_port: the port of its Prometheus endpoint, if it has one.
        """
        self.run_id, self._board, self._cancel, self.prometheus_port = run_id, board, cancel, prometheus_port

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            self._error = error
        finally:
            self._board.update(phase="failed" if self._error else "drained" if self._board.drained else "ended")
            if self.dashboard is not None:
                self.dashboard.close(wait=False)
            self.ending.done.set()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended.

        Args:
            timeout_s: how long to wait, in seconds; None for as long as it takes.

        Returns:
            True if the job has ended.

        Raises:
            PenstockError: the job failed; this is its error.

        Example:
            >>> app.run(config, until="latest").await_termination(600)  # doctest: +SKIP
            True
        """
        if not self.ending.look().wait(timeout_s):
            return False
        if self._error is not None:
            self._is_error_known = True
            raise self._error
        return True

    def stop(self, *, wait: bool = True) -> None:
        """Stop the job after its current batch, with a last commit.

        A second call ends the job at once: the running batch is dropped, and the next start reads it again from the
        last checkpoint.

        Args:
            wait: return only when the job has ended.

        Raises:
            PenstockError: with `wait`, the job failed; this is its error.
        """
        self._stop.request()
        if self._stop.immediate.is_set():
            self._end_at_once()
        if wait:
            self.await_termination()

    def begin_again(self) -> None:
        """End the run after its current batch, with a last commit, and start the job again in this process. Does
        nothing if somebody has asked for the end of the job."""
        self._stop.begin_again()

    def drain(self, *, wait: bool = True) -> None:
        """Read no more input, process everything in flight and everything that waits for a time, commit, and end, as
        `penstock drain`.

        The next start may be of a changed program. If this process is killed before the end, the next start drains.

        Args:
            wait: return only when the job has ended.

        Raises:
            NotFoundError: the job has ended.
            PenstockError: the request could not be written; or, with `wait`, the job failed, and this is its error.
        """
        if self.ending.done.is_set():
            raise NotFoundError(f"job {self.name} has ended: there is nothing to drain")
        self._drain()
        if wait:
            self.await_termination()

    def _end_at_once(self) -> None:
        self._stop.at_once()
        threading.Thread(target=self._keep_cancelling, name="penstock-cancel", daemon=True).start()

    def _keep_cancelling(self) -> None:
        """Cancel until the job has ended: a batch may be about to submit its Spark job at the first cancel."""
        self._cancel()
        while not self.ending.done.wait(_CANCEL_SECONDS):
            self._cancel()

    def _end_with_program(self) -> None:
        self.ending.awaited = True
        count_end_of_program()
        logger.warning(
            "the program ends while job %s runs: the job stops after the current batch, with a last commit, or at once "
            "on Ctrl-C. To wait until a job has ended, call `await_termination()`",
            self.name,
        )
        self._stop.ask()

    def _report(self) -> None:
        """Log the error of a job that failed, unless the program has it."""
        if self._error is not None and not self._is_error_known:
            self._is_error_known = True
            logger.error("job %s failed: %s", self.name, self._error)

    @property
    def is_active(self) -> bool:
        """True while the job is running."""
        return not self.ending.look().is_set()

    @property
    def exception(self) -> BaseException | None:
        """The error of a job that failed; None otherwise."""
        self._is_error_known = self._error is not None
        return self._error

    @property
    def phase(self) -> str:
        """The phase of the job: `starting`, `restoring`, `bootstrapping`, `publishing`, `running`, `draining`,
        `stopping`, `ended`, `drained` or `failed`."""
        self.ending.look()
        return self._board.phase

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The last batch that ended, with the fields of Spark's StreamingQueryProgress; None before the first. A field
        that is not known is None.

        Example:
            >>> job.last_progress["numInputRows"], job.last_progress["durationMs"]["triggerExecution"]  # doctest: +SKIP
            (1200, 85)
        """
        last = self._board.last
        return None if last is None else last.to_dict()

    @property
    def progress(self) -> JobProgress | None:
        """The last batch that ended, as a value; None before the first."""
        return self._board.last

    @property
    def running_batch(self) -> BatchProgress | None:
        """The batch that runs, and how much of it has been processed; None between batches."""
        running = self._board.running
        return None if running is None else BatchProgress(*running, self._board.processed(running[0]))

    @property
    def tables(self) -> tuple[TableStatus, ...]:
        """The pushed tables, in the order in which they were declared: the version that batches read, and the one that
        containers load. Empty if there are none, and before the first look at them.

        Example:
            >>> [(table.table, table.in_use, table.loading) for table in job.tables]  # doctest: +SKIP
            [('planes', 6, 7)]
        """
        return self._board.told("tables") or ()

    @property
    def drain_progress(self) -> DrainProgress | None:
        """The messages that each stage has processed since the request to drain, the rest, and the running batch's
        wait. Once the job has ended, the summary of the drain. None if the job does not drain.

        Example:
            >>> job.drain()  # doctest: +SKIP
            >>> [(stage.names, stage.panes) for stage in job.drain_progress.stages]  # doctest: +SKIP
            [(('takeoffs', 'by-airport'), 0), (('hours', 'hour'), 24), (('local.takeoffs-by-hour',), 0)]
        """
        found: DrainProgress | None = self._board.told("drain")
        return found

    @property
    def bootstrap_progress(self) -> BootstrapProgress | None:
        """Messages of the side inputs that were read, and their total, while the phase is `bootstrapping`; None
        otherwise.

        Example:
            >>> print(job.bootstrap_progress)  # doctest: +SKIP
            1,200,000 of 5,000,000 messages, about 12 s left
        """
        found: BootstrapProgress | None = self._board.told("side")
        return found

    @property
    def publishing(self) -> PublishingProgress | None:
        """The publication of exactly-once output that is under way; None if readers see all output of the last
        checkpoint.

        Example:
            >>> print(job.publishing)  # doctest: +SKIP
            1,200 of 5,000 messages to kafka.utilisation
        """
        found: PublishingProgress | None = self._board.told("outbox")
        return found

    @property
    def following(self) -> FollowProgress | None:
        """The progress of a shadow that makes the batches of another job (`job.replay.follows`). None for any other
        job, and before the first checkpoint of that one is reached.

        Example:
            >>> job.following.job, job.following.caught_up  # doctest: +SKIP
            ('flights-1', True)
        """
        found: FollowProgress | None = self._board.told("replay")
        return found

    @property
    def outage(self) -> Outage | None:
        """The system that the job waits for, since when and why; None if it waits for none.

        Example:
            >>> print(job.outage)  # doctest: +SKIP
            waits since 2026-03-01T10:15:00.000Z: the offsets of `kafka.flights` could not be read: ...
        """
        return self._board.outage

    def live_metrics(self) -> tuple[str, Snapshot, RunWork]:
        """The metrics and the work now, with what distinguishes this start of the run from others: metrics begin at 0.
        Called by the dashboard."""
        board = self._board
        return f"{self.run_id} {id(board)}", board.metrics.snapshot(), board.work_now()

    def metrics(self) -> Snapshot:
        """All metrics of this run, by source, group and name; docs/metrics.md lists them.

        Metrics of containers are as of their last heartbeats, a few seconds ago at most.

        Example:
            >>> job.metrics().total("messages-actually-processed", group="stage.0")  # doctest: +SKIP
            1200
            >>> job.metrics().to_dict()["Partition 0"]["stage.0"]["messages-actually-processed"]  # doctest: +SKIP
            300
        """
        return self._board.metrics.snapshot()

    @property
    def last_checkpoint(self) -> str | None:
        """The id of the last complete checkpoint; None before the first."""
        return self._board.last_checkpoint

    @property
    def remaining_messages(self) -> int | None:
        """Messages left until the job ends by itself; fewer where offsets have gaps. None if it runs until it is
        stopped, and if an input is a folder, whose files are counted when they are read."""
        return self._board.remaining

    @property
    def restored_bytes(self) -> int:
        """Bytes of state restored so far in the current epoch."""
        return self._board.restored_bytes
