"""A long-lived process of a job, beside the driver or the driver itself: its settings, and Python in it.

Ctrl-C is told apart from a KeyboardInterrupt that the application raises: only the latter is a failure of its code.
Pandas is kept out of processes in which nobody has asked for it.
"""

from __future__ import annotations

import gc
import importlib.util
import resource
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import NoReturn

import pyarrow as pa

from penstock.errors import Interrupted

_FILES = 1 << 16


def ignore_signals() -> None:
    """Do nothing on SIGINT and SIGTERM. A signal to all processes of a job is meant for its driver, which still needs
    this one for the last commit.

    A handler that does nothing, because processes that the application starts would inherit SIG_IGN.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)


def allow_files() -> None:
    """Let this process open as many files as its host allows, 65,536 at most. Shells allow 1,024, which strangers on a
    port can take in a moment, before they are turned away."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def settle() -> None:
    """Prepare for many batches, once everything is loaded."""
    # Pages of decoded messages are many objects, and no garbage yet: look through them rarely.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own gives memory back and takes it again for each packet


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


def keep_pandas_out() -> None:
    """Let pyarrow work without pandas until something else imports it.

    pyarrow imports pandas, where it is installed, at the first array that it makes of Python objects, because one of
    them might be of pandas. It takes a third of a container's start and 50 MB. pyarrow does that once: here it looks
    while pandas cannot be found, and it looks again as soon as the application imports pandas.

    Call it before other threads run. It does nothing if pandas is imported already.
    """
    if "pandas" in sys.modules or any(isinstance(finder, _PandasWatch) for finder in sys.meta_path):
        return
    watch = _PandasWatch()
    sys.meta_path.insert(0, watch)
    pa.array([])
    watch.hides = False


class _PandasWatch(MetaPathFinder):
    """Hides pandas while pyarrow looks for it, and later tells pyarrow when it is imported."""

    def __init__(self) -> None:
        self.hides = True
        self._found = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of pandas when it is imported for the first time; None leaves a module to the other finders."""
        if fullname != "pandas" or self._found:
            return None
        if self.hides:
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
        self._found = True
        spec = importlib.util.find_spec("pandas")
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            pa.lib._pandas_api.pd  # noqa: B018, SLF001 - asking for pandas makes it look again; nothing public does

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
