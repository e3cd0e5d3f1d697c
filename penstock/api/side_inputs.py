"""What fills a store or a table from the outside: side inputs, and tables that somebody pushes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from penstock.api.serdes import Serde
from penstock.api.ssp import SystemStream
from penstock.api.store import KeyValueStore
from penstock.api.task import IncomingMessageEnvelope
from penstock.metrics.registry import MetricsRegistry

PushedFormat: TypeAlias = Literal["parquet", "csv", "delta"]


class Entry(NamedTuple):
    """A key and its value, as Samza's Entry. A value of None deletes the key."""

    key: Any
    value: Any


class SideInputsProcessor(Protocol):
    """Makes entries of a store from the messages of its side inputs. A plain function of the same arguments will do."""

    def process(self, message: IncomingMessageEnvelope, store: KeyValueStore[Any, Any]) -> Iterable[tuple[Any, Any]]:
        """The entries that the message leads to.

        Args:
            message: the message, decoded.
            store: the store as it is now, with all that was returned before. It can only be read.

        Returns:
            what is written: an entry with the key None is ignored, one with the value None deletes its key.
        """
        ...


ProcessorFunction: TypeAlias = Callable[[IncomingMessageEnvelope, KeyValueStore[Any, Any]], Iterable[tuple[Any, Any]]]


class SideInputsProcessorFactory(ABC):
    """Makes the processors of a store: a new one at each call, one for each task that has the store."""

    @abstractmethod
    def get_side_inputs_processor(
        self, config: Mapping[str, str], metrics_registry: MetricsRegistry
    ) -> SideInputsProcessor:
        """A new processor.

        Args:
            config: the configuration of the job, as a task sees it.
            metrics_registry: where the processor may count.
        """


@dataclass(frozen=True, slots=True)
class SideInput:
    """A stream that fills a store, where its serdes are not those of the store."""

    stream: str
    """`system.stream`."""
    key: Serde[Any] | None = None
    """The serde of its keys; None: that of the store."""
    value: Serde[Any] | None = None
    """The serde of its values; None: that of the store."""


@dataclass(frozen=True, slots=True)
class SideStream:
    """A side input as the store has it: a stream and its serdes."""

    stream: SystemStream
    key_serde: Serde[Any]
    value_serde: Serde[Any]


@dataclass(frozen=True, slots=True)
class SideInputs:
    """How streams fill a store."""

    streams: tuple[SideStream, ...]
    processor: SideInputsProcessor | SideInputsProcessorFactory | ProcessorFunction | None = None
    """None: each message is an entry as it is."""
    broadcast: bool = False
    """Whether every task has everything; otherwise task i has what partition i brings."""


@dataclass(frozen=True, slots=True)
class PushedTable:
    """A table that somebody else writes as a whole, version after version, as files that Spark reads."""

    path: str
    """A folder, or the URL of one."""
    key: str | tuple[str, ...]
    """The column of the key; with several, the key is a tuple."""
    value: str | tuple[str, ...] | None = None
    """The column of the value; with several, the value is a dict of these columns; None: of all columns."""
    format: PushedFormat = "parquet"
    schema: str | None = None
    """The schema, as Spark writes it (`tail STRING, year INT`); None: that of the files."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of Spark's reader, such as {"header": "true"}."""
    check: Callable[[Any], object] | None = None
    """What a version must pass before it is used; see docs/side-inputs.md."""
    broadcast: bool = False
    """Whether every task has everything; otherwise each has the keys that are its own."""


Side: TypeAlias = SideInputs | PushedTable
