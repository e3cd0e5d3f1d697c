"""A line to an HTTP server on this machine that does to requests what a test says."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

_LOOK_S = 0.02
_PIECE = 64 << 10


class Fault(Enum):
    """The answer to one request."""

    UNAVAILABLE = "it is answered with 503 and does not reach the server"
    LOST_REPLY = "it is done, and its connection ends without a reply"
    CUT_REQUEST = "its connection ends in the middle of its body, and it does not reach the server"
    CUT_REPLY = "it is done, and its connection ends in the middle of the reply's body"


@dataclass(slots=True)
class Plan:
    """A fault for `times` requests of a method whose target holds `part`: of these, each `every`-th."""

    fault: Fault
    method: str
    part: str
    times: float
    every: int
    seen: int = 0


class Line:
    """Passes requests to the server at a port. Everything may be changed while requests are under way.

    `delay_s` is waited for before each request; all bodies together take `bytes_per_s`.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.met: Counter[Fault] = Counter()
        self.requests: Counter[str] = Counter()
        self._plans: list[Plan] = []
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._server = _Server(self, 0)
        self.port = int(self._server.server_address[1])
        self._server.begin()

    @property
    def url(self) -> str:
        """Where clients find the server."""
        return f"http://127.0.0.1:{self.port}"

    def plan(self, fault: Fault, *, method: str = "", part: str = "", times: float = 1, every: int = 1) -> None:
        """A fault for the next requests of a kind, or for each `every`-th of them."""
        with self._lock:
            self._plans.append(Plan(fault, method, part, times, every))

    def cut_off(self) -> None:
        """Every connection ends, and new ones are refused."""
        self._server.end()
        self._server = _Server(self, self.port)  # has the port, but does not listen

    def restore(self) -> None:
        """As new: reachable, quick, without faults."""
        with self._lock:
            self._plans.clear()
            self.delay_s, self.bytes_per_s = 0.0, None
            self.met.clear()
            self.requests.clear()
        self._server.begin()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.end()

    # For the server.

    def fault_of(self, method: str, target: str) -> Fault | None:
        with self._lock:
            self.requests[method] += 1
            for plan in self._plans:
                if plan.times > 0 and plan.method in {"", method} and plan.part in target:
                    plan.seen += 1
                    if plan.seen % plan.every:
                        continue
                    plan.times -= 1
                    self.met[plan.fault] += 1
                    return plan.fault
        return None

    def take_time(self, size: int) -> None:
        """Wait as long as a body of this size takes, behind those that came before."""
        if self.bytes_per_s is not None:
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + size / self.bytes_per_s
                free_at = self._free_at
            time.sleep(max(0.0, free_at - time.monotonic()))


class _Server(ThreadingTCPServer):
    """Has the port from the beginning, refuses connections until `begin`."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, line: Line, port: int) -> None:
        self.line = line
        self._open: set[socket.socket] = set()
        self._listening = False
        super().__init__(("127.0.0.1", port), _Handler, bind_and_activate=False)
        self.server_bind()

    def begin(self) -> None:
        """Listen, if it does not yet."""
        if not self._listening:
            self._listening = True
            self.server_activate()
            threading.Thread(target=self.serve_forever, args=(_LOOK_S,), daemon=True).start()

    def end(self) -> None:
        """Refuse, and end every connection."""
        if self._listening:
            self.shutdown()
        self.server_close()
        for connection in list(self._open):
            _hang_up(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client or the test ended the connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        line = self.server.line
        fault = line.fault_of(self.command, self.path)
        time.sleep(line.delay_s)
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size // 2 if fault is Fault.CUT_REQUEST else size)
        line.take_time(len(body))
        if fault is Fault.CUT_REQUEST:
            self._end()
        elif fault is Fault.UNAVAILABLE:
            self._reply(
                503, [], b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            )
        else:
            status, headers, data = self._ask(body)
            if fault is Fault.LOST_REPLY:
                self._end()
                return
            self._reply(status, headers, data, cut=fault is Fault.CUT_REPLY)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the names are http.server's

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.line.upstream, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            reply = connection.getresponse()
            return reply.status, reply.getheaders(), reply.read()
        finally:
            connection.close()

    def _reply(self, status: int, headers: list[tuple[str, str]], data: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), None)
        self.send_header("Content-Length", str(len(data)) if length is None or data else length)
        self.end_headers()
        shown = data[: len(data) // 2] if cut else data
        for at in range(0, len(shown), _PIECE):
            piece = shown[at : at + _PIECE]
            self.server.line.take_time(len(piece))
            self.wfile.write(piece)
        if cut:
            self._end()

    def _end(self) -> None:
        self.close_connection = True
        _hang_up(self.connection)


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
