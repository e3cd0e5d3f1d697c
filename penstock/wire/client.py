"""The callers of a container.

The driver has a client for each container: its calls, and listening for its beats. A worker has the exchange of an
attempt: it streams packets to the tasks' container and back.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import KINDS, ContainerLostError, PenstockError
from penstock.host.log_lines import Work
from penstock.host.posix import machine_id
from penstock.metrics.snapshot import Row, Snapshot
from penstock.runtime.messages.incoming import run_together
from penstock.runtime.messages.packet import NO_PACKETS, PACKET_SCHEMA, PacketKind
from penstock.wire import protocol
from penstock.wire.containers import ContainerAddress, Ending, KnownEnd, ProcessDeath, UnknownEnd, ending_of
from penstock.wire.protocol import BEAT, CLOSE_SECONDS, RENEW_PORT, Call
from penstock.wire.security import TlsIdentity, call_options, call_problem, connect

logger = logging.getLogger(__name__)
tasks_logger = logging.getLogger("penstock.tasks")
"""Logs what the application prints and logs in containers."""
Q = TypeVar("Q", bound=protocol.Request)
A = TypeVar("A")
ANY_EPOCH = -1
_INQUIRY_SECONDS = 8.0
"""Longest wait of a loss report for the answer of the lost container's host."""
_PROBE_SECONDS = 2.0
# What waits for a host that was cut off ends then, and not when the call's own deadline has passed, or never. It takes
# up to a minute: gRPC waits that long for the answer to a ping that it sent by itself.
_KEEP_ALIVE = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000)]


class ContainerClient:
    """Calls one container. Each call has a deadline and names epoch and incarnation.

    Raises ContainerLostError when the container does not answer or refuses; errors of a restore or upload come back
    as their own kind.
    """

    def __init__(self, address: ContainerAddress, secret: str, tls: TlsIdentity | None = None) -> None:
        self.address = address
        self._secret = secret
        self._client = self._connect(tls)
        self.last_beat: protocol.Beat | None = None
        self.metrics = Snapshot()
        """As of the last beat that had metrics."""
        self.last_beat_at = time.monotonic()
        self.lost: str | None = None
        self.broke_off = False
        """True if its beats broke off, and nobody gave it up before."""
        self.is_here = address.machine == machine_id()
        self.inquiry: Future[Ending] | None = None
        """The query to a remote host about why the lost container ended."""
        self._death: str | None = None
        self._end: KnownEnd | None = None
        self._beats: threading.Thread | None = None
        self._disconnected = False
        self._told_of_dropped = False

    def _connect(self, tls: TlsIdentity | None) -> flight.FlightClient:
        return connect(self.address.uri_from(machine_id()), self.address.certificate, tls, _KEEP_ALIVE)

    def renew(self, tls: TlsIdentity) -> None:
        """Replace the container's port by one whose callers must have this certificate, and connect to the new port."""
        renewed = self.ask(RENEW_PORT, ANY_EPOCH, protocol.RenewPort(tls.certificate), CLOSE_SECONDS)
        self.address = replace(
            self.address, tcp_uri=renewed.tcp_uri, certificate=renewed.certificate, callers=renewed.callers
        )
        if not self.is_here:
            self._client = self._connect(tls)  # what runs over the old one ends there

    def identity(self, epoch: int) -> protocol.Identity:
        return protocol.Identity(self.address.incarnation, epoch)

    def host_answers(self) -> bool:
        """True if anything on the container's host still answers. A report that the container itself has ended is an
        answer."""
        uri = urlsplit(self.address.tcp_uri)
        try:
            socket.create_connection((uri.hostname, uri.port or 0), _PROBE_SECONDS).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    def unreachable(self, why: str) -> str:
        """Text for a container that has started and that the driver cannot reach, with the remedy."""
        return (
            f"{self._name()} of executor {self.address.executor_id} listens on {self.address.tcp_uri}, but the driver "
            f"on {socket.gethostname()} cannot reach it there: {why}. Executors and the driver must reach all "
            "ports of each other; on a host with several addresses, set SPARK_LOCAL_IP (in conf/spark-env.sh) to the "
            "one that the others reach, and start its Spark worker again"
        )

    def ask(
        self,
        call: Call[Q, A],
        epoch: int,
        request: Q,
        timeout_s: float | None,
        on_answer: Callable[[A], None] = lambda answer: None,
    ) -> A:
        """Make a call and wait for its last answer. `on_answer` gets every answer when it arrives."""
        answers: list[A] = []
        for answer in self.stream(call, epoch, request, timeout_s):
            on_answer(answer)
            answers = [answer]
        if not answers:
            raise ContainerLostError(f"{self._name()} did not answer `{call.name}`: its answer ended too soon")
        return answers[-1]

    def stream(self, call: Call[Q, A], epoch: int, request: Q, timeout_s: float | None) -> Generator[A, None, None]:
        body = call.encode(self.identity(epoch), request)
        try:
            options = call_options(self._secret, self.address.incarnation, timeout_s)
            for result in self._client.do_action(flight.Action(call.name, body), options):
                message = result.body.to_pybytes()
                if (failure := protocol.carried_error(message)) is not None:
                    raise self._error(call.name, failure)
                yield call.decode(message)
        except flight.FlightServerError as error:
            raise self._error(call.name, str(error).split(". Detail:")[0]) from error
        except (flight.FlightError, pa.ArrowException) as error:
            raise ContainerLostError(f"{self._name()} did not answer `{call.name}`: {call_problem(error)}") from error

    def disconnect(self) -> None:
        """End the connection. Closing it does not end the beats: they end with the next beat, or with the container."""
        self._disconnected = True
        self._client.close()

    def listen(self, on_lost: Callable[[ContainerClient], None]) -> None:
        """Follow the container's beats on a separate thread, until the stream ends."""

        def run() -> None:
            try:
                while self._follow_beats():
                    pass  # over another connection
                reason = "its heartbeats ended"
            except (PenstockError, OSError, ValueError) as error:
                reason = f"its heartbeats broke off: {call_problem(error.__cause__ or error).splitlines()[0]}"
            if self.lost is None:
                self.broke_off = not self._disconnected
                self.lost = reason
                on_lost(self)

        self._beats = threading.Thread(target=run, name=f"beats-{self.address.container}", daemon=True)
        self._beats.start()

    def _follow_beats(self) -> bool:
        """Follow the beats until they end. Returns True if another connection has replaced this one."""
        client = self._client
        with closing(self.stream(BEAT, ANY_EPOCH, protocol.NoArguments(), None)) as beats:
            for beat in beats:
                self.note_metrics(beat.metrics)
                self.note_lines(beat)
                self.last_beat = beat
                self.last_beat_at = time.monotonic()
                if self._disconnected:
                    return False
                if self._client is not client:
                    return True
        return False

    def await_end(self, timeout_s: float) -> None:
        """Wait until the beats have ended, which they do when the container is closed.

        A program that ends before they do may crash: where a stream breaks off, Arrow asks for Python's lock, also if
        there is no interpreter any more.
        """
        if self._beats is not None:
            self._beats.join(timeout_s)

    def note_lines(self, beat: protocol.Beat) -> None:
        """Log what the application has printed and logged in the container, and once that the container's own log does
        not take it."""
        for line in beat.lines:
            work = Work(epoch=line.epoch, batch=line.batch, task=line.task)
            place = f"task {line.task}" if line.task >= 0 else f"container {self.address.container}"
            tasks_logger.log(line.level, "%s: %s", place, line.text, extra={"work": work, "bare": line.text})
        if beat.lines_left_out:
            left_out = f"{beat.lines_left_out:,} more lines"
            tasks_logger.info("container %s: %s, see `penstock logs`", self.address.container, left_out)
        if beat.lines_dropped and not self._told_of_dropped:
            self._told_of_dropped = True
            text = "container %s goes on without a part of its log: %s. The log: %s"
            logger.warning(text, self.address.container, beat.lines_dropped, self.address.log_path)

    def note_metrics(self, rows: Sequence[Row]) -> None:
        if rows:
            self.metrics = Snapshot({**self.metrics, **Snapshot.of_rows(rows)})

    def death(self, *, wait: bool = True) -> str | None:
        """The end of its process, its last words and its log; None if it has not ended, as far as is known.

        For a lost container of another host, wait a few seconds for that host's answer; with `wait=False`, do not wait.
        """
        if not wait and not self.is_here and self.inquiry is not None and not self.inquiry.done():
            return self.lost
        if self._death is None and (found := self._ending()) is not None:
            self._end = found
            beat, doing = self.last_beat, ""
            if found.spots:
                doing = f" while it processed {' and '.join(map(str, found.spots))}"
            elif beat is not None and beat.processing and not found.status:
                doing = f" soon after it processed {beat.processing}"
            how, *rest = found.words
            where = "" if self.is_here else f" on the host of {self.address.tcp_uri}"
            self._death = "; ".join([f"{how}{doing}", *rest, f"its log: {self.address.log_path}{where}"])
        return self._death

    @property
    def has_answer(self) -> bool:
        """True if asking how it ended takes no wait for its host."""
        return self.is_here or self.inquiry is None or self.inquiry.done()

    def process_death(self) -> ProcessDeath | None:
        """The end of the process, if it ended before anybody gave it up, and that is known."""
        if not self.broke_off or self.death() is None or self._end is None or not self._end.is_known:
            return None
        return ProcessDeath(f"container {self.address.incarnation}", self._end.status, self._end.spots)

    def _ending(self) -> KnownEnd | None:
        if self.is_here:
            found = ending_of(self.address, is_lost=self.lost is not None)
            return found if isinstance(found, KnownEnd) else None
        if self.lost is None:
            return None
        if self.inquiry is None:
            return KnownEnd((self.lost,), None, is_known=False)
        try:
            found = self.inquiry.result(_INQUIRY_SECONDS)
        except (TimeoutError, CancelledError):
            found = UnknownEnd("its host did not report in time how it ended")
        return found if isinstance(found, KnownEnd) else KnownEnd((self.lost, found.why), None, is_known=False)

    def _error(self, action: str, text: str) -> PenstockError:
        """The container's own error, with its original type."""
        kind, colon, rest = text.partition(": ")
        if colon and kind in KINDS:
            return KINDS[kind](f"{rest}  (in {self._name()})")
        return PenstockError(f"`{action}` failed in {self._name()}: {text}. Its log: {self.address.log_path}")

    def _name(self) -> str:
        return f"container {self.address.container} (process {self.address.pid})"


_clients: dict[tuple[int, str], tuple[ContainerAddress, TlsIdentity | None, flight.FlightClient]] = {}
"""(process id, incarnation) → a connection, and the address and identity that it was made for."""


class AttemptStream:
    """Attempts that run in their container: their input goes there, and their output comes from there.

    For a large input, one thread must write while another one reads: if a client wrote all of it first, both sides
    would block as soon as the buffers between them are full.

    Every method raises ContainerLostError if the container refuses an attempt or breaks off before its reports.
    """

    def __init__(
        self, address: ContainerAddress, secret: str, call: protocol.AttemptCall, tls: TlsIdentity | None
    ) -> None:
        self._address = address
        self._call = call
        descriptor = flight.FlightDescriptor.for_command(protocol.dump(call))
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
            self._writer.write_with_metadata(last, protocol.END_OF_INPUT)

    def read(self) -> Iterator[pa.RecordBatch]:
        """The output. Each attempt ends with its report; a stream with fewer reports was cut off."""
        reports, attempts = 0, len(self._call.tasks)
        with self._blaming():
            for chunk in self._reader:
                metadata = chunk.app_metadata
                if (failure := protocol.carried_error(None if metadata is None else metadata.to_pybytes())) is not None:
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
    call: protocol.AttemptCall,
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
