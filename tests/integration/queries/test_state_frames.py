"""The state of a job as DataFrames of a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructType, TimestampType

import penstock.spark as pss
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.spark.processor.codec import RowCodec
from penstock.spark.processor.declared import Variable
from penstock.spark.processor.fields import KeyCodec
from tests.support.jobs.example_job import ExampleJob
from tests.support.stores.state_job import JOB, StateJob
from tests.support.tools.pages import blocks, run_example
from tests.support.tools.places import ROOT

pytestmark = pytest.mark.spark

TASKS = 3


class Job:
    """A job with three checkpoints of the store `first`, whose values are JSON."""

    def __init__(self, home: Path) -> None:
        self.state = StateJob(home, tasks=TASKS, layouts={"first": "task string json", "second": "task bytes a.b"})
        self.records = [
            self.commit({f"k{n}": {"n": n, "tag": "old"} for n in range(30)}),
            self.commit({**{f"k{n}": {"n": n, "tag": "new"} for n in range(0, 30, 7)}, "k1": None, "more": {"n": 1}}),
        ]

    @property
    def root(self) -> str:
        return str(self.state.home / "jobs")

    def commit(self, changes: dict[str, dict[str, object] | None]) -> CheckpointRecord:
        by_task: dict[int, dict[bytes, bytes | None]] = {}
        for key, value in changes.items():
            data = None if value is None else orjson.dumps(value)
            by_task.setdefault(sum(key.encode()) % TASKS, {})[key.encode()] = data
        return self.state.commit(by_task)

    def expected(self, number: int) -> set[tuple[int, str, str]]:
        entries = self.state.expected(self.records[number])
        return {(task, key.decode(), value.decode()) for (key, task), value in entries.items()}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    made = Job(tmp_path_factory.mktemp("state"))
    yield made
    made.state.close()


def test_state_at_each_checkpoint(spark: SparkSession, job: Job) -> None:
    named: list[tuple[int, str | int]] = [(0, "latest-1"), (1, "latest"), (0, job.records[0].batch)]
    for number, name in named:
        frame = pss.read_state(spark, job.root, "first", name)
        assert frame.columns == ["task", "key", "value"]
        assert frame.rdd.getNumPartitions() == TASKS
        assert {tuple(row) for row in frame.collect()} == job.expected(number)
        assert frame.where("key = 'k7'").count() == 1
    typed = pss.read_state(spark, job.root, "first", job="contract", value_type="n LONG, tag STRING")
    assert typed.limit(2).count() == 2
    total = typed.selectExpr("sum(value.n) AS total", "count(value.tag) AS tags").first()
    assert total is not None
    assert tuple(total) == (sum(range(30)) - 1 + 1, 29)


def test_changes_between_checkpoints(spark: SparkSession, job: Job) -> None:
    frame = pss.read_changes(spark, job.root, "first", "latest-1", job=JOB, value_type="n LONG, tag STRING")
    assert frame.columns == ["change", "task", "key", "before", "after"]
    kinds = {row["change"]: row["count"] for row in frame.groupBy("change").count().collect()}
    assert kinds == {"added": 1, "removed": 1, "changed": 5}
    changed = frame.where("change = 'changed'").selectExpr("key", "before.tag", "after.tag").collect()
    assert {tuple(row) for row in changed} == {(f"k{n}", "old", "new") for n in range(0, 30, 7)}
    (removed,) = frame.where("change = 'removed'").collect()
    assert removed["key"] == "k1"
    assert removed["after"] is None


def test_what_cannot_be_read(spark: SparkSession, job: Job, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="has no store `third`; it has: `first`, `second`"):
        pss.read_state(spark, job.root, "third")
    with pytest.raises(NotFoundError, match=r"version `latest-9` is not retained. Retained: "):
        pss.read_state(spark, job.root, "first", "latest-9")
    with pytest.raises(NotFoundError, match="there is no job `others`"):
        pss.read_state(spark, job.root, "first", job="others")
    with pytest.raises(NotFoundError, match=r"there is no job in `.*empty`: give the `job.root`"):
        pss.read_state(spark, str(tmp_path / "empty"), "first")
    with pytest.raises(ConfigError, match="value_type='n LUNG' is not a type that Spark knows"):
        pss.read_state(spark, job.root, "first", value_type="n LUNG")


@pytest.mark.slow
def test_several_jobs_and_serdes_that_changed(spark: SparkSession, tmp_path: Path) -> None:
    job = StateJob(tmp_path, layouts={"first": "task string json"})
    CheckpointLog(job.objects, JobPaths("another", "1")).claim("run")
    root = str(tmp_path / "jobs")
    old = job.commit({0: {b"a": b"1"}})
    with pytest.raises(ConfigError, match=r"has 2 jobs: `another-1` and `contract-1`. Name one, as in job='another-1'"):
        pss.read_state(spark, root, "first")
    frame = pss.read_state(spark, root, "first", str(old.id), job=JOB)
    job._layouts = {"first": "task string long"}
    job.commit({0: {b"a": (2).to_bytes(8, "big")}})
    with pytest.raises(IncompatibleError, match="has the serdes `string` and `json` at checkpoint"):
        pss.read_changes(spark, root, "first", str(old.id), job=JOB)
    job.commit({}, retained=[])
    with pytest.raises(PythonException, match=f"checkpoint {old.id} was retained when it was chosen and no longer is"):
        frame.collect()
    job.close()


def test_the_examples_of_the_page(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    ExampleJob(tmp_path / "home", tmp_path / "kept")
    found: dict[str, Any] = {"__name__": "__main__", "spark": spark, "root": str(tmp_path / "home" / "jobs")}
    for block in blocks((ROOT / "docs" / "dataframes.md").read_text("utf-8")):
        exec(compile(block, "docs/dataframes.md", "exec"), found)
    assert tuple(found["farthest"]) == ("N1", 1200)
    assert found["lengths"] == {"N1": 2, "N2": 2, "N14": 3}
    assert [tuple(row) for row in found["changed"]] == [("N1", 500, 1200)]


@pytest.mark.slow
def test_the_examples_of_folders_of_files(spark: SparkSession, tmp_path: Path) -> None:
    """As written; then with rows that Spark adds to the folder, twice: a run reads only new ones."""
    page = (ROOT / "docs" / "files.md").read_text("utf-8").replace("/srv", str(tmp_path))
    example, rest = page.split("\n## ", 1)
    printed, shown = run_example(example, tmp_path)
    assert printed.endswith(shown)

    found: dict[str, Any] = {"__name__": "files_page", "spark": spark, "lake": str(tmp_path / "lake")}
    (job,), (adds, _) = blocks(example), blocks(rest)
    exec(compile(job, "docs/files.md", "exec"), found)
    (options,) = blocks(example, "yaml")
    config = {key: value for key, value in yaml.safe_load(options).items() if key != "spark.master"}
    spark.range(70).selectExpr("concat('r', id % 7) AS rider", "id AS km").createOrReplaceTempView("all_rides")
    for times in (1, 2):
        exec(compile(adds, "docs/files.md", "exec"), found)
        assert found["app"].run(config, spark=spark, until="latest").await_termination(240)
        counts = spark.read.json(str(tmp_path / "results" / "counts")).groupBy("rider").agg({"rides": "max"}).collect()
        assert {tuple(row) for row in counts} == {("ann", 2), ("bob", 1), *((f"r{n}", times * 10) for n in range(7))}


def test_state_variables_of_a_processor(spark: SparkSession, tmp_path: Path) -> None:
    key, value = StructType().add("user id", StringType()), StructType().add("at", TimestampType())
    variable = Variable("value", "first", value)
    spec = variable.store(key)
    job = StateJob(tmp_path, layouts={"first": f"process {spec.key_serde.name} {spec.value_serde.name}"})
    at = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
    job.commit({0: {KeyCodec(key).encode(("ann",)): RowCodec(value).encode((at,))}})
    frame = pss.read_state(spark, str(tmp_path / "jobs"), "first")
    assert frame.schema.simpleString() == "struct<task:int,key:struct<user id:string>,value:struct<at:timestamp>>"
    (row,) = frame.selectExpr("key.`user id`", "unix_seconds(value.at)").collect()
    assert tuple(row) == ("ann", at.timestamp())
    job.close()
