"""An application describes a job: what all have in common, and StreamApplication, the high-level API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from penstock.api.serdes import Serde
from penstock.api.side_inputs import (
    ProcessorFunction,
    PushedTable,
    SideInput,
    SideInputsProcessor,
    SideInputsProcessorFactory,
)
from penstock.api.ssp import SystemStream
from penstock.api.store import Table
from penstock.api.time.firing import WatermarkPolicy
from penstock.application.message_stream import MessageStream
from penstock.base.plugins import HOSTS, load
from penstock.base.wording import Duration
from penstock.graph.declarations import Declarations
from penstock.graph.specs import ApplicationGraph
from penstock.graph.store_declarations import SideDeclaration, time_to_live

if TYPE_CHECKING:
    from penstock.config.model import JobConfig
    from penstock.driver.job import Job

U = TypeVar("U")


class Application:
    """The base of both kinds of application: stores, outputs, and running.

    An application is a description and holds no resources. It can be run several times, and tested with
    `penstock.testing.TestRunner`.
    """

    def __init__(self, name: str) -> None:
        """Make an application without inputs, outputs or stores.

        Args:
            name: the job's name, unless `job.name` is configured. Letters, digits, `_`, `-` and `.`.

        Raises:
            ConfigError: the name has other characters.
        """
        self._declared = Declarations(name)

    @property
    def name(self) -> str:
        """The job's name, unless `job.name` is configured."""
        return self._declared.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._declared}>"

    def store(
        self,
        name: str,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        ttl_ms: Duration | None = None,
        ttl_from: Literal["write", "access"] = "write",
        side_inputs: Sequence[str | SideInput] | None = None,
        processor: SideInputsProcessor | SideInputsProcessorFactory | ProcessorFunction | None = None,
        broadcast: bool = False,
        pushed: PushedTable | None = None,
    ) -> None:
        """Declare a store. Every task has a separate instance of it.

        The key's serde decides how `range` sorts: as text (`String`), as numbers (`Integer`, `Long`, `Double`), or by
        several fields (`Tuple`). JSON keys have no ranges.

        Args:
            name: the name by which `process(stores=[...])` and `context.store(...)` refer to the store.
            key: the serde of the keys; by default `String`.
            value: the serde of the values; by default `Json`.
            ttl_ms: how long an entry lives, in batch time: milliseconds, a text such as "1d", or a timedelta. An entry
                written in a batch of time t is not seen by batches of time t + ttl_ms or later. None: until it is
                deleted.
            ttl_from: "write": since the last `put`. "access": since the last `put` or `get`. A `get` less than ttl_ms /
                16 after the last one that counted does not count, so that reads rarely cause writes.
            side_inputs: the streams that fill the store, `system.stream` each, or a `SideInput` for a stream with other
                serdes than those of the store. The job then only reads it. None: the job writes the store.
            processor: makes entries of the messages of `side_inputs`. None: each message is an entry, and one whose
                value is None deletes its key.
            broadcast: whether every task has everything that `side_inputs` bring. Otherwise task i has what partition i
                brings, and each of these streams has a partition for each task.
            pushed: the table, written as a whole by somebody else, that fills the store. The job then only reads it.

        Raises:
            ConfigError: the store is declared already; its name, a serde or the time to live is not valid; or an
                argument about what fills it is malformed or contradicts another one.

        Example:
            >>> app = ps.StreamApplication("utilisation")
            >>> app.store("aircraft")
            >>> app.store("flights", key=ps.Tuple(ps.String(), ps.Long()))
            >>> app.store("seen", ttl_ms=24 * 3_600_000)
            >>> app.store("planes", side_inputs=["local.planes"])
            >>> app
            <StreamApplication utilisation: stores aircraft, flights, seen, planes>
        """
        side = SideDeclaration.of(f"store `{name}`", side_inputs, processor, broadcast, pushed)
        self._declared.store(name, key, value, time_to_live(f"store `{name}`", ttl_ms, ttl_from), side)

    def value_state(
        self,
        name: str,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        ttl_ms: Duration | None = None,
        ttl_from: Literal["write", "access"] = "write",
    ) -> None:
        """Declare one value for each key, which a task uses with `context.value_state(name)`.

        It is an ordinary store: `app.store` with the same arguments declares the same.

        Args:
            name: the name of the store.
            key: the serde of the messages' keys; by default `String`.
            value: the serde of the values; by default `Json`.
            ttl_ms: how long an entry lives, as in `store`.
            ttl_from: since when, as in `store`.

        Raises:
            ConfigError: the store is declared already, or its name, a serde or the time to live is not
                valid.

        Example:
            >>> app = ps.StreamApplication("gates")
            >>> app.value_state("last-gate", value=ps.Long())
        """
        self.store(name, key=key, value=value, ttl_ms=ttl_ms, ttl_from=ttl_from)

    def list_state(
        self,
        name: str,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        ttl_ms: Duration | None = None,
        ttl_from: Literal["write", "access"] = "write",
    ) -> None:
        """Declare a list for each key, which a task uses with `context.list_state(name)`.

        It is a store with an entry for each element, under (key, batch time, number). `context.store(name)` has the
        entries of all keys.

        Args:
            name: the name of the store.
            key: the serde of the messages' keys, whose bytes must sort as they do (not `Json`); by default `String`.
            value: the serde of the elements; by default `Json`.
            ttl_ms: how long an element lives, as in `store`.
            ttl_from: since when, as in `store`.

        Raises:
            ConfigError: the store is declared already; its name, a serde or the time to live is not valid; or a
                serde does not sort.

        Example:
            >>> app = ps.StreamApplication("delays")
            >>> app.list_state("delays", value=ps.Long())
        """
        self._declared.list_state(name, key, value, time_to_live(f"list state `{name}`", ttl_ms, ttl_from))

    def map_state(
        self,
        name: str,
        *,
        key: Serde[Any] | None = None,
        map_key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        ttl_ms: Duration | None = None,
        ttl_from: Literal["write", "access"] = "write",
    ) -> None:
        """Declare a map for each key, which a task uses with `context.map_state(name)`.

        It is a store with an entry for each entry of a map, under (key, key in the map). `context.store(name)` has the
        entries of all keys.

        Args:
            name: the name of the store.
            key: the serde of the messages' keys, whose bytes must sort as they do (not `Json`); by default `String`.
            map_key: the serde of the keys in the maps, whose bytes must sort as they do; by default `String`.
            value: the serde of the values; by default `Json`.
            ttl_ms: how long an entry lives, as in `store`.
            ttl_from: since when, as in `store`.

        Raises:
            ConfigError: the store is declared already; its name, a serde or the time to live is not valid; or a
                serde does not sort.

        Example:
            >>> app = ps.StreamApplication("seats")
            >>> app.map_state("seats", map_key=ps.Integer(), value=ps.String())
        """
        ttl = time_to_live(f"map state `{name}`", ttl_ms, ttl_from)
        self._declared.map_state(name, key, map_key, value, ttl)

    def output(self, stream: str, *, key: Serde[Any] | None = None, value: Serde[Any] | None = None) -> SystemStream:
        """Declare an output stream. Pass the result to `send_to`.

        Args:
            stream: the stream's name, `system.stream`.
            key: the serde of the keys; by default `String`.
            value: the serde of the values; by default `Json`.

        Raises:
            ConfigError: the output is declared already, its name is malformed, or a serde is not valid.

        Example:
            >>> app = ps.StreamApplication("utilisation")
            >>> str(app.output("local.utilisation", value=ps.Long()))
            'local.utilisation'
        """
        return self._declared.output(stream, key, value)

    def graph(self) -> ApplicationGraph:
        """The application as plain values: its operators, stores and outputs.

        Raises:
            ConfigError: the application has no input.

        Example:
            >>> app = ps.StreamApplication("long-trips")
            >>> _ = app.input("local.trips").filter(lambda trip: trip["miles"] > 100)
            >>> [operator.id for operator in app.graph().operators]
            ['input-1', 'filter-1']
        """
        return self._declared.graph()

    def run(
        self,
        config: JobConfig | Mapping[str, object] | str | Path | None = None,
        *,
        spark: Any = None,
        until: Literal["latest"] | None = None,
        close: bool = True,
        drain: bool = False,
        from_checkpoint: str | None = None,
        reset_operators: Sequence[str] = (),
    ) -> Job:
        """Start the job on Spark. Returns once this process owns the job; its stores are restored in the background.

        If this raises, nothing was started.

        Args:
            config: a mapping of configuration keys, the path of a YAML or properties file, or a loaded JobConfig.
            spark: a SparkSession to run on. By default one is made from the `spark.*` keys and stopped at the end. For
                a session of your own, set `spark.python.worker.killOnIdleTimeout` and its time, which end workers that
                hang.
            until: "latest" ends the job once it has read what the inputs hold now; None runs it until it is stopped.
            close: whether the job treats the end that `until` names as the end of the stream, if the application uses
                event time or has tasks with `on_end`: windows close and timers fire, whatever the watermark, and
                `on_end` is called. With False they wait for the next run.
            drain: drain the job without reading anything: what waits in its last checkpoint is processed, windows and
                timers fire, and the run ends.
            from_checkpoint: the checkpoint to start from instead of the last one, by its id or label.
            reset_operators: the ids of operators (windows, joins, tasks with timers, partition_by through a stream)
                that begin again, because they were changed or removed: what waits in them is dropped, and all other
                state is kept.

        Returns:
            The handle of the job.

        Raises:
            ConfigError: the configuration, the application or an argument is wrong.
            IncompatibleError: the application does not fit the checkpoint.
            NotFoundError: the named stream, checkpoint or operator does not exist.
            LeaseHeldError: another driver runs this job; the message names it.

        Example:
            >>> job = app.run({"spark.master": "local[2]"}, until="latest")  # doctest: +SKIP
            >>> job.await_termination()  # doctest: +SKIP
            True
        """
        run: Callable[..., Job] = load(HOSTS["spark"])  # an application can start itself, but knows no host
        return run(
            self,
            config,
            spark=spark,
            until=until,
            close=close,
            drain=drain,
            from_checkpoint=from_checkpoint,
            reset_operators=reset_operators,
        )


class StreamApplication(Application):
    """An application as a graph of operators, as Samza's high-level API.

    Example:
        >>> class Count(ps.StreamTask):
        ...     def init(self, context):
        ...         self.flights = context.store("flights")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         self.flights[envelope.key] = self.flights.get(envelope.key, 0) + 1
        >>> app = ps.StreamApplication("count")
        >>> app.store("flights", value=ps.Long())
        >>> by_tail = app.input("local.trips").partition_by(lambda trip: trip["tail"])
        >>> _ = by_tail.process(Count, stores=["flights"])
        >>> runner = TestRunner(app).input("local.trips", [{"tail": "N1"}, {"tail": "N2"}, {"tail": "N1"}]).run()
        >>> runner.store("flights")
        {'N1': 2, 'N2': 1}
    """

    @overload
    def input(
        self,
        stream: str,
        *,
        key: Serde[Any] | None = ...,
        value: None = ...,
        timestamp: Callable[[Any], int] | None = ...,
        watermark: WatermarkPolicy | None = ...,
        id: str | None = ...,
        pattern: bool = ...,
    ) -> MessageStream[Any]: ...
    @overload
    def input(
        self,
        stream: str,
        *,
        key: Serde[Any] | None = ...,
        value: Serde[U],
        timestamp: Callable[[U], int] | None = ...,
        watermark: WatermarkPolicy | None = ...,
        id: str | None = ...,
        pattern: bool = ...,
    ) -> MessageStream[U]: ...
    def input(
        self,
        stream: str,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        timestamp: Callable[[Any], int] | None = None,
        watermark: WatermarkPolicy | None = None,
        id: str | None = None,  # noqa: A002
        pattern: bool = False,
    ) -> MessageStream[Any]:
        """Read a stream. Its partition i goes to task i. A stream is declared once and can have several readers.

        If a `partition_by` right after the input replaces the key, the key is not decoded.

        Args:
            stream: the stream's name, `system.stream`.
            key: the serde of the keys; by default `String`.
            value: the serde of the values; by default `Json`.
            timestamp: the event time of a value, in epoch milliseconds; by default the message's own timestamp. All
                that the message leads to has the same timestamp, through all operators.
            watermark: up to which event time a partition is complete, by the highest that was read of it; by default
                `Ascending()`.
            id: the operator's stable name, see `MessageStream`.
            pattern: read every stream whose name matches: `stream` is `system.expression`, a regular expression for
                whole names. The job takes in streams that are created while it runs, from their oldest message.
                `envelope.ssp.stream` says which stream a message is from.

        Raises:
            ConfigError: the input is declared already, its name is malformed, or a serde, the timestamp or the
                watermark is not valid.

        Example:
            >>> app = ps.StreamApplication("utilisation")
            >>> app.input("local.trips", key=ps.Long())
            <MessageStream from `input-1` of application utilisation>
        """
        declared = self._declared.input(stream, key, value, timestamp, watermark, id, pattern=pattern)
        return MessageStream(self._declared, declared)

    def table(
        self,
        name: str,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        ttl_ms: Duration | None = None,
        history_ms: Duration | None = None,
        side_inputs: Sequence[str | SideInput] | None = None,
        processor: SideInputsProcessor | SideInputsProcessorFactory | ProcessorFunction | None = None,
        broadcast: bool = False,
        pushed: PushedTable | None = None,
    ) -> Table:
        """Declare a table: a store that `stream.send_to(table)` writes and `stream.join_table(table, ...)` reads.

        Tasks that name it in `process(stores=[...])` read and write it like any store. All of them run in one stage of
        the job, where a task has the part of the table that belongs to its keys.

        Args:
            name: the table's name, which is that of its store.
            key: the serde of the keys, which is also that of the streams that write and join the table; by default
                `String`.
            value: the serde of the values; by default `Json`.
            ttl_ms: how long an entry lives since it was written, in milliseconds of batch time, as in `store`.
            history_ms: keep the versions of each value by event time, for `join_table(table, ..., as_of=True)`. A
                message to the table may be up to this many milliseconds below the watermark; an older one is counted as
                `late-dropped`. None for a table without versions.
            side_inputs: the streams that fill the table, `system.stream` each, or a `SideInput` for a stream with other
                serdes than those of the table. The job then only reads it. None: the job writes the table.
            processor: makes entries of the messages of `side_inputs`. None: each message is an entry, and one whose
                value is None deletes its key.
            broadcast: whether every task has everything that `side_inputs` bring. Otherwise task i has what partition i
                brings, and each of these streams has a partition for each task.
            pushed: the table, written as a whole by somebody else, that fills the table. The job then only reads it.

        Raises:
            ConfigError: the table is declared already; its name, a serde, `ttl_ms` or `history_ms` is not valid; both
                of the latter are given; or an argument about what fills it is malformed or contradicts another one.

        Example:
            >>> app = ps.StreamApplication("delays")
            >>> delays = app.table("delays", value=ps.Long())
            >>> _ = app.input("local.delays").send_to(delays)
            >>> runner = TestRunner(app).input("local.delays", [("UA1", 5), ("UA2", 7), ("UA1", None)]).run()
            >>> runner.store("delays")
            {'UA2': 7}
        """
        ttl = time_to_live(f"table `{name}`", ttl_ms, "write")
        side = SideDeclaration.of(f"table `{name}`", side_inputs, processor, broadcast, pushed)
        return self._declared.table(name, key, value, ttl, history_ms, side)
