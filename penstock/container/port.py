"""The port of a container. With TLS, another port with a new certificate takes its place from time to time."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass

import pyarrow as pa

from penstock.container.auth import TokenCheck
from penstock.container.container import Container
from penstock.container.protocol import ContainerSpec, RenewedPort
from penstock.container.server import ContainerServer
from penstock.container.tls import new_identity
from penstock.errors import PenstockError

_GRACE_SECONDS = 10.0
"""How long a port goes on that was replaced: the driver may just have begun another call."""


@dataclass(slots=True)
class ContainerPort:
    """Where callers on other hosts reach a container. gRPC cannot change the certificate of a port that it serves."""

    uri: str
    certificate: str | None
    _spec: ContainerSpec
    _container: Container
    _check: TokenCheck
    _server: ContainerServer
    _lock: threading.Lock

    @classmethod
    def serve(cls, spec: ContainerSpec, container: Container, check: TokenCheck) -> ContainerPort:
        """Raises PenstockError if this host does not have the address."""
        server, uri, certificate = _serve(spec, spec.callers, container, check)
        return cls(uri, certificate, spec, container, check, server, threading.Lock())

    def renew(self, callers: str) -> RenewedPort:
        """Serve another port for callers with this certificate. What runs on the old one goes on to its end."""
        with self._lock:
            server, uri, certificate = _serve(self._spec, callers, self._container, self._check)
            if certificate is None:
                raise PenstockError("this container's port does not speak TLS, and has no certificate to renew")
            retired = threading.Timer(_GRACE_SECONDS, self._server.shutdown)
            retired.daemon = True
            retired.start()
            self._server, self.uri, self.certificate = server, uri, certificate
            return RenewedPort(uri, certificate, callers)

    def shutdown(self) -> None:
        """Serve no new calls, and wait for those that there are."""
        self._server.shutdown()


def _serve(
    spec: ContainerSpec, callers: str | None, container: Container, check: TokenCheck
) -> tuple[ContainerServer, str, str | None]:
    """A server, how others reach it, and its certificate."""
    if spec.tls and callers is None:
        raise PenstockError("nothing says which certificate the callers of the container's port have")
    tls = new_identity("server") if spec.tls else None
    try:
        server = ContainerServer(_uri(spec, _host(spec), 0), container, check, tls, callers)
    except (pa.ArrowException, OSError) as error:
        raise PenstockError(
            f"the container cannot listen on {_host(spec)}, the address by which Spark knows executor "
            f"{spec.executor_id}: {str(error).splitlines()[0]}. Set SPARK_LOCAL_IP on {socket.gethostname()} to an "
            "address of that host which other hosts can reach (in conf/spark-env.sh), and start its Spark worker again"
        ) from error
    return server, _uri(spec, spec.reached_at or _host(spec), server.port), None if tls is None else tls.certificate


def _host(spec: ContainerSpec) -> str:
    if spec.host is None:
        raise PenstockError("nothing says which address the container is to listen on")
    return spec.host


def _uri(spec: ContainerSpec, host: str, port: int) -> str:
    scheme = "grpc+tls" if spec.tls else "grpc"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
