"""The BatchTask that runs a StatefulProcessor.

A processor runs in a container and in no task of Spark. So its `TaskContext.get()` is answered here.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import StructType

from penstock.api.time.firing import END_OF_TIME
from penstock.base.application_code import not_started
from penstock.errors import PenstockError
from penstock.graph.specs.code import BatchInfo, BatchTask, BatchTaskContext, Emit, KeyedValue, KeyFailed
from penstock.spark.processor.declared import DeclaredVariables, TimeMode
from penstock.spark.processor.fields import INITIAL, KeyCodec, RowGroups, rows_of
from penstock.spark.processor.handle import RunningHandle, TaskState
from penstock.spark.processor.rows import (
    Block,
    FrameOutput,
    KeyedRows,
    KeyFrames,
    RowOutput,
    as_rows,
    check_pandas,
    key_values,
    row_class,
)

_here = threading.local()
_lock = threading.Lock()
_running = 0
"""Threads that process keys. PySpark has one context for a process, and a container runs several tasks at once."""


class ProcessorContext(TaskContext):
    """A context that knows the partition of the keys that the calling thread processes, and nothing of Spark."""

    def __new__(cls) -> ProcessorContext:
        return object.__new__(cls)

    def partitionId(self) -> int:
        partition: int | None = getattr(_here, "partition", None)
        if partition is None:
            raise PenstockError("TaskContext.get().partitionId() is known only in the thread that calls the processor")
        return partition


def _unknown(name: str) -> Any:
    def unknown(*_: object) -> NoReturn:
        raise PenstockError(
            f"TaskContext.get().{name}() has no answer in a processor: it runs in a container of Penstock, and in no "
            "task of Spark. Only partitionId() is known there"
        )

    return unknown


for _name in ("stageId", "attemptNumber", "taskAttemptId", "getLocalProperty", "cpus", "cpuAmount", "resources"):
    setattr(ProcessorContext, _name, _unknown(_name))


@contextmanager
def task_context(partition: int) -> Iterator[None]:
    """Make `TaskContext.get()` return a context of this partition while the block runs, in this thread."""
    global _running
    _here.partition = partition
    with _lock:
        _running += 1
        if _running == 1:
            TaskContext._setTaskContext(ProcessorContext())  # noqa: SLF001
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                TaskContext._setTaskContext(None)  # noqa: SLF001
        del _here.partition


Form: TypeAlias = Literal["row", "pandas", "columns"]


@dataclass(frozen=True, slots=True)
class ProcessorSpec:
    """A processor and its arguments. Plain data, which is sent to the containers."""

    operator: str
    processor: bytes
    """Pickled: each batch has a new one, as in PySpark."""
    declared: DeclaredVariables
    key: StructType
    input: pa.Schema
    output: StructType
    mode: TimeMode = "none"
    form: Form = "row"
    event_time: str | None = None
    """The column with the event time by which rows are late; None: no row is late."""
    initial: pa.Schema | None = None
    timezone: str = "UTC"
    """The session's, which the schemas of chunks have as well: processors get times in this zone."""
    checks_casts: bool = False
    """True if a value of a DataFrame that changes on its way into a column is an error."""
    makes_decimals: bool = False
    """True if integers of a DataFrame become decimals where the output has decimals."""


class ProcessorTask(BatchTask):
    """Calls a processor as PySpark does: `init`, the rows of each key, the timers that have expired, `close`."""

    def __init__(self, spec: ProcessorSpec) -> None:
        self._spec = spec
        self._keys = KeyCodec(spec.key)

    def init(self, context: BatchTaskContext) -> None:
        spec = self._spec
        if spec.form == "pandas":
            check_pandas()
        self._context = context
        self._state = TaskState(context, spec.operator, spec.mode, spec.declared)

    def process(self, messages: Sequence[KeyedValue], batch: BatchInfo, emit: Emit) -> None:
        until = self._expires_until(batch)
        timers = self._state.timers
        oldest = None if timers is None else timers.oldest()
        if not messages and (oldest is None or until is None or oldest > until):
            return
        with task_context(self._context.task):
            run = _Run(self._spec, self._state, self._context, batch, emit)
            with run.calls("init"):
                run.begin()
            self._process_rows(run, [value for _, value in messages], batch)
            if timers is not None and until is not None:
                run.expire(timers, until, self._keys)
                if batch.control != "none":
                    run.expire(timers, until, self._keys)  # those that were set meanwhile; what these set is dropped
            run.output.flush()
            self._state.current.key = None
            with run.calls("close"):
                run.processor.close()

    def _process_rows(self, run: _Run, chunks: Sequence[bytes], batch: BatchInfo) -> None:
        spec = self._spec
        initial = [data[len(INITIAL) :] for data in chunks if data.startswith(INITIAL)]
        usual = [data for data in chunks if not data.startswith(INITIAL)] if initial else chunks
        rows = None
        if usual:
            found = rows_of(usual, spec.input)
            if spec.mode == "eventtime" and spec.event_time is not None:
                kept = not_late(found, spec.event_time, batch.late_watermark or 0)
                self._context.late.inc(found.num_rows - kept.num_rows)
                found = kept
            rows = self._by_key(grouped(found, self._keys))
        before = None
        if initial and spec.initial is not None:
            before = self._by_key(grouped(rows_of(initial, spec.initial), self._keys))
        if before is None:
            if rows is not None:
                run.handle(rows.blocks())
        else:
            run.handle_initial(before, rows)

    def _by_key(self, groups: RowGroups) -> KeyedRows:
        if self._spec.form == "pandas":
            return KeyedRows(
                groups, self._keys.names, lambda rows, ends: KeyFrames(rows, ends, self._spec.timezone), key_values
            )
        made = row_class(tuple(groups.rows.schema.names))
        return KeyedRows(groups, self._keys.names, lambda rows, _: as_rows(rows, made))

    def _expires_until(self, batch: BatchInfo) -> int | None:
        """The time up to which timers expire in the batch; the first watermark is 0, as in Spark. In a drain all
        expire."""
        if self._spec.mode != "none" and batch.control != "none":
            return END_OF_TIME
        if self._spec.mode == "processingtime":
            return batch.time_ms
        return (batch.firing_watermark or 0) if self._spec.mode == "eventtime" else None


class _Run:
    """One batch of a processor."""

    def __init__(
        self, spec: ProcessorSpec, state: TaskState, context: BatchTaskContext, batch: BatchInfo, emit: Emit
    ) -> None:
        self._state, self._context = state, context
        self._times = TimerValues(*_times(spec.mode, batch))
        self.processor: StatefulProcessor = pickle.loads(spec.processor)  # noqa: S301 - the application's own
        self.output: RowOutput | FrameOutput
        if spec.form == "pandas":
            casts = {"safecheck": spec.checks_casts, "int_to_decimal_coercion_enabled": spec.makes_decimals}
            self.output = FrameOutput(spec.output, emit, spec.timezone, casts)
        else:
            self.output = RowOutput(spec.output, emit)
        state.now_ms = batch.time_ms

    def begin(self) -> None:
        self._state.current.key = None
        handle = RunningHandle(self._state)
        self.processor.init(handle)
        handle.close_init()

    def handle(self, blocks: Iterable[Block]) -> None:
        current, times = self._state.current, self._times
        handle, add = self.processor.handleInputRows, self.output.add
        for block in blocks:
            rows, key = block.rows, None
            try:
                for encoded, key, start, end in self._context.watched(block.each()):
                    current.key = encoded
                    add(key, "handleInputRows", handle(key, iter(rows[start:end]), times))
            except KeyFailed:
                raise
            except Exception as error:
                raise KeyFailed(key, "handleInputRows") from error

    def handle_initial(self, before: KeyedRows, found: KeyedRows | None) -> None:
        """Call `handleInitialState` for each row of initial state, then `handleInputRows` for the rows of the key; then
        the latter for those of all other keys."""
        handle: Callable[..., object] = self.processor.handleInitialState
        places = {} if found is None else {encoded: number for number, encoded in enumerate(found.encoded)}
        for block in before.blocks():
            for encoded, key, start, end in block.each():
                self._state.current.key = encoded
                with self.calls("handleInitialState", key):
                    for row in block.rows[start:end]:
                        not_started("`handleInitialState`", handle(key, row, self._times))
                place = places.pop(encoded, None)
                if place is not None and found is not None:
                    self.handle(found.blocks(place, place + 1))
        if found is not None:
            for first, end in _runs(list(places.values())):
                self.handle(found.blocks(first, end))

    def expire(self, timers: Any, until: int, codec: KeyCodec) -> None:
        current, output = self._state.current, self.output
        for encoded, time_ms in self._context.watched(list(timers.expired(until))):
            key = codec.decode(encoded)
            current.key = encoded
            with self.calls("handleExpiredTimer", key):
                result: Iterable[Any] = self.processor.handleExpiredTimer(
                    key=key, timerValues=self._times, expiredTimerInfo=ExpiredTimerInfo(time_ms)
                )
                output.add(key, "handleExpiredTimer", result)
            timers.delete(encoded, time_ms)

    @contextmanager
    def calls(self, what: str, key: Any = None) -> Iterator[None]:
        try:
            yield
        except KeyFailed:
            raise
        except Exception as error:
            raise KeyFailed(key, what) from error


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as ranges."""
    first = 0
    for number in range(1, len(places) + 1):
        if number == len(places) or places[number] != places[number - 1] + 1:
            yield places[first], places[number - 1] + 1
            first = number


def _times(mode: TimeMode, batch: BatchInfo) -> tuple[int, int]:
    """The batch time and the watermark, as PySpark gives them. In a drain, the watermark is that of the batch before:
    processors compute times with it."""
    if mode == "none":
        return -1, -1
    return batch.time_ms, (batch.firing_watermark if batch.control == "none" else batch.late_watermark) or 0


def grouped(rows: pa.RecordBatch, codec: KeyCodec) -> RowGroups:
    if rows.num_rows == 0:
        return RowGroups(rows, [], [])
    found = codec.encode_columns(rows).dictionary_encode()
    numbers = found.indices.to_numpy(zero_copy_only=False)
    if (numbers[1:] < numbers[:-1]).any():
        rows = rows.take(pa.array(np.argsort(numbers, kind="stable")))
    ends = np.cumsum(np.bincount(numbers, minlength=len(found.dictionary)))
    return RowGroups(rows, found.dictionary.to_pylist(), ends.tolist())


def not_late(rows: pa.RecordBatch, column: str, watermark_ms: int) -> pa.RecordBatch:
    """The rows whose event time is above the watermark. A row without event time is never late, as in Spark."""
    times: Any = rows.column(rows.schema.get_field_index(column))
    if pa.types.is_struct(times.type):
        times = pc.struct_field(times, "end")
    zone = times.type.tz
    micros = times.cast(pa.timestamp("us", zone)).cast(pa.int64())
    return rows.filter(pc.greater(micros, watermark_ms * 1000).fill_null(True))
