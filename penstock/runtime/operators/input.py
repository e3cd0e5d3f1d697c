"""input: reads a stream."""

from __future__ import annotations

from penstock.api.graph import InputSpec
from penstock.api.serdes.failures import Place, input_place
from penstock.runtime.operators.base import PassingOperator


class Input(PassingOperator[InputSpec]):
    """The messages of a stream, as they were read."""

    is_input = True

    def place(self, name: str) -> Place:
        return input_place(self.spec.stream)
