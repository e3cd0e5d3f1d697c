"""Applications: what a job consists of. The high-level StreamApplication and the low-level TaskApplication."""

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
        raise ConfigError(f"{kind} `{name}`: a name is made of letters, digits, `_`, `-` and `.`")
    return name


class Application:
    """What both kinds of application share: inputs, outputs, stores, and running."""

    def __init__(self, name: str) -> None:
        """`name` is the job's name unless `job.name` is configured."""
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
        """Declare a store. Default serdes: String keys, Json values. Every task gets a separate instance.

        Choose the key's serde by what `range` is to sort by: text (`String`), numbers (`Integer`, `Long`, `Double`), or
        several fields (`Tuple`). JSON keys have no ranges.
        """
        _check_name("store", name)
        if name in self._stores:
            raise ConfigError(f"store `{name}` is declared twice in application `{self.name}`")
        place = store_place(name)
        key, value = place.serde("key", key, String()), place.serde("value", value, Json())
        self._stores[name] = StoreSpec(name, key.for_store_keys(), value)

    def output(self, stream: str, *, key: Serde[Any] | None = None, value: Serde[Any] | None = None) -> SystemStream:
        """Declare an output stream, `system.stream`. Default serdes: String keys, Json values."""
        name = SystemStream.parse(stream)
        if name in self._outputs:
            raise ConfigError(f"output `{name}` is declared twice in application `{self.name}`")
        place = output_place(name)
        key, value = place.serde("key", key, String()), place.serde("value", value, Json())
        self._outputs[name] = OutputSpec(name, key.for_keys(), value)
        return name

    def graph(self) -> ApplicationGraph:
        """The application as plain values. Raises ConfigError if it reads nothing."""
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
        """Start the job on Spark and return its handle once it owns the job; restoring continues in the background.

        ```python
        job = app.run({"spark.master": "local[2]"}, until="latest")
        job.await_termination()
        ```

        Args:
            config: a dict of configuration keys, a path to a YAML or properties file, or a loaded JobConfig.
            spark: a SparkSession to run on; by default one is made from the `spark.*` keys and stopped at the end. It
                should have been made with `spark.python.worker.killOnIdleTimeout` and a time for it, so that a worker
                that hangs is ended.
            until: "latest" ends the job once it has read what the inputs hold now; None runs it until it is stopped.
            from_checkpoint: the id of the checkpoint to start from instead of the last one.

        Raises:
            ConfigError: the configuration, the application or an argument is wrong.
            IncompatibleError: the application does not fit the checkpoint.
            NotFoundError: a stream or checkpoint that was named does not exist.
            LeaseHeldError: another copy of the job runs; the message names it.
            After any of these nothing was started.
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
            raise ConfigError(f'stores="{stores}" is one text, but process() takes several names: stores=["{stores}"]')
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
    """An application as a graph of operators (Samza's high-level API)."""

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
        """Read a stream, `system.stream`. Default serdes: String keys, Json values. A key that a
        `partition_by` right after it replaces is not decoded."""
        return MessageStream(self, self._add_input(stream, key, value, id))


class TaskApplication(Application):
    """An application of one StreamTask that gets every message of every input (Samza's low-level API).

    Messages come to the task of their own partition, those of `task.broadcast.inputs` to every task; nothing is
    repartitioned.
    """

    def __init__(self, name: str, task: Callable[[], StreamTask]) -> None:
        super().__init__(name)
        self._task = task

    def input(self, stream: str, *, key: Serde[Any] | None = None, value: Serde[Any] | None = None) -> None:
        """Read a stream, `system.stream`. Default serdes: String keys, Json values. A key that a
        `partition_by` right after it replaces is not decoded."""
        self._add_input(stream, key, value, None)

    def graph(self) -> ApplicationGraph:
        """The inputs and the task."""
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
    """The messages an operator emits. Functions get a message's value; its key and timestamp travel along.

    With `envelope=True` a function gets the IncomingMessageEnvelope, which has key, value, timestamp, offset and ssp:

    ```python
    trips.filter(lambda trip: trip["distance"] > 0)
    trips.filter(lambda message: message.timestamp >= opening, envelope=True)
    ```
    Every operator takes `id`: a stable name of your own. Without one it is numbered by kind (`filter-1`), which
    changes when another of its kind is put before it.
    """

    def __init__(self, app: Application, operator: OperatorSpec) -> None:
        self._app = app
        self._operator = operator

    def __repr__(self) -> str:
        return f"<{type(self).__name__} from `{self._operator.id}` of application {self._app.name}>"

    def _next(self, kind: str, op_id: str | None, make: Callable[[str], OperatorSpec]) -> MessageStream[Any]:
        return MessageStream(self._app, self._app._add(make, kind, op_id))

    def _same(self) -> dict[str, Any]:
        """What an operator that leaves messages as they are passes on."""
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
        """Replace each value by the function of it, which must not change the value it is given but return another:
        all operators that read this stream get the same object."""
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
        """Replace each value by the values the function returns, none or many. It must not change the value it is
        given."""
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
        """Keep the messages for which the function of the value is true. It must not change the value."""
        return self._next(
            "filter", id, lambda i: FilterSpec(id=i, function=function, envelope=envelope, **self._same())
        )

    def merge(self, *others: MessageStream[Any], id: str | None = None) -> MessageStream[Any]:  # noqa: A002
        """All messages of this stream and the others, each stream in its order."""
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
        """Give each message a new key, the function of its value, and send it to the task that owns the key.

        The function must not change the value. The task is Kafka's murmur2 over the key's bytes; messages with the
        key None go to task 0. Default serdes: String keys, and the values' serde as it was (Json after map and
        process).
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
        """Run a StreamTask on every message. What it emits is the stream that follows.

        Args:
            task: the class, or a function without arguments that makes the task.
            stores: names of declared stores it uses.
            key, value: serdes of what it emits, used where the next operator is in another stage.
        """
        spec = self._app._process([self._operator], task, stores, id, key, value)
        return MessageStream(self._app, spec)

    def sink(self, function: SinkFunction, *, id: str | None = None) -> None:  # noqa: A002
        """Call `function(envelope, collector, coordinator)` for each message; nothing follows.

        It is called at least once per message: again when a batch is run again.
        """
        self._next("sink", id, lambda i: SinkSpec(id=i, function=function, **self._same()))

    def send_to(self, output: SystemStream, *, id: str | None = None) -> MessageStream[T]:  # noqa: A002
        """Write each message to an output declared with `app.output(...)`. Returns this stream."""
        if output not in self._app._outputs:
            raise ConfigError(f"output `{output}` is not declared: use `app.output(...)`")
        self._next("send_to", id, lambda i: SendToSpec(id=i, output=output, **self._same()))
        return self
