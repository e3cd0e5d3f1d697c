"""Every row of docs/upgrades.md: an application is changed between two runs, with a drain and without."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.job.paths import JobPaths
from penstock.start.startpoint_manager import StartpointManager
from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.fixtures import fixture_of
from tests.support.tools.places import ROOT
from tests.support.world.timed_job import steps_and_commit
from tests.support.world.windowed_job import BACKENDS, entries
from tests.support.world.world import World, ends

PATHS = JobPaths("flights", "1")
TASKS = 2


class Totals(ps.StreamTask):
    """Adds up the messages of each key."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals = context.store("totals")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        self.totals[envelope.key] = self.totals.get(envelope.key, 0) + int(envelope.value)
        collector.emit(key=envelope.key, value=envelope.value)

    def on_timer(self, *_: object) -> None:
        """Nothing sets a timer."""


class Idle(ps.StreamTask):
    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any
    ) -> None: ...


class Other(Totals):
    """Keeps its totals in another store."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals = context.store("other")


def parity(value: int) -> str:
    return f"k{int(value) % 2}"


def add(total: int, value: int) -> int:
    return total + value


SUMS = ps.Windows.tumbling(10, fold=(0, add))
App: TypeAlias = ps.StreamApplication


def add_ordered(stream: ps.MessageStream[Any], orders: list[Any]) -> None:
    for order in orders:
        stream.process(Idle, order=order, id="ordered")


def flights(**changed: Any) -> App:
    """The application, with some things changed.

    `trips` are joined with `seats` and with a table of `planes`. Their totals are in a store, their sums in windows.
    """
    unknown = changed.keys() - DEFAULT.keys()
    assert not unknown
    is_: dict[str, Any] = {**DEFAULT, **changed}
    app = ps.StreamApplication("flights")
    trips = app.input("m.trips", value=is_["trip"], timestamp=is_["timestamp"], watermark=is_["watermark"], id="trips")
    if is_["merged"]:
        trips = trips.merge(app.input("m.seats", timestamp=int))
    if is_["before"] is not None:
        trips = is_["before"](trips)
    keyed = trips.partition_by(is_["by"], key=is_["key"], value=is_["sent"], through=is_["through"], id="by")
    stream = keyed
    if is_["stores"]:
        store, serde, ttl_ms = is_["stores"]
        app.store(store, value=serde, ttl_ms=ttl_ms)
        task = Totals if store == "totals" else Other
        stream = keyed.process(task, stores=[store], timers=is_["timers"], value=ps.Json(), id=is_["totals"])
        if is_["second"]:
            keyed.process(Totals, stores=[store], id="second")
    if is_["hours"] is not None:
        hours = stream.window(is_["hours"], id=is_["hours_id"])
        hours.map(lambda pane: pane.message, id="sums").send_to(app.output("m.sums", value=is_["sum"]), id="out")
    if is_["pairs"] is not None:
        seats = app.input("m.seats", timestamp=int, id="seats").partition_by(parity, id="seats-by")
        keyed.join(seats, lambda trip, seat: [trip, seat], within_ms=is_["pairs"], id="pairs")
    if is_["new"]:
        app.store("new")
        keyed.process(Idle, stores=["new"], id="new")
        keyed.window(SUMS, id="new-window")
    if is_["planes"] is not None:
        planes = app.table("planes", history_ms=is_["planes"] or None)
        app.input("m.planes", timestamp=int, id="planes").partition_by(parity, id="planes-by").send_to(planes)
    add_ordered(keyed, is_["ordered"])
    if is_["output"]:
        keyed.send_to(app.output("m.copies"), id="copies")
    return app


DEFAULT: dict[str, Any] = {
    "trip": None, "timestamp": int, "watermark": None, "merged": False, "before": None,
    "by": parity, "key": None, "sent": None, "through": None,
    "stores": ("totals", ps.Integer(), None), "timers": ps.String(), "totals": "totals", "second": False,
    "hours": SUMS, "hours_id": "hours", "sum": None, "pairs": None, "planes": None, "new": False, "output": False,
    "ordered": [],
}  # fmt: skip


class Job(World):
    """A job whose runs have other applications, one after the other."""

    clock: SettableClock

    def __init__(self, folder: Path, backend: str = "changelog-files") -> None:
        super().__init__(folder, PATHS.name, ("trips", "seats", "planes"), TASKS, clock=SettableClock())
        self.backend = backend

    def start(self, app: App, *, tasks: int = TASKS, reset: str | None = None) -> InProcessDriver:
        """A run with its first epoch open; the one before is killed."""
        self.die()
        keys = {
            "job.intermediate.stream.partitions": tasks,
            "stores.backup.factories": self.backend,
            "task.commit.ms": 10**9,
        }
        resets = [] if reset is None else [reset]
        driver = self.make(app.graph(), keys, memory=self.backend != "blob", reset_operators=resets)
        driver.loop.start()
        return driver

    def publish(self, **streams: list[int]) -> None:
        for stream, values in streams.items():
            for value in values:
                self.append(stream, value % TASKS, (0, None, json.dumps(value).encode()))

    def process(self, driver: InProcessDriver, **streams: list[int]) -> None:
        """Process these messages of each stream, and commit."""
        self.publish(**streams)
        steps_and_commit(driver)

    def drain(self) -> None:
        (driver,) = self.drivers
        self.ask_to_drain(driver)
        ends(driver)
        self.die()

    def read_again_without_state(self) -> None:
        manager = StartpointManager(self.objects, PATHS, 10**9, self.clock.now_ms)
        for partition in range(TASKS):
            startpoint = ps.StartpointOldest(creation_timestamp=self.clock.now_ms())
            manager.write_startpoint(SystemStreamPartition("m", "trips", partition), startpoint, with_state="clear")

    def die(self) -> None:
        for driver in list(self.drivers):
            self.kill(driver)


job = fixture_of(Job)


def table(section: str) -> dict[str, list[str]]:
    """The rows of a section's table: the first cell -> the others."""
    page = (ROOT / "docs/upgrades.md").read_text(encoding="utf-8")
    text = page.split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("|")
    ]
    return {first.strip(): rest for first, *rest in rows[2:]}


def refusal(row: str, section: str) -> str:
    """The pattern of a refused start's message."""
    return re.escape(table(section)[row][0]).replace(r"\.\.\.", ".*")


Changed: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any]]
"""The parts that are not the default, before and after."""


def changed(**after: Any) -> Changed:
    return {}, after


WITH_PAIRS = {"pairs": (5, 5)}
NOTHING: dict[str, Changed] = {
    "functions, and the code of tasks": changed(hours=ps.Windows.tumbling(10, fold=(1, max))),
    "operators without a store: more, fewer, in another order": changed(before=lambda s: s.filter(lambda _: True)),
    "a new store, window or join, or timers for a task": ({"timers": None}, {"new": True, **WITH_PAIRS}),
    "one more input": changed(merged=True),
    "one input less": ({"merged": True}, {}),
    "outputs: more, fewer, other serdes": changed(output=True, sum=ps.Long()),
    "the serdes of an input, and `value=` of a `partition_by`, where no window or join keeps the messages": changed(
        trip=ps.String(), sent=ps.String(), hours=ps.Windows.tumbling(10, fold=(0, lambda total, v: total + int(v)))
    ),
    "`timestamp=` and `watermark=` of an input": changed(
        timestamp=lambda value: value + 1, watermark=ps.BoundedOutOfOrderness(max_delay_ms=5)
    ),
    '`order="event-time"` of an operator added': ({"ordered": [None]}, {"ordered": ["event-time"]}),
    "the time to live of a store: a new one, or another one": changed(stores=("totals", ps.Integer(), 10**6)),
    "`history_ms` of a table: another one": ({"planes": 10}, {"planes": 20}),
}
DRAIN: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    "a window's kind, size, time, triggers, lateness, aggregates, keys or serdes": (
        {}, {"hours": ps.Windows.tumbling(20, fold=(0, add))}, "hours",
    ),
    "a window that keeps lists of messages, or a join, whose messages get another serde": (
        WITH_PAIRS, {**WITH_PAIRS, "sent": ps.Long()}, "pairs",
    ),
    "a join's bounds, kind or `keep`": (WITH_PAIRS, {"pairs": (5, 9)}, "pairs"),
    '`order="event-time"` of an operator removed, or messages that wait for their turn get another serde': (
        {"ordered": ["event-time"]}, {"ordered": [None]}, "ordered",
    ),
    "the serde of a task's timers": ({}, {"timers": ps.Long()}, "totals"),
    "a window, a join or timers removed, or under another id without `renamed_from=`": (
        {}, {"hours_id": "days"}, "hours"
    ),
}  # fmt: skip
ELSE: dict[str, Changed] = {
    "the serdes of a store": changed(stores=("totals", ps.Long(), None)),
    "an operator with a store under another id": ({"timers": None}, {"timers": None, "totals": "sums-of-all"}),
    "one more operator that uses a store, or one less": changed(second=True),
    "a store removed or renamed": changed(stores=("other", ps.Integer(), None)),
    "a time to live removed": ({"stores": ("totals", ps.Integer(), 10**6)}, {}),
    "`history_ms` of a table, where it had none, or none any more": ({"planes": 0}, {"planes": 10}),
}
UNREAD = (
    "the serdes of a `partition_by` with `through=`, or another `through=`, while messages in the stream are unread"
)
TASKS_CHANGED = "the number of tasks (`job.intermediate.stream.partitions`)"


def test_each_row_has_a_test() -> None:
    assert list(table("Changes that need nothing")) == list(NOTHING)
    assert sorted(table("Changes that need a drain")) == sorted([*DRAIN, UNREAD])
    assert list(table("Changes that need something else")) == [*ELSE, TASKS_CHANGED]


def totals(driver: InProcessDriver, store: str = "totals") -> dict[str, int]:
    found = entries(driver, store).items()  # with a time to live, values have a header, and there is an index
    return {key.decode(): ps.Integer().from_bytes(value[-4:]) for key, value in found if key.startswith((b"k", b"n"))}


@pytest.mark.few(5)
@pytest.mark.parametrize("row", NOTHING)
def test_what_needs_nothing(job: Job, row: str) -> None:
    before, after = NOTHING[row]
    job.process(job.start(flights(**before)), trips=[1, 2, 3], planes=[1])
    driver = job.start(flights(**after))
    waits = entries(driver, "hours.window")
    assert waits
    job.process(driver, trips=[4, 5])
    assert totals(driver) == {"k0": 6, "k1": 9}


@pytest.mark.few(3)
@pytest.mark.parametrize("row", DRAIN)
def test_what_needs_a_drain(job: Job, row: str) -> None:
    before, after, operator = DRAIN[row]
    old, new = flights(**before), flights(**after)
    job.process(job.start(old), trips=[1, 2, 3], seats=[1])
    with pytest.raises(ps.IncompatibleError, match=refusal(row, "Changes that need a drain")) as caught:
        job.start(new)
    assert f'reset_operators=["{operator}"]' in str(caught.value)
    job.start(old)
    job.drain()
    driver = job.start(new)
    assert totals(driver) == {"k0": 2, "k1": 4}
    job.process(driver, trips=[4, 5])
    assert totals(job.start(new)) == {"k0": 6, "k1": 9}


@pytest.mark.few(2)
@pytest.mark.parametrize("row", DRAIN)
def test_what_waits_is_dropped_instead(job: Job, row: str) -> None:
    before, after, operator = DRAIN[row]
    job.process(job.start(flights(**before)), trips=[1, 2, 3], seats=[1])
    driver = job.start(flights(**after), reset=operator)
    assert totals(driver) == {"k0": 2, "k1": 4}


@pytest.mark.few(1)
@pytest.mark.parametrize("after", [{"through": "local.by", "sent": ps.Long()}, {"through": "local.new"}, {}])
def test_messages_between_two_stages_need_a_drain(job: Job, after: Mapping[str, Any]) -> None:
    old, new = flights(through="local.by"), flights(**after)
    job.publish(trips=[1, 2, 3])
    driver = job.start(old)
    driver.loop.step()
    driver.loop.commit()
    with pytest.raises(ps.IncompatibleError, match=refusal(UNREAD, "Changes that need a drain")) as caught:
        job.start(new)
    assert 'reset_operators=["by"]' in str(caught.value)
    job.start(old)
    job.drain()
    assert totals(job.start(new)) == {"k0": 2, "k1": 4}


@pytest.mark.few(3)
@pytest.mark.parametrize("row", ELSE)
def test_what_needs_something_else(job: Job, row: str) -> None:
    before, after = ELSE[row]
    old, new = flights(**before), flights(**after)
    expected = refusal(row, "Changes that need something else")
    job.process(job.start(old), trips=[1, 2, 3], planes=[1])
    with pytest.raises(ps.IncompatibleError, match=expected):
        job.start(new)
    job.start(old)
    job.drain()
    with pytest.raises(ps.IncompatibleError, match=expected):
        job.start(new)


def test_another_number_of_tasks(job: Job) -> None:
    job.process(job.start(flights()), trips=[1, 2, 3])
    with pytest.raises(ps.IncompatibleError, match=refusal(TASKS_CHANGED, "Changes that need something else")):
        job.start(flights(), tasks=4)


@pytest.mark.few(3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "change",
    [
        changed(stores=("totals", ps.Long(), None), hours_id="days"),
        changed(stores=("other", ps.Integer(), 10**6), timers=None),
        ({"stores": ("totals", ps.Integer(), 10**6), "planes": 0}, {"planes": 10}),
    ],
    ids=["other serdes", "other stores", "other forms"],
)
def test_with_empty_stores_every_application_starts(tmp_path: Path, backend: str, change: Changed) -> None:
    before, after = change
    job, new = Job(tmp_path, backend), flights(**after)
    job.process(job.start(flights(**before)), trips=[1, 2, 3], planes=[1])
    job.read_again_without_state()
    driver = job.start(new)
    assert not any(entries(driver, store.name) for store in new.graph().stores)
    job.process(driver, trips=[4, 5])
    kept = {store.name: entries(driver, store.name) for store in new.graph().stores}
    driver = job.start(new)
    assert {store.name: entries(driver, store.name) for store in new.graph().stores} == kept
    assert set(CheckpointLog(job.objects, PATHS).read().checkpoints[-1].stores) == kept.keys()
    job.close()


def test_a_key_that_changes_is_not_noticed(job: Job) -> None:
    job.process(job.start(flights()), trips=[1, 2, 3])
    driver = job.start(flights(by=lambda value: f"n{value % 2}"))
    job.process(driver, trips=[4])
    assert totals(driver) == {"k0": 2, "k1": 4, "n0": 4}


def test_a_fold_gets_the_values_of_the_one_before(job: Job) -> None:
    seen: list[Any] = []

    def add_to_list(total: Any, value: int) -> list[int]:
        seen.append(total)
        return [value]

    job.process(job.start(flights()), trips=[1, 3])
    job.process(job.start(flights(hours=ps.Windows.tumbling(10, fold=(list, add_to_list)))), trips=[5])
    assert seen == [4]


def test_the_same_application_starts(job: Job) -> None:
    job.process(job.start(flights()), trips=[1])
    job.start(flights())
