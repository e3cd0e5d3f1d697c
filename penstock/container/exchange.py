"""The Spark worker's side of attempts: streams packets to the tasks' container and back at the same time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from penstock.container.auth import call_options
from penstock.container.machine import machine_id
from penstock.container.protocol import AttemptCall, ContainerAddress, dump
from penstock.errors import ContainerLostError
from penstock.runtime.packet import PACKET_SCHEMA, Kind

_KEEP_ALIVE_SECONDS = 1.0
_NOTHING = pa.RecordBatch.from_pylist([], schema=PACKET_SCHEMA)
_clients: dict[tuple[int, str], flight.FlightClient] = {}


def exchange(
    address: ContainerAddress,
    secret: str,
    call: AttemptCall,
    batches: Iterator[pa.RecordBatch],
    select_mine: Callable[[pa.RecordBatch], tuple[pa.RecordBatch, pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """Run attempts in their container.

    `select_mine` splits a batch of packets into those for these attempts and the others, which pass through. The
    results are read by a thread of their own, whatever the writing does: a client that wrote everything first would
    stop for ever once the buffers in between are full.

    Raises:
        ContainerLostError: the container refused an attempt or broke off before its reports.
    """
    uri = address.uri_from(machine_id())
    descriptor = flight.FlightDescriptor.for_command(dump(call))
    try:
        writer, reader = _client(uri).do_exchange(descriptor, call_options(secret))
        try:
            yield from _pump(writer, _Results(reader), batches, select_mine, len(call.tasks))
        except BaseException:
            # Also when the input fails or nobody wants the output any more: without it, the container waits for the
            # rest of the input and this process for the container.
            reader.cancel()
            raise
    except (flight.FlightError, pa.ArrowException) as error:
        _forget(uri)
        raise ContainerLostError(
            f"container {address.container} (process {address.pid}) did not finish stage {call.stage} of "
            f"batch {call.batch} for tasks {call.tasks}: {error}. Its log: {address.log_path}"
        ) from error


def _pump(
    writer: Any,
    results: _Results,
    batches: Iterator[pa.RecordBatch],
    select_mine: Callable[[pa.RecordBatch], tuple[pa.RecordBatch, pa.RecordBatch]],
    reports: int,
) -> Iterator[pa.RecordBatch]:
    writer.begin(PACKET_SCHEMA)
    for batch in batches:
        mine, others = select_mine(batch)
        if mine.num_rows:
            writer.write_batch(mine)
        if others.num_rows:
            yield others
        yield from results.ready()
    writer.done_writing()
    yield from results.rest()
    results.check_reports(reports)
    writer.close()


class _Results:
    """What comes back, read by a thread that ends with the stream."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._queue: SimpleQueue[pa.RecordBatch | BaseException | None] = SimpleQueue()
        self._reports = 0
        threading.Thread(target=self._run, name="exchange-reader", daemon=True).start()

    def ready(self) -> Iterator[pa.RecordBatch]:
        """What has come so far; does not wait. Raises what the stream ended with."""
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                return
            if item is None:
                self._queue.put(None)
                return
            yield self._check(item)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Everything up to the end of the stream; while nothing comes, an empty batch from time to time.

        How long a container may take, its beats decide. Spark would kill a worker in which nothing moves.
        """
        while True:
            try:
                item = self._queue.get(timeout=_KEEP_ALIVE_SECONDS)
            except Empty:
                yield _NOTHING
                continue
            if item is None:
                return
            yield self._check(item)

    def check_reports(self, expected: int) -> None:
        """Each attempt ends with its report; a stream that ends with fewer was cut off."""
        if self._reports != expected:
            raise ContainerLostError(f"the container's stream ended after {self._reports} of {expected} reports")

    def _check(self, item: pa.RecordBatch | BaseException) -> pa.RecordBatch:
        if isinstance(item, BaseException):
            raise item
        self._reports += pc.sum(pc.equal(item.column("kind"), int(Kind.REPORT))).as_py() or 0
        return item

    def _run(self) -> None:
        try:
            for chunk in self._reader:
                self._queue.put(chunk.data)
            self._queue.put(None)
        except BaseException as error:
            self._queue.put(error)


def _client(uri: str) -> flight.FlightClient:
    """One connection per container and process, kept for the next batch."""
    key = (os.getpid(), uri)
    if key not in _clients:
        _clients[key] = flight.connect(uri)
    return _clients[key]


def _forget(uri: str) -> None:
    _clients.pop((os.getpid(), uri), None)
