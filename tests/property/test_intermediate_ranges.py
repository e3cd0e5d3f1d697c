"""The unread part of a durable intermediate stream, beside a list of single offsets for each batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from penstock.api.time.firing import NO_WATERMARK
from penstock.checkpoint import streams
from penstock.checkpoint.streams import IntermediateStream, Ranges, WrittenRanges, join

PARTITIONS = 3


@dataclass
class Oracle:
    """Every batch with each single offset that it wrote and nobody has read yet."""

    batches: list[tuple[int, set[tuple[int, int]]]] = field(default_factory=list)
    """(watermark, {(partition, offset)})."""
    dropped: list[int] = field(default_factory=lambda: [NO_WATERMARK])

    def unread(self) -> set[tuple[int, int]]:
        return set().union(*(offsets for _, offsets in self.batches))

    def watermark(self) -> int:
        """The highest of the batches that were read to the end, with all before them."""
        while self.batches and not self.batches[0][1]:
            self.dropped.append(self.batches.pop(0)[0])
        return max(self.dropped)


STEPS = st.lists(
    st.tuples(
        st.lists(st.floats(0, 1), min_size=PARTITIONS, max_size=PARTITIONS),  # how much of each first range is read
        st.lists(st.integers(0, 3), min_size=PARTITIONS, max_size=PARTITIONS),  # what is written to each partition
        st.lists(st.integers(0, 2), min_size=PARTITIONS, max_size=PARTITIONS),  # what failed attempts wrote before
        st.integers(0, 2),  # how far the writer's watermark comes
        st.booleans(),  # whether the batch wrote anything, or moved the watermark
    ),
    max_size=25,
)


def take(oracle: Oracle, stream: IntermediateStream, shares: list[float]) -> dict[int, int]:
    """Read a share of each first range, all of which a batch wrote and nobody has read."""
    read = {}
    for partition, (start, end) in stream.next_ranges().items():
        read[partition] = start + round(shares[partition] * (end - start))
        taken = {(partition, offset) for offset in range(start, read[partition])}
        assert taken <= oracle.unread()
        for _, offsets in oracle.batches:
            offsets -= taken
    return read


def write(oracle: Oracle, upcoming: list[int], written: list[int], failed: list[int], mark: int) -> dict[int, Ranges]:
    """Append so much to each partition, behind what failed attempts have left there."""
    ranges: dict[int, Ranges] = {}
    for partition in range(PARTITIONS):
        first = upcoming[partition] + failed[partition]
        upcoming[partition] = first + written[partition]
        if written[partition]:
            ranges[partition] = ((first, upcoming[partition]),)
    oracle.batches.append((mark, singles(ranges)))
    return ranges


def singles(ranges: Mapping[int, Ranges]) -> set[tuple[int, int]]:
    return {(partition, offset) for partition, own in ranges.items() for a, b in own for offset in range(a, b)}


def check_is_equal(oracle: Oracle, stream: IntermediateStream) -> None:
    unread = oracle.unread()
    assert set().union(*(singles(each.ranges) for each in stream.unread)) == unread
    assert stream.left() == len(unread)  # no offset twice
    for partition in range(PARTITIONS):
        mine = {offset for p, offset in unread if p == partition}
        assert stream.left_of(partition) == len(mine)
        assert stream.needed(partition) == (min(mine) if mine else stream.positions.get(partition))
    for each in stream.unread:
        assert each.ranges
        assert all(own == join(own) for own in each.ranges.values())


@given(STEPS, st.integers(1, 5))
def test_exactly_what_ended_batches_wrote_is_read_and_no_watermark_is_early(
    steps: list[tuple[list[float], list[int], list[int], int, bool]], bound: int
) -> None:
    stream, oracle, upcoming, mark, full = IntermediateStream(), Oracle(), [0] * PARTITIONS, 0, False
    with patch.object(streams, "MOST_ENTRIES", bound):
        for batch, (shares, written, failed, ahead, writes) in enumerate(steps, 1):
            read = take(oracle, stream, shares)
            mark += ahead
            new = WrittenRanges(batch, mark, write(oracle, upcoming, written, failed, mark)) if writes else None
            before, stream = stream.watermark, stream.after(read, new)
            full |= len(stream.unread) == bound
            assert len(stream.unread) <= bound
            assert before <= stream.watermark <= oracle.watermark()
            assert full or stream.watermark == oracle.watermark()
            check_is_equal(oracle, stream)
        while stream.unread:
            stream = stream.after(take(oracle, stream, [1.0] * PARTITIONS), None)
        assert stream.watermark == oracle.watermark()
