"""Identifies this machine, and watches other processes on it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from penstock.host.posix import await_end, boot_id, namespace


def machine_id() -> str:
    """Equal for two processes if, and only if, they can reach each other's Unix sockets and pids."""
    return "/".join((socket.gethostname(), boot_id(), namespace("pid"), namespace("mnt")))


@dataclass(frozen=True, slots=True)
class ExecutorProcess:
    """The executor that a Spark worker belongs to, as its command line describes it."""

    pid: int
    id: str
    """Spark's name for it; `driver` in local mode."""
    host: str | None
    """The host's name or address, as the executor reported it to the driver."""
    bind_address: str | None


def own_executor() -> ExecutorProcess:
    for parent in psutil.Process().parents():
        if "java" in parent.name().lower():
            arguments = parent.cmdline()
            return ExecutorProcess(
                parent.pid,
                _argument(arguments, "--executor-id") or "driver",
                _argument(arguments, "--hostname"),
                _argument(arguments, "--bind-address"),
            )
    return ExecutorProcess(os.getppid(), "driver", None, None)


def _argument(arguments: list[str], name: str) -> str | None:
    places = [place for place, argument in enumerate(arguments[:-1]) if argument == name]
    return arguments[places[-1] + 1] if places else None


def watch_process(pid: int, gone: Callable[[], None]) -> None:
    """Call `gone` from a daemon thread when the process has ended. Lives as long as this process."""
    threading.Thread(target=_watch, args=(pid, gone), name=f"watch-{pid}", daemon=True).start()


def _watch(pid: int, gone: Callable[[], None]) -> None:
    await_end(pid)
    gone()


def ending(status: int) -> str:
    """An exit status as `subprocess` has it, in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    memory = ": probably out of memory, or killed by hand" if -status == signal.SIGKILL else ""
    return f"was killed by {name} ({-status}{memory})"
