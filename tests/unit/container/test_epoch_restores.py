"""The restore of a container's tasks: from each kind of place, and what is left of one that fails."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import CorruptError, PenstockError
from tests.support.stores.hooked_store import Call
from tests.support.tools.fixtures import fixture_of
from tests.support.world.one_container import OneContainer, Saved

MESSAGES = {"a": 1, "b": 2}, {"c": 3}
CONTENT = {0: {"a": 1, "b": 2}, 1: {"c": 3}}
BOTH = "changelog-files,blob"


container = fixture_of(OneContainer, params=["memory", "rocksdb"])


on_disk = fixture_of(OneContainer, "rocksdb")


def saved(container: OneContainer) -> Saved:
    """A checkpoint with CONTENT, of a process that has ended."""
    container.enter()
    container.run(*MESSAGES)
    made = container.commit()
    container.restart()
    return made


def test_without_a_checkpoint_every_store_is_empty(on_disk: OneContainer) -> None:
    """Copies of an earlier one on the host are removed."""
    on_disk.keys["job.host-affinity.enabled"] = True
    saved(on_disk)
    assert on_disk.local("copy-*")
    epoch = on_disk.enter()
    assert (on_disk.content(), on_disk.content("last")) == ({0: {}, 1: {}}, {0: {}, 1: {}})
    assert (epoch.in_place, on_disk.local("copy-*"), on_disk.state_read()) == ((), [], [])


@pytest.mark.parametrize("backend", ["changelog-files", "blob", "changelog-stream"])
def test_from_a_backend(container: OneContainer, backend: str) -> None:
    container.keys["stores.backup.factories"] = container.keys["stores.restore.factories"] = backend
    made = saved(container)
    epoch = container.enter(made)
    assert (container.content(), container.content("last"), epoch.notes) == (CONTENT, CONTENT, ())
    assert bool(container.state_read()) == (backend != "changelog-stream")
    assert all(instance.last_ended == 1 for instance in epoch.tasks.values())


def test_a_store_that_the_checkpoint_does_not_cover_is_empty(container: OneContainer) -> None:
    """It was reset, or is new."""
    made = saved(container)
    container.enter(made, covered=["sums"])
    assert (container.content(), container.content("last")) == (CONTENT, {0: {}, 1: {}})
    container.run({"a": 10})
    again = container.commit()
    container.restart()
    container.enter(again)
    assert container.content() == again.content
    assert container.content("last") == {0: {"a": 10}, 1: {}}


def test_from_the_copy_on_the_host(container: OneContainer) -> None:
    container.keys["job.host-affinity.enabled"] = True
    made = saved(container)
    container.damage("")  # nobody reads there
    epoch = container.enter(made)
    assert (container.content(), container.content("last"), epoch.in_place) == (CONTENT, CONTENT, ())
    container.run({"a": 10})
    later = container.commit()
    container.restart()
    container.enter(later)
    assert container.content() == later.content


def test_a_copy_that_is_damaged_or_of_another_checkpoint_is_not_used(on_disk: OneContainer) -> None:
    on_disk.keys["job.host-affinity.enabled"] = True
    on_disk.enter()
    on_disk.run(*MESSAGES)
    first = on_disk.commit()
    on_disk.run({"a": 10})
    second = on_disk.commit()
    on_disk.restart()
    on_disk.enter(first)
    assert on_disk.content() == CONTENT
    assert on_disk.state_read()
    on_disk.commit()
    on_disk.restart()
    for file in on_disk.local("copy-*/CURRENT"):
        file.write_bytes(b"damaged")
    on_disk.enter(second)
    assert on_disk.content() == second.content
    assert on_disk.state_read()


@pytest.mark.parametrize("backend", ["changelog-files", "blob"])
def test_from_the_stores_that_the_process_has_open(on_disk: OneContainer, backend: str) -> None:
    """They go back to their checkpoint, and nothing is read."""
    on_disk.keys["stores.backup.factories"] = on_disk.keys["stores.restore.factories"] = backend
    on_disk.enter()
    on_disk.run(*MESSAGES)
    made = on_disk.commit()
    for _ in range(2):
        on_disk.run({"a": 10, "new": 1})
        folders = on_disk.local("live-*")
        epoch = on_disk.enter(made)
        assert (epoch.in_place, on_disk.state_read()) == ((0, 1), [])
        assert (on_disk.content(), on_disk.content("last")) == (CONTENT, CONTENT)
        assert len(on_disk.local("live-*")) == len(folders), "no folder of an older epoch stays"
    on_disk.run({"a": 10})
    later = on_disk.commit()
    on_disk.restart()
    on_disk.enter(later)
    assert on_disk.content() == later.content


def test_from_the_next_backend_if_one_is_damaged(on_disk: OneContainer) -> None:
    """The damaged backend begins again with a base. Until then the open stores are not at a checkpoint of it: the next
    epoch restores them."""
    on_disk.keys |= {"stores.backup.factories": BOTH, "stores.restore.factories": BOTH}
    made = saved(on_disk)
    assert on_disk.damage(".delta") > 0
    epoch = on_disk.enter(made)
    assert on_disk.content() == CONTENT
    assert len(epoch.notes) == 4
    assert all("blob was used instead" in note for note in epoch.notes)
    assert on_disk.enter(made).in_place == ()
    on_disk.run({"a": 10})
    later = on_disk.commit()
    on_disk.run({"a": 100})
    later = on_disk.commit()
    for backend in BOTH.split(","):
        on_disk.restart()
        on_disk.keys["stores.restore.factories"] = backend
        if all("sums" in own.get(backend, {}) for own in later.markers.values()):
            on_disk.enter(later)
            assert on_disk.content() == later.content, backend


def test_a_checkpoint_that_no_backend_can_restore_leaves_nothing(container: OneContainer) -> None:
    """Nothing is left open or on the disk, and once it is repaired, the same process restores it."""
    made = saved(container)
    container.damage(".delta")
    with pytest.raises(CorruptError):
        container.enter(made)
    assert container.local("live-*") == []
    container.damage(".delta")  # flips the bit back
    container.enter(made)
    assert container.content() == CONTENT


def test_a_restore_that_is_given_up_leaves_nothing(container: OneContainer) -> None:
    """A newer epoch has come meanwhile."""
    made, cancelled = saved(container), threading.Event()

    def cancel(call: Call, key: str) -> None:
        if call == "get" and "/state/" in key:
            cancelled.set()

    container.store.before = cancel
    with pytest.raises(PenstockError):
        container.enter(made, cancelled=cancelled)
    container.store.heal()
    assert container.local("live-*") == []
    container.enter(made)
    assert container.content() == CONTENT
