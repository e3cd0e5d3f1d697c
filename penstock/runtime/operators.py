"""Operators as they run: each is a function of (key, value) that calls the ones after it.

A node wraps only the user's function, not the calls downstream, so that a failure names the operator it happened in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from penstock.api.graph import (
    FilterSpec,
    FlatMapSpec,
    MapSpec,
    OperatorSpec,
    PartitionBySpec,
    ProcessSpec,
    SinkSpec,
)
from penstock.api.store import KeyValueStore
from penstock.api.task import IncomingMessageEnvelope, MessageCollector, StreamTask, TaskContext, TaskCoordinator
from penstock.errors import ConfigError
from penstock.runtime.columns import Push, envelope_of
from penstock.runtime.context import Position, failure_in


def fan_out(targets: Sequence[Push]) -> Push:
    """One function that calls all of them in order."""
    if len(targets) == 1:
        return targets[0]

    def push_all(key: Any, value: Any) -> None:
        for target in targets:
            target(key, value)

    return push_all


def map_node(op: MapSpec, downstream: Push, position: Position) -> Push:
    """value -> value."""
    function, whole = op.function, op.envelope

    def push(key: Any, value: Any) -> None:
        try:
            result = function(envelope_of(key, value, position.page, position.row) if whole else value)
        except BaseException as error:
            raise failure_in(op.id, error) from error
        downstream(key, result)

    return push


def flat_map_node(op: FlatMapSpec, downstream: Push, position: Position) -> Push:
    """value -> values. The results are collected first: a generator's failure is this operator's."""
    function, whole = op.function, op.envelope

    def push(key: Any, value: Any) -> None:
        try:
            given = envelope_of(key, value, position.page, position.row) if whole else value
            results = list(function(given))
        except BaseException as error:
            raise failure_in(op.id, error) from error
        for result in results:
            downstream(key, result)

    return push


def filter_node(op: FilterSpec, downstream: Push, position: Position) -> Push:
    """Keeps or drops."""
    function, whole = op.function, op.envelope

    def push(key: Any, value: Any) -> None:
        try:
            given = envelope_of(key, value, position.page, position.row) if whole else value
            keep = bool(function(given))
        except BaseException as error:
            raise failure_in(op.id, error) from error
        if keep:
            downstream(key, value)

    return push


def partition_by_node(op: PartitionBySpec, downstream: Push, position: Position) -> Push:
    """Replaces the key."""
    function, whole = op.key_function, op.envelope

    def push(key: Any, value: Any) -> None:
        try:
            new_key = function(envelope_of(key, value, position.page, position.row) if whole else value)
        except BaseException as error:
            raise failure_in(op.id, error) from error
        downstream(new_key, value)

    return push


class Requests(TaskCoordinator):
    """What tasks asked of the job during an attempt."""

    def __init__(self) -> None:
        self.commit_requested = False
        self.shutdown_requested = False

    def commit(self) -> None:
        self.commit_requested = True

    def shutdown(self) -> None:
        self.shutdown_requested = True


class Collector(MessageCollector):
    """What one operator's code may send, and where it goes."""

    def __init__(self, op_id: str, downstream: Push | None, outputs: dict[str, Push]) -> None:
        """`outputs` maps `system.stream` and, where no other output has it, `stream` to where it goes."""
        self._op_id = op_id
        self._downstream = downstream
        self._outputs = outputs

    def emit(self, *, key: Any = None, value: Any) -> None:
        if self._downstream is not None:
            self._downstream(key, value)

    def send(self, output: str, *, key: Any = None, value: Any) -> None:
        push = self._outputs.get(output)
        if push is None:
            known = ", ".join(f"`{name}`" for name in self._outputs) or "none"
            raise ConfigError(
                f"operator `{self._op_id}` sends to `{output}`, which is not a declared output; declared: {known}. "
                "Use app.output(...)"
            )
        push(key, value)


class Context(TaskContext):
    """A task's surroundings."""

    def __init__(
        self,
        job_name: str,
        config: Mapping[str, str],
        partition: int,
        stores: dict[str, KeyValueStore[Any, Any]],
        op_id: str,
    ) -> None:
        self._job_name = job_name
        self._config = MappingProxyType(dict(config))
        self._partition = partition
        self._stores = stores
        self._op_id = op_id

    @property
    def task_name(self) -> str:
        return f"Partition {self._partition}"

    @property
    def partition(self) -> int:
        return self._partition

    @property
    def job_name(self) -> str:
        return self._job_name

    @property
    def config(self) -> Mapping[str, str]:
        return self._config

    def store(self, name: str) -> KeyValueStore[Any, Any]:
        if name not in self._stores:
            known = ", ".join(f"`{s}`" for s in self._stores) or "none"
            raise ConfigError(
                f"operator `{self._op_id}` asks for store `{name}` but was given: {known}. "
                "Name it in process(..., stores=[...])"
            )
        return self._stores[name]


class ProcessNode:
    """Runs a user's StreamTask."""

    def __init__(
        self, op: ProcessSpec, context: Context, collector: Collector, requests: Requests, position: Position
    ) -> None:
        try:
            self._task: StreamTask = op.task()
            self._task.init(context)
        except BaseException as error:
            raise failure_in(op.id, error) from error
        self.push = self._make_push(op.id, collector, requests, position)

    def _make_push(self, op_id: str, collector: Collector, requests: Requests, position: Position) -> Push:
        process = self._task.process
        make = tuple.__new__  # what the NamedTuple's own constructor does, without its Python frame

        def push(key: Any, value: Any) -> None:
            envelope = make(IncomingMessageEnvelope, (key, value, position.page, position.row))
            try:
                process(envelope, collector, requests)
            except BaseException as error:
                raise failure_in(op_id, error) from error

        return push

    def close(self) -> None:
        """Close the user's task."""
        self._task.close()


def sink_node(op: SinkSpec, collector: Collector, requests: Requests, position: Position) -> Push:
    """Calls the user's sink function."""
    function = op.function
    make = tuple.__new__

    def push(key: Any, value: Any) -> None:
        envelope = make(IncomingMessageEnvelope, (key, value, position.page, position.row))
        try:
            function(envelope, collector, requests)
        except BaseException as error:
            raise failure_in(op.id, error) from error

    return push


def stateless_node(op: OperatorSpec, downstream: Push, position: Position) -> Push:
    """The node of an operator that needs nothing but its function."""
    match op:
        case MapSpec():
            return map_node(op, downstream, position)
        case FlatMapSpec():
            return flat_map_node(op, downstream, position)
        case FilterSpec():
            return filter_node(op, downstream, position)
        case PartitionBySpec():
            return partition_by_node(op, downstream, position)
        case _:  # an input, a merge, a send_to: messages go on as they are
            return downstream
