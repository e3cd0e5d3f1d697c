"""The Flight server of a container and its port, and the exchange of attempts with their caller: packets come in and go
out at the same time.

With TLS, another port with a new certificate takes the place of the port from time to time.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from penstock.container.attempts import Attempts, RunningAttempt
from penstock.container.container import Container, Epoch
from penstock.container.gate import Gate, Visitors
from penstock.container.handlers import serve
from penstock.errors import PenstockError
from penstock.runtime.context import OperatorFailedError
from penstock.runtime.messages.packet import (
    NO_PACKETS,
    PACKET_SCHEMA,
    WITH_MESSAGES,
    Packet,
    from_batch,
    split_by_size,
    to_batch,
)
from penstock.runtime.messages.router import JointOutput
from penstock.runtime.stage.attempt import new_token
from penstock.runtime.stage.failures import failed_attempt
from penstock.state.engines.engine import EngineFailedError
from penstock.wing import calls
from penstock.wire.containers import ContainerSpec
from penstock.wire.protocol import CALLS, END_OF_INPUT, AttemptCall, RenewedPort, StartRun, carried, load, status_text
from penstock.wire.security import TlsIdentity, TokenCheck, new_identity

logger = logging.getLogger(__name__)


class ContainerServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves one container at one location. A container has two of these: a Unix socket and a port."""

    def __init__(
        self,
        location: str,
        container: Container,
        check: TokenCheck,
        admit: Callable[[str], None] | None = None,
        tls: TlsIdentity | None = None,
        callers: str | None = None,
    ) -> None:
        """`admit` gets the peer of every call. `callers`: with TLS, the certificate that callers must present."""
        middleware = {"token": check}
        if tls is None:
            super().__init__(location, middleware=middleware)
        else:
            # Mutual: nothing of a call is read before the caller has proved that it has the key of its certificate.
            super().__init__(
                location,
                tls_certificates=[(tls.certificate, tls.key)],
                verify_client=True,
                root_certificates=callers,
                middleware=middleware,
            )
        self._container = container
        self._admit = admit

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """The driver's calls. An error is the last answer."""
        self._note_peer(context)
        # A host whose wings are broken hears the kernel all the same: the opening of an epoch says what is wrong.
        call = CALLS.get(action.type) or calls().get(action.type)
        if call is None:
            raise flight.FlightServerError(f"a container has no action `{action.type}`")
        try:
            for answer in serve(call, self._container, action.body.to_pybytes()):
                yield answer
                if context.is_cancelled():
                    return
        except Exception as error:
            if not isinstance(error, PenstockError):
                logger.exception("action %s failed", action.type)
            yield carried(error)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Attempts of some tasks: packets in, packets out, at the same time."""
        self._note_peer(context)
        run_attempts(self._container, descriptor.command, reader, writer)

    def _note_peer(self, context: Any) -> None:
        """Admit the peer: Flight serves only calls that had the token."""
        if self._admit is not None:
            self._admit(context.peer())


_GRACE_SECONDS = 10.0
"""Seconds for which a replaced port stays open: the driver may just have begun another call on it."""


class ContainerPort:
    """The port at which callers on other hosts reach a container. gRPC cannot change the certificate of a port that it
    serves."""

    def __init__(self, spec: ContainerSpec, container: Container, check: TokenCheck, folder: Path) -> None:
        """`folder`: the folder of the container's socket. Raises PenstockError if this host does not have the
        address."""
        self._spec = spec
        self._container = container
        self._check = check
        self._lock = threading.Lock()
        self.gate: Gate | None = None
        self.certificate: str | None = None
        if spec.tls:
            self._end, self.uri, self.certificate = self._serve(spec.callers)
        else:
            with _explained(spec):
                self.gate = Gate(_host(spec), folder)
            self._end = self.gate.shutdown
            self.uri = _reached(spec, self.gate.port)

    def renew(self, callers: str) -> RenewedPort:
        """Serve another port for callers with this certificate. Calls on the old one run to their end.

        Raises PenstockError if the container has no certificate.
        """
        if self.gate is not None:
            raise PenstockError("this container's port does not speak TLS, and has no certificate to renew")
        with self._lock:
            retired = threading.Timer(_GRACE_SECONDS, self._end)
            self._end, self.uri, self.certificate = self._serve(callers)
            retired.daemon = True
            retired.start()
            return RenewedPort(self.uri, self.certificate, callers)

    def shutdown(self) -> None:
        self._end()

    def _serve(self, callers: str | None) -> tuple[Callable[[], None], str, str]:
        """Open a port. Returns what closes it, its URI, and its certificate."""
        if callers is None:
            raise PenstockError("nothing says which certificate the callers of the container's port have")
        tls, visitors = new_identity("server"), Visitors()
        with _explained(self._spec):
            server = ContainerServer(
                _uri(self._spec, _host(self._spec), 0),
                self._container,
                self._check,
                visitors.admit,
                tls,
                callers,
            )
        visitors.watch(server.port)

        def end() -> None:
            server.shutdown()
            visitors.close()

        return end, _reached(self._spec, server.port), tls.certificate


@contextmanager
def _explained(spec: ContainerSpec) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise PenstockError(
            f"the container cannot listen on {_host(spec)}, the address by which Spark knows executor "
            f"{spec.executor_id}: {str(error).splitlines()[0]}. Set SPARK_LOCAL_IP on {socket.gethostname()} to an "
            "address of that host which other hosts can reach (in conf/spark-env.sh), and start its Spark worker again"
        ) from error


def _reached(spec: ContainerSpec, port: int) -> str:
    return _uri(spec, spec.reached_at or _host(spec), port)


def _host(spec: ContainerSpec) -> str:
    if spec.host is None:
        raise PenstockError("nothing says which address the container is to listen on")
    return spec.host


def _uri(spec: ContainerSpec, host: str, port: int) -> str:
    scheme = "grpc+tls" if spec.tls else "grpc"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def run_attempts(container: Container, command: bytes, reader: Any, writer: Any) -> None:
    """Run attempts of some tasks. `reader` and `writer` are those of a Flight exchange, or what has their methods.

    Raises:
        FlightServerError: they failed, and the caller cannot be told.
    """
    writer.begin(PACKET_SCHEMA)
    running: dict[int, RunningAttempt] = {}
    last = NO_PACKETS
    attempts: Attempts | None = None
    try:
        call = load(AttemptCall, command)
        epoch = container.epoch(call.identity)
        attempts = epoch.attempts
        if call.starts:
            epoch.start_run(StartRun(call.batch))
        together = JointOutput(len(call.tasks))
        failed = _begin(epoch, call, running, together)
        for chunk in reader:
            if _is_end(chunk):
                last = chunk.data  # without it the worker has ended, and trailers are missing
                break
            _send(writer, _outputs(chunk.data, attempts, running))
        # One stream for all: for a small batch this is one message, reports and all, however many the tasks.
        _send(writer, chain(_outputs(last, attempts, running), _rest(attempts, running, together, failed)))
    except BaseException as error:
        if not isinstance(error, PenstockError):
            logger.exception("attempts failed")
        _abandon(attempts, running)
        if not _tell(error, reader, writer):
            raise flight.FlightServerError(status_text(error)) from error
    finally:
        _abandon(attempts, running)


def _abandon(attempts: Attempts | None, running: dict[int, RunningAttempt]) -> None:
    while attempts is not None and running:
        attempts.abandon(running.popitem()[1])


def _tell(error: BaseException, reader: Any, writer: Any) -> bool:
    """Send the error as the last message, and take the rest of the input: a caller whose write fails would learn only
    the status of the call. Returns False if the caller has gone."""
    try:
        writer.write_with_metadata(NO_PACKETS, carried(error, kind=not isinstance(error, PenstockError)))
        for chunk in reader:
            if _is_end(chunk):
                break
    except (pa.ArrowException, flight.FlightError, OSError, StopIteration):
        return False
    return True


def _is_end(chunk: Any) -> bool:
    return chunk.app_metadata is not None and chunk.app_metadata.to_pybytes() == END_OF_INPUT


def _begin(epoch: Epoch, call: AttemptCall, running: dict[int, RunningAttempt], together: JointOutput) -> list[Packet]:
    """Begin an attempt for each task. Returns the reports of attempts whose `init` or store failed: they run no
    further."""
    failed: list[Packet] = []
    token = new_token()
    for task in call.tasks:
        try:
            running[task] = epoch.attempts.begin(call, task, token)
        except (OperatorFailedError, EngineFailedError) as error:
            package = epoch.package
            failed.extend(failed_attempt(package.topology, package.settings, call.stage, task, token, error, together))
    return failed


def _outputs(batch: pa.RecordBatch, attempts: Attempts, running: Mapping[int, RunningAttempt]) -> Iterator[Packet]:
    """Feed packets to their attempts, and send the output of each before it grows too large: one by one those with
    messages, together the trailers that follow."""
    waiting: dict[int, list[Packet]] = {}
    for packet in from_batch(batch):
        if packet.dest in running:
            own = waiting.setdefault(packet.dest, [])
            own.append(packet)
            if packet.kind in WITH_MESSAGES:
                yield from attempts.process(running[packet.dest], own)
                own.clear()
    for task, own in waiting.items():
        if own:
            yield from attempts.process(running[task], own)


def _rest(
    attempts: Attempts, running: dict[int, RunningAttempt], together: JointOutput, failed: Iterable[Packet]
) -> Iterator[Packet]:
    """Finish every attempt and yield its remaining packets, then the trailers of all attempts, and then their reports.
    The reports of attempts that failed earlier come first. A reader that has the reports has everything.

    An attempt that is finished and whose report is not sent, because another one failed, is named by no End: it is
    dropped with the run.
    """
    reports = list(failed)
    for task in list(running):
        *rest, report = attempts.finish(running[task], together)
        yield from rest
        reports.append(report)
        del running[task]
    yield from together.end()
    yield from reports


def _send(writer: Any, packets: Iterable[Packet]) -> None:
    for group in split_by_size(packets):
        writer.write_batch(to_batch(group))
