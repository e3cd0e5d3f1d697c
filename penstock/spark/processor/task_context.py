"""The `TaskContext.get()` of a processor, which runs in a container and in no task of Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from pyspark import TaskContext

from penstock.errors import PenstockError

_here = threading.local()
_lock = threading.Lock()
_running = 0
"""Threads that process keys. PySpark has one context for a process, and a container runs several tasks at once."""


class ProcessorContext(TaskContext):
    """A context that knows the partition of the keys that the calling thread processes, and nothing of Spark."""

    def __new__(cls) -> ProcessorContext:
        return object.__new__(cls)

    def partitionId(self) -> int:
        partition: int | None = getattr(_here, "partition", None)
        if partition is None:
            raise PenstockError("TaskContext.get().partitionId() is known only in the thread that calls the processor")
        return partition


def _unknown(name: str) -> Any:
    def unknown(*_: object) -> NoReturn:
        raise PenstockError(
            f"TaskContext.get().{name}() has no answer in a processor: it runs in a container of Penstock, and in no "
            "task of Spark. Only partitionId() is known there"
        )

    return unknown


for _name in ("stageId", "attemptNumber", "taskAttemptId", "getLocalProperty", "cpus", "cpuAmount", "resources"):
    setattr(ProcessorContext, _name, _unknown(_name))


@contextmanager
def task_context(partition: int) -> Iterator[None]:
    """Make `TaskContext.get()` return a context of this partition while the block runs, in this thread."""
    global _running
    _here.partition = partition
    with _lock:
        _running += 1
        if _running == 1:
            TaskContext._setTaskContext(ProcessorContext())  # noqa: SLF001
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                TaskContext._setTaskContext(None)  # noqa: SLF001
        del _here.partition
