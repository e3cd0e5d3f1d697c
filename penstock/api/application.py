"""Applications describe jobs: StreamApplication is the high-level API, TaskApplication the low-level one."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from penstock.api.graph import (
    ApplicationGraph,
    FilterSpec,
    FlatMapSpec,
    InputSpec,
    MapSpec,
    MergeSpec,
    OperatorSpec,
    OutputSpec,
    PartitionBySpec,
    ProcessSpec,
    SendToSpec,
    SinkFunction,
    SinkSpec,
)
from penstock.api.serdes import Json, Serde, String
from penstock.api.serdes.failures import (
    input_place,
    output_place,
    partition_by_place,
    process_place,
    store_place,
)
from penstock.api.ssp import SystemStream
from penstock.api.store import StoreSpec
from penstock.api.task import IncomingMessageEnvelope, StreamTask
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.config.model import JobConfig
    from penstock.engine.job import Job

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
T = TypeVar("T")
U = TypeVar("U")
_Spec = TypeVar("_Spec", bound=OperatorSpec)


def _check_name(kind: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{kind} `{name}`: a name begins with a letter, digit or `_`, and may also hold `-` and `.`")
    return name


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
        self.name = _check_name("application", name)
        self._operators: dict[str, OperatorSpec] = {}
        self._counters: Counter[str] = Counter()
        self._stores: dict[str, StoreSpec] = {}
        self._outputs: dict[SystemStream, OutputSpec] = {}

    def __repr__(self) -> str:
        inputs = [str(op.stream) for op in self._operators.values() if isinstance(op, InputSpec)]
        parts = {"inputs": inputs, "stores": self._stores, "outputs": map(str, self._outputs)}
        told = "; ".join(f"{kind} {', '.join(names)}" for kind, found in parts.items() if (names := list(found)))
        return f"<{type(self).__name__} {self.name}: {told or 'empty'}>"

    def store(self, name: str, *, key: Serde[Any] | None = None, value: Serde[Any] | None = None) -> None:
        """Declare a store. Every task has a separate instance of it.

        The key's serde decides how `range` sorts: as text (`String`), as numbers (`Integer`, `Long`, `Double`), or by
        several fields (`Tuple`). JSON keys have no ranges.

        Args:
            name: what `process(stores=[...])` and `context.store(...)` call the store.
            key: the serde of the keys; by default `String`.
            value: the serde of the values; by default `Json`.

        Raises:
            ConfigError: the store is declared already, its name is not allowed, or a serde is not one.

        Example:
            >>> app = ps.StreamApplication("utilisation")
            >>> app.store("aircraft")
            >>> app.store("flights", key=ps.Tuple(ps.String(), ps.Long()))
            >>> app
            <StreamApplication utilisation: stores aircraft, flights>
        """
        _check_name("store", name)
        if name in self._stores:
            raise ConfigError(f"store `{name}` is declared twice in application `{self.name}`")
        place = store_place(name)
        key, value = place.serde("key", key, String()), place.serde("value", value, Json())
        self._stores[name] = StoreSpec(name, key.for_store_keys(), value)

    def output(self, stream: str, *, key: Serde[Any] | None = None, value: Serde[Any] | None = None) -> SystemStream:
        """Declare an output stream. The result is what `send_to` takes.

        Args:
            stream: the stream's name, `system.stream`.
            key: the serde of the keys; by default `String`.
            value: the serde of the values; by default `Json`.

        Raises:
            ConfigError: the output is declared already, its name is malformed, or a serde is not one.

        Example:
            >>> app = ps.StreamApplication("utilisation")
            >>> str(app.output("local.utilisation", value=ps.Long()))
            'local.utilisation'
        """
        name = SystemStream.parse(stream)
        if name in self._outputs:
            raise ConfigError(f"output `{name}` is declared twice in application `{self.name}`")
        place = output_place(name)
        key, value = place.serde("key", key, String()), place.serde("value", value, Json())
        self._outputs[name] = OutputSpec(name, key.for_keys(), value)
        return name

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
        graph = ApplicationGraph(
            self.name, tuple(self._operators.values()), tuple(self._stores.values()), tuple(self._outputs.values())
        )
        if not graph.inputs:
            raise ConfigError(f"application `{self.name}` has no input: add one with `app.input(...)`")
        return graph

    def run(
        self,
        config: JobConfig | Mapping[str, object] | str | Path | None = None,
        *,
        spark: Any = None,
        until: Literal["latest"] | None = None,
        from_checkpoint: str | None = None,
    ) -> Job:
        """Start the job on Spark. Returns once this process owns the job; its stores are restored in the background.

        If this raises, nothing was started.

        Args:
            config: a mapping of configuration keys, the path of a YAML or properties file, or a loaded JobConfig.
            spark: a SparkSession to run on. By default one is made from the `spark.*` keys and stopped at the end.
                Configure a session of your own with `spark.python.worker.killOnIdleTimeout` and its time, which end
                workers that hang.
            until: "latest" ends the job once it has read what the inputs hold now; None runs it until it is stopped.
            from_checkpoint: the id of the checkpoint to start from instead of the last one.

        Returns:
            The handle of the job.

        Raises:
            ConfigError: the configuration, the application or an argument is wrong.
            IncompatibleError: the application does not fit the checkpoint.
            NotFoundError: the named stream or checkpoint does not exist.
            LeaseHeldError: another driver runs this job; the message names it.

        Example:
            >>> job = app.run({"spark.master": "local[2]"}, until="latest")  # doctest: +SKIP
            >>> job.await_termination()  # doctest: +SKIP
            True
        """
        # The one arrow that points upwards: an application knows how to start itself. It is looked up at the
        # call, so that importing the API needs neither Spark nor Flight.
        job: Job = importlib.import_module("penstock.engine.launch").run_application(
            self, config, spark=spark, until=until, from_checkpoint=from_checkpoint
        )
        return job

    def _add(self, make: Callable[[str], _Spec], kind: str, op_id: str | None) -> _Spec:
        if op_id is None:
            self._counters[kind] += 1
            op_id = f"{kind}-{self._counters[kind]}"
        _check_name("operator id", op_id)
        if op_id in self._operators:
            numbered = re.fullmatch(rf"{kind}-[0-9]+", op_id)
            advice = ". Operators without an id are numbered: give the other one an id as well" if numbered else ""
            raise ConfigError(
                f"operator id `{op_id}` is used twice in application `{self.name}`: ids are unique{advice}"
            )
        spec = make(op_id)
        self._operators[op_id] = spec
        return spec

    def _add_input(self, stream: str, key: Serde[Any] | None, value: Serde[Any] | None, op_id: str | None) -> InputSpec:
        name = SystemStream.parse(stream)
        if any(isinstance(op, InputSpec) and op.stream == name for op in self._operators.values()):
            raise ConfigError(f"input `{name}` is declared twice in application `{self.name}`: reuse the first one")
        place = input_place(name)
        key, value = place.serde("key", key, String()).for_keys(), place.serde("value", value, Json())
        return self._add(
            lambda i: InputSpec(id=i, upstream=(), key_serde=key, value_serde=value, stream=name), "input", op_id
        )

    def _process(
        self,
        upstream: Sequence[OperatorSpec],
        task: Callable[[], StreamTask],
        stores: Iterable[str],
        op_id: str | None,
        key: Serde[Any] | None,
        value: Serde[Any] | None,
    ) -> ProcessSpec:
        if isinstance(stores, str):
            raise ConfigError(
                f'stores="{stores}" is one string, but process() takes a list of names: stores=["{stores}"]'
            )
        names = tuple(stores)
        for name in names:
            if name not in self._stores:
                known = ", ".join(f"`{s}`" for s in self._stores) or "none"
                raise ConfigError(
                    f"store `{name}` is not declared; declared stores: {known}. Use `app.store(...)` first"
                )
        if not callable(task):
            raise ConfigError(f"process() takes a StreamTask class or a function that makes one, not {task!r}")

        def make(i: str) -> ProcessSpec:
            place, default = process_place(f"operator `{i}`"), upstream[0].key_serde
            return ProcessSpec(
                id=i,
                upstream=tuple(u.id for u in upstream),
                task=task,
                stores=names,
                key_serde=default if key is None else place.serde("key", key, default).for_keys(),
                value_serde=place.serde("value", value, Json()),
            )

        return self._add(make, "process", op_id)


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
        id: str | None = ...,
    ) -> MessageStream[Any]: ...
    @overload
    def input(
        self,
        stream: str,
        *,
        key: Serde[Any] | None = ...,
        value: Serde[U],
        id: str | None = ...,
    ) -> MessageStream[U]: ...
    def input(
        self,
        stream: str,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        id: str | None = None,  # noqa: A002
    ) -> MessageStream[Any]:
        """Read a stream. Its partition i goes to task i. A stream is declared once and can have several readers.

        A key is not decoded if a `partition_by` right after the input replaces it.

        Args:
            stream: the stream's name, `system.stream`.
            key: the serde of the keys; by default `String`.
            value: the serde of the values; by default `Json`.
            id: the operator's stable name, see `MessageStream`.

        Raises:
            ConfigError: the input is declared already, its name is malformed, or a serde is not one.

        Example:
            >>> app = ps.StreamApplication("utilisation")
            >>> app.input("local.trips", key=ps.Long())
            <MessageStream from `input-1` of application utilisation>
        """
        return MessageStream(self, self._add_input(stream, key, value, id))


class TaskApplication(Application):
    """An application of one StreamTask, which gets every message of every input, as Samza's low-level API.

    Nothing is repartitioned. Task i gets the messages of partition i of each input, and those of
    `task.broadcast.inputs`. It can use every store of the application.

    Example:
        >>> class Forward(ps.StreamTask):
        ...     def process(self, envelope, collector, coordinator):
        ...         collector.send("local.out", key=envelope.key, value=[envelope.ssp.stream, envelope.value])
        >>> app = ps.TaskApplication("forward", Forward)
        >>> app.input("local.trips")
        >>> _ = app.output("local.out")
        >>> runner = TestRunner(app).input("local.trips", [("N1", 517)]).run()
        >>> [(message.key, message.value) for message in runner.output("local.out")]
        [('N1', ['trips', 517])]
    """

    def __init__(self, name: str, task: Callable[[], StreamTask]) -> None:
        """Make an application without inputs, outputs or stores.

        Args:
            name: the job's name, unless `job.name` is configured.
            task: the StreamTask's class, or a function without arguments that makes the task.
        """
        super().__init__(name)
        self._task = task

    def input(self, stream: str, *, key: Serde[Any] | None = None, value: Serde[Any] | None = None) -> None:
        """Read a stream. The task gets its messages.

        Args:
            stream: the stream's name, `system.stream`.
            key: the serde of the keys; by default `String`.
            value: the serde of the values; by default `Json`.

        Raises:
            ConfigError: the input is declared already, its name is malformed, or a serde is not one.
        """
        self._add_input(stream, key, value, None)

    def graph(self) -> ApplicationGraph:
        """The application as plain values: its inputs, its task, stores and outputs.

        Raises:
            ConfigError: the application has no input.
        """
        graph = super().graph()
        inputs = graph.inputs
        task = ProcessSpec(
            id="task",
            upstream=tuple(op.id for op in inputs),
            task=self._task,
            stores=tuple(self._stores),
            key_serde=inputs[0].key_serde,
            value_serde=Json(),
        )
        return replace(graph, operators=(*graph.operators, task))


class MessageStream(Generic[T]):
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

    def __init__(self, app: Application, operator: OperatorSpec) -> None:
        self._app = app
        self._operator = operator

    def __repr__(self) -> str:
        return f"<{type(self).__name__} from `{self._operator.id}` of application {self._app.name}>"

    def _next(self, kind: str, op_id: str | None, make: Callable[[str], OperatorSpec]) -> MessageStream[Any]:
        return MessageStream(self._app, self._app._add(make, kind, op_id))

    def _same(self) -> dict[str, Any]:
        """The fields of an operator that leaves messages as they are."""
        op = self._operator
        return {"upstream": (op.id,), "key_serde": op.key_serde, "value_serde": op.value_serde}

    def _changed(self) -> dict[str, Any]:
        return {**self._same(), "value_serde": Json()}

    @overload
    def map(
        self,
        function: Callable[[T], U],
        *,
        envelope: Literal[False] = ...,
        id: str | None = ...,
    ) -> MessageStream[U]: ...
    @overload
    def map(
        self,
        function: Callable[[IncomingMessageEnvelope], U],
        *,
        envelope: Literal[True],
        id: str | None = ...,
    ) -> MessageStream[U]: ...
    def map(
        self,
        function: Callable[[Any], Any],
        *,
        envelope: bool = False,
        id: str | None = None,  # noqa: A002
    ) -> MessageStream[Any]:
        """Replace each value by what the function returns for it.

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
        return self._next("map", id, lambda i: MapSpec(id=i, function=function, envelope=envelope, **self._changed()))

    @overload
    def flat_map(
        self,
        function: Callable[[T], Iterable[U]],
        *,
        envelope: Literal[False] = ...,
        id: str | None = ...,
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
        """Replace each value by all values that the function returns for it: none, one or several.

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
            "flat_map", id, lambda i: FlatMapSpec(id=i, function=function, envelope=envelope, **self._changed())
        )

    @overload
    def filter(
        self,
        function: Callable[[T], Any],
        *,
        envelope: Literal[False] = ...,
        id: str | None = ...,
    ) -> MessageStream[T]: ...
    @overload
    def filter(
        self,
        function: Callable[[IncomingMessageEnvelope], Any],
        *,
        envelope: Literal[True],
        id: str | None = ...,
    ) -> MessageStream[T]: ...
    def filter(
        self,
        function: Callable[[Any], Any],
        *,
        envelope: bool = False,
        id: str | None = None,  # noqa: A002
    ) -> MessageStream[T]:
        """Keep the messages for which the function returns something true.

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
        return self._next(
            "filter", id, lambda i: FilterSpec(id=i, function=function, envelope=envelope, **self._same())
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
        if any(other._app is not self._app for other in others):
            raise ConfigError("merge() takes streams of one application")
        upstream = (self._operator.id, *(other._operator.id for other in others))
        if len(set(upstream)) != len(upstream):
            raise ConfigError("merge() takes different streams; one of these is given twice")
        return self._next("merge", id, lambda i: MergeSpec(id=i, **{**self._same(), "upstream": upstream}))

    @overload
    def partition_by(
        self,
        function: Callable[[T], Any],
        *,
        key: Serde[Any] | None = ...,
        value: Serde[Any] | None = ...,
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
        envelope: Literal[True],
        id: str | None = ...,
    ) -> MessageStream[T]: ...
    def partition_by(
        self,
        function: Callable[[Any], Any],
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        envelope: bool = False,
        id: str | None = None,  # noqa: A002
    ) -> MessageStream[T]:
        """Give each message a new key, and send it to the task that owns the key.

        The owner follows from the key's bytes by Kafka's murmur2, so equal keys meet in one task. Messages with the key
        None go to task 0. The messages of one input partition keep their order.

        Args:
            function: gets the value, and returns the key. It must not change the value in place.
            key: the serde of the new keys; by default `String`.
            value: the serde of the values on their way; by default as before, and `Json` after `map`, `flat_map` and
                `process`.
            envelope: the function gets the whole message instead.
            id: the operator's stable name.

        Raises:
            ConfigError: a serde is not one.

        Example:
            >>> app = ps.StreamApplication("by-tail")
            >>> by_tail = app.input("local.trips").partition_by(lambda trip: trip["tail"])
            >>> _ = by_tail.send_to(app.output("local.by-tail"))
            >>> runner = TestRunner(app).input("local.trips", [{"tail": "N1"}] * 3).run()
            >>> {(message.key, message.partition) for message in runner.output("local.by-tail")}
            {('N1', 0)}
        """
        same = self._same()

        def make(i: str) -> PartitionBySpec:
            place = partition_by_place(f"operator `{i}`")
            same["key_serde"] = place.serde("key", key, String()).for_keys()
            same["value_serde"] = place.serde("value", value, same["value_serde"])
            return PartitionBySpec(id=i, function=function, envelope=envelope, **same)

        return self._next("partition_by", id, make)

    def process(
        self,
        task: Callable[[], StreamTask],
        *,
        stores: Iterable[str] = (),
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        id: str | None = None,  # noqa: A002
    ) -> MessageStream[Any]:
        """Run a StreamTask on every message. The result is the stream of the messages that it emits.

        Args:
            task: the StreamTask's class, or a function without arguments that makes the task.
            stores: the names of the declared stores that the task uses.
            key: the serde of the emitted keys, for the way to another stage; by default that of this stream.
            value: the serde of the emitted values; by default `Json`.
            id: the operator's stable name.

        Raises:
            ConfigError: a store is not declared, the task cannot be called, or a serde is not one.

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
        spec = self._app._process([self._operator], task, stores, id, key, value)
        return MessageStream(self._app, spec)

    def sink(self, function: SinkFunction, *, id: str | None = None) -> None:  # noqa: A002
        """Call a function for each message. No operator follows.

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
        self._next("sink", id, lambda i: SinkSpec(id=i, function=function, **self._same()))

    def send_to(self, output: SystemStream, *, id: str | None = None) -> MessageStream[T]:  # noqa: A002
        """Write each message to an output stream, at least once. Returns this stream, to which more can be added.

        The partition follows from the key's bytes by Kafka's murmur2. A message without a key goes to the partition of
        its task's number.

        Args:
            output: what `app.output(...)` returned.
            id: the operator's stable name.

        Raises:
            ConfigError: the application has not declared this output.

        Example:
            >>> app = ps.StreamApplication("copies")
            >>> first, second = app.output("local.first"), app.output("local.second")
            >>> _ = app.input("local.trips").send_to(first).send_to(second)
            >>> runner = TestRunner(app).input("local.trips", [("N1", 5)]).run()
            >>> [message.value for name in ("first", "second") for message in runner.output(f"local.{name}")]
            [5, 5]
        """
        if output not in self._app._outputs:
            raise ConfigError(f"output `{output}` is not declared: use `app.output(...)`")
        self._next("send_to", id, lambda i: SendToSpec(id=i, output=output, **self._same()))
        return self
