"""sink: calls a function for each message; nothing follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.graph.specs import OperatorSpec, SinkSpec
from penstock.runtime.messages.columns import NOWHERE, Target
from penstock.runtime.operators.base import CallWatch, Node, Operator, StageContext
from penstock.runtime.operators.tasks.application_code import Collector, envelope_calls


class Sink(Operator[SinkSpec]):
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

    def watched(self, watch: CallWatch) -> OperatorSpec:
        op_id, function = self.spec.id, self.spec.function

        def watched(envelope: Any, collector: Any, coordinator: Any) -> Any:
            with watch.call(op_id, envelope.value):
                return function(envelope, collector, coordinator)

        return replace(self.spec, function=watched)
