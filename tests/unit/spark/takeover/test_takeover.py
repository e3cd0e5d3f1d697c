"""State that PySpark kept, taken over without Spark, by processes that are killed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructType

from penstock import admin
from penstock.admin.checkpoint import change as checkpoint_write
from penstock.admin.checkpoint.change import append_record
from penstock.admin.state.reading import open_version
from penstock.admin.state.store_uploads import first_record
from penstock.checkpoint.log import CheckpointLog
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, IncompatibleError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.spark import state_from_spark as from_spark
from penstock.spark import takeover as takeover_module
from penstock.spark.processor.codec import RowCodec
from penstock.spark.processor.fields import KeyCodec
from penstock.spark.processor.task import ProcessorSpec
from penstock.spark.query.plan import QueryInput, QueryOutput, QueryPlan
from penstock.spark.row_batches import ChunkReader, ChunkWriter
from penstock.spark.state_import.checkpoint import OperatorFacts
from penstock.spark.takeover import Takeover
from penstock.spark.transform import _graph
from penstock.state.outside_backup import FirstBackup
from penstock.system.partitioner import partition_of
from tests.support.oracles.processors import spec_of
from tests.support.stores.spark_state import GOLDEN

K = StructType().add("k", StringType())
TOTAL = StructType().add("c", LongType()).add("last", StringType())
SEEN = StructType().add("i", IntegerType()).add("k", StringType())
LAST = StructType().add("p", IntegerType())
N = StructType().add("n", LongType())
KEPT = StructType().add("x", DoubleType())
OUT = StructType([*K]).add("said", StringType())
TTL_MS = 1_000_000_000_000
KEYS = [*(f"key-{n}" for n in range(7)), None]


class Reads(StatefulProcessor):
    """Says what there is of the state that `make_spark_state.py` had PySpark keep."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", TOTAL)
        self.seen = handle.getListState("seen", SEEN)
        self.last = handle.getMapState("last", LAST, N)
        self.kept = handle.getValueState("kept", KEPT, TTL_MS)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        last = sorted([*k, *v] for k, v in self.last.iterator())
        found = self.total.get(), list(self.seen.get()), last, self.kept.get(), len(list(self.handle.listTimers()))
        yield Row(k=key[0], said=json.dumps(found))

    def close(self) -> None:
        pass


def spec() -> ProcessorSpec:
    return spec_of(Reads(), ["k"], K, OUT, "ProcessingTime")


@pytest.mark.parametrize(("theirs", "ours"), [("NoTime", "None"), ("ProcessingTime",) * 2, ("EventTime",) * 2])
def test_time_modes_have_other_names_in_spark_s_metadata(theirs: str, ours: str) -> None:
    class Empty(Reads):
        def init(self, handle: Any) -> None:
            pass

    facts = OperatorFacts(0, "transformWithStateInPySparkExec", {}, {}, time_mode=theirs)
    for mode in ("None", "ProcessingTime", "EventTime"):
        own = spec_of(Empty(), ["k"], K, OUT, mode)
        takeover = Takeover(_graph("reads", own, None), own, imports=True, begins_here=False)
        if mode == ours:
            takeover._check(facts, "x")
        else:
            with pytest.raises(IncompatibleError, match=f'give time_mode="{ours}"'):
                takeover._check(facts, "x")


class Folder:
    """A checkpoint location in a local folder, without Spark."""

    end_at = ""

    def __init__(self, spark: None, location: str) -> None:
        self._root, files = Path(location), open_store(location)
        self.url, self.get, self.list = location, files.get, files.list

    def has_begun(self) -> bool:
        return (self._root / "offsets").exists()

    def is_read(self) -> bool:
        return False

    def operators(self) -> list[int]:
        return [0] if (self._root / "state" / "0" / "_metadata").exists() else []

    def set_aside(self, operator: int, batch: int) -> None:
        if self.end_at == "before the rename":
            end()
        below = self._root / "state" / str(operator)
        (below / "_metadata").rename(below / f"_metadata.until-{batch}")
        if self.end_at == "behind the rename":
            end()


def without_spark(patch: pytest.MonkeyPatch) -> None:
    """Let this process back up what the expectations have, instead of Spark's tasks."""
    patch.setattr(takeover_module, "CheckpointLocation", Folder)
    patch.setattr(Takeover, "sources", lambda *_: (SimpleNamespace(spark=None), {}))
    patch.setattr(from_spark, "back_up", backed_up)


def backed_up(
    spark: None, sources: Any, heads: Any, first: FirstBackup
) -> tuple[dict[int, dict[str, dict[str, str]]], dict[str, int]]:
    keys, rows = KeyCodec(K), RowCodec(TOTAL)
    totals = {keys.encode(key): rows.encode(value) for key, value in expected_totals()}
    markers: dict[int, dict[str, dict[str, str]]] = {task: {} for task in range(first.tasks)}
    for task, store in product(range(first.tasks), first.stores):
        own = [each for each in totals.items() if store == "total" and partition_of(each[0], first.tasks) == task]
        with tempfile.TemporaryDirectory() as scratch:
            for backend, marker in first.run(task, store, own, Path(scratch)).items():
                markers[task].setdefault(backend, {})[store] = marker
        if Folder.end_at == "within the backups" and store == "total":
            end()
    return markers, {}


KILLED = """
import pickle, sys
from tests.unit.spark.takeover import test_takeover
test_takeover.killed_at(sys.argv[1], pickle.load(sys.stdin.buffer))
"""
POINTS = ("within the backups", "before the record", "behind the record", "before the rename", "behind the rename")


def end(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at(point: str, given: tuple[Takeover, JobConfig, str]) -> None:
    """Take state over in this process until it is killed."""
    takeover, config, location = given
    patch = pytest.MonkeyPatch()
    without_spark(patch)
    patch.setattr(Folder, "end_at", point)

    def ends(*arguments: Any) -> None:
        if point == "behind the record":
            append_record(*arguments)
        end()

    if point.endswith("the record"):
        patch.setattr(checkpoint_write, "append_record", ends)
    run(takeover, location, config)


def run(takeover: Takeover, location: str | Path, config: JobConfig) -> None:
    takeover.run(None, str(location), config, 2)  # type: ignore[arg-type]


def plan_of(home: Path, *, imports: bool = True) -> tuple[Takeover, JobConfig]:
    own = spec()
    graph = _graph("reads", own, None)
    plan = QueryPlan(
        graph=graph,
        inputs=(QueryInput("rows", ChunkReader(own.key)),),
        outputs=(QueryOutput("output", own.output, ChunkWriter()),),
        root=str(home / "root"),
        config={"job.lease.ms": 1_000},
    )
    return Takeover(graph, own, imports=imports, begins_here=False), plan.settings()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "point", [POINTS[0], *(pytest.param(point, marks=pytest.mark.slow) for point in POINTS[1:-1]), POINTS[-1]]
)
def test_a_killed_take_over_is_continued(point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = tmp_path / "location"
    shutil.copytree(GOLDEN / "tws-lz4" / "checkpoint", location)
    takeover, config = plan_of(tmp_path)
    given = pickle.dumps((takeover, config, str(location)))
    killed = subprocess.run([sys.executable, "-c", KILLED, point], input=given, check=False)
    assert killed.returncode == -signal.SIGKILL
    has_record = point not in POINTS[:2]
    assert (first_record(config) is not None) == has_record
    is_renamed = point == "behind the rename"
    assert (location / "state" / "0" / "_metadata").exists() != is_renamed

    without_spark(monkeypatch)
    if not is_renamed:
        without, _ = plan_of(tmp_path, imports=False)
        with pytest.raises(IncompatibleError, match=r"import_state=True"):
            run(without, location, config)
    run(takeover, location, config)
    run(takeover, location, config)
    assert (location / "state" / "0" / "_metadata.until-4").exists()
    assert not (location / "state" / "0" / "_metadata").exists()
    with closing(open_store(config.job.root)) as objects:
        records = CheckpointLog(objects, JobPaths(config.job.name, config.job.id)).read().checkpoints
        assert len(records) == 1
    assert totals(config) == {key: (c, last) for (key,), (c, last) in expected_totals()}


def test_another_location_is_no_silent_begin_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)
    takeover, config = plan_of(tmp_path)
    with pytest.raises(ConfigError, match=r"the checkpoint location .*/mistyped has had no batch"):
        run(takeover, tmp_path / "mistyped", config)
    assert first_record(config) is None
    without, config = plan_of(tmp_path, imports=False)
    run(without, tmp_path / "mistyped", config)


def test_the_state_of_a_query_that_still_runs_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/integration/takeover has such a query on Spark."""
    location = tmp_path / "location"
    shutil.copytree(GOLDEN / "tws-lz4" / "checkpoint", location)
    without_spark(monkeypatch)
    monkeypatch.setattr(Folder, "is_read", lambda self: True)
    takeover, config = plan_of(tmp_path)
    with pytest.raises(IncompatibleError, match="is running in this program"):
        run(takeover, location, config)
    assert first_record(config) is None
    assert (location / "state" / "0" / "_metadata").exists()


def totals(config: JobConfig) -> dict[Any, Any]:
    keys, rows, where = KeyCodec(K), RowCodec(TOTAL), {"job.root": config.job.root}
    with admin.open_job(config.job.name, overrides=where) as job, open_version(job, "total") as version:
        return {keys.decode(entry.key)[0]: rows.decode(entry.value) for entry in version.scan()}


def expected_totals() -> list[Any]:
    found = json.loads((GOLDEN / "tws-lz4" / "expected.json").read_text())["total"]["4"]
    return [json.loads(entry)[1:] for entry in found]
