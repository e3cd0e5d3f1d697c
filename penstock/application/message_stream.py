"""The messages between operators, and the operators that can follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, overload

from penstock.api.messages import IncomingMessageEnvelope
from penstock.api.serdes import Json, Serde, String
from penstock.api.ssp import SystemStream
from penstock.api.store import Table
from penstock.api.task import StreamTask
from penstock.api.time.firing import AtDrain
from penstock.application.patterns import Patterns
from penstock.application.windows_and_joins import WindowsAndJoins
from penstock.errors import ConfigError
from penstock.graph import specs
from penstock.graph.declarations import Declarations
from penstock.graph.event_time import Order
from penstock.graph.serdes import partition_by_place

T = TypeVar("T")
U = TypeVar("U")


class MessageStream(WindowsAndJoins[T], Patterns[T]):
    """The messages that an operator emits, as Samza's MessageStream.

    Functions get a message's value; its key, timestamp and origin are passed on unchanged. With `envelope=True` a
    function gets the whole IncomingMessageEnvelope. A function must not change the value that it gets, because all
    operators that read the stream get the same object.

    Every operator takes an `id`, a stable name. An operator without one is numbered by its kind (`filter-1`); the
    number changes when another operator of the kind is added before it.

    Example:
        >>> app = ps.StreamApplication("lengths")
        >>> trips = app.input("local.trips")
        >>> late = trips.filter(lambda message: message.timestamp >= 1000, envelope=True, id="late")
        >>> _ = late.map(lambda trip: trip["miles"]).send_to(app.output("local.miles"))
        >>> runner = TestRunner(app).input("local.trips", [{"miles": 5}], timestamp=999)
        >>> runner = runner.input("local.trips", [{"miles": 7}], timestamp=1000).run()
        >>> [message.value for message in runner.output("local.miles")]
        [7]
    """

    def __init__(self, declared: Declarations, operator: specs.OperatorSpec) -> None:
        self._declared = declared
        self._operator = operator

    def __repr__(self) -> str:
        return f"<{type(self).__name__} from `{self._operator.id}` of application {self._declared.name}>"

    def _next(
        self, kind: str, op_id: str | None, make: Callable[[str], specs.OperatorSpec], renamed_from: str | None = None
    ) -> MessageStream[Any]:
        return MessageStream(self._declared, self._declared.add(make, kind, op_id, renamed_from))

    def _same(self) -> dict[str, Any]:
        op = self._operator
        return {"upstream": (op.id,), "key_serde": op.key_serde, "value_serde": op.value_serde}

    def _changed(self) -> dict[str, Any]:
        return {**self._same(), "value_serde": Json()}

    @overload
    def map(
        self, function: Callable[[T], U], *, envelope: Literal[False] = ..., id: str | None = ...
    ) -> MessageStream[U]: ...
    @overload
    def map(
        self, function: Callable[[IncomingMessageEnvelope], U], *, envelope: Literal[True], id: str | None = ...
    ) -> MessageStream[U]: ...
    def map(
        self,
        function: Callable[[Any], Any],
        *,
        envelope: bool = False,
        id: str | None = None,  # noqa: A002
    ) -> MessageStream[Any]:
        """Replace each value with the one that the function returns for it.

        Args:
            function: gets the value, and returns another one. It must not change the value in place.
            envelope: the function gets the whole message instead.
            id: the operator's stable name.

        Example:
            >>> app = ps.StreamApplication("miles")
            >>> miles = app.input("local.trips").map(lambda trip: trip["miles"])
            >>> _ = miles.send_to(app.output("local.miles"))
            >>> runner = TestRunner(app).input("local.trips", [{"miles": 1400}]).run()
            >>> [message.value for message in runner.output("local.miles")]
            [1400]
        """
        return self._next(
            "map", id, lambda i: specs.MapSpec(id=i, function=function, envelope=envelope, **self._changed())
        )

    @overload
    def flat_map(
        self, function: Callable[[T], Iterable[U]], *, envelope: Literal[False] = ..., id: str | None = ...
    ) -> MessageStream[U]: ...
    @overload
    def flat_map(
        self,
        function: Callable[[IncomingMessageEnvelope], Iterable[U]],
        *,
        envelope: Literal[True],
        id: str | None = ...,
    ) -> MessageStream[U]: ...
    def flat_map(
        self,
        function: Callable[[Any], Iterable[Any]],
        *,
        envelope: bool = False,
        id: str | None = None,  # noqa: A002
    ) -> MessageStream[Any]:
        """Replace each value with all values that the function returns for it: none, one or several.

        Args:
            function: gets the value, and returns an iterable of values. It must not change the value in place.
            envelope: the function gets the whole message instead.
            id: the operator's stable name.

        Example:
            >>> app = ps.StreamApplication("words")
            >>> words = app.input("local.lines").flat_map(lambda line: line.split())
            >>> _ = words.send_to(app.output("local.words"))
            >>> runner = TestRunner(app).input("local.lines", ["to be or", "", "not"]).run()
            >>> sorted(message.value for message in runner.output("local.words"))
            ['be', 'not', 'or', 'to']
        """
        return self._next(
            "flat_map", id, lambda i: specs.FlatMapSpec(id=i, function=function, envelope=envelope, **self._changed())
        )

    @overload
    def filter(
        self, function: Callable[[T], Any], *, envelope: Literal[False] = ..., id: str | None = ...
    ) -> MessageStream[T]: ...
    @overload
    def filter(
        self, function: Callable[[IncomingMessageEnvelope], Any], *, envelope: Literal[True], id: str | None = ...
    ) -> MessageStream[T]: ...
    def filter(
        self,
        function: Callable[[Any], Any],
        *,
        envelope: bool = False,
        id: str | None = None,  # noqa: A002
    ) -> MessageStream[T]:
        """Keep the messages for which the function returns a true value.

        Args:
            function: gets the value. It must not change the value in place.
            envelope: the function gets the whole message instead.
            id: the operator's stable name.

        Example:
            >>> app = ps.StreamApplication("long-trips")
            >>> long_trips = app.input("local.trips").filter(lambda trip: trip["miles"] >= 1000)
            >>> _ = long_trips.send_to(app.output("local.long-trips"))
            >>> runner = TestRunner(app).input("local.trips", [{"miles": 1400}, {"miles": 90}]).run()
            >>> [message.value for message in runner.output("local.long-trips")]
            [{'miles': 1400}]
        """
        self._check_condition(function, "filter()", envelope=envelope)
        return self._next(
            "filter", id, lambda i: specs.FilterSpec(id=i, function=function, envelope=envelope, **self._same())
        )

    def merge(self, *others: MessageStream[Any], id: str | None = None) -> MessageStream[Any]:  # noqa: A002
        """Combine this stream and others into one. The messages of each stream keep their order.

        Args:
            others: streams of the same application, all different.
            id: the operator's stable name.

        Raises:
            ConfigError: a stream is of another application, or is given twice.

        Example:
            >>> app = ps.StreamApplication("arrivals")
            >>> flights, trains = app.input("local.flights"), app.input("local.trains")
            >>> _ = flights.merge(trains).send_to(app.output("local.arrivals"))
            >>> runner = TestRunner(app).input("local.flights", ["UA1"]).input("local.trains", ["ICE 5"]).run()
            >>> sorted(message.value for message in runner.output("local.arrivals"))
            ['ICE 5', 'UA1']
        """
        if any(other._declared is not self._declared for other in others):
            raise ConfigError("merge() takes streams of one application")
        upstream = (self._operator.id, *(other._operator.id for other in others))
        if len(set(upstream)) != len(upstream):
            raise ConfigError("merge() takes different streams; one of these is given twice")
        return self._next("merge", id, lambda i: specs.MergeSpec(id=i, **{**self._same(), "upstream": upstream}))

    @overload
    def partition_by(
        self,
        function: Callable[[T], Any],
        *,
        key: Serde[Any] | None = ...,
        value: Serde[Any] | None = ...,
        through: str | None = ...,
        envelope: Literal[False] = ...,
        id: str | None = ...,
    ) -> MessageStream[T]: ...
    @overload
    def partition_by(
        self,
        function: Callable[[IncomingMessageEnvelope], Any],
        *,
        key: Serde[Any] | None = ...,
        value: Serde[Any] | None = ...,
        through: str | None = ...,
        envelope: Literal[True],
        id: str | None = ...,
    ) -> MessageStream[T]: ...
    def partition_by(
        self,
        function: Callable[[Any], Any],
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        through: str | None = None,
        envelope: bool = False,
        id: str | None = None,  # noqa: A002
    ) -> MessageStream[T]:
        """Give each message a new key, and send it to the task that owns the key.

        The owner follows from the key's bytes by Kafka's murmur2, so equal keys meet in one task. Messages with the key
        None go to task 0. The messages of one input partition keep their order.

        Args:
            function: gets the value, and returns the key. It must not change the value in place. Or an expression: a
                column (`ps.col`), or several, whose serde is a `ps.Tuple`.
            key: the serde of the new keys; by default `String`.
            value: the serde of the values on their way; by default that of this stream, which is `Json` after `map`,
                `flat_map` and `process`.
            through: a durable intermediate stream, `system.stream`, that carries the messages instead of Spark's
                shuffle. The job creates it and is its only writer. Each message is read exactly once, in a batch after
                the one that wrote it, from positions that checkpoints hold.
            envelope: the function gets the whole message instead.
            id: the operator's stable name.

        Raises:
            ConfigError: a serde is not valid, or `through` is not the name of a stream.

        Example:
            >>> app = ps.StreamApplication("by-tail")
            >>> by_tail = app.input("local.trips").partition_by(lambda trip: trip["tail"])
            >>> _ = by_tail.send_to(app.output("local.by-tail"))
            >>> runner = TestRunner(app).input("local.trips", [{"tail": "N1"}] * 3).run()
            >>> {(message.key, message.partition) for message in runner.output("local.by-tail")}
            {('N1', 0)}
        """
        same = self._same()
        kind = self._check_expression(function, "partition_by()", envelope=envelope)

        def with_keys(i: str) -> dict[str, Any]:
            place = partition_by_place(f"operator `{i}`")
            same["key_serde"] = place.serde("key", key, String()).for_keys()
            if kind is not None:
                from penstock.graph.keys import check_key_type  # late: it brings Arrow

                check_key_type(same["key_serde"], kind, f"partition_by({function})")
            same["value_serde"] = place.serde("value", value, same["value_serde"])
            return {"id": i, "function": function, "envelope": envelope, **same}

        def write(i: str, stream: str) -> specs.PartitionThroughSpec:
            return specs.PartitionThroughSpec(**with_keys(i), through=SystemStream.parse(stream))

        if through is None:
            return self._next("partition_by", id, lambda i: specs.PartitionBySpec(**with_keys(i)))
        writer = self._declared.add(lambda i: write(i, through), "partition_by", id)
        return MessageStream(self._declared, self._declared.reader_of(writer))

    def process(
        self,
        task: Callable[[], StreamTask],
        *,
        stores: Iterable[str] = (),
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        timers: Serde[Any] | None = None,
        timers_at_drain: AtDrain = "fire",
        order: Order | None = None,
        late_to: SystemStream | None = None,
        id: str | None = None,  # noqa: A002
        renamed_from: str | None = None,
    ) -> MessageStream[Any]:
        """Run a StreamTask on every message. The result is the stream of the messages that it emits.

        With `order="event-time"`, messages wait in a store until the watermark has passed them. They then come in the
        order of their event times, with the timers in event time between them: what the task does depends neither on
        how messages fall into batches, nor on partitions, nor on whether the job reads live or again. At equal times,
        timers come before messages, and messages of a key by stream, partition and offset.

        Args:
            task: the StreamTask's class, or a function without arguments that makes the task.
            stores: the names of the declared stores that the task uses.
            key: the serde of the emitted keys on their way to another stage; by default that of this stream.
            value: the serde of the emitted values; by default `Json`.
            timers: the serde of the keys of the task's timers. Without it the task has none; see
                `TaskContext.schedule`.
            timers_at_drain: what a drain does to timers whose time has not come. "fire" calls `on_timer` once for each;
                "discard" drops them.
            order: "event-time" for messages in the order of their event times; None for the order in which they come.
            late_to: with `order`, the output for late messages. Without it, they are counted and dropped.
            id: the operator's stable name. The stores of its timers and of the messages that wait are named after it.
            renamed_from: the id that the operator had when its state was made, if it has another one now. Its stores
                keep that name.

        Raises:
            ConfigError: a store is not declared, `task` cannot be called, `timers` are given for a class without
                `on_timer`, a serde is not valid, `timers_at_drain` is neither of these or given without `timers`,
                `order` is none, or `late_to` is no output of the application or given without `order`.

        Example:
            >>> class Changes(ps.StreamTask):
            ...     def init(self, context):
            ...         self.gates = context.store("gates")
            ...
            ...     def process(self, envelope, collector, coordinator):
            ...         if self.gates.get(envelope.key) != envelope.value:
            ...             self.gates[envelope.key] = envelope.value
            ...             collector.emit(key=envelope.key, value=envelope.value)
            >>> app = ps.StreamApplication("gates")
            >>> app.store("gates")
            >>> changes = app.input("local.gates").process(Changes, stores=["gates"])
            >>> _ = changes.send_to(app.output("local.changes"))
            >>> runner = TestRunner(app).input("local.gates", [("UA1", 7), ("UA1", 7), ("UA1", 8)]).run()
            >>> [message.value for message in runner.output("local.changes")]
            [7, 8]
        """
        spec = self._declared.process(
            [self._operator], task, stores, id, key, value, timers, timers_at_drain, order, late_to, renamed_from
        )
        return MessageStream(self._declared, spec)

    def sink(self, function: specs.SinkFunction, *, id: str | None = None) -> None:  # noqa: A002
        """Call a function for each message. No operator can follow.

        The function is called at least once for each message: a batch that is run again calls it again.

        Args:
            function: called as `function(envelope, collector, coordinator)`, as `StreamTask.process`.
            id: the operator's stable name.

        Example:
            >>> app = ps.StreamApplication("alerts")
            >>> _ = app.output("local.alerts")
            >>> def alert(envelope, collector, coordinator):
            ...     if envelope.value > 100:
            ...         collector.send("local.alerts", key=envelope.key, value=envelope.value)
            >>> app.input("local.delays").sink(alert)
            >>> runner = TestRunner(app).input("local.delays", [("UA1", 5), ("UA2", 180)]).run()
            >>> [(message.key, message.value) for message in runner.output("local.alerts")]
            [('UA2', 180)]
        """
        self._next("sink", id, lambda i: specs.SinkSpec(id=i, function=function, **self._same()))

    def send_to(self, output: SystemStream | Table, *, id: str | None = None) -> MessageStream[T]:  # noqa: A002
        """Write each message to a table, or to an output stream, by default at least once. Returns this stream, which
        more operators can read.

        An output's partition follows from the key's bytes by Kafka's murmur2. A message without a key goes to the
        partition with its task's number. In a table, a message's value replaces the value of its key, and None deletes
        it.

        Args:
            output: what `app.output(...)` or `app.table(...)` returned.
            id: the operator's stable name.

        Raises:
            ConfigError: the application has not declared this output, the keys of the table have another serde than
                those of the stream, or the job does not write the table because something else fills it.

        Example:
            >>> app = ps.StreamApplication("copies")
            >>> first, second = app.output("local.first"), app.output("local.second")
            >>> _ = app.input("local.trips").send_to(first).send_to(second)
            >>> runner = TestRunner(app).input("local.trips", [("N1", 5)]).run()
            >>> [message.value for name in ("first", "second") for message in runner.output(f"local.{name}")]
            [5, 5]
        """
        if isinstance(output, Table):
            self._send_to_table(output, id)
            return self
        self._declared.check_output(output)
        self._next("send_to", id, lambda i: specs.SendToSpec(id=i, output=output, **self._same()))
        return self

    def _send_to_table(self, table: Table, op_id: str | None) -> None:
        self._declared.check_table(table, self._operator, "send_to()")
        self._declared.check_written(table)

        def make(i: str) -> specs.SendToTableSpec:
            stores: tuple[str, ...] = (table.name,)
            if table.history_ms is not None:
                definition = f"versions({table.key_serde.name})"
                stores += (self._declared.own_store(i, ".timers", "versions", definition),)
            return specs.SendToTableSpec(
                id=i,
                stores=stores,
                table=table.name,
                history_ms=table.history_ms,
                table_key=table.key_serde.for_store_keys(),
                **self._same(),
            )

        self._next("send_to", op_id, make)
