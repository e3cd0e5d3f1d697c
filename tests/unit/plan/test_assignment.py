"""Which container each task goes to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.assignment import assign_tasks


def test_tasks_go_where_copies_of_them_are() -> None:
    assert assign_tasks(4, {}, {"a": (2, 3), "b": (0, 1)}) == {0: "b", 1: "b", 2: "a", 3: "a"}


def test_a_host_with_all_copies_does_not_get_all_tasks() -> None:
    found = assign_tasks(6, {}, {"a": range(6), "b": (), "c": ()})
    assert sorted(found.values()) == ["a", "a", "b", "b", "c", "c"]


def test_a_task_stays_where_it_is_whatever_copies_say() -> None:
    assert assign_tasks(2, {0: "a", 1: "b"}, {"a": (1,), "b": (0,)}) == {0: "a", 1: "b"}


def test_the_tasks_of_a_lost_container_go_to_copies_first_then_to_the_least_loaded() -> None:
    homes = {0: "a", 1: "a", 2: "b", 3: "b", 4: "gone", 5: "gone"}
    found = assign_tasks(6, homes, {"a": (5,), "b": (), "c": (4,)})
    assert {task: home for task, home in found.items() if task < 4} == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert found[4] == "c"
    assert found[5] == "c"  # the host with its copy holds its share already


def test_a_container_that_comes_takes_its_share_from_the_others() -> None:
    homes = {0: "a", 1: "a", 2: "a", 3: "b", 4: "b"}
    found = assign_tasks(5, homes, {"a": (), "b": (), "c": ()})
    assert found == {0: "a", 1: "a", 2: "c", 3: "b", 4: "b"}


_NAMES = st.sampled_from("abcd")


@given(
    st.integers(1, 12),
    st.dictionaries(st.integers(0, 11), _NAMES),
    st.dictionaries(_NAMES, st.sets(st.integers(0, 11)), min_size=1),
)
def test_every_task_has_a_living_home_and_new_ones_are_spread(
    tasks: int, homes: dict[int, str], copies: dict[str, set[int]]
) -> None:
    homes = {task: home for task, home in homes.items() if task < tasks}
    found = assign_tasks(tasks, homes, copies)
    assert sorted(found) == list(range(tasks))
    assert set(found.values()) <= copies.keys()
    share = -(-tasks // len(copies))
    assert max(list(found.values()).count(name) for name in copies) <= share
    for name in copies:
        were = [task for task, home in homes.items() if home == name]
        stayed = [task for task in were if found[task] == name]
        assert len(stayed) == min(len(were), share), "only what is above a container's share moves"
