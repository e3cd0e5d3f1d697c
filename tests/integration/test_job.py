"""Jobs in this process, all on one Spark session: what a run does, what it refuses, and what the next run finds."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import penstock as ps
from penstock.api.application import Application
from penstock.api.ssp import SystemStreamPartition
from penstock.cli.main import app as cli
from penstock.engine.job import Job
from penstock.engine.session import create_session
from penstock.metadata.lease import LeaseHeldError
from tests.support import job_app
from tests.support.cli import call_json
from tests.support.job_app import add_event, add_region
from tests.support.jobs import DEADLINE_S, Home, same, wait_until
from tests.support.places import ROOT

pytestmark = pytest.mark.spark

CASES: dict[str, tuple[Callable[[], Application], dict[str, object], str]] = {
    "a store is removed": (lambda: job_app.totals_app(regions=False), {}, "store `regions`.*no longer"),
    "a serde is changed": (lambda: job_app.totals_app(value=ps.String()), {}, "store `totals`.*json.*string"),
    "an operator id is changed": (lambda: job_app.totals_app(key_id="other"), {}, "store `totals`.*keys.*other"),
    "the task count is changed": (job_app.totals_app, {"job.intermediate.stream.partitions": 3}, "2 tasks.*are 3"),
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    cloudpickle.register_pickle_by_value(job_app)
    session = create_session("tests", {"spark.master": "local[2]"})
    yield session
    session.stop()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture(scope="module")
def settled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A job that has run and ended. Tests only look at it, or start what is refused."""
    home = Home(tmp_path_factory.mktemp("settled"))
    home.publish(600, seed=1)
    finish(start(home, spark))
    home.verify()
    return home


def start(
    home: Home,
    spark: SparkSession,
    app: Application | None = None,
    *,
    until: Literal["latest"] | None = "latest",
    **config: Any,
) -> Job:
    """Start a job; `config` keys have `_` for a dot."""
    given = {key.replace("_", "."): value for key, value in config.items()}
    return (app or job_app.totals_app()).run({**home.config, **given}, spark=spark, until=until)


def finish(job: Job) -> Job:
    """Wait for its end, which must be a good one."""
    assert job.await_termination(DEADLINE_S), f"the job did not end; it is {job.phase}, at {job.last_progress}"
    return job


def refused(home: Home, spark: SparkSession, app: Application, **config: Any) -> ps.PenstockError:
    """A start that must not come about, and must change nothing that counts."""
    before = home.job_files()
    with pytest.raises(ps.PenstockError) as caught:
        finish(start(home, spark, app, **config))
    assert without_lease(home.job_files()) == without_lease(before)
    return caught.value


def without_lease(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if "/metadata/lease/" not in name and "/." not in name}


# What a run does.


def test_a_job_runs_to_the_latest_message(settled: Home) -> None:
    first, *_, last = settled.checkpoints
    assert (first.kind_detail, first.batch, last.ended) == ("start", 0, "stopped")
    assert settled.length("totals") == settled.length("regions") == 600
    assert [claim.epoch for claim in settled.log.claims] == [1]


def test_an_endless_job_reads_what_comes_and_the_next_run_replays_nothing(spark: SparkSession, home: Home) -> None:
    home.publish(300, seed=2)
    job = start(home, spark, until=None)
    wait_until(lambda: job.progress and job.progress.total_input_rows == 300, "the first messages")
    assert (job.is_active, job.phase, job.remaining_messages) == (True, "running", None)
    home.publish(200, seed=3)
    wait_until(lambda: job.progress and job.progress.total_input_rows == 500, "the later messages")
    progress = job.last_progress
    assert progress is not None
    assert progress.keys() >= {"id", "runId", "name", "timestamp", "batchId", "numInputRows", "durationMs", "sources"}
    assert (progress["runId"], progress["name"]) == (job.run_id, "totals-1")
    assert progress["durationMs"].keys() >= {"triggerExecution", "addBatch"}
    (source,) = progress["sources"]
    assert source["description"] == "local.events"
    assert source["endOffset"] == source["latestOffset"]
    assert sum(source["endOffset"].values()) == 500
    assert source["numInputRows"] == progress["numInputRows"]
    assert progress["numOutputRows"] == 2 * progress["numInputRows"]
    job.stop()
    assert (job.phase, job.is_active, job.exception) == ("ended", False, None)
    last = home.checkpoints[-1]
    assert (last.ended, str(last.id)) == ("stopped", job.last_checkpoint)
    home.verify()

    home.publish(50, seed=4)
    again = finish(start(home, spark))
    assert again.run_id != job.run_id
    assert again.progress is not None
    assert again.progress.total_input_rows == 50
    assert home.length("totals") == 550
    assert home.checkpoints[-1].parent is not None
    home.verify()


def test_a_task_asks_for_a_commit_and_for_the_end(spark: SparkSession, home: Home) -> None:
    home.append(0, [{"key": "k1", "n": 1}, {"key": "k1", "n": 2, "do": "commit"}])
    job = start(home, spark, until=None, task_commit_ms=0)
    wait_until(lambda: len(home.checkpoints) == 2, "the commit the task asked for")
    assert home.checkpoints[-1].ended is None
    home.append(1, [{"key": "k2", "n": 1, "do": "shutdown"}])
    finish(job)
    home.append(1, [{"key": "k2", "n": 1}])
    last = home.checkpoints[-1]
    assert (len(home.checkpoints), last.ended, last.batch) == (3, "stopped", 2)
    home.verify_checkpoint(last)
    assert home.length("totals") == 3
    finish(start(home, spark))
    home.verify()


def test_an_idle_source_at_upcoming_crash_before_its_first_message(spark: SparkSession, home: Home) -> None:
    home.create("more", 2)
    home.publish(100, seed=5)
    home.publish(10, seed=6, stream="more")
    idle = {"streams.local.more.samza.offset.default": "upcoming"}
    app = job_app.totals_app(more=("more",))
    job = app.run({**home.config, **idle}, spark=spark)
    wait_until(lambda: job.progress and job.progress.total_input_rows == 100, "the messages of the other input")
    job.stop(wait=False)
    job.stop()  # at once: as after a crash, nothing more is written
    everywhere = {SystemStreamPartition("local", s, p) for s in ("events", "more") for p in (0, 1)}
    ends = {p: end.upcoming for p, end in home.offsets("more").items()}
    assert sum(ends.values()) == 10
    assert home.checkpoints[-1].ended is None
    for record in home.checkpoints:
        offsets = {ssp: n for own in record.next_offsets.values() for ssp, n in own.items()}
        assert offsets.keys() == everywhere
        assert {ssp.partition: n for ssp, n in offsets.items() if ssp.stream == "more"} == ends
    for skipped in home.events["more"].values():
        skipped[:] = [None] * len(skipped)
    home.publish(30, seed=7, stream="more", new_keys=True)
    finish(job_app.totals_app(more=("more",)).run({**home.config, **idle}, spark=spark, until="latest"))
    home.verify_ended()


def test_a_dead_letter_stream_takes_what_fails(spark: SparkSession, home: Home) -> None:
    home.publish(120, seed=8)
    poisoned = home.append(0, [{"key": "k999", "n": 1, "do": "raise"}])
    home.events["events"][0][poisoned] = None
    broken = home.append_raw(1, [b"{not json"])
    home.publish(120, seed=9)
    job = finish(start(home, spark, task_dead_letter_stream="local.dead"))
    assert job.progress is not None
    dead = {(value["partition"], value["offset"]): value for _, _, _, value in home.messages("dead")}
    assert dead.keys() == {(0, poisoned), (1, broken)}
    assert {value["stream"] for value in dead.values()} == {"local.events"}
    assert "event 1 is poisoned" in dead[0, poisoned]["reason"]
    assert bytes.fromhex(dead[1, broken]["value"]) == b"{not json"
    home.verify()


def test_a_user_error_names_its_message_and_the_fixed_code_goes_on(spark: SparkSession, home: Home) -> None:
    home.publish(300, seed=10)
    offset = home.append(1, [{"key": "k7", "n": 77, "do": "raise"}])
    home.publish(100, seed=11)
    with pytest.raises(ps.UserCodeError) as caught:
        finish(start(home, spark, task_commit_ms=1, job_batch_max_messages=80))
    failed = caught.value.failed
    assert (failed.stream, failed.partition, failed.offset) == ("local.events", 1, offset)
    assert "k7" in failed.key
    assert failed.operator == "keys"
    assert "in obey" in failed.traceback
    assert str(caught.value).startswith("Traceback")
    last = home.checkpoints[-1]
    assert last.ended is None
    assert last.batch >= 2
    home.verify_checkpoint(last)
    run_id = last.run_id
    finish(start(home, spark, job_app.totals_app(task=job_app.FixedKeyTotals)))
    assert home.checkpoints[-1].run_id == run_id, "a restart of a run that has not ended keeps its id"
    home.verify()


def test_a_value_that_does_not_decode_ends_the_run(spark: SparkSession, home: Home) -> None:
    home.publish(100, seed=12)
    offset = home.append_raw(0, [b"\xff\xfe"])
    with pytest.raises(ps.UserCodeError) as caught:
        finish(start(home, spark))
    failed = caught.value.failed
    assert (failed.stream, failed.partition, failed.offset) == ("local.events", 0, offset)
    home.verify_checkpoint(home.checkpoints[-1])


def test_a_job_without_state(spark: SparkSession, home: Home) -> None:
    home.publish(200, seed=13)
    finish(start(home, spark, job_app.stateless_app()))
    found = [(partition, value) for partition, _, _, value in home.messages("evens")]
    expected = [(p, event) for p, events in home.published["events"].items() for event in events if event["n"] % 2 == 0]
    assert found == expected
    home.publish(50, seed=14)
    finish(start(home, spark, job_app.stateless_app()))
    assert home.length("evens") == sum(e["n"] % 2 == 0 for events in home.published["events"].values() for e in events)


def test_a_task_application_without_a_shuffle(spark: SparkSession, home: Home) -> None:
    home.create("direct", 2)
    home.publish(100, seed=15)
    home.publish(80, seed=16, stream="direct")
    finish(start(home, spark, job_app.task_app()))
    expected = {
        f"{stream}-{partition}": {"sum": sum(e["n"] for e in events), "count": len(events)}
        for stream, partitions in home.published.items()
        for partition, events in partitions.items()
    }
    same(home.stored("totals"), expected, "store totals")
    same(home.last_values("totals"), expected, "output totals")


def test_inputs_that_merge_at_different_depths(spark: SparkSession, home: Home) -> None:
    home.create("direct", 2)
    home.publish(150, seed=17)
    home.publish(150, seed=18, stream="direct")
    finish(start(home, spark, job_app.two_depths_app()))
    by_key: dict[str, Any] = {}
    by_region: dict[str, Any] = {}
    for stream, partitions in home.published.items():
        for event in (e for events in partitions.values() for e in events):
            by_region[event["region"]] = add_region(by_region.get(event["region"]), event)
            if stream == "events":
                by_key[event["key"]] = add_event(by_key.get(event["key"]), event)
    same(home.stored("totals"), by_key, "store totals")
    same(home.stored("regions"), by_region, "store regions")
    same(home.last_values("regions"), by_region, "output regions")


def test_a_start_from_an_older_checkpoint(spark: SparkSession, home: Home) -> None:
    home.publish(600, seed=19)
    finish(start(home, spark, task_commit_ms=1))
    checkpoints = home.checkpoints
    older = checkpoints[len(checkpoints) // 2]
    assert 0 < sum(n for own in older.next_offsets.values() for n in own.values()) < 600
    home.publish(60, seed=20)
    app = job_app.totals_app()
    finish(app.run(home.config, spark=spark, until="latest", from_checkpoint=str(older.id)))
    begun = home.checkpoints[len(checkpoints)]
    assert (begun.kind_detail, begun.parent, begun.next_offsets) == ("start", older.id, older.next_offsets)
    assert begun.id > checkpoints[-1].id
    same(home.stored("totals", begun), home.stored("totals", older), "store totals at the start")
    home.verify()
    with pytest.raises(ps.NotFoundError, match="no checkpoint `1-1`"):
        app.run(home.config, spark=spark, from_checkpoint="1-1")


# What a start refuses.


@pytest.mark.parametrize("case", CASES)
def test_an_incompatible_application_is_refused(spark: SparkSession, settled: Home, case: str) -> None:
    make, config, message = CASES[case]
    error = refused(settled, spark, make(), **config)
    assert isinstance(error, ps.IncompatibleError)
    assert re.search(message, str(error)), error


def test_a_changed_partition_count_of_an_input_is_refused(spark: SparkSession, settled: Home, tmp_path: Path) -> None:
    home = settled.copy(tmp_path / "copy")
    shutil.move(tmp_path / "copy" / "streams" / "events", tmp_path / "events")
    home.system.admin().create_stream("events", 3)
    for config in ({}, {"job.intermediate.stream.partitions": 3}):
        error = refused(home, spark, job_app.totals_app(), **config)
        assert isinstance(error, ps.IncompatibleError)
    shutil.rmtree(tmp_path / "copy" / "streams" / "events")
    home.system.admin().create_stream("events", 1)
    error = refused(home, spark, job_app.totals_app(), job_intermediate_stream_partitions=2)
    assert isinstance(error, ps.IncompatibleError)
    assert "`local.events` had 2 partitions" in str(error)
    shutil.rmtree(tmp_path / "copy" / "streams" / "events")
    shutil.move(tmp_path / "events", tmp_path / "copy" / "streams" / "events")
    home.publish(40, seed=21)
    finish(start(home, spark))
    home.verify()


def test_a_stream_that_was_made_anew_is_refused(spark: SparkSession, settled: Home, tmp_path: Path) -> None:
    home = settled.copy(tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "streams" / "events")
    home.create("events", 2)
    home.publish(10, seed=1)
    with pytest.raises(ps.NotFoundError, match="the stream is not the one that was read before"):
        finish(start(home, spark))


def test_the_job_goes_on_after_what_was_refused(spark: SparkSession, settled: Home, tmp_path: Path) -> None:
    home = settled.copy(tmp_path / "copy")
    for make, config, _ in CASES.values():
        refused(home, spark, make(), **config)
    home.publish(60, seed=22)
    finish(start(home, spark))
    home.verify()


def test_a_copy_of_the_job_root_fences_nothing_until_it_is_adopted(
    spark: SparkSession, settled: Home, tmp_path: Path
) -> None:
    """The copy reads and writes the original's streams, as one does that was made with `cp -r` for a test."""
    home = settled.copy(tmp_path / "original")
    twin = home.copy(tmp_path / "twin", moved=False)
    streams: dict[str, Any] = {"systems_local_path": home.config["systems.local.path"]}
    lengths = {name: home.length(name) for name in ("totals", "regions")}
    error = refused(twin, spark, job_app.totals_app(), **streams)
    assert isinstance(error, ps.IncompatibleError)
    assert "penstock job adopt totals-1" in str(error)
    assert {name: home.length(name) for name in lengths} == lengths

    adopted = ["job", "adopt", "totals-1", "-c", f"job.root={twin.config['job.root']}"]
    assert CliRunner().invoke(cli, adopted).exit_code == 0
    running = start(home, spark, until=None)
    wait_until(lambda: running.phase == "running", "the original runs")
    home.publish(60, seed=23)
    finish(start(twin, spark, **streams))
    wait_until(
        lambda: running.progress is not None and running.progress.total_input_rows >= 60, "the original reads on"
    )
    running.stop()
    home.verify_ended()
    same(twin.stored("totals"), home.expected()[0], "store totals of the copy")


def test_a_missing_input_is_named(spark: SparkSession, home: Home) -> None:
    error = refused(home, spark, job_app.totals_app(more=("nowhere",)))
    assert isinstance(error, ps.NotFoundError)
    assert "nowhere" in str(error)
    assert "stream create" in str(error)
    assert not home.job_files()
    assert not home.offsets("totals")


def test_a_job_root_that_is_a_file_is_named(spark: SparkSession, home: Home) -> None:
    (home.folder / "jobs").write_text("not a folder")
    with pytest.raises(ps.ConfigError) as caught:
        start(home, spark)
    assert str(home.folder / "jobs") in str(caught.value)
    assert "job.root" in str(caught.value)


def test_a_job_root_that_is_read_only_is_named(spark: SparkSession, home: Home) -> None:
    root = home.folder / "jobs"
    root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(root)], capture_output=True).returncode:
        if os.geteuid() == 0:
            pytest.skip("this root may neither mount nor be refused anything by a folder's mode")
        root.chmod(0o500)
    try:
        with pytest.raises(ps.ConfigError) as caught:
            start(home, spark)
    finally:
        subprocess.run(["umount", str(root)], capture_output=True, check=False)
    assert str(root) in str(caught.value)
    assert "job.root" in str(caught.value)


def test_a_second_copy_is_refused_while_the_first_runs(spark: SparkSession, home: Home) -> None:
    home.publish(50, seed=23)
    job = start(home, spark, until=None, job_lease_ms=1500)
    with pytest.raises(LeaseHeldError) as caught:
        start(home, spark, job_lease_ms=1500)
    assert f"pid {os.getpid()}" in str(caught.value)
    assert socket.gethostname() in str(caught.value)
    wait_until(lambda: job.progress and job.progress.total_input_rows == 50, "the first copy goes on")
    job.stop()
    assert len(home.log.claims) == 1
    home.verify()


def test_penstock_stop_ends_a_running_job_with_a_last_commit(home: Home, spark: SparkSession) -> None:
    home.publish(50)
    job = start(home, spark, until=None)
    wait_until(lambda: job.progress and job.progress.total_input_rows == 50, "the messages are processed")
    facts = call_json("stop", job.name, "-c", f"job.root={home.folder / 'jobs'}")
    assert finish(job).phase == "ended"
    assert (facts["status"], facts["runId"]) == ("stopped", job.run_id)
    last = home.log.checkpoints[-1]
    assert (last.ended, str(last.id)) == ("stopped", facts["lastCheckpoint"])
    home.verify()


SESSIONS = """
import json, logging, sys
from penstock.config.load import load_config
from penstock.engine.session import check_session, create_session, idle_limit
from penstock.errors import ConfigError
import penstock as ps

told = []
for key in ("spark.speculation", "spark.dynamicAllocation.enabled"):
    try:
        create_session("refused", {"spark.master": "local[1]", key: "true"})
        told.append("accepted")
    except ConfigError as error:
        told.append(str(error))
session = create_session("good", {"spark.master": "local[1]"})
app = ps.StreamApplication("totals")
app.input("local.events").filter(bool)
try:
    app.run({**json.loads(sys.argv[1]), "spark.master": "local[2]"})
    told.append("accepted")
except ConfigError as error:
    told.append(str(error))
told.append(session.range(3).count())
heard = []
logging.getLogger("penstock").addHandler(handler := logging.Handler())
handler.emit = lambda record: heard.append(record.getMessage())
check_session(session)
session.stop()
limit = idle_limit(load_config(overrides=json.loads(sys.argv[1]), default_job_name="totals").container)
check_session(create_session("good", {"spark.master": "local[1]", **limit}))
print(json.dumps([*told, heard]))
"""


def test_sessions_that_could_lose_state_are_refused_and_left_alone(home: Home) -> None:
    found = subprocess.run(
        [sys.executable, "-c", SESSIONS, json.dumps(home.config)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=DEADLINE_S,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    speculation, allocation, other, count, warnings = json.loads(found.stdout)
    assert "spark.speculation" in speculation
    assert "spark.dynamicAllocation.enabled" in allocation
    assert "spark=" in other, "a session of other settings runs already: say so instead of taking it over"
    assert count == 3
    (warning,) = warnings
    assert "spark.python.worker.killOnIdleTimeout=true" in warning, "of the session without it, and that one only"


class Loaded(ps.StreamTask):
    """Says what the container has loaded."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key="x", value={"worker": envelope.value, "container": loaded_modules(None)})


def loaded_modules(message: object) -> dict[str, Any]:
    """What of the heavy modules this process has loaded, and from where PySpark comes."""
    modules = sys.modules
    return {
        "pandas": "pandas" in modules,
        "pyspark": getattr(modules.get("pyspark"), "__file__", None),
        "parent": Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0"),
    }


def test_workers_and_containers_load_only_what_they_need(home: Home, spark: SparkSession) -> None:
    home.publish(10)
    app = ps.StreamApplication("loaded")
    facts = app.input("local.events", value=ps.Json()).map(loaded_modules)
    facts = facts.partition_by(lambda _: "x", key=ps.String(), value=ps.Json()).process(Loaded)
    facts.send_to(app.output("local.facts", key=ps.String(), value=ps.Json()))
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        finish(start(home, spark, app))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    found = [value for _, _, _, value in home.messages("facts")]
    assert len(found) == 10
    assert not any(each[process]["pandas"] for each in found for process in ("worker", "container"))
    assert {each["worker"]["pyspark"] for each in found} == {pyspark.__file__}
    assert all("penstock.engine.worker_daemon" in each["worker"]["parent"] for each in found)
