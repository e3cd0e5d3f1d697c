"""The query, and its batch, that a state in the root belongs to; its configuration and its output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import penstock as ps
from penstock.admin.checkpoint.change import edited_sections
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.secrets import RootKeys
from penstock.batch.batch import QUERY, OfferedBatch, QuerySection
from penstock.checkpoint.edit import CheckpointContent
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord, Claim
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.outbox.wing import OutboxObject, OutputPart
from penstock.spark.applications import ApplicationStream
from penstock.spark.query.plan import FromCheckpoint, QueryBatchRequest, QueryPlan, bind
from penstock.spark.query.rows import OutputRows
from penstock.spark.transform import TransformedStream
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
        return edited_sections(record, CheckpointContent(_at(reached), {}), view, Claim(9, "r", "w")).get(QUERY).offered

    assert edited(newest, 7) == OfferedBatch("p7")
    assert edited(base, 4) == OfferedBatch("p4", has_output=False), "only the newest one names its output"
    assert edited(newest, 6) == OfferedBatch("", has_output=False)
    assert edited(record(7, None), 7) is None


def plan(**changes: Any) -> QueryPlan:
    app = ps.StreamApplication("visits")
    app.input("spark.rows").send_to(app.output("spark.totals"))
    return QueryPlan(app.graph(), (), (), "/root", **changes)


def test_only_a_matching_checkpoint_can_be_chosen() -> None:
    assert plan(from_checkpoint="matching").settings().job.root == "file:///root"
    with pytest.raises(ConfigError, match="from_checkpoint='latest': it is \"matching\", or not given"):
        plan(from_checkpoint="latest").settings()


def test_keys_of_the_query_are_not_to_be_configured() -> None:
    with pytest.raises(ConfigError, match=r"`task\.commit\.ms` cannot be configured"):
        plan(config={"task.commit.ms": 5}).settings()


@pytest.mark.parametrize("stream", [ApplicationStream, TransformedStream])
def test_a_handler_that_would_not_run_is_refused(stream: Any) -> None:
    async def handle(out: Any, batch: int) -> None: ...

    with pytest.raises(ConfigError, match="for_each_batch: the handler is `async def`"):
        stream(None, plan(), *[None] * (stream is ApplicationStream)).for_each_batch(handle)


STREAM = SystemStream("spark", "totals")
SCHEMA = pa.schema([("n", pa.int64())])


class Nothing:
    def write(self, values: Sequence[bytes | None], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return iter(())


def test_rows_that_are_used_too_late_are_gone(tmp_path: Path) -> None:
    """Their object is deleted once the query has gone on to the next batch."""
    named = OutboxObject(
        "visits-1/outbox/1-2-0", 0, 10, "ab" * 32, {SystemStreamPartition("spark", "totals", 0): OutputPart(1, 1)}
    )
    rows = OutputRows(str(tmp_path), RootKeys(), 7, STREAM, SCHEMA, Nothing())
    asked = pa.RecordBatch.from_pydict({"id": [0]})
    with pytest.raises(
        NotFoundError, match=r"rows of batch 7 in output `totals` are gone.*in the handler.*`.cache\(\)`"
    ):
        list(rows.read([named], [asked]))
