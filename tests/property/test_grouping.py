"""Assignment of inputs, positions, and what the next batch reads: against a plain computation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.batch import TaskSsp, resumed_positions, to_next_offsets, to_positions
from penstock.batch.portions import BatchPace, BatchRanges, Portion, PortionRead, plan_ranges, read_by_input
from penstock.config.kinds import PartitionRange
from penstock.driver.show.progress import source_progress
from penstock.errors import ConfigError
from penstock.start.inputs import group_inputs
from penstock.system.base import OffsetRange, PartitionOffsets
from penstock.system.memory import MemorySystem

SSP = SystemStreamPartition
STREAMS = tuple(SystemStream("local", name) for name in ("a", "b", "c"))


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[SSP], list[PartitionRange], int]:
    """Inputs of up to four partitions each, what of them is broadcast, and the least number of tasks."""
    counts = {stream: draw(st.integers(1, 4)) for stream in draw(st.lists(st.sampled_from(STREAMS), min_size=1))}
    broadcast = []
    for stream in draw(st.lists(st.sampled_from(sorted(counts)))):
        first = draw(st.integers(0, counts[stream] - 1))
        broadcast.append(PartitionRange(stream, first, draw(st.integers(first, counts[stream] - 1))))
    ssps = [SSP(s.system, s.stream, n) for s, count in counts.items() for n in range(count)]
    return draw(st.permutations(ssps)), broadcast, draw(st.integers(0, 6))


def shared_of(broadcast: list[PartitionRange]) -> set[SSP]:
    """Every broadcast partition, one by one."""
    return {SSP(r.stream.system, r.stream.stream, n) for r in broadcast for n in range(r.first, r.last + 1)}


@given(jobs())
def test_broadcasts_reach_every_task_and_the_rest_one_task(
    job: tuple[list[SSP], list[PartitionRange], int],
) -> None:
    ssps, broadcast, least = job
    shared = shared_of(broadcast)
    own = [ssp for ssp in ssps if ssp not in shared]
    if not own:
        with pytest.raises(ConfigError, match="every partition of every input"):
            group_inputs(ssps, broadcast, least)
        return
    grouping = group_inputs(ssps, broadcast, least)
    assert grouping.count == max(least, max(ssp.partition for ssp in own) + 1)
    for task in range(grouping.count):
        expected = sorted(shared | {ssp for ssp in own if ssp.partition == task})
        assert list(grouping.tasks[task]) == expected


@given(jobs(), st.data())
def test_batches_read_everything_once_in_each_of_its_tasks(
    job: tuple[list[SSP], list[PartitionRange], int], data: st.DataObject
) -> None:
    ssps, broadcast, least = job
    if shared_of(broadcast) >= set(ssps):
        return
    grouping = group_inputs(ssps, broadcast, least)
    ends = {ssp: PartitionOffsets(0, data.draw(st.integers(0, 9))) for ssp in ssps}
    positions = {
        TaskSsp(task, ssp): data.draw(st.integers(0, ends[ssp].upcoming))
        for task, own in grouping.tasks.items()
        for ssp in own
    }
    inputs = tuple(sorted({ssp.system_stream for ssp in ssps}))
    unread = {at: list(range(start, ends[at.ssp].upcoming)) for at, start in positions.items()}
    limit = data.draw(st.integers(1, 4))
    until = None if data.draw(st.booleans()) else {ssp: end.upcoming for ssp, end in ends.items()}
    while portions := plan_ranges(positions, ends, BatchPace(limit, 1000), until):
        planned = BatchRanges.group(portions, inputs)
        read = {}
        for task, found in planned.by_task.items():
            for index, portion in found:
                offsets = portion.offsets
                assert inputs[index] == offsets.ssp.system_stream
                assert 0 < portion.messages <= len(offsets)
                wanted = unread[TaskSsp(task, offsets.ssp)]
                assert wanted == list(range(offsets.start, offsets.end))
                del wanted[: portion.messages]
                read[TaskSsp(task, offsets.ssp)] = PortionRead(offsets.start + portion.messages, portion.messages)
        took = sum(each.messages for each in read.values())
        assert planned.messages == took <= max(limit, len(portions))
        after = planned.advance(positions, read)
        by_input = read_by_input(read)
        rows = {stream: sum(each.messages for (_, s), each in by_input.items() if s == stream) for stream in inputs}
        upcoming = {ssp: end.upcoming for ssp, end in ends.items()}
        progress = source_progress(positions, after, upcoming, rows, {}, {"local": MemorySystem()})
        assert sum(source.num_input_rows for source in progress) == took
        for source in progress:
            for partition, offset in source.end_offset.items():
                where = SystemStream.parse(source.description)
                readers = [n for at, n in after.items() if at.ssp == SSP(where.system, where.stream, int(partition))]
                assert offset == min(readers)
        positions = after
        saved = to_next_offsets(positions, grouping.count)
        assert sorted(saved) == list(range(grouping.count))
        assert to_positions(saved) == positions
    assert not any(unread.values())


@given(jobs(), jobs(), st.data())
def test_a_task_goes_on_where_it_stood_and_begins_anew_where_it_did_not_read(
    before: tuple[list[SSP], list[PartitionRange], int],
    after: tuple[list[SSP], list[PartitionRange], int],
    data: st.DataObject,
) -> None:
    """Over a change of what is broadcast, on the same streams."""
    ssps, broadcast, _ = before
    again = [each for each in after[1] if each.stream in {ssp.system_stream for ssp in ssps}]
    again = [each for each in again if each.last < sum(ssp.system_stream == each.stream for ssp in ssps)]
    if any(shared_of(found) >= set(ssps) for found in (broadcast, again)):
        return
    old, new = group_inputs(ssps, broadcast), group_inputs(ssps, again)
    stood = {TaskSsp(t, ssp): data.draw(st.integers(1, 9)) for t, own in old.tasks.items() for ssp in own}
    readers = [TaskSsp(task, ssp) for task, own in new.tasks.items() for ssp in own]
    found = resumed_positions(stood, readers, dict.fromkeys(ssps, 0))
    assert found == {at: stood.get(at, 0) for at in readers}


def test_ranges_of_a_partition_differ_by_task() -> None:
    ssp = SSP("local", "a", 0)
    found = plan_ranges({TaskSsp(0, ssp): 2, TaskSsp(1, ssp): 5}, {ssp: PartitionOffsets(0, 6)}, BatchPace(4, 9), None)
    assert found == {
        TaskSsp(0, ssp): Portion(OffsetRange(ssp, 2, 6), 3),
        TaskSsp(1, ssp): Portion(OffsetRange(ssp, 5, 6), 1),
    }
