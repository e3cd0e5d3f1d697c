"""The partitions that fill each store, and the stores filled together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.graph.stores import SideInputs, SideStream, StoreSpec
from penstock.side.fill.parts import SidePart, groups_of, partitions_for, parts_of, streams_of


def spec(name: str, *streams: str, broadcast: bool = False) -> StoreSpec:
    key, value = ps.String(), ps.Json()
    side = tuple(SideStream(SystemStream("m", stream), key, value) for stream in streams)
    return StoreSpec(name, key, value, side=SideInputs(side, broadcast=broadcast))


def ssp(stream: str, partition: int) -> SystemStreamPartition:
    return SystemStreamPartition("m", stream, partition)


COUNTS = {SystemStream("m", stream): 3 for stream in "abcd"}


def test_a_task_has_its_partition_of_every_stream() -> None:
    found = parts_of([spec("one", "a", "b"), StoreSpec("own", ps.String(), ps.Json())], [0, 2], COUNTS, 3)
    assert [(part.spec.name, part.task, part.ssps) for part in found] == [
        ("one", task, (ssp("a", task), ssp("b", task))) for task in (0, 2)
    ]


def test_a_broadcast_store_has_everything_once() -> None:
    (part,) = parts_of([spec("all", "a", broadcast=True)], [0, 2], COUNTS, 3)
    assert part.task is None
    assert part.ssps == tuple(ssp("a", number) for number in range(3))


def test_streams_are_those_of_all_stores() -> None:
    assert streams_of([spec("one", "a", "b"), spec("two", "b")]) == {SystemStream("m", "a"), SystemStream("m", "b")}


def test_a_broadcast_store_brings_the_parts_of_all_tasks_together() -> None:
    parts = parts_of([spec("one", "a"), spec("all", "a", broadcast=True), spec("other", "b")], [0, 1], COUNTS, 3)
    groups = {frozenset((part.spec.name, part.task) for part in group) for group in groups_of(parts)}
    assert groups == {
        frozenset({("one", 0), ("one", 1), ("all", None)}),
        frozenset({("other", 0)}),
        frozenset({("other", 1)}),
    }


@given(st.lists(st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), st.booleans()), max_size=6))
def test_groups_share_no_partition_and_leave_nothing_out(declared: list[tuple[set[str], bool]]) -> None:
    specs = [spec(f"s{n}", *sorted(streams), broadcast=wide) for n, (streams, wide) in enumerate(declared)]
    parts = parts_of(specs, [0, 1], COUNTS, 3)
    groups = groups_of(parts)
    assert sorted(map(_place, parts)) == sorted(_place(part) for group in groups for part in group)
    owners: dict[SystemStreamPartition, int] = {}
    for number, group in enumerate(groups):
        for part in group:
            for each in part.ssps:
                assert owners.setdefault(each, number) == number
    for group in groups:  # each is connected: it cannot be cut in two
        reached, left = set(group[0].ssps), list(group[1:])
        while near := [part for part in left if reached.intersection(part.ssps)]:
            reached.update(each for part in near for each in part.ssps)
            left = [part for part in left if part not in near]
        assert left == []


def _place(part: SidePart) -> tuple[str, int]:
    return part.spec.name, -1 if part.task is None else part.task


@given(st.integers(0, 2**31 - 1), st.integers(1, 12), st.integers(1, 12))
def test_a_task_reads_exactly_the_partitions_that_may_have_its_keys(hashed: int, partitions: int, tasks: int) -> None:
    assert hashed % partitions in partitions_for(hashed % tasks, partitions, tasks)
    for task in range(tasks):
        possible = {h % partitions for h in range(partitions * tasks) if h % tasks == task}
        assert set(partitions_for(task, partitions, tasks)) == possible
