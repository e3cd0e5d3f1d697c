"""One run of a job, from its lease to its loop, and back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any

from penstock.checkpoint.forks import check_whole
from penstock.checkpoint.log import CheckpointLog
from penstock.config.model import JobConfig
from penstock.driver.feed.feed import Feed
from penstock.driver.part import RunContext, StopRequest
from penstock.driver.run_loop import RunLoop, RunParts
from penstock.driver.show.exports import MetricsExports
from penstock.driver.show.progress import ProgressBoard
from penstock.driver.watches import Tenure
from penstock.errors import PenstockError
from penstock.graph.specs import ApplicationGraph
from penstock.host.logs import WordsOnHost, logs_folder
from penstock.job.commands import StopRequests, StopRequestWatch
from penstock.job.identity import check_root
from penstock.job.paths import JobPaths
from penstock.job.shown import LastWords, failure_board
from penstock.objects.open import open_job_root
from penstock.start.job import ClaimedJob
from penstock.start.job_streams import JobStreams
from penstock.start.plan import StartRequest
from penstock.start.prepare import prepare
from penstock.wire.ports import BatchRunner, Fleet

logger = logging.getLogger(__name__)


class Run:
    """A job that this process holds and runs: made, then `prepare`d, then `open`ed.

    Each step puts what it takes on a stack, which gives it back in the reverse order, also if a later step fails. An
    error that ends the stack is shown as the failure of the run, before the lease is given back.
    """

    def __init__(
        self, config: JobConfig, stop: StopRequest, undo: ExitStack, stops: type[Exception] | tuple[()] = ()
    ) -> None:
        """Open the job root, and take the lease. Raises as `Tenure.begin`.

        `stops`: the error of a run that somebody stopped: it is no failure.
        """
        self.config = config
        self.stop = stop
        self.board = ProgressBoard()
        self.paths = JobPaths(config.job.name, config.job.id)
        self._undo = undo
        self.objects = open_job_root(config.job)
        undo.callback(self.objects.close)
        self.log = CheckpointLog(self.objects, self.paths)
        check_root(self.objects, self.paths, config.job.root)
        tenure = Tenure.begin(self.objects, self.paths, self.log, config.job.lease_ms, named=config.run_id)
        undo.callback(_leave, tenure)
        check_whole(self.objects, self.paths)
        self.run_id = tenure.run_id
        self._keeper = tenure.keeper
        self.token = tenure.keeper.lease.state.token
        """The lease's, by which somebody asks this run to stop."""
        # From here on: a start that is refused later says so as well, and takes the place of an older failure.
        on_host = WordsOnHost(logs_folder(config), self.token)
        with suppress(OSError):  # nothing depends on it
            on_host.reserve()
        undo.callback(on_host.release)
        board, lease = failure_board(self.objects, self.paths), tenure.keeper.lease
        self.words = LastWords(board, lease, self._claimed, stops=stops, on_host=on_host.write)
        undo.push(self.words)

    def _claimed(self) -> int:
        """The epoch of the log's last claim; 0 in an empty log."""
        owner = self.log.known().owner
        return 0 if owner is None else owner.epoch

    def prepare(self, graph: ApplicationGraph, streams: JobStreams, request: StartRequest) -> ClaimedJob:
        """See `prepare`."""
        job = prepare(graph, self.config, self.objects, streams, self.log, request)
        self._undo.callback(job.admins.close)
        self.job = job
        return job

    def open(
        self,
        fleet: Fleet,
        runner: BatchRunner,
        tools: Mapping[str, Any],
        feed: Feed | None = None,
        check_next: Callable[[], object] | None = None,
    ) -> RunLoop:
        """Make the run's loop. Containers and batches are the run's from here on: they end with it. `tools`: see
        `RunContext.tools`."""
        context = RunContext(self.job, self._keeper, fleet, runner, self.stop, self.board, check_next, tools)
        loop = RunLoop(RunParts(context, feed))
        shown = [each for part in loop.parts.wings for each in part.shown()]
        exports = MetricsExports(
            self.job, self.run_id, self.board, self._keeper.lease.may_start_batch, self.token, shown
        )
        self.prometheus_port = exports.prometheus_port
        self._undo.callback(exports.close)  # after the last metrics have come
        for close in (fleet.close, loop.close, runner.close):
            self._undo.callback(close)
        return loop

    def obey(self, stop: Callable[[], None]) -> None:
        """From now on, call `stop` once somebody asks for the end of the run."""
        requests = StopRequests(self.objects, self.paths)
        self._undo.callback(StopRequestWatch(requests, self.token, stop).close)


def show_refusal(config: JobConfig, refusal: PenstockError) -> None:
    """Show why a start was refused before it took the lease, unless the job runs, or was never started. No error of
    this hides the refusal."""
    with suppress(PenstockError), ExitStack() as undo:
        objects = undo.enter_context(closing(open_job_root(config.job)))
        objects.get(JobPaths(config.job.name, config.job.id).lease)
        Run(config, StopRequest(), undo)
        raise refusal


def _leave(tenure: Tenure) -> None:
    """Give the lease back. A failure is logged."""
    try:
        tenure.leave()
    except PenstockError as error:
        logger.warning("the lease was not released; it expires by itself: %s", error)
