"""Standbys on containers of this process: they take over with exactly the last checkpoint, and read only the tail."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.driver.show.exports import put_changes
from penstock.errors import RetryableError
from penstock.metrics.snapshot import MetricId
from penstock.objects.open import forget_memory_store, open_store
from penstock.standby.driver import StandbyDriver
from penstock.standby.wing import STANDBY_WING, RunStandbys, StandbyState, standby_board
from penstock.state.kept import KeptStore
from penstock.system.base import OffsetRange
from penstock.system.memory import MemorySystem
from penstock.testing.in_process import InProcessDriver
from tests.support.oracles.metrics_page import OF_STANDBYS, exported
from tests.support.tools.fixtures import fixture_of
from tests.support.world import timed_job
from tests.support.world.sums_job import TASKS, SumsWorld, drain, drain_and_commit, once, state
from tests.support.world.timed_job import TimedWorld, steps_and_commit

BACKENDS = ("changelog-files", "blob", "changelog-stream", "tests.support.stores.plain_backend:PlainFactory")
_TIMEOUT_S = 30.0


world = fixture_of(SumsWorld)


@pytest.fixture
def other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standbys find no copies of others, as if each container were on a separate host."""
    made = KeptStore.made
    monkeypatch.setattr(KeptStore, "made", classmethod(lambda cls, *args: made(*args[:-1])))


def started(world: SumsWorld, containers: int = 3, **config: object) -> InProcessDriver:
    """A driver with standbys, after its start checkpoint."""
    given = {"job_standbytasks_replication_factor": 2, "stores_sums_factory": "rocksdb", **config}
    return world.started(containers, **given)


def part_of(driver: InProcessDriver) -> StandbyDriver:
    return next(part for part in driver.loop.parts.wings if isinstance(part, StandbyDriver))


def await_standbys(
    driver: InProcessDriver, *, ready: Callable[[StandbyState], bool] | None = None, tasks: int = TASKS
) -> None:
    """Until the standby of every task is at the last checkpoint, or what is asked for."""
    last = driver.board.last_checkpoint
    ready = ready or (lambda each: each.checkpoint_id == each.wanted == last)
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        states = [each for own in driver.fleet.states(STANDBY_WING.name, list[StandbyState]).values() for each in own]
        good = [each for each in states if ready(each)]
        if {each.task for each in good} == set(range(tasks)):
            return
        assert time.monotonic() < deadline, states
        threading.Event().wait(0.005)


def commit(driver: InProcessDriver) -> None:
    """A checkpoint of all there is, and every standby at it."""
    take_over(driver)
    drain_and_commit(driver)
    await_standbys(driver)


def take_over(driver: InProcessDriver) -> None:
    """Let the run loop notice what was lost."""
    while driver.fleet.any_lost:
        driver.loop.step()


def counted(driver: InProcessDriver, name: str, group: str = "standby", source: str = "Partition") -> int:
    """A counter of all tasks."""
    found = driver.fleet.metrics()
    return sum(int(getattr(found.get(MetricId(f"{source} {task}", group, name)), "count", 0)) for task in range(TASKS))


def rejoin(driver: InProcessDriver) -> None:
    """Let new containers come in the place of lost ones, and tasks move there once their standbys are ready."""
    take_over(driver)
    driver.fleet.replace()
    driver.loop.step()
    await_standbys(driver, ready=lambda each: each.is_ready)
    driver.loop.step()
    assert len(set(driver.fleet.assignment.homes.values())) == TASKS


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.usefixtures("other_host")
def test_the_active_container_is_killed_again_and_again(world: SumsWorld, backend: str) -> None:
    driver = started(world, stores_backup_factories=backend)
    for turn in range(4):
        world.put(*range(30))
        commit(driver)
        world.put(*range(7))
        task, taken, restored = turn % TASKS, counted(driver, "takeovers"), counted_restored(driver, backend)
        home = driver.fleet.assignment.homes[task]
        standby = driver.fleet.assignment.standbys[task][0]
        driver.fleet.at = once("start-run", partial(driver.fleet.lose, task))
        drain(driver)
        assert driver.fleet.assignment.homes[task] == standby != home
        world.check(driver)
        assert counted(driver, "takeovers") == taken + 1
        assert counted_restored(driver, backend) == restored, "nothing but a copy of the checkpoint was opened"
        rejoin(driver)
        world.check(driver)
    assert all(any(driver.fleet.assignment.standbys[task]) for task in range(TASKS))


@pytest.mark.usefixtures("other_host")
def test_what_is_due_is_known_from_a_standby_that_takes_over(timed_world: TimedWorld) -> None:
    timed_world.config |= {
        "job.standbytasks.replication.factor": 2,
        "stores.one.hold.factory": "rocksdb",
        "stores.two.hold.factory": "rocksdb",
    }
    driver = timed_world.started(containers=3)
    timed_world.put(10, 20, 30, 40, 50)
    steps_and_commit(driver)
    await_standbys(driver, tasks=timed_job.TASKS)
    left = driver.loop.boundary
    driver.fleet.lose(0)
    take_over(driver)
    assert counted(driver, "takeovers") > 0
    assert driver.loop.boundary == left
    assert left.next_due == {"one": (50, None)}


def counted_restored(driver: InProcessDriver, backend: str) -> int:
    """The entries that restores of active tasks have read, whole or in part."""
    return counted(driver, "bytes-restored", f"backend.{backend}") + counted(driver, "bytes-restored")


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", BACKENDS[:3])
@pytest.mark.usefixtures("other_host")
def test_a_standby_reads_the_tail_only(world: SumsWorld, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = started(world, stores_backup_factories=backend)
    world.put(*range(200))
    commit(driver)
    whole = counted(driver, "bytes-restored", source="Standby")
    monkeypatch.setattr("penstock.standby.container.Standbys.follow", lambda *_: None)
    for _ in range(3):
        world.put(*range(5))
        drain_and_commit(driver)
    world.put(*range(5))
    driver.fleet.lose(1)
    drain(driver)
    world.check(driver)
    assert counted(driver, "takeovers") == 1
    assert counted_restored(driver, backend) > 0
    if backend != "blob":  # which reads every file that has changed: of so small a store, most of them
        assert counted(driver, "bytes-restored") < whole


def test_the_standby_is_killed(world: SumsWorld) -> None:
    driver = started(world)
    world.put(*range(30))
    commit(driver)
    driver.fleet.lose_standby(0)
    world.put(*range(10))
    drain(driver)
    world.check(driver)
    await_standbys(driver)
    assert all(driver.fleet.assignment.standbys[task] for task in range(TASKS))


def test_both_are_killed(world: SumsWorld) -> None:
    driver = started(world)
    world.put(*range(30))
    commit(driver)
    driver.fleet.lose_standby(0)
    driver.fleet.lose(0)
    world.put(*range(10))
    drain(driver)
    world.check(driver)
    commit(driver)
    world.check(driver)


def test_it_is_killed_while_it_takes_over(world: SumsWorld) -> None:
    driver = started(world)
    world.put(*range(30))
    commit(driver)
    world.put(*range(10))
    driver.fleet.lose(0)
    driver.fleet.at = once("open", lambda: driver.fleet.lose(0))
    drain(driver)
    world.check(driver)
    rejoin(driver)
    commit(driver)
    world.check(driver)


@pytest.mark.few(2)
@pytest.mark.parametrize("step", ["snapshot", "upload", "clean-up", "follow"])
def test_a_commit_is_in_flight_at_the_loss(world: SumsWorld, step: str) -> None:
    driver = started(world)
    world.put(*range(30))
    commit(driver)
    world.put(*range(10))
    drain(driver)
    driver.fleet.at = once(step, lambda: driver.fleet.lose(0))
    world.put(100)  # asks for a commit
    epoch = driver.loop.epoch
    while driver.loop.epoch == epoch:
        driver.loop.step()
    world.put(*range(10))
    drain(driver)
    world.check(driver, exactly_once=False)
    commit(driver)
    assert state(driver) == world.sums


def test_standbys_follow_only_what_is_in_the_log(world: SumsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint whose record cannot be written is none."""
    driver = started(world)
    followed: list[tuple[str, str]] = []
    recorded = StandbyDriver.recorded

    def noted(part: StandbyDriver, record: CheckpointRecord, markers: Any, *, abandoned: bool) -> None:
        latest = driver.log.read().latest
        followed.append((str(record.id), str(latest and latest.id)))
        recorded(part, record, markers, abandoned=abandoned)

    monkeypatch.setattr(StandbyDriver, "recorded", noted)
    for _ in range(3):
        world.put(*range(5))
        commit(driver)
    assert len(followed) == 3
    assert all(checkpoint == latest for checkpoint, latest in followed)


def test_standbys_do_not_follow_a_record_whose_epoch_has_ended(
    world: SumsWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """The containers would refuse the call, and its warning would tell of a failure that is none. The next epoch
    tells them what they follow."""
    driver = started(world)
    world.put(*range(5))
    commit(driver)
    steps: list[str] = []
    driver.fleet.at = steps.append
    record = driver.log.read().latest
    assert record is not None
    with caplog.at_level(logging.WARNING):
        part_of(driver).recorded(replace(record, epoch=record.epoch - 1), {}, abandoned=True)
    assert (steps, caplog.messages) == ([], [])
    part_of(driver).recorded(record, {}, abandoned=False)
    assert steps == ["follow"]


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", BACKENDS[:3])
@pytest.mark.usefixtures("other_host")
def test_what_slow_standbys_need_may_go(world: SumsWorld, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows again when all that its own checkpoint named is gone, and begins again where it must."""
    driver = started(
        world,
        stores_backup_factories=backend,
        task_checkpoint_retained=1,
        state_snapshot_interval_commits=1,
    )
    world.put(*range(30))
    commit(driver)
    with monkeypatch.context() as patch:
        patch.setattr("penstock.standby.container.Standbys.follow", lambda *_: None)
        for _ in range(6):
            world.put(*range(10))
            drain_and_commit(driver)
    world.put(1)
    commit(driver)
    driver.fleet.lose(1)
    world.put(*range(5))
    drain(driver)
    world.check(driver)
    assert counted(driver, "takeovers") == 1


def test_failures_of_a_standby_are_said_and_never_end_the_run(
    world: SumsWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RetryableError("the store is away")

    driver = started(world)
    world.put(*range(30))
    commit(driver)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("penstock.state.kept.KeptStore.advance", refuse)
        for _ in range(5):
            world.put(*range(10))
            drain_and_commit(driver)
        await_standbys(driver, ready=lambda each: each.doing == "it failed: the store is away")
    said = [record for record in caplog.records if "the store is away" in record.getMessage()]
    assert len(said) == TASKS, "once a minute for each"
    world.put(1)
    commit(driver)
    world.check(driver)


def test_nothing_grows(world: SumsWorld, tmp_path: Path) -> None:
    driver = started(world)
    counts = []
    for turn in range(12):
        world.put(*range(10))
        commit(driver)
        if turn % 3 == 2:
            driver.fleet.lose(turn % TASKS)
            rejoin(driver)
            commit(driver)
            counts.append(len(list(tmp_path.rglob(".standbys/*/*"))))
    threads = [each.name for each in threading.enumerate() if each.name.startswith("standbys-")]
    assert len(threads) <= TASKS, threads
    assert len(set(counts)) == 1, counts
    driver.close()
    assert not list(tmp_path.rglob(".standbys/*/*"))


def test_a_container_that_is_no_standby_any_more_removes_its_copies(world: SumsWorld, tmp_path: Path) -> None:
    """A standby on another host is better, whenever there is one."""
    driver = started(world, containers=2 * TASKS)
    world.put(*range(30))
    commit(driver)
    there = {name for (name,) in driver.fleet.assignment.standbys.values()}
    driver.fleet.lose_standby(0)
    take_over(driver)
    commit(driver)
    before = set(driver.fleet.states(STANDBY_WING.name, list[StandbyState]))
    driver.fleet.host_of = lambda name: str(name in before)
    driver.fleet.replace()
    driver.loop.step()
    assert driver.fleet.assignment.leaving
    assert driver.fleet.assignment.leaving <= there
    commit(driver)
    wait_until(lambda: copies_of(tmp_path) == [f"sums-{task}" for task in range(TASKS)])
    world.put(*range(9))
    commit(driver)
    world.check(driver)


def copies_of(folder: Path) -> list[str]:
    """The copies of standbys, without their numbers."""
    return sorted(path.name.rpartition("-")[0] for path in folder.rglob(".standbys/*/*"))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_what_a_process_left_that_is_gone_is_removed(world: SumsWorld, tmp_path: Path) -> None:
    driver = started(world)
    commit(driver)
    (folder,) = tmp_path.rglob(".standbys")
    (folder / "gone").mkdir()
    (folder / "gone" / "sums-0-1").mkdir()
    (folder / "gone.lock").touch()
    driver.fleet.lose(0)
    rejoin(driver)
    commit(driver)
    assert not (folder / "gone").exists()
    assert not (folder / "gone.lock").exists()


def test_what_they_left_is_removed_by_a_job_that_has_none_any_more(world: SumsWorld, tmp_path: Path) -> None:
    driver = started(world)
    commit(driver)
    (folder,) = tmp_path.rglob(".standbys")
    (folder / "gone" / "sums-0-1").mkdir(parents=True)
    (folder / "gone.lock").touch()
    driver.close()
    second = started(world, job_standbytasks_replication_factor=1)
    assert not list(folder.iterdir())
    world.put(*range(5))
    drain(second)
    world.check(second)


@pytest.mark.parametrize("factory", ["memory", "columns"])
def test_a_store_in_memory_is_taken_over_as_well(world: SumsWorld, factory: str) -> None:
    driver = started(world, stores_sums_factory=factory)
    world.put(*range(30))
    commit(driver)
    driver.fleet.lose(0)
    world.put(*range(5))
    drain(driver)
    world.check(driver)
    assert counted(driver, "takeovers") == 1


def test_standbys_are_shown_and_counted(world: SumsWorld) -> None:
    driver = started(world)
    world.put(*range(30))
    commit(driver)
    (about,) = part_of(driver).shown()
    shown = about.document().standbys
    assert [each.task for each in shown] == list(range(TASKS))
    assert {each.checkpoint_id for each in shown} == {driver.board.last_checkpoint}
    assert {(each.behind_ms, each.doing) for each in shown} == {(0, "")}
    assert {each.container for each in shown} == {own[0] for own in driver.fleet.assignment.standbys.values()}
    run_id, stored = driver.job.claim.run_id, standby_board(world.objects, driver.job.paths)
    put_changes(about.board, about.document, lambda: True)()
    assert stored.get_of(run_id) == RunStandbys(run_id, shown)
    assert stored.get_of("another run") is None
    driver.fleet.lose(1)
    take_over(driver)
    found = exported(driver.fleet.metrics())
    assert found >= OF_STANDBYS


def test_without_standbys_nothing_follows(world: SumsWorld) -> None:
    driver = started(world, job_standbytasks_replication_factor=1)
    steps: list[str] = []
    driver.fleet.at = steps.append
    world.put(1, 2)
    drain_and_commit(driver)
    assert "follow" not in steps
    assert part_of(driver).shown() == ()
    assert not [each for each in threading.enumerate() if each.name.startswith("standbys-")]


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", BACKENDS[:3])
def test_a_new_standby_begins_with_the_copy_on_its_host(world: SumsWorld, backend: str) -> None:
    """The second time from a backend it would read everything again."""
    driver = started(world, stores_backup_factories=backend)
    world.put(*range(90))
    commit(driver)
    before = counted(driver, "bytes-restored", source="Standby")
    driver.fleet.lose(1)
    take_over(driver)
    await_standbys(driver)
    assert counted(driver, "bytes-restored", source="Standby") == before
    world.put(*range(5))
    commit(driver)
    driver.fleet.lose(1)
    world.put(*range(5))
    drain(driver)
    world.check(driver)


class Named(ps.StreamTask):
    """Emits the name that a side input has for each key, and counts the key."""

    def init(self, context: Any) -> None:
        self.seen, self.names = context.store("seen"), context.store("names")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.seen.put(envelope.key, (self.seen.get(envelope.key) or 0) + 1)
        collector.emit(key=envelope.key, value=f"{self.names.get(envelope.key)} {self.seen.get(envelope.key)}")


class NamedWorld:
    """The world outside the drivers of a job with one task, a store, and a store that a side input fills."""

    def __init__(self, folder: Path, *, broadcast: bool = False) -> None:
        app = ps.StreamApplication("named")
        app.store("seen", key=ps.String(), value=ps.Integer())
        app.store("names", key=ps.String(), value=ps.String(), side_inputs=["m.names"], broadcast=broadcast)
        source = app.input("m.events", key=ps.String(), value=ps.String())
        named = source.process(Named, stores=["seen", "names"])
        named.send_to(app.output("m.out", key=ps.String(), value=ps.String()))
        self.graph = app.graph()
        self.system = MemorySystem("m")
        for stream in ("events", "names", "out"):
            self.system.admin().create_stream(stream, 1)
        self.put("names", b"a", b"A")
        self.put("names", b"b", b"B")
        self.folder = folder
        overrides = {
            "job.name": "named",
            "job.root": f"memory://{folder.name}",
            "job.logged.store.base.dir": str(folder),
            "job.standbytasks.replication.factor": 2,
        }
        self.config = load_config(overrides=overrides, environ={})
        self.objects = open_store(self.config.job.root)

    def driver(self, containers: int = 2) -> InProcessDriver:
        return InProcessDriver(self.graph, self.config, self.objects, {"m": self.system}, containers=containers)

    def put(self, stream: str, key: bytes, value: bytes) -> None:
        self.system.writer(None).append(ps.SystemStreamPartition("m", stream, 0), [(0, key, value)])

    def close(self) -> None:
        forget_memory_store(self.config.job.root)


named = fixture_of(lambda tmp_path, param: NamedWorld(tmp_path, broadcast=param), params=[False, True])
"""With a side store of the task, and with a broadcast one."""


def test_a_container_with_standbys_alone_takes_over_beside_side_inputs(named: NamedWorld) -> None:
    driver = named.driver()
    driver.loop.start()
    for key in (b"a", b"b"):
        named.put("events", key, b"")
        before = driver.board.last
        while driver.board.last is before:
            driver.loop.step()
        if key == b"a":
            driver.loop.commit()
            await_standbys(driver, tasks=1)
            driver.fleet.lose(0)
    ssp = ps.SystemStreamPartition("m", "out", 0)
    found = [message[3] for chunk in named.system.reader().read(OffsetRange(ssp, 0, 2), 10) for message in chunk]
    assert found == [b"A 1", b"B 1"]
    assert counted(driver, "takeovers") == 1
    driver.close()


def test_a_container_with_standbys_alone_spares_other_stores(
    named: NamedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves them even if it is there before the container that continues them."""
    first = named.driver(containers=1)
    first.loop.start()
    first.close()
    (lock,) = named.folder.glob("named-*/names/side-*.lock")
    made = lock.with_suffix("").stat().st_ino
    second = named.driver()
    busy = second.fleet._busy
    monkeypatch.setattr(second.fleet, "_busy", lambda: sorted(busy(), key=lambda each: len(each[1])))
    second.loop.start()
    assert [tasks for _, tasks, _ in second.fleet._busy()] == [[], [0]]
    assert lock.with_suffix("").stat().st_ino == made
    second.close()
