"""The commits of a container: what a snapshot takes, what an upload brings, and what is left of one that fails."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.errors import ContainerLostError, PenstockError, RetryableError
from penstock.state.backends import base_backup
from penstock.state.backends.base import BackendContext
from penstock.state.backends.changelog_files.backup import ChangelogFilesBackup
from penstock.state.backends.changelog_files.factory import ChangelogFilesFactory
from tests.support.stores.hooked_store import Call
from tests.support.tools.fixtures import fixture_of
from tests.support.world.one_container import TASKS, OneContainer

ENGINES = ("memory", "rocksdb")


container = fixture_of(OneContainer, params=ENGINES)


on_disk = fixture_of(OneContainer, "rocksdb")


def fail_puts(container: OneContainer, error: BaseException, times: int) -> None:
    """So many uploads of objects fail."""
    left = iter(range(times))

    def before(call: Call, key: str) -> None:
        if call == "put" and next(left, None) is not None:
            raise error

    container.store.before = before


@pytest.mark.parametrize("backend", ["changelog-files", "blob"])
def test_a_checkpoint_has_what_the_snapshot_took_and_nothing_later(container: OneContainer, backend: str) -> None:
    container.keys["stores.backup.factories"] = container.keys["stores.restore.factories"] = backend
    container.enter()
    container.run({"a": 1, "b": 2}, {"c": 3})
    begun = container.snapshot()
    container.run({"a": 10}, {"d": 4})
    saved = container.upload(begun)
    assert {task: set(own) for task, own in saved.markers.items()} == {"0": {backend}, "1": {backend}}
    container.clean_up(saved)
    container.restart()
    container.enter(saved)
    assert container.content() == saved.content == {0: {"a": 1, "b": 2}, 1: {"c": 3}}
    container.run({"a": 100})
    later = container.commit()
    container.restart()
    container.enter(later)
    assert container.content() == {0: {"a": 101, "b": 2}, 1: {"c": 3}}
    assert container.content("last") == {0: {"a": 100, "b": 2}, 1: {"c": 3}}


def test_changes_are_in_one_commit_only(container: OneContainer) -> None:
    epoch = container.enter()
    container.run({"a": 1})
    assert epoch.pending_bytes > 0
    container.commit()
    assert epoch.pending_bytes == 0
    second = container.commit()
    container.restart()
    container.enter(second)
    assert container.content() == {0: {"a": 1}, 1: {}}


def test_an_upload_that_failed_may_be_asked_for_again(container: OneContainer) -> None:
    """The changes of the snapshot are still there, and the stores count as good."""
    container.enter()
    container.run({"a": 1}, {"b": 2})
    begun = container.snapshot()
    fail_puts(container, RetryableError("the store is away"), 1)
    with pytest.raises(RetryableError, match="the store is away"):
        container.upload(begun)
    saved = container.upload(begun)
    container.clean_up(saved)
    container.restart()
    container.enter(saved)
    assert container.content() == saved.content == {0: {"a": 1}, 1: {"b": 2}}


@pytest.mark.parametrize(
    ("error", "stays"),
    [(RetryableError("away"), True), (ContainerLostError("torn"), False), (PenstockError("no"), False)],
)
def test_after_a_failed_upload_no_store_stays_open(on_disk: OneContainer, error: PenstockError, *, stays: bool) -> None:
    """A store may be the reason. One that only waited for the object store goes back to its checkpoint."""
    on_disk.enter()
    on_disk.run({"a": 1})
    saved = on_disk.commit()
    on_disk.run({"a": 10})
    begun = on_disk.snapshot()
    fail_puts(on_disk, error, 1000)
    with pytest.raises(type(error), match=str(error)):
        on_disk.upload(begun)
    on_disk.store.heal()
    epoch = on_disk.enter(saved)
    assert (epoch.in_place == (0, 1)) == stays
    assert bool(on_disk.state_read()) != stays
    assert on_disk.content() == saved.content == {0: {"a": 1}, 1: {}}


def test_a_commit_that_does_not_come_into_the_log_changes_nothing(container: OneContainer) -> None:
    """The driver dies before its record. What was uploaded does not count, nor does it stand in the way."""
    container.enter()
    container.run({"a": 1})
    saved = container.commit()
    container.run({"a": 10})
    container.upload(container.snapshot())
    container.enter(saved)
    assert container.content() == saved.content == {0: {"a": 1}, 1: {}}
    container.run({"a": 100})
    again = container.commit()
    container.restart()
    container.enter(again)
    assert container.content() == {0: {"a": 101}, 1: {}}


def test_the_clean_up_of_another_checkpoint_is_none_of_the_snapshots(on_disk: OneContainer) -> None:
    """A call that comes late: the stores are not at the checkpoint that it names."""
    on_disk.enter()
    on_disk.run({"a": 1})
    first = on_disk.commit()
    on_disk.run({"a": 10})
    on_disk.snapshot()
    on_disk.clean_up(first)
    on_disk.enter(first)
    assert on_disk.content() == first.content == {0: {"a": 1}, 1: {}}


def test_a_copy_that_cannot_be_made_loses_the_container(on_disk: OneContainer) -> None:
    """Where it should go is a file. The tasks go on with their batches; the next epoch restores them."""
    on_disk.keys["job.host-affinity.enabled"] = True
    on_disk.enter()
    on_disk.run({"a": 1})
    saved = on_disk.commit()
    for live in on_disk.local("live-*"):
        number = int(saved.id.partition("-")[0]) + 1
        (live.parent / f"{live.name.replace('live', 'making', 1)}-{number}-0").write_bytes(b"")
    on_disk.run({"a": 10})
    begun = on_disk.snapshot()
    with pytest.raises(ContainerLostError, match=r"store `.*` of task \d could not be copied"):
        on_disk.upload(begun)
    on_disk.run({"a": 100})
    assert on_disk.content()[0] == {"a": 111}
    assert on_disk.enter(saved).in_place == ()
    assert on_disk.content() == saved.content == {0: {"a": 1}, 1: {}}


class Refusing(ChangelogFilesFactory):
    """A user's backend that may refuse a snapshot."""

    refuses = False

    def backup_manager(self, context: BackendContext) -> ChangelogFilesBackup:
        manager = super().backup_manager(context)
        snapshot = manager.snapshot

        def refusing(*given: Any) -> None:
            if Refusing.refuses:
                raise PenstockError("no snapshot now")
            snapshot(*given)

        setattr(manager, "snapshot", refusing)  # noqa: B010
        return manager


def test_a_snapshot_that_fails_holds_up_no_batch(on_disk: OneContainer) -> None:
    on_disk.keys["stores.backup.factories"] = f"{__name__}:Refusing"
    epoch = on_disk.enter()
    on_disk.run({"a": 1})
    Refusing.refuses = True
    try:
        with pytest.raises(PenstockError, match="no snapshot now"):
            on_disk.snapshot()
    finally:
        Refusing.refuses = False
    for task in epoch.tasks.values():
        task.await_copies(0)


def test_a_checkpoint_waits_for_the_base_of_a_store_that_no_other_backend_has(
    container: OneContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changelog stream begins with a base, which is made in the background, even if it is a small one."""
    monkeypatch.setattr(base_backup, "SMALL_BASE_SECONDS", 0)
    container.enter()
    container.run({"a": 1}, {"b": 2})
    saved = container.commit()
    container.restart()
    container.keys["stores.backup.factories"] = "changelog-stream"
    container.enter(saved)
    container.run({"a": 10})
    based = container.upload(container.snapshot())
    for task in range(TASKS):
        assert set(based.markers[str(task)]["changelog-stream"]) == {"sums", "last"}
    container.clean_up(based)
    container.restart()
    container.keys["stores.restore.factories"] = "changelog-stream"
    container.enter(based)
    assert container.content() == based.content == {0: {"a": 11}, 1: {"b": 2}}


def test_a_host_keeps_the_copies_of_the_last_checkpoint_alone(on_disk: OneContainer) -> None:
    """Until the last one is in the log, either may be restored."""
    on_disk.keys["job.host-affinity.enabled"] = True

    def copied() -> set[str]:
        return {path.stem for path in on_disk.local("copy-*")}

    on_disk.enter()
    on_disk.run({"a": 1}, {"b": 1})
    saved = on_disk.commit()
    on_disk.run({"a": 10}, {"b": 10})
    begun = on_disk.snapshot()
    unknown = on_disk.upload(begun)
    assert copied() == {f"copy-{saved.id}", f"copy-{unknown.id}"}
    on_disk.damage("")  # nobody reads there
    on_disk.restart()
    on_disk.enter(saved)
    assert on_disk.content() == saved.content
    on_disk.damage("")  # flips the bits back
    on_disk.run({"a": 100}, {"b": 100})
    later = on_disk.commit()
    assert copied() == {f"copy-{later.id}"}
    assert on_disk.local("making-*") == []


def test_commits_may_wait_for_each_other_but_not_for_batches(container: OneContainer) -> None:
    """An upload is held up; batches go on, and none of theirs is in its checkpoint."""
    container.enter()
    container.run({"a": 1})
    begun, go_on = container.snapshot(), threading.Event()

    def wait(call: Call, key: str) -> None:
        assert call != "put" or go_on.wait(60)

    container.store.before = wait
    saved: list[Any] = []
    uploading = threading.Thread(target=lambda: saved.append(container.upload(begun)))
    uploading.start()
    for _ in range(3):
        container.run({"a": 10})
    go_on.set()
    uploading.join(60)
    container.clean_up(saved[0])
    container.restart()
    container.enter(saved[0])
    assert container.content() == {0: {"a": 1}, 1: {}}
