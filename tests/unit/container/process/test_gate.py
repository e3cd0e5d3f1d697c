"""The port in clear: a connection ends on both sides when one of them ends."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock.container.process.gate import Gate


@pytest.mark.parametrize("ends", ["the container", "the caller"])
def test_both_sides_end_together(tmp_path: Path, ends: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        gate = Gate("127.0.0.1", tmp_path)
        try:
            with socket.create_connection(("127.0.0.1", gate.port)) as caller:
                container, _ = listener.accept()
                with container:
                    first, second = (container, caller) if ends == "the container" else (caller, container)
                    second.settimeout(5)  # far less than a stranger may take
                    first.shutdown(socket.SHUT_WR)
                    assert second.recv(1) == b""
        finally:
            gate.shutdown()
