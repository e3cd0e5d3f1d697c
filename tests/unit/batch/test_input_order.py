"""The batch as a value, and the inputs that it reads: bootstrap inputs alone at first, then by priority."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.batch import Batch, TaskSsp
from penstock.batch.portions import BatchPace, BatchRanges, InputOrder, plan_ranges
from penstock.system.base import PartitionOffsets
from penstock.wire.protocol import AttemptCall, EndBatch, Identity, StartRun, dump, load

STREAMS = [SystemStream("m", name) for name in "abc"]
AT = [TaskSsp(n, SystemStreamPartition("m", stream.stream, n)) for stream in STREAMS for n in range(2)]
BYTES = 1 << 40
counts = st.integers(0, 20)
positions = st.fixed_dictionaries(dict.fromkeys(AT, counts))
orders = st.builds(
    InputOrder,
    st.dictionaries(st.sampled_from(STREAMS), st.integers(1, 3)),
    st.frozensets(st.sampled_from(STREAMS), max_size=2),
)


def ends_at(upcoming: dict[TaskSsp, int]) -> dict[SystemStreamPartition, PartitionOffsets]:
    return {at.ssp: PartitionOffsets(0, end) for at, end in upcoming.items()}


@given(orders, st.fixed_dictionaries(dict.fromkeys(AT, counts)), st.integers(1, 30), positions)
def test_every_message_is_read_once_and_in_order(
    order: InputOrder, first: dict[TaskSsp, int], most: int, more: dict[TaskSsp, int]
) -> None:
    """Batch by batch. More messages come after the first one; they move no target."""
    targets = order.targets(ends_at(first))
    at_end = {at: first[at] + more[at] for at in AT}
    reached, upcoming = dict.fromkeys(AT, 0), first
    for _ in range(1000):
        boots = [at for at in AT if at.ssp.system_stream in order.bootstrap and reached[at] < first[at]]
        portions = order.plan(reached, ends_at(upcoming), BatchPace(most, BYTES), None, targets)
        if not portions and upcoming is at_end:
            break
        if boots:
            assert portions.keys() <= set(boots)
            assert all(portion.offsets.end <= first[at] for at, portion in portions.items())
        else:
            ranks = {order.priorities.get(at.ssp.system_stream, 0) for at in portions}
            for at in AT:  # nothing is left of a higher priority than the lowest that is read
                if reached[at] < upcoming[at] and order.priorities.get(at.ssp.system_stream, 0) > min(ranks):
                    assert portions[at].messages == upcoming[at] - reached[at]
            for own in BatchRanges.group(portions, tuple(STREAMS)).by_task.values():
                of_task = [-order.priorities.get(STREAMS[index], 0) for index, _ in own]
                assert of_task == sorted(of_task), "a task reads a higher priority first"
        for at, portion in portions.items():
            assert portion.offsets.start == reached[at]
            reached[at] += min(portion.messages, len(portion.offsets))
        upcoming = at_end
    assert reached == at_end


@given(positions, st.fixed_dictionaries({at: st.integers(20, 40) for at in AT}), st.integers(1, 30))
def test_unordered_inputs_share_a_batch(reached: dict[TaskSsp, int], upcoming: dict[TaskSsp, int], most: int) -> None:
    ends, pace = ends_at(upcoming), BatchPace(most, BYTES)
    assert InputOrder().plan(reached, ends, pace, None, {}) == plan_ranges(reached, ends, pace, None)


def test_a_stream_that_became_shorter_holds_nobody_up() -> None:
    order = InputOrder(bootstrap=frozenset({STREAMS[0]}))
    targets = order.targets(ends_at(dict.fromkeys(AT, 9)))
    shorter = {at: 5 if at.ssp.system_stream == STREAMS[0] else 9 for at in AT}
    found = order.plan(dict.fromkeys(AT, 5), ends_at(shorter), BatchPace(100, BYTES), None, targets)
    assert found.keys() == set(AT[2:])


def test_calls_carry_the_whole_batch() -> None:
    identity, batch = Identity("i", 3), Batch(7, 2, 1_700_000_000_000, "drain")
    for request in (StartRun(batch), EndBatch(batch, {0: {1: "t"}})):
        assert load(type(request), dump(request)) == request
    attempt = AttemptCall(identity, batch, 1, [0, 2])
    assert load(AttemptCall, dump(attempt)) == attempt


def test_a_run_that_is_repeated_keeps_what_was_chosen() -> None:
    batch = Batch(7, 1, 1_700_000_000_000)
    assert batch.next_run() == Batch(7, 2, 1_700_000_000_000)
    assert batch.last_ended == 6
