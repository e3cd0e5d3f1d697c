"""Who may ask for a page, and the file with its address; and the connections of its server: few, none that does
nothing, and places that strangers cannot take.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from penstock.base.files import PRIVATE_FILE, PRIVATE_FOLDER
from penstock.base.http_hosts import Authority, is_loopback
from penstock.errors import ConfigError

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""The headers of every answer. The charts set styles, but no script comes from anywhere else."""

RawHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]
"""The headers of a request as they came, with names in lower case."""

_TELL = (
    "the token is needed. It is in the address that the dashboard printed, behind `#token=`; the log of a driver names "
    "the file that has the address. Programs send the token as `Authorization: Bearer TOKEN`"
)
_ORIGIN = re.compile(r"https?://(.+)")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The status of an answer, and why."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server. `host` is the address on which it listens.

    Every request about jobs needs the token, on every address: a host has more users than one. The token is in a
    header, which a page of another site cannot send, and never in a cookie: a browser sends the cookies of an address
    to all its ports, so also to a server that another user of the host runs there.
    """

    host: str
    token: str

    def knows(self, headers: RawHeaders) -> bool:
        """True if the request has the token."""
        given = _values(headers, b"authorization")
        return len(given) == 1 and hmac.compare_digest(given[0].encode(), f"Bearer {self.token}".encode())

    def refuses(self, method: str, headers: RawHeaders) -> Refusal | None:
        """Why a request is refused; None if it is not.

        Args:
            method: the method of HTTP.
            headers: those of the request.
        """
        named = _values(headers, b"host")
        host = Authority.parse(named[0]) if len(named) == 1 else None
        if host is None:
            return Refusal(400, "one header `Host` is expected, with the name of this server")
        if is_loopback(self.host) and not is_loopback(host.host):
            # Otherwise a name that another site lets point to this host could read the pages.
            return Refusal(421, f"this server is not `{host.host}`: use the address that it printed")
        if not (_is_of(host, headers) and _is_same_site(headers)):
            return Refusal(403, "requests of other sites are refused")
        if method == "POST" and not _has_json(headers):
            # A browser sends JSON of another site only if this server allows it, which it does not.
            return Refusal(415, "application/json is expected")
        return None if self.knows(headers) else Refusal(401, _TELL)


def _values(headers: RawHeaders, name: bytes) -> list[str]:
    return [value.decode("latin-1") for each, value in headers if each == name]


def _is_of(host: Authority, headers: RawHeaders) -> bool:
    """True unless the page of another server makes the request. Programs do not say who they are."""
    origins = _values(headers, b"origin")
    if not origins:
        return True
    found = _ORIGIN.fullmatch(origins[0])
    return len(origins) == 1 and found is not None and Authority.parse(found[1]) == host


def _is_same_site(headers: RawHeaders) -> bool:
    return all(each in ("same-origin", "none") for each in _values(headers, b"sec-fetch-site"))


def _has_json(headers: RawHeaders) -> bool:
    kinds = _values(headers, b"content-type")
    return len(kinds) == 1 and kinds[0].partition(";")[0].strip() == "application/json"


class AddressFile:
    """A file that only this user can read, with an address that has a token. A later dashboard replaces it."""

    def __init__(self, path: Path, address: str) -> None:
        """Write the file, all at once, and not through a link.

        Raises:
            ConfigError: the folder cannot be written to.
        """
        self.path, self._line = path, f"{address}\n"
        written = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            written.unlink(missing_ok=True)
            descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
            with open(descriptor, "w", encoding="utf-8") as opened:
                opened.write(self._line)
            written.replace(path)
        except OSError as error:
            raise ConfigError(
                f"the address of the dashboard cannot be written to `{path}`: {error.strerror}. Make the folder "
                "writable, or choose a token, so that no file needs to have it"
            ) from error

    def remove(self) -> None:
        """Remove the file, unless it is a later dashboard's."""
        with suppress(OSError, UnicodeDecodeError):
            if self.path.read_text("utf-8") == self._line:
                self.path.unlink()


CONNECTIONS = 100
"""Places kept for connections that have sent the token. Further ones are treated like strangers'."""
STRANGERS = 200
"""Connections that have not. A new one takes the place of the oldest: a client that has the token sends it at once."""
AT_ONCE = 25
"""Connections that are taken in one turn of the server's loop. A token that comes at once is read within three turns,
before so many have come that its connection is the oldest."""
WAITING = 1024
"""Connections that wait in the system to be taken."""
PATIENCE_S = 20.0
"""A connection on which nothing moves for so long is cut off: no bytes come of a request that has begun or should
begin, or the client takes none of an answer."""
STRANGER_S = 5.0
"""The time in which a stranger's request must have come, however its bytes move."""
_LOOK_S = 1.0


class Places:
    """The connections of a server, by what they have sent."""

    def __init__(self) -> None:
        self.strangers: dict[Any, None] = {}
        """The oldest first."""
        self.known: set[Any] = set()

    def enter(self, connection: Any) -> None:
        self.strangers[connection] = None
        if len(self.strangers) > STRANGERS:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest]
            oldest.transport.abort()

    def recognise(self, connection: Any) -> None:
        """The connection has sent the token."""
        if connection in self.strangers and len(self.known) < CONNECTIONS:
            del self.strangers[connection]
            self.known.add(connection)

    def leave(self, connection: Any) -> None:
        self.strangers.pop(connection, None)
        self.known.discard(connection)


def guarded_protocol(knows: Callable[[RawHeaders], bool]) -> Any:  # noqa: C901 - small methods of one class
    """The protocol of a connection, for uvicorn.

    Args:
        knows: True for the headers of a request that has the token.
    """
    import h11  # an extra, as uvicorn: so the class is in a function
    from uvicorn.protocols.http.h11_impl import H11Protocol

    places = Places()

    class Guarded(H11Protocol):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self._application, self.app = self.app, self._answer

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._moved_at, self._left = self.loop.time(), 0
            places.enter(self)
            self._look_later()

        def connection_lost(self, exc: Exception | None) -> None:
            places.leave(self)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self in places.known:
                self._moved_at = self.loop.time()
            super().data_received(data)

        async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
            """Answer a request, whose head is complete."""
            self._moved_at = self.loop.time()
            if knows(scope["headers"]):
                places.recognise(self)
            await self._application(scope, receive, send)

        def _look_later(self) -> None:
            self.loop.call_later(min(_LOOK_S, PATIENCE_S / 4, STRANGER_S / 4), self._look)

        def _look(self) -> None:
            if self not in self.connections:
                return
            left = self.transport.get_write_buffer_size()
            is_waiting = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
            if left < self._left or (not left and not is_waiting):
                self._moved_at = self.loop.time()
            self._left = left
            patience = STRANGER_S if is_waiting and self in places.strangers else PATIENCE_S
            if self.loop.time() - self._moved_at > patience:
                self.transport.abort()  # `close` would wait until the client has taken what is left
            else:
                self._look_later()

    return Guarded
