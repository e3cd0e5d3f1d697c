"""input, intermediate, merge, send_to: pass on every message as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.api.expressions import Expression
from penstock.graph.serde_failures import SerdePlace, input_place
from penstock.graph.specs import InputSpec, IntermediateSpec, MergeSpec, OperatorSpec, SendToSpec
from penstock.runtime.messages.columns import Target
from penstock.runtime.operators.base import CallWatch, Node, Operator, S, StageContext


class PassingOperator(Operator[S]):
    """Passes on every message as it is."""

    undoes_many = True

    def build(self, stage: StageContext, downstream: Target) -> Node:
        return Node(downstream.accept, stage.position, downstream.push)


class Input(PassingOperator[InputSpec]):
    """The messages of a stream, as they were read."""

    def place(self, name: str) -> SerdePlace:
        return input_place(self.spec.stream)

    def watched(self, watch: CallWatch) -> OperatorSpec:
        spec, timestamp_of = self.spec, self.spec.timestamp
        if timestamp_of is None or isinstance(timestamp_of, Expression):
            return spec

        def timestamp(value: Any) -> int:
            with watch.call(spec.id, value):
                return timestamp_of(value)

        return replace(spec, timestamp=timestamp)


class Intermediate(PassingOperator[IntermediateSpec]):
    """The messages that were sent through the stream, as they were written."""

    def place(self, name: str) -> SerdePlace:
        return input_place(self.spec.stream)


class Merge(PassingOperator[MergeSpec]):
    """The messages of all its sources."""


class SendTo(PassingOperator[SendToSpec]):
    """The channel to the output takes the messages as they are."""
