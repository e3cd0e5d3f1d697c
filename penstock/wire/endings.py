"""How a container's process ended, as far as its own machine knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from penstock.host.logs import epitaph, exit_status
from penstock.host.machine import machine_id
from penstock.wire.address import ContainerAddress

_LOGGED_SECONDS = 1.0
"""How long the end of a process may take to be in its log."""


@dataclass(frozen=True, slots=True)
class UnknownEnd:
    """Why nobody knows how a container ended."""

    why: str


def ending_of(address: ContainerAddress, *, is_lost: bool = True) -> list[str] | UnknownEnd:
    """How the container's process ended, and its last words. The caller must be on the same machine.

    `is_lost`: it may have ended this very moment, so its end is waited for a while.
    """
    if address.machine != machine_id():
        return UnknownEnd("Spark ran no task on its host")
    log, lives = Path(address.log_path), _lives(address.pid)
    if exit_status(log, _LOGGED_SECONDS if is_lost or not lives else 0.0) is None and _lives(address.pid):
        return UnknownEnd("its process has not ended")
    return list(epitaph(address.pid, log))


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
