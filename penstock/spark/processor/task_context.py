"""What `TaskContext.get()` returns in a processor, which runs in a container and in no task of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from pyspark import TaskContext

from penstock.errors import PenstockError


class ProcessorContext(TaskContext):
    """Knows the partition of the keys, and nothing of Spark."""

    def __new__(cls, partition: int) -> ProcessorContext:
        return object.__new__(cls)

    def __init__(self, partition: int) -> None:
        self._partitionId = partition


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
    """`TaskContext.get()` returns a context of this partition while the block runs."""
    before = TaskContext.get()
    TaskContext._setTaskContext(ProcessorContext(partition))  # noqa: SLF001
    try:
        yield
    finally:
        TaskContext._setTaskContext(before)  # noqa: SLF001
