"""`penstock checkpoint import`: back from what `export` prints, and from what Samza writes."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog, LogView
from penstock.checkpoint.record import CheckpointId, CheckpointRecord
from penstock.checkpoint.samza import CheckpointLogKey
from penstock.checkpoint.streams import SAMZA_BACKEND
from penstock.checkpoint.task_values import CheckpointV1, CheckpointV2
from penstock.checkpoint.task_versions import markers_of
from penstock.cli.main import app
from penstock.job.paths import JobPaths
from tests.support.stores.stopped_job import CHANGELOG, SSP, STREAM, StoppedJob, call, call_json, position, saved, ssp

BLOB = "org.apache.samza.storage.blobstore.BlobStoreStateBackendFactory"
ID = CheckpointId(1614147487244, 33577)
STREAMED = {SAMZA_BACKEND: {"aircraft": position(0, "8")}}
APPLICATION = """
import penstock as ps

class Totals(ps.StreamTask):
    def process(self, envelope, collector, coordinator):
        pass

def build(stores):
    app = ps.StreamApplication("fresh")
    for store in stores:
        app.store(store, key=ps.String(), value=ps.Json())
    flights = app.input("local.dep.flights")
    if stores:
        flights.partition_by(lambda f: f["k"], key=ps.String()).process(Totals, stores=stores, id="totals")
    return app

app = build(["aircraft"])
two = build(["aircraft", "airports"])
none = build([])
"""


@pytest.fixture
def job(home: Path, tmp_path: Path) -> StoppedJob:
    (tmp_path / "fresh.py").write_text(APPLICATION)
    job = StoppedJob(home)
    job.run(saved(1, (0, 2), ended=None), saved(2, (2, 5), ended=None, versions=(2, 1)), saved(3))
    return job


def line(task: int, version: int, value: str | None, **key: str) -> str:
    own = orjson.loads(CheckpointLogKey.of(task, version).encode()) | key
    return json.dumps({"key": json.dumps(own, separators=(",", ":")), "value": value})


def v2(
    partition: int,
    offsets: dict[SystemStreamPartition, str] | None = None,
    markers: dict[str, dict[str, str]] | None = None,
) -> str:
    given = {ssp(partition): "5"} if offsets is None else offsets
    found = {SAMZA_BACKEND: {"aircraft": position(partition, "8")}} if markers is None else markers
    return CheckpointV2(ID, given, found).encode()


def v1(partition: int, offsets: dict[SystemStreamPartition, str | None]) -> str:
    return CheckpointV1({SSP("local", CHANGELOG, partition): f"{ID}:{partition + 40}", **offsets}).encode()


def import_into(lines: list[str], *arguments: str, job: str = "flights", **keywords: Any) -> tuple[str, str]:
    return call("import", job, "-", *arguments, "--yes", text="\n".join(lines) + "\n", **keywords)


def everything(record: CheckpointRecord) -> tuple[Any, Any]:
    return record.next_offsets, {task: markers_of(record, task) for task in range(record.task_count)}


# ---- back from an export


@pytest.mark.parametrize("number", [0, 1])
def test_round_trip(job: StoppedJob, tmp_path: Path, number: int) -> None:
    """Includes a partition that nothing was read of: its next offset is 0, and Samza's form omits it."""
    exported, last = job.log.checkpoints[number], job.last
    (tmp_path / "old.jsonl").write_text(call("export", "flights", str(exported.id))[0])
    out, said = call("import", "flights", "old.jsonl", "--yes")
    after = job.last
    assert everything(after) == everything(exported)
    assert (after.parent, after.stores, after.batch, after.ended) == (last.id, last.stores, last.batch, "stopped")
    assert after.tasks[0]["2"] == exported.tasks[0]["2"].replace(str(exported.id), str(after.id))
    assert " back" in out
    assert "warning" not in said, "the file is of a checkpoint of this very job"
    assert ("oldest message" in said) == (number == 0)

    before = job.files()
    facts = call_json("import", "flights", "old.jsonl", "--yes")
    assert (facts["checkpoint"], facts["changes"]) == (None, [])
    assert facts["markers"] == {"changelog-files": {"aircraft": 2}, "changelog-stream": {"aircraft": 2}}
    assert job.files() == before


def test_round_trip_of_version_1(job: StoppedJob) -> None:
    exported = job.log.checkpoints[1]
    lines = call("export", "flights", str(exported.id), "--version", "1")[0].splitlines()
    import_into(lines)
    assert job.last.next_offsets == exported.next_offsets
    for task in range(2):
        assert markers_of(job.last, task) == {"changelog-stream": markers_of(exported, task)["changelog-stream"]}


def test_nothing_is_done_unasked(job: StoppedJob, tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text(call("export", "flights", str(job.log.checkpoints[1].id))[0])
    before = job.files()
    assert "--yes" in call("import", "flights", "old.jsonl", status=2)[1]
    call("import", "flights", "old.jsonl", "--json", status=2)
    assert job.files() == before


# ---- what Samza writes


def test_of_equal_keys_the_last_one_counts(job: StoppedJob) -> None:
    import_into(
        [
            line(0, 2, "this is superseded, and need not be readable"),
            line(1, 2, v2(1)),
            "",
            line(0, 1, v1(0, {ssp(0): "1"})),
            line(0, 2, v2(0, {ssp(0): "7"})),
            line(1, 1, v1(1, {ssp(1): "1"})),
            line(5, 2, v2(1)),
            line(5, 2, None),
        ]
    )
    assert job.last.next_offsets == {0: {ssp(0): 8}, 1: {ssp(1): 6}}
    assert markers_of(job.last, 1) == {"changelog-stream": {"aircraft": position(1, "8")}}


def test_the_preferred_version_that_all_tasks_have_counts(job: StoppedJob) -> None:
    both = [line(task, 1, v1(task, {ssp(task): "1"})) for task in range(2)] + [line(0, 2, v2(0)), line(1, 2, v2(1))]
    said = import_into(both, "-c", "task.checkpoint.read.versions=1,2")[1]
    assert job.last.next_offsets == {0: {ssp(0): 2}, 1: {ssp(1): 2}}
    assert markers_of(job.last, 1)["changelog-stream"] == {"aircraft": position(1, "41")}
    assert "the file has version 2, too, which was skipped" in said
    import_into(both)
    assert job.last.next_offsets == {0: {ssp(0): 6}, 1: {ssp(1): 6}}
    import_into(both[:3])
    assert job.last.next_offsets == {0: {ssp(0): 2}, 1: {ssp(1): 2}}, "version 2 is there of one task only"
    before = job.files()
    assert "version 1 of 1 task, version 2 of 1" in import_into([both[0], both[3]], status=1)[1]
    said = import_into(both[:2], "-c", "task.checkpoint.read.versions=2", status=1)[1]
    assert "task.checkpoint.read.versions" in said
    assert job.files() == before


def test_null_and_absent_offsets_begin_at_the_oldest_message(job: StoppedJob) -> None:
    lines = [line(0, 1, v1(0, {ssp(0): None})), line(1, 1, v1(1, {}))]
    said = import_into(lines)[1]
    assert job.last.next_offsets == {0: {ssp(0): 0}, 1: {ssp(1): 0}}
    assert f"no message of `local.{STREAM}` with the partitions 0, 1 was processed yet" in said
    before = job.files()
    said = import_into(lines, "-c", "systems.local.samza.factory=memory", status=1)[1]
    assert "there is no offset to begin at" in said
    assert job.files() == before


def test_unknown_fields_are_ignored_and_unknown_types_noted(job: StoppedJob) -> None:
    values = [orjson.loads(v2(task)) | {"more": {"of": "it"}} for task in range(2)]
    lines = [line(task, 2, json.dumps(value), other="field") for task, value in enumerate(values)]
    facts = call_json(
        "import", "flights", "-", "--yes", text="\n".join([*lines, line(0, 2, "?", type="checkpoint-v3")])
    )
    assert facts["notes"] == ["skipped: 1 message of type `checkpoint-v3`"]
    assert job.last.next_offsets == {0: {ssp(0): 6}, 1: {ssp(1): 6}}


def test_markers_of_unknown_backends_are_left_out_by_name(job: StoppedJob) -> None:
    more = {BLOB: {"aircraft": "b"}, "nowhere.to:BeFound": {"aircraft": "n"}}
    both = {SAMZA_BACKEND: {"aircraft": position(0, None)}, **more}
    lines = [line(0, 2, v2(0, markers=both)), line(1, 2, v2(1))]
    said = import_into(lines)[1]
    assert BLOB in said
    assert "nowhere.to:BeFound" in said
    assert markers_of(job.last, 0) == {"changelog-stream": {"aircraft": position(0, None)}}
    before = job.files()
    said = import_into([line(0, 2, v2(0, markers=more)), lines[1]], status=1)[1]
    assert "store `aircraft` of task 0" in said
    assert BLOB in said
    assert job.files() == before


def test_a_file_makes_no_module_be_imported(job: StoppedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from penstock.state.backends.blob import BlobFactory\nopen('imported', 'w')\nclass Own(BlobFactory): pass"
    (tmp_path / "own_backend.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {"own_backend:Own": {"aircraft": "m"}}
    lines = [line(task, 2, v2(task, markers=own)) for task in range(2)]
    assert "names this backend" in import_into(lines, status=1)[1]
    assert not (tmp_path / "imported").exists()
    import_into(lines, "-c", "stores.aircraft.restore.factories=own_backend:Own,changelog-files")
    assert markers_of(job.last, 1) == own


def test_a_foreign_checkpoint_with_markers_of_this_jobs_folder_is_a_warning(job: StoppedJob) -> None:
    lines = [line(task, 2, v2(task, markers={"changelog-files": {"aircraft": "m"}})) for task in range(2)]
    said = import_into(lines)[1]
    assert f"checkpoint {ID} of the file is not in the log" in said
    assert "state verify" in said


GOOD = [line(0, 2, v2(0)), line(1, 2, v2(1))]


@pytest.mark.few(11)
@pytest.mark.parametrize(
    ("lines", "status", "what"),
    [
        ([], 2, "no checkpoint in the file"),
        ([line(0, 2, None)], 2, "no checkpoint in the file"),
        ([GOOD[0]], 1, "has nothing of task 1"),
        ([*GOOD, line(2, 2, v2(2))], 1, "has also task 2"),
        ([*GOOD, "no json"], 1, "line 3"),
        ([GOOD[0], "", '{"key": "k"}'], 1, "line 3"),
        ([*GOOD, '{"key": {}, "value": "v"}'], 1, "must be strings"),
        ([*GOOD, '{"key": "k", "value": "v"}'], 1, "line 3"),
        ([GOOD[0], line(1, 2, "no value")], 1, "line 2: not a V2"),
        ([GOOD[0], line(1, 2, v2(1).replace('"5"', "null"))], 1, "expected a string"),
        ([GOOD[0], line(1, 2, v2(1), taskName="Partition 01")], 1, "`Partition 01`"),
        ([GOOD[0], line(1, 2, v2(1), **{"systemstreampartition-grouper-factory": "Other"})], 1, "by Other"),
        ([GOOD[0], line(1, 2, v2(1, {ssp(0): "5"}))], 1, f"task 1 of the file reads `local.{STREAM}.0`"),
        ([GOOD[0], line(1, 2, v2(1, {SSP("kafka", "orders", 1): "5"}))], 1, "`kafka.orders.1`"),
        ([GOOD[0], line(1, 2, v2(1, {ssp(1): "5:3"}))], 1, "`5:3` is not a Penstock offset"),
        ([GOOD[0], line(1, 2, v2(1, {ssp(1): "-1"}))], 1, "`-1` is not a Penstock offset"),
        ([GOOD[0], line(1, 2, v2(1, {ssp(1): "9" * 5000}))], 1, "is not a Penstock offset"),
        ([GOOD[0], line(1, 2, v2(1, {ssp(1): "10"}))], 1, "cannot be read from 11"),
        ([GOOD[0], line(1, 2, v2(1, markers={}))], 1, "store `aircraft` of task 1"),
        ([GOOD[0], line(1, 2, v2(1, markers={**STREAMED, "blob": {"others": "m"}}))], 1, "store `others` (by blob)"),
        ([GOOD[0], line(1, 2, v2(1, markers={SAMZA_BACKEND: {"aircraft": "x"}}))], 1, "not a changelog stream marker"),
        (
            [line(0, 1, v1(0, {SSP("local", "elsewhere", 0): f"{ID}:7"})), line(1, 1, v1(1, {}))],
            1,
            "set `stores.<name>.changelog` to `local.elsewhere`",
        ),
    ],
)
def test_what_is_refused_changes_nothing(job: StoppedJob, lines: list[str], status: int, what: str) -> None:
    before = job.files()
    assert what in import_into(lines, status=status)[1]
    assert job.files() == before


# ---- a job that has no checkpoint yet


def fresh(job: StoppedJob) -> LogView:
    return CheckpointLog(job.objects, JobPaths("fresh", "1")).read()


def test_a_new_job_is_described_by_its_application(job: StoppedJob) -> None:
    streams = ("-c", f"stores.aircraft.changelog=local.{CHANGELOG}")
    two = ("--app", "fresh.py:two", *streams)
    assert "--app" in import_into(GOOD, job="fresh", status=1)[1]
    assert "is job `fresh-1`, not `flights`" in import_into(GOOD, *two, status=2)[1]
    said = import_into([GOOD[0], line(1, 2, v2(1, {}))], *two, job="fresh")[1]
    (record,) = fresh(job).checkpoints
    assert (record.parent, record.task_count, record.batch, record.ended) == (None, 2, 0, "stopped")
    assert record.stores == {"aircraft": "totals string json"}
    assert record.next_offsets == {0: {ssp(0): 6}, 1: {ssp(1): 0}}
    assert markers_of(record, 1) == {"changelog-stream": {"aircraft": position(1, "8")}}
    assert "store `airports`: the store begins empty" in said
    import_into(GOOD, job="fresh")
    assert fresh(job).checkpoints[-1].next_offsets == {0: {ssp(0): 6}, 1: {ssp(1): 6}}, "now it is known"


def test_a_new_job_without_stores(job: StoppedJob) -> None:
    import_into([line(task, 2, v2(task, markers={})) for task in range(2)], "--app", "fresh.py:none", job="fresh-1")
    (record,) = fresh(job).checkpoints
    assert (record.stores, record.next_offsets[1]) == ({}, {ssp(1): 6})


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "lines", "what"),
    [
        ("none", GOOD, "store `aircraft`"),
        ("app", GOOD[:1], "has nothing of task 1"),
        ("app", [GOOD[0], line(1, 2, v2(1, markers={}))], "store `aircraft` of task 1"),
        ("app", [line(t, 2, v2(t, markers={"blob": {"aircraft": "m"}})) for t in range(2)], "and this job is new"),
    ],
)
def test_what_a_new_job_refuses(job: StoppedJob, name: str, lines: list[str], what: str) -> None:
    assert what in import_into(lines, "--app", f"fresh.py:{name}", job="fresh", status=1)[1]
    assert fresh(job).end == 0, "nothing was written, so that the job can still be started afresh"
    job.run(run_id="flights")
    CheckpointLog(job.objects, JobPaths("fresh", "1")).claim("a run that died early")
    assert "name it with --app" in import_into(lines, job="fresh", status=2)[1]


@pytest.mark.few(3)
@pytest.mark.parametrize("positions", [(), (0,), (1,)], ids=["none", "of task 0", "of task 1"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_changelog_without_a_position_is_restored_from_its_beginning(
    job: StoppedJob, positions: tuple[int, ...], version: int
) -> None:
    """As Samza does. What comes into it behind the import belongs to nobody."""
    job.system.admin().create_stream(CHANGELOG, 2)
    with closing(job.system.writer(None)) as writer:
        for task in range(2):
            writer.append(SSP("local", CHANGELOG, task), [(0, b"key-%d" % n, b"%d" % n) for n in range(9)])
            writer.append(SSP("local", CHANGELOG, task), [(0, b"key-3", None)])
    lines = []
    for task in range(2):
        at = {SSP("local", CHANGELOG, task): f"{ID}:3"} if task in positions else {}
        own = {SAMZA_BACKEND: {"aircraft": position(task, "3")}} if task in positions else {}
        value = CheckpointV1({**at, ssp(task): "5"}).encode() if version == 1 else v2(task, markers=own)
        lines.append(line(task, version, value))
    backends = ("stores.restore.factories=changelog-stream", "stores.backup.factories=changelog-stream")
    named = (*backends, f"stores.aircraft.changelog=local.{CHANGELOG}", "task.checkpoint.read.versions=2,1")
    config = [option for name in named for option in ("-c", name)]
    said = import_into(lines, "--app", "fresh.py:app", *config, job="fresh")[1]
    whole = [task for task in range(2) if task not in positions]
    assert all(f"task {task}" in said for task in whole)
    assert "from its beginning" in " ".join(said.split())
    with closing(job.system.writer(None)) as writer:
        writer.append(SSP("local", CHANGELOG, 0), [(0, b"later", b"1")])
    result = CliRunner().invoke(app, ["state", "verify", "fresh", "--json", *config])
    assert result.exit_code == 0, result.output
    (store,) = json.loads(result.stdout)["stores"]
    assert store["backends"][0]["digest"]["entries"] == 8 * len(whole) + 4 * len(positions)


def test_a_new_job_whose_changelogs_are_empty_or_not_there_begins_empty(job: StoppedJob) -> None:
    config = [o for n in ("restore", "backup") for o in ("-c", f"stores.{n}.factories=changelog-stream")]
    config += ["-c", f"stores.aircraft.changelog=local.{CHANGELOG}"]
    lines = [line(task, 2, v2(task, markers={})) for task in range(2)]
    for name in ("fresh-1", "fresh-2"):
        said = import_into(lines, "--app", "fresh.py:app", *config, "-c", f"job.id={name[-1]}", job=name)[1]
        assert "store `aircraft`: the store begins empty" in said
        job.system.admin().create_stream(CHANGELOG, 2)


def test_a_changelog_that_cannot_be_looked_at_is_refused(job: StoppedJob, home: Path) -> None:
    job.system.admin().create_stream(CHANGELOG, 2)
    (described,) = home.rglob(f"{CHANGELOG}/stream.json")
    described.write_text("no stream")
    config = [o for n in ("restore", "backup") for o in ("-c", f"stores.{n}.factories=changelog-stream")]
    config += ["-c", f"stores.aircraft.changelog=local.{CHANGELOG}"]
    lines = [line(task, 2, v2(task, markers={})) for task in range(2)]
    said = import_into(lines, "--app", "fresh.py:app", *config, job="fresh", status=1)[1]
    assert f"no position of the changelog `local.{CHANGELOG}`" in " ".join(said.split())
    assert fresh(job).end == 0


def test_the_state_of_a_new_job_is_restored_from_the_changelog(job: StoppedJob) -> None:
    """`state verify` restores it from the stream of the job that made the checkpoint."""
    job.system.admin().create_stream(CHANGELOG, 2)
    writer = job.system.writer(None)
    for task in range(2):
        writer.append(SSP("local", CHANGELOG, task), [(0, b"key-%d" % n, b"%d" % n) for n in range(9)])
    writer.close()
    backends = ("stores.restore.factories=changelog-stream", "stores.backup.factories=changelog-stream")
    config = [option for name in backends for option in ("-c", name)]
    import_into(GOOD, "--app", "fresh.py:app", *config, job="fresh")
    result = CliRunner().invoke(app, ["state", "verify", "fresh", "--json", *config])
    assert result.exit_code == 0, result.output
    (store,) = json.loads(result.stdout)["stores"]
    assert store["backends"][0]["digest"]["entries"] == 18
