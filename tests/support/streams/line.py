"""A line to an HTTP server on this machine that does to requests what a test says."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

_LOOK_S = 0.02
_PIECE = 64 << 10


class Fault(Enum):
    """The fate of one request."""

    UNAVAILABLE = "it is answered with 503 and does not reach the server"
    FAILED = "it is answered with 500 and does not reach the server"
    CONFLICT = "it is answered with 409 and does not reach the server"
    LOST_REQUEST = "its connection ends without a reply, and it does not reach the server"
    CUT_REQUEST = "its connection ends in the middle of its body, and it does not reach the server"
    LATE = "its connection ends without a reply, and the server gets it when the test says"
    HELD_UP = "the server gets it after `held_up_s`"
    UNAVAILABLE_AFTER = "it is done, and answered with 503"
    FAILED_AFTER = "it is done, and answered with 500"
    LOST_REPLY = "it is done, and its connection ends without a reply"
    CUT_REPLY = "it is done, and its connection ends in the middle of the reply's body"


_ANSWERS: Mapping[Fault, tuple[int, bytes]] = {
    Fault.UNAVAILABLE: (503, b"<Code>SlowDown</Code><Message>Please reduce your request rate.</Message>"),
    Fault.FAILED: (500, b"<Code>InternalError</Code><Message>Please try again.</Message>"),
    Fault.CONFLICT: (409, b"<Code>ConditionalRequestConflict</Code><Message>A conflicting operation.</Message>"),
}
_ANSWERS_AFTER = {
    Fault.UNAVAILABLE_AFTER: _ANSWERS[Fault.UNAVAILABLE],
    Fault.FAILED_AFTER: _ANSWERS[Fault.FAILED],
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a client."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """The server's answer."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes


@dataclass(frozen=True, slots=True)
class LateRequest:
    """A request that the server has not got yet."""

    asked: Asked
    send: Callable[[], Reply]
    """Let the server have it, and return its answer."""


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

    `delay_s` is waited for before each request; all bodies together take `bytes_per_s`. Plans come before what `draw`
    says of a request by its method and target. `late` are the requests of that fate, until the test takes them away.
    `changed` makes another answer of the server's.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.met: Counter[Fault] = Counter()
        self.requests: Counter[str] = Counter()
        self.answered = 0
        """The requests that the server has answered."""
        self.held_up_s = 0.5
        self.draw: Callable[[str, str], Fault | None] = _none
        self.changed: Callable[[Asked, Reply], Reply] = _as_it_is
        self.late: list[LateRequest] = []
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
            self.late.clear()
            self.delay_s, self.bytes_per_s, self.held_up_s, self.answered = 0.0, None, 0.5, 0
            self.draw, self.changed = _none, _as_it_is
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
            if (drawn := self.draw(method, target)) is not None:
                self.met[drawn] += 1
            return drawn

    def take_time(self, size: int) -> None:
        """Wait as long as a body of this size takes, behind those that came before."""
        if self.bytes_per_s is not None:
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + size / self.bytes_per_s
                free_at = self._free_at
            time.sleep(max(0.0, free_at - time.monotonic()))


def _none(_method: str, _target: str) -> Fault | None:
    return None


def _as_it_is(_: Asked, reply: Reply) -> Reply:
    return reply


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
        asked = Asked(self.command, self.path, dict(self.headers.items()), body)
        if fault is Fault.LATE:
            line.late.append(LateRequest(asked, lambda: self._ask(asked)))
        if fault in (Fault.CUT_REQUEST, Fault.LOST_REQUEST, Fault.LATE):
            self._end()
            return
        if fault is not None and fault in _ANSWERS:
            self._refuse(*_ANSWERS[fault])
            return
        if fault is Fault.HELD_UP:
            time.sleep(line.held_up_s)
        reply = line.changed(asked, self._ask(asked))
        if fault is Fault.LOST_REPLY:
            self._end()
        elif fault in _ANSWERS_AFTER:
            self._refuse(*_ANSWERS_AFTER[fault])
        else:
            self._reply(reply, cut=fault is Fault.CUT_REPLY)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the names are http.server's

    def _ask(self, asked: Asked) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.line.upstream, timeout=60)
        try:
            connection.putrequest(asked.method, asked.target, skip_host=True, skip_accept_encoding=True)
            for name, value in asked.headers.items():
                connection.putheader(name, value)
            connection.endheaders(asked.body)
            reply = connection.getresponse()
            answer = Reply(reply.status, reply.getheaders(), reply.read())
            self.server.line.answered += 1
            return answer
        finally:
            connection.close()

    def _refuse(self, status: int, text: bytes) -> None:
        self._reply(Reply(status, [], b"" if self.command == "HEAD" else b"<Error>%s</Error>" % text))

    def _reply(self, reply: Reply, *, cut: bool = False) -> None:
        data = reply.body
        self.send_response_only(reply.status)
        for name, value in reply.headers:
            if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                self.send_header(name, value)
        length = next((value for name, value in reply.headers if name.lower() == "content-length"), None)
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
