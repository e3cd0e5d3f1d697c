"""Shows every batch that ended on the progress board.

Messages that the application has not processed are reported in the log: lost ones, and dead letters.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import END_OF_TIME, NO_WATERMARK
from penstock.base.wording import counted, utc_text
from penstock.batch.batch import Loss, Lost, TaskSsp
from penstock.batch.portions import PortionRead
from penstock.batch.watermarks import TimeFlow, slowest_partitions
from penstock.driver.commit.schedule import CommitSchedule
from penstock.driver.epochs import GoodRun
from penstock.driver.feed.boundary import BatchTime, Boundary
from penstock.driver.feed.feed import Feed, PlannedBatch
from penstock.driver.part import RunContext
from penstock.driver.show.metrics import JobMetrics
from penstock.driver.show.progress import (
    BatchTimer,
    JobProgress,
    SinkProgress,
    SourceProgress,
    SourceTime,
    now_text,
    source_progress,
)
from penstock.driver.show.work import StateProgress
from penstock.errors import FailedMessage

logger = logging.getLogger(__name__)
_EVERY_S = 60.0


class LossReport:
    """Logs each lost message once, whatever a rewind repeats, and counts it. Used by the run loop's thread."""

    def __init__(self, metrics: JobMetrics, is_dense: Callable[[SystemStream], bool]) -> None:
        """`is_dense`: True if the offsets of a stream have no gaps."""
        self._metrics = metrics
        self._is_dense = is_dense
        self._told: dict[SystemStreamPartition, int] = {}
        """Partition → the end of its last loss that was logged."""

    def begin(self, lost: Lost) -> None:
        """Begin an epoch whose state lacks `lost`."""
        self._metrics.lost(lost)

    def skipped(self, losses: Iterable[Loss], lost: Lost) -> None:
        """Report losses that the run skips; `lost` is the total that its state lacks."""
        self._metrics.lost(lost)
        for loss in losses:
            if loss.end <= self._told.get(loss.ssp, 0):
                continue
            self._told[loss.ssp] = loss.end
            dense = self._is_dense(loss.ssp.system_stream)
            logger.error(
                "%s: deleted before the job had read this, and skipped (on.data.loss=skip). The job continues at "
                "offset %d, and its state lacks %s%s of this partition",
                loss,
                loss.end,
                "" if dense else "at most ",
                counted(lost[loss.ssp], "message"),
            )


class DeadLetterLog:
    """Logs the first dead letter of a run with its place and cause, then at most once a minute how many followed."""

    def __init__(self, stream: SystemStream | None, named: Callable[[FailedMessage], FailedMessage]) -> None:
        """`named` adds the name of a failure's message. It may take time, and is called for what is logged alone."""
        self._stream = stream
        self._named = named
        self.total = 0
        self._unsaid = 0
        self._last: FailedMessage | None = None
        self._said_s = 0.0

    def count(self, letters: int, one: FailedMessage | None, now_s: float) -> None:
        """Count the dead letters of a batch, of which `one` is an example. Called after each batch, with monotonic
        `now_s`."""
        is_first = self.total == 0
        self.total += letters
        self._unsaid += letters
        self._last = one or self._last
        if self._unsaid and (is_first or now_s - self._said_s >= _EVERY_S):
            self._said_s = now_s
            self.say(is_first=is_first)

    def say(self, *, is_first: bool = False) -> None:
        """Log the dead letters that were not logged yet."""
        if self._unsaid and self._last is not None:
            count = counted(self._unsaid, "message" if is_first else "more message")
            others = "" if is_first else f", {self.total:,} in this run; one of them"
            logger.warning(
                "%s went to the dead-letter stream `%s`%s: %s, in %s",
                count,
                self._stream,
                others,
                self._last.reason,
                self._named(self._last).place,
            )
        self._unsaid = 0


LIKE_SECONDS = range(100_000_000, 100_000_000_000)
"""Times that are in the first years after 1970 as milliseconds, and later than 1973 as seconds."""
YEAR_2000_MS = 946_684_800_000


class ProgressReporter:
    """Makes a `JobProgress` of each batch."""

    def __init__(self, run: RunContext, feed: Feed, commits: CommitSchedule) -> None:
        job, board = run.job, run.board
        self._job = job
        self._feed = feed
        self._fleet = run.fleet
        self._runner = run.runner
        self._commits = commits
        self._board = board
        self._flow = TimeFlow.of(job.topology.graph) if job.topology.graph.uses_time else None
        self._warned: set[SystemStreamPartition | SystemStream] = set()
        self._total_rows = 0
        graph, tasks = job.topology.graph, job.settings.tasks
        self._state = StateProgress(graph, tasks, lambda: board.metrics.containers(), job.clock)
        self._outputs = ", ".join(str(output.stream) for output in graph.outputs)
        self._began: float | None = None
        """The start of the batch before, on the run's monotonic clock."""
        self._dead_letters = DeadLetterLog(job.config.task.dead_letter_stream, job.streams.named)

    def ended(self, planned: PlannedBatch, good: GoodRun, before: Boundary, after: Boundary, watch: BatchTimer) -> None:
        """Show a batch that has ended, and a commit that has begun if one was due."""
        outcome = good.outcome
        inputs = {at: read for at, read in outcome.inputs.items() if at in before.positions}
        highest = _highest_times(inputs)
        for at, read in outcome.inputs.items():
            if read.foreign:
                self._warn_of_foreign(at.ssp, read.foreign)
        for at, read in inputs.items():
            if read.ahead:
                self._warn_of(at.ssp, read.ahead)
        self._dead_letters.count(outcome.dead_letters, outcome.dead_letter, self._job.clock.monotonic())
        for stream, time_ms in highest.items():
            self._warn_of_seconds(stream, time_ms, after.batch_time_ms)
        total_ms = watch.total_ms()
        times = {} if self._flow is None else _source_times(self._flow, planned.moment, after)
        since_s = None if self._began is None else max(good.began - self._began, 0.001)
        self._began = good.began
        sources = tuple(
            _with_rates(source, total_ms, since_s)
            for source in source_progress(
                before.positions, after.positions, planned.latest, _rows(inputs), times, self._job.streams.systems
            )
        )
        event_time = _event_time(highest, [source.watermark for source in times.values()])
        progress = self._progress(good, after, watch.parts, total_ms, since_s, sources, event_time)
        self._board.metrics.took(watch.parts, total_ms, self._runner.way)
        now = self._job.clock.monotonic()
        again = self._board.replay.ended(inputs, planned.latest, before.positions, after.positions, good.began, now)
        self._board.metrics.replayed(again)
        self._show(progress, planned, after)

    def _progress(
        self,
        good: GoodRun,
        after: Boundary,
        parts_ms: Mapping[str, int],
        total_ms: int,
        since_s: float | None,
        sources: tuple[SourceProgress, ...],
        event_time: Mapping[str, str],
    ) -> JobProgress:
        """`since_s`: the time since the batch before began."""
        messages = sum(source.num_input_rows for source in sources)
        self._total_rows += messages
        return JobProgress(
            id=self._job.uid,
            run_id=self._job.claim.run_id,
            name=self._job.paths.root,
            timestamp=now_text(),
            batch_id=after.batch,
            num_input_rows=messages,
            num_output_rows=good.outcome.messages_out,
            dead_letters=good.outcome.dead_letters,
            processed_rows_per_second=messages / max(total_ms, 1) * 1000,
            duration_ms={"triggerExecution": total_ms, **parts_ms},
            sources=sources,
            batch_duration=total_ms,
            input_rows_per_second=None if since_s is None else messages / since_s,
            event_time=event_time,
            state_operators=self._state.of_batch(good.reports),
            sink=SinkProgress(self._outputs, good.outcome.messages_out),
            total_input_rows=self._total_rows,
            total_dead_letters=self._dead_letters.total,
            last_checkpoint=self._board.last_checkpoint,
            container_bytes=self._fleet.resident_bytes(),
            commit_ms=self._commits.last_ms,
            way=self._runner.way,
        )

    def _show(self, progress: JobProgress, planned: PlannedBatch, after: Boundary) -> None:
        metrics = self._board.metrics
        marks = {source.description: source.watermark for source in progress.sources if source.watermark is not None}
        metrics.event_time(marks, after.batch_time_ms)
        metrics.lag({str(stream): between.left() for stream, between in after.intermediate.items()})
        self._board.note_ends(planned.latest)
        counted = all(source.lag_unit == "message" for source in progress.sources)
        self._board.update(last=progress, remaining=self._feed.remaining(after) if counted else None)

    def close(self) -> None:
        self._dead_letters.say()

    def _warn_of(self, ssp: SystemStreamPartition, ahead: int) -> None:
        if ssp not in self._warned:
            self._warned.add(ssp)
            logger.warning(
                "%s of `%s` had an event time that is further ahead of the clock than job.watermark.max.ahead.ms: such "
                "messages are processed, and do not move the watermark. The metric messages-too-far-ahead counts them. "
                "Are the times in microseconds? Event times are in milliseconds",
                counted(ahead, "message"),
                ssp,
            )

    def _warn_of_foreign(self, ssp: SystemStreamPartition, foreign: int) -> None:
        if ssp not in self._warned:
            self._warned.add(ssp)
            logger.warning(
                "`%s` has messages that Penstock has not written, %s in this batch: they are left out, and the metric "
                "messages-foreign counts them. Only this job should have the right to write to the stream: such a "
                "message may also look like one of the application's",
                ssp,
                counted(foreign, "message"),
            )

    def _warn_of_seconds(self, stream: SystemStream, highest_ms: int, batch_time_ms: int) -> None:
        if highest_ms in LIKE_SECONDS and batch_time_ms > YEAR_2000_MS and stream not in self._warned:
            self._warned.add(stream)
            logger.warning(
                "the highest event time that a batch read of `%s` is %d, which is %s: are the times in seconds instead "
                "of milliseconds? Event times are in milliseconds since 1970",
                stream,
                highest_ms,
                utc_text(highest_ms),
            )


def _rows(inputs: Mapping[TaskSsp, PortionRead]) -> Counter[SystemStream]:
    """The messages that were read of each input."""
    rows: Counter[SystemStream] = Counter()
    for at, read in inputs.items():
        rows[at.ssp.system_stream] += read.messages
    return rows


def _highest_times(inputs: Mapping[TaskSsp, PortionRead]) -> dict[SystemStream, int]:
    """The highest event time that was read of each input that has one."""
    highest: dict[SystemStream, int] = {}
    for at, read in inputs.items():
        if (time_ms := read.event_time_ms) is not None:
            stream = at.ssp.system_stream
            highest[stream] = max(time_ms, highest.get(stream, time_ms))
    return highest


def _with_rates(source: SourceProgress, total_ms: int, since_s: float | None) -> SourceProgress:
    return replace(
        source,
        input_rows_per_second=None if since_s is None else source.num_input_rows / since_s,
        processed_rows_per_second=source.num_input_rows / max(total_ms, 1) * 1000,
    )


def _event_time(highest_ms: Mapping[SystemStream, int], watermarks: Sequence[int | None]) -> dict[str, str]:
    found = {"max": utc_text(max(highest_ms.values()))} if highest_ms else {}
    known = [each for each in watermarks if each is not None]
    return {**found, "watermark": utc_text(min(known))} if known and len(known) == len(watermarks) else found


def _source_times(flow: TimeFlow, moment: BatchTime, after: Boundary) -> dict[SystemStream, SourceTime]:
    """Input → its event time after a batch. An input that has ended has none."""
    ended = after.ended_inputs
    slowest = slowest_partitions(flow, after.positions, after.event_times, idle=moment.idle, ended=ended)
    found = {}
    for op, source in flow.inputs.items():
        at = slowest.get(source.stream)
        now = NO_WATERMARK if at is None else source.watermark_of(after.event_times.get(at))
        reached = max(after.watermarks.get(op, NO_WATERMARK), now)
        known = reached if NO_WATERMARK < reached < END_OF_TIME else None
        found[source.stream] = SourceTime(known, None if at is None else str(at.ssp.partition))
    return found
