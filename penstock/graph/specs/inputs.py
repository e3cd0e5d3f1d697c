"""Operators that read streams, and the one that merges them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from penstock.api.ssp import StreamPattern, SystemStream
from penstock.api.time.watermarks import Ascending, WatermarkPolicy
from penstock.base.application_code import Callback, methods
from penstock.graph.specs.base import OperatorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec(OperatorSpec):
    """Reads a stream."""

    operator = "penstock.runtime.operators.passing:Input"
    is_input = True

    stream: SystemStream
    timestamp: Callable[[Any], int] | None = None
    """The event time of a value, in epoch milliseconds; None: the message's own timestamp."""
    watermark: WatermarkPolicy | None = None
    """None: the event times of a partition never fall."""
    pattern: StreamPattern | None = None
    """The pattern that found the stream; None: the application names the stream."""

    @property
    def input_stream(self) -> SystemStream:
        return self.stream

    @property
    def declared_stream(self) -> SystemStream:
        return self.stream

    @property
    def uses_time(self) -> bool:
        return self.timestamp is not None or self.watermark is not None

    @property
    def watermark_policy(self) -> WatermarkPolicy:
        return Ascending() if self.watermark is None else self.watermark

    def callbacks(self) -> Iterator[Callback]:
        yield Callback("timestamp", self.timestamp)
        yield from methods(self.watermark_policy, ("watermark",))


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternSpec(OperatorSpec):
    """The inputs whose names a pattern matches, before a start knows them."""

    pattern: StreamPattern
    input: InputSpec
    """An input of the pattern, but for its stream."""

    @property
    def declared_stream(self) -> StreamPattern:
        return self.pattern

    @property
    def uses_time(self) -> bool:
        return self.input.uses_time

    def callbacks(self) -> Iterator[Callback]:
        return self.input.callbacks()

    def with_inputs(self, streams: Sequence[SystemStream]) -> tuple[OperatorSpec, ...]:
        """The inputs, and the operator that merges them in place of this one."""
        inputs = tuple(
            replace(
                self.input,
                id=f"{self.id}.{stream.stream}",
                stream=stream,
                key_serde=self.key_serde.for_stream(stream.stream, "key"),
                value_serde=self.value_serde.for_stream(stream.stream, "value"),
            )
            for stream in streams
        )
        first, upstream = inputs[0], tuple(op.id for op in inputs)
        merged = MergeSpec(
            id=self.id, upstream=upstream, key_serde=first.key_serde, value_serde=first.value_serde, stores=self.stores
        )
        return (*inputs, merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntermediateSpec(OperatorSpec):
    """Reads the messages that an operator wrote to a durable intermediate stream in batches that have ended."""

    operator = "penstock.runtime.operators.passing:Intermediate"
    is_input = True
    gives_keys = True

    stream: SystemStream
    writer: str
    timestamp: None = None
    """The event times are the messages' own timestamps."""

    @property
    def fed_by(self) -> tuple[str, ...]:
        return (self.writer,)

    @property
    def keeps_offsets(self) -> bool:
        return False


SourceSpec: TypeAlias = InputSpec | IntermediateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSpec(OperatorSpec):
    """Merges several streams."""

    operator = "penstock.runtime.operators.passing:Merge"
