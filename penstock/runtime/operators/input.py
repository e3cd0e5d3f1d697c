"""input: reads a stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.api.graph import InputSpec, OperatorSpec
from penstock.api.serdes.failures import Place, input_place
from penstock.runtime.operators.base import PassingOperator, Watch


class Input(PassingOperator[InputSpec]):
    """The messages of a stream, as they were read."""

    def place(self, name: str) -> Place:
        return input_place(self.spec.stream)

    def watched(self, watch: Watch) -> OperatorSpec:
        spec, timestamp_of = self.spec, self.spec.timestamp
        if timestamp_of is None:
            return spec

        def timestamp(value: Any) -> int:
            with watch.call(spec.id, value):
                return timestamp_of(value)

        return replace(spec, timestamp=timestamp)
