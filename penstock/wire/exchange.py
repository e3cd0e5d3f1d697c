"""A worker's side of attempts: streams packets to the tasks' container and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import ContainerLostError
from penstock.host.machine import machine_id
from penstock.runtime.messages.packet import NO_PACKETS, PACKET_SCHEMA, PacketKind
from penstock.runtime.messages.streams import run_together
from penstock.wire.address import ContainerAddress
from penstock.wire.auth import call_options
from penstock.wire.failures import carried_error
from penstock.wire.protocol import END_OF_INPUT, AttemptCall, dump
from penstock.wire.tls import TlsIdentity, call_problem, connect

_clients: dict[tuple[int, str], tuple[ContainerAddress, TlsIdentity | None, flight.FlightClient]] = {}
"""(process id, incarnation) → a connection, and the address and identity that it was made for."""


class AttemptStream:
    """Attempts that run in their container: their input goes there, and their output comes from there.

    For a large input, one thread must write while another one reads: if a client wrote all of it first, both sides
    would block as soon as the buffers between them are full.

    Every method raises ContainerLostError if the container refuses an attempt or breaks off before its reports.
    """

    def __init__(self, address: ContainerAddress, secret: str, call: AttemptCall, tls: TlsIdentity | None) -> None:
        self._address = address
        self._call = call
        descriptor = flight.FlightDescriptor.for_command(dump(call))
        with self._blaming():
            self._writer, self._reader = _client(address, tls).do_exchange(
                descriptor, call_options(secret, address.incarnation)
            )
            try:
                self._writer.begin(PACKET_SCHEMA)
            except BaseException:
                self._reader.cancel()
                raise

    def write(self, batch: pa.RecordBatch) -> None:
        with self._blaming():
            self._writer.write_batch(batch)

    def end(self, last: pa.RecordBatch = NO_PACKETS) -> None:
        """End the input, with these packets.

        The end is a message, because closing the writer would race the reader: when the container refuses the attempts,
        the reader's end closes the writer too, and if both do at once, gRPC aborts the process.
        """
        with self._blaming():
            self._writer.write_with_metadata(last, END_OF_INPUT)

    def read(self) -> Iterator[pa.RecordBatch]:
        """The output. Each attempt ends with its report; a stream with fewer reports was cut off."""
        reports, attempts = 0, len(self._call.tasks)
        with self._blaming():
            for chunk in self._reader:
                metadata = chunk.app_metadata
                if (failure := carried_error(None if metadata is None else metadata.to_pybytes())) is not None:
                    raise self._lost(failure)
                reports += chunk.data.column("kind").to_pylist().count(PacketKind.REPORT)
                yield chunk.data
        if reports != attempts:
            raise ContainerLostError(f"the container's stream ended after {reports} of {attempts} reports")

    def close(self) -> None:
        """Called once the output has been read to its end."""
        with self._blaming():
            self._writer.close()

    def cancel(self) -> None:
        """Called when the input fails or nobody wants the output any more. Without it, the container waits for the rest
        of the input and this process for the container. From any thread."""
        self._reader.cancel()

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        try:
            yield
        except (flight.FlightError, pa.ArrowException) as error:
            raise self._lost(call_problem(error)) from error

    def _lost(self, why: str) -> ContainerLostError:
        address, call = self._address, self._call
        _clients.pop((os.getpid(), address.incarnation), None)
        return ContainerLostError(
            f"container {address.container} (process {address.pid}) did not finish stage {call.stage} of "
            f"batch {call.batch.number} for tasks {call.tasks}: {why}. Its log: {address.log_path}"
        )


def exchange(
    address: ContainerAddress,
    secret: str,
    call: AttemptCall,
    batches: Iterator[pa.RecordBatch],
    select_mine: Callable[[pa.RecordBatch], tuple[pa.RecordBatch, pa.RecordBatch]],
    tls: TlsIdentity | None = None,
) -> Iterator[pa.RecordBatch]:
    """Run attempts in their container.

    `select_mine` splits a batch of packets into those for these attempts and the others, which pass through. Writing
    and reading have threads of their own. While neither brings anything there is an empty batch from time to time: a
    container's beats decide how long it may take, and Spark would kill a worker in which nothing moves.

    Raises:
        ContainerLostError: the container refused an attempt or broke off before its reports.
    """
    stream = AttemptStream(address, secret, call, tls)
    try:
        yield from run_together(_feed(stream, batches, select_mine), stream.read(), when_idle=lambda: NO_PACKETS)
        stream.close()
    except BaseException:
        stream.cancel()
        raise


def _feed(
    stream: AttemptStream,
    batches: Iterator[pa.RecordBatch],
    select_mine: Callable[[pa.RecordBatch], tuple[pa.RecordBatch, pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """Write the packets for the container; yield the others."""
    for batch in batches:
        mine, others = select_mine(batch)
        if mine.num_rows:
            stream.write(mine)
        if others.num_rows:
            yield others
    stream.end()


def _client(address: ContainerAddress, tls: TlsIdentity | None) -> flight.FlightClient:
    """One connection per container and process. It is kept for the next batch, until the container has another port."""
    key = (os.getpid(), address.incarnation)
    known = _clients.get(key)
    if known is None or known[:2] != (address, tls):
        client = connect(address.uri_from(machine_id()), address.certificate, tls)
        known = _clients[key] = (address, tls, client)
    return known[2]
