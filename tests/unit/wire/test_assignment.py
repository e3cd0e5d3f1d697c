"""The assignment of tasks to containers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.containers import Assignment, ContainerPlace, Distance, assign, assign_tasks


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
def test_every_task_has_a_living_home_spread(tasks: int, homes: dict[int, str], copies: dict[str, set[int]]) -> None:
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


# -- standbys --


def places(*names: str) -> dict[str, ContainerPlace]:
    """Containers named `host/executor/number`."""
    return {name: ContainerPlace(name.split("/")[0], name.rpartition("/")[0]) for name in names}


def test_a_standby_is_on_another_host_if_there_is_one_else_on_another_executor() -> None:
    where = places("h1/a/1", "h1/a/2", "h1/b/1", "h2/c/1")
    found = assign(4, Assignment(), where, 1)
    for task, (standby,) in found.standbys.items():
        assert where[found.homes[task]].distance(where[standby]) is Distance.HOSTS
    one_host = places("h1/a/1", "h1/a/2", "h1/b/1")
    found = assign(3, Assignment(), one_host, 1)
    for task, (standby,) in found.standbys.items():
        assert one_host[found.homes[task]].distance(one_host[standby]) is Distance.EXECUTORS
    found = assign(2, Assignment(), places("h1/a/1", "h1/a/2"), 1)
    assert sorted(own[0] for own in found.standbys.values()) == ["h1/a/1", "h1/a/2"]


def test_one_container_has_no_standbys() -> None:
    assert assign(2, Assignment(), places("h/a/1"), 1).standbys == {0: (), 1: ()}


def test_without_standbys_it_is_as_it_was() -> None:
    before = Assignment({0: "h/a/1", 1: "gone"})
    found = assign(3, before, places("h/a/1", "h/b/1"))
    assert found == Assignment({0: "h/a/1", 1: "h/b/1", 2: "h/a/1"})


def test_a_lost_container_leaves_its_tasks_to_their_standbys() -> None:
    where = places("h1/a/1", "h2/b/1", "h3/c/1")
    before = assign(6, Assignment(), where, 1)
    lost = before.homes[0]
    left = {name: place for name, place in where.items() if name != lost}
    assert before.survives_with(left)
    after = assign(6, before, left, 1)
    for task, home in before.homes.items():
        assert after.homes[task] == (before.standbys[task][0] if home == lost else home)
        assert after.standbys[task] == tuple(name for name in left if name != after.homes[task])


def test_a_container_that_is_nothing_any_more_is_called_once_more() -> None:
    where = places("h1/a/1", "h1/b/1")
    before = assign(1, Assignment({0: "h1/a/1"}), where, 1)
    assert before.standbys == {0: ("h1/b/1",)}
    with_another = places("h1/a/1", "h1/b/1", "h2/c/1")
    after = assign(1, before, with_another, 1)
    assert after.standbys == {0: ("h2/c/1",)}
    assert [name for name in with_another if after.concerns(name)] == list(with_another)
    then = assign(1, after, with_another, 1)
    assert [name for name in with_another if then.concerns(name)] == ["h1/a/1", "h2/c/1"]
    assert assign(1, before, places("h1/a/1", "h2/c/1"), 1).leaving == frozenset(), "it is lost"


def test_tasks_move_to_a_newcomer_only_once_its_standbys_are_ready() -> None:
    where = places("h1/a/1", "h2/b/1")
    before = Assignment({0: "h1/a/1", 1: "h1/a/1"}, {0: (), 1: ()})
    came = assign(2, before, where, 1)
    assert came.homes == before.homes
    assert came.standbys == {0: ("h2/b/1",), 1: ("h2/b/1",)}
    assert assign(2, came, where, 1, {1: ["h1/a/1"]}) == came
    moved = assign(2, came, where, 1, {0: ["h2/b/1"], 1: ["h2/b/1"]})
    assert moved.homes == {0: "h1/a/1", 1: "h2/b/1"}
    assert moved.standbys == {0: ("h2/b/1",), 1: ("h1/a/1",)}


def test_without_a_container_for_a_task_and_its_standbys_not_all_survive() -> None:
    now = Assignment({0: "a", 1: "b"}, {0: ("b",), 1: ("a",)})
    assert now.survives_with({"a"})
    assert not now.survives_with(set())
    assert not Assignment({0: "a", 1: "b"}, {0: ("b",), 1: ("c",)}).survives_with({"a"})
    assert not Assignment().survives_with({"a"}), "nothing is assigned yet"


@given(
    st.integers(1, 12),
    st.integers(1, 2),
    st.lists(st.sampled_from(["h1/a/1", "h1/a/2", "h1/b/1", "h2/c/1", "h3/d/1"]), min_size=1, unique=True),
    st.lists(st.integers(0, 4), max_size=4),
)
def test_standbys_are_apart_from_tasks_and_settle(tasks: int, count: int, names: list[str], losses: list[int]) -> None:
    where = places(*names)
    now = assign(tasks, Assignment(), where, count)
    for loss in losses:
        if len(where) > 1:
            where.pop(sorted(where)[loss % len(where)])
        survives, before = now.survives_with(where), now
        now = assign(tasks, now, where, count)
        for task, home in now.homes.items():
            assert home in where
            assert home not in now.standbys[task]
            assert len(now.standbys[task]) == min(count, len(where) - 1)
            was = before.homes[task]
            assert home == was or was not in where
            assert not survives or home == was or home in before.standbys[task]
        settled = assign(tasks, now, where, count)
        assert settled.homes == now.homes
        assert assign(tasks, settled, where, count) == settled
        balanced = assign(tasks, settled, where, count, settled.standbys)
        share = -(-tasks // len(where))
        assert max(list(balanced.homes.values()).count(name) for name in where) <= share
