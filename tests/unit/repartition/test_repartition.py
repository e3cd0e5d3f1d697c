"""Jobs that continue with another number of tasks: what they send and keep is what they would have without it."""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

import penstock as ps
from penstock.admin.checkpoint import change as checkpoint_write
from penstock.admin.checkpoint.change import append_record
from penstock.admin.state import repartition as repartition_module
from penstock.admin.state.repartition import RepartitionFacts, plan_repartition, repartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.sections import Sections, WrittenSection
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.repartition import move as move_module
from penstock.repartition.move import MadePart, Move, move_here
from penstock.start.startpoint_manager import StartpointManager
from penstock.state.reading.reader import read_store
from penstock.state.stores.timed_entries import META
from penstock.system.local import LocalSystem
from penstock.system.partitioner import partition_of
from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver
from tests.support.stores.stopped_job import replaced_sections
from tests.support.tools.fixtures import fixture_of
from tests.support.world.timed_job import steps
from tests.support.world.world import World

PARTITIONS = 2
KEYS = [f"key-{number}" for number in range(20)] + ["", "\x00", "a\x00\x01b"]
BEGIN_MS = 1_700_000_000_000


class Timed(ps.StreamTask):
    """Counts, and says later how many there were."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context
        self.counts: ps.KeyValueStore[str, int] = context.store("counts")
        self.seen = context.list_state("seen")

    def process(self, envelope: Any, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        self.counts[envelope.key] = count = self.counts.get(envelope.key, 0) + 1
        self.seen.append(envelope.value["n"])
        self.context.schedule(envelope.key, envelope.value["t"] + 7_000, name=str(count % 3))
        collector.emit(key=envelope.key, value=["counted", envelope.key, count])

    def on_timer(self, timer: Any, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        collector.emit(key=timer.key, value=["fired", timer.key, timer.name, list(self.seen.get())])


def _shown(name: str, pane: Any) -> list[Any]:
    return [name, pane.key, pane.message]


def _numbers(left: Any, right: Any) -> list[Any]:
    return [left and left["n"], right and right["n"]]


def application() -> ps.StreamApplication:
    app = ps.StreamApplication("every")
    streams = []
    for stream in ("left", "right"):
        events = app.input(f"m.{stream}", timestamp=lambda value: value["t"])
        streams.append(events.partition_by(lambda value: value["k"], id=f"by-key-{stream}"))
    left, right = streams
    out = app.output("m.out")
    app.store("counts", value=ps.Long())
    app.list_state("seen", value=ps.Long())
    left.process(Timed, stores=["counts", "seen"], timers=ps.String(), id="timed").send_to(out, id="out-1")
    count: dict[str, Any] = {"n": ps.Count(), "sum": ps.Sum(lambda value: value["n"])}
    shapes = {
        "tumbling": ps.Windows.tumbling(6_000, aggregates=count),
        "kept": ps.Windows.hopping(6_000, 3_000, aggregates=count, allowed_lateness_ms=60_000),
        "sessions": ps.Windows.session(900, aggregates=count),
        "sliding": ps.Windows.sliding(3_000, aggregates=count),
        "counting": ps.Windows.count(7, aggregates=count),
    }
    for name, window in shapes.items():
        left.window(window, id=name).map(partial(_shown, name)).send_to(out, id=f"out-{name}")
    joins: tuple[Literal["all", "newest"], ...] = ("all", "newest")
    for keep in joins:
        joined = left.join(right, _numbers, within_ms=4_000, kind="outer", keep=keep, id=f"join-{keep}")
        joined.send_to(out, id=f"out-join-{keep}")
    history = app.table("history", history_ms=100_000)
    right.send_to(history, id="to-history")
    left.join_table(history, _numbers, as_of=True, kind="left", id="as-of").send_to(out, id="out-as-of")
    once = left.deduplicate("1h", by=lambda value: value["n"] % 4, id="once")
    once.map(lambda value: ["once", value["n"]]).send_to(out, id="out-once")
    left.aggregate({"n": ps.Count()}, id="total").send_to(out, id="out-total")
    return app


def count_one(total: int, _: Any) -> int:
    return total + 1


class DiedError(BaseException):
    """The process of a command died."""


def died(step: str, *arguments: Any) -> None:
    """The process dies within a step, or behind it."""
    if step == "move_here":
        move_module.move_here(*arguments)
    if step == "behind":
        append_record(*arguments)
    raise DiedError


class Jobs(World):
    """The job, over streams on disk."""

    clock: SettableClock

    def __init__(
        self,
        folder: Path,
        app: ps.StreamApplication | None = None,
        backend: str = "blob",
        partitions: int = PARTITIONS,
    ) -> None:
        system = LocalSystem("m", str(folder / "streams"))
        clock = SettableClock(BEGIN_MS)
        super().__init__(folder, "every", ("left", "right"), partitions, system=system, clock=clock)
        system.admin().create_stream("out", 4)
        self.app = app or application()
        self.tasks = self.partitions = partitions
        self.number = 0
        self.chance = random.Random(5)
        self.keys: dict[str, object] = {
            "systems.m.samza.factory": "local",
            "systems.m.path": str(folder / "streams"),
            "stores.backup.factories": backend,
            "job.host-affinity.enabled": True,
            "job.batch.max.messages": 50,
        }

    def driver(self, **given: Any) -> InProcessDriver:
        keys = {**self.keys, "job.intermediate.stream.partitions": self.tasks}
        return self.make(self.app.graph(), keys, memory=False, **given)

    def put(self, count: int) -> None:
        for _ in range(count):
            value = {"k": self.chance.choice(KEYS), "n": self.number, "t": BEGIN_MS + 100 * self.number}
            stream = self.chance.choice(["left", "right"])
            self.append(stream, self.number % self.partitions, (0, None, json.dumps(value).encode()))
            self.number += 1

    def run(self, count: int, *, until_latest: bool = False) -> None:
        """Process more messages, commit, and stop."""
        self.put(count)
        driver = self.driver(until_latest=until_latest)
        if until_latest:
            driver.loop.run()
        else:
            driver.loop.start()
            steps(driver)
            driver.loop.finish()
        self.kill(driver)

    def plan(self, tasks: int, **rules: Any) -> Any:
        keys = {"job.root": self.root, "job.logged.store.base.dir": str(self.folder), **self.keys}
        return plan_repartition(self.app, tasks, overrides=keys, rules=rules)

    def move(self, tasks: int, **rules: Any) -> RepartitionFacts:
        with self.plan(tasks, **rules) as planned:
            done = repartition(planned, self.mover)
        self.tasks = tasks
        return done

    def refused_in_plan(self, tasks: int, match: str) -> None:
        """The plan says why it cannot be done, and nothing is claimed for it."""
        claims = self.log.claims
        with self.plan(tasks) as planned:
            (problem,) = planned.facts().problems
            assert re.search(match, problem), problem
            with pytest.raises(IncompatibleError, match=match):
                repartition(planned, self.mover)
        assert self.log.claims == claims

    def mover(self, move: Move) -> list[MadePart]:
        return move_here(move, self.folder / "moving")

    def sent(self) -> Counter[str]:
        return Counter((value or b"").decode() for _, _, value, *_ in self.records("out"))

    def content(self) -> dict[str, Counter[tuple[bytes, bytes]]]:
        """All entries by store, wherever they are, but for those that every task has."""
        driver = self.started()
        found: dict[str, Counter[tuple[bytes, bytes]]] = {}
        for spec in driver.job.topology.graph.written_stores:
            tasks = (driver.fleet.container_of(task).tasks[task] for task in range(driver.job.settings.tasks))
            entries = (entry for task in tasks for entry in task.engine(spec.name).scan(None, None))
            found[spec.name] = Counter(entry for entry in entries if entry[0] not in (META, b"n"))
        self.kill(driver)
        return found

    def values(self) -> dict[Any, Any]:
        """The entries of the store `own` that are not expired, with their values."""
        config = self.load(self.keys, [spec.name for spec in self.app.graph().stores])
        found = read_store(config, "own", self.checkpoints[-1], self.systems)
        return {key: value for _, key, value in found}


jobs = fixture_of(Jobs)


@pytest.mark.parametrize("backend", [pytest.param("blob", marks=pytest.mark.slow), "changelog-files"])
def test_a_job_sends_and_keeps_the_same_with_other_numbers_of_tasks(tmp_path: Path, backend: str) -> None:
    moved, still = Jobs(tmp_path / "moved", backend=backend), Jobs(tmp_path / "still", backend=backend)
    for each in (moved, still):  # many stores: those of the other tests are RocksDB's
        each.keys |= {f"stores.{spec.name}.factory": "memory" for spec in each.app.graph().written_stores}
    for tasks in (5, 3):
        for each in (moved, still):
            each.run(60)
        before = moved.content()
        done = moved.move(tasks)
        assert done.written is not None
        assert moved.content() == before
    for each in (moved, still):
        each.run(100, until_latest=True)
    assert moved.sent() == still.sent()
    moved.close()
    still.close()


class Keeps(ps.StreamTask):
    """Keeps the number of messages of each key, and of the task."""

    def init(self, context: ps.TaskContext) -> None:
        self.own: ps.KeyValueStore[Any, int] = context.store("own")

    def process(self, envelope: Any, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        for key in self.keys(envelope):
            self.own[key] = self.own.get(key, 0) + 1

    def keys(self, envelope: Any) -> list[Any]:
        return [envelope.value["k"]]


class WithTotal(Keeps):
    def keys(self, envelope: Any) -> list[Any]:
        return [envelope.value["k"], "total"]


class ByDay(Keeps):
    def keys(self, envelope: Any) -> list[Any]:
        return [(envelope.value["n"] % 2, envelope.value["k"])]


def keeping(task: type[Keeps], *, exchange: bool = True, **store: Any) -> ps.StreamApplication:
    app = ps.StreamApplication("every")
    app.store("own", **{"value": ps.Long(), **store})
    events: Any = app.input("m.left")
    if exchange:
        events = events.partition_by(lambda value: value["k"])
    events.process(task, stores=["own"], id="keep")
    return app


def deduplicating() -> ps.StreamApplication:
    app = ps.StreamApplication("every")
    app.input("m.left").partition_by(lambda value: value["k"]).deduplicate("1h", id="own")
    return app


def own(jobs: Jobs) -> Counter[bytes]:
    """The number of times that each key occurs, whatever its value."""
    return Counter(key for key, _ in jobs.content()["own"].elements())


kept = fixture_of(Jobs, keeping(Keeps))
"""A job with one store, whose moves are quick."""


class TestRules:
    def test_an_entry_that_is_no_messages_key_is_found(self, tmp_path: Path) -> None:
        """It is in a task by chance, and would be in another one afterwards."""
        jobs = Jobs(tmp_path, keeping(WithTotal))
        jobs.run(100)
        before = jobs.checkpoints[-1]
        with pytest.raises(IncompatibleError, match=r"store `own`: the entry with the key `total` is in task"):
            jobs.move(5)
        assert jobs.checkpoints[-1] == before
        jobs.run(50)
        jobs.move(5, own="empty")
        assert jobs.content() == {"own": Counter()}
        jobs.close()

    def test_keys_of_another_serde_need_a_rule(self, tmp_path: Path) -> None:
        app = keeping(ByDay, key=ps.Tuple(ps.Long(), ps.String()))
        jobs = Jobs(tmp_path, app)
        jobs.run(100)
        with jobs.plan(5) as planned:
            (problem,) = planned.facts().problems
        assert "its keys are `tuple(ordered-long,string)`, and its messages have keys of `string`" in problem
        with pytest.raises(IncompatibleError, match="Give a rule"):
            jobs.move(5)
        with pytest.raises(IncompatibleError, match="its keys are not the keys of its messages"):
            jobs.move(5, own=lambda key, value: str(key[0]))
        before = jobs.content()
        jobs.move(5, own=lambda key, value: key[1])
        assert jobs.content() == before
        jobs.run(50)
        assert set(own(jobs).values()) == {1}
        assert sum(int.from_bytes(value) for _, value in jobs.content()["own"]) == len([*jobs.records("left")])
        jobs.close()

    @pytest.mark.few(1)
    @pytest.mark.parametrize(
        ("rules", "why"),
        [
            ({"others": "key"}, "there is a rule for `others`, and the job writes the stores: `own`"),
            ({"own": "somehow"}, "the rule `somehow` of store `own` is none of key, first, stay, copy and empty"),
            ({"own": "first"}, "is for keys that are tuples; they are string"),
        ],
    )
    def test_rules_that_do_not_fit(self, tmp_path: Path, rules: dict[str, str], why: str) -> None:
        jobs = Jobs(tmp_path, keeping(Keeps))
        jobs.run(10)
        with pytest.raises(ConfigError, match=re.escape(why)):
            jobs.move(5, **rules)
        jobs.close()

    def test_a_store_of_an_operator_takes_none(self, jobs: Jobs) -> None:
        jobs.run(10)
        with pytest.raises(ConfigError, match="belongs to operator `tumbling`, which places its entries itself"):
            jobs.move(5, **{"tumbling.window": "stay"})

    def test_copies_of_what_every_task_has(self, tmp_path: Path) -> None:
        """All messages of a broadcast input come to every task."""
        app = keeping(Keeps, exchange=False)
        app.input("m.right").sink(lambda *_: None)
        jobs = Jobs(tmp_path, app)
        jobs.keys["task.broadcast.inputs"] = "m.left#[0-1]"
        jobs.run(60)
        with pytest.raises(IncompatibleError, match=r"every task writes it for itself, for messages of `m\.left`"):
            jobs.move(5)
        before = jobs.content()["own"]
        jobs.move(6, own="copy")
        assert jobs.content()["own"] == Counter({entry: 3 * count for entry, count in before.items()})
        jobs.run(30)
        assert set(own(jobs).values()) == {6}
        jobs.close()

    def test_one_task_says_nothing_of_keys(self, tmp_path: Path) -> None:
        """All keys belong to it, so no entry could be in the wrong one."""
        jobs = Jobs(tmp_path, keeping(WithTotal), partitions=1)
        jobs.run(60)
        with pytest.raises(IncompatibleError, match="the job has one task, so nothing shows"):
            jobs.move(4)
        jobs.move(4, own="key")
        jobs.close()
        jobs = Jobs(tmp_path / "deduplicated", deduplicating(), partitions=1)
        jobs.run(60)
        content = jobs.content()
        jobs.move(4)
        assert jobs.content() == content
        jobs.close()

    def test_timers_under_other_keys_are_drained_or_dropped(self, tmp_path: Path) -> None:
        app = ps.StreamApplication("every")
        app.output("m.out")
        events = app.input("m.left", timestamp=lambda value: value["t"]).partition_by(lambda value: value["k"])
        events.process(Flush, timers=ps.String(), id="later")
        jobs = Jobs(tmp_path, app)
        jobs.run(60)
        jobs.refused_in_plan(5, r"messages of its key come to task .*Drain the job, .* or drop what is in it with")
        jobs.move(5, **{"later.timers": "empty"})
        jobs.close()

    def test_a_large_store_is_looked_through_in_the_move_and_the_plan_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = ps.StreamApplication("every")
        app.output("m.out")
        events = app.input("m.left", timestamp=lambda value: value["t"]).partition_by(lambda value: value["k"])
        events.process(Flush, timers=ps.String(), id="later")
        jobs = Jobs(tmp_path, app)
        jobs.run(60)
        monkeypatch.setattr(repartition_module, "LOOKED_THROUGH_BYTES", 0)
        with jobs.plan(5) as planned:
            facts = planned.facts()
            assert facts.problems == ()
            (note,) = (each for each in facts.notes if "later.timers" in each)
            assert re.search(r"takes [0-9.,]+ \w+, so its entries are looked through in the move alone", note)
        before = jobs.checkpoints[-1]
        with pytest.raises(IncompatibleError, match=r"messages of its key come to task"):
            jobs.move(5)
        assert jobs.checkpoints[-1] == before
        jobs.run(10)
        jobs.close()

    @pytest.mark.parametrize("shape", ["tumbling", "count"])
    def test_open_windows_of_a_whole_task_are_drained_or_dropped(self, tmp_path: Path, shape: str) -> None:
        app = ps.StreamApplication("every")
        events = app.input("m.left", timestamp=lambda value: value["t"]).partition_by(lambda value: value["k"])
        made: dict[str, Any] = {
            "tumbling": lambda: ps.Windows.tumbling(10**9, fold=(int, count_one), keyed=False),
            "count": lambda: ps.Windows.count(10**6, fold=(int, count_one), keyed=False),
        }
        events.window(made[shape](), id="all").map(str).send_to(app.output("m.out"))
        jobs = Jobs(tmp_path, app)
        jobs.run(60)
        jobs.refused_in_plan(5, r"`all.window`: .*open window of a whole task.*Drain the job")
        jobs.move(5, **{"all.window": "empty"})
        jobs.run(60)
        jobs.close()


class TestInputs:
    def test_stores_without_an_exchange_stay(self, tmp_path: Path) -> None:
        """Partition i is task i's, however many tasks there are: nothing is read."""
        jobs = Jobs(tmp_path, keeping(Keeps, exchange=False))
        jobs.run(60)
        before, marked = jobs.content(), jobs.checkpoints[-1].tasks
        done = jobs.move(5)
        assert [each.how for each in done.stores] == ["stay with their tasks"]
        assert jobs.checkpoints[-1].tasks.keys() == {0, 1, 2, 3, 4} > marked.keys()
        assert jobs.content() == before
        jobs.run(20)
        jobs.move(2)
        jobs.run(20, until_latest=True)
        jobs.close()

    def test_fewer_tasks_than_partitions_are_refused(self, jobs: Jobs) -> None:
        jobs.run(10)
        with pytest.raises(ConfigError, match=r"at least 2 tasks, one for each partition of `m.left` and `m.right`"):
            jobs.move(1)
        with pytest.raises(ConfigError, match="has 2 tasks already"):
            jobs.move(2)

    def test_a_checkpoint_that_needs_what_is_not_here(self, tmp_path: Path) -> None:
        jobs = Jobs(tmp_path)
        jobs.run(20)
        section = WrittenSection({"wrapped": 3}, needed=True)
        replaced_sections(CheckpointLog(jobs.objects, jobs.paths), Sections({"gifts": section}))
        with pytest.raises(IncompatibleError, match="cannot be restored here: it needs `gifts`"), jobs.plan(5):
            pass

    def test_a_job_without_a_checkpoint(self, jobs: Jobs) -> None:
        with pytest.raises(NotFoundError, match="has no checkpoint yet"):
            jobs.move(5)

    def test_an_input_that_was_added_begins_where_the_configuration_says(self, tmp_path: Path) -> None:
        jobs = Jobs(tmp_path, keeping(Keeps))
        jobs.run(60)
        jobs.app = keeping(Keeps)
        jobs.app.input("m.right").sink(lambda *_: None)
        jobs.keys["streams.m.right.samza.offset.default"] = "upcoming"
        jobs.move(5)
        driver = jobs.driver()
        begun = {at.ssp: offset for at, offset in driver.job.start.positions.items() if at.ssp.stream == "right"}
        assert begun == {ssp: ends.upcoming for ssp, ends in driver.job.streams.ends().items() if ssp.stream == "right"}
        jobs.close()

    def test_output_that_was_sent_before_a_rewind_is_not_sent_again(self, tmp_path: Path) -> None:
        app = ps.StreamApplication("every")
        app.input("m.left").partition_by(lambda value: value["k"]).send_to(app.output("m.out"))
        jobs = Jobs(tmp_path, app)
        jobs.run(60)
        sent = jobs.sent()
        startpoints = StartpointManager(jobs.objects, jobs.paths, 10**9, jobs.clock.now_ms)
        for partition in range(PARTITIONS):
            oldest = ps.StartpointOldest(creation_timestamp=jobs.clock.now_ms())
            place = ps.SystemStreamPartition("m", "left", partition)
            startpoints.write_startpoint(place, oldest, with_state="keep", with_output="after")
        driver = jobs.driver()
        driver.loop.start()
        jobs.kill(driver)
        assert jobs.checkpoints[-1].quiet_until
        jobs.move(5)
        jobs.run(0, until_latest=True)
        assert jobs.sent() == sent
        jobs.close()


class TestEndings:
    @pytest.mark.parametrize("step", [pytest.param("move_here", marks=pytest.mark.slow), "append_record"])
    def test_a_death_leaves_the_former_checkpoint(self, kept: Jobs, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
        kept.run(60)
        before, content = kept.checkpoints[-1], kept.content()
        place = sys.modules[__name__] if step == "move_here" else checkpoint_write
        with monkeypatch.context() as patch:
            patch.setattr(place, step, lambda *arguments: died(step, *arguments))
            with pytest.raises(DiedError):
                kept.move(5)
        assert kept.checkpoints[-1].next_offsets == before.next_offsets
        assert kept.content() == content
        kept.move(5)
        assert kept.content() == content

    def test_a_death_behind_the_record_undoes_nothing(self, kept: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
        kept.run(60)
        content = kept.content()
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_write, "append_record", lambda *arguments: died("behind", *arguments))
            with pytest.raises(DiedError):
                kept.move(5)
        kept.tasks = 5
        assert kept.content() == content

    @pytest.mark.few(1)
    @pytest.mark.parametrize("backend", ["blob", "changelog-files"])
    def test_objects_of_tasks_that_are_gone_are_deleted(self, tmp_path: Path, backend: str) -> None:
        jobs = Jobs(tmp_path, keeping(Keeps), backend=backend)
        jobs.keys["task.checkpoint.retained"] = 1
        jobs.tasks = 8
        jobs.run(100)
        jobs.move(3)
        for _ in range(3):
            jobs.run(20)
        folder = jobs.paths.store_folder("own")
        tasks = {key.removeprefix(f"{folder}/").partition("/")[0] for key in jobs.objects.sizes(folder)}
        assert tasks == {"0", "1", "2"}
        jobs.close()

    @pytest.mark.few(1)
    @pytest.mark.parametrize("backend", ["blob", "changelog-files", "changelog-stream"])
    def test_a_part_may_be_made_twice(self, tmp_path: Path, backend: str) -> None:
        """Spark repeats a task whose executor was lost."""
        jobs = Jobs(tmp_path, keeping(Keeps), backend=backend)
        jobs.keys["stores.own.changelog"] = "m.log-of-2"
        jobs.run(100)
        content = jobs.content()
        jobs.keys["stores.own.changelog"] = "m.log-of-5"

        def twice(move: Move) -> list[MadePart]:
            first, second = (move_here(move, tmp_path / name) for name in ("first", "second"))
            return [first[0], *second[1:]]

        with jobs.plan(5) as planned:
            repartition(planned, twice)
        jobs.tasks = 5
        assert jobs.content() == content
        jobs.close()

    def test_the_former_checkpoint_can_be_started_with_its_tasks(self, kept: Jobs) -> None:
        kept.run(60)
        former = kept.checkpoints[-1]
        sums = kept.content()
        kept.move(5)
        kept.run(30)
        kept.tasks = PARTITIONS
        with pytest.raises(IncompatibleError, match="with 5 tasks, now there are 2"):
            kept.driver()
        driver = kept.driver(from_checkpoint=str(former.id))
        driver.loop.start()
        kept.kill(driver)
        assert kept.content() == sums


def test_a_changelog_in_a_stream_needs_another_stream(tmp_path: Path) -> None:
    """It has a partition for each task."""
    jobs = Jobs(tmp_path, keeping(Keeps), backend="changelog-stream")
    jobs.keys["stores.own.changelog"] = "m.log-of-2"
    jobs.run(100)
    content = jobs.content()
    jobs.refused_in_plan(5, "has 2 partitions, the job 5 tasks: name another stream")
    assert jobs.content() == content
    jobs.keys["stores.own.changelog"] = "m.log-of-5"
    jobs.move(5)
    assert jobs.content() == content
    jobs.run(50)
    assert set(own(jobs).values()) == {1}
    jobs.close()


class Later(ps.StreamTask):
    """Sets a timer of the task, and one of each key."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context

    def process(self, envelope: Any, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        for key in (None, envelope.value["k"]):
            self.context.schedule(key, BEGIN_MS + 10**9)

    def on_timer(self, timer: Any, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        collector.send("m.out", value=timer.key)


class Flush(Later):
    """Sets timers under a key that no message has."""

    def process(self, envelope: Any, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        self.context.schedule("flush", BEGIN_MS + 10**9)


class TestTimes:
    def test_timers_without_a_key_stay_with_their_task(self, tmp_path: Path) -> None:
        app = ps.StreamApplication("every")
        app.output("m.out")
        events = app.input("m.left", timestamp=lambda value: value["t"]).partition_by(lambda value: value["k"])
        events.process(Later, timers=ps.String(), id="later")
        jobs = Jobs(tmp_path, app)
        jobs.run(100)
        keys = {json.loads(value or b"")["k"] for _, _, value, *_ in jobs.records("left")}
        jobs.move(6)
        jobs.run(100)
        keys |= {json.loads(value or b"")["k"] for _, _, value, *_ in jobs.records("left")}
        owners = {partition_of(key.encode(), 6) for key in keys}
        jobs.move(3)
        jobs.run(0, until_latest=True)
        sent = Counter(json.loads(value or b"null") for _, _, value, *_ in jobs.records("out"))
        assert sent.pop(None) == len([task for task in owners if task < 3])
        assert sent == Counter(keys)
        jobs.close()

    def test_entries_that_have_no_time_yet_get_one(self, tmp_path: Path) -> None:
        """A store that has a time to live since the last start gives it to its entries in its first batch."""
        now = SYSTEM_CLOCK.now_ms()
        jobs = Jobs(tmp_path, keeping(Keeps))
        jobs.clock = SettableClock(now - 3_600_000)
        jobs.run(100)
        jobs.app = keeping(Keeps, ttl_ms=60_000)
        driver = jobs.driver()
        driver.loop.start()
        driver.loop.finish()  # no batch with a time to live has ended
        jobs.kill(driver)
        before = jobs.values()
        jobs.move(5)
        jobs.clock = SettableClock(now + 50_000)
        jobs.run(4)
        assert jobs.values().keys() == before.keys(), "they live on, although the job stood still for long"
        jobs.clock = SettableClock(now + 120_000)
        jobs.run(4)
        assert 0 < len(jobs.values()) <= 8
        jobs.close()


class TestDurableStreams:
    @staticmethod
    def app(stream: str) -> ps.StreamApplication:
        app = ps.StreamApplication("every")
        app.store("own", value=ps.Long())
        events = app.input("m.left").partition_by(lambda value: value["k"], through=stream, id="by-key")
        events.process(Keeps, stores=["own"], id="keep")
        return app

    def test_what_is_unread_is_read_first_and_the_next_stream_is_another(self, tmp_path: Path) -> None:
        jobs = Jobs(tmp_path, self.app("m.through"))
        jobs.run(100)
        jobs.put(10)
        driver = jobs.driver()
        driver.loop.start()
        driver.loop.step()
        driver.loop.finish()
        jobs.kill(driver)
        with pytest.raises(IncompatibleError, match=r"`m\.through` has messages that the job has not read"):
            jobs.move(5)
        jobs.run(0, until_latest=True)
        with jobs.plan(5) as planned:
            assert "delete this one before the next start" in planned.facts().notes[0]
        jobs.move(5)
        with pytest.raises(IncompatibleError, match="has a partition for each task"):
            jobs.driver()
        jobs.app = self.app("m.other")
        jobs.run(50, until_latest=True)
        total = sum(int.from_bytes(value) for _, value in jobs.content()["own"].elements())
        assert total == len([*jobs.records("left")])
        jobs.close()
