"""Tests of `penstock.spark.processor.task`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark import TaskContext

from penstock.errors import PenstockError
from penstock.spark.processor.task import task_context

DEADLINE_S = 30


def test_tasks_that_run_at_once_have_their_own_partitions() -> None:
    both, one_left = threading.Barrier(2, timeout=DEADLINE_S), threading.Event()

    def process(partition: int) -> list[int]:
        found = []
        with task_context(partition):
            both.wait()
            found.append(_partition())
            both.wait()
            if partition == 1:
                assert one_left.wait(DEADLINE_S)
                found.append(_partition())
        one_left.set()
        return found

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(process, (0, 1))) == [[0], [1, 1]]
    assert TaskContext.get() is None, "which PySpark takes for a driver"


def test_another_thread_has_no_partition() -> None:
    with task_context(3), ThreadPoolExecutor(1) as pool:
        assert _partition() == 3
        with pytest.raises(PenstockError, match="only in the thread that calls the processor"):
            pool.submit(_partition).result()


def _partition() -> int:
    found = TaskContext.get()
    assert found is not None
    return found.partitionId()
