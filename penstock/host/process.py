"""Settings of a long-lived process of a job beside the driver: a container, the direct worker."""

from __future__ import annotations

import gc
import resource
import signal
from contextlib import suppress

import pyarrow as pa

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
