"""A proxy between clients and brokers, which does with single requests what a test says.

It passes on whole requests and answers. It can hold a request back: the client loses its connection, as by a fault of
the network, and sends the request again by itself; the broker gets the first one whenever the test says. It can give a
request one of the other fates too.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from functools import partial
from typing import Self

from penstock.testing.kafka_broker import KafkaBroker
from penstock.testing.kafka_cluster import KafkaCluster

PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
FIND_COORDINATOR = 10
INIT_PRODUCER_ID = 22
ADD_PARTITIONS_TO_TXN = 24
END_TXN = 26
"""API keys. The last one is that of requests to commit or abort a transaction."""
_NAME_BROKERS = frozenset({3, 10, 60})
"""The API keys of requests with answers that have addresses of brokers: Metadata, FindCoordinator, DescribeCluster."""
_HOST = "127.0.0.1"
_TIMEOUT_S = 60.0
_SLOW_S = 0.25


class Fate(Enum):
    """The fate of one request."""

    LOST = "the broker never gets it, and the client loses its connection"
    UNANSWERED = "the broker gets it, and the client loses its connection in place of the answer"
    TWICE_FIRST = "the broker gets it twice, and the client the first answer"
    TWICE_SECOND = "the broker gets it twice, and the client the second answer"
    LAST = "the broker gets it behind the next request of its connection"
    SLOW = "the broker gets it after a while, and so all behind it"
    PASSED = "the broker gets it once something else has been done"


class _Answer(Enum):
    """The fate of an answer."""

    PASSED = "the client gets it"
    DROPPED = "nobody gets it"
    CUT = "the client loses its connection"


_ANSWERS: Mapping[Fate, tuple[_Answer, ...]] = {
    Fate.UNANSWERED: (_Answer.CUT,),
    Fate.TWICE_FIRST: (_Answer.PASSED, _Answer.DROPPED),
    Fate.TWICE_SECOND: (_Answer.DROPPED, _Answer.PASSED),
}
"""For each time that the broker gets the request."""


class FatedRequest:
    """The request that gets a fate, from when it has come."""

    def __init__(self, fate: Fate, others: int, before: Callable[[], object]) -> None:
        self.fate = fate
        self.has_come = False
        self.was_overtaken = False
        """True if the broker got another request before it."""
        self._others = others
        self._before = before

    def is_next(self) -> bool:
        """True if the request that has come is meant."""
        self._others -= 1
        return self._others < 0

    def begin(self) -> None:
        """Do what comes before its fate."""
        self._before()
        self.has_come = True


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
    """Listens on ports of this machine until `close`, or the end of a `with` block. Clients that begin here stay here:
    in answers that name a broker's address, the proxy's stands instead.

    Args:
        ports: for each broker, the port of a listener without TLS, on this machine.
    """

    def __init__(self, *ports: int) -> None:
        self._listening = {port: socket.create_server((_HOST, 0), backlog=128) for port in ports}
        self.seen: Counter[int] = Counter()
        """The requests so far, by their API key."""
        self._lock = threading.Lock()
        self._to_hold: dict[int, deque[HeldRequest]] = {}
        self._to_release: dict[int, list[HeldRequest]] = {}
        self._fated: dict[int, list[FatedRequest]] = {}
        self._links: set[_Link] = set()
        for port in ports:
            threading.Thread(target=self._accept, args=(port,), name="kafka-proxy", daemon=True).start()

    @classmethod
    def before(cls, brokers: KafkaBroker | KafkaCluster) -> Self:
        """A proxy in front of a broker, or of each broker of a cluster."""
        each = brokers.brokers if isinstance(brokers, KafkaCluster) else (brokers,)
        return cls(
            *(int(broker.client_options("PLAINTEXT")["bootstrap.servers"].rpartition(":")[2]) for broker in each)
        )

    @property
    def address(self) -> str:
        """The value for `bootstrap.servers`."""
        return ",".join(f"{_HOST}:{_port(listening)}" for listening in self._listening.values())

    def give(
        self, api_key: int, fate: Fate, *, after: int = 0, before: Callable[[], object] = lambda: None
    ) -> FatedRequest:
        """Give a fate to a request of this API key: to the next one, or to that after so many others. `before` is
        called first."""
        fated = FatedRequest(fate, after, before)
        with self._lock:
            self._fated.setdefault(api_key, []).append(fated)
        return fated

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
        for listening in self._listening.values():
            _close(listening)
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self, target: int) -> None:
        listening = self._listening[target]
        names = [(_address(port), _address(_port(own))) for port, own in self._listening.items()]
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                try:
                    server = socket.create_connection((_HOST, target))
                except OSError:  # the broker is away, and the client tries again
                    client.close()
                    continue
                link = _Link(client, server, self._meet, partial(_renamed, names))
                with self._lock:
                    self._links = {each for each in self._links if each.is_open} | {link}
                link.start()

    def _meet(self, api_key: int) -> HeldRequest | FatedRequest | None:
        """Do what is to be done before a request. Returns the order to hold it back, or its fate, if there is one."""
        with self._lock:
            self.seen[api_key] += 1
            late = self._to_release.pop(api_key, [])
            waiting = self._to_hold.get(api_key)
            held = waiting.popleft() if waiting else None
            given = self._fated.get(api_key, [])
            fated = next((each for each in given if each.is_next()), None)
            if fated is not None:
                given.remove(fated)
        for each in late:
            with contextlib.suppress(OSError):
                each.release()
        if held is None and fated is not None:
            fated.begin()
        return held or fated


class _Link:
    """A connection of a client, and that to the broker for it. A broker answers in the order of the requests."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        meet: Callable[[int], HeldRequest | FatedRequest | None],
        renamed: Callable[[bytes], bytes],
    ) -> None:
        self._client = client
        self._server = server
        self._meet = meet
        self._renamed = renamed
        self._unanswered: deque[tuple[int, Future[bytes] | _Answer]] = deque()
        self._overtaken: tuple[FatedRequest, bytes] | None = None
        self._sending = threading.Lock()
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
                order = self._meet(int.from_bytes(frame[4:6]))
                if isinstance(order, HeldRequest):
                    order._send.set_result(lambda answer: self._send(frame, answer))
                    _close(self._client)
                    return  # the connection to the broker stays open for it
                if order is None:
                    self._send(frame, _Answer.PASSED)
                elif order.fate is Fate.LOST:
                    break
                elif order.fate is Fate.LAST:
                    self._let_overtake(order, frame)
                else:
                    if order.fate is Fate.SLOW:
                        time.sleep(_SLOW_S)
                    for answer in _ANSWERS.get(order.fate, (_Answer.PASSED,)):
                        self._send(frame, answer)
        self.cut()

    def _send(self, frame: bytes, answer: Future[bytes] | _Answer) -> None:
        with self._sending:
            overtaken, self._overtaken = self._overtaken, None
            self._send_now(frame, answer)
            if overtaken is not None:
                overtaken[0].was_overtaken = True
                self._send_now(overtaken[1], _Answer.PASSED)

    def _send_now(self, frame: bytes, answer: Future[bytes] | _Answer) -> None:
        self._unanswered.append((int.from_bytes(frame[4:6]), answer))
        self._server.sendall(frame)

    def _let_overtake(self, order: FatedRequest, frame: bytes) -> None:
        """Keep the request until the next one has been sent, or none comes for a while."""
        with self._sending:
            self._overtaken = order, frame

        def send() -> None:
            with self._sending, contextlib.suppress(OSError):
                if self._overtaken == (order, frame):
                    self._overtaken = None
                    self._send_now(frame, _Answer.PASSED)

        timer = threading.Timer(_SLOW_S, send)
        timer.daemon = True
        timer.start()

    def _pass_answers(self) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(self._server):
                api_key, answer = self._unanswered.popleft()
                if isinstance(answer, Future):
                    answer.set_result(frame[8:])
                    break
                if answer is _Answer.CUT:
                    break
                if answer is _Answer.PASSED:
                    with contextlib.suppress(OSError):  # the client may have gone
                        self._client.sendall(self._renamed(frame) if api_key in _NAME_BROKERS else frame)
        self.cut()
        for _, answer in self._unanswered:
            if isinstance(answer, Future):
                answer.set_exception(ConnectionError("the broker has closed the connection"))


def _port(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


def _address(port: int) -> bytes:
    """As it is in answers."""
    return _HOST.encode() + port.to_bytes(4)


def _renamed(names: Sequence[tuple[bytes, bytes]], answer: bytes) -> bytes:
    for their, own in names:
        answer = answer.replace(their, own)
    return answer


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
