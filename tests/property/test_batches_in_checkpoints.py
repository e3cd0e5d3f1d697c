"""Checkpoints name the batches before them: in bounded space, and nothing that was read is left out."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import TaskSsp
from penstock.checkpoint.sections import Sections
from penstock.replay.wing import MOST_NUMBERS, REPLAY, Line, ReadUpTo, batches_of, joined, section_of
from penstock.testing.rehearsal.feeds import ReadBatch, pieces_of

PLACES = [TaskSsp(task, SystemStreamPartition("m", f"in.{task % 2}", task)) for task in range(5)]
BEGINS = ReadUpTo(5, dict.fromkeys(PLACES, 0))
batches = st.lists(
    st.builds(
        ReadUpTo,
        st.integers(0, 2**42),
        st.dictionaries(st.sampled_from(PLACES), st.integers(0, 2**62), max_size=5),
    ),
    max_size=30,
)


class Record:
    """As much of a checkpoint's record as has sections."""

    def __init__(self, made: list[ReadUpTo], begins: ReadUpTo) -> None:
        self._sections = Sections.of({REPLAY: section_of(made, begins, Line(1))})
        self.batch_time_ms = 7
        self.next_offsets = {1: {PLACES[1].ssp: 99}}

    def section(self, section: Any) -> Any:
        written = Sections(self._sections.written)  # as it is read again
        return written.get(section)


def read(made: list[ReadUpTo], begins: ReadUpTo = BEGINS) -> list[ReadUpTo]:
    """The named batches."""
    first, *rest = batches_of(cast("Any", Record(made, begins)))
    assert not first.named
    assert all(each.named for each in rest)
    return rest


@given(batches)
def test_batches_are_read_as_they_were_made(made: list[ReadUpTo]) -> None:
    assert read(made) == made


@given(batches, st.integers(1, 60))
def test_many_batches_take_bounded_space_and_end_where_they_did(made: list[ReadUpTo], times: int) -> None:
    many = [ReadUpTo(each.time_ms, each.positions) for each in made * times * 5]
    section = section_of(many, BEGINS, Line(1))
    assert sum(map(len, section.batches)) <= MOST_NUMBERS
    last: dict[TaskSsp, int] = {}
    for each in many:
        last |= each.positions
    found: dict[TaskSsp, int] = {}
    for each in read(many):
        found |= each.positions
    assert found == last
    assert [each.time_ms for each in read(many)][-1:] == [each.time_ms for each in many][-1:]


@given(batches)
def test_two_neighbours_are_one_batch_that_reads_what_both_did(made: list[ReadUpTo]) -> None:
    found = joined(made)
    assert len(found) == (len(made) + 1) // 2
    assert {at for each in found for at in each.positions} == {at for each in made for at in each.positions}


@given(batches, st.dictionaries(st.sampled_from(PLACES), st.integers(0, 2**40), min_size=5))
def test_before_them_is_what_others_had_read(made: list[ReadUpTo], begins: dict[TaskSsp, int]) -> None:
    """A place that no batch read from stands where the record has it."""
    first = next(iter(batches_of(cast("Any", Record(made, ReadUpTo(5, begins))))))
    read_from = {at for each in made for at in each.positions}
    assert first.time_ms == (5 if made else 7)
    assert first.positions == {PLACES[1]: 99} | {at: begins[at] for at in read_from}


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=5),
    st.sets(st.tuples(st.integers(0, 4), st.integers(0, 40)), max_size=20),
)
def test_the_pieces_of_a_batch_are_its_messages_in_their_order(
    ranges: list[tuple[int, int]], places: set[tuple[int, int]]
) -> None:
    whole = [(PLACES[number], first, first + count) for number, (first, count) in enumerate(ranges)]
    wanted = {(PLACES[number].ssp, offset) for number, offset in places}
    pieces = list(pieces_of(ReadBatch(cast("Any", None), whole), wanted))
    messages = [(at, offset) for at, first, end in whole for offset in range(first, end)]
    seen = [(at, offset) for piece in pieces for at, first, end in piece.ranges or () for offset in range(first, end)]
    assert seen == messages
    alone = [(at.ssp, first) for piece in pieces if piece.alone for at, first, _ in piece.ranges or ()]
    assert alone == [(at.ssp, offset) for at, offset in messages if (at.ssp, offset) in wanted]
    assert all(
        end - first == 1 and len(piece.ranges or ()) == 1
        for piece in pieces
        if piece.alone
        for _, first, end in piece.ranges or ()
    )
    assert [piece.ranges is None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    for piece in pieces:  # a portion is a partition's
        assert len({at for at, *_ in piece.ranges or ()}) == len(piece.ranges or ())
