"""The progress of a run, which several threads tell, and that of a batch, which has the fields of Spark's."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.listener import SinkProgress, SourceProgress, StateOperatorProgress, StreamingQueryProgress

import penstock as ps
from penstock.driver.show.progress import ProgressBoard
from penstock.driver.show.work import StateProgress
from penstock.metrics.snapshot import GaugeValue, MetricId, Snapshot
from penstock.runtime.reports import Report
from penstock.system.partitioner import partition_of
from penstock.testing import SettableClock
from tests.support.world.sums_job import TASKS, SumsWorld, drain


def test_what_one_wing_tells_is_not_lost_while_another_one_tells() -> None:
    board = ProgressBoard()
    other = threading.Thread(target=board.tell, args=("tables", "loads"))
    with board.changed:
        other.start()
        time.sleep(0.05)  # it waits for the board now
        board.tell("outbox", "publishes")
    other.join()
    assert board.wings == {"tables": "loads", "outbox": "publishes"}


def test_a_phase_ends_with_the_one_before() -> None:
    board = ProgressBoard(phase="restoring")
    with board.during("bootstrapping", "side"):
        assert (board.phase, board.phase_of) == ("bootstrapping", "side")
    assert (board.phase, board.phase_of) == ("restoring", "")


HOUR = 3_600_000


class Keep(ps.StreamTask):
    """Keeps the last value of a key, until one that divides by ten."""

    def init(self, context: Any) -> None:
        self.last = context.store("sums")
        self.count = context.store("count")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.count.put("all", (self.count.get("all") or 0) + 1)
        if envelope.value % 10:
            self.last.put(envelope.key, envelope.value)
        else:
            self.last.delete(envelope.key)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SumsWorld]:
    with closing(SumsWorld(tmp_path)) as made:
        made.app = app = ps.StreamApplication("sums")
        for store in ("sums", "count"):
            app.store(store, key=ps.String(), value=ps.Integer())
        source = app.input("m.events", key=ps.String(), value=ps.Integer(), timestamp=lambda value: value)
        keyed = source.partition_by(lambda envelope: envelope.key, envelope=True)
        keyed.process(Keep, stores=["sums", "count"], id="keep")
        keyed.process(Keep, stores=["sums", "count"], id="again")
        keyed.window(ps.Windows.tumbling(HOUR, aggregates={"n": ps.Count()}), id="hour")
        yield made


def fields(of: type) -> set[str]:
    """Field names in Spark's spelling."""
    return set(inspect.signature(of).parameters) - {"jprogress", "jdict"}


def test_progress_has_the_fields_of_spark(world: SumsWorld) -> None:
    driver = world.started(job_batch_max_messages=100)
    world.put(*range(1, 10))
    drain(driver)
    assert driver.board.last is not None
    found = driver.board.last.to_dict()
    assert found.keys() >= fields(StreamingQueryProgress)
    assert found["stateOperators"][0].keys() == fields(StateOperatorProgress)
    assert found["sources"][0].keys() >= fields(SourceProgress)
    assert found["sink"].keys() == fields(SinkProgress)
    assert found["batchDuration"] == found["durationMs"]["triggerExecution"]


def test_a_batch_says_what_it_did_to_the_state(world: SumsWorld) -> None:
    driver = world.started(job_batch_max_messages=100)
    day = 24 * HOUR

    def batch(*values: int) -> dict[str, Any]:
        first = len(world.given)
        world.put(*values)
        drain(driver)
        assert driver.board.last is not None
        assert driver.board.last.num_input_rows == len(world.given) - first
        return driver.board.last.to_dict()

    # Keys follow each other: a, b, c, d, e.
    progress = batch(day + 1, day + 2, day + 3, day + 4, day, day + 6)
    keep, again, hour = progress["stateOperators"]
    assert [each["operatorName"] for each in (keep, again, hour)] == ["keep", "again", "hour"]
    tasks = {partition_of(ps.String().to_bytes(key), TASKS) for key in "abcde"}
    assert (keep["numRowsUpdated"], keep["numRowsRemoved"]) == (4 + len(tasks), 1), "a key counts once"
    assert keep["numStateStoreInstances"] == 2 * keep["numShufflePartitions"] == 2 * TASKS
    assert (again["numRowsUpdated"], again["numStateStoreInstances"]) == (0, 0), "its stores are those of keep"
    assert hour["numRowsUpdated"] > 0
    assert progress["inputRowsPerSecond"] is None
    # The second of the three partitions has been read up to a day and 2 ms.
    assert progress["eventTime"] == {"max": "1970-01-02T00:00:00.006Z", "watermark": "1970-01-02T00:00:00.002Z"}
    batch(day + 7)  # the watermark of the first batch holds from here on
    progress = batch(1, 2, day + 10)
    assert [each["numRowsDroppedByWatermark"] for each in progress["stateOperators"]] == [0, 0, 2]
    assert progress["inputRowsPerSecond"] > 0
    assert progress["eventTime"]["max"] == "1970-01-02T00:00:00.010Z"


def test_rows_and_memory_are_those_of_the_last_beats(world: SumsWorld) -> None:
    clock, gauges = SettableClock(), dict[MetricId, GaugeValue]()
    state = StateProgress(world.app.graph(), TASKS, lambda: Snapshot(gauges), clock)
    report = Report(1, 0, "token", {})

    def found() -> list[tuple[int | None, int | None]]:
        return [(each.num_rows_total, each.memory_used_bytes) for each in state.of_batch([report])]

    assert found()[0] == (None, None), "before the first beat"
    for task in range(TASKS):
        for store, size in (("sums", 10), ("count", 1)):
            for name in ("keys", "rocksdb.cur-size-all-mem-tables", "rocksdb.block-cache-usage"):
                gauges[MetricId(f"Partition {task}", f"store.{store}", name)] = GaugeValue(size)
                gauges[MetricId(f"Standby {task}", f"store.{store}", name)] = GaugeValue(1_000_000)
    clock.advance(10_000)
    assert found()[0] == (11 * TASKS, 22 * TASKS)
