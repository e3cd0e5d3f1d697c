"""A job inside a streaming query: opened by the query's first batch, and driven by its calls.

The job has the event-time watermark that the query has in Spark.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.api.ssp import SystemStream
from penstock.batch.batch import OfferedBatch
from penstock.batch.watermarks import GivenWatermark
from penstock.config.model import JobConfig
from penstock.driver.feed.event_time import EventTime
from penstock.driver.feed.offered import OfferedFeed, next_batch
from penstock.driver.part import StopRequest
from penstock.driver.run import Run
from penstock.driver.show.work import StateOperatorProgress
from penstock.errors import CorruptError, IncompatibleError, PenstockError
from penstock.outbox.driver import OutboxDriver
from penstock.spark.job import open_on_spark
from penstock.spark.query.batch import (
    DrainedQuery,
    OfferedRows,
    QueryBatch,
    QueryJobs,
    QueryRunner,
    QueryStoppedError,
    QueryStopWatch,
)
from penstock.spark.query.checkpoint_location import OffsetLog
from penstock.spark.query.plan import Binding, QueryBatchRequest, QueryPlan, bind
from penstock.spark.query.rows import OutputRows
from penstock.spark.versions import arrow_schema
from penstock.start.job_streams import JobStreams
from penstock.start.part import complete
from penstock.start.plan import StartRequest
from penstock.system.contract.definition import QUERY_SYSTEM
from penstock.system.spark import QuerySystem

_STATEFUL = "org.apache.spark.sql.execution.streaming.operators.stateful"


class SparkWatermark:
    """The watermark that a stateful operator of Spark would have at the end of a query's plan. It is asked for while
    Spark calls `foreachBatch`.

    Spark collects the event times at each `withWatermark` of the plan, whatever becomes of the rows behind it. After
    each batch it takes the lowest of these watermarks, or the highest (`spark.sql.streaming.multipleWatermarkPolicy`).
    It logs this watermark with the offsets of the next batch. Stateful operators in the plan may hold it back for what
    comes behind them.
    """

    def __init__(self, spark: SparkSession, query: str) -> None:
        running: Any = spark.streams.get(query)
        if running is None:
            raise PenstockError(f"the query {query} has ended")
        self._execution: Any = running._jsq.streamingQuery()  # noqa: SLF001
        jvm: Any = spark._jvm  # noqa: SLF001
        self._source = jvm.java.lang.Class.forName(f"{_STATEFUL}.EventTimeWatermarkExec")
        self._stateful = jvm.java.lang.Class.forName(f"{_STATEFUL}.StateStoreWriter")

    def of_batch(self) -> GivenWatermark:
        """As of the batch that Spark hands over."""
        last = self._execution.lastExecution()
        before = last.prevOffsetSeqMetadata()
        late = before.get().batchWatermarkMs() if before.isDefined() else 0
        plan, firing = last.executedPlan(), last.offsetSeqMetadata().batchWatermarkMs()
        return GivenWatermark(self._behind(plan, late), self._behind(plan, firing))

    def of_next(self) -> GivenWatermark:
        """As of the next batch. All rows of this batch have been read: Spark knows no other event times."""
        last = self._execution.lastExecution()
        plan, tracker = last.executedPlan(), self._execution.watermarkTracker()
        tracker.updateWatermark(plan)  # Spark does this once more when the handler has returned: only maxima count
        late = last.offsetSeqMetadata().batchWatermarkMs()
        return GivenWatermark(self._behind(plan, late), self._behind(plan, tracker.currentWatermark()))

    def _behind(self, plan: Any, watermark: int) -> int:
        found = self._output(plan, watermark)
        return max(0, watermark if found is None else found)  # an adaptive plan shows no operators, and has no state

    def _output(self, node: Any, watermark: int) -> int | None:
        """The watermark behind an operator; None: there is no `withWatermark` before it."""
        if self._source.isInstance(node):
            return watermark
        children = node.children()
        above = [self._output(children.apply(number), watermark) for number in range(children.size())]
        lowest = min((each for each in above if each is not None), default=None)
        if lowest is None or not self._stateful.isInstance(node):
            return lowest
        made = node.produceOutputWatermark(lowest)
        if not made.isDefined():
            raise IncompatibleError(
                f"rows have no watermark behind Spark's operator {node.nodeName()}, which comes before the processor: "
                "use another time mode, or begin a second query behind that operator"
            )
        found: int = made.get()
        return found


logger = logging.getLogger(__name__)


def read_again(frames: Mapping[str, DataFrame]) -> None:
    """Let Spark read the rows of a batch that is in the state already, and ignore them. Spark may have lost the
    event times in them, and the state of its own operators in the plan."""
    for frame in frames.values():
        frame._jdf.queryExecution().toRdd().count()  # noqa: SLF001


class QueryJob:
    """A job whose batches are those of a query. Used by one thread at a time."""

    def __init__(self, plan: QueryPlan, config: JobConfig, first: QueryBatch, wake: Callable[[], None]) -> None:
        """Take the job over and open its containers.

        Args:
            plan: the job.
            config: its configuration, from the plan.
            first: the batch that the query begins with.
            wake: called when `next_due_ms` may have become earlier, from any thread.

        Raises:
            IncompatibleError: the state belongs to another query, or is of another batch.
            LeaseHeldError: the job runs somewhere else.
            QueryStoppedError: the query was stopped meanwhile.
        """
        self._plan = plan
        self._wake = wake
        self._drained: DrainedQuery | None = None
        self._failed: BaseException | None = None
        stop = StopRequest()
        self._watch = QueryStopWatch(stop)
        with ExitStack() as undo:
            undo.callback(self._watch.close)
            with self._watch.over(first.number, first.is_active):
                self._run = Run(config, stop, undo, stops=QueryStoppedError)
                self._offsets = OffsetLog.of(first.spark, first.query)
                bound = self._bind(first)
                at_once = first.spark.sparkContext.defaultParallelism
                tasks = bound.tasks or plan.partitions or max(at_once, len(plan.inputs))
                graph = complete(plan.graph, config)
                streams = JobStreams.open(graph, config, {QUERY_SYSTEM: QuerySystem(first.query, tasks, first.number)})
                undo.callback(streams.close)
                request = StartRequest(self._run.run_id, None if bound.record is None else str(bound.record.id))
                self._job = self._run.prepare(graph, streams, request)
                self._open(first)
            self._undo = undo.pop_all()

    def _bind(self, first: QueryBatch) -> Binding:
        """Find the state that the query continues, and log it if it is not the newest one."""
        number, plan = first.number, self._plan
        before = self._offsets.plan(number - 1) if number else ""
        asked = QueryBatchRequest(first.query, number, self._offsets.plan(number), before)
        try:
            view = self._run.log.read("raise" if plan.from_checkpoint is None else "report")
        except CorruptError as error:
            raise CorruptError(
                f'{error}. Inside a query `from_checkpoint="matching"` does, with the checkpoint location of that time'
            ) from error
        paths, root = self._run.paths, self._run.config.job.root
        chosen, begins_here = plan.from_checkpoint, plan.begins_here
        bound = bind(view, paths.root, root, asked, plan.partitions, chosen, begins_here=begins_here)
        if bound.record is not None:
            logger.warning(
                "the query asks for batch %d: the job goes back to checkpoint %s, which is of the batch before. Later "
                "batches run again, and send again what they sent to exactly-once outputs of other systems",
                number,
                bound.record.id,
            )
        return bound

    def _open(self, first: QueryBatch) -> None:
        job, run, context = self._job, self._run, first.spark.sparkContext
        self._jobs = QueryJobs(context, f"penstock-{job.paths.root}-{run.run_id}", self._watch.look)
        graph = job.topology.graph
        self._feed = OfferedFeed(graph, EventTime.of(graph, job.config), job.clock)
        self._watermark = SparkWatermark(first.spark, first.query) if self._feed.needs_watermark else None
        runner_of = partial(QueryRunner, jobs=self._jobs)
        self._loop, self._runner = open_on_spark(run, context, runner_of, self._feed)
        self._debts = self._loop.parts.of(OutboxDriver).debts
        self._feed.report_to(self._debts)
        self._watch.cancel = self._runner.cancel
        self._loop.start()
        for part in self._loop.parts.wings:
            part.watch(self._wake)
        run.obey(first.stop)

    @property
    def tasks(self) -> int:
        return self._job.settings.tasks

    @property
    def state_operators(self) -> tuple[StateOperatorProgress, ...]:
        """The changes that the last processed batch made to the state; empty before that."""
        return () if self._run.board.last is None else self._run.board.last.state_operators

    def run(self, batch: QueryBatch, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """Process a batch once, however often it is asked for, and commit it. Returns its outputs, by name.

        Args:
            batch: the present one of the query.
            frames: the inputs, by name.

        Raises:
            QueryStoppedError: the query was stopped meanwhile.
            PenstockError: the batch failed; nothing of it counts.
        """
        if self._failed is not None:
            raise PenstockError(f"the job has failed before: {self._failed}") from self._failed
        if self._drained is not None:
            self._drained.await_end(batch)
        reached = next_batch(self._loop.boundary) - 1
        if batch.number not in (reached, reached + 1):
            raise PenstockError(f"the query asks for batch {batch.number} after batch {reached}: start it again")
        try:
            with self._watch.over(batch.number, batch.is_active):
                if batch.number == reached + 1:
                    self._process(batch, frames)
                else:
                    self._check_schema()
                    read_again(frames)
                return self._taken(batch)
        except BaseException as error:
            self._failed = error
            raise

    def _process(self, batch: QueryBatch, frames: Mapping[str, DataFrame]) -> None:
        loop, is_first = self._loop, self._loop.boundary.batch == 0
        ordered = [each.of(frames[each.name], is_first=is_first) for each in self._plan.inputs]
        readers = tuple(each.reader for each in self._plan.inputs)
        rows = OfferedRows.of(batch.spark.sparkContext, ordered, readers, self.tasks)
        watermark = None if self._watermark is None else self._watermark.of_batch()
        self._feed.offer(batch.number, OfferedBatch(self._offsets.plan(batch.number), schema=self._schema), watermark)
        try:
            # A lost container leads back to this batch, unless its record is written.
            while self._drained is None and (next_batch(loop.boundary) == batch.number or loop.drains):
                is_read = next_batch(loop.boundary) != batch.number
                self._runner.offer(rows.none(batch.spark.sparkContext) if is_read else rows)
                if loop.step():
                    raise PenstockError(f"the run ended before batch {batch.number} did; nothing of it counts")
                if loop.boundary.closed:
                    self._drained = DrainedQuery(batch, self._offsets) if loop.try_finish() else None
                elif next_batch(loop.boundary) != batch.number and not loop.drains:
                    loop.try_commit()
            if self._watch.seen:
                raise QueryStoppedError(batch.number)
        finally:
            self._jobs.leave()
            self._runner.offer(None)

    def next_due_ms(self) -> int | None:
        """The time at which a batch is due without new rows, in epoch milliseconds: 0 is at once, None never."""
        if self._drained is not None:
            return None
        if any(part.wants_step for part in self._loop.parts.wings):
            return 0
        watermark = None if self._watermark is None else self._watermark.of_next()
        return self._feed.next_due_ms(self._loop.boundary, watermark)

    @property
    def _schema(self) -> str:
        """Distinguishes the columns of the outputs from others."""
        columns = sorted((each.name, each.schema.json()) for each in self._plan.outputs)
        return hashlib.sha256(repr(columns).encode()).hexdigest()

    def _check_schema(self) -> None:
        """Raise IncompatibleError if another program has made the output of the last batch, with other columns."""
        last = self._loop.boundary.offered
        if last is not None and last.schema not in ("", self._schema):
            raise IncompatibleError(
                "the outputs of this program have other columns than when the last batch was processed, and the "
                "handler of the query is still to get its rows. Nothing was changed. Start the query once as it was "
                "before, until the handler has them"
            )

    def _taken(self, batch: QueryBatch) -> dict[str, DataFrame]:
        owed = self._debts.now()
        objects = [each for own in owed.unpublished for each in own.objects]
        frames, place = {}, self._run.config.job
        for output in self._plan.outputs:
            stream = SystemStream(QUERY_SYSTEM, output.name)
            schema = arrow_schema(output.schema)
            rows = OutputRows(place.root, place.root_keys, batch.number, stream, schema, output.writer)
            frames[output.name] = rows.frame(batch.spark, objects, output.schema, self._run.objects)
        return frames

    def close(self) -> None:
        """Give the job back. The state is as of the last committed batch."""
        with self._undo:
            if self._failed is not None:
                self._run.words.say(self._failed)
            elif self._drained is None:
                self._loop.finish()
