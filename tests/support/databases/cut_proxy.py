"""A proxy in front of a server, which cuts a connection when it sees a text: before the server gets it, or before the
client gets the answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal

Loss = Literal["request", "answer"]


class CutProxy:
    """Listens on a port of this machine, and passes everything on to another one."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._cut: tuple[bytes, Loss] | None = None
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_at(self, text: bytes, loss: Loss) -> None:
        """Lose the next request with this text, or its answer."""
        self._cut = text, loss

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(self._target)
        back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
        with contextlib.suppress(OSError):
            is_first = True
            while data := client.recv(1 << 16):
                if self._cut is not None and self._cut[0] in data:
                    loss, self._cut = self._cut[1], None
                    self.cuts += 1
                    if loss == "answer":
                        client.shutdown(socket.SHUT_RDWR)
                        server.sendall(data)
                        back.join(10)  # it ends when it cannot pass the answer on: what the server was asked is done
                    break
                server.sendall(data)
                if is_first:
                    back.start()
                    is_first = False
        for each in (client, server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
