"""The inputs of a simulation, given as to a `TestRunner`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from penstock.api.messages import HeadersLike, headers_of
from penstock.api.ssp import SystemStream
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph
from penstock.system.base import RawRecord
from penstock.system.partitioner import partition_of
from penstock.testing.runner.sides import side_stream
from penstock.testing.runner.streams import StreamOfTest


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
