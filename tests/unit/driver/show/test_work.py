"""The running batch by stage, task and operator, and its hot keys, as the containers' beats tell it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.driver.show.work import work_of
from penstock.job.shown import MOST_TASKS, RunWork, TaskWork, most_work
from penstock.testing import SettableClock
from penstock.wire.protocol import Beat
from tests.support.jobs.home import wait_until
from tests.support.world.world import World

MESSAGES = 4_000


class Hangs(ps.StreamTask):
    seen = 0
    reached = threading.Event()
    gate = threading.Event()

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        Hangs.seen += 1
        if Hangs.seen == MESSAGES - 10:
            self.reached.set()
            self.gate.wait(60)


def test_a_running_batch_says_which_stage_task_operator_and_key_it_is_at(tmp_path: Path) -> None:
    world = World(tmp_path, "hot", ("in",), 4, clock=SettableClock())
    app = ps.StreamApplication("hot")
    source = app.input("m.in", key=ps.String(), value=ps.Integer())
    source.partition_by(lambda envelope: envelope.key, envelope=True).process(Hangs, id="score")
    driver = world.make(app.graph(), {"job.batch.max.messages": 10 * MESSAGES}, containers=2)
    driver.loop.start()
    assert driver.board.work_now() == RunWork()
    for number in range(MESSAGES):
        key = b"hot" if number % 4 else b"k%d" % number
        world.append("in", number % 4, (0, key, ps.Integer().to_bytes(number)))
    step = threading.Thread(target=driver.loop.step)
    step.start()
    try:
        assert Hangs.reached.wait(60)
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
        Hangs.gate.set()
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
