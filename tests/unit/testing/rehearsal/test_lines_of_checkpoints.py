"""A replay goes over checkpoints that follow from one another by reading alone, in batches as the job made them."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from typing import Any

import pytest

import penstock as ps
from penstock import admin
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import IncompatibleError, NotFoundError, UserCodeError
from penstock.replay import driver as notes
from penstock.replay.wing import REPLAY, ReplaySection, batches_of
from penstock.testing.rehearsal import passes
from penstock.testing.rehearsal.replay import replay_input, replay_key, replay_output
from tests.unit.testing.rehearsal.test_replays import KEYS, World, keyed, random_trips, total_of, world

__all__ = ["world"]  # the fixture


def trips(partition: int) -> SystemStreamPartition:
    return SystemStreamPartition("local", "trips", partition)


def miles(steps: list[dict[str, Any]]) -> list[int]:
    return [step["changes"][0]["after"]["miles"] for step in steps]


def job_of(world: Any) -> World:
    """A job that has run twice: N1 has 5 and then 12 miles."""
    flights: World = world(keyed())
    for each in (5, 7):
        flights.publish((0, "N1", each), (1, "N2", each))
        flights.run()
    return flights


def state_edit(flights: World) -> None:
    with admin.open_job("flights", overrides=flights.keys) as job:
        store = next(iter(job.log.read().latest.stores))  # type: ignore[union-attr]
        with admin.plan_edit(job, store, sets={"N1": '{"plane": "N1", "miles": 1000}'}) as planned:
            admin.edit_state(planned)


def rewind(flights: World) -> None:
    with admin.open_job("flights", overrides=flights.keys) as job:
        admin.write_checkpoint(admin.plan_offsets(job, {trips(0): 0}))


def startpoint(flights: World) -> None:
    with admin.open_job("flights", overrides=flights.keys) as job:
        admin.set_startpoint(job, "local.trips", ps.StartpointSpecific("0"), partitions=[0], with_state="keep")


AFTER = {state_edit: [1000 + 100], rewind: [12 + 5, 17 + 7, 24 + 100], startpoint: [12 + 5, 17 + 7, 24 + 100]}


@pytest.mark.parametrize("change", AFTER, ids=lambda each: each.__name__)
def test_what_was_not_read_divides_the_checkpoints(change: Any, world: Any) -> None:
    """State that was edited, and positions that were moved, by a command or by a start."""
    flights = job_of(world)
    change(flights)
    flights.publish((0, "N1", 100))
    flights.run()
    steps, done = flights.shown(replay_key, "N1")
    assert miles(steps) == AFTER[change]
    assert done.differing == ()
    with pytest.raises(IncompatibleError, match=r"does not follow from checkpoint .* by reading alone"):
        flights.shown(replay_key, "N1", from_checkpoint=_oldest(flights))
    older, _ = flights.shown(replay_input, trips(0), 1)
    assert miles(older) == [12 if change is state_edit else 24], "the newest state in which the job met it"
    newest, _ = flights.shown(replay_input, trips(0), 2)
    assert miles(newest) == AFTER[change][-1:]
    partition, offset, _, value = next(row for row in flights.sent("totals") if row[3]["miles"] == AFTER[change][-1])
    sent, _ = flights.shown(replay_output, SystemStreamPartition("local", "totals", partition), offset)
    assert sent[-1]["outputs"][0]["value"] == value
    before = flights.shown(replay_key, "N1", to_checkpoint=_of_the_first_line(flights))[0]
    assert miles(before) == [5, 12]


def _oldest(flights: World) -> str:
    with admin.open_job("flights", overrides=flights.keys) as job:
        return str(job.log.read().restorable[0].id)


def _of_the_first_line(flights: World) -> str:
    with admin.open_job("flights", overrides=flights.keys) as job:
        records = job.log.read().restorable
        first = records[0].section(REPLAY).line
        return str([record for record in records if record.section(REPLAY).line == first][-1].id)


def test_a_message_whose_partition_is_read_after_another_one(world: Any) -> None:
    """Its state has what the job had read of the other partition by then."""
    flights = world(keyed())
    flights.publish((1, "N1", 100))
    flights.run()
    flights.publish((0, "N1", 5), (1, "N1", 20))
    flights.run()
    for partition, offset, expected in ((1, 0, 100), (0, 0, 105), (1, 1, 125)):
        steps, done = flights.shown(replay_input, trips(partition), offset)
        assert miles(steps) == [expected]
        assert done.messages == 1


def test_a_message_that_the_job_has_not_read_yet(world: Any) -> None:
    flights = job_of(world)
    flights.publish((0, "N1", 100), (0, "N1", 1))
    steps, _ = flights.shown(replay_input, trips(0), 2)
    assert miles(steps) == [112]


def test_batches_that_no_checkpoint_names_any_more(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are cut as the job cuts its batches, up to where those begin that are known."""
    noted: list[Any] = []
    run_whole = passes.run_whole

    def noting(*given: Any, **options: Any) -> Any:
        found = run_whole(*given, **options)
        noted.append(found[1])
        return found

    monkeypatch.setattr(passes, "run_whole", noting)
    flights = world(keyed(), **{"task.checkpoint.retained": 2})
    rng = random.Random(3)
    runs = [random_trips(rng, 40) for _ in range(4)]
    for number, own in enumerate(runs):
        flights.publish(*own)
        flights.run()
        if number == 0:
            with admin.open_job("flights", overrides=flights.keys) as job:
                admin.label_checkpoint(job, "latest", "first")
    for key in KEYS:
        expected, total = [], sum(each for _, plane, each in runs[0] if plane == key)
        steps, done = flights.shown(replay_key, key, from_checkpoint="first")
        for _, plane, each in (trip for own in runs[1:] for trip in own):
            if plane == key:
                expected.append(total := total + each)
        assert miles(steps)[-1:] == expected[-1:]
        assert len(steps) == len(expected)
        assert done.differing == ()
    assert noted
    for batches in noted:
        assert max(sum(end - start for _, start, end in each.ranges) for each in batches) <= 7


def test_an_input_that_the_checkpoints_do_not_have(world: Any) -> None:
    """The application reads one more than the job does: nothing of it is read between two checkpoints."""
    flights = job_of(world)
    flights.streams.admin().create_stream("more", 1)
    with closing(flights.streams.writer(None)) as writer:
        writer.append(SystemStreamPartition("local", "more", 0), [(1, b"N1", b'{"plane": "N1", "miles": 9}')])
    app = ps.StreamApplication("flights")
    both = app.input("local.trips").merge(app.input("local.more"))
    total_of(app, both.partition_by(lambda trip: trip["plane"]))
    flights.app = app
    steps, _ = flights.shown(replay_key, "N1")
    assert miles(steps)[-1] == 12


def test_durable_streams_are_refused(world: Any) -> None:
    app = ps.StreamApplication("flights")
    total_of(app, app.input("local.trips").partition_by(lambda trip: trip["plane"], through="local.by-plane"))
    flights = world(app)
    flights.publish((0, "N1", 5))
    flights.run()
    with pytest.raises(IncompatibleError, match=r"sends messages through `local.by-plane`"):
        flights.shown(replay_key, "N1")


def test_a_key_of_no_retained_line(world: Any) -> None:
    flights = job_of(world)
    state_edit(flights)
    steps, _ = flights.shown(replay_key, "N1")
    assert miles(steps) == [5, 12], "nothing was read behind the edit"
    with pytest.raises(NotFoundError, match="offset 2"):
        flights.shown(replay_input, trips(0), 2)


def windows() -> ps.StreamApplication:
    app = ps.StreamApplication("flights")
    trips = app.input("local.trips").partition_by(lambda trip: trip["plane"])
    panes = trips.window(ps.Windows.tumbling(5_000, aggregates={"n": ps.Count()}), id="fives")
    panes.map(lambda pane: {"plane": pane.key, "n": pane.message["n"]}).send_to(app.output("local.panes"))
    return app


@pytest.mark.parametrize("way", ["close", "drain"])
def test_what_fires_when_a_job_is_closed_is_shown(way: str, world: Any) -> None:
    flights = world(windows())
    rng = random.Random(way)
    for number in range(3):
        flights.publish(*random_trips(rng, 30))
        flights.run(**{way: number > 0})
    real = flights.sent("panes")
    with admin.open_job("flights", overrides=flights.keys) as job:
        records = job.log.read().restorable
        closed = [record for record in records if record.is_closed]
        assert len(closed) == 2
    for key in KEYS:
        own = [value for _, _, name, value in real if name == key]
        shown = []
        for end in closed:
            steps, done = flights.shown(replay_key, key, to_checkpoint=str(end.id))
            assert done.differing == ()
            shown += [sent["value"] for step in steps for sent in step["outputs"]]
        assert sorted(map(str, shown)) == sorted(map(str, own))
    partition, offset, key, value = real[-1]
    steps, _ = flights.shown(replay_output, SystemStreamPartition("local", "panes", partition), offset)
    assert value in [sent["value"] for sent in steps[-1]["outputs"]]


def test_batches_behind_a_start_that_failed(world: Any, tmp_path: Any) -> None:
    """The first run ends before its first commit: what the next ones read is in their batches all the same."""
    fail = tmp_path / "fail"

    def failing(trip: Any) -> Any:
        if fail.exists():
            raise ValueError("it fails")
        return trip

    app = ps.StreamApplication("flights")
    total_of(app, app.input("local.trips").map(failing, id="failing").partition_by(lambda trip: trip["plane"]))
    flights = world(app)
    fail.touch()
    flights.publish((0, "N1", 1))
    with pytest.raises(UserCodeError):
        flights.run()
    fail.unlink()
    flights.run()
    flights.publish((0, "N1", 10))
    flights.run()
    with admin.open_job("flights", overrides=flights.keys) as job:
        times = [batch.time_ms for record in job.log.read().restorable for batch in batches_of(record) if batch.named]
    steps, _ = flights.shown(replay_key, "N1")
    assert miles(steps) == [1, 11]
    assert [step["batchTime"] for step in steps] == times[-2:]
    assert len(set(times)) == 2


def total_times(factor: int) -> ps.StreamApplication:
    app = ps.StreamApplication("flights")
    total_of(
        app,
        app.input("local.trips")
        .map(lambda trip: trip | {"miles": factor * trip["miles"]}, id="factor")
        .partition_by(lambda trip: trip["plane"]),
    )
    return app


def test_checkpoints_that_a_start_went_back_behind(world: Any) -> None:
    """A labelled one is kept, and what was sent there can be asked for; but nothing that came later follows from it."""
    flights = world(total_times(1), **{"task.checkpoint.retained": 2})
    flights.publish((0, "N1", 1))
    flights.run()
    with admin.open_job("flights", overrides=flights.keys) as job:
        admin.label_checkpoint(job, "latest", "good")
    flights.app = total_times(1000)
    flights.publish((0, "N1", 7))
    flights.run()
    with admin.open_job("flights", overrides=flights.keys) as job:
        admin.label_checkpoint(job, "latest", "bad")
    assert [value["miles"] for *_, value in flights.sent("totals")] == [1, 7001]
    flights.app = total_times(1)
    flights.run(from_checkpoint="good")
    for each in (10, 3):
        flights.publish((0, "N1", each))
        flights.run()
    assert [value["miles"] for *_, value in flights.sent("totals")] == [1, 7001, 8, 18, 21]
    with pytest.raises(IncompatibleError, match="by reading alone"):
        flights.shown(replay_key, "N1", from_checkpoint="bad")
    assert [miles(flights.shown(replay_input, trips(0), offset)[0]) for offset in range(1, 4)] == [[8], [18], [21]]
    assert miles(flights.shown(replay_key, "N1", from_checkpoint="good")[0]) == [8, 18, 21]
    flights.app = total_times(1000)
    steps, _ = flights.shown(replay_key, "N1", from_checkpoint="good", to_checkpoint="bad")
    assert miles(steps) == [7001]
    (offset,) = (offset for _, offset, _, value in flights.sent("totals") if value["miles"] == 7001)
    sent, _ = flights.shown(replay_output, SystemStreamPartition("local", "totals", 0), offset)
    assert miles(sent) == [7001]


def test_checkpoints_of_an_older_version_say_of_no_line(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(notes, "section_of", lambda *_: ReplaySection())
        flights = job_of(world)
    flights.publish((0, "N1", 100))
    flights.run()
    steps, _ = flights.shown(replay_key, "N1")
    assert miles(steps) == [112]
    with pytest.raises(IncompatibleError, match="by reading alone"):
        flights.shown(replay_key, "N1", from_checkpoint=_oldest(flights))
    flights.publish((0, "N1", 1000))
    flights.run()
    assert miles(flights.shown(replay_key, "N1")[0]) == [112, 1112]


class Periods(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.seen, self.context = context.store("seen"), context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.seen[envelope.key] = self.seen.get(envelope.key, 0) + 1

    def window(self, collector: Any, coordinator: Any) -> None:
        for key, count in self.seen.all():
            collector.send("local.counts", key=key, value=[count, self.context.batch_time_ms])


def test_periods_that_begin_while_nothing_is_read(world: Any) -> None:
    """A replay makes the job's batches without messages as well."""
    app = ps.TaskApplication("flights", Periods)
    app.store("seen")
    app.input("local.trips")
    app.output("local.counts")
    flights = world(app, **{"task.window.ms": 20, "job.batch.interval.ms": 5})
    flights.publish((0, "N1", 1), (0, "N1", 2))
    flights.run_for(lambda: len(flights.sent("counts")) > 4)
    flights.publish((0, "N1", 3))
    flights.run_for(lambda: any(value[0] == 3 for *_, value in flights.sent("counts")))
    real = [(key, value) for *_, key, value in flights.sent("counts")]
    steps, done = flights.shown(replay_key, "N1")
    assert [(each["key"], each["value"]) for step in steps for each in step["outputs"]] == real
    assert done.messages == 3
    assert done.differing == ()


def test_messages_that_are_gone(world: Any) -> None:
    """A job may skip them, and a replay says that it cannot show what the job has read."""
    flights = world(keyed(), **{"streams.local.trips.on.data.loss": "skip"})
    for each in (5, 7, 9):
        flights.publish((0, "N1", each))
        flights.run()
    with closing(sqlite3.connect(flights.home / "streams" / "trips" / "0.db")) as file:
        file.execute("DELETE FROM message WHERE offset < 1")
        file.commit()
    with pytest.raises(IncompatibleError, match=r"do not have offset 0 of stream `local\.trips` partition 0 any more"):
        flights.shown(replay_key, "N1")
