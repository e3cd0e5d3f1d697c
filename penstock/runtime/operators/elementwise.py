"""Operators by message that keep nothing.

map, flat_map, filter, partition_by and sink call a function for each message; nothing follows a sink. input,
intermediate, merge and send_to pass on every message as it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from penstock.api.expressions import Expression
from penstock.arrays.given import ArrowSequence
from penstock.base.application_code import UNSTARTED, unused
from penstock.graph import specs
from penstock.graph.keys import keys_to_bytes
from penstock.graph.serdes import SerdePlace, input_place, partition_by_place
from penstock.runtime.context import Position, failure_in
from penstock.runtime.messages.columns import (
    NOWHERE,
    Branch,
    MessageColumns,
    Push,
    Step,
    Target,
    envelope_of,
    envelopes_of,
    index_of_last,
    locating_row,
)
from penstock.runtime.messages.entry import StageEntry
from penstock.runtime.operators.application_code import Collector, envelope_calls
from penstock.runtime.operators.base import CallWatch, Node, Operator, S, StageContext

F = TypeVar("F", bound=specs.FunctionSpec)
Deliver: TypeAlias = Callable[[Any, Any, Any], None]


class Elementwise(Operator[F]):
    """Calls the application's function for each message. A kind applies the results to columns of messages, and to a
    single one that the application emitted."""

    undoes_many = True

    @property
    def call(self) -> Callable[[Any], Any]:
        """The application's function, together with any code whose failure counts as its own."""
        return self.spec.function

    def results(self, given: Iterator[Any]) -> list[Any]:
        call = self.call
        return [call(each) for each in given]

    @abstractmethod
    def apply(self, columns: MessageColumns, results: list[Any]) -> MessageColumns: ...

    @abstractmethod
    def deliver(self, downstream: Push) -> Deliver: ...

    def build(self, stage: StageContext, downstream: Target) -> Node:
        position = stage.position
        step, push = stage.clock.timed(self.spec.id, self._step(position)), self._push(downstream.push, position)
        return Chain(step, downstream, position, push)

    def _step(self, position: Position) -> Step:
        by_row, function = self._step_by_row(position), self.spec.function
        if not isinstance(function, Expression):
            return by_row

        def step(columns: MessageColumns) -> MessageColumns:
            if not isinstance(columns.values, ArrowSequence):
                return by_row(columns)
            batch = pa.RecordBatch.from_struct_array(columns.values.array)
            with locating_row(self.spec.id, columns, position, lambda row: self.by_column(function, row)):
                return self.apply_column(columns, self.by_column(function, batch), position)

        return step

    def by_column(self, function: Expression, batch: pa.RecordBatch) -> pa.Array:
        """The results for the rows of a batch, as `apply_column` takes them."""
        return function.of_batch(batch)

    def apply_column(self, columns: MessageColumns, results: pa.Array, position: Position) -> MessageColumns:
        raise NotImplementedError

    def _step_by_row(self, position: Position) -> Step:
        op_id, results_of, apply, whole = self.spec.id, self.results, self.apply, self.spec.envelope

        def step(columns: MessageColumns) -> MessageColumns:
            elements = position.elements = iter(_envelopes(columns, position) if whole else columns.values)
            try:
                results = results_of(elements)
            except BaseException as error:
                position.row = int(columns.rows[index_of_last(elements, len(columns.rows))])
                raise failure_in(op_id, error) from error
            finally:
                position.elements = None
            return apply(columns, results)

        return step

    def _push(self, downstream: Push, position: Position) -> Push:
        op_id, call, deliver, whole = self.spec.id, self.call, self.deliver(downstream), self.spec.envelope

        def push(key: Any, value: Any) -> None:
            try:
                result = call(envelope_of(key, value, position.page, position.row) if whole else value)
            except BaseException as error:
                raise failure_in(op_id, error) from error
            deliver(key, value, result)

        return push

    def watched(self, watch: CallWatch) -> specs.OperatorSpec:
        op_id, call, whole = self.spec.id, self.call, self.spec.envelope
        if isinstance(self.spec.function, Expression):
            return self.spec  # it runs none of the application's code

        def function(given: Any) -> Any:
            with watch.call(op_id, given.value if whole else given):
                return call(given)

        return replace(self.spec, function=function)


class Map(Elementwise[specs.MapSpec]):
    """Each result is the message's new value."""

    def apply(self, columns: MessageColumns, results: list[Any]) -> MessageColumns:
        return columns.with_values(results)

    def apply_column(self, columns: MessageColumns, results: pa.Array, position: Position) -> MessageColumns:
        return columns.with_values(ArrowSequence(results))

    def deliver(self, downstream: Push) -> Deliver:
        return lambda key, _value, result: downstream(key, result)


class FlatMap(Elementwise[specs.FlatMapSpec]):
    """Each result is the list of values that replace the message."""

    @property
    def call(self) -> Callable[[Any], list[Any]]:
        """Collects the values, so that a generator's failure is this operator's."""
        function = self.spec.function
        return lambda given: list(function(given))

    def apply(self, columns: MessageColumns, results: list[Any]) -> MessageColumns:
        return columns.expanded(results)

    def deliver(self, downstream: Push) -> Deliver:
        def deliver(key: Any, _value: Any, result: Any) -> None:
            for value in result:
                downstream(key, value)

        return deliver


class Filter(Elementwise[specs.FilterSpec]):
    """Each result says if the message stays. A result whose truth cannot be tested is this operator's failure."""

    def results(self, given: Iterator[Any]) -> list[Any]:
        function, unstarted = self.spec.function, UNSTARTED
        return [
            # True needs no second look; bool() would be a call more
            True
            if (kept := function(each)) is True
            else (kept.__class__ not in unstarted or _refuse(kept))
            if kept
            else False
            for each in given
        ]

    def apply(self, columns: MessageColumns, results: list[Any]) -> MessageColumns:
        return columns.where(results)

    def apply_column(self, columns: MessageColumns, results: pa.Array, position: Position) -> MessageColumns:
        return columns.where(results.fill_null(False).to_numpy(zero_copy_only=False))

    def deliver(self, downstream: Push) -> Deliver:
        op_id = self.spec.id

        def deliver(key: Any, value: Any, result: Any) -> None:
            try:
                kept = bool(result) and (type(result) not in UNSTARTED or _refuse(result))
            except BaseException as error:
                raise failure_in(op_id, error) from error
            if kept:
                downstream(key, value)

        return deliver


def _refuse(result: object) -> bool:
    raise unused("the function of the filter", result)


class PartitionBy(Elementwise[specs.PartitionBySpec]):
    """Each result is the message's new key."""

    def place(self, name: str) -> SerdePlace:
        return partition_by_place(name)

    def apply(self, columns: MessageColumns, results: list[Any]) -> MessageColumns:
        return columns.with_keys(results)

    def by_column(self, function: Expression, batch: pa.RecordBatch) -> pa.Array:
        """The bytes of the keys."""
        return keys_to_bytes(self.spec.key_serde, function.of_batch(batch))

    def apply_column(self, columns: MessageColumns, results: pa.Array, position: Position) -> MessageColumns:
        spec = self.spec
        entry = StageEntry(spec.id, self.place(spec.id), spec.key_serde, spec.value_serde, position, NOWHERE)
        return columns.with_key_bytes(ArrowSequence(results), entry)

    def deliver(self, downstream: Push) -> Deliver:
        return lambda _key, value, result: downstream(result, value)


class PartitionThrough(PartitionBy):
    """A PartitionBy whose messages leave by the channel to the intermediate stream."""

    spec: specs.PartitionThroughSpec


class Chain(Node):
    """Several such operators in a row. A loop over them keeps no columns but the last."""

    def __init__(self, step: Step, downstream: Target, position: Position, push: Push | None = None) -> None:
        after = branch_of(downstream)
        self.branch = Branch((step, *after.steps), after.end)
        super().__init__(self._run, position, push)

    def _run(self, columns: MessageColumns) -> None:
        made = self.branch.run(columns)
        if len(made.rows):
            self.branch.end(made)


def branch_of(target: Target) -> Branch:
    return target.branch if isinstance(target, Chain) else Branch((), target.accept)


def _envelopes(columns: MessageColumns, position: Position) -> list[Any]:
    return list(envelopes_of(columns, position.page))


class PassingOperator(Operator[S]):
    """Passes on every message as it is."""

    undoes_many = True

    def build(self, stage: StageContext, downstream: Target) -> Node:
        return Node(downstream.accept, stage.position, downstream.push)


class Input(PassingOperator[specs.InputSpec]):
    """The messages of a stream, as they were read."""

    def place(self, name: str) -> SerdePlace:
        return input_place(self.spec.stream)

    def watched(self, watch: CallWatch) -> specs.OperatorSpec:
        spec, timestamp_of = self.spec, self.spec.timestamp
        if timestamp_of is None or isinstance(timestamp_of, Expression):
            return spec

        def timestamp(value: Any) -> int:
            with watch.call(spec.id, value):
                return timestamp_of(value)

        return replace(spec, timestamp=timestamp)


class Intermediate(PassingOperator[specs.IntermediateSpec]):
    """The messages that were sent through the stream, as they were written."""

    def place(self, name: str) -> SerdePlace:
        return input_place(self.spec.stream)


class Merge(PassingOperator[specs.MergeSpec]):
    """The messages of all its sources."""


class SendTo(PassingOperator[specs.SendToSpec]):
    """The channel to the output takes the messages as they are."""


class Sink(Operator[specs.SinkSpec]):
    """Runs the application's function, which may send to outputs."""

    def build(self, stage: StageContext, downstream: Target) -> Node:
        collector = Collector(self.spec.id, stage.position, NOWHERE, stage.outputs, of_task=False)
        accept, push = envelope_calls(
            self.spec.id,
            self.spec.function,
            collector,
            stage.requests,
            stage.position,
            "the function of the sink",
        )
        return Node(accept, stage.position, push)

    def watched(self, watch: CallWatch) -> specs.OperatorSpec:
        op_id, function = self.spec.id, self.spec.function

        def watched(envelope: Any, collector: Any, coordinator: Any) -> Any:
            with watch.call(op_id, envelope.value):
                return function(envelope, collector, coordinator)

        return replace(self.spec, function=watched)
