"""Drains beside whatever else goes on in a job: each comes to its end, and to what a plain computation says."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

import penstock as ps
from penstock.api.requests import StartpointOldest
from penstock.api.ssp import SystemStreamPartition
from penstock.drain.driver import Drain
from penstock.drain.requests import DRAIN, write_drain_notification
from penstock.errors import PenstockError, RetryableError, UserCodeError
from penstock.start.startpoint_manager import StartpointManager
from penstock.state.backends import base_backup
from penstock.testing.in_process import InProcessDriver
from tests.support.apps import drained_app
from tests.support.faults import fault_backend
from tests.support.faults.fault_backend import Hook, HookedSystem
from tests.support.faults.plan import Fault
from tests.support.jobs.drained_job import PATHS
from tests.support.jobs.fault_jobs import faulty
from tests.support.jobs.home import wait_until
from tests.support.stores.hooked_store import Call
from tests.support.tools.fixtures import fixture_of
from tests.support.world.drained_world import DrainWorld, Ending
from tests.support.world.timed_job import steps, steps_and_commit
from tests.support.world.world import KilledError, ends

A = [SystemStreamPartition("local", "a", partition) for partition in range(2)]


@pytest.fixture(autouse=True)
def _engines_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends that meet faults watch copies of engines for the rest of the process."""
    monkeypatch.setattr(fault_backend, "_watch_copies", lambda faults: None)


APPS = ("two_exchanges", "two_exchanges_one_durable", "two_exchanges_both_durable")


world = fixture_of(DrainWorld, params=APPS[:1])


class TestCommits:
    """A commit is in flight when the drain begins."""

    @pytest.mark.few(1)
    @pytest.mark.parametrize("point", ["upload.begin", "upload.end", "clean_up.begin"])
    def test_it_is_blocked(self, world: DrainWorld, point: str) -> None:
        driver = world.waiting()
        world.faults.plan(Fault("hold", point, "block", times=1000))
        world.put(8, commit=True)
        steps(driver)
        wait_until(lambda: world.faults.is_reached("hold"), "a commit at the gate")
        read = world.everything
        notification = world.ask_for(driver)
        ending = Ending(driver)
        ending.await_last_commit()
        assert "drained" not in {record.ended for record in world.checkpoints}
        world.faults.open()
        ending.done()
        assert world.read() == read
        world.verify_drained(notification)

    def test_it_fails_with_its_container(self, world: DrainWorld) -> None:
        """The drain begins again from the checkpoint before."""
        driver = world.waiting()
        committed = world.everything
        world.faults.plan(Fault("hold", "upload.begin", "block", times=1000))
        world.put(8, commit=True)
        steps(driver)
        wait_until(lambda: world.faults.is_reached("hold"), "a commit at the gate")
        read = world.everything
        notification = world.ask_for(driver)
        ending = Ending(driver)
        ending.await_last_commit()
        driver.fleet.lose(1)
        world.faults.open()
        ending.done()
        assert world.read() in (committed, read)
        world.verify_drained(notification, committed, read)

    def test_the_last_one_fails(self, world: DrainWorld) -> None:
        """The run fails, and has not drained. The next start drains it, from the checkpoint before."""
        driver = world.waiting(8)
        committed, read = world.read(), world.everything
        world.faults.plan(Fault("away", "upload.middle", "fail"))
        notification = world.ask_for(driver)
        with pytest.raises(PenstockError, match="`away` is final"):
            ends(driver)
        driver.close()
        assert world.checkpoints[-1].ended is None
        assert world.requests.find().notifications == (notification,)
        ends(world.started())
        assert world.read() == committed
        world.verify_drained(notification, committed, read)


class TestRewinds:
    """The run goes back to its last checkpoint when the request comes."""

    @pytest.mark.few(2)
    @pytest.mark.parametrize("world", APPS, indirect=True)
    @pytest.mark.parametrize("losses", [1, 3])
    def test_the_request_comes_in_a_rewind(self, world: DrainWorld, losses: int) -> None:
        """Nothing that was read after the checkpoint is read again."""
        driver = world.waiting(8)
        committed, read = world.read(), world.everything
        asked: list[Any] = []

        def at(step: str) -> None:
            if step == "open":
                if not asked:
                    asked.append(world.ask_for(driver))
                if len(asked) < losses:
                    asked.append(None)
                    driver.fleet.lose(1)

        driver.fleet.at = at
        driver.fleet.lose(0)
        ends(driver)
        assert world.read() == committed
        assert len(asked) == losses
        world.verify_drained(asked[0], committed, read)

    def test_a_container_is_lost_right_before_the_request(self, world: DrainWorld) -> None:
        driver = world.waiting(8)
        committed, read = world.read(), world.everything
        driver.fleet.lose(0)
        notification = world.ask_for(driver)
        ends(driver)
        assert world.read() == committed
        world.verify_drained(notification, committed, read)


@pytest.mark.parametrize("world", APPS, indirect=True)
@pytest.mark.parametrize("seed", range(3))
def test_drivers_and_containers_are_killed_one_after_the_other(world: DrainWorld, seed: int) -> None:
    """Each at some step before the drained record, until there is nobody left to kill."""
    chance = random.Random(seed)
    world.config |= {"job.retry.max": 20}
    victims = [chance.choice(["driver", "container"]) for _ in range(5)]
    driver = world.waiting(8)
    committed, read = world.read(), world.everything
    notification = world.ask_for(driver)

    def at(step: str) -> None:
        if not victims or step in {"clean-up", "wind-down"} or chance.random() > 0.3:
            return
        if victims.pop() == "driver":
            raise KilledError(step)
        driver.fleet.lose(chance.randrange(2))

    while True:
        driver.fleet.at = driver.runner.at = at
        try:
            ends(driver)
            break
        except (KilledError, PenstockError):  # the latter from the thread of commits
            driver.close()
            driver = world.started()
    assert victims == []
    assert world.read() in (committed, read)
    world.verify_drained(notification, committed, read)


STEPS = ("claimed", "started", "obeyed", "drained batch", "record", "notification", "nothing")
"""Where the driver of a run that is to drain is killed: each step is behind the one before it."""


class TestBeforeTheStart:
    """The request is there before the run is. Each start, and each one after a crash, drains it, and no other one."""

    def run_until(self, world: DrainWorld, step: str, name: str | None) -> None:
        """Start a driver that is killed there."""
        driver = world.claimed({} if name is None else {"app.run.id": name})
        kill_at(world, driver, step)
        driver.close()
        world.store.heal()

    @pytest.mark.few(4)
    @pytest.mark.parametrize(
        ("step", "named"), [*((step, False) for step in STEPS), *((step, True) for step in STEPS if step != "obeyed")]
    )
    def test_it_drains_whatever_happens(self, world: DrainWorld, step: str, *, named: bool) -> None:
        before = world.waiting()
        before.stop.request()
        ends(before)
        before.close()
        read = world.everything
        notification = write_drain_notification(world.objects, PATHS, run_id="v1" if named else None)
        world.put(10)
        self.run_until(world, step, "v1" if named else None)
        if step in ("claimed", "started", "obeyed", "drained batch"):
            assert world.checkpoints[-1].ended != "drained"
            ends(world.started({"app.run.id": "v1"} if named else None))
        elif step != "nothing":
            follows = world.started({"app.run.id": "v2"} if named else None)
            assert follows.loop.boundary.closing is None
            assert steps(follows), "the request is answered, so this run reads on"
            assert world.requests.find().notifications == ()
            assert world.objects.list(PATHS.metadata_folder("drain-obeyed")) == []
            return
        assert world.read() == read, "nothing more was read"
        world.verify_drained(notification, *([read] if step == "drained batch" else []))
        assert world.objects.list(PATHS.metadata_folder("drain-obeyed")) == []

    def test_a_job_that_never_ran(self, world: DrainWorld) -> None:
        world.put(3)
        notification = world.ask()
        ends(world.started())
        assert set(world.read().values()) == {0}
        assert world.checkpoints[-1].section(DRAIN).answered == (str(notification.uuid),)

    @pytest.mark.parametrize("asked", ["v1", None])
    def test_another_run_than_the_one_that_obeys_reads_on(self, world: DrainWorld, asked: str | None) -> None:
        """The run is killed in its drain, and another deployment follows."""
        write_drain_notification(world.objects, PATHS, run_id=asked)
        first = world.started({"app.run.id": "v1"})
        first.loop.step()
        assert first.board.phase == "draining"
        first.close()
        world.put(3)
        second = world.started({"app.run.id": "v2"})
        assert steps(second)
        assert world.requests.find().notifications == ()
        assert not world.objects.list(PATHS.metadata_folder("drain-obeyed"))

    def test_a_request_for_a_run_that_does_not_come_goes_with_the_next_start(
        self, world: DrainWorld, caplog: pytest.LogCaptureFixture
    ) -> None:
        notification = write_drain_notification(world.objects, PATHS, run_id="v9")
        world.put(3)
        assert steps(world.started({"app.run.id": "v1"}))
        assert world.requests.find().notifications == ()
        assert (
            f"the request {notification.uuid} to drain run v9 is deleted: the job belongs to run v1 now" in caplog.text
        )

    def test_a_request_that_the_end_of_the_stream_answered_drains_no_run_again(self, world: DrainWorld) -> None:
        """A named run goes on after the end of its stream, if there is more of it. The driver is killed before it has
        deleted the request."""
        world.put(12)
        first = world.started({"app.run.id": "v1"}, until_latest=True)
        while not first.loop.boundary.ends:  # the batches of the end come first
            assert not first.loop.step()
        notification = write_drain_notification(world.objects, PATHS, run_id="v1")
        first.loop.parts.of(Drain).ask()
        kill_at(world, first, "record")
        first.close()
        world.store.heal()
        last = world.checkpoints[-1]
        assert (last.ended, last.section(DRAIN).answered) == ("end-of-stream", (str(notification.uuid),))
        world.put(5)
        second = world.started({"app.run.id": "v1"})
        assert steps(second), "it reads on"
        assert world.requests.find().notifications == ()

    @pytest.mark.few(2)
    @pytest.mark.parametrize("step", ["claimed", "started", "drained batch", "nothing"])
    def test_a_run_is_started_to_drain(self, world: DrainWorld, step: str) -> None:
        """As `penstock run --drain` does. A crash before its request was written leaves everything as it was."""
        before = world.waiting(8)
        before.close()
        committed, read = world.read(), world.everything
        driver = world.claimed()
        driver.loop.parts.of(Drain).drain(at_start=True)
        kill_at(world, driver, step)
        driver.close()
        world.store.heal()
        if step in ("claimed", "started"):
            assert world.requests.find().notifications == ()
            return
        if step == "drained batch":
            assert len(world.requests.find().notifications) == 1
            ends(world.started())
        assert (world.checkpoints[-1].ended, world.read()) == ("drained", committed)
        assert world.requests.find().notifications == ()
        assert read != committed


def kill_at(world: DrainWorld, driver: InProcessDriver, step: str) -> None:
    """Run the driver up to a step of STEPS. Its caller closes it there."""
    if step == "claimed":
        return
    deletions = iter(range(1 if step == "notification" else 0))

    def before(call: Call, key: str) -> None:
        request = "/samza-drain-v1/" in key or "/drain-" in key
        if call == "delete" and request and step != "nothing" and next(deletions, None) is None:
            raise KilledError

    def after(call: Call, key: str) -> None:
        if step == "obeyed" and call == "put" and "/drain-obeyed/" in key:
            raise KilledError

    world.store.before, world.store.after = before, after
    if driver.board.phase != "running":
        driver.loop.start()
    if step == "started":
        return
    with suppress(KilledError):
        if step in {"obeyed", "drained batch"}:
            while not driver.loop.step():
                pass
        else:
            ends(driver)


class TestBackends:
    """A backend is at work in the background."""

    def test_a_base_of_a_changelog_stream_is_under_way(
        self, world: DrainWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The drained checkpoint has no marker of that backend, and is restored from the other one."""
        monkeypatch.setattr(base_backup, "SMALL_BASE_SECONDS", 0.1)
        before = world.waiting()
        before.close()
        factories = {"stores.backup.factories": faulty("changelog-files", "changelog-stream")}
        world.faults.plan(Fault("base", "put.begin", "block", times=1000, backend="stream"))
        driver = world.started(factories)
        world.put(8, commit=True)
        steps(driver)
        wait_until(lambda: world.faults.is_reached("base"), "the base")
        read = world.everything
        notification = world.ask_for(driver)
        driver.fleet.at = lambda step: world.faults.open() if step == "wind-down" else None
        ends(driver)
        assert world.read() == read
        world.verify_drained(notification)
        driver.close()
        world.faults.plan()
        again = world.started(factories)
        steps_and_commit(again)
        counts = {name: count for name, count in world.kept("first").items() if name.startswith("count")}
        keys = world.expect(world.everything).keys
        assert counts == {f"count {key}": count for key, count in keys.items()}

    @pytest.mark.few(1)
    @pytest.mark.parametrize("backend", ["changelog-files", "changelog-stream"])
    def test_the_last_commit_has_a_snapshot_or_a_new_backend(self, world: DrainWorld, backend: str) -> None:
        world.config |= {"stores.backup.factories": faulty(backend), "state.snapshot.interval.commits": 1}
        driver = world.waiting(8)
        read = world.everything
        world.faults.plan(Fault("hold", "snapshot.zip", "block", times=1000))
        notification = world.ask_for(driver)
        driver.fleet.at = lambda step: world.faults.open() if step == "wind-down" else None
        ends(driver)
        assert world.read() == read
        world.verify_drained(notification)


class TestInputs:
    """A drain does not read the rest of the inputs."""

    @pytest.mark.few(1)
    @pytest.mark.parametrize("ended", [False, True])
    def test_one_source_is_at_its_end_and_another_one_is_not(self, world: DrainWorld, ended: bool) -> None:
        """At the end of the run, or of the stream."""
        world.config |= {"job.batch.max.messages": 8}
        world.put(4)
        world.put(40, streams=("b",))
        if ended:
            world.system.admin().end_stream("a")
            world.firing = "due"  # no message of `a` holds them back
        driver = world.started(until_latest=True)
        while driver.loop.boundary.batch < 6:
            assert not driver.loop.step()
        assert bool(driver.loop.boundary.ended_inputs) == ended
        notification = world.ask()
        driver.loop.parts.of(Drain).ask()
        ends(driver)
        assert {ssp: offset for ssp, offset in world.read().items() if ssp.stream == "a"} == dict.fromkeys(A, 4)
        assert all(4 < offset < 44 for ssp, offset in world.read().items() if ssp.stream == "b")
        world.verify_drained(notification)

    @pytest.mark.few(1)
    @pytest.mark.parametrize("idle_ms", [None, 1000])
    def test_a_partition_is_idle(self, world: DrainWorld, idle_ms: int | None) -> None:
        """It holds the watermark back, until it counts as idle."""
        if idle_ms is not None:
            world.config |= {f"streams.local.{stream}.idle.ms": idle_ms for stream in ("a", "b")}
        driver = world.started()
        for _ in range(3):
            world.put(4, partitions=(0,))
            steps(driver)
            world.clock.advance(5)
        assert bool(world.panes()) == (idle_ms is not None)
        notification = world.ask()
        driver.loop.parts.of(Drain).ask()
        ends(driver)
        assert world.read()[A[1]] == 0
        world.verify_drained(notification)

    def test_a_task_owns_no_partition(self, world: DrainWorld) -> None:
        world.config |= {"job.intermediate.stream.partitions": 4}
        world.tasks = 4
        driver = world.waiting(8)
        assert driver.job.settings.tasks == 4
        notification = world.ask_for(driver)
        ends(driver)
        world.verify_drained(notification)

    def test_a_startpoint_waits_for_the_next_start(self, world: DrainWorld) -> None:
        driver = world.waiting(8)
        read = world.everything
        wait_for(world)
        notification = world.ask_for(driver)
        ends(driver)
        assert world.read() == read
        assert len(manager(world).requests()) == 1
        world.verify_drained(notification)
        driver.close()
        again = world.started()
        assert manager(world).requests() == ()
        assert world.read() == {**read, A[0]: 0}
        assert {at.ssp: offset for at, offset in again.loop.boundary.positions.items()} == {**read, A[0]: 0}

    def test_a_startpoint_waits_for_the_start_that_drains(self, world: DrainWorld) -> None:
        """The start takes it, and reads nothing. The state is that of the last checkpoint."""
        driver = world.waiting()
        committed = world.everything
        driver.close()
        wait_for(world)
        notification = world.ask()
        again = world.started()
        ends(again)
        assert manager(world).requests() == ()
        last = world.checkpoints[-1]
        assert (last.ended, last.section(DRAIN).answered) == ("drained", (str(notification.uuid),))
        assert world.read(last) == {**committed, A[0]: 0}
        world.verify_stores(last, world.expect(committed))
        assert world.requests.find().notifications == ()


class TestOutputs:
    """Sinks and dead letters."""

    @pytest.mark.few(1)
    @pytest.mark.parametrize("done", [False, True])
    def test_a_sink_fails_and_comes_back(self, world: DrainWorld, done: bool) -> None:
        """The drain batch is run again as a whole."""
        driver = world.waiting(8)
        committed, read = world.read(), world.everything
        failures = iter(range(3))

        def fails(ssp: str) -> None:
            if driver.board.phase == "draining" and next(failures, None) is not None:
                raise RetryableError(f"{ssp} is away")

        hook(driver, world, *((_pass, fails) if done else (fails, _pass)))
        notification = world.ask_for(driver)
        ends(driver)
        assert next(failures, None) is None
        assert world.read() == read
        world.verify_drained(notification, committed, read)

    def test_a_sink_is_stuck_and_comes_back(self, world: DrainWorld) -> None:
        driver = world.waiting(8)
        read = world.everything

        def stuck(ssp: str) -> None:
            if driver.board.phase == "draining":
                world.faults.at("sink")

        world.faults.plan(Fault("sink", "sink", "block"))
        hook(driver, world, stuck, _pass)
        notification = world.ask_for(driver)
        ending = Ending(driver)
        wait_until(lambda: world.faults.is_reached("sink"), "the sink")
        world.faults.open()
        ending.done()
        assert world.read() == read
        world.verify_drained(notification)

    def test_what_fails_in_a_drain_is_a_dead_letter(self, world: DrainWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        """Timers and panes; the rest of them comes out, and the run has drained."""
        world.config |= {"task.dead.letter.stream": "local.dead"}
        on_timer, pane_of = drained_app.Keeper.on_timer, drained_app.pane_of

        def failing_timer(task: Any, timer: ps.ExpiredTimer, *others: Any) -> None:
            on_timer(task, timer, *others)
            if timer.key in {"k0", "k11"}:
                raise ValueError("a poisoned timer")

        def failing_pane(pane: ps.WindowPane[Any, Any]) -> Any:
            if pane.key == "k2" and pane.firing == "drain":
                raise ValueError("a poisoned pane")
            return pane_of(pane)

        monkeypatch.setattr(drained_app.Keeper, "on_timer", failing_timer)
        monkeypatch.setattr(drained_app, "pane_of", failing_pane)
        driver = world.waiting(7)
        before = world.panes()
        read = world.everything
        world.ask_for(driver)
        ends(driver)
        expected = world.expect(read)
        assert (world.checkpoints[-1].ended, world.read()) == ("drained", read)
        lost = {place: n for place, n in expected.panes.items() if place[0] == "k2" and (place, n) not in before}
        assert lost
        assert sorted(world.panes()) == sorted((expected.panes - type(expected.panes)(lost)).items())
        letters = [letter for _, _, _, letter in world.messages("dead")]
        assert sorted(letter["operator"] for letter in letters) == ["first", "first"] + ["shown"] * len(lost)
        kept = {**expected.first(), "drains 0": 1, "drains 1": 1}
        assert world.kept("first") == {name: n for name, n in kept.items() if name not in {"fired k0", "fired k11"}}
        assert {key for _, _, key, _ in world.messages("timers")} == set(expected.keys) - {"k0", "k11"}

    @pytest.mark.parametrize("world", APPS, indirect=True)
    def test_on_drain_asks_for_a_commit_and_the_end(self, world: DrainWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        """The callback changes nothing: the drain goes through all parts, and its last commit is the only one."""
        on_drain = drained_app.Keeper.on_drain

        def asking(task: Any, collector: Any, coordinator: Any) -> None:
            on_drain(task, collector, coordinator)
            coordinator.commit()
            coordinator.shutdown()

        monkeypatch.setattr(drained_app.Keeper, "on_drain", asking)
        driver = world.waiting(8)
        read, before = world.everything, len(world.checkpoints)
        notification = world.ask_for(driver)
        ends(driver)
        assert (world.read(), len(world.checkpoints)) == (read, before + 1)
        world.verify_drained(notification)

    @pytest.mark.parametrize("world", APPS, indirect=True)
    def test_on_end_asks_for_the_end(self, world: DrainWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        """At the end of the streams, which is there once all parts have come to it."""

        def on_end(task: Any, collector: Any, coordinator: Any) -> None:
            coordinator.shutdown()

        monkeypatch.setattr(drained_app.Keeper, "on_end", on_end, raising=False)
        world.put(12)
        driver = world.started(until_latest=True)
        ends(driver)
        assert (world.checkpoints[-1].ended, world.read()) == ("end-of-stream", world.everything)
        assert driver.loop.boundary.left == 0

    def test_on_drain_fails(self, world: DrainWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        """There is no message that could go to the dead letters: the run fails, and the next one drains."""
        world.config |= {"task.dead.letter.stream": "local.dead"}
        on_drain = drained_app.Keeper.on_drain

        def failing(task: Any, *given: Any) -> None:
            on_drain(task, *given)
            raise ValueError("poisoned")

        monkeypatch.setattr(drained_app.Keeper, "on_drain", failing)
        driver = world.waiting(8)
        committed, read = world.read(), world.everything
        notification = world.ask_for(driver)
        with pytest.raises(UserCodeError, match="on_drain"):
            ends(driver)
        driver.close()
        assert world.checkpoints[-1].ended is None
        assert world.requests.find().notifications == (notification,)
        monkeypatch.setattr(drained_app.Keeper, "on_drain", on_drain)
        ends(world.started())
        assert world.read() == committed
        world.verify_drained(notification, committed, read)


def manager(world: DrainWorld) -> StartpointManager:
    return StartpointManager(world.objects, PATHS, 10**9, world.clock.now_ms)


def wait_for(world: DrainWorld) -> None:
    """Have the next start read one partition again."""
    manager(world).write_startpoint(A[0], StartpointOldest(creation_timestamp=world.clock.now_ms()), with_state="keep")


def hook(driver: InProcessDriver, world: DrainWorld, before: Hook, after: Hook) -> None:
    """Before and after each append of the driver's outputs."""
    driver.job.streams.systems["local"] = HookedSystem(world.system, before, after)


def _pass(_ssp: str) -> None:
    """No fault."""
