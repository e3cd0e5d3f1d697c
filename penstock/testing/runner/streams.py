"""The streams of a `TestRunner`, in memory: inputs that a test appends to, and outputs that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.api.messages import Headers, HeadersLike, headers_of
from penstock.api.serdes import Serde, not_bytes
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import listed
from penstock.errors import ConfigError, NotFoundError
from penstock.graph.serdes import Part, SerdePlace, input_place, output_place
from penstock.graph.specs import ApplicationGraph
from penstock.system.base import OffsetRange, PartitionOffsets, System
from penstock.system.memory import MemorySystem
from penstock.system.partitioner import partition_of


@dataclass(frozen=True, slots=True)
class OutputMessage:
    """A message of an output stream, with its decoded key and value. `timestamp` is in epoch milliseconds.

    Example:
        >>> app = ps.StreamApplication("copy")
        >>> _ = app.input("local.in").send_to(app.output("local.out"))
        >>> TestRunner(app).input("local.in", [("N1", 5)], timestamp=1000).run().output("local.out")
        [OutputMessage(key='N1', value=5, partition=0, offset=0, timestamp=1000)]
    """

    key: Any
    value: Any
    partition: int
    offset: int
    timestamp: int
    headers: Headers = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class StreamOfTest:
    """A stream that a test appends messages to, with its serdes."""

    name: SystemStream
    place: SerdePlace
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    raw: bool = False
    """The test gives bytes, which the serdes do not write."""

    @classmethod
    def of_input(cls, graph: ApplicationGraph, stream: str, *, raw: bool) -> StreamOfTest:
        """An input of the application. Raises ConfigError if the application does not read the stream."""
        name = SystemStream.parse(stream)
        spec = next((op for op in graph.inputs if op.stream == name), None)
        if spec is None:
            known = ", ".join(f"`{op.stream}`" for op in graph.inputs) or "none"
            raise ConfigError(f"`{stream}` is not an input of application `{graph.name}`, whose inputs are {known}")
        return cls(name, input_place(name), spec.key_serde, spec.value_serde, raw)

    def message(self, item: Any) -> tuple[bytes | None, bytes | None]:
        """The bytes of a value, or of a tuple (key, value). A Row of PySpark is a value.

        Raises:
            SerdeError: one does not fit its serde.
            TypeError: the test gives bytes, and one is something else.
        """
        key, value = item if type(item) is tuple else (None, item)
        return self._bytes("key", self.key_serde, key), self._bytes("value", self.value_serde, value)

    def _bytes(self, part: Part, serde: Serde[Any], obj: Any) -> bytes | None:
        if obj is None:
            return None
        if self.raw:
            if type(obj) is not bytes:
                raise TypeError(f"{self.place.name}: with raw=True, a {part} is bytes or None, not {obj!r:.200}")
            return obj
        try:
            data = serde.to_bytes(obj)
        except Exception as error:
            raise self.place.unwritable(part, serde, obj, error) from error
        if type(data) is not bytes:
            raise not_bytes(serde, data, f"{self.place.name}, a {part}")
        return data


def read_part(place: SerdePlace, part: Part, serde: Serde[Any], data: bytes | None, key: object = None) -> Any:
    """The decoded key or value; None if there is none. `key` is that of a value.

    Raises:
        SerdeError: the serde does not read it.
    """
    try:
        return None if data is None else serde.from_bytes(data)
    except Exception as error:
        raise place.unreadable(part, serde, data or b"", error, key) from error


class StreamsOfTest:
    """All streams of one test. Each has the same number of partitions."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self.systems: dict[str, System] = {}

    def make(self, streams: Iterable[SystemStream], systems: Iterable[str]) -> None:
        streams = list(streams)
        for system in [*(stream.system for stream in streams), *systems]:
            self.systems.setdefault(system, MemorySystem(system))
        for stream in streams:
            self.systems[stream.system].admin().create_stream(stream.stream, self._partitions)

    def append(
        self,
        stream: StreamOfTest,
        values: Iterable[Any],
        partition: int | None,
        timestamp: int,
        headers: HeadersLike = (),
    ) -> None:
        """Append messages. A message without `partition` goes to its key's partition; without a key, to each in
        turn."""
        writer, own = self.systems[stream.name.system].writer(None), headers_of(headers)
        for number, item in enumerate(values):
            key, value = stream.message(item)
            target = partition
            if target is None:
                target = number % self._partitions if key is None else partition_of(key, self._partitions)
            ssp = SystemStreamPartition(stream.name.system, stream.name.stream, target)
            writer.append(ssp, [(timestamp, key, value, own) if own else (timestamp, key, value)])

    def messages(self, name: SystemStream, graph: ApplicationGraph) -> list[OutputMessage]:
        """All messages of a stream, decoded if it is an output, in the order of partitions and offsets.

        Raises:
            NotFoundError: there is no such stream.
            SerdeError: the output's serdes do not read a key or a value.
        """
        if name.system not in self.systems:
            known = listed([f"`{system}`" for system in sorted(self.systems)])
            raise NotFoundError(f"there is no stream `{name}` in this test: its systems are {known}")
        spec = next((o for o in graph.outputs if o.stream == name), None)
        system = self.systems[name.system]
        there = system.admin().streams()
        if name.stream not in there:
            known = listed([f"`{name.system}.{each}`" for each in sorted(there)])
            raise NotFoundError(
                f"there is no stream `{name}` in this test: system `{name.system}` has {known or 'none'}"
            )
        messages: list[OutputMessage] = []
        for partition, ends in sorted(system.admin().offsets(name.stream).items()):
            ssp = SystemStreamPartition(name.system, name.stream, partition)
            for chunk in system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 4096):
                for offset, timestamp, key, value, *headers in chunk:
                    if spec is not None:
                        place = output_place(name)
                        key = read_part(place, "key", spec.key_serde, key)
                        value = read_part(place, "value", spec.value_serde, value, key)
                    messages.append(OutputMessage(key, value, partition, offset, timestamp, *headers))
        return messages

    def ends(self, graph: ApplicationGraph) -> Mapping[SystemStreamPartition, PartitionOffsets]:
        return {
            SystemStreamPartition(op.stream.system, op.stream.stream, partition): ends
            for op in graph.inputs
            for partition, ends in self.systems[op.stream.system].admin().offsets(op.stream.stream).items()
        }
