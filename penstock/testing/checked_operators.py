"""An application whose operators are watched: none may change a message's value in place, which others see as well."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from penstock.api.graph import (
    ApplicationGraph,
    FilterSpec,
    FlatMapSpec,
    MapSpec,
    OperatorSpec,
    PartitionBySpec,
    ProcessSpec,
    SinkFunction,
    SinkSpec,
)
from penstock.api.task import IncomingMessageEnvelope, MessageCollector, StreamTask, TaskContext, TaskCoordinator
from penstock.state.stores.task_store import TaskStore
from penstock.testing.checked_store import CheckedStore


class ChangedMessageError(AssertionError):
    """An operator changed the value of a message in place."""


def checked_graph(graph: ApplicationGraph, mistakes: list[AssertionError]) -> ApplicationGraph:
    """The same application; its operators raise ChangedMessageError, UnwrittenChangeError and StaleValueError, and note
    them in `mistakes`: a dead-letter stream, or the application itself, may swallow them."""
    return replace(graph, operators=tuple(_checked(op, mistakes) for op in graph.operators))


def _checked(op: OperatorSpec, mistakes: list[AssertionError]) -> OperatorSpec:
    match op:
        case MapSpec() | FilterSpec():
            return replace(op, function=_watching(op, op.function, mistakes))
        case FlatMapSpec():
            function = op.function
            return replace(op, function=_watching(op, lambda given: list(function(given)), mistakes))
        case PartitionBySpec():
            return replace(op, key_function=_watching(op, op.key_function, mistakes))
        case SinkSpec():
            return replace(op, function=_watching_sink(op, mistakes))
        case ProcessSpec():
            return replace(op, task=lambda: _CheckedTask(op, mistakes))
        case _:
            return op


def _watching(
    op: MapSpec | FlatMapSpec | FilterSpec | PartitionBySpec,
    function: Callable[[Any], Any],
    mistakes: list[AssertionError],
) -> Callable[[Any], Any]:
    def watched(given: Any) -> Any:
        value = given.value if op.envelope else given
        before = _fingerprint(value)
        result = function(given)
        _compare(op.id, before, value, mistakes)
        return result

    return watched


def _watching_sink(op: SinkSpec, mistakes: list[AssertionError]) -> SinkFunction:
    def watched(envelope: Any, collector: MessageCollector, coordinator: TaskCoordinator) -> None:
        before = _fingerprint(envelope.value)
        op.function(envelope, collector, coordinator)
        _compare(op.id, before, envelope.value, mistakes)

    return watched


class _CheckedTask(StreamTask):
    def __init__(self, op: ProcessSpec, mistakes: list[AssertionError]) -> None:
        self._op = op
        self._mistakes = mistakes
        self._task = op.task()
        self._stores: list[CheckedStore] = []
        self.close = self._task.close  # type: ignore[method-assign]

    def init(self, context: TaskContext) -> None:
        stores = [context.store(name) for name in self._op.stores]
        found = [store.find(CheckedStore) for store in stores if isinstance(store, TaskStore)]
        self._stores = [store for store in found if store is not None]
        for store in self._stores:
            store.mistakes = self._mistakes
        self._task.init(context)

    def process(
        self, envelope: IncomingMessageEnvelope, collector: MessageCollector, coordinator: TaskCoordinator
    ) -> None:
        before = _fingerprint(envelope.value)
        with ExitStack() as calls:
            for store in self._stores:
                store.enter()
                calls.push(lambda kind, _error, _traceback, store=store: store.leave(failed=kind is not None))
            self._task.process(envelope, collector, coordinator)
        _compare(self._op.id, before, envelope.value, self._mistakes)


def _fingerprint(value: Any) -> bytes | None:
    """Bytes that change with the value; None if it cannot be looked into."""
    try:
        return pickle.dumps(value)
    except Exception:
        return None


def _compare(op_id: str, before: bytes | None, value: Any, mistakes: list[AssertionError]) -> None:
    if before is not None and _fingerprint(value) != before:
        error = ChangedMessageError(
            f"operator `{op_id}` changed the value of a message in place. Other operators that read the same stream "
            "see the same object: make a copy and change that, for example {**value, 'name': 1}"
        )
        mistakes.append(error)
        raise error
