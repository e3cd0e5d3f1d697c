"""The part of a durable intermediate stream that is still to be read, case by case."""

from __future__ import annotations

import pytest

from penstock.api.time.firing import NO_WATERMARK
from penstock.checkpoint.streams import MOST_ENTRIES, IntermediateStream, WrittenRanges
from penstock.errors import RetryableError


def test_only_what_was_written_is_read_and_its_watermark_counts_behind_it() -> None:
    stream = IntermediateStream(positions={0: 5, 1: 9}).after({}, WrittenRanges(1, 100, {0: ((5, 8),), 1: ((12, 13),)}))
    assert (stream.watermark, stream.left(), stream.left_of(0), stream.left_of(1)) == (NO_WATERMARK, 4, 3, 1)
    assert stream.next_ranges() == {0: (5, 8), 1: (12, 13)}

    part = stream.after({0: 8}, None)
    assert (part.watermark, part.positions, part.next_ranges()) == (NO_WATERMARK, {0: 8, 1: 9}, {1: (12, 13)})
    assert (part.needed(0), part.needed(1), part.needed(2)) == (8, 12, None)

    whole = part.after({1: 13}, None)
    assert (whole.watermark, whole.unread, whole.positions) == (100, (), {0: 8, 1: 13})


def test_the_first_range_reaches_over_batches_but_not_over_a_gap() -> None:
    stream = IntermediateStream()
    for batch, ranges in enumerate([((0, 2),), ((2, 4),), ((5, 6),)]):
        stream = stream.after({}, WrittenRanges(batch, batch, {0: ranges}))
    assert stream.next_ranges() == {0: (0, 4)}

    between = stream.after({0: 3}, None)
    assert (between.watermark, between.next_ranges(), between.left()) == (0, {0: (3, 4)}, 2)
    assert between.after({0: 4}, None).next_ranges() == {0: (5, 6)}


def test_a_watermark_without_messages_waits_for_what_was_written_before_it() -> None:
    assert IntermediateStream().after({}, WrittenRanges(1, 7)).watermark == 7

    stream = IntermediateStream().after({}, WrittenRanges(1, 7, {0: ((0, 1),)})).after({}, WrittenRanges(2, 9))
    assert (stream.watermark, len(stream.unread)) == (NO_WATERMARK, 1)
    assert stream.after({0: 1}, None).watermark == 9


def test_a_later_entry_that_was_read_waits_for_the_older_ones() -> None:
    stream = (
        IntermediateStream()
        .after({}, WrittenRanges(1, 5, {0: ((0, 1),)}))
        .after({}, WrittenRanges(2, 6, {1: ((0, 1),)}))
    )
    early = stream.after({1: 1}, None)
    assert (early.watermark, early.next_ranges()) == (NO_WATERMARK, {0: (0, 1)})
    assert early.after({0: 1}, None).watermark == 6


def test_a_watermark_that_stands_still_is_reached_although_there_is_always_something_unread() -> None:
    stream = (
        IntermediateStream()
        .after({}, WrittenRanges(0, 3, {0: ((0, 1),)}))
        .after({}, WrittenRanges(1, 5, {0: ((1, 2),)}))
    )
    for batch in range(2, 9):
        stream = stream.after({0: batch - 1}, WrittenRanges(batch, 5, {0: ((batch, batch + 1),)}))
        assert (stream.left(), len(stream.unread) <= 2) == (2, True)
    assert stream.watermark == 5


def test_the_newest_entries_join_when_there_are_too_many() -> None:
    stream = IntermediateStream()
    for batch in range(3 * MOST_ENTRIES):
        stream = stream.after({}, WrittenRanges(batch, batch, {0: ((2 * batch, 2 * batch + 1),)}))
    assert len(stream.unread) == MOST_ENTRIES
    assert [stream.unread[at].watermark for at in (0, 98, 99)] == [0, 98, 299]
    assert stream.left() == 3 * MOST_ENTRIES


def test_a_watermark_never_falls() -> None:
    stream = (
        IntermediateStream(watermark=50).after({}, WrittenRanges(1, 10, {0: ((0, 1),)})).after({}, WrittenRanges(2, 60))
    )
    assert [stream.watermark, stream.after({0: 1}, WrittenRanges(3, 20)).watermark] == [50, 60]


@pytest.mark.parametrize("read", [{0: 4}, {0: 9}, {1: 1}])
def test_what_is_read_is_within_the_first_range(read: dict[int, int]) -> None:
    stream = IntermediateStream().after({}, WrittenRanges(1, 0, {0: ((5, 8), (9, 10))}))
    with pytest.raises(RetryableError, match=r"partition \d of an intermediate stream"):
        stream.after(read, None)


def test_a_stream_that_was_recreated_while_the_job_runs_is_noticed() -> None:
    stream = IntermediateStream().after({}, WrittenRanges(1, 0, {0: ((5, 8),)}))
    with pytest.raises(RetryableError, match="is not the one that the job wrote before"):
        stream.after({}, WrittenRanges(2, 0, {0: ((0, 3),)}))


def test_a_new_generation_has_nothing_to_read_and_begins_behind_everything() -> None:
    stream = IntermediateStream(2, 7, {0: 3, 1: 4}, (WrittenRanges(5, 9, {0: ((6, 8), (9, 12))}),))
    assert stream.next_generation() == IntermediateStream(3, NO_WATERMARK, {0: 12, 1: 4})
