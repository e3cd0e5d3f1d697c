"""A real job begins where startpoints say: the messages that are read again are exactly those, and state follows as
it was chosen to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.api.requests import StartpointOldest, StartpointSpecific, StartpointUpcoming
from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.task_versions import markers_of
from penstock.cli.main import app
from penstock.driver.job import Job
from penstock.errors import IncompatibleError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.start.startpoint_manager import StartpointManager
from penstock.start.startpoint_request import StartpointRequest
from penstock.state.reading.reader import StateReader
from penstock.system.base import OffsetRange, WriterIdentity
from tests.support.apps import job_app
from tests.support.apps.job_app import Event, add_event
from tests.support.jobs.home import DEADLINE_S, Home, Totals, same

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MESSAGES = 160
FIRST_MS = 1_370_044_800_000
"""2013-06-01T00:00Z. In each partition one message a minute."""
MINUTE_MS = 60_000
PATHS = JobPaths("totals", "1")


class TimedHome(Home):
    """A job whose messages have times, and that commits after each small batch."""

    def __init__(self, folder: Path, **config: Any) -> None:
        super().__init__(folder, **config)
        self.config |= {"job.batch.max.messages": 40, "task.commit.ms": 1, "task.checkpoint.retained": "100"}

    def append_raw(self, partition: int, values: Sequence[bytes], *, stream: str = "events") -> int:
        """Append values, each a minute later than the one before."""
        there = len(self.events[stream][partition])
        writer = self.system.writer(None)
        records = [(FIRST_MS + MINUTE_MS * n, None, value) for n, value in enumerate(values, there)]
        first = writer.append(event_ssp(partition), records)
        writer.close()
        self.events[stream][partition].extend([None] * len(values))
        return first

    @property
    def ends(self) -> dict[int, int]:
        """The number of messages in each partition."""
        return {partition: len(events) for partition, events in self.events["events"].items()}

    def run(self, spark: SparkSession, **arguments: Any) -> Job:
        """Run to the end of what is there."""
        job = job_app.totals_app().run(self.config, spark=spark, until="latest", **arguments)
        assert job.await_termination(DEADLINE_S)
        return job

    def penstock(self, *arguments: str) -> Any:
        """A command on the job's own folders, in JSON."""
        options = [o for key in ("job.root", "systems.local.path") for o in ("-c", f"{key}={self.config[key]}")]
        result = CliRunner().invoke(app, [*arguments, *options, "--json"])
        assert result.exit_code == 0, result.output + repr(result.exception)
        return json.loads(result.stdout)

    def manager(self) -> StartpointManager:
        """The startpoints of the job."""
        return StartpointManager(open_store(str(self.config["job.root"])), PATHS)

    def requests(self) -> tuple[StartpointRequest, ...]:
        """The startpoints that wait."""
        return self.manager().requests()

    def totals_of(self, begins: dict[int, int]) -> Totals:
        """Totals by key of what lies from these offsets on, by a plain loop."""
        found: Totals = {}
        for partition, begin in begins.items():
            for event in self.events["events"][partition][begin:]:
                assert event is not None
                found[event["key"]] = add_event(found.get(event["key"]), event)
        return found

    def held_by(self, backend: str, store: str, record: CheckpointRecord) -> Totals:
        """The content of a store that one backend alone restores."""
        config = self.loaded()
        found: Totals = {}
        with StateReader(config, PATHS, open_store(config.job.root), {"local": self.system}) as reader:
            for task in record.tasks:
                with reader.open(record, store, task, backend) as engine:
                    found |= {key.decode(): orjson.loads(value) for key, value in engine.scan(None, None)}
        return found


def event_ssp(partition: int) -> SystemStreamPartition:
    """A partition of the input."""
    return SystemStreamPartition("local", "events", partition)


def counts(totals: Totals) -> dict[str, tuple[int, int]]:
    """Count and sum by key, whatever was read twice."""
    return {key: (total["count"], total["sum"]) for key, total in totals.items()}


def plus(first: Totals, second: Totals) -> dict[str, tuple[int, int]]:
    """Both together."""
    one, two = counts(first), counts(second)
    none = (0, 0)
    return {
        key: (one.get(key, none)[0] + two.get(key, none)[0], one.get(key, none)[1] + two.get(key, none)[1])
        for key in one.keys() | two.keys()
    }


@pytest.fixture
def home(tmp_path: Path) -> TimedHome:
    """Nothing has run yet."""
    made = TimedHome(tmp_path)
    made.publish(MESSAGES)
    return made


def replayed(job: Job) -> int:
    """The number of messages that a run has read."""
    return 0 if job.progress is None else job.progress.total_input_rows


def test_exactly_the_messages_of_a_time_and_later_are_read_again(home: TimedHome, spark: SparkSession) -> None:
    home.run(spark)
    home.verify_ended()
    back = home.ends[0] - 7
    minute = f"2013-06-01T{back // 60:02d}:{back % 60:02d}Z"
    where = ("--stream", "local.events", "--partition", "0", "--timestamp", minute)
    asked = home.penstock("startpoint", "set", "totals", *where)
    assert [(c["partition"], c["oldNext"], c["newNext"]) for c in asked["changes"]] == [(0, home.ends[0], back)]
    waiting = home.penstock("status", "totals", "--no-wait")
    assert [(r["kind"], r["status"]) for r in waiting["startpoints"]] == [("timestamp", "pending")]

    before = home.checkpoints[-1]
    assert replayed(home.run(spark)) == 7
    found = home.penstock("status", "totals", "--no-wait")
    (moved,) = found["takenStartpoints"]["moved"]
    assert (moved["stream"], moved["partition"], moved["toReplay"], moved["replayed"]) == ("local.events", 0, 7, 7)
    assert found["startpoints"] == []
    assert home.requests() == ()
    assert counts(home.stored("totals")) == plus(home.expected()[0], home.totals_of({0: back}))
    assert home.checkpoints[-1].next_offsets == before.next_offsets

    assert replayed(home.run(spark)) == 0, "it applies once"
    assert home.penstock("status", "totals", "--no-wait")["takenStartpoints"] is None


def test_with_state_nearest_input_and_state_go_back_together(home: TimedHome, spark: SparkSession) -> None:
    home.run(spark)
    wanted = home.ends[0] - 25
    where = ("--stream", "local.events", "--partition", "0", "--offset", str(wanted), "--with-state", "nearest")
    asked = home.penstock("startpoint", "set", "totals", *where)
    (nearest,) = (record for record in home.checkpoints if str(record.id) == asked["nearest"])
    back = {n: nearest.next_offsets[n][event_ssp(n)] for n in home.ends}
    assert back[0] <= wanted
    assert not any(back[0] < r.next_offsets[0][event_ssp(0)] <= wanted for r in home.checkpoints)

    assert replayed(home.run(spark)) == sum(home.ends[n] - back[n] for n in home.ends)
    home.verify()  # of every checkpoint the totals are exactly those of its own offsets
    found = home.penstock("status", "totals", "--no-wait")["takenStartpoints"]
    assert found["beganWith"] == asked["nearest"]
    assert {m["partition"]: m["replayed"] for m in found["moved"]} == {n: home.ends[n] - back[n] for n in home.ends}


ALL = "changelog-files,blob,changelog-stream"


@pytest.mark.parametrize("backends", ["changelog-files", "blob", "changelog-stream", ALL])
def test_with_state_clear_the_stores_begin_empty(tmp_path: Path, spark: SparkSession, backends: str) -> None:
    """In every backend; what is older stays restorable; and the next run goes on from there."""
    home = TimedHome(tmp_path)
    home.config |= {"stores.backup.factories": backends, "job.host-affinity.enabled": "true"}
    home.publish(MESSAGES)
    home.run(spark)
    old = home.checkpoints[-1]
    back = {0: home.ends[0] - 9, 1: home.ends[1] - 4}
    for partition, offset in back.items():
        where = ("--stream", "local.events", "--partition", str(partition), "--offset", str(offset))
        home.penstock("startpoint", "set", "totals", *where, "--with-state", "clear")
    assert replayed(home.run(spark)) == 13
    expected = counts(home.totals_of(back))
    start = next(record for record in home.checkpoints if record.consumed_startpoints)
    for backend in backends.split(","):
        assert counts(home.held_by(backend, "totals", home.checkpoints[-1])) == expected, backend
        assert home.held_by(backend, "totals", start) == {}, backend
        same(home.held_by(backend, "totals", old), home.expected(old)[0], backend)

    home.publish(30, seed=2)
    home.run(spark)
    assert counts(home.stored("totals")) == counts(home.totals_of(back))
    home.run(spark, from_checkpoint=str(old.id))
    last = home.checkpoints[-1]
    home.verify_checkpoint(last)
    assert set(markers_of(last, 0)) == set(backends.split(","))


def test_upcoming_oldest_and_a_stream_that_is_reset(home: TimedHome, spark: SparkSession) -> None:
    manager = home.manager()
    manager.write_startpoint(event_ssp(0), StartpointOldest())
    manager.write_startpoint(event_ssp(0), StartpointSpecific(str(home.ends[0] - 1)))
    manager.write_startpoint(event_ssp(1), StartpointUpcoming())
    assert replayed(home.run(spark)) == 1, "before there is any checkpoint, and inclusive"
    home.config["streams.local.events.samza.reset.offset"] = "true"
    assert replayed(home.run(spark)) == MESSAGES, "the checkpoint does not count, the default does"
    manager.write_startpoint(event_ssp(0), StartpointSpecific(str(home.ends[0] - 3)))
    assert replayed(home.run(spark)) == home.ends[1] + 3, "a startpoint does"


def test_what_cannot_be_applied_stops_the_start_and_changes_nothing(home: TimedHome, spark: SparkSession) -> None:
    home.run(spark)
    manager = home.manager()
    gone = manager.write_startpoint(SystemStreamPartition("local", "gone", 0), StartpointOldest())
    before = home.log
    with pytest.raises(IncompatibleError, match=r"`local\.gone` is not an input of the job"):
        home.run(spark)
    output = manager.write_startpoint(SystemStreamPartition("local", "totals", 0), StartpointOldest())
    manager.delete([gone])
    with pytest.raises(IncompatibleError, match=r"`local\.totals` is an output of the job"):
        home.run(spark)
    manager.delete([output])
    manager.write_startpoint(event_ssp(0), StartpointSpecific("5"))
    home.system.admin().compact(OffsetRange(event_ssp(0), 10, 10), WriterIdentity("retention", 1))
    with pytest.raises(IncompatibleError, match=r"from offset 5: it holds messages from 10 \(oldest\)"):
        home.run(spark)
    assert home.log == before
    manager.delete_startpoint(event_ssp(0))
    manager.write_startpoint(event_ssp(0), StartpointSpecific("5"), clamp=True)
    assert replayed(home.run(spark)) == home.ends[0] - 10


def test_expired_ones_and_those_of_a_job_that_wants_none(home: TimedHome, spark: SparkSession) -> None:
    home.run(spark)
    manager = home.manager()
    manager.write_startpoint(event_ssp(0), StartpointOldest(creation_timestamp=1))
    home.config["job.startpoint.enabled"] = "false"
    assert replayed(home.run(spark)) == 0
    assert len(home.requests()) == 1, "it is left alone"
    home.config["job.startpoint.enabled"] = "true"
    assert replayed(home.run(spark)) == 0
    assert home.requests() == (), "expired, and deleted"
    event: Event = {"key": "k1", "n": 1}
    home.append(0, [event])
    assert replayed(home.run(spark)) == 1
