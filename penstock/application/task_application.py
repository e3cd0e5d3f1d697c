"""A task of Samza's low-level API as an application: one class gets all messages of all inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.api.serdes import Json, Serde
from penstock.api.task import StreamTask
from penstock.api.time.firing import AtDrain, WatermarkPolicy, discards
from penstock.application.application import Application
from penstock.base.application_code import check_all, maker
from penstock.graph.declarations import may_end
from penstock.graph.event_time import Order, check_order
from penstock.graph.serdes import timers_place
from penstock.graph.specs import ApplicationGraph, ProcessSpec

_TASK_ID = "task"
"""The id of the operator of a TaskApplication."""


class TaskApplication(Application):
    """An application that is one StreamTask, which gets every message of every input, as Samza's low-level API.

    Nothing is repartitioned. Task i gets the messages of partition i of each input, and those of
    `task.broadcast.inputs`. It can use every store of the application.

    Example:
        >>> class Forward(ps.StreamTask):
        ...     def process(self, envelope, collector, coordinator):
        ...         collector.send("local.out", key=envelope.key, value=[envelope.ssp.stream, envelope.value])
        >>> app = ps.TaskApplication("forward", Forward)
        >>> app.input("local.trips")
        >>> _ = app.output("local.out")
        >>> runner = TestRunner(app).input("local.trips", [("N1", 517)]).run()
        >>> [(message.key, message.value) for message in runner.output("local.out")]
        [('N1', ['trips', 517])]
    """

    def __init__(
        self,
        name: str,
        task: Callable[[], StreamTask],
        *,
        timers: Serde[Any] | None = None,
        timers_at_drain: AtDrain = "fire",
        order: Order | None = None,
    ) -> None:
        """Make an application without inputs, outputs or stores.

        Args:
            name: the job's name, unless `job.name` is configured.
            task: the StreamTask's class, or a function without arguments that makes the task.
            timers: the serde of the keys of the task's timers. Without it the task has none; see
                `TaskContext.schedule`.
            timers_at_drain: what a drain does to timers whose time has not come, as in `MessageStream.process`.
            order: "event-time" for messages in the order of their event times, as in `MessageStream.process`. Late
                messages are counted and dropped.

        Raises:
            ConfigError: `timers` is not a serde, or given for a class without `on_timer`; `timers_at_drain` or `order`
                is wrong; or a method of the task is a generator or `async def`.
        """
        super().__init__(name)
        check_all(maker(task), f"operator `{_TASK_ID}`")
        self._task = task
        place = timers_place(_TASK_ID, "ps.TaskApplication(..., timers={serde})")
        self._timers, _ = self._declared.timers(_TASK_ID, place, timers, task)
        self._discards_timers = discards(timers_at_drain, timers, "ps.TaskApplication(...)")
        check_order(order, None, "ps.TaskApplication(...)")
        self._order = order

    def input(
        self,
        stream: str,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        timestamp: Callable[[Any], int] | None = None,
        watermark: WatermarkPolicy | None = None,
        pattern: bool = False,
    ) -> None:
        """Read a stream. The task gets its messages.

        Args:
            stream: the stream's name, `system.stream`.
            key: the serde of the keys; by default `String`.
            value: the serde of the values; by default `Json`.
            timestamp: the event time of a value, as in `StreamApplication.input`.
            watermark: the watermark policy, as in `StreamApplication.input`.
            pattern: read every stream that matches, as in `StreamApplication.input`.

        Raises:
            ConfigError: the input is declared already, its name is malformed, or a serde, the timestamp or the
                watermark is not valid.
        """
        self._declared.input(stream, key, value, timestamp, watermark, None, pattern=pattern)

    def graph(self) -> ApplicationGraph:
        """The application as plain values: its inputs, its task, stores and outputs.

        Raises:
            ConfigError: the application has no input.
        """
        graph = super().graph()
        inputs = graph.inputs + graph.patterns
        if (ordering := self._declared.ordering(_TASK_ID, inputs, self._order)) is not None:
            graph = super().graph()  # it has one more store now
        task = ProcessSpec(
            id=_TASK_ID,
            upstream=tuple(op.id for op in inputs),
            task=self._task,
            stores=self._declared.stores,
            ordering=ordering,
            timers=self._timers,
            discards_timers=self._discards_timers,
            ends=may_end(self._task),
            key_serde=inputs[0].key_serde,
            value_serde=Json(),
        )
        return replace(graph, operators=(*graph.operators, task))
