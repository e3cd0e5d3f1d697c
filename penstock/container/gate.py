"""Guards a container's port against strangers.

A port without TLS has a gate: it passes connections on to the container's socket, and little of them before they are
admitted. gRPC receives the first message of a call before Flight can look at the call's headers, however large it is,
and Flight does not let anyone limit it. On a port with TLS a stranger does not come that far.

There, gRPC would hold a silent connection for two minutes, however many come. It accepts connections itself, so that
nothing stands between a caller and its container. What strangers hold is therefore found among the open sockets of
the process, twice a second, and ended.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

from penstock.base.http_hosts import Crowd, plain_address

logger = logging.getLogger(__name__)
_STRANGERS_BYTES = 256 << 10
"""Bytes that a connection may send before a call on it has had the container's token: much more than a first
heartbeat."""
STRANGERS = 64
"""Most connections at a time on which no call has had the token yet."""
STRANGERS_SECONDS = 20.0
_CHUNK = 256 << 10


@dataclass(eq=False, slots=True)
class _Connection:
    outside: socket.socket
    inside: socket.socket
    admitted: threading.Event = field(default_factory=threading.Event)
    until: float = field(default_factory=lambda: time.monotonic() + STRANGERS_SECONDS)

    def close(self) -> None:
        """End both directions. From any thread."""
        for side in (self.outside, self.inside):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def inward(self) -> None:
        left = _STRANGERS_BYTES
        while data := self._receive(left):
            self.inside.sendall(data)
            left -= len(data)

    def _receive(self, left: int) -> bytes:
        """Empty at the end of the stream, or if a stranger has sent too much or taken too long."""
        while not self.admitted.is_set():
            patience = self.until - time.monotonic()
            if patience <= 0 or (left <= 0 and not self.admitted.wait(patience)):
                return b""
            if left > 0:
                self.outside.settimeout(patience)
                with contextlib.suppress(TimeoutError):
                    return self.outside.recv(min(left, _CHUNK))
        self.outside.settimeout(None)
        return self.outside.recv(_CHUNK)

    def outward(self) -> None:
        while data := self.inside.recv(_CHUNK):
            self.outside.sendall(data)


class Gate:
    """Listens on an address, on a port that the operating system chooses."""

    def __init__(self, host: str, folder: Path) -> None:
        """`folder`: the folder of the container's socket `s`. Raises OSError if this host does not have the address."""
        self._folder = folder
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._listener = socket.create_server(address[:2], family=family, backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._strangers: dict[str, _Connection] = {}
        """By the name of their socket."""
        self._crowd: Crowd[str] = Crowd(STRANGERS)
        self._lock = threading.Lock()
        self._closing = False
        threading.Thread(target=self._accept, name="gate", daemon=True).start()

    def admit(self, peer: str) -> None:
        name = peer.rpartition("/")[2]
        if name in self._strangers:
            with self._lock:
                connection = self._forget(name)
            if connection is not None:
                connection.admitted.set()

    def shutdown(self) -> None:
        """Accept no more connections. Present ones go on."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        for number in itertools.count():
            try:
                outside, (address, *_) = self._listener.accept()
            except OSError as error:
                if self._closing:
                    return
                logger.warning("a connection was not accepted: %s", error)
                time.sleep(0.1)  # too many open files, which pass
                continue
            try:
                self._begin(outside, address, str(number))
            except (OSError, RuntimeError) as error:  # no file descriptor, or no thread, is left
                logger.warning("a connection was refused: %s", error)
                outside.close()

    def _begin(self, outside: socket.socket, address: str, name: str) -> None:
        outside.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        inside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection = _Connection(outside, inside)
        with self._lock:
            out = self._crowd.add(name, address)
            oldest = None if out is None else self._strangers.pop(out)
            self._strangers[name] = connection
        if oldest is not None:
            oldest.close()
        path = self._folder / name
        try:
            inside.bind(str(path))  # by this name, gRPC tells the container's calls apart
            try:
                inside.connect(str(self._folder / "s"))
            finally:
                path.unlink()
            threading.Thread(target=self._pass_on, args=(name, connection), name="gate-connection", daemon=True).start()
        except BaseException:
            with self._lock:
                self._forget(name)
            inside.close()
            raise

    def _forget(self, name: str) -> _Connection | None:
        self._crowd.discard(name)
        return self._strangers.pop(name, None)

    def _pass_on(self, name: str, connection: _Connection) -> None:
        """Copy both directions until one of them ends: gRPC uses no half of a connection."""
        answers = threading.Thread(target=_until_it_ends, args=(connection.outward, connection), daemon=True)
        try:
            answers.start()
            _until_it_ends(connection.inward, connection)
            answers.join()
        finally:
            connection.close()
            with self._lock:
                self._forget(name)
            connection.outside.close()
            connection.inside.close()


def _until_it_ends(pump: Callable[[], None], connection: _Connection) -> None:
    try:
        with contextlib.suppress(OSError):
            pump()
    finally:
        connection.close()


Peer: TypeAlias = tuple[str, int]
_LOOK_SECONDS = 0.5
_OPEN = next((path for path in ("/proc/self/fd", "/dev/fd") if os.path.isdir(path)), None)


class Visitors:
    """The connections of a port, until it is closed. On a connection that is admitted there was a call with the token.

    Of the others there are few at a time, and each has few seconds: its handshake, and its first call, take much less.
    """

    def __init__(self, most: int = STRANGERS, seconds: float = STRANGERS_SECONDS) -> None:
        self._seconds = seconds
        self._since: dict[Peer, float] = {}
        """When each stranger was first seen."""
        self._crowd: Crowd[Peer] = Crowd(most)
        self._ended: set[Peer] = set()
        """Strangers that gRPC has not closed yet."""
        self._admitted: dict[str, tuple[Peer, int]] = {}
        """By gRPC's name, with the number of looks before: a look that has begun may have missed it."""
        self._looks = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def admit(self, name: str) -> None:
        """Admit a peer, as gRPC names it. From any thread."""
        if name not in self._admitted:
            with self._lock:
                self._admitted[name] = (peer_of(name), self._looks)

    def watch(self, port: int) -> None:
        """Begin to look at the connections of this port."""
        if _OPEN is not None:
            threading.Thread(target=self._watch, args=(port,), name="visitors", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _watch(self, port: int) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            try:
                self._look(port)
            except OSError as error:  # no file descriptor is left to look with
                logger.warning("the connections of port %d were not looked at: %s", port, error)

    def _look(self, port: int) -> None:
        with self._lock:
            self._looks += 1
        now, there = time.monotonic(), dict(_connections(port))
        with self._lock:
            for name, (peer, looks) in list(self._admitted.items()):
                if peer not in there and looks < self._looks:
                    del self._admitted[name]
            known = {peer for peer, _ in self._admitted.values()}
        for peer in (self._since.keys() - there.keys()) | known:
            self._since.pop(peer, None)
            self._crowd.discard(peer)
            self._ended.discard(peer)
        for peer in self._unwanted(now):
            self._crowd.discard(peer)
            self._ended.add(peer)
            _end(there[peer], peer)
        for peer in there.keys() - known:
            self._since.setdefault(peer, now)

    def _unwanted(self, now: float) -> list[Peer]:
        """The strangers to end, of those that were seen before: one that has just come may be admitted before the
        next look."""
        found = []
        for peer, since in self._since.items():
            if peer in self._ended:
                continue
            if now - since > self._seconds:
                found.append(peer)
            elif peer not in self._crowd and (oldest := self._crowd.add(peer, peer[0])) is not None:
                found.append(oldest)
        return found


def peer_of(name: str) -> Peer:
    """The address and the port in gRPC's name of a peer.

    Example:
        >>> peer_of("ipv4:10.0.0.7:40112"), peer_of("ipv6:%5B::1%5D:40112")
        (('10.0.0.7', 40112), ('::1', 40112))
    """
    address, _, port = unquote(name).partition(":")[2].rpartition(":")
    return str(plain_address(address.strip("[]"))), int(port)


def _connections(port: int) -> Iterator[tuple[Peer, int]]:
    """The peers of a port of this process, and the number of each socket."""
    for name in os.listdir(_OPEN):
        with suppress(OSError):
            number = int(name)
            if stat.S_ISSOCK(os.fstat(number).st_mode) and (peer := _peer(number, port)) is not None:
                yield peer, number


def _peer(number: int, port: int) -> Peer | None:
    """Nothing is closed here: the socket is gRPC's, and its number may soon be that of another file."""
    connection = socket.socket(fileno=number)
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
            return None
        address, peers_port = connection.getpeername()[:2]  # a listener has none: OSError
        return str(plain_address(address)), peers_port
    finally:
        connection.detach()


def _end(number: int, peer: Peer) -> None:
    """End both directions, so that gRPC closes the socket."""
    with suppress(OSError):
        connection = socket.socket(fileno=number)
        try:
            address, port = connection.getpeername()[:2]
            if (str(plain_address(address)), port) == peer:
                connection.shutdown(socket.SHUT_RDWR)
        finally:
            connection.detach()
