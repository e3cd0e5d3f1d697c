"""The end of a program whose jobs or queries still run: it stops them while Python can do all that this needs."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - at the end it closes all pools, after what is registered below
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)
_PATIENCE_SECONDS = 120.0
"""Time limit of an orderly end, and then of an end at once."""


@dataclass(frozen=True, slots=True, eq=False)
class RunningWork:
    """A job or a query that the program's end must stop."""

    name: str
    ended: threading.Event
    stop: Callable[[], None]
    """Orderly. Called in a thread, like `stop_at_once`: neither need return."""
    stop_at_once: Callable[[], None]
    report: Callable[[], None] = lambda: None
    """Called last, even if it had ended before: the program will not ask again for the outcome."""


def stop_with_program(running: RunningWork) -> None:
    """Stop it when the main thread ends, if it still runs then."""
    for each in list(_running):
        if each.ended.is_set():
            _running.pop(each, None)
    _running[running] = None


def _stop_all() -> None:
    running = list(_running)
    with suppress(BaseException):  # what the handler of a signal raises: that takes too long
        _await(running, lambda each: each.stop)
    with suppress(BaseException):
        _await(running, lambda each: each.stop_at_once)
    for each in running:
        if not each.ended.is_set():
            logger.warning("%s has not ended, and the program does not wait any longer", each.name)
        each.report()


def _await(running: list[RunningWork], way: Callable[[RunningWork], Callable[[], None]]) -> None:
    left = [each for each in running if not each.ended.is_set()]
    for each in left:
        threading.Thread(target=way(each), name="program-end", daemon=True).start()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for each in left:
        each.ended.wait(max(0.0, deadline - time.monotonic()))


_running: dict[RunningWork, None] = {}
os.register_at_fork(after_in_child=_running.clear)  # they are the parent's
# A function of `atexit` would come too late: no pool of threads takes anything any more when that is called.
_at_end: Any = threading._register_atexit  # type: ignore[attr-defined]  # noqa: SLF001
_at_end(_stop_all)
