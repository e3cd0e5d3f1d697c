"""`penstock stream list|delete` and `penstock job delete`, over real streams, leases and logs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointId, CheckpointRecord
from penstock.checkpoint.streams import CHANGELOG_STREAM, ChangelogStreamMarker
from penstock.checkpoint.task_values import CheckpointV2
from penstock.checkpoint.task_versions import build_versions
from penstock.job.identity import known_uid, owner_text, settle
from penstock.job.lease import LeaseHolder, acquire
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.system.local import LocalSystem
from tests.support.jobs.home import LOCK
from tests.support.tools.cli import call, call_json, published
from tests.support.tools.leases import LONG_MS, EagerKeeper

PATHS = JobPaths("totals", "1")
pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def objects(home: Path) -> FileObjectStore:
    """A job that read `local.flights`, with state, a uid and a folder on this host."""
    objects = FileObjectStore(home / "jobs")
    log = CheckpointLog(objects, PATHS)
    claim = log.claim("run-1")
    record = CheckpointRecord(
        id=CheckpointId(1_700_000_000_001, 5),
        parent=None,
        epoch=claim.epoch,
        run_id=claim.run_id,
        writer=claim.writer,
        task_count=1,
        batch=1,
        batch_time_ms=1,
        stores={},
        next_offsets={0: {SystemStreamPartition("local", "flights", 0): 1}},
        tasks={0: {"2": CheckpointV2(CheckpointId(1_700_000_000_001, 5), {}, {}).encode()}},
    )
    log.append(record)
    objects.put_if_absent("totals-1/state/s/0/1.1.delta", b"x" * 2048)
    objects.put_if_absent("other-1/uid", b"another job")
    uid = settle(objects, PATHS, (home / "jobs").as_uri())
    (home / "state" / f"totals-1-{uid}" / "s").mkdir(parents=True)
    return objects


def test_streams_are_listed() -> None:
    assert call("stream", "list")[0].splitlines()[-1] == "none"
    published(3, partitions=2)
    assert "local.flights" in call("stream", "list", "local")[0]


def test_a_stream_is_deleted_only_if_that_was_said() -> None:
    published(3, partitions=2)
    assert "add --yes" in call("stream", "delete", "flights", status=2)[1]
    assert len(call_json("stream", "list")) == 1
    assert "deleted `local.flights`: 2 partitions, 3 messages" in call("stream", "delete", "flights", "--yes")[0]
    assert call_json("stream", "list") == []
    assert "does not exist" in call("stream", "delete", "flights", "--yes", status=1)[1]


def test_a_stream_that_a_job_reads_stays(objects: FileObjectStore) -> None:
    published(3, partitions=2)
    assert (
        "`local.flights` is read by job totals-1. Delete the job first"
        in call("stream", "delete", "flights", "--yes", status=2)[1]
    )
    assert call_json("stream", "list")[0]["messages"] == 3
    call("stream", "delete", "flights", "--yes", "--force")
    assert call_json("stream", "list") == []


def test_a_changelog_stays(home: Path) -> None:
    call("stream", "create", "log", "--partitions", "1")
    admin = LocalSystem("local", str(home / "streams")).admin()
    admin.own("log", "store `s` of job totals-1")
    admin.close()
    assert call_json("stream", "list")[0]["owner"] == "store `s` of job totals-1"
    assert "is the changelog of store `s` of job totals-1. Delete" in call("stream", "delete", "log", "-y", status=2)[1]


def test_the_changelogs_of_a_deleted_job_are_named_and_can_be_deleted(objects: FileObjectStore, home: Path) -> None:
    admin = LocalSystem("local", str(home / "streams")).admin()
    for stream, job, uid in (("mine", "totals-1", known_uid(objects, PATHS)), ("others", "totals-1", "0123456789ab")):
        admin.create_stream(stream, 1)
        admin.own(stream, owner_text(job, uid, "s"))
    admin.close()
    refusal = call("stream", "delete", "mine", "--yes", status=2)[1]
    assert "is the changelog of job totals-1" in refusal
    out, error = call("job", "delete", "totals", "--yes")
    assert "local.mine" in out
    assert "  penstock stream delete local.mine\n" in error
    assert "others" not in out + error
    settle(objects, PATHS, (home / "jobs").as_uri())
    CheckpointLog(objects, PATHS).claim("run-2")
    assert "which is gone: no job in job.root" in call("stream", "delete", "local.mine", "--yes")[1]
    assert [each["stream"] for each in call_json("stream", "list")] == ["local.others"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_changelog_that_a_copy_restores_from_stays(objects: FileObjectStore, home: Path, version: int) -> None:
    marker = ChangelogStreamMarker(SystemStreamPartition("local", "log", 0), "7").serialize()
    log = CheckpointLog(objects, PATHS)
    last = log.read().latest
    assert last is not None
    claim = log.claim("run-2")
    checkpoint = CheckpointId(1_700_000_000_002, 6)
    values = build_versions(checkpoint, {}, {CHANGELOG_STREAM: {"s": marker}}, [version])
    log.append(
        replace(last, id=checkpoint, epoch=claim.epoch, run_id=claim.run_id, writer=claim.writer, tasks={0: values})
    )
    admin = LocalSystem("local", str(home / "streams")).admin()
    admin.create_stream("log", 1)
    admin.own("log", owner_text("gone-1", "0123456789ab", "s"))
    admin.close()
    assert "is read by job totals-1" in call("stream", "delete", "log", "--yes", status=2)[1]
    call("stream", "delete", "log", "--yes", "--force")


def test_a_job_is_deleted_with_all_that_is_its_own(objects: FileObjectStore, home: Path) -> None:
    published(3, partitions=2)
    assert "add --yes" in call("job", "delete", "totals", status=2)[1]
    assert objects.list("totals-1")
    facts = call_json("job", "delete", "totals", "--yes")
    assert (facts["job"], facts["checkpoints"], facts["stateObjects"], facts["stateBytes"]) == ("totals-1", 1, 1, 2048)
    assert len(facts["folders"]) == 1
    assert [key for key in objects.list("") if key not in objects.list(PATHS.audit_log)] == ["other-1/uid"]
    assert {path.name for path in (home / "jobs" / PATHS.root).iterdir()} - {LOCK} == {"audit"}, (
        "and no empty folder is left"
    )
    assert list((home / "state").iterdir()) == []
    assert call_json("stream", "list")[0]["messages"] == 3
    assert "there is no job" in call("job", "delete", "totals", "--yes", status=1)[1]


def test_a_job_that_runs_is_not_deleted(objects: FileObjectStore) -> None:
    lease = acquire(objects, PATHS, LeaseHolder.of_this_process("run-1"), LONG_MS, time.monotonic() + 60)
    keeper = EagerKeeper(lease)
    keeper.start()
    before = objects.list("totals-1")
    assert "Stop that run first" in call("job", "delete", "totals", "--yes", status=1)[1]
    assert objects.list("totals-1") == before
    keeper.stop(60)


def test_a_delete_that_was_cut_off_is_repeated(objects: FileObjectStore) -> None:
    objects.delete("totals-1/state/s/0/1.1.delta")
    objects.delete(PATHS.uid)
    objects.delete(PATHS.checkpoint(1))
    call("job", "delete", "totals", "--yes")
    assert [key for key in objects.list("") if key not in objects.list(PATHS.audit_log)] == ["other-1/uid"]
