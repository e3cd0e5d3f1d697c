"""The handle of a running job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from penstock.driver.progress import BatchProgress, JobProgress, ProgressBoard
from penstock.driver.stop import StopRequest
from penstock.engine.stop_signals import Ending
from penstock.metrics.snapshot import Snapshot

logger = logging.getLogger(__name__)
_CANCEL_SECONDS = 0.2


class Job:
    """A job that was started. Its run loop has a separate thread.

    Get one from `app.run(...)`. All methods may be called from any thread. As a context manager it stops at the end
    of the block, with a last commit, and waits for it:

        with app.run(config) as job:
            job.await_termination(60)

    SIGTERM and Ctrl-C stop a job that the main thread started, unless the program handles them itself:
    the first one ends it after the current batch, with a last commit, a second one at once. `await_termination` then
    returns; a program that never asks whether its job has ended is ended itself once the job has.
    """

    def __init__(
        self, name: str, run_id: str, board: ProgressBoard, stop: StopRequest, log_directory: str = ""
    ) -> None:
        self.name = name
        """`<job.name>-<job.id>`."""
        self.run_id = run_id
        self.log_directory = log_directory
        """Where containers log, on each host: what the tasks print and log is in `container-*.log`."""
        self.prometheus_port: int | None = None
        """Where Prometheus scrapes the metrics; None without `metrics.prometheus.port`."""
        self._board = board
        self._stop = stop
        self._cancel: Callable[[], None] = lambda: None
        self._error: BaseException | None = None
        self.ending = Ending()
        """For the launcher: the job's end, and whether the program looks for it."""

    def __repr__(self) -> str:
        batch = "" if self._board.last is None else f", batch {self._board.last.batch_id}"
        return f"<Job {self.name}: {self._board.phase}{batch}, checkpoint {self.last_checkpoint}, run {self.run_id}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(wait=kind is None)
        if kind is not None:  # the block's own error goes on; the job's would hide it
            self.ending.done.wait()
            if self._error is not None:
                logger.error("job %s failed: %s", self.name, self._error)

    def start(self, body: Callable[[], None], cancel: Callable[[], None]) -> None:
        """Run the body on a separate thread; `cancel` interrupts its Spark job. Called once, by the launcher."""
        self._cancel = cancel
        threading.Thread(target=self._run, args=(body,), name=f"penstock-{self.name}", daemon=True).start()

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            self._error = error
        finally:
            self._board.update(phase="failed" if self._error else "ended")
            self.ending.done.set()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended; False if it has not within the time.

        Raises:
            PenstockError: what ended the job, if it did not end by itself or by `stop`.
        """
        if not self.ending.look().wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self, *, wait: bool = True) -> None:
        """End the job after its current batch, with a commit that is awaited. A second call ends it at once: the
        running batch is dropped and will be read again, the last checkpoint stays.

        With `wait`, returns when it has ended, and raises what `await_termination` raises.
        """
        self._stop.request()
        if self._stop.immediate.is_set():
            threading.Thread(target=self._keep_cancelling, name="penstock-cancel", daemon=True).start()
        if wait:
            self.await_termination()

    def _keep_cancelling(self) -> None:
        """Until it has ended: a batch may be about to submit its Spark job when the first cancel comes."""
        self._cancel()
        while not self.ending.done.wait(_CANCEL_SECONDS):
            self._cancel()

    @property
    def is_active(self) -> bool:
        """Whether it still runs."""
        return not self.ending.look().is_set()

    @property
    def exception(self) -> BaseException | None:
        """What ended the job, if it failed."""
        return self._error

    @property
    def phase(self) -> str:
        """`starting`, `restoring`, `running`, `stopping`, `ended` or `failed`."""
        self.ending.look()
        return self._board.phase

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The last batch that ended, fields named as in Spark's StreamingQueryProgress; None before the first."""
        last = self._board.last
        return None if last is None else last.to_dict()

    @property
    def progress(self) -> JobProgress | None:
        """The last batch that ended, typed."""
        return self._board.last

    @property
    def running_batch(self) -> BatchProgress | None:
        """The batch that runs, with how far it is; None between batches."""
        running = self._board.running
        return None if running is None else BatchProgress(*running, self._board.processed(running[0]))

    def metrics(self) -> Snapshot:
        """All metrics of this run, by source, group and name; docs/metrics.md has the list. Those of containers are as
        of their last beats, at most a few seconds ago.

        Example:
            >>> job.metrics().total("messages-actually-processed", group="stage.0")  # doctest: +SKIP
            1200
            >>> job.metrics().to_dict()["Partition 0"]["stage.0"]["messages-actually-processed"]  # doctest: +SKIP
            300
        """
        return self._board.metrics.snapshot()

    @property
    def last_checkpoint(self) -> str | None:
        """The id of the last complete checkpoint."""
        return self._board.last_checkpoint

    @property
    def remaining_messages(self) -> int | None:
        """Messages left until the job ends by itself, fewer where offsets have gaps; None if it runs until it is
        stopped."""
        return self._board.remaining

    @property
    def restored_bytes(self) -> int:
        """Bytes of state restored so far in the current epoch."""
        return self._board.restored_bytes
