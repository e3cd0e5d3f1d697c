"""The Spark worker's side of attempts: streams packets to the tasks' container and back at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from penstock.errors import ContainerLostError
from penstock.host.machine import machine_id
from penstock.runtime.messages.packet import NO_PACKETS, PACKET_SCHEMA, Kind
from penstock.runtime.messages.streams import run_together
from penstock.wire.address import ContainerAddress
from penstock.wire.auth import call_options
from penstock.wire.protocol import END_OF_INPUT, AttemptCall, dump
from penstock.wire.tls import TlsIdentity, connect

_clients: dict[tuple[int, str], tuple[ContainerAddress, TlsIdentity | None, flight.FlightClient]] = {}
"""(process id, incarnation) → a connection, and the address and identity that it was made for."""


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
    and reading have threads of their own: a client that wrote everything first would stop for ever once the buffers in
    between are full. While neither brings anything there is an empty batch from time to time. A container's beats
    decide how long it may take; Spark would kill a worker in which nothing moves.

    Raises:
        ContainerLostError: the container refused an attempt or broke off before its reports.
    """
    descriptor = flight.FlightDescriptor.for_command(dump(call))
    try:
        writer, reader = _client(address, tls).do_exchange(descriptor, call_options(secret, address.incarnation))
        try:
            writer.begin(PACKET_SCHEMA)
            feed, results = _feed(writer, batches, select_mine), _results(reader, len(call.tasks))
            yield from run_together(feed, results, when_idle=lambda: NO_PACKETS)
            writer.close()
        except BaseException:
            # Also when the input fails or nobody wants the output any more: without it, the container waits for the
            # rest of the input and this process for the container.
            reader.cancel()
            raise
    except (flight.FlightError, pa.ArrowException) as error:
        _forget(address)
        raise ContainerLostError(
            f"container {address.container} (process {address.pid}) did not finish stage {call.stage} of "
            f"batch {call.batch.number} for tasks {call.tasks}: {error}. Its log: {address.log_path}"
        ) from error


def _feed(
    writer: Any,
    batches: Iterator[pa.RecordBatch],
    select_mine: Callable[[pa.RecordBatch], tuple[pa.RecordBatch, pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """Write the packets for the container, then END_OF_INPUT; yield the others.

    The end is a message, because closing the writer would race the reader: when the container refuses the attempts, the
    reader's end closes the writer too, and if both do at once, gRPC aborts the process.
    """
    for batch in batches:
        mine, others = select_mine(batch)
        if mine.num_rows:
            writer.write_batch(mine)
        if others.num_rows:
            yield others
    writer.write_with_metadata(NO_PACKETS, END_OF_INPUT)


def _results(reader: Any, attempts: int) -> Iterator[pa.RecordBatch]:
    """The container's packets. Each attempt ends with its report; a stream with fewer reports was cut off."""
    reports = 0
    for chunk in reader:
        reports += pc.sum(pc.equal(chunk.data.column("kind"), int(Kind.REPORT))).as_py() or 0
        yield chunk.data
    if reports != attempts:
        raise ContainerLostError(f"the container's stream ended after {reports} of {attempts} reports")


def _client(address: ContainerAddress, tls: TlsIdentity | None) -> flight.FlightClient:
    """One connection per container and process. It is kept for the next batch, until the container has another port."""
    key = (os.getpid(), address.incarnation)
    known = _clients.get(key)
    if known is None or known[:2] != (address, tls):
        client = connect(address.uri_from(machine_id()), address.certificate, tls)
        known = _clients[key] = (address, tls, client)
    return known[2]


def _forget(address: ContainerAddress) -> None:
    _clients.pop((os.getpid(), address.incarnation), None)
