"""A BatchTask: it gets all messages of a batch at once, at the end of input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from penstock.api.time.timers import timers_store
from penstock.base.application_code import unused
from penstock.batch.batch import NO_WATERMARK, Batch, Due
from penstock.graph.batch_task import BatchInfo, BatchTask, Emit, KeyedValue, KeyFailed
from penstock.graph.specs import BatchTaskSpec
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.values import Counter
from penstock.runtime.context import OperatorFailedError, Position, failure_in
from penstock.runtime.messages.columns import MessageColumns, Target
from penstock.runtime.operators.base import Firing, KeyValue, Node, Operator, StageContext
from penstock.runtime.timers import oldest_timers


class BatchTaskOperator(Operator[BatchTaskSpec]):
    """Gathers the messages of a batch, and calls its task once in each batch."""

    @property
    def time_stores(self) -> tuple[str, ...]:
        timers = timers_store(self.spec.state_id)
        return (timers,) if timers in self.spec.stores else ()

    def next_due(self, store: KeyValue) -> Due:
        return oldest_timers(store)

    def build(self, stage: StageContext, downstream: Target) -> Node:
        try:
            task = self.spec.task()
            task.init(_BatchTaskContext(self.spec.id, stage))
        except BaseException as error:
            raise failure_in(self.spec.id, error) from error
        return _BatchTaskNode(self.spec.id, task, stage.position, downstream.push)


class _BatchTaskContext:
    def __init__(self, operator: str, stage: StageContext) -> None:
        self._stage = stage
        self._late = stage.metrics.new_counter(operator, "late-dropped")

    @property
    def task(self) -> int:
        return self._stage.task

    @property
    def config(self) -> Mapping[str, str]:
        return self._stage.config

    @property
    def metrics(self) -> MetricsRegistry:
        return self._stage.user_metrics

    @property
    def late(self) -> Counter:
        return self._late

    def store(self, name: str) -> KeyValue:
        return self._stage.stores[name]

    def watched(self, elements: Iterable[Any]) -> Iterator[Any]:
        position = self._stage.position
        # Other threads see progress by the number of elements left, which only the iterator of a list knows.
        found = position.elements = iter(list(elements))
        return found


class _BatchTaskNode(Node):
    def __init__(self, operator: str, task: BatchTask, position: Position, emit: Emit) -> None:
        super().__init__(self._add, position)
        self._operator, self._task, self._position, self._emit = operator, task, position, emit
        self._messages: list[KeyedValue] = []
        self._earliest = 0

    def _add(self, columns: MessageColumns) -> None:
        keys = columns.keys if columns.key_bytes is None else columns.key_bytes
        self._messages.extend(zip(keys, columns.values, strict=True))

    def begin(self, batch: Batch) -> None:
        self._messages = []
        self._earliest = batch.earliest_output(self._operator)

    def on_end_of_input(self, batch: Batch) -> Iterator[Firing]:
        late, firing = batch.late_watermark(self._operator), batch.firing_watermark(self._operator)
        info = BatchInfo(
            batch.number,
            batch.time_ms,
            None if late == NO_WATERMARK else late,
            None if firing == NO_WATERMARK else firing,
            batch.ending or "none",
        )
        # A failure ends the run: a batch as a whole is no dead letter.
        timestamp_ms = max(batch.time_ms, self._earliest)
        yield Firing(None, timestamp_ms, "batch", partial(self._run, info), "the batch", must_succeed=True)

    def _run(self, info: BatchInfo) -> None:
        messages, self._messages = self._messages, []
        try:
            result: object = self._task.process(messages, info, self._emit)
            if result is not None:
                raise unused("`process`", result)
        except KeyFailed as failed:
            cause = failed if failed.__cause__ is None else failed.__cause__
            failure = failure_in(self._operator, cause)
            raise OperatorFailedError(self._operator, failure.cause, failed.key, failed.what) from cause
        finally:
            self._position.elements = None

    def close(self) -> None:
        self._task.close()
