"""All stages of a small batch, one after the other, in one process: read, through the containers, write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from penstock.direct.worker import RunOrder
from penstock.errors import ContainerLostError, RetryableError
from penstock.runtime.messages.packet import (
    NO_PACKETS,
    REPORT_STAGE,
    WITH_MESSAGES,
    Packet,
    from_batch,
    split_by_size,
    to_batch,
)
from penstock.runtime.reports import Report
from penstock.runtime.stage.sink import OuterStages, SinkAttempts
from penstock.runtime.stage.source import ReadProgress
from penstock.wire.client import AttemptStream
from penstock.wire.containers import Lane, lane_of_tasks
from penstock.wire.ports import WorkerPackage
from penstock.wire.protocol import AttemptCall, Identity

_AT_ONCE_BYTES = 32 << 10
"""An input up to this size is written before anything is read: no buffer between two processes is smaller."""


class TooLargeError(RetryableError):
    """The messages of a batch take more memory than it may."""


class DeclinedError(RetryableError):
    """The batch is not for this way, as its first stage shows. Nothing but the inputs was touched."""


class DirectStages:
    """Runs batches of one job. Used by one thread, except for `progress` and `writes`."""

    def __init__(self, package: WorkerPackage, stream: Callable[..., AttemptStream] = AttemptStream) -> None:
        """`stream`: opens the exchange with a container, with the arguments of `AttemptStream`."""
        self._stream = stream
        self._topology = package.topology
        self._outer = OuterStages(package.topology, package.settings, package.systems)
        self._first = min((stage.number for stage in package.topology.container_stages), default=None)
        self._bytes = 0
        """The bytes of all messages of the run so far."""
        self._in_containers = False
        self._source: ReadProgress | None = None
        self._sinks: SinkAttempts | None = None
        """While the outputs are being written."""

    def run(self, order: RunOrder) -> tuple[bytes, ...]:
        """Run a batch. Returns the payloads of all reports.

        Raises:
            DeclinedError: the batch is too large, or the application failed on a message in stage 0. That may be
                because this process lacks something that Spark's workers have: they decide.
            TooLargeError: operators in containers made too many messages.
            RetryableError: a container is lost, or a system is away.
            PenstockError: something failed for good.
        """
        topology = self._topology
        self._bytes = 0
        packets = self._read(order)
        for stage in topology.container_stages:
            packets = self._contain(order, stage.number, packets)
        if topology.sink is not None:
            packets = self._write(order, topology.sink, packets)
        return tuple(bytes(packet.payload or b"") for packet in packets)

    @property
    def writes(self) -> bool:
        """True while the outputs are being written."""
        return self._sinks is not None

    def progress(self) -> object:
        """A value that changes with each message that is processed or written here; None while containers work. Called
        by any thread."""
        source, sinks = self._source, self._sinks
        if self._in_containers:
            return None
        return (
            source is None,
            None if source is None else source(),
            sinks is None,
            None if sinks is None else sinks.packets_written,
        )

    def _read(self, order: RunOrder) -> list[Packet]:
        try:
            packets = list(self._limited(self._read_inputs(order), order))
        except TooLargeError as error:
            raise DeclinedError(str(error)) from error
        for packet in packets:
            if packet.stage == REPORT_STAGE:
                report = Report.decode(bytes(packet.payload or b""))
                if report.failed is not None or report.dead_letters:
                    raise DeclinedError(f"the application failed on a message in task {report.task}, stage 0")
        return packets

    def _read_inputs(self, order: RunOrder) -> Iterator[Packet]:
        portions = {task: order.portions.get(task, ()) for task in sorted(_tasks(order))}
        self._source = ReadProgress()
        try:
            yield from self._outer.read(order.epoch, order.batch, portions, self._source)
        finally:
            self._source = None

    def _contain(self, order: RunOrder, stage: int, packets: Sequence[Packet]) -> list[Packet]:
        """Send the packets of a stage through the containers. Returns their output, and the packets of others."""
        lane_of = lane_of_tasks(order.lanes)
        inputs: list[list[Packet]] = [[] for _ in order.lanes]
        others: list[Packet] = []
        for packet in packets:
            (inputs[lane_of[packet.dest]] if packet.stage == stage else others).append(packet)
        streams: list[AttemptStream] = []
        self._in_containers = True
        try:
            for lane, own in zip(order.lanes, inputs, strict=True):
                streams.append(self._open(order, lane, stage))
                _feed(streams[-1], own)
            for stream in streams:
                found = (packet for batch in stream.read() for packet in from_batch(batch))
                others.extend(self._limited(found, order))
                stream.close()
        except BaseException:
            for stream in streams:
                stream.cancel()
            raise
        finally:
            self._in_containers = False
        return others

    def _open(self, order: RunOrder, lane: Lane, stage: int) -> AttemptStream:
        identity = Identity(lane.address.incarnation, order.epoch)
        call = AttemptCall(identity, order.batch, stage, list(lane.tasks), stage == self._first)
        return self._stream(lane.address, order.secret, call, order.tls)

    def _write(self, order: RunOrder, sink: int, packets: Sequence[Packet]) -> list[Packet]:
        reports = [packet for packet in packets if packet.stage != sink]
        with closing(self._outer.sinks(order.batch, _tasks(order))) as attempts:
            for packet in packets:
                if packet.stage == sink:
                    attempts.accept(packet)
            self._sinks = attempts
            try:
                reports.extend(attempts.write(self._outer.writers(order.writer)))
            finally:
                self._sinks = None
        return reports

    def _limited(self, packets: Iterator[Packet], order: RunOrder) -> Iterator[Packet]:
        """The packets, as long as they are not too many for the memory of this process."""
        for packet in packets:
            if packet.kind in WITH_MESSAGES:
                self._bytes += sum(len(part) for part in (packet.payload, packet.places) if part is not None)
            if self._bytes > order.limit_bytes:
                raise TooLargeError(f"the messages of {order.batch} take more than {order.limit_bytes} bytes")
            yield packet


def _tasks(order: RunOrder) -> list[int]:
    return [task for lane in order.lanes for task in lane.tasks]


def _feed(stream: AttemptStream, packets: Sequence[Packet]) -> None:
    """Write an input: at once if it is small, else in another thread, because the container answers meanwhile."""
    batches = [to_batch(group) for group in split_by_size(packets)]

    def feed() -> None:
        *first, last = batches or [NO_PACKETS]
        for batch in first:
            stream.write(batch)
        stream.end(last)

    def feed_beside() -> None:
        try:
            feed()
        except ContainerLostError:
            pass  # who reads the output gets it as well
        except BaseException:
            stream.cancel()
            raise

    if sum(batch.nbytes for batch in batches) <= _AT_ONCE_BYTES:
        feed()
    else:
        threading.Thread(target=feed_beside, name="direct-feed", daemon=True).start()
