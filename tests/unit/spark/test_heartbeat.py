"""When a query makes a batch without new rows: the source that Spark asks, without Spark."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from penstock.clock import SYSTEM_CLOCK
from penstock.spark.heartbeat import AT_ONCE, Heartbeat, has_heartbeat, heartbeat_source

OLD = b'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"logOffset":3}'
NEW = OLD + b'\n{"penstock.heartbeat": 4}'
AN_HOUR = 3_600_000


class Beating:
    """The driver's side and the reader."""

    def __init__(self, folder: Path, *, is_silent: bool = False) -> None:
        self.heartbeat = Heartbeat(folder, is_silent=is_silent)
        source = heartbeat_source("heartbeat")({"due": self.heartbeat._path})
        self.reader: Any = source.streamReader(StructType())
        self.offset = self.reader.initialOffset()

    def is_due(self) -> bool:
        before, self.offset = self.offset, self.reader.latestOffset(self.offset, ReadAllAvailable())
        return bool(before != self.offset)


@pytest.fixture
def beating(tmp_path: Path) -> Any:
    beating = Beating(tmp_path)
    yield beating
    beating.heartbeat.close()
    assert not list(tmp_path.iterdir())


def test_the_first_batch_is_due_at_once_and_then_what_the_driver_says(beating: Beating) -> None:
    now_ms = SYSTEM_CLOCK.now_ms()
    assert beating.is_due()
    for due_ms, expected in ((None, False), (now_ms - 1, True), (now_ms + AN_HOUR, False), (AT_ONCE, True)):
        beating.heartbeat.set(due_ms)
        assert beating.is_due() is expected
    beating.heartbeat.close()
    assert not beating.is_due(), "a query that has ended has nothing due"
    beating.heartbeat.close()


def test_a_silent_one_has_nothing_due(tmp_path: Path) -> None:
    beating = Beating(tmp_path, is_silent=True)
    assert not beating.is_due()
    beating.heartbeat.set(AT_ONCE)
    assert not beating.is_due()


def test_a_query_that_ends_waits_for_no_timer_that_comes_due_while_it_runs(beating: Beating) -> None:
    beating.reader.prepareForTriggerAvailableNow()
    assert beating.is_due()
    beating.heartbeat.set(SYSTEM_CLOCK.now_ms() + 1)
    assert not any(beating.is_due() for _ in range(100))
    beating.heartbeat.set(AT_ONCE)
    assert beating.is_due(), "the last batch has made something due"


def test_it_has_no_rows(beating: Beating) -> None:
    assert beating.reader.partitions({}, {}) == []


def test_the_processes_of_spark_need_no_penstock() -> None:
    """They get the class by value, and import nothing of Penstock for it."""
    data = cloudpickle.dumps(heartbeat_source("heartbeat"))
    assert pickle.loads(data).name() == "heartbeat"
    code = (
        "import pickle, sys\n"
        "source = pickle.loads(sys.stdin.buffer.read())({'due': '/nowhere'})\n"
        "reader = source.streamReader(None)\n"
        "assert reader.latestOffset(reader.initialOffset(), None) == reader.initialOffset()\n"
        "assert not [name for name in sys.modules if name.startswith('penstock')]\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", code], input=data, check=True, cwd="/", env=environment)


@pytest.mark.parametrize(
    ("offsets", "timed", "expected"),
    [(None, True, True), (None, False, False), (NEW, True, True), (NEW, False, True), (OLD, False, False)],
)
def test_a_query_has_it_from_its_first_batch_on_or_never(offsets: bytes | None, timed: bool, expected: bool) -> None:
    assert has_heartbeat(offsets, timed=timed) is expected


def test_a_checkpoint_location_without_it_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not has_heartbeat(OLD, timed=True)
    assert "fire in the next batch with new rows" in caplog.text
