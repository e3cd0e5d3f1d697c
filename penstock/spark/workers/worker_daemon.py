"""The process that Spark forks its Python workers from.

Spark runs it as `python -m penstock.spark.workers.worker_daemon pyspark.worker`.

It is PySpark's own daemon, with everything loaded that a worker of a job needs, so that a new worker can begin at once
and shares that memory. Without it each worker imports it all by itself, PySpark compiled from a zip in each of them.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.base.files import go_private
from penstock.host.posix import adopt_orphans


def main() -> None:
    """Load, then serve Spark's requests for workers until it closes standard input."""
    _prefer_installed_pyspark()
    go_private()
    # A container outlives the worker that starts it. With this process as its parent, and not process 1, it stays where
    # a cluster manager looks for what an executor started, as YARN does to add up its memory.
    adopt_orphans()
    from pyspark import daemon

    _load()
    # Forking is safe here: nothing has run yet, so no thread holds a lock that a worker could wait for.
    os.register_at_fork(after_in_child=_reseed)
    gc.collect()
    gc.freeze()
    _ignore_sigterm(daemon)
    _end_quietly(daemon)
    _collect_lightly(daemon)
    daemon.manager()


def _prefer_installed_pyspark() -> None:
    """Import PySpark from where it is installed, if that is the version of the zip that Spark put before it: Python
    keeps what it compiled of files, not of a zip."""
    zips = [entry for entry in sys.path if entry.endswith((os.sep + "pyspark.zip", "-src.zip"))]
    archive = next((entry for entry in zips if entry.endswith("pyspark.zip")), None)
    others = [entry for entry in sys.path if entry not in zips]
    installed = next((Path(entry) for entry in others if Path(entry, "pyspark", "version.py").is_file()), None)
    has_py4j = any(Path(entry, "py4j", "version.py").is_file() for entry in others)
    if archive is None or installed is None or not has_py4j:
        return
    try:
        with zipfile.ZipFile(archive) as file:
            same = file.read("pyspark/version.py") == (installed / "pyspark" / "version.py").read_bytes()
    except (OSError, KeyError, zipfile.BadZipFile):
        return
    if same:
        sys.path[:] = others


def _load() -> None:
    for module in ("pyspark.worker", "penstock.spark.workers.worker", "penstock.container.launch"):
        importlib.import_module(module)
    from penstock.host.process import keep_pandas_out  # brings Arrow, as those above do

    keep_pandas_out()


def _ignore_sigterm(daemon: Any) -> None:
    """Make the daemon ignore SIGTERM. One to every process of a control group is meant for the driver, which then needs
    workers for its last batch: PySpark's daemon would end, and its containers with it. It ends with its standard input,
    which is also how the executor ends it. Workers keep the default, by which the executor ends one that hangs."""

    def set_signal(number: int, handler: Any) -> Any:
        own = number == signal.SIGTERM and callable(handler)  # workers set the default, which is no function
        return signal.signal(number, signal.SIG_IGN if own else handler)

    daemon.signal = SimpleNamespace(**{**vars(signal), "signal": set_signal})


def _end_quietly(daemon: Any) -> None:
    """Suppress the traceback of workers where the executor cancelled their task and closed the connection."""
    run_worker = daemon.worker

    def worker(sock: Any, authenticated: bool) -> int:
        try:
            code: int = run_worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return 1
        return code

    daemon.worker = worker


def _collect_lightly(daemon: Any) -> None:
    """Replace the full garbage collection after every task, which takes as long as a small task, by one of the youngest
    generations: the interpreter collects the oldest by itself when it has grown."""
    daemon.gc = SimpleNamespace(**{**vars(gc), "collect": lambda: gc.collect(1)})


def _reseed() -> None:
    """Seed numpy's random numbers differently in each worker, as if each had imported it by itself; Python's own differ
    anyway."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


if __name__ == "__main__":
    main()
