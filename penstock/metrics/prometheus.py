"""An HTTP endpoint that Prometheus scrapes, and its server: one for small pages that strangers may reach, with few
connections, each for a short time.
"""

from __future__ import annotations

import hmac
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.exposition import choose_encoder

from penstock.base.http_hosts import Authority, Crowd, is_loopback
from penstock.errors import ConfigError
from penstock.metrics.snapshot import CounterValue, GaugeValue, MetricId, Snapshot, TimerValue

CONNECTIONS = 16
"""Connections at once. One more takes the place of one whose request has not come: the oldest one of the host that has
the most. If there is none, it is closed; a client that asks again is served later."""
_END_SECONDS = 1.0
"""The longest that a connection waits for the end of the one whose place it takes."""
SECONDS = 10.0
"""The time limit of a connection, with its handshake, the request and the answer."""


class ServedPage:
    """The answer of a server to GET, whatever the path."""

    def __init__(self, answer: Callable[[str], tuple[str, bytes]], token: str | None = None) -> None:
        """Args:
        answer: gets the header `Accept`; returns the type of the content, and the content.
        token: required of each request, as `Authorization: Bearer <token>`; None: nothing is required."""
        self.answer = answer
        self._expected = None if token is None else f"Bearer {token}".encode()

    def refuses(self, address: str, headers: Message) -> HTTPStatus | None:
        """The status of a refusal; None if the request is answered.

        Args:
            address: that on which the server listens.
            headers: those of the request.
        """
        if self._expected is not None:
            given = headers.get_all("Authorization", [])
            known = len(given) == 1 and hmac.compare_digest(given[0].encode(), self._expected)
            return None if known else HTTPStatus.UNAUTHORIZED
        named = headers.get_all("Host", [])
        if is_loopback(address) and not all(_is_own(each) for each in named):
            # Otherwise a name that a site lets point to this host could read the page in a browser.
            return HTTPStatus.MISDIRECTED_REQUEST
        return None


def _is_own(host: str) -> bool:
    found = Authority.parse(host)
    return found is not None and is_loopback(found.host)


@dataclass(eq=False, slots=True)
class _Visit:
    socket: socket.socket

    def cut(self) -> None:
        """From any thread."""
        with suppress(OSError):
            self.socket.shutdown(SHUT_RDWR)


class SmallServer(ThreadingHTTPServer):
    """Serves one page, from threads of its own, until it is closed."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS

    def __init__(
        self,
        host: str,
        port: int,
        page: ServedPage,
        tls: ssl.SSLContext | None = None,
        *,
        connections: int = CONNECTIONS,
        seconds: float = SECONDS,
    ) -> None:
        """Listen. Port 0 is any free one. Raises OSError."""
        self.page = page
        self._tls = tls
        self._seconds = seconds
        self._free = threading.BoundedSemaphore(connections)
        self._crowd: Crowd[_Visit] = Crowd(connections)
        """Connections whose request has not come."""
        self._visits: dict[int, _Visit] = {}
        """Thread -> its connection."""
        self._lock = threading.Lock()
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, name="penstock-http", daemon=True)
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        visit: Any = _Visit(request)
        if self._free.acquire(blocking=False) or (self._cut_one() and self._free.acquire(timeout=_END_SECONDS)):
            with self._lock:
                self._crowd.add(visit, client_address[0])
            try:
                super().process_request(visit, client_address)
            except RuntimeError:  # no thread is left
                with self._lock:
                    self._crowd.discard(visit)
                self._free.release()
                self.shutdown_request(request)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection. One that takes too long is cut off, in whatever state."""
        visit: _Visit = request
        self._visits[threading.get_ident()] = visit
        timer = threading.Timer(self._seconds, visit.cut)
        timer.daemon = True
        timer.start()
        try:
            visit.socket.settimeout(self._seconds)
            if self._tls is not None:
                visit.socket = made = self._tls.wrap_socket(
                    visit.socket, server_side=True, do_handshake_on_connect=False
                )
                made.do_handshake()
            super().process_request_thread(visit.socket, client_address)
        except (OSError, ValueError):
            self.shutdown_request(visit.socket)
        finally:
            timer.cancel()
            self.has_come()
            self._visits.pop(threading.get_ident(), None)
            self._free.release()

    def has_come(self) -> None:
        """Called by the thread of a connection once its request has come, or it has ended."""
        with self._lock:
            self._crowd.discard(self._visits[threading.get_ident()])

    def _cut_one(self) -> bool:
        with self._lock:
            found = self._crowd.remove_one()
        if found is not None:
            found.cut()
        return found is not None

    def handle_error(self, request: Any, client_address: Any) -> None: ...

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: SmallServer
    server_version, sys_version = "penstock", ""

    def do_GET(self) -> None:
        page = self.server.page
        if (refusal := page.refuses(str(self.server.server_address[0]), self.headers)) is not None:
            self.send_response(refusal)
            if refusal is HTTPStatus.UNAUTHORIZED:
                self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.server.has_come()
        kind, content = page.answer(self.headers.get("Accept", ""))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Log nothing: anybody can send many requests."""


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """The TLS identity of a server.

    Args:
        certificate: a PEM file with the certificate, and those between it and its root.
        key: a PEM file with its private key.

    Raises:
        OSError: a file cannot be read, or is not such a file.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


_NS = 1e9


class PrometheusEndpoint:
    """Answers each scrape with the metrics of that moment, until it is closed."""

    def __init__(
        self,
        job: str,
        host: str,
        port: int,
        snapshot: Callable[[], Snapshot],
        token: str | None = None,
        tls: tuple[str, str] | None = None,
    ) -> None:
        """Listen. Port 0 is any free one.

        Args:
            token: required of each request as a bearer token; None: nothing is required.
            tls: the PEM files with the server's certificate and its key; None: without TLS.

        Raises:
            ConfigError: the address cannot be listened on, or the files cannot be used.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(JobCollector(job, snapshot))

        def answer(accept: str) -> tuple[str, bytes]:
            encode, kind = choose_encoder(accept)
            return kind, encode(registry)

        try:
            context = None if tls is None else tls_context(*tls)
        except OSError as error:
            raise ConfigError(
                "metrics.prometheus.tls.certificate.file and metrics.prometheus.tls.key.file cannot be used: "
                f"{error.strerror or error}. Give two PEM files that belong together"
            ) from error
        try:
            self._server = SmallServer(host, port, ServedPage(answer, token), context)
        except OSError as error:
            raise ConfigError(
                f"metrics.prometheus.port: nothing can listen on {host}:{port}: {error.strerror}. Choose a free port, "
                "and with metrics.prometheus.host an address of this host"
            ) from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.close()


class JobCollector:
    """A job's metrics as Prometheus's families. Each has the labels `job` and `source`, and if it is about one of
    several: `stage`, `store`, `backend` or `stream`."""

    def __init__(self, job: str, snapshot: Callable[[], Snapshot]) -> None:
        self._job = job
        self._snapshot = snapshot

    def collect(self) -> Iterator[Any]:
        families: dict[str, Any] = {}
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for key, value in sorted(self._snapshot().items(), key=lambda item: item[0]):
            name, labels = prometheus_name(key)
            form = _FORMS[type(value)]
            if isinstance(value, TimerValue):
                name = f"{name.removesuffix('_ns')}_seconds"
            label_names, values = ("job", *labels), (self._job, *labels.values())
            family = families.setdefault(name, form(name, f"See `{key.name}` in docs/metrics.md.", labels=label_names))
            if isinstance(family, form) and (name, values) not in seen:  # two names may be one to Prometheus
                seen.add((name, values))
                _add(family, values, value)
        yield from families.values()


_FORMS: dict[type, Any] = {
    CounterValue: CounterMetricFamily,
    GaugeValue: GaugeMetricFamily,
    TimerValue: SummaryMetricFamily,
}


def prometheus_name(key: MetricId) -> tuple[str, dict[str, str]]:
    """A metric's name for Prometheus, without the unit of a timer, and its labels but `job`.

    Example:
        >>> prometheus_name(MetricId("Partition 0", "store.totals", "cache-hits"))
        ('penstock_store_cache_hits', {'source': 'Partition 0', 'store': 'totals'})
    """
    kind, _, subject = key.group.partition(".")
    parts, labels = ["penstock", kind, key.name], {"source": key.source}
    if kind == "user":
        parts.insert(2, subject)
    elif subject:
        labels[kind] = subject
    return re.sub(r"[^a-zA-Z0-9_]", "_", "_".join(parts)), labels


def _add(family: Any, labels: tuple[str, ...], value: object) -> None:
    match value:
        case CounterValue(count):
            family.add_metric(labels, count)
        case GaugeValue(number):
            family.add_metric(labels, number)
        case TimerValue(count, total_ns, _):
            family.add_metric(labels, count_value=count, sum_value=total_ns / _NS)
