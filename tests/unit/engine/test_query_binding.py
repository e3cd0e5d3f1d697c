"""Which query, and which of its batches, a state in the root belongs to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord, Claim
from penstock.engine.query.job import QueryBatch, check_binding
from penstock.errors import IncompatibleError
from tests.support.checkpoints import checkpoint

TASKS = 2


class _View:
    def __init__(self, latest: CheckpointRecord | None) -> None:
        self.latest = latest


def state(reached: int, query: str | None = "q1") -> LogView:
    system, stream = ("spark", "rows") if query else ("local", "in")
    offsets = {task: {SystemStreamPartition(system, stream, task): reached + 1} for task in range(TASKS)}
    identities = {SystemStream("spark", "rows"): query} if query else {}
    record = checkpoint(Claim(1, "run", "writer"), 1)
    return cast("LogView", _View(replace(record, next_offsets=offsets, identities=identities, task_count=TASKS)))


NOTHING = cast("LogView", _View(None))


def check(view: LogView, batch: int, query: str = "q1", partitions: int | None = None) -> int | None:
    spark: Any = None
    return check_binding(view, "visits-1", "/root", QueryBatch(spark, query, batch), partitions)


def test_a_query_begins_with_an_empty_root() -> None:
    assert check(NOTHING, 0) is None


@pytest.mark.parametrize("batch", [7, 8])
def test_a_batch_that_the_state_is_at_or_before(batch: int) -> None:
    assert check(state(7), batch) == TASKS


def test_a_state_that_was_deleted_is_not_begun_from_nothing() -> None:
    with pytest.raises(IncompatibleError, match=r"asks for batch 5, and /root has no state of job visits-1.*deleted"):
        check(NOTHING, 5)


@pytest.mark.parametrize(("batch", "said"), [(4, "was set back"), (9, "is newer than the state")])
def test_another_batch(batch: int, said: str) -> None:
    with pytest.raises(IncompatibleError, match=f"is at batch 7, and the query asks for batch {batch}.*{said}"):
        check(state(7), batch)


@pytest.mark.parametrize(("batch", "said"), [(0, "checkpoint location was changed or deleted"), (8, "Two queries use")])
def test_another_query(batch: int, said: str) -> None:
    with pytest.raises(IncompatibleError, match=f"belongs to the query q1, and this is the query q2.*{said}"):
        check(state(7), batch, "q2")


def test_a_job_with_its_own_run_loop() -> None:
    with pytest.raises(IncompatibleError, match="runs by itself"):
        check(state(7, None), 8)


def test_another_number_of_partitions() -> None:
    assert check(state(7), 8, partitions=TASKS) == TASKS
    with pytest.raises(IncompatibleError, match="partitions=3, and the state of job visits-1 has 2"):
        check(state(7), 8, partitions=3)
