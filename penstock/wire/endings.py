"""The end of a container's process, as far as its own machine knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from penstock.host.logs import epitaph, exit_status
from penstock.host.machine import machine_id
from penstock.wire.address import ContainerAddress

_LOGGED_SECONDS = 3.0
"""Longest delay between the end of a process and the entry in its log."""


@dataclass(frozen=True, slots=True)
class UnknownEnd:
    """The reason why nobody knows how a container ended."""

    why: str


def ending_of(address: ContainerAddress, *, is_lost: bool = True) -> list[str] | UnknownEnd:
    """The container's exit and its last words. The caller must be on the same machine.

    `is_lost`: the process may have ended this very moment, so wait a short while for its end.
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
