"""A job inside a streaming query: its start by Spark's own writer, its progress, and its end with the query.

Spark makes its events of progress from its own operators alone. Penstock's state is added to them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Self, TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StateOperatorProgress, StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.admin.state.store_uploads import first_record
from penstock.base.application_code import not_started
from penstock.config.model import JobConfig
from penstock.driver.program import RunningWork, stop_with_program
from penstock.driver.show.progress import camel
from penstock.driver.show.work import StateOperatorProgress as Found
from penstock.errors import ConfigError, IncompatibleError, PenstockError, UserCodeError
from penstock.job.lease import LeaseHeldError
from penstock.spark.heartbeat import AT_ONCE, Heartbeat, prepare_heartbeat
from penstock.spark.query.batch import QueryBatch, QueryStoppedError
from penstock.spark.query.checkpoint_location import OffsetLog
from penstock.spark.query.job import QueryJob
from penstock.spark.query.plan import QueryPlan
from penstock.spark.session.gateway import quiet_py4j
from penstock.spark.session.session import check_session, scratch_folder
from penstock.system.spark import queries_of

_KEPT = 1_000
"""Batches of all queries of the program. A listener hears of a batch shortly after its end."""
_lock = threading.Lock()
_batches: dict[tuple[str, int], Sequence[Found]] = {}


def note_state(query: str, batch: int, found: Sequence[Found]) -> None:
    """Remember a batch's changes to Penstock's state.

    Args:
        query: the query's id.
        batch: its number, as Spark counts.
    """
    with _lock:
        _batches[query, batch] = found
        while len(_batches) > _KEPT:
            del _batches[next(iter(_batches))]


def state_operators(progress: StreamingQueryProgress) -> list[StateOperatorProgress]:
    """The operators of a job inside a query, and a batch's changes to their state. Spark's own `stateOperators` do not
    have them.

    Args:
        progress: of a query of this program: `event.progress` of a listener, or an entry of `recentProgress`. Of the
            last 1,000 batches, those are known that this program processed.

    Returns:
        An empty list if nothing is known of the batch, or nothing in it has state. A number that is not known is None.

    Example:
        >>> class Dashboard(StreamingQueryListener):  # doctest: +SKIP
        ...     def onQueryProgress(self, event):
        ...         for operator in pss.state_operators(event.progress):
        ...             print(operator.operatorName, operator.numRowsUpdated)
    """
    with _lock:
        found = _batches.get((str(progress.id), progress.batchId), ())
    return [_as_spark(each) for each in found]


def with_state(progress: StreamingQueryProgress) -> StreamingQueryProgress:
    """Add Penstock's operators to Spark's progress of a batch, and to its text and JSON.

    Args:
        progress: as Spark made it. It is changed.
    """
    if not (own := state_operators(progress)):
        return progress
    document = json.loads(progress.json)
    document["stateOperators"] = [*document["stateOperators"], *own]
    progress["stateOperators"] = [*progress.stateOperators, *own]
    # Spark's text comes from these two: from its own object, if there is one, else from the document.
    progress._jprogress, progress._jdict = None, document  # noqa: SLF001
    return progress


def _as_spark(found: Found) -> StateOperatorProgress:
    values: dict[str, Any] = {camel(field.name): getattr(found, field.name) for field in fields(found)}
    values["customMetrics"] = dict(found.custom_metrics)
    return StateOperatorProgress.fromJson(values)  # has a text; one that is made of its fields has none


logger = logging.getLogger(__name__)

Frames: TypeAlias = Mapping[str, DataFrame]
_Call: TypeAlias = Callable[[DataStreamWriter], DataStreamWriter]
_QUERY_ID = "sql.streaming.queryId"
_CLOSE_SECONDS = 60


class RunningQuery:
    """The job of one query: opened by its first batch. Thread-safe."""

    def __init__(self, plan: QueryPlan, spark: SparkSession) -> None:
        self._plan, self._spark = plan, spark
        self.settings = plan.settings()
        self._lock = threading.Lock()
        self._job: QueryJob | None = None
        self._heartbeat: Heartbeat | None = None
        self._handles: int | None = None
        """The thread that is in the handler."""
        self.closed = threading.Event()

    def run(self, batch: int, frames: Frames) -> Frames:
        """The outputs of a batch. Called by Spark's `foreachBatch`."""
        query = self._spark.sparkContext.getLocalProperty(_QUERY_ID)
        if query is None:
            raise PenstockError("only `foreachBatch` of a streaming query can call this")
        asked = QueryBatch(self._spark, query, batch)
        with self._lock:
            if self.closed.is_set():
                raise PenstockError("the program is ending, and the query with it: no more batches begin")
            if self._job is None:
                _await_former(self)
                self._job = QueryJob(self._plan, self.settings, asked, self._wake)
            outputs = self._job.run(asked, frames)
            note_state(query, batch, self._job.state_operators)
            if self._heartbeat is not None:
                self._heartbeat.update(self._job.next_due_ms)
            return outputs

    def _wake(self) -> None:
        """Make a batch due, because the job was asked for something that needs one. Not by the query's thread."""
        if self._heartbeat is not None:
            self._heartbeat.set(AT_ONCE)

    def is_of(self, other: RunningQuery) -> bool:
        mine, others = self.settings.job, other.settings.job
        return (mine.root, mine.name, mine.id) == (others.root, others.name, others.id)

    def with_heartbeat(self, df: DataFrame) -> DataFrame:
        without_rows = self._spark.conf.get("spark.sql.streaming.noDataMicroBatches.enabled") == "true"
        self._heartbeat = Heartbeat(scratch_folder(self._spark.sparkContext), is_silent=not without_rows)
        return self._heartbeat.added_to(df)

    def handle(self, batch: int, frames: Frames, handler: Callable[[Frames, int], object]) -> None:
        """Process a batch and give its outputs to the handler. Called by Spark's `foreachBatch`."""
        stopped: QueryStoppedError | None = None
        try:
            outputs = self.run(batch, frames)
        except QueryStoppedError as error:
            stopped = error
        except (ConfigError, IncompatibleError, LeaseHeldError, UserCodeError) as error:
            # Spark's message is the whole traceback; to these errors, that of Penstock adds nothing.
            raise error.with_traceback(None) from None
        if stopped is not None:
            # Not while that is handled: Spark's search for the interrupt in a long text overflows its stack.
            _interrupt(self._spark)
            raise stopped
        self._handles = threading.get_ident()
        try:
            not_started("the handler of for_each_batch", handler(outputs, batch))
        finally:
            self._handles = None

    def close(self) -> None:
        """Give the job back, because the query has ended. Idempotent: a second call waits for the first one."""
        with self._lock:
            if self.closed.is_set():
                return
            try:
                if self._job is not None:
                    self._job.close()
            except Exception as error:
                logger.warning("the job of the query did not end cleanly; its state is as of the last batch: %s", error)
            finally:
                self._job = None
                if self._heartbeat is not None:
                    self._heartbeat.close()
                self.closed.set()

    def wait(self) -> None:
        """Wait until the job was given back, if its query has ended."""
        if threading.get_ident() != self._handles:  # a handler that stops its query is still to return
            self.closed.wait(_CLOSE_SECONDS)


def _interrupt(spark: SparkSession) -> None:
    """Raise the exception by which Spark knows that a stop has ended the batch, and no failure: the stop interrupts the
    query's thread, but what waited in it then may have answered that already."""
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
    lang = gateway.jvm.java.lang
    lang.Thread.currentThread().interrupt()
    try:
        lang.Thread.sleep(1)
    except Py4JJavaError as error:
        # The stack would be in the text, and Spark's search in a long text overflows its own stack.
        error.java_exception.setStackTrace(gateway.new_array(lang.StackTraceElement, 0))
        raise


class Query(StreamingQuery):
    """Spark's handle of the query. Where it waits for the query's end, it waits for the job's as well."""

    def __init__(self, query: StreamingQuery, running: RunningQuery) -> None:
        super().__init__(query._jsq)  # noqa: SLF001
        self._running = running

    def awaitTermination(  # noqa: N802 - Spark's name
        self, timeout: int | None = None
    ) -> bool | None:
        """See `StreamingQuery.awaitTermination`."""
        try:
            ended = super().awaitTermination(timeout)
        except Exception:  # the query's; a Ctrl-C says nothing about the query
            self._running.wait()
            raise
        if ended is not False:
            self._running.wait()
        return ended

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802 - Spark's name
        """See `StreamingQuery.lastProgress`. `stateOperators` has Penstock's as well."""
        found = super().lastProgress
        return None if found is None else with_state(found)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802 - Spark's name
        """See `StreamingQuery.recentProgress`. `stateOperators` has Penstock's as well."""
        return [with_state(each) for each in super().recentProgress]

    def stop(self) -> None:
        """See `StreamingQuery.stop`."""
        super().stop()
        self._running.wait()


class StreamWriter:
    """Starts the query. Its methods are those of Spark's DataStreamWriter; the sink is chosen already.

    Example:
        >>> writer.option("checkpointLocation", location).trigger(availableNow=True).start()  # doctest: +SKIP
    """

    def __init__(
        self,
        df: DataFrame,
        plan: QueryPlan,
        inputs: Callable[[DataFrame], Frames],
        handle: Callable[[Frames, int], object],
    ) -> None:
        """
        Args:
            inputs: the job's inputs, of a batch of `df`.
            handle: gets the job's outputs.
        """
        plan.settings()  # what is wrong in them is said here
        self._df, self._plan, self._inputs, self._handle = df, plan, inputs, handle
        use_this_python(df.sparkSession)
        self._calls: list[_Call] = []
        self._options: dict[str, Any] = {}
        self._name: str | None = None

    def option(self, key: str, value: Any) -> Self:
        """See `DataStreamWriter.option`; `checkpointLocation` is the one that every query needs."""
        return self.options(**{key: value})

    def options(self, **options: Any) -> Self:
        """See `DataStreamWriter.options`."""
        self._options |= {key.lower(): value for key, value in options.items()}
        return self._call(lambda writer: writer.options(**options))

    def queryName(self, queryName: str) -> Self:  # noqa: N802, N803 - Spark's names
        """See `DataStreamWriter.queryName`."""
        self._name = queryName
        return self._call(lambda writer: writer.queryName(queryName))

    def trigger(self, **trigger: Any) -> Self:
        """See `DataStreamWriter.trigger`; batches only."""
        if not trigger.keys() <= {"processingTime", "once", "availableNow"}:
            raise ConfigError(
                f"trigger({', '.join(trigger)}): foreachBatch needs batches. Use processingTime, once or availableNow"
            )
        return self._call(lambda writer: writer.trigger(**trigger))

    def start(self) -> StreamingQuery:
        """Start the query. Returns its handle, with which it is awaited and stopped as any other.

        Raises:
            ConfigError: no checkpoint location was given, or the session has a setting under which state could be lost
                or doubled.
            IncompatibleError: the checkpoint location has state that PySpark kept, and it was not said what becomes of
                it, or the state does not fit.
        """
        spark, df, location = self._df.sparkSession, self._df, self._location()
        running = RunningQuery(self._plan, spark)
        check_session(spark, running.settings.container)
        quiet_py4j()
        if self._plan.takeover is not None:
            self._plan.takeover.run(spark, location, running.settings, self._plan.partitions)

        def run(batch: DataFrame, number: int) -> None:
            running.handle(number, self._inputs(batch), self._handle)

        try:
            timed = self._plan.timed or running.settings.task.window_ms > 0
            log = OffsetLog(spark, location)
            if prepare_heartbeat(log, timed=timed, continues=lambda: self._continues(log, running.settings)):
                df = running.with_heartbeat(df)
            writer: DataStreamWriter = df.writeStream.foreachBatch(run)
            for call in self._calls:
                writer = call(writer)
            query = Query(writer.start(), running)
        except BaseException:
            running.close()
            raise
        _close_at_end(query, running)
        return query

    def _continues(self, log: OffsetLog, config: JobConfig) -> bool:
        latest = first_record(config, "report")
        return self._plan.begins_here if latest is None else queries_of(latest.identities) == {log.query()}

    def _call(self, call: _Call) -> Self:
        """Remember a call for the writer that `start` makes. An error in it is raised now."""
        call(self._df.writeStream)
        self._calls.append(call)
        return self

    def _location(self) -> str:
        """The checkpoint location. Raises ConfigError without one, since Spark would take a new one at each start."""
        chosen = self._options.get("checkpointlocation")
        if chosen is not None:
            return str(chosen)
        parent = self._df.sparkSession.conf.get("spark.sql.streaming.checkpointLocation", None)
        if parent is None or self._name is None:
            raise ConfigError(
                "the query has no checkpoint location: it would begin from nothing at each start, and the state in "
                f'{self._plan.root} belongs to one query. Give it one: .option("checkpointLocation", "<folder>")'
            )
        return f"{parent}/{self._name}"


def check_begin_at(begin_at: str | None) -> None:
    """Raise ConfigError unless `begin_at` is None or "here"."""
    if begin_at not in (None, "here"):
        raise ConfigError(f'begin_at="{begin_at}": it is "here", or not given')


def use_this_python(spark: SparkSession) -> None:
    """Let a local Spark's workers use this Python, unless the program chose one: another one may lack Penstock."""
    context: Any = spark.sparkContext
    chosen = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if not chosen and str(context.master).startswith("local"):
        context.pythonExec = sys.executable


_open: dict[RunningQuery, StreamingQuery] = {}


def _close_at_end(query: StreamingQuery, running: RunningQuery) -> None:
    def wait() -> None:
        try:
            StreamingQuery.awaitTermination(query)
        except Exception as error:  # the query's own error, which its handle raises
            logger.debug("the query ended with %s", error)
        finally:
            running.close()
            _open.pop(running, None)

    _open[running] = query
    threading.Thread(target=wait, name="penstock-query", daemon=True).start()
    name = f"the query of job {running.settings.job.name}"
    # A handler that does not return has the query wait: then the job is given back without it.
    stop_with_program(RunningWork(name, running.closed, partial(_stop, query), running.close))


def _await_former(following: RunningQuery) -> None:
    """Wait for a former query of the same job in this program, which may still be giving the job back: Spark's own
    handle, and a second start with the same checkpoint location, do not wait for that."""
    for running, query in list(_open.items()):
        if running is not following and running.is_of(following) and not query.isActive:
            running.wait()


def _stop(query: StreamingQuery) -> None:
    try:
        StreamingQuery.stop(query)
    except Exception as error:  # Spark has ended before
        logger.debug("the query was not stopped: %s", error)
