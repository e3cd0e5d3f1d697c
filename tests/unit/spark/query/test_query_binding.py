"""The query, and its batch, that a state in the root belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from penstock.admin.checkpoint.change import edited_sections
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.batch import QUERY, OfferedBatch, QuerySection
from penstock.checkpoint.edit import CheckpointContent
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord, Claim
from penstock.errors import IncompatibleError
from penstock.spark.query.plan import FromCheckpoint, QueryBatchRequest, bind
from tests.support.stores.checkpoints import checkpoint

TASKS = 2


@dataclass
class _View:
    restorable: tuple[CheckpointRecord, ...]
    faults: dict[int, str] = field(default_factory=dict)

    @property
    def latest(self) -> CheckpointRecord | None:
        return self.restorable[-1] if self.restorable else None


def record(
    reached: int, query: str | None = "q1", plan: str | None = None, *, has_output: bool = True
) -> CheckpointRecord:
    system, stream = ("spark", "rows") if query else ("local", "in")
    offsets = _at(reached, system, stream)
    identities = {SystemStream("spark", "rows"): query} if query else {}
    offered = None if plan is None else OfferedBatch(plan, has_output)
    made = checkpoint(Claim(1, "run", "writer"), 100 + reached)
    made = replace(made, next_offsets=offsets, identities=identities, task_count=TASKS)
    return made.having(QUERY, QuerySection(offered))


def _at(reached: int, system: str = "spark", stream: str = "rows") -> dict[int, dict[SystemStreamPartition, int]]:
    return {task: {SystemStreamPartition(system, stream, task): reached + 1} for task in range(TASKS)}


def log(*records: CheckpointRecord, damaged: bool = False) -> LogView:
    """A log that retains these checkpoints."""
    return cast("LogView", _View(records, {9: "it is damaged"} if damaged else {}))


def check(
    view: LogView,
    batch: int,
    query: str = "q1",
    partitions: int | None = None,
    plans: tuple[str, str] = ("", ""),
    chosen: FromCheckpoint = None,
    begins_here: bool = False,
) -> tuple[int | None, CheckpointRecord | None]:
    """`plans`: of the batch before, and of the batch."""
    before, plan = plans
    asked = QueryBatchRequest(query, batch, plan, before)
    bound = bind(view, "visits-1", "/root", asked, partitions, chosen, begins_here=begins_here)
    return bound.tasks, bound.record


def test_a_query_begins_with_an_empty_root() -> None:
    assert check(log(), 0) == (None, None)
    assert check(log(), 0, chosen="matching") == (None, None)


@pytest.mark.parametrize("batch", [7, 8])
@pytest.mark.parametrize("chosen", [None, "matching"])
def test_a_batch_that_the_state_is_at_or_before(batch: int, chosen: FromCheckpoint) -> None:
    assert check(log(record(6), record(7)), batch, chosen=chosen) == (TASKS, None)


def test_a_state_that_was_deleted_is_not_begun_from_nothing() -> None:
    with pytest.raises(IncompatibleError, match=r"asks for batch 5, and /root has no state of job visits-1.*deleted"):
        check(log(), 5, chosen="matching")


def test_a_query_that_has_had_batches_begins_without_state_if_that_is_said() -> None:
    assert check(log(), 5, begins_here=True) == (None, None)
    with pytest.raises(IncompatibleError, match="is at batch 7, and the query asks for batch 5"):
        check(log(record(7)), 5, begins_here=True)
    with pytest.raises(IncompatibleError, match="has no state of job visits-1"):
        check(log(damaged=True), 5, chosen="matching", begins_here=True)


@pytest.mark.parametrize(("batch", "said"), [(4, "was set back"), (9, "is newer than the state")])
def test_another_batch(batch: int, said: str) -> None:
    with pytest.raises(IncompatibleError, match=f"is at batch 7, and the query asks for batch {batch}.*{said}"):
        check(log(record(7)), batch)


@pytest.mark.parametrize(("batch", "said"), [(0, "checkpoint location was changed or deleted"), (8, "Two queries use")])
@pytest.mark.parametrize("chosen", [None, "matching"])
def test_another_query(batch: int, said: str, chosen: FromCheckpoint) -> None:
    with pytest.raises(IncompatibleError, match=f"belongs to the query q1, and this is the query q2.*{said}"):
        check(log(record(7)), batch, "q2", chosen=chosen)


def test_a_job_with_its_own_run_loop() -> None:
    with pytest.raises(IncompatibleError, match="runs by itself"):
        check(log(record(7, None)), 8)


def test_another_number_of_partitions() -> None:
    assert check(log(record(7)), 8, partitions=TASKS) == (TASKS, None)
    with pytest.raises(IncompatibleError, match="partitions=3, and the state of job visits-1 has 2"):
        check(log(record(7)), 8, partitions=3)


def test_the_retained_checkpoint_of_the_batch_before() -> None:
    """The newest one of that batch, never a later one; and only if it is asked for."""
    first, start, second, third = record(4), replace(record(4), kind_detail="start"), record(5), record(7)
    view = log(first, start, second, third)
    assert check(view, 5, chosen="matching") == (TASKS, start)
    with pytest.raises(
        IncompatibleError, match=r"was set back.*continue from checkpoint 104-0, which is of batch 4.*match"
    ):
        check(view, 5)
    with pytest.raises(
        IncompatibleError, match=r"batch 3 of this.*none is retained.*retained are of batches 4 to 5 and 7"
    ):
        check(view, 4, chosen="matching")
    with pytest.raises(IncompatibleError, match=r"is newer.*none is retained"):
        check(view, 12, chosen="matching")


def test_the_state_before_the_first_batch() -> None:
    view = log(record(-1), record(3), record(4))
    assert check(view, 0, chosen="matching") == (TASKS, view.restorable[0])
    with pytest.raises(IncompatibleError, match="retained are of the time before the first batch and batches 3 to 4"):
        check(view, 2, chosen="matching")


def test_a_batch_that_spark_has_planned_a_second_time_is_another_one() -> None:
    """After its checkpoint location was set back, Spark plans batches with the same numbers and other rows."""
    view = log(record(6, plan="p6"), record(7, plan="p7"))
    assert check(view, 7, plans=("p6", "p7")) == (TASKS, None), "the same batch once more"
    assert check(view, 8, plans=("p7", "p8")) == (TASKS, None)
    assert check(view, 7, plans=("p6", "other"), chosen="matching") == (TASKS, view.restorable[0])
    for batch, plans in ((7, ("p6", "other")), (8, ("other", "p8"))):
        with pytest.raises(IncompatibleError, match="was set back"):
            check(view, batch, plans=plans)
    with pytest.raises(
        IncompatibleError, match=r"its batch 7 is not the one that the state has seen.*none is retained"
    ):
        check(view, 8, plans=("other", "p8"), chosen="matching")
    abandoned = log(record(7, plan="p7"), record(7, plan="again"), record(8, plan="again"))
    assert check(abandoned, 8, plans=("p7", "p8"), chosen="matching")[1] == abandoned.restorable[0]


def test_a_state_that_went_back_has_no_output_of_its_batch() -> None:
    view = log(record(3, plan="p3"), record(4, plan="p4", has_output=False))
    assert check(view, 5, plans=("p4", "p5")) == (TASKS, None)
    assert check(view, 4, plans=("p3", "p4"), chosen="matching") == (TASKS, view.restorable[0])
    with pytest.raises(IncompatibleError, match="was set back"):
        check(view, 4, plans=("p3", "p4"))


def test_behind_a_damaged_record_the_checkpoint_is_named() -> None:
    view = log(record(3), record(4), damaged=True)
    assert check(view, 5, chosen="matching") == (TASKS, view.restorable[1])
    assert check(view, 4, chosen="matching") == (TASKS, view.restorable[0])
    with pytest.raises(IncompatibleError, match=r"the end of the checkpoint log is damaged.*none is retained"):
        check(view, 6, chosen="matching")


def test_a_checkpoint_that_was_made_by_hand_knows_its_batch_if_its_offsets_are_the_same() -> None:
    base, newest = record(4, plan="p4"), record(7, plan="p7")
    view = log(base, newest)

    def edited(record: CheckpointRecord, reached: int) -> OfferedBatch | None:
        return edited_sections(record, CheckpointContent(_at(reached), {}), view).get(QUERY).offered

    assert edited(newest, 7) == OfferedBatch("p7")
    assert edited(base, 4) == OfferedBatch("p4", has_output=False), "only the newest one names its output"
    assert edited(newest, 6) == OfferedBatch("", has_output=False)
    assert edited(record(7, None), 7) is None
