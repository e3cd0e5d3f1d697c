"""Time to live in whole jobs on drivers and containers of this process, and what is read of them from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

import penstock as ps
from penstock import admin
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.errors import RetryableError
from penstock.graph.stores import StoreLayout
from penstock.objects.open import open_store
from penstock.state.reading.comparison import expiry_problem
from penstock.state.reading.reader import read_store
from penstock.state.stores import build
from penstock.state.stores.timed_entries import META, RESERVED, meta_bytes
from penstock.system.partitioner import partition_of
from penstock.system.registry import open_systems
from penstock.testing.clock import SettableClock
from penstock.testing.in_process import InProcessDriver
from tests.support.stores.state_job import JOB, StateJob
from tests.support.tools.fixtures import fixture_of

NOW = 1_700_000_000_000
HOUR = 3_600_000
TASKS = 2
BACKENDS = "changelog-files,blob,changelog-stream"


class Keep(ps.StreamTask):
    """Keeps the value of a message; of one without a value, notes what it kept under the key."""

    def init(self, context: ps.TaskContext) -> None:
        self.kept, self.seen = context.store("kept"), context.store("seen")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        if envelope.value == "look":
            self.seen[envelope.key] = self.kept.get(envelope.key, "nothing")
        else:
            self.kept[envelope.key] = envelope.value


class World:
    """Job `keep`, and a clock that the test moves."""

    def __init__(self, home: Path) -> None:
        self.config = load_config(
            overrides={
                "job.name": "keep",
                "job.logged.store.base.dir": str(home / "local"),
                "stores.kept.factory": "memory",
                "stores.seen.factory": "memory",
                "stores.backup.factories": BACKENDS,
                "task.commit.ms": 0,
                "task.checkpoint.retained": "9",
            }
        )
        self.objects, self.systems = open_store(self.config.job.root), open_systems(self.config)
        self.systems["local"].admin().create_stream("in", TASKS)
        self.clock = SettableClock(NOW)
        self.drivers: list[InProcessDriver] = []

    def started(self, ttl_ms: int | None = HOUR) -> InProcessDriver:
        """Another driver, with its first epoch open."""
        driver = self.driver(ttl_ms)
        driver.loop.start()
        return driver

    def driver(self, ttl_ms: int | None = HOUR, **given: Any) -> InProcessDriver:
        """Another driver."""
        app = ps.TaskApplication("keep", Keep)
        app.store("kept", ttl_ms=ttl_ms)
        app.store("seen")
        app.input("local.in", timestamp=lambda _: NOW)
        graph = app.graph()
        driver = InProcessDriver(graph, self.config, self.objects, self.systems, clock=self.clock, **given)
        self.drivers.append(driver)
        return driver

    def batch(self, driver: InProcessDriver, *messages: str, value: Any = 1) -> None:
        """A batch with a message of each key; by default of one that nobody looks at."""
        writer = self.systems["local"].writer(None)
        for key in messages or ("other",):
            data = key.encode()
            ssp = ps.SystemStreamPartition("local", "in", partition_of(data, TASKS))
            writer.append(ssp, [(NOW, data, orjson.dumps(value))])
        writer.close()
        before = driver.loop.boundary.batch
        while driver.loop.boundary.batch == before:
            driver.loop.step()

    def wait(self, ms: int) -> None:
        self.clock.advance(ms / 1000)

    def seen(self, store: str, record: CheckpointRecord | None = None) -> dict[str, Any]:
        found = read_store(self.config, store, record, self.systems)
        return {key.decode(): orjson.loads(value) for _, key, value in found if key != b"other"}

    def stored(self, driver: InProcessDriver) -> list[bytes]:
        """The keys that the engines hold, without those of the index."""
        engines = [driver.fleet.container_of(task).tasks[task].engine("kept") for task in range(TASKS)]
        assert all(expiry_problem(engine) is None for engine in engines)
        return sorted(k for engine in engines for k, _ in engine.scan(None, None) if not k.startswith(RESERVED))

    @property
    def records(self) -> list[CheckpointRecord]:
        return [
            each for each in CheckpointLog(self.objects, self.drivers[-1].job.paths).read().checkpoints if each.batch
        ]

    def close(self) -> None:
        for driver in self.drivers:
            driver.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


world = fixture_of(World, using=("home",))


def test_readers_judge_by_the_batch_time_of_their_checkpoint(world: World) -> None:
    driver = world.started()
    world.batch(driver, "a", "b")
    driver.loop.commit()
    world.wait(HOUR // 2)
    world.batch(driver, "a", "c", value=2)
    driver.loop.commit()
    world.wait(HOUR // 2)
    world.batch(driver)
    driver.loop.commit()
    first, second, third = (record for record in world.records if record.kind_detail == "commit")
    assert [record.batch_time_ms - NOW for record in (first, second, third)] == [0, HOUR // 2, HOUR]
    assert world.seen("kept", first) == {"a": 1, "b": 1}
    assert world.seen("kept", second) == {"a": 2, "b": 1, "c": 2}
    assert world.seen("kept", third) == {"a": 2, "c": 2}
    assert b"b" in world.stored(driver), "it was not yet deleted, which nobody sees"
    driver.close()
    world.drivers.clear()
    with admin.open_job("keep") as job:
        for version, keys in ((first, "ab"), (second, "abc"), (third, "ac")):
            with admin.open_state(job, "kept", str(version.id)) as opened:
                assert {entry.key for entry in opened.scan()} - {"other"} == set(keys)
                assert [key for key in "abcd" if opened.get(key)] == list(keys)
        assert admin.verify(job).agrees
        with admin.open_diff(job, "kept", str(second.id), str(third.id)) as compared:
            assert [(each.key, each.change) for each in compared.differences if each.key != b"other"] == [
                (b"b", "removed")
            ]
        with admin.open_diff(job, "kept", str(first.id), str(second.id)) as compared:
            assert [(each.key, each.before, each.after) for each in compared.differences] == [
                (b"a", b"1", b"2"),
                (b"c", None, b"2"),
            ]


def test_versions_with_the_same_bytes_differ_where_entries_have_expired(world: World) -> None:
    """A task whose marker is the same in both is not restored, unless its store has a time to live."""
    driver = world.started()
    world.batch(driver, "a", "b", "c")
    driver.loop.commit()
    world.wait(HOUR)
    world.batch(driver, "a", value="look")
    driver.loop.commit()
    first, second = [record for record in world.records if record.kind_detail == "commit"]
    assert world.seen("kept", second) == {}
    assert world.seen("seen", second) == {"a": "nothing"}
    with admin.open_job("keep") as job, admin.open_diff(job, "kept", str(first.id), str(second.id)) as compared:
        assert [(each.key, each.change) for each in compared.differences] == [
            (key, "removed") for key in (b"a", b"b", b"c")
        ]


def test_verify_finds_an_index_that_does_not_fit(home: Path) -> None:
    job = StateJob(home, layouts={"first": "task string json ttl-1", "second": "task string json"})
    expires = (NOW + HOUR).to_bytes(8, "big") + b"\x00"
    job.commit({0: {META: meta_bytes(None)}})
    whole = job.commit({0: {b"k": expires + b"1", RESERVED + b"\x01" + expires[:8] + b"k": b""}})
    broken = job.commit({0: {b"other": expires + b"1"}})
    with admin.open_job(JOB) as found:
        assert admin.verify(found, str(whole.id), ["first"]).agrees
        verdict = admin.verify(found, str(broken.id), ["first"])
    assert not verdict.agrees
    (backend,) = verdict.stores[0].backends
    assert backend.problem == "store `first` of task 0: the entry of key b'other' is not in the expiry index"


@pytest.mark.few(1)
@pytest.mark.parametrize("step", ["stage 1", "end"])
def test_a_time_to_live_is_added_to_a_job_with_state(world: World, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Old entries count from the first batch that has it, though they are given headers over several batches, and
    containers are lost meanwhile."""
    monkeypatch.setattr(build, "AT_MOST", 3)
    driver = world.started(ttl_ms=None)
    keys = [f"k{n:02}" for n in range(20)]
    world.batch(driver, *keys)
    driver.loop.commit()
    driver.close()
    world.wait(5 * HOUR)
    driver = world.started()
    assert world.seen("kept") == dict.fromkeys(keys, 1), "nothing has expired before the first batch"
    began = 0
    for number in range(6):
        if number == 2:
            driver.fleet.at = driver.runner.at = losing(driver, step)
        world.batch(driver, f"k{number:02}", value=2)
        driver.fleet.at = driver.runner.at = lambda _: None
        began = began or driver.loop.boundary.batch_time_ms
        driver.loop.commit()
        assert world.seen("kept") == dict.fromkeys(keys, 1) | {f"k{n:02}": 2 for n in range(number + 1)}
        if number == 3:
            with admin.open_job("keep") as job:
                assert admin.verify(job).agrees
        world.wait(1000)
    assert StoreLayout.parse(world.records[-1].stores["kept"]).expires
    world.wait(began + HOUR - 1 - world.clock.now_ms())
    world.batch(driver)
    driver.loop.commit()
    assert len(world.seen("kept")) == 20
    world.wait(1)
    world.batch(driver)
    driver.loop.commit()
    assert world.seen("kept") == {f"k{n:02}": 2 for n in range(1, 6)}, "those written since live longer"
    for _ in range(5):
        world.wait(HOUR)
        world.batch(driver)
    assert world.stored(driver) == [b"other"]
    assert driver.board.metrics.snapshot().total("expired", group="store.kept") >= 20


def losing(driver: InProcessDriver, step: str) -> Any:
    """Loses the containers of both tasks, once, before a step."""
    left = [step]

    def at(name: str) -> None:
        if left == [name]:
            left.clear()
            driver.fleet.lose(1)

    return at


def test_a_batch_that_is_run_again_sees_the_same_entries(world: World) -> None:
    """Though the clock has passed the time at which one of them expires."""
    driver = world.started()
    world.batch(driver, "a")
    world.wait(HOUR - 1)
    breaks = [True]

    def at(name: str) -> None:
        if name == "reports" and breaks:
            breaks.clear()
            world.wait(2)
            raise RetryableError("a connection broke")

    driver.runner.at = at
    world.batch(driver, "a", value="look")
    assert not breaks
    driver.loop.commit()
    assert world.seen("seen") == {"a": 1}
    world.batch(driver, "a", value="look")
    driver.loop.commit()
    assert world.seen("seen") == {"a": "nothing"}


def test_the_clock_goes_back_between_two_drivers(world: World) -> None:
    """The batch time does not, so nothing that has expired comes back, and new entries live as long as they should."""
    driver = world.started()
    world.batch(driver, "a")
    world.wait(HOUR)
    world.batch(driver, "b")
    driver.loop.commit()
    driver.close()
    world.clock.correct(-2 * HOUR)
    driver = world.started()
    world.batch(driver, "a", "b", value="look")
    driver.loop.commit()
    assert world.seen("seen") == {"a": "nothing", "b": 1}
    assert world.seen("kept") == {"b": 1}


def test_a_drain_with_ttl_state(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the stream, in which everything fires that waits for a time, neither expires nor drops an entry: the
    index is not a timer. What had expired by then is deleted within the same bound as ever."""
    monkeypatch.setattr(build, "AT_MOST", 2)
    driver = world.started()
    old = [f"old {n}" for n in range(40)]
    world.batch(driver, *old)
    world.wait(2 * HOUR)
    world.batch(driver, "a", "b", "c")
    driver.loop.commit()
    before = len(world.stored(driver))
    assert before > 3 + 2 * TASKS
    driver.close()
    closing = world.driver(until_latest=True)
    closing.loop.run()
    batches = closing.loop.boundary.batch - driver.loop.boundary.batch
    last = world.records[-1]
    assert last.ended == "end-of-stream"
    assert world.seen("kept") == {"a": 1, "b": 1, "c": 1}
    stored = world.stored(closing)
    assert before - 2 * TASKS * batches <= len(stored) < before
    assert {b"a", b"b", b"c"} < set(stored)
    closing.close()
    driver = world.started()
    world.wait(HOUR - 1)
    world.batch(driver, "a", value="look")
    world.wait(1)
    world.batch(driver, "b", value="look")
    driver.loop.commit()
    assert world.seen("seen") == {"a": 1, "b": "nothing"}
