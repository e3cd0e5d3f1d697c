"""A replay shows what a job did: the same messages, states and outputs as a plain computation over the same input."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

import penstock as ps
from penstock import admin
from penstock.api.ssp import SystemStreamPartition
from penstock.config import load_config
from penstock.drain.driver import Drain
from penstock.drain.requests import write_drain_notification
from penstock.errors import ConfigError, IncompatibleError, NotFoundError, PenstockError, UserCodeError
from penstock.objects.open import open_job_root
from penstock.state import restore
from penstock.state.backends.registry import backend_factory
from penstock.system.local import LocalSystem
from penstock.system.partitioner import partition_of
from penstock.testing.in_process import InProcessDriver
from penstock.testing.rehearsal.passes import Step
from penstock.testing.rehearsal.replay import replay_input, replay_key, replay_output
from tests.support.tools.cli import own_home

KEYS = ["N1", "N14", "N2"]
PARTITIONS = 2


@dataclass
class World:
    """A job with one input, and its streams."""

    home: Path
    app: Any
    keys: dict[str, Any]

    @property
    def streams(self) -> LocalSystem:
        return LocalSystem("local", str(self.home / "streams"))

    def publish(self, *trips: tuple[int, str, int]) -> None:
        """Partition, plane and miles of each. The time is a second for each message of a partition."""
        with closing(self.streams.writer(None)) as writer, closing(self.streams.admin()) as looks:
            for partition, plane, miles in trips:
                second = looks.offsets("trips")[partition].upcoming
                value = orjson.dumps({"plane": plane, "miles": miles})
                at = SystemStreamPartition("local", "trips", partition)
                writer.append(at, [(1_000_000 + 1000 * second, plane.encode(), value)])

    def run_for(self, done: Callable[[], bool]) -> None:
        """Run until something is so, and commit."""
        config = load_config(overrides=self.keys)
        with (
            closing(open_job_root(config.job)) as objects,
            closing(InProcessDriver(self.app.graph(), config, objects, {}, containers=1)) as driver,
        ):
            driver.loop.start()
            while not done():
                driver.loop.step()
            driver.loop.finish()

    def run(self, *, close: bool = False, drain: bool = False, from_checkpoint: str | None = None) -> None:
        config = load_config(overrides=self.keys)
        with closing(open_job_root(config.job)) as objects:
            graph = self.app.graph()
            driver = InProcessDriver(
                graph,
                config,
                objects,
                {},
                containers=1,
                until_latest=True,
                close=close,
                from_checkpoint=from_checkpoint,
            )
            with closing(driver):
                if not drain:
                    driver.loop.run()
                    return
                driver.loop.start()
                while driver.loop.parts.feed.remaining(driver.loop.boundary):
                    driver.loop.step()
                write_drain_notification(objects, driver.job.paths)
                driver.loop.parts.of(Drain).ask()
                while not driver.loop.step():
                    pass
                driver.loop.finish()

    def sent(self, stream: str) -> list[tuple[int, int, Any, Any]]:
        """Partition, offset, key and value of each message."""
        with closing(self.streams.admin()) as looks, closing(self.streams.reader()) as reader:
            return [
                (number, offset, (key or b"").decode(), orjson.loads(value or b""))
                for number, ends in looks.offsets(stream).items()
                for chunk in reader.read(_range(stream, number, ends.upcoming), 1000)
                for offset, _, key, value, *_ in chunk
            ]

    def shown(self, which: Any, *given: Any, **options: Any) -> tuple[list[dict[str, Any]], Any]:
        """The steps as JSON, and the end of the replay."""
        steps: list[dict[str, Any]] = []

        def tell(step: Step) -> None:
            steps.append(step.as_json())

        with admin.open_job("flights", overrides=self.keys) as job:
            return steps, which(job, self.app, *given, tell, **options)


def _range(stream: str, partition: int, end: int) -> Any:
    from penstock.system.base import OffsetRange

    return OffsetRange(SystemStreamPartition("local", stream, partition), 0, end)


def total_of(app: Any, trips: Any, **options: Any) -> Any:
    def add(total: dict[str, Any], trip: dict[str, Any]) -> dict[str, Any]:
        return {"plane": total["plane"], "miles": total["miles"] + trip["miles"]}

    return trips.reduce(add, id="total", **options).send_to(app.output("local.totals"))


def keyed() -> ps.StreamApplication:
    app = ps.StreamApplication("flights")
    total_of(app, app.input("local.trips").partition_by(lambda trip: trip["plane"]))
    return app


def unkeyed() -> ps.StreamApplication:
    """Without an exchange: the keys are the input's."""
    app = ps.StreamApplication("flights")
    total_of(app, app.input("local.trips"))
    return app


def in_columns() -> ps.StreamApplication:
    app = ps.StreamApplication("flights")
    rows = ps.Columns(pa.schema({"plane": pa.string(), "miles": pa.int64()}))
    trips = app.input("local.trips", value=rows).partition_by(ps.col("plane"))
    app_total = trips.aggregate({"miles": ps.Sum(ps.col("miles"))}, id="total")
    app_total.send_to(app.output("local.totals"))
    return app


class Total(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.total = context.store("total")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        before = self.total.get(envelope.key, {"miles": 0})
        after = {"plane": envelope.key, "miles": before["miles"] + envelope.value["miles"]}
        self.total[envelope.key] = after
        collector.emit(key=envelope.key, value=after)


def with_ttl() -> ps.StreamApplication:
    app = ps.StreamApplication("flights")
    app.store("total", ttl_ms="1h")
    trips = app.input("local.trips").partition_by(lambda trip: trip["plane"])
    trips.process(Total, stores=["total"], id="totals").send_to(app.output("local.totals"))
    return app


FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "exchange": (keyed, {}),
    "input": (unkeyed, {}),
    "columns": (in_columns, {}),
    "exactly once": (keyed, {"streams.local.totals.output.guarantee": "exactly-once"}),
    "stream": (keyed, {"stores.backup.factories": "changelog-stream", "stores.restore.factories": "changelog-stream"}),
    "blob": (keyed, {"stores.backup.factories": "blob", "job.root.key": "the key of this root, 32 characters or more"}),
    "ttl": (with_ttl, {}),
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    home = own_home(tmp_path, monkeypatch)

    def made(app: Any, **keys: Any) -> World:
        found = World(
            home, app, {"job.name": "flights", "job.batch.max.messages": 7, "task.checkpoint.retained": 9} | keys
        )
        found.streams.admin().create_stream("trips", PARTITIONS)
        return found

    return made


def random_trips(rng: random.Random, count: int) -> list[tuple[int, str, int]]:
    return [(rng.randrange(PARTITIONS), rng.choice(KEYS), rng.randrange(1, 100)) for _ in range(count)]


def miles_in(state: Any) -> int:
    """The sum in a state; that of an aggregate of columns is in a column of its own."""
    miles = 0 if state is None else state["miles"]
    return sum(miles.values()) if isinstance(miles, dict) else int(miles)


QUICK = ("exchange", "exactly once")


@pytest.mark.parametrize(
    "form", [pytest.param(each, marks=[] if each in QUICK else pytest.mark.slow) for each in FORMS]
)
def test_every_message_of_a_key_with_the_state_before_and_after(form: str, world: Any) -> None:
    rng = random.Random(form)
    app, keys = FORMS[form]
    flights = world(app(), **keys)
    runs = [random_trips(rng, 25) for _ in range(3)]
    for trips in runs:
        if form == "input":  # a key stays in its partition
            trips[:] = [(KEYS.index(plane) % PARTITIONS, plane, miles) for _, plane, miles in trips]
        flights.publish(*trips)
        flights.run()
    before = flights.sent("totals")
    for key in KEYS:
        steps, done = flights.shown(replay_key, key)
        own = [trip for trips in runs for trip in trips if trip[1] == key]
        assert done.messages == len(own) == len(steps)
        assert done.differing == ()
        total = 0
        for step in steps:
            (message,) = step["messages"]
            (change,) = step["changes"]
            miles = message["value"]["miles"]
            assert (change["key"], change["store"].split(".")[0]) == (key, "total")
            assert miles_in(change["before"]) == total
            total += miles
            assert miles_in(change["after"]) == total
            (sent,) = step["outputs"]
            assert (sent["output"], sent["key"], sent["value"]["miles"]) == ("local.totals", key, total)
        assert total == sum(miles for *_, miles in own)
        real = [value["miles"] for _, _, name, value in before if name == key]
        shown = [step["outputs"][0]["value"]["miles"] for step in steps]
        if form == "columns":  # an aggregate sends once for each batch, and each message is alone in one
            assert set(real) < set(shown)
        else:
            assert sorted(shown) == sorted(real)
    assert flights.sent("totals") == before, "a replay sends nothing"


def test_a_replay_leaves_nothing_behind(world: Any, tmp_path: Path) -> None:
    flights = world(keyed())
    flights.publish((0, "N1", 5), (1, "N1", 7))
    flights.run()

    def files() -> set[str]:
        return {str(path) for path in tmp_path.rglob("*") if not path.name.endswith(("-shm", "-wal"))}

    before = files()
    flights.shown(replay_key, "N1")
    assert files() == before


def test_one_message_of_an_input(world: Any) -> None:
    flights = world(keyed())
    for miles in (1, 10, 100):
        flights.publish((0, "N1", miles), (1, "N1", 2 * miles), (1, "N2", 7))
        flights.run()
    steps, done = flights.shown(replay_input, SystemStreamPartition("local", "trips", 1), 4)
    assert (done.messages, len(steps)) == (1, 1)
    (step,) = steps
    assert [(each["input"], each["offset"], each["value"]["miles"]) for each in step["messages"]] == [
        ("local.trips.1", 4, 200)
    ]
    assert step["changes"][0]["after"]["miles"] - step["changes"][0]["before"]["miles"] == 200


def test_the_messages_that_made_a_row(world: Any) -> None:
    flights = world(keyed())
    for miles in (1, 10, 100):
        flights.publish((0, "N1", miles), (1, "N2", 7), (0, "N1", 2 * miles))
        flights.run()
    rows = [row for row in flights.sent("totals") if row[2] == "N1"]
    assert [row[3]["miles"] for row in rows] == [1, 3, 13, 33, 133, 333]
    partition, offset, _, value = rows[3]
    steps, done = flights.shown(replay_output, SystemStreamPartition("local", "totals", partition), offset)
    assert [step["messages"][0]["value"]["miles"] for step in steps] == [10, 20], "of the run that sent it"
    assert steps[-1]["outputs"][0]["value"] == value
    assert done.messages == 2


def test_windows_fire_behind_the_last_message_of_their_batch(world: Any) -> None:
    app = ps.StreamApplication("flights")
    trips = app.input("local.trips").partition_by(lambda trip: trip["plane"])
    panes = trips.window(ps.Windows.tumbling(5_000, aggregates={"n": ps.Count()}), id="fives")
    panes.map(lambda pane: {"plane": pane.key, "n": pane.message["n"]}).send_to(app.output("local.panes"))
    flights = world(app)
    rng = random.Random(1)
    for _ in range(3):
        flights.publish(*random_trips(rng, 30))
        flights.run()
    real = flights.sent("panes")
    assert len(real) > 10
    for key in KEYS:
        steps, done = flights.shown(replay_key, key)
        assert done.differing == ()
        shown = [sent["value"] for step in steps for sent in step["outputs"]]
        assert sorted(map(str, shown)) == sorted(str(value) for _, _, name, value in real if name == key)
        assert all(not step["messages"] for step in steps if step["outputs"])
        assert all(change["key"] == key for step in steps for change in step["changes"])
    partition, offset, key, value = real[-1]
    steps, _ = flights.shown(replay_output, SystemStreamPartition("local", "panes", partition), offset)
    assert value in [sent["value"] for sent in steps[-1]["outputs"]]


def test_an_operator_that_does_not_do_the_same_twice_is_named(world: Any) -> None:
    made = iter(range(1000))
    app = ps.StreamApplication("flights")
    trips = app.input("local.trips").partition_by(lambda trip: trip["plane"], id="by-plane")
    total_of(app, trips.map(lambda trip: {**trip, "miles": next(made)}, id="numbered"))
    flights = world(app)
    flights.publish((0, "N1", 5), (1, "N1", 7))
    flights.run()
    _, done = flights.shown(replay_key, "N1")
    assert done.differing == ("numbered",)


def test_dead_letters_are_shown(world: Any) -> None:
    app = ps.StreamApplication("flights")
    total_of(
        app,
        app.input("local.trips")
        .partition_by(lambda trip: trip["plane"])
        .map(lambda trip: trip | {"miles": 7 // trip["miles"]}),
    )
    flights = world(app, **{"task.dead.letter.stream": "local.dead"})
    flights.publish((0, "N1", 1), (0, "N1", 0), (0, "N1", 7))
    flights.run()
    steps, done = flights.shown(replay_key, "N1")
    assert [[sent["output"] for sent in step["outputs"]] for step in steps] == [
        ["local.totals"],
        ["local.dead"],
        ["local.totals"],
    ]
    assert done.differing == ()


def test_a_key_that_no_message_can_have(world: Any) -> None:
    app = ps.StreamApplication("flights")
    app.input("local.trips", key=ps.Bytes()).send_to(app.output("local.copies", key=ps.Bytes()))
    flights = world(app)
    flights.publish((0, "N1", 5))
    flights.run()
    with pytest.raises(ConfigError, match="cannot be given as text"):
        flights.shown(replay_key, "N1")


def test_what_cannot_be_replayed(world: Any) -> None:
    flights = world(keyed())
    with pytest.raises(NotFoundError, match="there is no job"):
        flights.shown(replay_key, "N1")
    flights.publish((0, "N1", 5))
    flights.run()
    with pytest.raises(NotFoundError, match="no such message was read"):
        flights.shown(replay_key, "N7")
    with pytest.raises(NotFoundError, match="not retained"):
        flights.shown(replay_key, "N1", from_checkpoint="latest-9")
    with pytest.raises(IncompatibleError, match="nothing was read between"):
        flights.shown(replay_key, "N1", from_checkpoint="latest", to_checkpoint="latest-1")
    for ask, stream, offset in ((replay_input, "trips", 7), (replay_output, "totals", 7)):
        with pytest.raises(NotFoundError, match="offset 7"):
            flights.shown(ask, SystemStreamPartition("local", stream, 0), offset)
    failing = ps.StreamApplication("flights")
    total_of(failing, failing.input("local.trips").partition_by(lambda trip: trip["tail"]))
    flights.app = failing
    with pytest.raises(UserCodeError):
        flights.shown(replay_key, "N1")


@pytest.mark.parametrize("backend", ["changelog-files", pytest.param("blob", marks=pytest.mark.slow)])
def test_only_the_state_of_the_tasks_that_take_part_is_read_and_once(
    backend: str, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored: list[str] = []

    def noting(name: str) -> Any:
        restored.append(name)
        return backend_factory(name)

    flights = world(
        keyed(),
        **{
            "stores.backup.factories": backend,
            "stores.restore.factories": backend,
        },
    )
    for miles in (1, 10, 100):
        flights.publish(*((0, key, miles) for key in KEYS), (1, "N1", 2 * miles))
        flights.run()
    with admin.open_job("flights", overrides=flights.keys) as job:
        tasks = job.log.read().restorable[-1].task_count
        owner = partition_of(b"N1", tasks)
        others = [key for key in job.objects.list(job.paths.state) if f"/{owner}/" not in key]
        for key in others:
            job.objects.delete(key)
    assert others
    row = next(row for row in flights.sent("totals") if row[3] == {"plane": "N1", "miles": 111 + 22})
    at = SystemStreamPartition("local", "totals", row[0])
    monkeypatch.setattr(restore, "backend_factory", noting)
    steps, done = flights.shown(replay_key, "N1", from_checkpoint="latest-1")
    assert [name.rpartition(":")[2] for name in restored] == [backend, "KeptFactory"]
    assert (steps[-1]["changes"][0]["after"]["miles"], done.differing) == (333, ())
    steps, done = flights.shown(replay_output, at, row[1])
    assert steps[-1]["changes"][0]["after"]["miles"] == 133
    other = next(key for key in KEYS if partition_of(key.encode(), tasks) != owner)
    with pytest.raises(PenstockError, match="store `total` of task"):
        flights.shown(replay_key, other, from_checkpoint="latest-1")


class Careful(Total):
    """Its code relies on state that each task has."""

    def init(self, context: ps.TaskContext) -> None:
        super().init(context)
        self.context = context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        super().process(envelope, collector, coordinator)
        self.total["count"] = {"miles": self.total.get("count", {"miles": 0})["miles"] + 1}

    def window(self, collector: Any, coordinator: Any) -> None:
        if not self.total.get("count"):
            coordinator.shutdown()


class Relying(Total):
    def init(self, context: ps.TaskContext) -> None:
        super().init(context)
        self.total["count"]


@pytest.mark.parametrize("task", [Careful, Relying])
def test_code_of_tasks_that_take_no_part_does_no_harm(task: Any, world: Any) -> None:
    app = ps.StreamApplication("flights")
    app.store("total")
    trips = app.input("local.trips").partition_by(lambda trip: trip["plane"])
    trips.process(Careful, stores=["total"], id="totals").send_to(app.output("local.totals"))
    flights = world(app, **({"task.window.ms": 1} if task is Careful else {}))
    for miles in (1, 10, 100):
        flights.publish(*((0, f"N{number}", miles) for number in range(9)))
        flights.run()
    again = ps.StreamApplication("flights")
    again.store("total")
    trips = again.input("local.trips").partition_by(lambda trip: trip["plane"])
    trips.process(task, stores=["total"], id="totals").send_to(again.output("local.totals"))
    flights.app = again
    steps, done = flights.shown(replay_key, "N1", from_checkpoint="latest-1")
    assert done.messages == 1
    changed = {change["key"]: change["after"] for change in steps[0]["changes"]}
    assert changed["N1"]["miles"] == 111
    sent = {"plane": "N1", "miles": 11}
    partition, offset, *_ = next(row for row in flights.sent("totals") if row[3] == sent)
    steps, _ = flights.shown(replay_output, SystemStreamPartition("local", "totals", partition), offset)
    assert steps[-1]["outputs"][0]["value"] == sent
