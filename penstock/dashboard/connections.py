"""Connections of the dashboard's server: few, and none that does nothing."""

from __future__ import annotations

from typing import Any

CONNECTIONS = 100
PATIENCE_S = 20.0
"""A connection on which nothing moves for so long is cut off: no bytes come of a request that has begun or should
begin, or the client takes none of an answer."""
_LOOK_S = 1.0


def impatient_protocol() -> Any:
    """The protocol of a connection, for uvicorn."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._moved_at, self._left = self.loop.time(), 0
            if len(self.connections) > CONNECTIONS:
                transport.abort()
            else:
                self._look_later()

        def data_received(self, data: bytes) -> None:
            self._moved_at = self.loop.time()
            super().data_received(data)

        def _look_later(self) -> None:
            self.loop.call_later(min(_LOOK_S, PATIENCE_S / 4), self._look)

        def _look(self) -> None:
            if self not in self.connections:
                return
            left = self.transport.get_write_buffer_size()
            is_waiting = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
            if left < self._left or (not left and not is_waiting):
                self._moved_at = self.loop.time()
            self._left = left
            if self.loop.time() - self._moved_at > PATIENCE_S:
                self.transport.abort()  # `close` would wait until the client has taken what is left
            else:
                self._look_later()

    return Impatient
