"""Inputs that are patterns: which streams they match, and jobs whose streams come and go."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.api.ssp import StreamPattern, SystemStream, SystemStreamPartition
from penstock.drain.driver import Drain
from penstock.drain.requests import DrainRequests
from penstock.driver.watches import LIST_SECONDS, REFUSED_SECONDS
from penstock.errors import ConfigError, IncompatibleError, NotFoundError, PenstockError, SystemAwayError
from penstock.graph.specs import MergeSpec
from penstock.system.memory import MemoryAdmin
from penstock.testing import SettableClock, TestRunner
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.fixtures import fixture_of
from tests.support.world.timed_job import steps
from tests.support.world.world import World

TASKS = 2
PATTERN = "m.orders-.*"


class Count(ps.StreamTask):
    """Sends the stream of each message, and how many of the key came so far."""

    def init(self, context: ps.TaskContext) -> None:
        self.counts = context.store("counts")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        self.counts[envelope.key] = count = self.counts.get(envelope.key, 0) + 1
        collector.send("m.out", key=envelope.key, value=[envelope.value, count])


class Orders(World):
    """A job that counts the orders of each key in all matching streams."""

    def __init__(self, folder: Path, *streams: str) -> None:
        super().__init__(folder, "orders", ("out", *streams), TASKS)
        self.clock: SettableClock = SettableClock(1_700_000_000_000)
        self.config: dict[str, object] = {}
        self.given: list[tuple[str, int]] = []

    def app(self, *, pattern: str = PATTERN, more: str | None = None) -> ps.StreamApplication:
        app = ps.StreamApplication("orders")
        app.store("counts", value=ps.Long())
        stream = app.input(pattern, pattern=True, id="orders")
        if more is not None:
            stream = stream.merge(app.input(more, id="more"))
        stream.partition_by(lambda value: value["k"], id="by-key").process(Count, stores=["counts"], id="count")
        app.output("m.out")
        return app

    def driver(self, app: ps.StreamApplication | None = None, **given: Any) -> InProcessDriver:
        keys = {"job.batch.interval.ms": "1000", "systems.m.samza.factory": "memory"}
        return self.make((app or self.app()).graph(), {**keys, **self.config}, **given)

    def put(self, stream: str, *keys: str) -> None:
        for key in keys:
            number = len(self.given)
            value = {"k": key, "n": number}
            self.append(stream, number % TASKS, (1, None, json.dumps(value).encode()))
            self.given.append((key, number))

    def create(self, stream: str, partitions: int = TASKS) -> None:
        self.system.admin().create_stream(stream, partitions)

    def check(self) -> None:
        """Every order was counted once, as a plain count says."""
        came = [json.loads(data or b"") for _, _, data, *_ in self.records("out")]
        assert sorted(value["n"] for value, _ in came) == [number for _, number in self.given]
        counts = Counter(key for key, _ in self.given)
        assert sorted((value["k"], count) for value, count in came) == sorted(
            (key, number + 1) for key, count in counts.items() for number in range(count)
        )


orders = fixture_of(Orders, "orders-eu", "orders-us", "old-orders-eu")


def finish(driver: InProcessDriver) -> None:
    steps(driver)
    driver.loop.finish()
    driver.close()


def run_to_the_end(orders: Orders) -> None:
    driver = orders.driver(until_latest=True)
    driver.loop.run()
    driver.close()


def until_it_ends(driver: InProcessDriver) -> None:
    for _ in range(100):
        if driver.stop.graceful.is_set():
            return
        driver.loop.step()
    raise AssertionError("the run goes on")


def begins_again(driver: InProcessDriver) -> bool:
    """Run on until it ends, and say whether another run is to follow."""
    until_it_ends(driver)
    driver.loop.finish()
    driver.close()
    return driver.stop.begins_again()


class TestMatching:
    def test_whole_names_of_one_system_match(self) -> None:
        pattern = StreamPattern.parse("m.orders-.*")
        names = ["m.orders-eu", "m.orders-", "m.orders", "m.old-orders-eu", "n.orders-eu"]
        assert [name for name in names if pattern.matches(SystemStream.parse(name))] == ["m.orders-eu", "m.orders-"]

    def test_inputs_take_its_place(self, orders: Orders) -> None:
        graph = orders.driver().job.topology.graph
        assert [(op.id, str(op.stream)) for op in graph.inputs] == [
            ("orders.orders-eu", "m.orders-eu"),
            ("orders.orders-us", "m.orders-us"),
        ]
        merged = graph.operator("orders")
        assert isinstance(merged, MergeSpec)
        assert merged.upstream == ("orders.orders-eu", "orders.orders-us")

    def test_streams_of_the_job_itself_do_not_match(self, orders: Orders) -> None:
        for stream in ("orders-dead", "orders-log", "orders-metrics"):
            orders.create(stream)
        orders.config |= {
            "task.dead.letter.stream": "m.orders-dead",
            "stores.counts.changelog": "m.orders-log",
            "metrics.reporter.snapshot.stream": "m.orders-metrics",
        }
        app = orders.app()
        app.input("m.old-orders-eu").send_to(app.output("m.orders-out"))
        inputs = [str(stream) for stream in orders.driver(app).job.plan.inputs]
        assert sorted(inputs) == ["m.old-orders-eu", "m.orders-eu", "m.orders-us"]

    @pytest.mark.parametrize(
        ("pattern", "more", "error", "said"),
        [
            ("m.sales-.*", None, NotFoundError, "no stream that matches `sales-.*`, the pattern of input `orders`"),
            (PATTERN, "m.orders-us", ConfigError, "`m.orders-us` matches `m.orders-.*` of input `orders` and is read"),
            ("n.orders-.*", None, ConfigError, "there is no system `n`"),
        ],
    )
    def test_what_cannot_be_read(
        self, orders: Orders, pattern: str, more: str | None, error: type[PenstockError], said: str
    ) -> None:
        with pytest.raises(error, match=said):
            orders.driver(orders.app(pattern=pattern, more=more))

    def test_what_cannot_be_declared(self) -> None:
        app = ps.StreamApplication("orders")
        with pytest.raises(ConfigError, match=r"`orders-\(` in the pattern `m.orders-\(` is no regular expression"):
            app.input("m.orders-(", pattern=True)
        app.input(PATTERN, pattern=True)
        with pytest.raises(ConfigError, match="declared twice"):
            app.input(PATTERN, pattern=True)

    def test_a_task_application_and_a_runner(self) -> None:
        class Forward(ps.StreamTask):
            def process(
                self,
                envelope: ps.IncomingMessageEnvelope,
                collector: ps.MessageCollector,
                coordinator: ps.TaskCoordinator,
            ) -> None:
                collector.send("m.out", value=[envelope.ssp.stream, envelope.value])

        app = ps.TaskApplication("forward", Forward)
        app.input(PATTERN, pattern=True)
        app.output("m.out")
        runner = TestRunner(app, streams=["m.orders-eu", "m.orders-us"])
        runner.input("m.orders-us", [1]).input("m.orders-eu", [2]).run()
        assert sorted(message.value for message in runner.output("m.out")) == [["orders-eu", 2], ["orders-us", 1]]
        with pytest.raises(NotFoundError, match="no stream that matches"):
            TestRunner(app)


class TestNewStreams:
    def test_a_running_job_takes_in_a_new_stream_from_its_oldest_message(self, orders: Orders) -> None:
        driver = orders.started()
        orders.put("orders-eu", "a", "b", "a")
        steps(driver)
        orders.create("orders-asia")
        orders.put("orders-asia", "a", "c")
        orders.create("orders-cn", partitions=1)
        orders.clock.advance(LIST_SECONDS)
        assert begins_again(driver)
        driver = orders.started()
        orders.put("orders-asia", "b")
        orders.put("orders-us", "c")
        finish(driver)
        orders.check()
        assert len(driver.job.plan.inputs) == 4

    def test_no_run_follows_one_that_was_asked_to_end(self, orders: Orders) -> None:
        driver = orders.started()
        orders.create("orders-asia")
        orders.clock.advance(LIST_SECONDS)
        steps(driver)
        driver.stop.request()
        assert not driver.stop.immediate.is_set(), "it is the first request of a user"
        assert not begins_again(driver)

    def test_a_process_that_is_killed_before_it_begins_again_loses_nothing(self, orders: Orders) -> None:
        driver = orders.started()
        orders.put("orders-eu", "a", "b")
        orders.create("orders-asia")
        orders.put("orders-asia", "a")
        orders.clock.advance(LIST_SECONDS)
        run = driver.job.claim.run_id
        assert begins_again(driver)
        assert orders.checkpoints[-1].ended is None
        driver = orders.started()
        assert driver.job.claim.run_id == run, "requests for the run are for what follows as well"
        finish(driver)
        orders.check()

    def test_a_drain_comes_before_the_next_start(self, orders: Orders) -> None:
        driver = orders.started()
        orders.create("orders-asia")
        orders.clock.advance(LIST_SECONDS)
        until_it_ends(driver)
        assert driver.stop.goes_on
        DrainRequests(driver.job.objects, driver.job.paths).ask(driver.job.claim.run_id)
        while not driver.loop.run_to_the_end():
            pass
        assert orders.checkpoints[-1].ended == "drained"
        assert not driver.stop.begins_again()

    def test_a_drain_that_comes_during_the_last_commit_is_obeyed_afterwards(self, orders: Orders) -> None:
        driver = orders.started()
        orders.put("orders-eu", "a")
        orders.create("orders-asia")
        orders.clock.advance(LIST_SECONDS)
        until_it_ends(driver)
        run = driver.job.claim.run_id

        def ask() -> None:
            DrainRequests(driver.job.objects, driver.job.paths).ask(run)

        orders.at(driver, "before the record", ask)
        assert begins_again(driver)
        driver = orders.started()
        steps(driver)
        assert driver.loop.parts.of(Drain).active

    def test_no_new_stream_is_read_while_one_is_refused(self, orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
        """The next start would be refused: a job that works must not end for that."""
        driver = orders.started()
        orders.create("orders-big", partitions=3)
        orders.create("orders-asia")
        orders.put("orders-asia", "a")
        for _ in range(2):
            orders.clock.advance(LIST_SECONDS)
            steps(driver)
        assert not driver.stop.graceful.is_set()
        orders.system.admin().delete_stream("orders-big")
        orders.clock.advance(LIST_SECONDS)
        assert begins_again(driver)
        finish(orders.started())
        orders.check()
        assert caplog.text.count("The job cannot begin again with them") == 1

    def test_a_stream_of_two_patterns_ends_no_job(self, orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
        app = orders.app()
        app.input("m.old-.*|.*-both", pattern=True).send_to(app.output("m.copy"))
        driver = orders.started(app)
        orders.create("orders-both")
        orders.clock.advance(LIST_SECONDS)
        steps(driver)
        assert not driver.stop.graceful.is_set()
        assert "`m.orders-both` matches `m.old-.*|.*-both` of input `input-1` and is read by" in caplog.text

    def test_a_refused_start_is_tried_again_later(self, orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
        """A startpoint of a partition that the new stream does not have, for example."""
        driver = orders.started()
        key, job = SystemStreamPartition("m", "orders-asia", 1), driver.job
        job.startpoints.write_startpoint(key, ps.StartpointOldest(creation_timestamp=orders.clock.now_ms()))
        orders.create("orders-asia", partitions=1)
        orders.put("orders-asia", "a")
        for _ in range(int(REFUSED_SECONDS / LIST_SECONDS) - 1):
            orders.clock.advance(LIST_SECONDS)
            steps(driver)
        assert not driver.stop.graceful.is_set()
        assert caplog.text.count("The job cannot begin again with them") == 1
        job.startpoints.delete_startpoint(key)
        orders.clock.advance(LIST_SECONDS)
        steps(driver)
        assert not driver.stop.graceful.is_set(), "a try reads the log: not every half a minute"
        orders.clock.advance(LIST_SECONDS)
        assert begins_again(driver)
        finish(orders.started())
        orders.check()

    def test_a_run_with_an_end_does_not_look(self, orders: Orders) -> None:
        driver = orders.started(until_latest=True)
        orders.create("orders-asia")
        orders.clock.advance(LIST_SECONDS)
        driver.loop.step()
        assert not driver.stop.graceful.is_set()

    def test_the_first_start_begins_where_the_configuration_says(self, orders: Orders) -> None:
        orders.put("orders-eu", "a")
        orders.given.clear()
        orders.config["systems.m.default.stream.samza.offset.default"] = "upcoming"
        driver = orders.started()
        orders.put("orders-us", "a")
        finish(driver)
        orders.create("orders-asia")
        orders.put("orders-asia", "b")
        run_to_the_end(orders)
        orders.check()

    def test_more_partitions_than_tasks_are_refused_without_an_outage(
        self, orders: Orders, caplog: pytest.LogCaptureFixture
    ) -> None:
        driver = orders.started()
        orders.create("orders-asia", partitions=3)
        for _ in range(3):
            orders.clock.advance(LIST_SECONDS)
            orders.put("orders-eu", "a")
            steps(driver)
        said = [each.message for each in caplog.records if "orders-asia" in each.message]
        assert len(said) == 1
        assert "with 2 tasks, now there are 3" in said[0]
        finish(driver)
        orders.check()
        with pytest.raises(IncompatibleError, match="with 2 tasks, now there are 3"):
            orders.driver()


class TestStreamsThatGo:
    def test_a_job_continues_without_a_deleted_stream(self, orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
        driver = orders.started()
        orders.put("orders-eu", "a", "b")
        orders.put("orders-us", "a", "b")
        steps(driver)
        orders.system.admin().delete_stream("orders-us")
        orders.clock.advance(LIST_SECONDS)
        assert begins_again(driver)
        orders.put("orders-eu", "a")
        driver = orders.started()
        finish(driver)
        orders.check()
        assert "its position is forgotten" in caplog.text
        orders.create("orders-us")
        orders.put("orders-us", "b")
        run_to_the_end(orders)
        orders.check()

    def test_a_list_that_lacks_a_stream_is_not_believed(self, orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its position would be forgotten, and the stream read again from its beginning."""
        driver = orders.started()
        orders.put("orders-us", "a", "b")
        finish(driver)
        with monkeypatch.context() as patch:
            patch.setattr(MemoryAdmin, "streams", lambda _: ["orders-eu", "out"])
            with pytest.raises(SystemAwayError, match="did not name it in the list"):
                orders.driver()
        orders.put("orders-us", "a")
        run_to_the_end(orders)
        orders.check()


def test_a_stream_that_becomes_the_jobs_own_is_left(orders: Orders) -> None:
    orders.create("orders-dead")
    finish(orders.started())
    orders.config["task.dead.letter.stream"] = "m.orders-dead"
    assert "m.orders-dead" not in map(str, orders.driver().job.plan.inputs)


def test_inputs_are_reset_once(orders: Orders) -> None:
    config = orders.driver().job.config
    stream, name = SystemStream("m", "orders-us"), "streams.m.orders-us.samza.reset.offset"
    given = orders.load({**orders.config, "systems.m.samza.factory": "memory", name: "true"}, ["counts"])
    assert given.stream(stream).reset_offset
    assert not given.without_resets().stream(stream).reset_offset
    assert config.without_resets().flat() == config.flat()


def test_a_look_costs_nothing_without_patterns(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    app = ps.StreamApplication("orders")
    app.input("m.orders-eu").send_to(app.output("m.out"))
    driver = orders.started(app)
    monkeypatch.setattr(MemoryAdmin, "streams", lambda _: pytest.fail("asked for all streams"))
    orders.clock.advance(LIST_SECONDS)
    driver.loop.step()
