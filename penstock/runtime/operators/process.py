"""process: runs a StreamTask of the application."""

from __future__ import annotations

from dataclasses import replace

from penstock.api.graph import OperatorSpec, ProcessSpec
from penstock.api.serdes.failures import Place, process_place
from penstock.api.task import IncomingMessageEnvelope, MessageCollector, StreamTask, TaskContext, TaskCoordinator
from penstock.runtime.columns import Accept, Push, Target
from penstock.runtime.context import failure_in
from penstock.runtime.operators.application_code import Collector, Context, envelope_calls
from penstock.runtime.operators.base import KeyValue, Node, Operator, Surroundings, Watch


class Process(Operator[ProcessSpec]):
    """A task of the application with stores, which emits messages and may send to outputs."""

    needs_task = True
    sends = True

    def place(self, name: str) -> Place:
        return process_place(name)

    def build(self, surroundings: Surroundings, downstream: Target) -> Node:
        op_id = self.spec.id
        collector = Collector(op_id, downstream.push, surroundings.outputs)
        context = Context(
            surroundings.job_name,
            surroundings.config,
            surroundings.task,
            dict(surroundings.stores),
            op_id,
            surroundings.metrics,
        )
        try:
            task = self.spec.task()
            task.init(context)
        except BaseException as error:
            raise failure_in(op_id, error) from error
        calls = envelope_calls(op_id, task.process, collector, surroundings.requests, surroundings.position)
        return _ProcessNode(task, *calls)

    def watched(self, watch: Watch) -> OperatorSpec:
        return replace(self.spec, task=lambda: _WatchedTask(self.spec, watch))


class _ProcessNode(Node):
    def __init__(self, task: StreamTask, accept: Accept, push: Push) -> None:
        super().__init__(accept, push)
        self._task = task

    def close(self) -> None:
        self._task.close()


class _WatchedTask(StreamTask):
    def __init__(self, spec: ProcessSpec, watch: Watch) -> None:
        self._spec = spec
        self._watch = watch
        self._task = spec.task()
        self._stores: list[KeyValue] = []
        self.close = self._task.close  # type: ignore[method-assign]

    def init(self, context: TaskContext) -> None:
        self._stores = [context.store(name) for name in self._spec.stores]
        self._watch.opens(self._stores)
        self._task.init(context)

    def process(
        self, envelope: IncomingMessageEnvelope, collector: MessageCollector, coordinator: TaskCoordinator
    ) -> None:
        with self._watch.call(self._spec.id, envelope.value, self._stores):
            self._task.process(envelope, collector, coordinator)
