"""Which machine this is, and watching another process on it."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import psutil


def machine_id() -> str:
    """Equal for two processes if, and only if, they can reach each other's Unix sockets and pids."""
    parts = [socket.gethostname()]
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    if boot_id.exists():
        parts.append(boot_id.read_text(encoding="ascii").strip())
    for namespace in ("pid", "mnt"):
        try:
            parts.append(str(Path(f"/proc/self/ns/{namespace}").readlink()))
        except OSError:
            parts.append("-")
    return "/".join(parts)


def executor_host() -> str:
    """The address by which other hosts reach this one: what Spark was told, else what the host's name resolves to."""
    return os.environ.get("SPARK_LOCAL_IP") or socket.gethostbyname(socket.gethostname())


def executor_pid() -> int:
    """The JVM that this Spark worker belongs to: the nearest ancestor process that is a Java."""
    for parent in psutil.Process().parents():
        if "java" in parent.name().lower():
            return parent.pid
    return os.getppid()


def watch_process(pid: int, gone: Callable[[], None]) -> None:
    """Call `gone` from a daemon thread when the process has ended. Lives as long as this process."""
    threading.Thread(target=_watch, args=(pid, gone), name=f"watch-{pid}", daemon=True).start()


def _watch(pid: int, gone: Callable[[], None]) -> None:
    try:
        if hasattr(os, "pidfd_open"):
            descriptor = os.pidfd_open(pid)
            select.select([descriptor], [], [])
        else:
            psutil.Process(pid).wait()
    except (ProcessLookupError, psutil.NoSuchProcess):
        pass
    gone()
