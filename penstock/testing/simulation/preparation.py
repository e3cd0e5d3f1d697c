"""A user's application made ready for the workers: its configuration, inputs and code."""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import penstock
from penstock.api.messages import HeadersLike, headers_of
from penstock.api.side_inputs import PushedTable
from penstock.api.ssp import SystemStream
from penstock.application.application import Application
from penstock.base.plugins import PICKLERS, load
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.config.settings import DEFAULT_SYSTEM, SystemKeys
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph
from penstock.start.part import complete
from penstock.system.base import RawRecord
from penstock.system.partitioner import partition_of
from penstock.testing.runner.sides import side_stream
from penstock.testing.runner.streams import StreamOfTest

REFERENCE = "reference.json"
"""The file, beside the job's own, with the result of a life without faults."""


@dataclass(frozen=True, slots=True)
class UsersJob:
    """A user's job with its inputs, as it is pickled for the workers.

    Attributes:
        graph: the pickled graph of the application.
        config: the keys of its configuration that count in a simulation.
        streams: all of its streams, with their number of partitions.
        feed: the records of the inputs.
        late: inputs whose messages may come later than others of their partition.
        doubled: inputs whose messages may come twice.
        exactly_once: outputs that have each message once.
        invariants: the pickled functions (inputs, outputs, stores).
        compares: whether to compare each life with one without faults.
        network: the application's code may reach the network.
        limit_s: the most seconds that a life takes.
        memory_bytes: the most memory that a life takes.
    """

    graph: bytes
    config: Mapping[str, str]
    streams: Mapping[SystemStream, int]
    feed: Sequence[tuple[SystemStream, int, RawRecord]]
    late: frozenset[SystemStream]
    doubled: frozenset[SystemStream]
    exactly_once: frozenset[SystemStream]
    invariants: bytes
    compares: bool
    network: bool
    limit_s: float
    memory_bytes: int

    def write(self, folder: Path) -> Path:
        """Write it to a file of the folder. Returns its path."""
        path = folder / "job.pickle"
        path.write_bytes(pickle.dumps(self))
        return path

    @staticmethod
    def read(path: str) -> Any:
        return pickle.loads(Path(path).read_bytes())  # noqa: S301 - the parent process wrote it


class SimulationInputs:
    """The messages that the job of a simulation reads. A function that gives its inputs to `simulate` gets one.

    Example:
        >>> from penstock.testing import simulate
        >>> app = ps.StreamApplication("copy")
        >>> _ = app.input("local.trips").send_to(app.output("local.copies"))
        >>> def trips(inputs):
        ...     inputs.input("local.trips", [("N1", 5)], timestamp=1_000)
        ...     inputs.input("local.trips", [("N2", 7)], timestamp=2_000)
        >>> simulate(app, trips, seeds=1, processes=1).lives
        1
    """

    def __init__(self, graph: ApplicationGraph, partitions: int) -> None:
        """Begin without messages.

        Args:
            graph: the application.
            partitions: how many partitions each stream has.
        """
        self._graph = graph
        self._partitions = partitions
        self.feed: list[tuple[SystemStream, int, RawRecord]] = []
        """The records so far."""

    def input(
        self,
        stream: str,
        values: Iterable[Any],
        *,
        partition: int | None = None,
        timestamp: int = 0,
        headers: HeadersLike = (),
        raw: bool = False,
    ) -> SimulationInputs:
        """Append messages to an input, as `TestRunner.input`. Returns this object.

        Args:
            stream: the input, `system.stream`.
            values: for each message its value, or a tuple (key, value).
            partition: where the messages go. By default a message goes to the partition of its key; messages without
                a key go to the partitions in turn.
            timestamp: of each message, in epoch milliseconds.
            headers: of each message: a mapping from name to value, or pairs of them.
            raw: values, and keys of tuples, are bytes as another program wrote them. None is no key, or no value.

        Raises:
            ConfigError: the application does not read the stream.
            SerdeError: a key or a value does not fit the input's serdes.
            TypeError: with `raw`, a key or a value is neither bytes nor None.
        """
        found = StreamOfTest.of_input(self._graph, stream, raw=raw)
        return self._append(found, values, partition, timestamp, headers)

    def side_input(
        self,
        stream: str,
        values: Iterable[Any],
        *,
        partition: int | None = None,
        timestamp: int = 0,
        headers: HeadersLike = (),
    ) -> SimulationInputs:
        """Append messages to a side input, as `TestRunner.side_input`. Returns this object.

        Args:
            stream: the side input, `system.stream`.
            values: for each message its value, or a tuple (key, value).
            partition: as for `input`.
            timestamp: of each message, in epoch milliseconds.
            headers: as for `input`.

        Raises:
            ConfigError: no store of the application has this side input.
            SerdeError: a key or a value does not fit the side input's serdes.
        """
        return self._append(side_stream(self._graph, stream), values, partition, timestamp, headers)

    def append_raw(
        self,
        stream: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        timestamp: int = 0,
        headers: HeadersLike = (),
    ) -> SimulationInputs:
        """Append a message to an input or a side input, as bytes that another program wrote. Returns this object.

        Args:
            stream: the input or side input, `system.stream`.
            key: of the message, or None.
            value: of the message, or None.
            partition: as for `input`.
            timestamp: of the message, in epoch milliseconds.
            headers: as for `input`.

        Raises:
            ConfigError: the application does not read the stream.
        """
        if SystemStream.parse(stream) in self._graph.side_streams():
            found = replace(side_stream(self._graph, stream), raw=True)
        else:
            found = StreamOfTest.of_input(self._graph, stream, raw=True)
        return self._append(found, [(key, value)], partition, timestamp, headers)

    def _append(
        self,
        stream: StreamOfTest,
        values: Iterable[Any],
        partition: int | None,
        timestamp: int,
        headers: HeadersLike,
    ) -> SimulationInputs:
        if partition is not None and not 0 <= partition < self._partitions:
            raise ConfigError(f"`{stream.name}` has no partition {partition}: it has {self._partitions}")
        own = headers_of(headers)
        for number, item in enumerate(values):
            key, value = stream.message(item)
            target = partition
            if target is None:
                target = number % self._partitions if key is None else partition_of(key, self._partitions)
            self.feed.append((stream.name, target, (timestamp, key, value, own) if own else (timestamp, key, value)))
        return self


Inputs: TypeAlias = Mapping[str, Iterable[Any]] | Callable[[SimulationInputs], object]
"""By input, its messages: for each its value, or a tuple (key, value). Or a function that gives them."""
Invariant: TypeAlias = Callable[..., object]
_LEFT_OUT = re.compile(
    r"systems\..*|job\.(name|id|root.*|logged\..*|log\..*|dashboard\..*|batch\..*|latency\..*|retry\..*|lease\..*"
    r"|container\..*|host-affinity\..*|drain-monitor\..*)|container\..*|metrics\..*|spark\..*|state\..*|schema\..*"
    r"|stores\.backup\..*|stores\.restore\..*|stores\.rocksdb\..*|stores\.memory\..*|stores\.default\..*"
    r"|stores\..*\.(factory|backup\.factories|restore\.factories|changelog.*|rocksdb\..*)"
    r"|task\.(commit\..*|checkpoint\..*|shutdown\..*)|streams\..*\.(idle\.ms|retention\..*)"
)
"""Keys that say where a real job has what a simulated one has in memory, and how often it commits."""
_IDLE_MS = 10**9
_MEMORY_BYTES = 4 << 30


def load_for_simulation(
    app: Application,
    file: Path | None = None,
    assignments: Sequence[str] = (),
    config: Mapping[str, object] | None = None,
) -> JobConfig:
    """The user's configuration, in which systems that it does not have are in memory.

    Raises:
        ConfigError: it is wrong.
    """
    graph = app.graph()
    stores = [store.name for store in graph.stores]
    given = dict(config or {})
    names = _systems(graph) - {DEFAULT_SYSTEM}
    known = load_config(file, given, assignments, default_job_name=app.name, stores=stores).flat()
    added = {
        SystemKeys.factory.full(name): "memory"
        for name in sorted(names)
        if not any(key.startswith(f"systems.{name}.") for key in known)
    }
    return load_config(file, {**added, **given}, assignments, default_job_name=app.name, stores=stores)


def prepare(
    app: Application,
    inputs: Inputs,
    config: JobConfig,
    partitions: int,
    late: Sequence[str],
    doubled: Sequence[str],
    invariants: Sequence[Invariant],
    compare: bool | None,
    limit_s: float,
    network: bool,
) -> tuple[UsersJob, list[str]]:
    """The job for the workers, and notes for the user."""
    if partitions < 1:
        raise ConfigError(f"partitions must be at least 1, not {partitions}")
    declared = app.graph()
    _refuse(declared)
    graph = complete(declared, config)
    given = _given(graph, inputs, partitions)
    for each in invariants:
        _check_invariant(each)
    disturbed = [_disturbed(app.name, graph, names) for names in (late, doubled)]
    keys = _keys(graph, config)
    dead = config.task.dead_letter_stream
    streams = {*_streams(graph), *([dead] if dead else [])}
    with _by_value():
        pickled: Callable[[object], bytes] = load(PICKLERS["spark"])
        graph_bytes, functions = pickled(declared), pickled(list(invariants))
    job = UsersJob(
        graph_bytes,
        keys,
        dict.fromkeys(sorted(streams, key=str), partitions),
        given.feed,
        disturbed[0],
        disturbed[1],
        frozenset(config.exactly_once_streams),
        functions,
        compare if compare is not None else not invariants,
        network,
        limit_s,
        _MEMORY_BYTES,
    )
    return job, [*_replacements(graph, config), *_empty_sides(graph, given)]


def _given(graph: ApplicationGraph, inputs: Inputs, partitions: int) -> SimulationInputs:
    """The messages of the inputs. Raises ConfigError if there are none."""
    given = SimulationInputs(graph, partitions)
    if callable(inputs):
        inputs(given)
    else:
        for stream, values in inputs.items():
            given.input(stream, values)
    if not given.feed:
        names = ", ".join(f"`{op.stream}`" for op in graph.inputs)
        raise ConfigError(f"the inputs have no messages: give some of {names}")
    return given


def _disturbed(application: str, graph: ApplicationGraph, names: Sequence[str]) -> frozenset[SystemStream]:
    """The inputs with these names. Raises ConfigError if one is no input."""
    named = frozenset(map(SystemStream.parse, names))
    read = {op.stream for op in graph.inputs}
    if strangers := sorted(map(str, named - read)):
        known = ", ".join(f"`{each}`" for each in sorted(map(str, read)))
        raise ConfigError(
            f"`{strangers[0]}` is not an input of application `{application}`, whose inputs are {known}: name one of "
            "them as late or doubled"
        )
    return named


def _check_invariant(function: Invariant) -> None:
    """Raise ConfigError if a function cannot be called as an invariant."""
    try:
        inspect.signature(function).bind({}, {}, {})
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        called = f"{name}(inputs, outputs, stores)"
        raise ConfigError(f"invariant `{name}` cannot be called as `{called}`: {error}") from None
    except ValueError:
        return  # it does not say what it takes


def _refuse(graph: ApplicationGraph) -> None:
    """Raise ConfigError for streams and tables that cannot be simulated."""
    if graph.patterns:
        raise ConfigError("inputs that are patterns cannot be simulated yet: name the streams in the application")
    if any(isinstance(spec.side, PushedTable) for spec in graph.side_stores):
        raise ConfigError("pushed tables cannot be simulated yet: test them with `TestRunner.push`")


def _streams(graph: ApplicationGraph) -> set[SystemStream]:
    sources = {op.stream for op in graph.sources}
    return sources | {spec.stream for spec in graph.outputs} | set(graph.side_streams())


def _keys(graph: ApplicationGraph, config: JobConfig) -> dict[str, str]:
    """The keys that count in a simulation. A partition never becomes idle: simulated processes stand still for so long
    that it would."""
    own = {key: text for key, text in config.flat().items() if not _LEFT_OUT.fullmatch(key)}
    return {**own, **{f"streams.{op.stream}.idle.ms": str(_IDLE_MS) for op in graph.inputs}}


def _systems(graph: ApplicationGraph) -> set[str]:
    return {stream.system for stream in _streams(graph)}


def _replacements(graph: ApplicationGraph, config: JobConfig) -> list[str]:
    """Each thing outside that something else takes the place of, in words."""
    found = config.flat()
    kinds = {name: found.get(SystemKeys.factory.full(name), "") for name in sorted(_systems(graph))}
    outside = [f"`{name}` ({kind})" for name, kind in kinds.items() if kind not in {"", "memory", "local"}]
    told = [f"simulated streams take the place of those of {', '.join(outside)}"] if outside else []
    backends = {each for spec in graph.written_stores for each in config.store(spec.name).backup_factories}
    if others := sorted(backends - {"changelog-files", "blob"}):
        told.append(f"stores are backed up in memory, by `changelog-files` or `blob`, in place of {', '.join(others)}")
    return told


def _empty_sides(graph: ApplicationGraph, given: SimulationInputs) -> list[str]:
    """Each side input without messages, in words."""
    fed = {stream for stream, _, _ in given.feed}
    return [
        f"side input `{stream}` has no messages, so that nothing is found in its store: give it a file with `--inputs "
        f"{stream}=FILE`, in a test messages with `side_input`"
        for stream in sorted(graph.side_streams(), key=str)
        if stream not in fed
    ]


@contextmanager
def _by_value() -> Iterator[None]:
    """Functions and classes of modules that are no libraries are pickled whole in the block: a life then has what they
    keep in their module to itself, as a process has."""
    cloudpickle = importlib.import_module("pyspark.cloudpickle")
    before = set(cloudpickle.list_registry_pickle_by_value())
    own = [each for each in list(sys.modules.values()) if _is_users(each) and each.__name__ not in before]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


_INSTALLED = tuple(
    {*(str(Path(each).resolve()) for each in sysconfig.get_paths().values()), str(Path(penstock.__file__).parent)}
)


def _is_users(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or module.__name__ in {"__main__", "conftest"}:
        return False
    path = str(Path(file).resolve())
    return not path.startswith(_INSTALLED) and "/site-packages/" not in path
