"""Tells Ctrl-C apart from a KeyboardInterrupt that the application raises: only the latter is a failure of its code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from penstock.errors import Interrupted


def mark_interrupts() -> bool:
    """Make SIGINT raise Interrupted in this process, if it would raise KeyboardInterrupt.

    Returns True if that changed anything. Only the main thread can change it.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.signal(signal.SIGINT, _interrupt)
    return True


@contextmanager
def marked_interrupts() -> Iterator[None]:
    marked = mark_interrupts()
    try:
        yield
    finally:
        if marked:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Interrupted
