"""Connections of the dashboard's server: few, none that does nothing, and places that strangers cannot take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.dashboard.access import RawHeaders

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
    import h11
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
