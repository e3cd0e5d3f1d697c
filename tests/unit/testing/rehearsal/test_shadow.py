"""A shadow run finds the differences that a plain comparison of the same two computations finds."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

import penstock as ps
from penstock import admin
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.config import load_config
from penstock.errors import IncompatibleError, NotFoundError, UserCodeError
from penstock.objects.open import open_job_root
from penstock.system.local import LocalSystem
from penstock.testing.in_process import InProcessDriver
from penstock.testing.rehearsal import shadow as module
from penstock.testing.rehearsal import trace
from penstock.testing.rehearsal.shadow import shadow
from tests.support.jobs.home import wait_until
from tests.support.tools.cli import own_home

PARTITIONS = 2
KEYS = [f"N{number}" for number in range(20)]


def app_of(change: Any = lambda trip: trip, *, more: bool = False) -> ps.StreamApplication:
    """The sum of each plane's miles, after a change of each trip; and, if asked, another output."""
    app = ps.StreamApplication("flights")
    trips = app.input("local.trips").map(change, id="changed").partition_by(lambda trip: trip["plane"], id="by-plane")

    def add(total: dict[str, Any], trip: dict[str, Any]) -> dict[str, Any]:
        return {"plane": total["plane"], "miles": total["miles"] + trip["miles"]}

    trips.reduce(add, id="total").send_to(app.output("local.totals"))
    if more:
        trips.filter(lambda trip: trip["miles"] > 50, id="long").send_to(app.output("local.long"))
    return app


class World:
    def __init__(self, home: Path) -> None:
        self.streams = LocalSystem("local", str(home / "streams"))
        self.streams.admin().create_stream("trips", PARTITIONS)
        self.rng = random.Random(7)
        self.trips: list[tuple[int, str, int]] = []
        """Partition, plane and miles, in the order of each partition."""

    def publish(self, count: int) -> None:
        with closing(self.streams.writer(None)) as writer:
            for _ in range(count):
                partition, plane = self.rng.randrange(PARTITIONS), self.rng.choice(KEYS)
                miles = self.rng.randrange(1, 100)
                trip = {"plane": plane, "miles": miles}
                self.trips.append((partition, plane, miles))
                at = SystemStreamPartition("local", "trips", partition)
                writer.append(at, [(1_000_000, plane.encode(), orjson.dumps(trip))])

    def run(self, app: Any) -> None:
        config = load_config(overrides={"job.name": "flights"})
        with (
            closing(open_job_root(config.job)) as objects,
            closing(
                InProcessDriver(app.graph(), config, objects, {}, containers=1, until_latest=True, close=False)
            ) as driver,
        ):
            driver.loop.run()

    def compare(self, after: Any, **options: Any) -> module.ShadowFacts:
        with admin.open_job("flights") as job:
            return shadow(job, app_of(), after, **options)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(own_home(tmp_path, monkeypatch))
    made.publish(60)
    made.run(app_of())
    made.publish(80)
    return made


def test_the_same_code_does_the_same(world: World) -> None:
    found = world.compare(app_of())
    assert not found.differs
    assert [(each.output, each.before, each.after, each.keys) for each in found.outputs] == [
        ("local.totals", 80, 80, 0)
    ]
    assert [(each.store, each.before, each.after, each.differing) for each in found.stores] == [("total", 20, 20, 0)]
    assert [each.messages for each in found.sides] == [80, 80]
    assert not found.examples


def test_each_key_that_differs_is_counted_and_the_first_has_its_message(world: World) -> None:
    odd = {"N3", "N7"}
    late = world.trips[60:]
    found = world.compare(app_of(lambda trip: trip | {"miles": trip["miles"] + (trip["plane"] in odd)}))
    changed = {plane for _, plane, _ in late} & odd
    assert [each.keys for each in found.outputs] == [len(changed)]
    assert [each.differing for each in found.stores] == [len(changed)]
    (first,) = (each for each in found.examples if each.where == "local.totals" and each.key == "N3")
    # The first one of the plane in the order of a batch: partition by partition.
    partition, miles = next((p, m) for number in range(2) for p, plane, m in late if plane == "N3" and p == number)
    before = sum(m for _, plane, m in world.trips[:60] if plane == "N3")
    assert (first.before["miles"], first.after["miles"]) == (before + miles, before + miles + 1)
    assert first.made_from is not None
    assert first.made_from.startswith(f"local.trips.{partition} ")
    assert found.differs


def test_an_output_that_only_one_has(world: World) -> None:
    found = world.compare(app_of(more=True))
    long = [plane for _, plane, miles in world.trips[60:] if miles > 50]
    outputs = {each.output: (each.before, each.after, each.keys) for each in found.outputs}
    assert outputs == {"local.totals": (80, 80, 0), "local.long": (0, len(long), len(set(long)))}


def test_both_read_the_same_although_messages_come(world: World) -> None:
    with admin.open_job("flights") as job:
        ends = module._ends(job, (app_of(),), job.log.read().latest)  # type: ignore[arg-type]
    world.publish(10)
    assert sum(ends.values()) == 140
    assert [each.messages for each in world.compare(app_of()).sides] == [90, 90]


def test_between_two_checkpoints(world: World) -> None:
    world.run(app_of())
    world.publish(30)
    world.run(app_of())
    found = world.compare(app_of(), from_checkpoint="latest-2", to_checkpoint="latest-1")
    assert [each.messages for each in found.sides] == [80, 80]


def test_nothing_is_sent_and_nothing_left(world: World, tmp_path: Path) -> None:
    def files() -> set[str]:
        return {str(path) for path in tmp_path.rglob("*") if not path.name.endswith(("-shm", "-wal"))}

    before = files(), world.streams.admin().offsets("totals")
    world.compare(app_of(more=True))
    assert (files(), world.streams.admin().offsets("totals")) == before


def test_what_cannot_be_compared(world: World) -> None:
    with pytest.raises(NotFoundError, match="not retained"):
        world.compare(app_of(), from_checkpoint="latest-9")
    other = ps.StreamApplication("flights")
    other.input("local.trips").send_to(other.output("local.totals"))
    with pytest.raises(IncompatibleError, match="store `total` is in checkpoint"):
        world.compare(other)
    with pytest.raises(UserCodeError, match="KeyError"):
        world.compare(app_of(lambda trip: {"plane": trip["tail"]}))


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_compared_as_counters_do(seed: int) -> None:
    rng = random.Random(seed)

    def rows() -> Any:
        made = np.zeros(rng.randrange(200), trace.ROW)
        made["key"] = [rng.randrange(12) << 58 for _ in made]  # several buckets, several keys in each
        made["content"] = [rng.randrange(3) for _ in made]
        return made

    before, after = rows(), rows()
    if seed % 4 == 0:
        after = before.copy()
        rng.shuffle(list(after))
    counts = [Counter(zip(each["key"].tolist(), each["content"].tolist(), strict=True)) for each in (before, after)]
    unlike = {key for key, content in {*counts[0], *counts[1]} if counts[0][key, content] != counts[1][key, content]}
    keys, firsts = trace.compare((before, after), (0, 0))
    assert keys == len(unlike)
    for first in firsts:
        own = [
            rows[number]["key"] for rows, number in ((before, first.before), (after, first.after)) if number is not None
        ]
        assert set(own) <= unlike
        assert len(set(own)) == 1


def timed() -> ps.StreamApplication:
    """State and output have times of the run: a time to live, processing-time timers and batch times."""

    class Stamps(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.context, self.stamps = context, context.store("stamps")

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            self.stamps[envelope.key] = self.context.batch_time_ms
            self.context.schedule("later", self.context.batch_time_ms + 100, domain="processing")

        def on_timer(self, timer: ps.ExpiredTimer, collector: Any, coordinator: Any) -> None:
            collector.emit(key="timer", value=self.context.batch_time_ms)

    app = ps.StreamApplication("flights")
    app.store("stamps", ttl_ms="1h")
    trips = app.input("local.trips").partition_by(lambda trip: trip["plane"], id="by-plane")
    trips.process(Stamps, stores=["stamps"], timers=ps.String(), id="stamped").send_to(app.output("local.stamps"))
    counts = trips.window(ps.Windows.tumbling(100, time="processing", aggregates={"n": ps.Count()}), id="tenths")
    counts.map(lambda pane: {"n": pane.message["n"], "start": pane.window.start_ms}, id="pane").send_to(
        app.output("local.panes")
    )
    return app


@pytest.mark.parametrize("since", ["latest", "latest-1"])
def test_the_same_code_does_the_same_at_the_same_times(
    since: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(own_home(tmp_path, monkeypatch))
    for _ in range(2):
        world.publish(50)
        world.run(timed())
    world.publish(50)
    with admin.open_job("flights", overrides={"job.batch.max.messages": 7}) as job:
        last_ms = admin.read_checkpoint(job).batch_time_ms
        wait_until(lambda: SYSTEM_CLOCK.now_ms() > last_ms + 500, "some windows of a tenth of a second")
        found = shadow(job, timed(), timed(), since)
    assert not found.differs, found
    assert sum(each.before for each in found.outputs) > 10


def test_where_nothing_was_read_nothing_is_compared(world: World) -> None:
    world.run(app_of())
    with pytest.raises(IncompatibleError, match="there is nothing to read behind checkpoint"):
        world.compare(app_of(lambda trip: trip | {"miles": 0}))
    assert world.compare(app_of(lambda trip: trip | {"miles": 0}), from_checkpoint="latest-1").differs


def test_an_input_that_only_the_changed_application_reads(world: World) -> None:
    """It is read from its beginning, or where the configuration says; and nothing of it up to a checkpoint."""
    world.streams.admin().create_stream("more", 1)
    with closing(world.streams.writer(None)) as writer:
        at = SystemStreamPartition("local", "more", 0)
        writer.append(at, [(1_000_000, b"N1", orjson.dumps({"plane": "N1", "miles": n})) for n in range(5)])

    def more() -> ps.StreamApplication:
        app = ps.StreamApplication("flights")
        both = app.input("local.trips").merge(app.input("local.more"))
        trips = both.map(lambda trip: trip, id="changed").partition_by(lambda trip: trip["plane"], id="by-plane")
        total = trips.reduce(lambda a, b: a | {"miles": a["miles"] + b["miles"]}, id="total")
        total.send_to(app.output("local.totals"))
        return app

    found = world.compare(more())
    assert [each.messages for each in found.sides] == [80, 85]
    assert [(each.before, each.after, each.keys) for each in found.outputs] == [(80, 85, 1)]
    world.run(app_of())
    upto = world.compare(more(), from_checkpoint="latest-1", to_checkpoint="latest")
    assert [each.messages for each in upto.sides] == [80, 80]
    assert not upto.differs


def test_messages_without_keys_are_compared_one_by_one(world: World) -> None:
    def keyless(add: int) -> ps.StreamApplication:
        app = app_of()
        trips = app.input("local.more").map(lambda trip: {"miles": trip["miles"] + add * (trip["miles"] == 7)}, id="m")
        trips.send_to(app.output("local.copies", key=None))
        return app

    world.streams.admin().create_stream("more", 1)
    with closing(world.streams.writer(None)) as writer:
        at = SystemStreamPartition("local", "more", 0)
        writer.append(at, [(1, None, orjson.dumps({"miles": n % 10})) for n in range(100)])
    with admin.open_job("flights") as job:
        same, other = (shadow(job, keyless(0), keyless(add)) for add in (0, 1))
    assert not same.differs
    (copies,) = (each for each in other.outputs if each.output == "local.copies")
    assert (copies.before, copies.after, copies.keys) == (100, 100, 2), "the sevens, and the eights"


def test_a_checkpoint_between_that_a_command_made(world: World) -> None:
    world.run(app_of())
    with admin.open_job("flights") as job, admin.plan_edit(job, "total", deletes=["N3"]) as planned:
        admin.edit_state(planned)
    world.publish(10)
    world.run(app_of())
    with pytest.raises(IncompatibleError, match=r"does not follow from checkpoint .* by reading alone"):
        world.compare(app_of(), from_checkpoint="latest-3", to_checkpoint="latest")


def test_who_failed_is_named_as_the_user_knows_it(world: World) -> None:
    other = ps.StreamApplication("flights")
    other.input("local.trips").send_to(other.output("local.totals"))
    with admin.open_job("flights") as job:
        latest = job.log.read().latest
        assert latest is not None
        with pytest.raises(IncompatibleError) as refused:
            shadow(job, app_of(), other)
        with pytest.raises(UserCodeError, match=r"^the job's own application:\n"):
            shadow(job, app_of(lambda trip: {"plane": trip["tail"]}), app_of())
    text = str(refused.value)
    assert text.startswith(f"the changed application: store `total` is in checkpoint {latest.id}")
    assert ".after" not in text
