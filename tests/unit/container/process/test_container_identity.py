"""A container is killed as the incarnation it is, not as the process that has its pid."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.container.process.launch import kill
from penstock.wire.containers import ContainerAddress

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
