"""A start with durable intermediate streams in its checkpoint: each row of the table in docs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.api.ssp import SystemStream
from penstock.api.time.firing import NO_WATERMARK
from penstock.checkpoint.record import CheckpointId, CheckpointRecord
from penstock.checkpoint.sections import Sections
from penstock.checkpoint.streams import STREAMS, IntermediateStream, StreamsSection, WrittenRanges
from penstock.errors import IncompatibleError
from penstock.start.positions import begin_streams, kept_streams, recorded_operators
from penstock.system.base import PartitionOffsets

STREAM = SystemStream("local", "between")
DECLARED = {STREAM: "by-tail string json"}
UNREAD = IntermediateStream(2, 50, {0: 4, 1: 2}, (WrittenRanges(7, 60, {0: ((4, 6), (8, 9))}),))
READ = IntermediateStream(2, 50, {0: 4, 1: 2})
ENDS = {STREAM: {0: PartitionOffsets(1, 20), 1: PartitionOffsets(0, 2)}}


def record(own: IntermediateStream = UNREAD) -> CheckpointRecord:
    return CheckpointRecord(
        id=CheckpointId(5, 1),
        parent=None,
        epoch=1,
        run_id="r",
        writer="w",
        task_count=2,
        batch=7,
        batch_time_ms=1,
        stores={},
        next_offsets={},
        tasks={},
        sections=Sections.of({STREAMS: StreamsSection({STREAM: own}, DECLARED)}),
    )


def begin(made: CheckpointRecord | None, **options: object) -> dict[SystemStream, IntermediateStream]:
    kept = kept_streams(made, DECLARED, **{"clears_state": False, **options})  # type: ignore[arg-type]
    return begin_streams(DECLARED, kept, ENDS, ())


def test_without_a_checkpoint_what_is_in_the_stream_belongs_to_nobody() -> None:
    assert begin(None) == {STREAM: IntermediateStream(1, NO_WATERMARK, {0: 20, 1: 2})}


def test_a_checkpoint_from_before_the_stream_is_no_other_case() -> None:
    before = replace(record(), sections=Sections())
    assert begin(before) == {STREAM: IntermediateStream(1, NO_WATERMARK, {0: 20, 1: 2})}


@pytest.mark.parametrize("own", [UNREAD, READ])
def test_from_a_checkpoint_everything_is_as_it_says(own: IntermediateStream) -> None:
    assert begin(record(own)) == {STREAM: own}


@pytest.mark.parametrize("options", [{"clears_state": True}, {"reset": ["by-tail"]}, {"reset": ["by-tail.through"]}])
def test_clear_and_reset_drop_what_is_unread(options: dict[str, object]) -> None:
    assert begin(record(), **options) == {STREAM: IntermediateStream(3, NO_WATERMARK, {0: 9, 1: 2})}


def test_another_operator_that_is_reset_changes_nothing() -> None:
    assert begin(record(), reset=["hours"]) == {STREAM: UNREAD}


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({}, "is no longer in the application"),
        ({SystemStream("local", "other"): "by-tail string json"}, "is no longer in the application"),
        ({STREAM: "by-tail string bytes"}, "declared as `string bytes` now"),
    ],
)
def test_unread_messages_are_neither_lost_nor_read_otherwise(declared: dict[SystemStream, str], words: str) -> None:
    with pytest.raises(IncompatibleError, match=words) as error:
        kept_streams(record(), declared, clears_state=False)
    assert "`local.between` has 3 messages" in str(error.value)
    assert 'reset_operators=["by-tail"]' in str(error.value)
    assert "penstock drain" in str(error.value)

    kept = kept_streams(record(), declared, clears_state=False, reset=["by-tail"])
    assert kept == ({STREAM: UNREAD.next_generation()} if STREAM in declared else {})
    kept_streams(record(READ), declared, clears_state=False)
    kept_streams(record(), declared, clears_state=True)


def test_the_operator_that_writes_may_have_another_id() -> None:
    renamed = {STREAM: "by-plane string json"}
    assert kept_streams(record(), renamed, clears_state=False) == {STREAM: UNREAD}
    assert kept_streams(record(), renamed, clears_state=False, reset=["by-plane"])[STREAM].unread == ()


@pytest.mark.parametrize(
    "end", [PartitionOffsets(5, 20), PartitionOffsets(0, 8), PartitionOffsets(0, 0), PartitionOffsets(20, 20)]
)
def test_a_stream_that_lost_what_is_to_be_read_is_refused(end: PartitionOffsets) -> None:
    ends = {STREAM: {**ENDS[STREAM], 0: end}}
    with pytest.raises(IncompatibleError, match=r"does not have all of the 3 .*partition 0 should be read from"):
        begin_streams(DECLARED, {STREAM: UNREAD}, ends, ())


def test_a_stream_that_somebody_created_again_is_refused_although_it_has_such_offsets() -> None:
    with pytest.raises(IncompatibleError, match="no longer recorded as its owner"):
        begin_streams(DECLARED, {STREAM: UNREAD}, ENDS, [STREAM])


def test_a_stream_that_was_created_again_while_nothing_was_unread_is_used() -> None:
    ends = {STREAM: {0: PartitionOffsets(0, 0), 1: PartitionOffsets(0, 0)}}
    assert begin_streams(DECLARED, {STREAM: READ}, ends, [STREAM]) == {STREAM: IntermediateStream(2, 50, {0: 0, 1: 0})}


def test_the_operators_of_a_checkpoint_by_their_streams() -> None:
    assert recorded_operators(None) == {}
    assert recorded_operators(record()) == {"by-tail": STREAM, "by-tail.through": STREAM}
