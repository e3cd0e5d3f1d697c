"""The state of a run: idle, waiting, hanging and unable to commit are told apart; its batch by stage and task."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.driver.job import Job
from penstock.driver.show.exports import EndWatch
from penstock.driver.show.metrics import PHASES, UncommittedTime
from penstock.driver.show.work import work_of
from penstock.errors import SystemAwayError
from penstock.job.shown import MOST_TASKS, RunWork, TaskWork, most_work
from penstock.metrics.snapshot import GaugeValue, MetricId
from penstock.system.memory import MemorySystem
from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver
from penstock.wire.protocol import Beat
from tests.support.jobs.home import wait_until
from tests.support.tools.fixtures import fixture_of
from tests.support.world.sums_job import SumsWorld, drain
from tests.support.world.world import World

LAG = "messages-behind-high-watermark"


def gauge(driver: InProcessDriver, name: str, group: str = "job") -> float | None:
    found = driver.board.metrics.snapshot().get(MetricId("job", group, name))
    assert found is None or isinstance(found, GaugeValue)
    return None if found is None else found.value


def phases(driver: InProcessDriver) -> set[str]:
    return {phase for phase in PHASES if gauge(driver, "active", f"phase.{phase}")}


def lag(driver: InProcessDriver) -> float | None:
    return gauge(driver, LAG, "stream.m.events")


world = fixture_of(SumsWorld)


def test_an_idle_job_has_committed_everything_and_waits_for_nothing(world: SumsWorld) -> None:
    began = SYSTEM_CLOCK.now_ms()
    driver = world.driver()
    assert phases(driver) == {"starting"}
    assert gauge(driver, "last-checkpoint-ms") is None
    driver.loop.start()
    world.put(*range(9))
    drain(driver)
    assert began <= (gauge(driver, "uncommitted-since-ms") or 0) <= SYSTEM_CLOCK.now_ms()
    driver.loop.commit()
    assert phases(driver) == {"running"}
    assert began <= (gauge(driver, "last-checkpoint-ms") or 0) <= SYSTEM_CLOCK.now_ms()
    zeros = ("uncommitted-since-ms", "outage-since-ms", "batch-since-ms", "failures-since-checkpoint", "stalled-ms")
    assert {name: gauge(driver, name) for name in zeros} == dict.fromkeys(zeros, 0)
    assert gauge(driver, "containers") == 2
    assert gauge(driver, "epoch") == driver.loop.epoch
    assert lag(driver) == 0


def test_a_rewind_is_another_epoch_and_a_failure_until_the_next_checkpoint(world: SumsWorld) -> None:
    driver = world.started()
    before, began = driver.loop.epoch, gauge(driver, "phase-since-ms")
    driver.fleet.lose(0)
    world.put(1)
    drain(driver)
    assert (gauge(driver, "epoch") or 0) > before
    assert gauge(driver, "failures-since-checkpoint") == 1
    assert (gauge(driver, "phase-since-ms") or 0) >= (began or 0)
    driver.loop.commit()
    assert gauge(driver, "failures-since-checkpoint") == 0


def test_what_a_commit_in_flight_has_not_is_still_uncommitted() -> None:
    found = UncommittedTime()
    found.batch_ended(10)
    found.batch_ended(20)
    assert found.since_ms == 10
    found.commit_began()
    assert found.since_ms == 10, "the commit is not complete yet"
    found.batch_ended(30)
    found.batch_ended(40)
    found.commit_completed()
    assert found.since_ms == 30
    found.commit_began()
    found.commit_completed()
    assert found.since_ms == 0


def test_a_system_that_is_away_is_an_outage(world: SumsWorld) -> None:
    driver = world.started(job_retry_max=0)
    driver.loop.parts.failures.count(SystemAwayError("nobody answers"))
    since = gauge(driver, "outage-since-ms") or 0
    assert since > 0
    assert gauge(driver, "failures-since-checkpoint") == 0, "a wait is no failure"
    driver.loop.parts.failures.none()
    assert gauge(driver, "outage-since-ms") == 0


class Hangs(ps.StreamTask):
    reached = threading.Event()
    gate = threading.Event()

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.reached.set()
        self.gate.wait(60)


def test_while_a_batch_hangs_its_age_grows_and_the_lag_is_that_of_now(tmp_path: Path) -> None:
    world = SumsWorld(tmp_path)
    app = ps.StreamApplication("sums")
    app.input("m.events", key=ps.String(), value=ps.Integer()).partition_by(lambda value: str(value)).process(Hangs)
    driver = world.make(app.graph(), {"job.batch.max.messages": 4}, containers=1)
    driver.loop.start()
    world.put(1, 2, 3)
    running = threading.Thread(target=driver.loop.step)
    running.start()
    try:
        assert Hangs.reached.wait(60)
        world.put(*range(23_499))
        watch = EndWatch([driver.job.plan.inputs[0]], driver.job.streams.systems, driver.board.note_ends)
        watch.look()
        assert lag(driver) == 3 + 23_499
        assert 0 < (gauge(driver, "batch-since-ms") or 0) <= SYSTEM_CLOCK.now_ms()
        wait_until(lambda: gauge(driver, "stalled-ms"), "a message that takes long")
        watch.close()
    finally:
        Hangs.gate.set()
        running.join(60)
    assert gauge(driver, "batch-since-ms") == 0
    driver.close()
    world.close()


def test_a_look_at_ends_keeps_what_is_known_of_a_system_that_is_away() -> None:
    class Away(MemorySystem):
        is_away = False

        def partitions(self, stream: str) -> Any:
            if self.is_away:
                raise SystemAwayError("nobody answers")
            return super().partitions(stream)

    system, noted = Away("m"), dict[SystemStreamPartition, int]()
    system.admin().create_stream("events", 2)
    watch = EndWatch([ps.SystemStream("m", "events")], {"m": system}, noted.update)
    watch.look()
    assert noted == {SystemStreamPartition("m", "events", partition): 0 for partition in range(2)}
    noted.clear()
    system.is_away = True
    watch.look()
    assert noted == {}


def test_every_phase_of_a_job_is_a_metric() -> None:
    assert set(re.findall("`([a-z]+)`", Job.phase.__doc__ or "")) == set(PHASES)


MESSAGES = 4_000


class HangsInEach(ps.StreamTask):
    seen = 0
    reached = threading.Event()
    gate = threading.Event()

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        HangsInEach.seen += 1
        if HangsInEach.seen == MESSAGES - 10:
            self.reached.set()
            self.gate.wait(60)


def test_a_running_batch_says_which_stage_task_operator_and_key_it_is_at(tmp_path: Path) -> None:
    world = World(tmp_path, "hot", ("in",), 4, clock=SettableClock())
    app = ps.StreamApplication("hot")
    source = app.input("m.in", key=ps.String(), value=ps.Integer())
    source.partition_by(lambda envelope: envelope.key, envelope=True).process(HangsInEach, id="score")
    driver = world.make(app.graph(), {"job.batch.max.messages": 10 * MESSAGES}, containers=2)
    driver.loop.start()
    assert driver.board.work_now() == RunWork()
    for number in range(MESSAGES):
        key = b"hot" if number % 4 else b"k%d" % number
        world.append("in", number % 4, (0, key, ps.Integer().to_bytes(number)))
    step = threading.Thread(target=driver.loop.step)
    step.start()
    try:
        assert HangsInEach.reached.wait(60)
        wait_until(lambda: driver.board.work_now().keys, "the keys, which are looked at every two seconds")
        found = driver.board.work_now()
        assert (found.batch, found.messages) == (1, MESSAGES)
        assert 0 < found.since_ms <= time.time_ns() // 1_000_000
        (stage, processed), *_ = found.processed
        assert stage == 1
        assert 0 < processed < MESSAGES
        busy = [each for each in found.tasks if each.operator]
        assert [each.operator for each in busy] == ["score"]
        assert max(found.tasks, key=lambda each: each.messages).messages > processed / 2, "the task of the hot key"
        hot = found.keys[0]
        assert (hot.stage, hot.key) == (1, "hot")
        assert 0.6 < hot.share < 0.9
    finally:
        HangsInEach.gate.set()
        step.join(60)
    assert driver.board.work_now().batch is None
    driver.close()
    world.close()


def test_the_work_of_large_jobs_is_bounded_and_old_beats_do_not_count() -> None:
    many = [TaskWork(1, task, task, 1_000 - task) for task in range(1_000)]
    chosen = most_work(many)
    assert len(chosen) == MOST_TASKS
    assert {each.task for each in chosen} == {*range(10), *range(990, 1_000)}
    now = Beat("a", "i", 0, 0, 0, batch=7, processed={1: 5}, work=[TaskWork(1, 0, 5, 3)])
    old = Beat("b", "i", 0, 0, 0, batch=6, processed={1: 50}, work=[TaskWork(1, 1, 50, 3)])
    found = work_of([now, old], (7, 10), 1)
    assert (found.processed, found.tasks) == (((1, 5),), (TaskWork(1, 0, 5, 3),))


def test_keys_of_all_containers_and_any_bytes() -> None:
    beats = [
        Beat("a", "i", 0, 0, 0, keys=[(1, b"x", 30), (2, b"\xff\x00", 64)], keyed={1: 60, 2: 64}),
        Beat("b", "i", 0, 0, 0, keys=[(1, b"y", 32)], keyed={1: 40}),
    ]
    found = work_of(beats, None, 0).keys
    assert [(each.stage, each.key, each.messages, each.share) for each in found] == [
        (2, "0xff00", 64, 1.0),
        (1, "y", 32, 0.32),
        (1, "x", 30, 0.3),
    ]
