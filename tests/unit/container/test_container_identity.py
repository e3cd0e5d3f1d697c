"""A container's process: killed as the incarnation it is, with metrics in its beats, and a port in clear."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.container import handlers
from penstock.container.gate import Gate
from penstock.container.launch import kill
from penstock.host.log_lines import PassedOn
from penstock.metrics.snapshot import Snapshot
from penstock.wire.containers import ContainerAddress
from penstock.wire.protocol import Beat, Identity, NoArguments

DEADLINE_S = 60.0


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process with these arguments, which waits until it is killed."""
    code = "import sys; print(1, flush=True); sys.stdin.read()"
    running = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout is not None
        running.stdout.readline()
        yield running
    finally:
        running.kill()
        running.communicate(timeout=DEADLINE_S)


def address(pid: int, incarnation: str) -> ContainerAddress:
    return ContainerAddress("c", incarnation, "m", pid, 1, "unix", "tcp", "log", (), "driver")


def test_a_container_that_has_the_pid_of_a_condemned_one_lives_on() -> None:
    with process("penstock.container", "c", "00ff") as other:
        kill(address(other.pid, "beef"))
        assert other.stdin is not None
        assert other.poll() is None
        kill(address(other.pid, "00ff"))
        assert other.wait(DEADLINE_S) != 0


def test_any_other_process_that_has_the_pid_lives_on() -> None:
    with process("00ff") as other:
        kill(address(other.pid, "00ff"))
        assert other.poll() is None


def test_one_that_is_gone_is_no_error() -> None:
    with process("penstock.container", "c", "00ff") as other:
        other.kill()
        kill(address(other.pid, "00ff"))  # a zombie, as long as nobody has waited for it
        other.wait(DEADLINE_S)
        kill(address(other.pid, "00ff"))


@dataclass
class NeverClosed:
    def wait(self, timeout_s: float) -> bool:
        return False


@dataclass
class CountingContainer:
    """A container whose metrics take `cpu_s` to collect."""

    cpu_s: float
    now_s: float = 0.0
    looks: list[int] = field(default_factory=list)
    beats: int = 0
    audience: Any = field(default_factory=nullcontext)
    closed: NeverClosed = field(default_factory=NeverClosed)
    passed_on: PassedOn = field(default_factory=PassedOn)

    def check_incarnation(self, identity: Identity) -> None: ...

    def beat(self, resident_bytes: int) -> Beat:
        self.beats += 1
        return Beat("0", "a", resident_bytes, 0, 0)

    def metrics(self) -> Snapshot:
        self.looks.append(self.beats)
        self.now_s += self.cpu_s
        return Snapshot()


@pytest.mark.parametrize(
    ("cpu_s", "looks"),
    [
        pytest.param(0.001, [0, 4, 8, 12, 16, 20, 24], id="few stores"),
        pytest.param(0.25, [0, 10, 20], id="hundreds of stores: 0.25 s every 10 beats, which is a twentieth"),
    ],
)
def test_metrics_take_a_bounded_share_of_cpu(cpu_s: float, looks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    container: Any = CountingContainer(cpu_s)
    monkeypatch.setattr("time.thread_time", lambda: container.now_s)
    list(itertools.islice(handlers._beat(container, Identity("a", 1), NoArguments()), 25))
    assert container.looks == looks


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
