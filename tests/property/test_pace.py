"""The size of a batch: fair shares, bounds in messages and bytes, and a size that settles at a target duration."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.batch import TaskSsp
from penstock.batch.portions import (
    FIRST_MESSAGES,
    BatchBounds,
    BatchPace,
    InputRead,
    PortionRead,
    fair_shares,
    plan_ranges,
    read_by_input,
)
from penstock.system.base import OffsetRange, PartitionOffsets

STREAM = SystemStream("local", "a")
BYTES = 1 << 40
WANTED = st.lists(st.integers(0, 1000), max_size=20)


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
def test_batches_of_bounded_messages_and_bytes(inputs: list[tuple[int, float]], messages: int, size_limit: int) -> None:
    sizes = {(task, STREAM): size for task, (_, size) in enumerate(inputs)}
    positions = {TaskSsp(task, ssp(task)): 7 for task in range(len(inputs))}
    ends = {ssp(task): PartitionOffsets(0, 7 + backlog) for task, (backlog, _) in enumerate(inputs)}
    portions = plan_ranges(positions, ends, BatchPace(messages, size_limit, sizes), None)
    assert portions.keys() == positions.keys()
    for at, portion in portions.items():
        assert portion.offsets == OffsetRange(at.ssp, 7, ends[at.ssp].upcoming)
        assert 1 <= portion.messages <= len(portion.offsets)
    assert sum(portion.messages for portion in portions.values()) <= max(messages, len(portions))
    one_each = sum(size for _, size in inputs)
    assert sum(each.messages * sizes[at.task, STREAM] for at, each in portions.items()) <= size_limit + one_each
    if messages >= sum(backlog for backlog, _ in inputs) and size_limit >= sum(b * (s + 1) for b, s in inputs):
        assert all(portion.messages == len(portion.offsets) for portion in portions.values())


def test_a_backlog_takes_nothing_from_the_others() -> None:
    positions = {TaskSsp(task, ssp(task)): 0 for task in range(200)}
    ends = {ssp(n): PartitionOffsets(0, 10_000_000 if n == 5 else 10) for n in range(200)}
    portions = plan_ranges(positions, ends, BatchPace(5000, BYTES), None)
    assert [portions[at].messages for at in positions] == [10 if n != 5 else 5000 - 199 * 10 for n in range(200)]


def test_sizes_are_known_by_input_or_guessed_by_the_largest_of_the_stream() -> None:
    bounds = BatchBounds(1000, 10_000, 0)
    other = SystemStream("local", "b")
    pace = BatchPace.first(bounds)
    assert (pace.messages, pace.size_of(0, STREAM)) == (1000, 0)
    pace = pace.after(
        bounds,
        10,
        100,
        {(0, STREAM): InputRead(10, 1000), (1, STREAM): InputRead(10, 3000), (1, other): InputRead(5, 0)},
    )
    assert [pace.size_of(0, STREAM), pace.size_of(1, STREAM), pace.size_of(7, STREAM)] == [100, 300, 300]
    grown = pace.after(bounds, 10, 100, {(0, STREAM): InputRead(10, 20_000)})
    assert grown.size_of(0, STREAM) == 2000
    assert grown.after(bounds, 10, 100, {(0, STREAM): InputRead(10, 1000)}).size_of(0, STREAM) == 1050


def test_the_sizes_of_a_batch_are_added_up_by_task_and_input() -> None:
    read = {
        TaskSsp(0, ssp(0)): PortionRead(9, 3, 500),
        TaskSsp(0, ssp(1)): PortionRead(9, 5, 300),
        TaskSsp(1, ssp(1)): PortionRead(4, 3, 50),
    }
    assert read_by_input(read) == {(0, STREAM): (8, 800), (1, STREAM): (3, 50)}


def test_a_batch_without_messages_changes_no_size() -> None:
    """It read over a gap, however long that took."""
    bounds = BatchBounds(200_000, BYTES, 10_000)
    pace = BatchPace(1000, BYTES, shortest_ms=20)
    assert [pace.after(bounds, took, 0, {}).messages for took in (1, 60_000)] == [1000, 1000]


def settle(
    bounds: BatchBounds, floor_ms: float, message_ms: float, noise: random.Random | None = None
) -> list[BatchPace]:
    """The paces of batches with an endless backlog."""
    paces = [BatchPace.first(bounds)]
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
    pace = BatchPace(1000, BYTES).after(bounds, 50, 999, {})
    assert pace.messages == 1000
    assert pace.after(bounds, 50, 1000, {}).messages == 10_000


def test_without_a_target_batches_have_the_most_messages() -> None:
    bounds = BatchBounds(300, BYTES, 0)
    assert [BatchPace.first(bounds).messages, BatchPace.first(bounds).after(bounds, 99_999, 300, {}).messages] == [
        300,
        300,
    ]
