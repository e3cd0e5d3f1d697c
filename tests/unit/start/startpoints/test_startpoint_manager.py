"""Requests in the metadata store: write, read, delete, expiry, fan-out to tasks; and starts that cannot take them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from penstock.api.requests import Startpoint, StartpointOldest, StartpointSpecific, StartpointUpcoming
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import TaskSsp
from penstock.errors import ConfigError
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.start.startpoint_manager import TTL_MS, StartpointManager
from penstock.start.startpoint_request import CLOCKS_DIFFER_MS, task_name
from penstock.start.startpoints import counting_requests
from penstock.testing.faulty_store import FaultyStore
from tests.support.world.timed_job import TimedWorld, steps

SSP = SystemStreamPartition
PATHS = JobPaths("flights", "1")
NOW = 1_700_000_000_000
ONE = SSP("local", "dep.flights", 3)
OTHER = SSP("local", "dep.flights", 4)
TASK = task_name(3)


def at(offset: int, created: int = NOW) -> Startpoint:
    """A startpoint at an offset."""
    return StartpointSpecific(str(offset), creation_timestamp=created)


@pytest.fixture
def objects(tmp_path: Path) -> FileObjectStore:
    """The job root."""
    return FileObjectStore(tmp_path)


@pytest.fixture
def manager(objects: FileObjectStore) -> StartpointManager:
    """At `NOW`."""
    return StartpointManager(objects, PATHS, now_ms=lambda: NOW)


def test_written_read_deleted_key_by_key(manager: StartpointManager) -> None:
    manager.write_startpoint(ONE, at(1))
    manager.write_startpoint(ONE, at(2), TASK)
    manager.write_startpoint(OTHER, at(3))
    assert manager.read_startpoint(ONE) == at(1)
    assert manager.read_startpoint(ONE, TASK) == at(2)
    assert manager.read_startpoint(OTHER) == at(3)
    assert manager.read_startpoint(OTHER, TASK) is None
    assert [request.startpoint for request in manager.delete_startpoint(ONE)] == [at(1)]
    assert manager.read_startpoint(ONE) is None
    assert manager.read_startpoint(ONE, TASK) == at(2), "each key is its own"
    assert manager.delete_startpoint(ONE) == ()


def test_requests_lie_under_samzas_namespace_and_key(manager: StartpointManager, tmp_path: Path) -> None:
    request = manager.write_startpoint(ONE, at(1), TASK)
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file.parent == tmp_path / "flights-1" / "metadata" / "samza-startpoint-v1"
    assert file.name == f"local.dep.flights.3.Partition 3%2F{request.uuid}"


def test_the_one_made_last_counts_in_whatever_order_they_came(manager: StartpointManager) -> None:
    manager.write_startpoint(ONE, at(2, NOW + 2))
    manager.write_startpoint(ONE, at(1, NOW + 1))
    assert manager.read_startpoint(ONE) == at(2, NOW + 2)
    assert len(manager.requests()) == 2


def test_an_expired_one_is_not_read_and_still_there(manager: StartpointManager) -> None:
    manager.write_startpoint(ONE, at(1, NOW - TTL_MS + 1))
    assert manager.read_startpoint(ONE) == at(1, NOW - TTL_MS + 1)
    manager.write_startpoint(OTHER, at(1, NOW - TTL_MS))
    assert manager.read_startpoint(OTHER) is None
    assert len(manager.requests()) == 2


@pytest.mark.parametrize("ahead", [CLOCKS_DIFFER_MS + 1, 10 * TTL_MS, 2**63 - 1 - NOW])
def test_one_from_the_future_is_refused_only(manager: StartpointManager, objects: FileObjectStore, ahead: int) -> None:
    with pytest.raises(ConfigError, match="in the future by the clock of this host"):
        manager.write_startpoint(ONE, at(1, NOW + ahead))
    assert manager.requests() == ()
    elsewhere = StartpointManager(objects, PATHS, now_ms=lambda: NOW + ahead)
    elsewhere.write_startpoint(ONE, at(1, NOW + ahead))  # its clock was wrong
    assert manager.read_startpoint(ONE) == at(1, NOW + ahead), "it counts as long as it is the only one"
    manager.write_startpoint(ONE, at(2, NOW - 1))
    assert manager.read_startpoint(ONE) == at(2, NOW - 1)
    manager.write_startpoint(ONE, at(3, NOW + CLOCKS_DIFFER_MS))
    assert manager.read_startpoint(ONE) == at(3, NOW + CLOCKS_DIFFER_MS), "clocks may differ a little"


class Newest(StartpointOldest):
    """A kind of an application's own."""


def test_nothing_is_written_that_a_start_could_not_read(manager: StartpointManager) -> None:
    with pytest.raises(ConfigError, match="an object of Newest"):
        manager.write_startpoint(ONE, Newest(creation_timestamp=NOW))
    with pytest.raises(ConfigError):
        manager.write_startpoint(SSP("local", "a", -1), at(1))
    assert manager.read() == ((), ())


def test_a_newer_one_is_never_deleted_unread(manager: StartpointManager, objects: FileObjectStore) -> None:
    """Whoever deletes names what it read."""
    manager.write_startpoint(ONE, at(1))
    read = manager.requests()
    newer = StartpointManager(objects, PATHS, now_ms=lambda: NOW).write_startpoint(ONE, at(2, NOW + 1))
    manager.delete(read)
    assert manager.requests() == (newer,)
    manager.delete(read)
    assert manager.requests() == (newer,), "idempotent"


def test_of_two_that_are_written_in_the_same_millisecond_the_later_one_counts(manager: StartpointManager) -> None:
    for n in range(50):
        manager.write_startpoint(ONE, at(n))
        assert manager.read_startpoint(ONE) == at(n)


def test_two_operators_at_once(manager: StartpointManager) -> None:
    """All that was written is there, and everybody sees the same one count, although they were made at once."""
    offsets = range(24)
    threads = [threading.Thread(target=manager.write_startpoint, args=(ONE, at(n))) for n in offsets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = manager.requests()
    assert {request.startpoint for request in found} == {at(n) for n in offsets}
    assert manager.read_startpoint(ONE) == max(found, key=lambda request: request.uuid).startpoint


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("local.a.0/u", "penstock startpoint delete JOB --stream local.a --partition 0`"),
        ("local.a.0.Partition 3/u", "--stream local.a --partition 0 --task 'Partition 3'`"),
        ("local.a/u", "delete the object `{path}` of the job's root"),
        ("u", "delete the object `{path}` of the job's root"),
    ],
)
def test_an_object_that_is_no_request_is_named_and_left_out(
    manager: StartpointManager, objects: FileObjectStore, name: str, how: str
) -> None:
    made = manager.write_startpoint(ONE, at(1))
    path = PATHS.metadata("samza-startpoint-v1", name)
    objects.put_if_absent(path, b"{")
    found, (unreadable,) = manager.read()
    assert (found, manager.requests()) == ((made,), (made,))
    assert f"the startpoint in `{path}` is left out" in str(unreadable)
    assert str(unreadable).endswith(how.format(path=path))
    manager.delete([unreadable])
    assert manager.read() == ((made,), ())


@pytest.mark.parametrize("seed", range(12))
def test_on_a_store_that_fails_a_request_is_written_once_or_not(objects: FileObjectStore, seed: int) -> None:
    faulty = FaultyStore(objects, seed, rate=0.4)
    manager = StartpointManager(faulty, PATHS, now_ms=lambda: NOW)
    written = manager.write_startpoint(ONE, at(1), with_state="clear", clamp=True)
    faulty.rate = 0
    assert manager.requests() == (written,)


# The fan-out.

TASKS = {n: [SSP("local", "dep.flights", n), SSP("local", "all", 0)] for n in range(6)}
BROADCAST = SSP("local", "all", 0)


def test_a_broadcast_partition_fans_out_to_every_task(manager: StartpointManager) -> None:
    written = manager.write_startpoint(BROADCAST, at(7))
    assert counting_requests(manager.requests(), TASKS) == {TaskSsp(task, BROADCAST): written for task in TASKS}


@pytest.mark.parametrize(("whole", "own", "winner"), [(NOW + 1, NOW, "whole"), (NOW, NOW + 1, "own")])
def test_of_partition_and_task_the_later_counts(manager: StartpointManager, whole: int, own: int, winner: str) -> None:
    for_all = manager.write_startpoint(BROADCAST, at(1, whole))
    for_one = manager.write_startpoint(BROADCAST, at(2, own), task_name(4))
    found = counting_requests(manager.requests(), TASKS)
    assert found[TaskSsp(4, BROADCAST)] == (for_all if winner == "whole" else for_one)
    assert found[TaskSsp(0, BROADCAST)] == for_all


def test_a_deleted_startpoint_is_gone_after_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a store of files the folder is synced behind the delete, also by a second one that finds nothing."""
    manager = StartpointManager(FileObjectStore(tmp_path), PATHS)
    request = manager.write_startpoint(ONE, StartpointOldest())
    (path,) = (path for path in tmp_path.rglob("*") if request.uuid in path.name)
    steps: list[str] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(path.parent):
            steps.append("synced, deleted" if not path.exists() else "synced")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    assert manager.delete_startpoint(ONE) == (request,)
    assert steps == ["synced, deleted"]
    manager.delete([request])
    assert steps == ["synced, deleted"] * 2


SUMS = JobPaths("timed", "1")
YEAR_MS = 365 * 86_400_000


def stopped(world: TimedWorld) -> None:
    """After a run that has read two messages of each partition."""
    world.put(10, 20, 30, 40)
    driver = world.started()
    steps(driver)
    driver.loop.finish()
    driver.close()


def positions(world: TimedWorld) -> dict[int, int]:
    driver = world.started()
    found = {
        ssp.partition: offset for own in world.checkpoints[-1].next_offsets.values() for ssp, offset in own.items()
    }
    driver.close()
    return found


def test_a_damaged_one_does_not_stop_a_start(timed_world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    stopped(timed_world)
    path = SUMS.metadata("samza-startpoint-v1", "m.in.1/u")
    timed_world.objects.put_if_absent(path, b'{"@type":"Newest","creationTimestamp":1}')
    manager = StartpointManager(timed_world.objects, SUMS, now_ms=timed_world.clock.now_ms)
    manager.write_startpoint(
        SystemStreamPartition("m", "in", 0), StartpointOldest(creation_timestamp=timed_world.clock.now_ms())
    )
    for expected in ({0: 0, 1: 2}, {0: 0, 1: 2}):
        caplog.clear()
        assert positions(timed_world) == expected, "the readable one is applied, once"
        (said,) = (record for record in caplog.records if "cannot be read" in record.getMessage())
        assert said.levelname == "ERROR"
        for part in (f"`{path}` is left out", "penstock startpoint delete JOB --stream m.in --partition 1"):
            assert part in said.getMessage()
    assert manager.requests() == ()
    (unreadable,) = manager.read()[1]
    assert unreadable.path == path, "nobody knows what was asked for: it stays until somebody deletes it"


def test_one_from_the_future_is_behind_all_others(timed_world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    stopped(timed_world)
    now_ms = timed_world.clock.now_ms()
    elsewhere = StartpointManager(timed_world.objects, SUMS, now_ms=lambda: now_ms + YEAR_MS)
    here = StartpointManager(timed_world.objects, SUMS, now_ms=lambda: now_ms)
    for partition in (0, 1):
        elsewhere.write_startpoint(
            SystemStreamPartition("m", "in", partition), StartpointOldest(creation_timestamp=now_ms + YEAR_MS)
        )
    here.write_startpoint(SystemStreamPartition("m", "in", 1), StartpointUpcoming(creation_timestamp=now_ms))
    assert positions(timed_world) == {0: 0, 1: 2}, "alone it counts; beside another one it does not"
    said = [record.getMessage() for record in caplog.records if "in the future by the clock" in record.getMessage()]
    assert len(said) == 2
    assert here.requests() == (), "a start takes all of them"
