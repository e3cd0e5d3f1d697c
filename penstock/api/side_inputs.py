"""The sources of stores and tables that the job only reads: side inputs, and tables that somebody pushes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from penstock.api.messages import IncomingMessageEnvelope
from penstock.api.serdes import Serde
from penstock.api.store import KeyValueStore
from penstock.metrics.registry import MetricsRegistry

PushedFormat: TypeAlias = Literal["parquet", "csv", "delta"]


class Entry(NamedTuple):
    """A key and its value, as Samza's Entry: what a processor of side inputs returns. A value of None deletes the key.

    Example:
        >>> ps.Entry("N14", {"seats": 180})
        Entry(key='N14', value={'seats': 180})
    """

    key: Any
    value: Any


class SideInputsProcessor(Protocol):
    """Makes the entries of a store from the messages of its side inputs. A plain function with the same arguments will
    do.

    A processor that is given without a factory serves all tasks of a container, and is called by one thread at a time.
    It is pickled with the application.

    Example:
        >>> def seats(message, store):
        ...     return [ps.Entry(message.key, None if message.value is None else message.value["seats"])]
        >>> app = ps.StreamApplication("trips")
        >>> stream = ps.SideInput("local.planes", value=ps.Json())
        >>> planes = app.table("planes", value=ps.Long(), side_inputs=[stream], processor=seats)
        >>> full = app.input("local.trips").join_table(planes, lambda trip, seats: [trip, seats])
        >>> _ = full.send_to(app.output("local.full"))
        >>> runner = TestRunner(app).side_input("local.planes", [("N14", {"seats": 180})])
        >>> [message.value for message in runner.input("local.trips", [("N14", 1)]).run().output("local.full")]
        [[1, 180]]
        >>> runner.close()
    """

    def process(self, message: IncomingMessageEnvelope, store: KeyValueStore[Any, Any]) -> Iterable[tuple[Any, Any]]:
        """The entries to write for the message.

        Args:
            message: the message, decoded.
            store: the store as it is now, with everything returned before. It can only be read.

        Returns:
            the entries to write: an entry with the key None is ignored, one with the value None deletes its key.
        """
        ...


ProcessorFunction: TypeAlias = Callable[[IncomingMessageEnvelope, KeyValueStore[Any, Any]], Iterable[tuple[Any, Any]]]


class SideInputsProcessorFactory(ABC):
    """Makes the processors of a store: a new one at each call, one for each task that has the store.

    The application gives it as `processor=`, or the configuration names the class, whose constructor then has no
    arguments: `stores.<name>.side.inputs.processor.factory`.

    Example:
        >>> class Seats(ps.SideInputsProcessorFactory):
        ...     def get_side_inputs_processor(self, config, metrics_registry):
        ...         count = metrics_registry.new_counter("planes", "without-seats")
        ...
        ...         def process(message, store):
        ...             if "seats" not in message.value:
        ...                 count.inc()
        ...                 return []
        ...             return [ps.Entry(message.key, message.value["seats"])]
        ...
        ...         return process
        >>> app = ps.StreamApplication("trips")
        >>> stream = ps.SideInput("local.planes", value=ps.Json())
        >>> planes = app.table("planes", value=ps.Long(), side_inputs=[stream], processor=Seats())
        >>> _ = app.input("local.trips").join_table(planes, lambda trip, seats: [trip, seats])
        >>> runner = TestRunner(app).side_input("local.planes", [("N14", {"seats": 180}), ("N2", {})]).run()
        >>> runner.store("planes")
        {'N14': 180}
        >>> runner.close()
    """

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
    """A stream that fills a store and has other serdes than the store.

    Example:
        >>> app = ps.StreamApplication("trips")
        >>> codes = ps.SideInput("local.codes", value=ps.String())
        >>> planes = app.table("planes", side_inputs=["local.planes", codes])
        >>> _ = app.input("local.trips").join_table(planes, lambda trip, plane: plane)
        >>> runner = TestRunner(app).side_input("local.codes", [("N14", "a code")]).run()
        >>> runner.store("planes")
        {'N14': 'a code'}
        >>> runner.close()
    """

    stream: str
    """`system.stream`."""
    key: Serde[Any] | None = None
    """The serde of its keys; None: that of the store."""
    value: Serde[Any] | None = None
    """The serde of its values; None: that of the store."""


@dataclass(frozen=True, slots=True)
class PushedTable:
    """A table that another program writes as a whole, version after version, as files that Spark reads.

    Args:
        path: a folder, or the URL of one.
        key: the column of the key; with several, the key is a tuple.
        value: the column of the value; with several, the value is a dict of these columns; None: of all columns.
        format: `parquet`, `csv` or `delta`.
        schema: the schema, as Spark writes it (`tail STRING, year INT`); None: that of the files.
        options: options of Spark's reader, such as {"header": "true"}.
        check: a function of a TableCandidate that checks a version before it is published. It is called in the driver,
            after the files were built. The version is refused if it returns False or raises an exception, which is then
            the reason.
        broadcast: whether every task has all rows; otherwise each has the keys that it owns.
        stream_key: the serde of these keys in streams, which decides the task of a key. `app.table` sets it; None:
            that of the store.

    Example:
        >>> app = ps.StreamApplication("trips")
        >>> planes = app.table("planes", pushed=ps.PushedTable("/tables/planes", key="tail", value=("model", "seats")))
    """

    path: str
    key: str | tuple[str, ...]
    value: str | tuple[str, ...] | None = None
    format: PushedFormat = "parquet"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[TableCandidate], object] | None = None
    broadcast: bool = False
    stream_key: Serde[Any] | None = None


@dataclass(frozen=True, slots=True)
class TableCandidate:
    """A version of a pushed table that was built and is not published yet, as `PushedTable.check` gets it.

    Args:
        table: the name of the table.
        source: the folder that was read.
        source_version: which version of the source it is.
        rows: how many rows it has.
        previous_rows: how many rows the previous version has; None: there is none.

    Example:
        >>> def not_half_empty(version: ps.TableCandidate) -> bool:
        ...     return version.previous_rows is None or version.rows * 2 >= version.previous_rows
        >>> app = ps.StreamApplication("trips")
        >>> planes = app.table("planes", pushed=ps.PushedTable("/tables/planes", "tail", check=not_half_empty))
        >>> _ = app.input("local.trips").join_table(planes, lambda trip, plane: plane)
        >>> runner = TestRunner(app).push("planes", [{"tail": "N1", "year": 1999}, {"tail": "N2", "year": 2004}])
        >>> runner = runner.push("planes", [])
        Traceback (most recent call last):
            ...
        penstock.errors.ConfigError: a version of table `planes`: its check returned False, with 0 rows
        >>> runner.close()
    """

    table: str
    source: str
    source_version: str
    rows: int
    previous_rows: int | None
