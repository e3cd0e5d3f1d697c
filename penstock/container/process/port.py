"""The port of a container. With TLS, another port with a new certificate takes its place from time to time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from penstock.container.epoch.container import Container
from penstock.container.process.gate import Gate
from penstock.container.process.server import ContainerServer
from penstock.container.process.visitors import Visitors
from penstock.errors import PenstockError
from penstock.wire.address import ContainerSpec
from penstock.wire.auth import TokenCheck
from penstock.wire.protocol import RenewedPort
from penstock.wire.tls import new_identity

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
