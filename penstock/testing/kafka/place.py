"""A broker's folder and ports, which it keeps while it is stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.testing.kafka.process import GuardedProcess
from penstock.testing.kafka.settings import Certificates, Listener


@dataclass(slots=True)
class BrokerPlace:
    """The folder and the ports of one broker, and the process that has them now."""

    folder: Path
    ports: dict[Listener, int]
    held: list[socket.socket]
    certificates: Certificates | None = None
    process: GuardedProcess | None = None
    owner: int = field(default_factory=os.getpid)

    def remove(self) -> None:
        """End the process, and leave nothing behind. In a child that was forked from the owner nothing happens."""
        if os.getpid() != self.owner:
            return
        if self.process is not None:
            self.process.kill()
        for held in self.held:
            held.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def new_place(listeners: Sequence[Listener]) -> BrokerPlace:
    """A new folder, and a port for each listener.

    The ports are bound here as long as the place is there. That leaves a server of this machine free to listen on them,
    which binds them as shared too (SO_REUSEADDR, as Java does), but the system gives them to nobody else.
    """
    with contextlib.ExitStack() as undo:
        held = []
        for _ in listeners:
            held.append(undo.enter_context(socket.socket()))
            held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held[-1].bind(("127.0.0.1", 0))
        ports = {name: held[n].getsockname()[1] for n, name in enumerate(listeners)}
        folder = Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
        undo.pop_all()
    return BrokerPlace(folder, ports, held)
