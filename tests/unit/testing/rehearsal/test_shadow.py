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
from penstock.config import load_config
from penstock.errors import IncompatibleError, NotFoundError, UserCodeError
from penstock.objects.open import open_job_root
from penstock.system.local import LocalSystem
from penstock.testing.in_process import InProcessDriver
from penstock.testing.rehearsal import shadow as module
from penstock.testing.rehearsal.shadow import shadow
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
        ends = module._ends(job, app_of(), job.log.read().latest)  # type: ignore[arg-type]
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
        made = np.zeros(rng.randrange(200), module._ROW)
        made["key"] = [rng.randrange(12) << 58 for _ in made]  # several buckets, several keys in each
        made["content"] = [rng.randrange(3) for _ in made]
        return made

    before, after = rows(), rows()
    if seed % 4 == 0:
        after = before.copy()
        rng.shuffle(list(after))
    counts = [Counter(zip(each["key"].tolist(), each["content"].tolist(), strict=True)) for each in (before, after)]
    unlike = {key for key, content in {*counts[0], *counts[1]} if counts[0][key, content] != counts[1][key, content]}
    keys, firsts = module._compare(before, after)
    assert keys == len(unlike)
    for first in firsts:
        own = [
            rows[number]["key"] for rows, number in ((before, first.before), (after, first.after)) if number is not None
        ]
        assert set(own) <= unlike
        assert len(set(own)) == 1
