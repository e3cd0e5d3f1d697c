"""Outputs, and operators that nothing follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.api.serdes import Serde
from penstock.api.ssp import SystemStream
from penstock.api.task import MessageCollector, TaskCoordinator
from penstock.base.application_code import Callback
from penstock.graph.specs.base import OperatorSpec

SinkFunction: TypeAlias = Callable[[Any, MessageCollector, TaskCoordinator], None]


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """A declared output stream and its serdes."""

    stream: SystemStream
    key_serde: Serde[Any]
    value_serde: Serde[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec(OperatorSpec):
    """A function called for each message; nothing follows it."""

    operator = "penstock.runtime.operators.sink:Sink"
    hands_on = False
    sends = True

    function: SinkFunction

    def callbacks(self) -> Iterator[Callback]:
        yield Callback("the function", self.function)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToSpec(OperatorSpec):
    """Writes each message to an output stream."""

    operator = "penstock.runtime.operators.passing:SendTo"
    hands_on = False

    output: SystemStream

    @property
    def sent_to(self) -> SystemStream:
        return self.output
