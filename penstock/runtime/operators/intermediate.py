"""intermediate: reads a durable intermediate stream."""

from __future__ import annotations

from penstock.api.graph import IntermediateSpec
from penstock.api.serdes.failures import Place, input_place
from penstock.runtime.operators.base import PassingOperator


class Intermediate(PassingOperator[IntermediateSpec]):
    """The messages that were sent through the stream, as they were written."""

    def place(self, name: str) -> Place:
        return input_place(self.spec.stream)
