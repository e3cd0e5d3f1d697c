"""Event times belong to the state: what a start keeps of them."""

from __future__ import annotations

from dataclasses import replace

from penstock.api.ssp import SystemStreamPartition
from penstock.api.time.firing import END_OF_TIME
from penstock.batch.batch import TaskSsp
from penstock.batch.watermarks import TIME, TimeSection
from penstock.checkpoint.record import CheckpointRecord, Claim
from penstock.checkpoint.sections import Sections
from penstock.start.positions import StartTimes, start_times
from penstock.system.base import PartitionOffsets
from tests.support.stores.checkpoints import checkpoint

A, B = (SystemStreamPartition("m", stream, 0) for stream in "ab")
AT_A, AT_B = TaskSsp(0, A), TaskSsp(0, B)
RECORD: CheckpointRecord = replace(
    checkpoint(Claim(1, "r", "w"), 5),
    next_offsets={0: {A: 10, B: 20}},
    sections=Sections.of({TIME: TimeSection({0: {A: 100, B: 200}}, {"a": 100, "windows": 90})}),
)
ENDS = {A: PartitionOffsets(0, 10), B: PartitionOffsets(0, 20)}
SAME = {AT_A: 10, AT_B: 20}
KEPT = StartTimes({AT_A: 100, AT_B: 200}, {"a": 100, "windows": 90})


def test_the_first_start_has_none() -> None:
    assert start_times(None, clears_state=False, positions=SAME, ends=ENDS) == StartTimes()


def test_a_start_goes_on_with_those_of_the_checkpoint() -> None:
    assert start_times(RECORD, clears_state=False, positions=SAME, ends=ENDS) == KEPT


def test_everything_is_read_again_after_clear() -> None:
    assert start_times(RECORD, clears_state=True, positions={AT_A: 0, AT_B: 0}, ends=ENDS) == StartTimes()


def test_everything_is_read_again_with_keep() -> None:
    """The messages that were moved back are late."""
    found = start_times(RECORD, clears_state=False, positions={AT_A: 0, AT_B: 20}, ends=ENDS)
    assert found == replace(KEPT, late=(AT_A,))


def test_after_the_end_of_a_stream_none_is_left() -> None:
    for ended in ("end-of-stream", "drained"):
        record = replace(RECORD, ended=ended, ended_inputs=(A, B))
        grown = ENDS | {B: PartitionOffsets(0, 25)}
        assert start_times(record, clears_state=False, positions=SAME, ends=ENDS) == StartTimes()
        assert start_times(record, clears_state=False, positions=SAME, ends=grown) == StartTimes(grown=(B,))


def test_an_input_that_was_added_or_removed() -> None:
    new = TaskSsp(0, SystemStreamPartition("m", "new", 0))
    ends = {A: ENDS[A], new.ssp: PartitionOffsets(0, 3)}
    found = start_times(RECORD, clears_state=False, positions={AT_A: 10, new: 0}, ends=ends)
    assert found == StartTimes({AT_A: 100}, KEPT.watermarks)


def test_an_input_that_had_ended_and_has_grown_begins_again() -> None:
    """So do operators that it alone led to: everything would be late there."""
    marks = {"a": END_OF_TIME, "of-a": END_OF_TIME, "windows": 200}
    time = replace(RECORD.section(TIME), watermarks=marks)
    record = replace(RECORD, ended_inputs=(A,)).having(TIME, time)
    kept = start_times(record, clears_state=False, positions=SAME, ends=ENDS)
    assert kept == StartTimes({AT_A: 100, AT_B: 200}, marks, frozenset({A}))
    grown = start_times(record, clears_state=False, positions=SAME, ends=ENDS | {A: PartitionOffsets(0, 11)})
    assert grown == StartTimes({AT_B: 200}, {"windows": 200}, grown=(A,))


def test_a_checkpoint_whose_positions_were_set_back_by_hand() -> None:
    """It is of the same batch as the one before."""
    edited = replace(RECORD, next_offsets={0: {A: 4, B: 20}})
    positions = {AT_A: 4, AT_B: 20}
    found = start_times(edited, clears_state=False, positions=positions, ends=ENDS, parent=RECORD)
    assert found == replace(KEPT, late=(AT_A,))
    later = replace(edited, batch=edited.batch + 1)
    assert start_times(later, clears_state=False, positions=positions, ends=ENDS, parent=RECORD) == KEPT
