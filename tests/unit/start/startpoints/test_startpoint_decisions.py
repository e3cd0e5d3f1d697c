"""Where a start begins: which requests count, precedence, the state, what is refused and what is said then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.admin.startpoint.waiting import taken_facts
from penstock.api.requests import Startpoint, StartpointOldest, StartpointSpecific, StartpointUpcoming
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.batch import TaskSsp
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.errors import IncompatibleError
from penstock.start.inputs import group_inputs
from penstock.start.positions import start_positions
from penstock.start.startpoint_request import RequestKey, StartpointRequest, how_to_delete, task_name
from penstock.start.startpoints import Candidates, JobInputs, StartDecision, choose_state, decide_start, sort_out
from penstock.system.base import PartitionOffsets
from tests.support.stores.stopped_job import STREAM, saved, ssp

ENDS = {ssp(0): PartitionOffsets(0, 10), ssp(1): PartitionOffsets(0, 10)}
OTHERS = {
    SystemStream("local", "out"): "an output of the job, which does not read it",
    SystemStream("local", "dim"): "a side input of store `dim`, which is always read from its own offsets",
    SystemStream("local", "part"): "an intermediate stream, whose position belongs to its writers",
}
INPUTS = JobInputs(group_inputs(ENDS).tasks, ENDS, OTHERS)
NOW = 1_700_000_000_000


def request(partition: int, startpoint: Startpoint, uuid: str = "u", **fields: Any) -> StartpointRequest:
    """A request for a partition of the input."""
    task = fields.pop("task", None)
    return StartpointRequest(RequestKey(ssp(partition), task), uuid, startpoint, **fields)


def offset(number: int, created: int = NOW) -> Startpoint:
    """A startpoint at an offset."""
    return StartpointSpecific(str(number), creation_timestamp=created)


def resolve(each: StartpointRequest) -> int:
    """Resolve a startpoint as the systems would."""
    end = ENDS[each.key.ssp]
    match each.startpoint:
        case StartpointSpecific(specific_offset=text):
            if int(text) > end.upcoming:
                raise IncompatibleError(f"it holds {end}")
            return int(text)
        case StartpointOldest():
            return end.oldest
        case _:
            return end.upcoming


def decide(
    requests: Sequence[StartpointRequest], *records: CheckpointRecord, named: bool = False, inputs: JobInputs = INPUTS
) -> StartDecision:
    """With these checkpoints, of which a start would begin with the last."""
    origin = records[-1] if records else None
    return decide_start(requests, inputs, Candidates(origin, records, (2, 1), named=named), resolve)


def begins(decision: StartDecision, **config: object) -> tuple[int, int]:
    """The positions of both partitions."""
    keys = {f"streams.local.{STREAM}.samza.{key}": value for key, value in config.items()}
    loaded = load_config(overrides={"job.name": "flights", **keys}, environ={})
    found = start_positions(decision, INPUTS, loaded)
    return found[TaskSsp(0, ssp(0))], found[TaskSsp(1, ssp(1))]


# Which requests count.


def test_requests_are_sorted_out() -> None:
    old, new, done = (
        request(0, offset(1, NOW - 1000), "old"),
        request(0, offset(2, NOW - 999), "new"),
        request(1, offset(3, NOW - 1000), "done"),
    )
    found = sort_out([old, new, done], {"done"}, NOW, 1000)
    assert (found.live, found.expired, found.taken) == ((new,), (old,), (done,))
    assert found.uuids == ("done", "new", "old"), "the start checkpoint names all of them: none is applied later"


def test_the_last_one_of_a_key_counts() -> None:
    found = decide([request(0, offset(3, NOW + 2), "a"), request(0, offset(5, NOW + 1), "b")], saved(1))
    assert begins(found) == (3, 7)


def test_a_superseded_choice_of_state_does_not_count() -> None:
    requests = [
        request(0, offset(3, NOW), "a", with_state="clear"),
        request(0, offset(3, NOW + 1), "b", with_state="keep"),
    ]
    assert decide(requests, saved(1)).with_state == "keep"


# Precedence.


def test_startpoint_then_checkpoint_then_default() -> None:
    assert begins(decide([])) == (0, 0)
    assert begins(decide([]), **{"offset.default": "upcoming"}) == (10, 10)
    assert begins(decide([], saved(1))) == (4, 7)
    assert begins(decide([], saved(1)), **{"offset.default": "upcoming"}) == (4, 7)
    assert begins(decide([request(1, offset(2))], saved(1)), **{"offset.default": "upcoming"}) == (4, 2)
    assert begins(decide([request(1, offset(2))])) == (0, 2)


def test_reset_offset_beats_the_checkpoint_and_no_startpoint() -> None:
    reset = {"reset.offset": "true"}
    assert begins(decide([], saved(1)), **reset) == (0, 0)
    assert begins(decide([], saved(1)), **reset, **{"offset.default": "upcoming"}) == (10, 10)
    assert begins(decide([request(1, offset(2))], saved(1)), **reset) == (0, 2)
    nearest = decide([request(1, offset(7), with_state="nearest")], saved(1))
    assert begins(nearest, **reset) == (4, 7), "a checkpoint that a startpoint chose counts for every input"


def test_a_startpoint_is_inclusive_and_a_checkpoint_exclusive() -> None:
    """Samza's value of the checkpoint says 6 was the last one processed: it goes on at 7."""
    record = saved(1)
    assert '"local.dep.flights.1":"6"' in record.tasks[1]["2"]
    assert begins(decide([request(0, offset(6))], record)) == (6, 7)


def test_a_tasks_own_startpoint() -> None:
    assert begins(decide([request(1, offset(2), task=task_name(1))], saved(1))) == (4, 2)
    with pytest.raises(IncompatibleError, match=r"`Partition 0` does not read `local.dep.flights.1`"):
        decide([request(1, offset(2), task=task_name(0))], saved(1))


def test_made_at_once_a_tasks_own_counts() -> None:
    both = [request(1, offset(2), "z"), request(1, offset(3), "a", task=task_name(1))]
    assert begins(decide(both, saved(1))) == (4, 3)
    later = [request(1, offset(2, NOW + 1), "z"), request(1, offset(3), "a", task=task_name(1))]
    assert begins(decide(later, saved(1))) == (4, 2)


# What is refused.


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (SystemStreamPartition("local", "dim", 0), "a side input of store `dim`"),
        (SystemStreamPartition("local", "part", 0), "an intermediate stream"),
        (SystemStreamPartition("local", "out", 0), "an output of the job"),
        (SystemStreamPartition("local", "nothing", 0), "not an input of the job, which reads `local.dep.flights`"),
        (ssp(2), "has 2 partitions, there is no 2"),
    ],
)
def test_a_startpoint_for_what_is_not_read(where: SystemStreamPartition, said: str) -> None:
    wrong = StartpointRequest(RequestKey(where), "u", offset(1))
    with pytest.raises(IncompatibleError) as failed:
        decide([wrong], saved(1))
    assert said in str(failed.value)
    delete = f"penstock startpoint delete JOB --stream {where.system_stream} --partition {where.partition}"
    assert delete in str(failed.value)


def test_one_that_cannot_be_resolved_stops_the_start() -> None:
    with pytest.raises(IncompatibleError, match=r"local.dep.flights.0`, offset 99.*0 \(oldest\) to 9 \(newest\)"):
        decide([request(0, offset(99))], saved(1))


def test_contradicting_choices_are_named() -> None:
    said = [request(0, offset(1), "a", with_state="clear"), request(1, offset(1), "b", with_state="nearest")]
    with pytest.raises(IncompatibleError) as failed:
        decide(said, saved(1))
    for part in ('with_state="clear"', 'with_state="nearest"', "local.dep.flights.0", "local.dep.flights.1"):
        assert part in str(failed.value)


def test_who_says_nothing_contradicts_nobody() -> None:
    assert choose_state([]) == "keep"
    assert choose_state([request(0, offset(1))]) == "keep"
    assert choose_state([request(0, offset(1)), request(1, offset(1), with_state="clear")]) == "clear"


# The state.


def test_keep_and_clear_begin_with_the_last_checkpoint() -> None:
    records = (saved(1, (1, 1)), saved(2, (8, 8)))
    keep = decide([request(0, offset(3), with_state="keep")], *records)
    assert (keep.restore_from, keep.clears_state, begins(keep)) == (records[1], False, (3, 8))
    clear = decide([request(0, offset(3), with_state="clear")], *records)
    assert (clear.restore_from, clear.clears_state, begins(clear)) == (records[1], True, (3, 8))


def test_without_a_checkpoint_the_state_is_no_question() -> None:
    for choice in ("nearest", "clear", "keep"):
        found = decide([request(0, offset(3), with_state=choice)])
        assert (found.restore_from, found.clears_state, begins(found)) == (None, False, (3, 0))


RECORDS = (saved(1, (1, 1)), saved(2, (3, 5)), saved(3, (5, 5)), saved(4, (8, 9)))


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ({0: 8}, 4),
        ({0: 10}, 4),
        ({0: 7}, 3),
        ({0: 5}, 3),
        ({0: 4}, 2),
        ({0: 4, 1: 4}, 1),
        ({1: 5}, 3),
        ({0: 1}, 1),
    ],
)
def test_nearest_takes_all_from_one_checkpoint(wanted: Mapping[int, int], chosen: int) -> None:
    requests = [request(n, offset(to), with_state="nearest") for n, to in wanted.items()]
    found = decide(requests, *RECORDS)
    record = RECORDS[chosen - 1]
    assert found.restore_from == record
    assert not found.clears_state
    assert begins(found) == (record.next_offsets[0][ssp(0)], record.next_offsets[1][ssp(1)])


def test_nearest_without_a_checkpoint_that_is_near_enough() -> None:
    with pytest.raises(IncompatibleError) as failed:
        decide([request(0, offset(0), with_state="nearest")], *RECORDS)
    for part in (
        str(RECORDS[0].id),
        "`local.dep.flights.0` at 1 (wanted 0)",
        'with_state="clear"',
        'with_state="keep"',
    ):
        assert part in str(failed.value)


def test_nearest_needs_what_would_have_to_be_read_again() -> None:
    gone = JobInputs(INPUTS.tasks, {**ENDS, ssp(1): PartitionOffsets(2, 10)})
    with pytest.raises(IncompatibleError, match=r"from offset 1, but it holds messages from 2 \(oldest\)"):
        decide([request(0, offset(2), with_state="nearest")], *RECORDS, inputs=gone)


def test_nearest_passes_over_what_does_not_know_the_input() -> None:
    before = replace(saved(2, (3, 5)), next_offsets={0: {}, 1: {ssp(1): 5}})
    origin = saved(4, (8, 9))
    requests = [request(0, offset(7), with_state="nearest")]
    found = decide_start(requests, INPUTS, Candidates(origin, (saved(1, (1, 1)), before, origin), (2,)), resolve)
    assert found.restore_from == saved(1, (1, 1))


def test_nearest_needs_state_that_agrees() -> None:
    moved = [replace(record, moved=(ssp(1),)) for record in RECORDS]
    wanted = [request(0, offset(4), with_state="nearest")]
    assert decide(wanted, RECORDS[0], *moved[1:]).restore_from == RECORDS[0]
    with pytest.raises(IncompatibleError) as failed:
        decide(wanted, *moved)
    for part in (str(moved[1].id), f"`{ssp(1)}` was moved", 'with_state="clear"', "accept_state=True"):
        assert part in str(failed.value)


def test_nearest_passes_over_no_checkpoint_because_of_its_version() -> None:
    unread = saved(3, (5, 5), versions=(1,), markers={})
    origin = saved(4, (8, 9))
    requests = [request(0, offset(7), with_state="nearest")]
    with pytest.raises(IncompatibleError) as failed:
        decide_start(requests, INPUTS, Candidates(origin, (saved(1, (1, 1)), unread, origin), (2,)), resolve)
    for part in (str(unread.id), "task.checkpoint.read.versions allows (2)", "It has: 1."):
        assert part in str(failed.value)


GONE = JobInputs(INPUTS.tasks, {**ENDS, ssp(1): PartitionOffsets(2, 10)})
MOVED = tuple(replace(record, moved=(ssp(1),)) for record in RECORDS)
UNREAD = (saved(1, (1, 1)), saved(3, (5, 5), versions=(1,), markers={}), saved(4, (8, 9)))


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    ("wanted", "inputs", "records"),
    [(0, INPUTS, RECORDS), (4, INPUTS, MOVED), (7, INPUTS, UNREAD), (2, GONE, RECORDS)],
    ids=["none is near", "none agrees", "version", "messages are deleted"],
)
def test_a_refusal_names_the_startpoint_and_how_to_delete_one_that_waits(
    wanted: int, inputs: JobInputs, records: Sequence[CheckpointRecord], waits: bool
) -> None:
    asked = request(0, offset(wanted), with_state="nearest")
    with pytest.raises(IncompatibleError) as failed:
        decide_start([asked], inputs, Candidates(records[-1], records, (2,)), resolve, () if waits else (asked,))
    assert str(failed.value).startswith(f"the startpoint for {asked} cannot be applied: ")
    assert (how_to_delete(asked.key) in str(failed.value)) == waits


def test_nearest_and_from_are_two_ways_to_say_it() -> None:
    with pytest.raises(IncompatibleError, match="from_checkpoint="):
        decide([request(0, offset(8), with_state="nearest")], *RECORDS, named=True)
    assert decide([request(0, offset(8), with_state="clear")], *RECORDS, named=True).clears_state


def test_a_broadcast_partition_has_to_be_before_in_every_task() -> None:
    both = SystemStreamPartition("local", "all", 0)
    inputs = JobInputs({n: [ssp(n), both] for n in range(2)}, {**ENDS, both: PartitionOffsets(0, 10)})

    def record(number: int, positions: tuple[int, int]) -> CheckpointRecord:
        return replace(
            saved(number), next_offsets={n: {ssp(n): 5, both: position} for n, position in enumerate(positions)}
        )

    records = (record(1, (2, 3)), record(2, (4, 6)))
    asked = StartpointRequest(RequestKey(both), "u", offset(5), with_state="nearest")
    found = decide_start([asked], inputs, Candidates(records[-1], records, (2,)), lambda _: 5)
    assert found.restore_from == records[0]
    assert set(found.requests) == {TaskSsp(n, both) for n in range(2)}


# What status tells of it afterwards.


def test_what_was_moved_and_what_of_it_was_read_again() -> None:
    before = replace(saved(1, (8, 4)), epoch=1, run_id="a")
    start = replace(
        saved(2, (2, 6)), epoch=2, run_id="b", kind_detail="start", consumed_startpoints=("u",), parent=before.id
    )
    tried_again = replace(start, id=saved(3).id, epoch=3, parent=start.id)
    later = replace(saved(4, (5, 9)), epoch=3, run_id="b")
    found = taken_facts(LogView({0: before, 1: start, 2: tried_again, 3: later}, {}, {}, {}, 4))
    assert found is not None
    assert (found.checkpoint, found.last, found.began_with) == (str(start.id), str(before.id), str(before.id))
    assert [(m.partition, m.before, m.began_at, m.to_replay, m.replayed, m.skipped) for m in found.moved] == [
        (0, 8, 2, 6, 3, 0),
        (1, 4, 6, 0, 0, 2),
    ]
    next_run = replace(saved(5, (9, 9)), epoch=4, run_id="c", kind_detail="start")
    assert taken_facts(LogView({0: before, 1: start, 2: later, 3: next_run}, {}, {}, {}, 4)) is None
    assert taken_facts(LogView({}, {}, {}, {}, 0)) is None


def test_upcoming_and_oldest_are_resolved_to_numbers() -> None:
    found = decide([request(0, StartpointUpcoming()), request(1, StartpointOldest())], saved(1))
    assert begins(found) == (10, 0)
