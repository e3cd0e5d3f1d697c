"""Ends silent connections on a port with TLS, which gRPC would hold for two minutes each, however many come.

gRPC accepts the connections itself, so that nothing stands between a caller and its container. What strangers hold is
found among the open sockets of the process, twice a second.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias
from urllib.parse import unquote

from penstock.base.http_hosts import Crowd, plain_address
from penstock.container.process.gate import STRANGERS, STRANGERS_SECONDS

logger = logging.getLogger(__name__)
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
