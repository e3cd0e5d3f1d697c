"""Operators that run tasks of the application.

process runs a StreamTask, with its timers. A BatchTask gets all messages of a batch at once, at the end of input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.api.messages import IncomingMessageEnvelope
from penstock.api.task import DrainListenerTask, OperatorTask, StreamTask, WindowableTask
from penstock.api.task_context import MessageCollector, TaskContext, TaskCoordinator
from penstock.api.time.firing import ExpiredTimer, deaf_to_timers, timers_store
from penstock.base.application_code import check_all, task_methods, unused
from penstock.batch.batch import NO_WATERMARK, Batch, Due, Ending
from penstock.graph.serdes import SerdePlace, process_place, timers_place
from penstock.graph.specs import BatchTaskSpec, OperatorSpec, ProcessSpec
from penstock.graph.specs.code import BatchInfo, BatchTask, Emit, KeyedValue, KeyFailed
from penstock.metrics.registry import Counter, MetricsRegistry
from penstock.runtime.context import OperatorFailedError, Position, failure_in
from penstock.runtime.messages.columns import Accept, MessageColumns, Push, Target
from penstock.runtime.operators import base
from penstock.runtime.operators.application_code import Collector, Context, envelope_calls
from penstock.runtime.operators.task_timers import Call, TaskTimer, TaskTimers, with_current_key
from penstock.runtime.timers import UpcomingTimers, key_in, oldest_timers


class Process(base.Operator[ProcessSpec]):
    """A task of the application with stores and timers, which emits messages and may send to outputs."""

    @property
    def time_stores(self) -> tuple[str, ...]:
        return () if self.spec.timers is None else (timers_store(self.spec.state_id),)

    def next_due(self, store: base.KeyValue) -> Due:
        return oldest_timers(store)

    def key_in(self, store: str) -> base.KeyInEntry | None:
        timers = self.spec.timers
        if timers is None or store != timers_store(self.spec.state_id):
            return None
        return base.KeyInEntry(timers, key_in, keyless_of_task=True)

    def place(self, name: str) -> SerdePlace:
        return process_place(name)

    def build(self, stage: base.StageContext, downstream: Target) -> base.Node:
        op_id = self.spec.id
        timers = self._timers(stage)
        context = Context(
            stage.job_name,
            stage.config,
            stage.task,
            {name: stage.stores[name] for name in self.spec.own_stores},
            op_id,
            stage.user_metrics,
            timers,
            stage.next_list_place,
        )
        try:
            task = self.spec.task()
            check_all(task_methods(_own(task)), f"operator `{op_id}`")
            if timers is not None and not _defines(task, "on_timer"):
                raise deaf_to_timers(op_id)
            _run("init", task.init, context)
        except BaseException as error:
            raise failure_in(op_id, error) from error
        drops = isinstance(_own(task), OperatorTask)
        collector = Collector(op_id, stage.position, downstream, stage.outputs, drops=drops)
        process: Call[IncomingMessageEnvelope] = task.process
        on_timer: Call[ExpiredTimer] = task.on_timer
        current = context.close_init()
        if current is not None:
            process, on_timer = with_current_key(process, current), with_current_key(on_timer, current)
        calls = envelope_calls(op_id, process, collector, stage.requests, stage.position, "`process`")
        return _ProcessNode(op_id, task, context, on_timer, collector, stage, timers, *calls)

    def _timers(self, stage: base.StageContext) -> TaskTimers | None:
        spec = self.spec
        if spec.timers is None:
            return None
        store = stage.stores[timers_store(spec.state_id)]
        return TaskTimers(spec.id, spec.timers, timers_place(spec.id), store, stage.metrics, spec.discards_timers)

    def watched(self, watch: base.CallWatch) -> OperatorSpec:
        return replace(self.spec, task=lambda: _WatchedTask(self.spec, watch))


_LAST_CALLS: dict[Ending, str] = {"end-of-stream": "on_end", "drain": "on_drain"}


class _ProcessNode(base.Node):
    def __init__(
        self,
        operator: str,
        task: StreamTask,
        context: Context,
        on_timer: Call[ExpiredTimer],
        collector: Collector,
        stage: base.StageContext,
        timers: TaskTimers | None,
        accept: Accept,
        push: Push,
    ) -> None:
        super().__init__(accept, stage.position, push)
        self._operator = operator
        self._task, self._context, self._on_timer = task, context, on_timer
        self._collector, self._requests = collector, stage.requests
        self._timers = timers
        self._in_order = False
        """Messages come in the order of event time, with the timers between them."""
        self._period_ms = stage.window_ms if _defines(task, "window") else -1

    def begin(self, batch: Batch) -> None:
        self._earliest = self.now_ms = batch.earliest_output(self._operator)
        watermark = batch.late_watermark(self._operator)
        self._context.begin(batch.time_ms, None if watermark == NO_WATERMARK else watermark)
        if self._timers is not None:
            self._timers.begin()

    def on_start_of_input(self, batch: Batch) -> Iterator[base.Firing]:
        now_ms = max(batch.time_ms, self._earliest)
        if self._timers is not None:
            for timer in self._timers.before_messages(batch):
                yield self.firing(self._timers, timer, now_ms)
        if batch.begins_period(self._period_ms):
            yield self._call("window", now_ms, self._task.window)  # type: ignore[attr-defined]

    def on_end_of_input(self, batch: Batch) -> Iterator[base.Firing]:
        now_ms = max(batch.time_ms, self._earliest)
        if self._timers is not None:
            for timer in self._timers.after_messages(batch):
                in_event_time = timer.domain == "event"
                timestamp_ms = max(timer.time_ms, self.now_ms) if in_event_time else now_ms
                if in_event_time and self._in_order:
                    self.now_ms = timestamp_ms
                yield self.firing(self._timers, timer, timestamp_ms)
        if batch.ending is not None:
            if self._timers is not None:
                self._timers.end()
            reached, name = batch.late_watermark(self._operator), _LAST_CALLS[batch.ending]
            if _defines(self._task, name):
                method = getattr(self._task, name)
                yield self._call(name, batch.time_ms if reached == NO_WATERMARK else reached, method)

    def timeline(self, batch: Batch) -> base.Timeline | None:
        self._in_order = True
        return None if self._timers is None else _TimersBetween(self, self._timers, batch)

    def firing(self, timers: TaskTimers, timer: TaskTimer, timestamp_ms: int) -> base.Firing:
        fire = partial(self._fire, timers, timer)
        return base.Firing(timer.key, timestamp_ms, timer.name, fire, str(timer), timer.time_ms)

    def _fire(self, timers: TaskTimers, timer: TaskTimer) -> None:
        _run("on_timer", self._on_timer, timers.expired(timer), self._collector, self._requests)

    def _call(
        self, name: str, timestamp_ms: int, method: Callable[[MessageCollector, TaskCoordinator], None]
    ) -> base.Firing:
        run = partial(_run, name, method, self._collector, self._requests)
        # State that a task keeps until the end is in no message: as a dead letter it would be lost, and the run closed.
        return base.Firing(None, timestamp_ms, name, run, f"`{name}`", must_succeed=name in _LAST_CALLS.values())

    def close(self) -> None:
        _run("close", self._task.close)


class _TimersBetween:
    """The timers of a task that takes its messages in the order of their times: they come between them."""

    def __init__(self, node: _ProcessNode, timers: TaskTimers, batch: Batch) -> None:
        self._node, self._timers, self._batch = node, timers, batch
        self._upcoming: UpcomingTimers = timers.between_messages(batch)

    def next_ms(self) -> int | None:
        return self._timers.next_between(self._upcoming)

    def take(self, now_ms: int) -> base.Firing | None:
        timer = self._timers.taken_between(self._upcoming, self._batch)
        if timer is None:
            return None
        self._node.now_ms = max(timer.time_ms, now_ms, self._node.now_ms)
        return self._node.firing(self._timers, timer, self._node.now_ms)


def _run(name: str, method: Callable[..., object], *arguments: object) -> None:
    if (result := method(*arguments)) is not None:
        raise unused(f"`{name}`", result)


def _own(task: StreamTask) -> StreamTask:
    return task.task if isinstance(task, _WatchedTask) else task


def _defines(task: StreamTask, method: str) -> bool:
    kind = type(_own(task))
    found = getattr(kind, method, None)
    return found is not None and found is not getattr(StreamTask, method, None)


class _WatchedTask(WindowableTask, DrainListenerTask):
    def __init__(self, spec: ProcessSpec, watch: base.CallWatch) -> None:
        self._spec = spec
        self._watch = watch
        self.task: Any = spec.task()
        self._stores: list[base.KeyValue] = []
        self.close = self.task.close  # type: ignore[method-assign]

    def init(self, context: TaskContext) -> Any:
        self._stores = [context.store(name) for name in self._spec.own_stores]
        self._watch.opens(self._stores)
        return self.task.init(context)

    def process(
        self, envelope: IncomingMessageEnvelope, collector: MessageCollector, coordinator: TaskCoordinator
    ) -> Any:
        with self._watch.call(self._spec.id, envelope.value, self._stores):
            return self.task.process(envelope, collector, coordinator)

    def on_timer(self, timer: ExpiredTimer, collector: MessageCollector, coordinator: TaskCoordinator) -> Any:
        with self._watch.call(self._spec.id, None, self._stores):
            return self.task.on_timer(timer, collector, coordinator)

    def on_end(self, collector: MessageCollector, coordinator: TaskCoordinator) -> Any:
        with self._watch.call(self._spec.id, None, self._stores):
            return self.task.on_end(collector, coordinator)

    def on_drain(self, collector: MessageCollector, coordinator: TaskCoordinator) -> Any:
        with self._watch.call(self._spec.id, None, self._stores):
            return self.task.on_drain(collector, coordinator)

    def window(self, collector: MessageCollector, coordinator: TaskCoordinator) -> Any:
        with self._watch.call(self._spec.id, None, self._stores):
            return self.task.window(collector, coordinator)


class BatchTaskOperator(base.Operator[BatchTaskSpec]):
    """Gathers the messages of a batch, and calls its task once in each batch."""

    @property
    def time_stores(self) -> tuple[str, ...]:
        timers = timers_store(self.spec.state_id)
        return (timers,) if timers in self.spec.stores else ()

    def next_due(self, store: base.KeyValue) -> Due:
        return oldest_timers(store)

    def build(self, stage: base.StageContext, downstream: Target) -> base.Node:
        try:
            task = self.spec.task()
            task.init(_BatchTaskContext(self.spec.id, stage))
        except BaseException as error:
            raise failure_in(self.spec.id, error) from error
        return _BatchTaskNode(self.spec.id, task, stage.position, downstream.push)


class _BatchTaskContext:
    def __init__(self, operator: str, stage: base.StageContext) -> None:
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

    def store(self, name: str) -> base.KeyValue:
        return self._stage.stores[name]

    def watched(self, elements: Iterable[Any]) -> Iterator[Any]:
        position = self._stage.position
        # Other threads see progress by the number of elements left, which only the iterator of a list knows.
        found = position.elements = iter(list(elements))
        return found


class _BatchTaskNode(base.Node):
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

    def on_end_of_input(self, batch: Batch) -> Iterator[base.Firing]:
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
        yield base.Firing(None, timestamp_ms, "batch", partial(self._run, info), "the batch", must_succeed=True)

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
