"""A port without TLS: it passes connections on to the container's socket, and little of them before they are admitted.

gRPC receives the first message of a call before Flight can look at the call's headers, however large it is, and Flight
does not let anyone limit it. On a port with TLS a stranger does not come that far.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.base.http_hosts import Crowd

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
