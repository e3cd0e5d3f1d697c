"""A proxy between the clients of a broker and the broker, which does with single requests what a test says.

It passes on whole requests and answers. It can hold a request back: the client loses its connection, as by a fault of
the network, and sends the request again by itself; the broker gets the first one whenever the test says.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self

from penstock.testing.kafka_broker import KafkaBroker

PRODUCE = 0
INIT_PRODUCER_ID = 22
ADD_PARTITIONS_TO_TXN = 24
END_TXN = 26
"""API keys. The last one is that of requests to commit or abort a transaction."""
_NAME_BROKERS = frozenset({3, 10, 60})
"""The API keys of requests with answers that have addresses of brokers: Metadata, FindCoordinator, DescribeCluster."""
_HOST = "127.0.0.1"
_TIMEOUT_S = 60.0


class HeldRequest:
    """The next request of an API key, which the broker gets when `release` is called, or never."""

    def __init__(self) -> None:
        self._send: Future[Callable[[Future[bytes]], None]] = Future()
        self._answer: Future[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def has_come(self) -> bool:
        """True once the client has sent the request."""
        return self._send.done()

    def release(self) -> bytes:
        """Let the broker have the request, and wait for its answer, which is returned from behind the correlation id.
        It waits for a request that has not come yet. A second call returns the same answer."""
        with self._lock:
            if self._answer is None:
                send, self._answer = self._send.result(_TIMEOUT_S), Future()
                send(self._answer)
        return self._answer.result(_TIMEOUT_S)


class KafkaProxy:
    """Listens on a port of this machine until `close`, or the end of a `with` block. Clients that begin here stay here:
    in answers that name the broker's address, the proxy's stands instead.

    Args:
        port: the port of a listener of the broker without TLS, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._target = (_HOST, port)
        self._listening = socket.create_server((_HOST, 0), backlog=128)
        self.seen: Counter[int] = Counter()
        """The requests so far, by their API key."""
        self._lock = threading.Lock()
        self._to_hold: dict[int, deque[HeldRequest]] = {}
        self._to_release: dict[int, list[HeldRequest]] = {}
        self._links: set[_Link] = set()
        threading.Thread(target=self._accept, name="kafka-proxy", daemon=True).start()

    @classmethod
    def before(cls, broker: KafkaBroker) -> Self:
        """A proxy in front of a broker."""
        return cls(int(broker.client_options("PLAINTEXT")["bootstrap.servers"].rpartition(":")[2]))

    @property
    def address(self) -> str:
        """The value for `bootstrap.servers`."""
        return f"{_HOST}:{self._port}"

    def hold(self, api_key: int) -> HeldRequest:
        """Hold back the next request of this API key. Further calls are for the requests after it."""
        held = HeldRequest()
        with self._lock:
            self._to_hold.setdefault(api_key, deque()).append(held)
        return held

    def release_before(self, api_key: int, held: HeldRequest) -> None:
        """Release a request that has come right before the broker gets the next one of this API key."""
        with self._lock:
            self._to_release.setdefault(api_key, []).append(held)

    def close(self) -> None:
        """Cut all connections. The broker never gets what is held back."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _port(self) -> int:
        return int(self._listening.getsockname()[1])

    def _accept(self) -> None:
        own, their = (_HOST.encode() + port.to_bytes(4) for port in (self._port, self._target[1]))
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:  # the broker is away, and the client tries again
                    client.close()
                    continue
                link = _Link(client, server, self._meet, lambda answer: answer.replace(their, own))
                with self._lock:
                    self._links = {each for each in self._links if each.is_open} | {link}
                link.start()

    def _meet(self, api_key: int) -> HeldRequest | None:
        """Do what is to be done before a request. Returns the order to hold it back, if there is one."""
        with self._lock:
            self.seen[api_key] += 1
            late = self._to_release.pop(api_key, [])
            waiting = self._to_hold.get(api_key)
            held = waiting.popleft() if waiting else None
        for each in late:
            with contextlib.suppress(OSError):
                each.release()
        return held


class _Link:
    """A connection of a client, and that to the broker for it. A broker answers in the order of the requests."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        meet: Callable[[int], HeldRequest | None],
        renamed: Callable[[bytes], bytes],
    ) -> None:
        self._client = client
        self._server = server
        self._meet = meet
        self._renamed = renamed
        self._unanswered: deque[tuple[int, Future[bytes] | None]] = deque()
        self.is_open = True

    def start(self) -> None:
        for each in (self._pass_requests, self._pass_answers):
            threading.Thread(target=each, name="kafka-proxy", daemon=True).start()

    def cut(self) -> None:
        self.is_open = False
        for each in (self._client, self._server):
            _close(each)

    def _pass_requests(self) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(self._client):
                api_key = int.from_bytes(frame[4:6])
                held = self._meet(api_key)
                if held is not None:
                    held._send.set_result(lambda answer: self._send(api_key, frame, answer))  # noqa: B023
                    _close(self._client)
                    return  # the connection to the broker stays open for it
                self._send(api_key, frame)
        self.cut()

    def _send(self, api_key: int, frame: bytes, answer: Future[bytes] | None = None) -> None:
        self._unanswered.append((api_key, answer))
        self._server.sendall(frame)

    def _pass_answers(self) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(self._server):
                api_key, answer = self._unanswered.popleft()
                if answer is not None:
                    answer.set_result(frame[8:])
                    break
                with contextlib.suppress(OSError):  # the client may have gone
                    self._client.sendall(self._renamed(frame) if api_key in _NAME_BROKERS else frame)
        self.cut()
        for _, answer in self._unanswered:
            if answer is not None:
                answer.set_exception(ConnectionError("the broker has closed the connection"))


def _frame(connection: socket.socket) -> bytes:
    """The next request or answer with its size before it; empty at the end of the connection."""
    size = _exactly(connection, 4)
    return size + _exactly(connection, int.from_bytes(size)) if size else b""


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts, missing = [], size
    while missing:
        part = connection.recv(missing)
        if not part:
            return b""
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
