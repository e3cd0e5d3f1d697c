"""How much a batch reads: fair shares, bounds in messages and bytes, and a size that settles at a target duration."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.plan.pace import FIRST_MESSAGES, BatchBounds, InputRead, Pace, fair_shares
from penstock.plan.positions import TaskSsp
from penstock.plan.ranges import BatchRanges, plan_ranges
from penstock.system.base import PartitionOffsets

STREAM = SystemStream("local", "a")
BYTES = 1 << 40
WANTED = st.lists(st.integers(0, 1000), max_size=20)


def read(messages: int, size: int) -> InputRead:
    """What was read of an input without gaps."""
    return InputRead(messages, messages, size)


def ssp(partition: int) -> SystemStreamPartition:
    return SystemStreamPartition("local", "a", partition)


@given(st.integers(0, 3000), WANTED)
def test_shares_are_fair(total: int, wanted: list[int]) -> None:
    shares = fair_shares(total, wanted)
    assert all(0 <= share <= most for share, most in zip(shares, wanted, strict=True))
    assert sum(shares) == min(total, sum(wanted))
    short = [share for share, most in zip(shares, wanted, strict=True) if share < most]
    if short:
        assert max(shares) <= min(short) + 1


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(0.5, 5000)), min_size=1, max_size=12),
    st.integers(1, 2000),
    st.integers(1, 1 << 20),
)
def test_a_batch_is_bounded_in_messages_and_bytes(
    inputs: list[tuple[int, float]], messages: int, size_limit: int
) -> None:
    sizes = {(task, STREAM): size for task, (_, size) in enumerate(inputs)}
    positions = {TaskSsp(task, ssp(task)): 7 for task in range(len(inputs))}
    ends = {ssp(task): PartitionOffsets(0, 7 + backlog) for task, (backlog, _) in enumerate(inputs)}
    ranges = plan_ranges(positions, ends, Pace(messages, size_limit, sizes), None)
    assert ranges.keys() == positions.keys()
    assert all(r.start == 7 and r.start < r.end <= ends[r.ssp].upcoming for r in ranges.values())
    assert sum(map(len, ranges.values())) <= max(messages, len(ranges))
    one_each = sum(size for _, size in inputs)
    assert sum(len(r) * sizes[at.task, STREAM] for at, r in ranges.items()) <= size_limit + one_each
    if messages >= sum(backlog for backlog, _ in inputs) and size_limit >= sum(b * (s + 1) for b, s in inputs):
        assert all(r.end == ends[r.ssp].upcoming for r in ranges.values())


def test_a_backlog_takes_nothing_from_the_others() -> None:
    positions = {TaskSsp(task, ssp(task)): 0 for task in range(200)}
    ends = {ssp(n): PartitionOffsets(0, 10_000_000 if n == 5 else 10) for n in range(200)}
    ranges = plan_ranges(positions, ends, Pace(5000, BYTES), None)
    assert [len(ranges[at]) for at in positions] == [10 if n != 5 else 5000 - 199 * 10 for n in range(200)]


def test_sizes_are_known_by_input_or_guessed_by_the_largest_of_the_stream() -> None:
    bounds = BatchBounds(1000, 10_000, 0)
    other = SystemStream("local", "b")
    pace = Pace.first(bounds)
    assert (pace.messages, pace.size_of(0, STREAM)) == (1000, 0)
    pace = pace.after(
        bounds, 10, 100, {(0, STREAM): read(10, 1000), (1, STREAM): read(10, 3000), (1, other): read(5, 0)}
    )
    assert [pace.size_of(0, STREAM), pace.size_of(1, STREAM), pace.size_of(7, STREAM)] == [100, 300, 300]
    grown = pace.after(bounds, 10, 100, {(0, STREAM): read(10, 20_000)})
    assert grown.size_of(0, STREAM) == 2000
    assert grown.after(bounds, 10, 100, {(0, STREAM): read(10, 1000)}).size_of(0, STREAM) == 1050


def test_the_sizes_of_a_batch_are_added_up_by_task_and_input() -> None:
    at = {TaskSsp(0, ssp(0)): 0, TaskSsp(0, ssp(1)): 0, TaskSsp(1, ssp(1)): 0}
    ranges = plan_ranges(at, {ssp(0): PartitionOffsets(0, 3), ssp(1): PartitionOffsets(0, 5)}, Pace(99, BYTES), None)
    planned = BatchRanges.group(ranges, (STREAM,))
    assert planned.read({(0, 0): (8, 800), (1, 0): (3, 50)}) == {(0, STREAM): (8, 8, 800), (1, STREAM): (5, 3, 50)}


@given(st.integers(1, 100), st.integers(50, 5000), st.integers(1000, 100_000))
def test_batches_of_offsets_with_gaps_come_to_have_as_many_messages_as_they_may(
    gap: int, most: int, backlog: int
) -> None:
    """One message for every `gap` offsets. No batch has more than the bound, and soon batches have nearly as many."""
    bounds, at = BatchBounds(most, BYTES, 0), TaskSsp(0, ssp(0))
    pace, position, ends = Pace.first(bounds), 0, {ssp(0): PartitionOffsets(0, gap * backlog)}
    counts = []
    while ranges := plan_ranges({at: position}, ends, pace, None):
        planned = BatchRanges.group(ranges, (STREAM,))
        messages = len(range(-(-ranges[at].start // gap), -(-ranges[at].end // gap)))
        counts.append(messages)
        pace = pace.after(bounds, 10, planned.expected(pace), planned.read({(0, 0): (messages, messages)}))
        position = ranges[at].end
        if len(counts) > 20:
            break
    assert max(counts) <= most + 1
    assert len(counts) < 20 or counts[-1] >= most * min(1, 16 / gap) // 2


def test_a_batch_that_was_full_grows_whatever_the_gaps_are() -> None:
    bounds, at = BatchBounds(100_000, BYTES, 10_000), TaskSsp(0, ssp(0))
    pace, ends = Pace.first(bounds), {ssp(0): PartitionOffsets(0, 1 << 40)}
    for number in range(6):
        planned = BatchRanges.group(plan_ranges({at: 0}, ends, pace, None), (STREAM,))
        messages = planned.messages // 50
        pace = pace.after(bounds, 1, planned.expected(pace), planned.read({(0, 0): (messages, messages)}))
        assert pace.messages >= min(bounds.messages, FIRST_MESSAGES * 10 ** (number + 1))


def settle(bounds: BatchBounds, floor_ms: float, message_ms: float, noise: random.Random | None = None) -> list[Pace]:
    """The paces of batches with an endless backlog."""
    paces = [Pace.first(bounds)]
    for _ in range(60):
        messages = paces[-1].messages
        took = (floor_ms + message_ms * messages) * (noise.uniform(0.93, 1.07) if noise else 1)
        paces.append(paces[-1].after(bounds, took, messages, {}))
    return paces


COSTS = {
    "target_ms": st.integers(1, 60_000),
    "most": st.integers(1, 1_000_000),
    "floor_ms": st.floats(0, 20_000),
    "message_ms": st.floats(1e-6, 10_000),
}


@given(**COSTS)
def test_the_size_settles_at_the_target(target_ms: int, most: int, floor_ms: float, message_ms: float) -> None:
    paces = settle(BatchBounds(most, BYTES, target_ms), floor_ms, message_ms)
    sizes = [pace.messages for pace in paces]
    assert all(1 <= size <= most for size in sizes)
    assert len(set(sizes[-20:])) == 1, sizes
    last = sizes[-1]
    took, shortest = floor_ms + message_ms * last, paces[-1].shortest_ms
    assert shortest is not None
    aim = max(target_ms, 2 * shortest)
    assert took <= 1.25 * aim or last == 1
    assert took >= 0.8 * aim or last == most or floor_ms + message_ms * (last + 1) > aim


@given(**COSTS)
def test_the_size_turns_round_at_most_once(target_ms: int, most: int, floor_ms: float, message_ms: float) -> None:
    """It goes down from a first batch that was too large, or up; never up and down in turn."""
    sizes = [pace.messages for pace in settle(BatchBounds(most, BYTES, target_ms), floor_ms, message_ms)]
    signs = [b > a for a, b in pairwise(sizes) if a != b]
    assert sum(a != b for a, b in pairwise(signs)) <= 1, sizes


@given(**COSTS, seed=st.integers(0, 1000))
def test_noise_does_not_make_it_swing(target_ms: int, most: int, floor_ms: float, message_ms: float, seed: int) -> None:
    assume(message_ms * most > target_ms)
    paces = settle(BatchBounds(most, BYTES, target_ms), floor_ms, message_ms, random.Random(seed))
    sizes = [pace.messages for pace in paces[-20:]]
    assert max(sizes) <= 2 * min(sizes) + 1, sizes


def test_slow_messages_are_not_read_by_the_hour() -> None:
    """25 ms a message: after the first batch of 2.5 s, batches take about the 10 s that are asked for."""
    paces = settle(BatchBounds(200_000, BYTES, 10_000), 100, 25)
    assert paces[0].messages == FIRST_MESSAGES
    assert all(300 <= pace.messages <= 500 for pace in paces[2:])


def test_fast_messages_reach_the_most_in_a_few_batches() -> None:
    """3 us a message, as in the keyed fold."""
    sizes = [pace.messages for pace in settle(BatchBounds(200_000, BYTES, 10_000), 80, 0.003)]
    assert sizes[:6] == [100, 1000, 10_000, 100_000, 200_000, 200_000]


def test_a_batch_that_did_not_fill_its_size_does_not_make_it_grow() -> None:
    bounds = BatchBounds(200_000, BYTES, 10_000)
    pace = Pace(1000, BYTES).after(bounds, 50, 999, {})
    assert pace.messages == 1000
    assert pace.after(bounds, 50, 1000, {}).messages == 10_000


def test_without_a_target_batches_have_the_most_messages() -> None:
    bounds = BatchBounds(300, BYTES, 0)
    assert [Pace.first(bounds).messages, Pace.first(bounds).after(bounds, 99_999, 300, {}).messages] == [300, 300]
