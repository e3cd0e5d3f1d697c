"""Settings of a long-lived process of a job beside the driver: a container, the direct worker."""

from __future__ import annotations

import gc
import signal

import pyarrow as pa


def ignore_signals() -> None:
    """Do nothing on SIGINT and SIGTERM. A signal to all processes of a job is meant for its driver, which still needs
    this one for the last commit.

    A handler that does nothing, because processes that the application starts would inherit SIG_IGN.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)


def settle() -> None:
    """Prepare for many batches, once everything is loaded."""
    # Pages of decoded messages are many objects, and no garbage yet: look through them rarely.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own gives memory back and takes it again for each packet
