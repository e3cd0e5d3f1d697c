"""The end of a container's process, as far as its own machine knows."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import psutil

from penstock.host.logs import epitaph, exit_status, page_path
from penstock.host.machine import ending, machine_id
from penstock.host.position_page import Spot, read_page
from penstock.wire.address import ContainerAddress

_LOGGED_SECONDS = 3.0
"""Longest delay between the end of a process and the entry in its log."""


@dataclass(frozen=True, slots=True)
class UnknownEnd:
    """The reason why nobody knows how a container ended."""

    why: str


@dataclass(frozen=True, slots=True)
class KnownEnd:
    """The end of a container, as its host knows it."""

    words: tuple[str, ...]
    """Its exit and its last words."""
    status: int | None
    """The exit status, a signal as a negative number; None if it is not known."""
    spots: tuple[Spot, ...] = ()
    """The work of its attempts."""
    is_known: bool = True
    """False if its host could not say it: the words are all that there is."""


Ending: TypeAlias = KnownEnd | UnknownEnd


@dataclass(frozen=True, slots=True)
class ProcessDeath:
    """The end of a process that processes messages: a container, a Python worker of Spark, the direct worker."""

    name: str
    """The process, in words that are not used for another one."""
    status: int | None
    """The exit status, a signal as a negative number; None if it is not known."""
    spots: tuple[Spot, ...]
    """The work of its attempts."""

    @property
    def by_itself(self) -> bool:
        """True if what it did has ended it, False if somebody else may have: SIGKILL is the kernel's for a process out
        of memory, and everybody else's."""
        return self.status is not None and self.status not in _FROM_OUTSIDE

    @property
    def how(self) -> str:
        return "ended" if self.status is None else ending(self.status)


_FROM_OUTSIDE = frozenset(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


def ending_of(address: ContainerAddress, *, is_lost: bool = True) -> Ending:
    """The end of the container. The caller must be on the same machine.

    `is_lost`: the process may have ended this very moment, so wait a short while for its end.
    """
    if address.machine != machine_id():
        return UnknownEnd("Spark ran no task on its host")
    log, lives = Path(address.log_path), _lives(address.pid)
    status = exit_status(log, _LOGGED_SECONDS if is_lost or not lives else 0.0)
    if status is None and _lives(address.pid):
        return UnknownEnd("its process has not ended")
    return KnownEnd(tuple(epitaph(address.pid, log)), status, read_page(page_path(log)))


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
