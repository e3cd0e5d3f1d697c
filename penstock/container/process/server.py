"""The Flight server of a container, and its port.

With TLS, another port with a new certificate takes the place of the port from time to time.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from penstock.container.epoch.container import Container
from penstock.container.process.exchange import run_attempts
from penstock.container.process.gate import Gate, Visitors
from penstock.container.process.handlers import serve
from penstock.errors import PenstockError
from penstock.wing import calls
from penstock.wire.calls import CALLS
from penstock.wire.containers import ContainerSpec
from penstock.wire.protocol import RenewedPort, carried
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
