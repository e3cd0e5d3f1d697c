"""Rewinds with `with_output="after"`: state is built again, and readers of the outputs see nothing of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.api.requests import StartpointOldest, StartpointSpecific
from penstock.api.ssp import SystemStreamPartition
from penstock.drain.driver import Drain
from penstock.drain.requests import DrainRequests
from penstock.errors import IncompatibleError
from penstock.start.startpoint_manager import StartpointManager
from penstock.start.startpoint_request import WithOutput, WithState
from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver
from tests.support.world.timed_job import steps
from tests.support.world.world import World

pytestmark = pytest.mark.few(1)

TASKS = 2
STREAMS = ("in", "more", "out", "hours", "dead", "through")
HOUR = 3_600_000


class Count(ps.StreamTask):
    """Sends how many messages of the key came so far."""

    def init(self, context: ps.TaskContext) -> None:
        self.counts = context.store("counts")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        if envelope.value.get("bad"):
            raise ValueError("a bad message")
        self.counts[envelope.key] = count = self.counts.get(envelope.key, 0) + 1
        collector.send("m.out", key=envelope.key, value=count)


class Counting(World):
    """Counts messages by key."""

    def __init__(self, folder: Path, through: str | None, *, exactly_once: bool) -> None:
        super().__init__(folder, "counting", STREAMS, TASKS)
        self.clock: SettableClock = SettableClock(1_700_000_000_000)
        self.through = through
        self.exactly_once = exactly_once
        self.given: list[str] = []
        self.timed = False
        self.config: dict[str, object] = {}

    def app(self) -> ps.StreamApplication:
        app = ps.StreamApplication("counting")
        app.store("counts", value=ps.Long())
        first = app.input("m.in", timestamp=lambda value: value["t"], id="in")
        both = first.merge(app.input("m.more", timestamp=lambda value: value["t"], id="more"), id="both")
        by_key = both.partition_by(lambda value: value["k"], id="by-key", through=self.through)
        by_key.process(Count, stores=["counts"], id="count")
        if self.timed:
            windows = ps.Windows.tumbling("1h", aggregates={"n": ps.Count()})
            by_key.window(windows, id="hours").map(lambda pane: pane.message["n"], id="shown").send_to(
                app.output("m.hours"), id="to-hours"
            )
        app.output("m.out")
        return app

    def driver(self, **given: Any) -> InProcessDriver:
        keys: dict[str, object] = {
            "job.batch.max.messages": 3,
            "job.batch.interval.ms": 1000,
            "systems.m.samza.factory": "memory",
            "task.dead.letter.stream": "m.dead",
            "task.checkpoint.retained": 50,
        }
        if self.exactly_once:
            keys["streams.m.out.output.guarantee"] = "exactly-once"
        return self.make(self.app().graph(), {**keys, **self.config}, **given)

    def run(self) -> None:
        """Read all messages, and end with a commit."""
        driver = self.started()
        steps(driver)
        driver.loop.finish()
        driver.close()

    def put(self, *hours: int, stream: str = "in", bad: bool = False) -> None:
        for hour in hours:
            number = len(self.given)
            value = {"k": f"k{number % 3}", "t": hour * HOUR + number, "bad": bad}
            self.append(stream, number % TASKS, (1, None, json.dumps(value).encode()))
            self.given.append("bad" if bad else f"k{number % 3}")

    def ask(
        self,
        state: WithState | None = "clear",
        output: WithOutput | None = "after",
        stream: str = "in",
        offset: int | None = None,
    ) -> None:
        manager = StartpointManager(self.objects, self.paths, 10**9, self.clock.now_ms)
        for partition in range(TASKS):
            made = {"creation_timestamp": self.clock.now_ms()}
            startpoint = StartpointOldest(**made) if offset is None else StartpointSpecific(str(offset), **made)
            ssp = SystemStreamPartition("m", stream, partition)
            manager.write_startpoint(ssp, startpoint, with_state=state, with_output=output)

    def values(self, stream: str) -> list[tuple[str, Any]]:
        found = (((key or b"").decode(), json.loads(value or b"")) for _, key, value, *_ in self.records(stream))
        return sorted(found, key=str)

    def check(self) -> None:
        """Readers see what a job sends that never went back."""
        counts = Counter(key for key in self.given if key != "bad")
        counted = [(key, n + 1) for key, count in counts.items() for n in range(count)]
        assert self.values("out") == sorted(counted, key=str)


@pytest.fixture(params=[(None, False), (None, True), ("m.through", True)], ids=["sent", "exactly-once", "durable"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Counting]:
    through, exactly_once = request.param
    job = Counting(tmp_path, through, exactly_once=exactly_once)
    for stream in ("in", "more"):
        job.put(*[hour for hour in range(4) for _ in range(4)], stream=stream)
    job.run()
    job.check()
    yield job
    job.close()


def go_on(job: Counting) -> None:
    """More messages come, and are sent."""
    for stream in ("in", "more"):
        job.put(8, 8, stream=stream)
    job.run()
    job.check()


@pytest.mark.few(2)
@pytest.mark.parametrize("state", ["clear", "nearest"])
def test_nothing_is_sent_before_the_old_positions(job: Counting, state: WithState) -> None:
    for stream in ("in", "more"):
        job.put(3, 4, stream=stream)
        job.ask(state, stream=stream, offset=None if state == "clear" else 3)
    driver = job.started()
    assert driver.loop.boundary.quiet_until
    steps(driver)
    assert not driver.loop.boundary.quiet_until
    driver.loop.finish()
    driver.close()
    assert job.checkpoints[-1].quiet_until == {}
    go_on(job)


def test_an_input_that_did_not_move_waits(job: Counting) -> None:
    """Its messages meanwhile would not be sent either."""
    before = job.values("out")
    job.put(4, 5, 5, stream="more")
    job.ask("keep", stream="in")
    driver = job.started()
    while driver.loop.boundary.quiet_until:
        assert job.values("out") == before
        read = {at.ssp.stream for at, end in driver.loop.boundary.positions.items() if end < 8}
        assert read <= {"in"}
        driver.loop.step()
    steps(driver)
    driver.loop.finish()
    assert len(job.values("out")) == len(before) + 3


@pytest.mark.parametrize("after", [1, 6])
def test_a_driver_that_is_killed_meanwhile_stays_quiet(job: Counting, after: int) -> None:
    for stream in ("in", "more"):
        job.ask(stream=stream)
    driver = job.started()
    for _ in range(after):
        driver.loop.step()
    driver.loop.commit()
    driver.loop.step()
    job.kill(driver)
    job.run()
    go_on(job)


def test_a_second_rewind_goes_to_the_oldest_of_the_old_positions(job: Counting) -> None:
    for stream in ("in", "more"):
        job.ask(stream=stream)
    driver = job.started()
    for _ in range(3):
        driver.loop.step()
    driver.loop.finish()
    driver.close()
    assert job.checkpoints[-1].quiet_until
    for stream in ("in", "more"):
        job.ask(stream=stream)
    job.run()
    go_on(job)


def test_a_drain_waits_for_the_old_positions(job: Counting) -> None:
    for stream in ("in", "more"):
        job.ask(stream=stream)
    driver = job.started()
    driver.loop.step()
    assert driver.loop.boundary.quiet_until
    DrainRequests(driver.job.objects, driver.job.paths).ask(driver.job.claim.run_id)
    driver.loop.parts.of(Drain).ask()
    while not driver.loop.step():
        pass
    driver.loop.finish()
    assert job.checkpoints[-1].ended == "drained"
    job.check()


def test_dead_letters_are_sent_again(job: Counting) -> None:
    """A repaired application may fail at other messages than before."""
    job.put(3, 3, bad=True)
    job.run()
    assert len(job.values("dead")) == 2
    for stream in ("in", "more"):
        job.ask(stream=stream)
    job.run()
    assert len(job.values("dead")) == 4
    go_on(job)


def test_output_is_sent_again_by_default(job: Counting) -> None:
    before = len(job.values("out"))
    for stream in ("in", "more"):
        job.ask(output=None, stream=stream)
    job.run()
    assert len(job.values("out")) == 2 * before


def test_a_start_from_an_older_checkpoint_is_quiet_up_to_the_last_one(job: Counting) -> None:
    early = str(job.checkpoints[-1].id)
    job.put(4, 4)
    job.run()
    for stream in ("in", "more"):
        job.ask(stream=stream)
    driver = job.started(from_checkpoint=early)
    steps(driver)
    driver.loop.finish()
    driver.close()
    go_on(job)


def test_a_stream_that_is_created_again_meanwhile_is_sent(job: Counting) -> None:
    for stream in ("in", "more"):
        job.ask(stream=stream)
    driver = job.started()
    driver.loop.step()
    driver.loop.finish()
    driver.close()
    assert job.checkpoints[-1].quiet_until
    admin = job.system.admin()
    admin.delete_stream("in")
    admin.create_stream("in", TASKS)
    job.put(5, 5, 5, 5)
    before = len(job.values("out"))
    job.ask("clear", output=None)
    job.run()
    assert len(job.values("out")) == before + 4


class TestRefusals:
    def test_output_by_time(self, job: Counting) -> None:
        job.ask()
        job.timed = True
        with pytest.raises(IncompatibleError, match="`hours` fires by time"):
            job.driver()
        job.timed, job.config = False, {"task.window.ms": 1000}
        with pytest.raises(IncompatibleError, match="lets tasks send by time"):
            job.driver()

    def test_messages_that_wait_in_a_durable_stream(self, tmp_path: Path) -> None:
        job = Counting(tmp_path, "m.through", exactly_once=True)
        job.put(0, 0, 0, 0)
        driver = job.started()
        driver.loop.step()
        assert driver.loop.boundary.left
        driver.stop.ask()
        driver.loop.finish()
        job.ask()
        with pytest.raises(IncompatibleError, match=r"messages wait in `m\.through`"):
            job.driver()
        job.close()

    def test_requests_that_contradict_each_other(self, job: Counting) -> None:
        job.ask(stream="in")
        job.ask(output="again", stream="more")
        with pytest.raises(IncompatibleError, match='contradict each other: `with_output="after"`'):
            job.driver()

    def test_an_old_position_in_a_stream_that_is_gone(self, job: Counting) -> None:
        admin = job.system.admin()
        admin.delete_stream("in")
        admin.create_stream("in", TASKS)
        job.ask(stream="in")
        with pytest.raises(IncompatibleError, match=r"`m\.in` was deleted and created again since"):
            job.driver()
