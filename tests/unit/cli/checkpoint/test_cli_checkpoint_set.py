"""`penstock checkpoint set`: on a log and streams on disk; what it writes is read by what a start reads it with."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.admin.checkpoint import change as checkpoint_write
from penstock.admin.job import ownership
from penstock.admin.jobs import FoundJob
from penstock.api.ssp import SystemStream
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.streams import ChangelogStreamMarker
from penstock.checkpoint.task_versions import choose_newest, markers_of, read_task, versions_of
from penstock.cli.shared.options import Confirmation
from penstock.config.load import load_config
from penstock.job.lease import LeaseHeldError, LeaseHolder, acquire
from penstock.system.base import OffsetRange, WriterIdentity
from tests.support.stores.stopped_job import CHANGELOG, PATHS, SSP, STREAM, StoppedJob, call, call_json, saved, ssp
from tests.support.tools.leases import LONG_MS, EagerKeeper

DEADLINE_S = 60.0
SECOND = f"local.{STREAM}"


@pytest.fixture
def job(home: Path) -> StoppedJob:
    """Checkpoints 1, 2 and 3 of a run that ended; the last reads on at 4 and 7."""
    job = StoppedJob(home)
    job.run(saved(1, (1, 2), ended=None), saved(2, (2, 5), ended=None), saved(3))
    return job


def offsets(**partitions: int) -> str:
    return json.dumps({SECOND: {name.removeprefix("p"): offset for name, offset in partitions.items()}})


def set_to(text: str, *arguments: str, **keywords: Any) -> tuple[str, str]:
    return call("set", "flights", "--offsets", "-", *arguments, text=text, **keywords)


def test_other_offsets_same_state(job: StoppedJob) -> None:
    before = job.last
    out, said = set_to(offsets(p1=3), "--yes")
    after = job.last
    assert after.next_offsets == {0: {ssp(0): 4}, 1: {ssp(1): 3}}
    for task, last in enumerate(("3", "2")):
        assert read_task(after, task, 2, {}).offsets == {ssp(task): last}, "the values agree with the next offsets"
        assert markers_of(after, task) == markers_of(before, task)
    assert (after.parent, after.epoch, after.ended, after.kind_detail) == (before.id, 2, "stopped", "commit")
    assert after.id > before.id
    assert (after.stores, after.batch, after.task_count) == (before.stores, before.batch, 2)
    assert after.retained == {slot: record.id for slot, record in zip((1, 2, 3), job.log.checkpoints, strict=False)}
    assert job.log.owner is not None
    assert after.writer == job.log.owner.writer
    assert choose_newest(job.log.restorable, (2, 1)) == after
    assert "4 messages back" in out
    assert "count twice" in said
    assert "aircraft" in said
    assert str(after.id) in said
    assert after.moved == (ssp(1),)
    shown = " ".join(call("show", "flights")[1].split())
    assert f"note: positions in `{ssp(1)}` were moved while the state stayed" in shown


def test_an_input_that_was_created_again_needs_all_of_its_positions(job: StoppedJob) -> None:
    """Then the checkpoint is one of the new stream, and a start accepts it."""
    stream, admin = ssp(0).system_stream, job.system.admin()
    job.run(saved(4, identities={stream: admin.stream_identity(STREAM)}))
    admin.delete_stream(STREAM)
    admin.create_stream(STREAM, 2)
    for partition in range(2):
        job.publish(partition, 10)
    before = job.last
    error = set_to(offsets(p1=3), "--yes", status=1)[1]
    assert f"`{SECOND}` was deleted and created again" in " ".join(error.split())
    assert "with the partitions 0" in " ".join(error.split())
    assert job.last == before
    set_to(offsets(p0=4, p1=7), "--yes")
    assert job.last.next_offsets == before.next_offsets
    assert job.last.identities == {stream: admin.stream_identity(STREAM)} != before.identities
    set_to(offsets(p1=3), "--yes")
    assert job.last.identities == {stream: admin.stream_identity(STREAM)}


def test_messages_that_are_skipped_are_said(job: StoppedJob) -> None:
    (warning,) = call_json("set", "flights", "--offsets", "-", "--yes", text=offsets(p0=10, p1=7))["warnings"]
    assert "skipped" in warning
    assert "twice" not in warning


def test_next_offset_zero_has_no_last_processed_one(job: StoppedJob) -> None:
    set_to(offsets(p0=0), "--yes")
    assert job.last.next_offsets[0] == {ssp(0): 0}
    assert read_task(job.last, 0, 2, {}).offsets == {}


def test_what_show_prints_is_taken(job: StoppedJob, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(call("show", "flights", str(job.log.checkpoints[0].id), "--json")[0])
    call("set", "flights-1", "--offsets", str(tmp_path / "old.json"), "--yes")
    assert job.last.next_offsets == {0: {ssp(0): 1}, 1: {ssp(1): 2}}
    assert markers_of(job.last, 0)["changelog-files"] == {"aircraft": "m-3-0"}, "the state is that of the last one"


def test_from_an_older_checkpoint(job: StoppedJob) -> None:
    older = job.log.checkpoints[1]
    said = set_to(offsets(p0=1), "--from", str(older.id), "--yes")[1]
    assert job.last.parent == older.id
    assert job.last.id > job.log.checkpoints[2].id
    assert job.last.next_offsets == {0: {ssp(0): 1}, 1: {ssp(1): 5}}
    assert markers_of(job.last, 1)["changelog-files"] == {"aircraft": "m-2-1"}
    assert "is not the last one" in said
    set_to(offsets(p0=1), "--from", "1-1", "--yes", status=1)


def test_nothing_to_change_writes_nothing(job: StoppedJob) -> None:
    before = job.files()
    assert "nothing to change" in set_to(offsets(p0=4, p1=7))[1], "there is nothing to ask for either"
    facts = call_json("set", "flights", "--offsets", "-", "--yes", text=offsets(p0=4))
    assert (facts["checkpoint"], facts["changes"], facts["warnings"]) == (None, [], [])
    assert job.files() == before


@pytest.mark.parametrize(
    ("text", "status", "what"),
    [
        ('{"local.other": {"0": 1}}', 2, rf"{SECOND}` with the partitions 0, 1"),
        (offsets(p2=1), 2, f"no input `{SECOND}.2`"),
        (offsets(p0=-1), 2, "-1 is not an offset"),
        (offsets(p0=2**63), 2, "not an offset"),
        (offsets(p0=11), 1, "messages from 0 to 9, upcoming is 10"),
        ('{"local.dep.flights": {"0": "3"}}', 2, "not an integer"),
        ('{"local.dep.flights": {"0": true}}', 2, "not an integer"),
        ('{"local.dep.flights": {"00": 3}}', 2, "`00` is not a partition"),
        ('{"local.dep.flights": {"0": 3, "0": 4}}', 2, "twice"),
        ('{"local.dep.flights": 3}', 2, "needs an object of partitions"),
        ('{"tasks": [{}]}', 2, "nextOffsets"),
        ("{}", 2, "names no offset"),
        ("[]", 2, "not an object"),
        ("no json", 2, "for example"),
    ],
)
def test_what_is_refused_changes_nothing(job: StoppedJob, text: str, status: int, what: str) -> None:
    before = job.files()
    assert what in set_to(text, "--yes", status=status)[1]
    assert job.files() == before


def test_an_offset_before_the_oldest_message_is_refused(job: StoppedJob) -> None:
    job.system.admin().compact(OffsetRange(ssp(0), 2, 10), WriterIdentity("test", 1))
    assert "oldest" not in set_to(offsets(p0=9), "--yes")[1]
    assert "cannot be read from 1" in set_to(offsets(p0=1), "--yes", status=1)[1]


def test_a_stream_that_cannot_be_asked_is_a_warning(job: StoppedJob) -> None:
    said = set_to(offsets(p0=99), "--yes", "-c", "systems.local.samza.factory=memory")[1]
    assert f"the offsets of `{SECOND}` were not checked" in said
    assert job.last.next_offsets[0] == {ssp(0): 99}


def test_without_a_terminal_it_is_only_shown(job: StoppedJob) -> None:
    before = job.files()
    out, said = set_to(offsets(p0=1), status=2)
    assert "3 messages back" in out
    assert "--yes" in said
    set_to(offsets(p0=1), "--json", status=2)
    call("set", "flights", "--offsets", "missing.json", "--yes", status=1)
    assert job.files() == before


def test_a_job_without_a_checkpoint_or_with_a_damaged_one(job: StoppedJob) -> None:
    CheckpointLog(job.objects, replace(PATHS, name="fresh")).claim("run")
    assert "no checkpoint yet" in call("set", "fresh", "--offsets", "-", "--yes", text=offsets(p0=1), status=1)[1]
    path = job.home / "jobs" / PATHS.checkpoint(3)
    path.write_bytes(path.read_bytes()[:-9])
    before = job.files()
    assert PATHS.checkpoint(3) in set_to(offsets(p0=1), "--yes", status=1)[1]
    assert job.files() == before


@pytest.fixture
def running(job: StoppedJob) -> Iterator[None]:
    """Somebody holds the lease and renews it."""
    holder = replace(LeaseHolder.of_this_process("run-b"), host="elsewhere")
    keeper = EagerKeeper(acquire(job.objects, PATHS, holder, LONG_MS, time.monotonic() + DEADLINE_S))
    keeper.start()
    yield
    keeper.stop(DEADLINE_S)
    keeper.lease.release()


@pytest.mark.usefixtures("running")
def test_a_running_job_is_refused(job: StoppedJob) -> None:
    before = job.files()
    said = set_to(offsets(p0=1), "--yes", "-c", "job.lease.ms=600", status=1)[1]
    assert "run `run-b`" in said
    assert job.files() == before


@pytest.mark.usefixtures("running")
def test_a_running_job_is_refused_before_anybody_is_asked(job: StoppedJob) -> None:
    found = FoundJob(load_config(overrides={"job.name": "flights"}), PATHS, job.objects)
    with pytest.raises(LeaseHeldError, match="run-b"):
        Confirmation(yes=False, may_ask=True, as_json=False).refuse_running(found)
    Confirmation(yes=True, may_ask=True, as_json=False).refuse_running(found)  # finds out when it claims the job


def test_a_run_that_broke_off_goes_on_under_its_id(job: StoppedJob) -> None:
    job.run(saved(4, ended=None), run_id="broken")
    set_to(offsets(p0=1), "--yes")
    assert (job.last.run_id, job.last.ended) == ("broken", None)
    job.run(saved(9, (4, 7), id=replace(job.last.id, millis=job.last.id.millis + 1)), run_id="ended")
    set_to(offsets(p0=1), "--yes")
    assert job.last.run_id.startswith("set-")
    assert job.last.ended == "stopped"


def test_the_versions_of_the_checkpoint_and_those_configured_are_written(job: StoppedJob) -> None:
    streamed = saved(4, (4, 7), versions=(1, 2))
    first = replace(
        streamed,
        tasks={task: {"1": own["1"]} for task, own in streamed.tasks.items()},
        identities={SystemStream("local", CHANGELOG): "stream"},
    )
    job.run(first)
    set_to(offsets(p1=1), "--yes", "-c", "task.checkpoint.read.versions=1,2")
    assert all(own.keys() == {"1", "2"} for own in job.last.tasks.values())
    changelog = {SSP("local", CHANGELOG, 1): "aircraft"}
    for version in (1, 2):
        said = read_task(job.last, 1, version, changelog)
        assert said.offsets == {ssp(1): "0"}
        found, before = (
            ChangelogStreamMarker.parse(own["changelog-stream"]["aircraft"])
            for own in (said.markers, markers_of(streamed, 1))
        )
        assert found == replace(before, stream_identity="stream")


def test_no_edit_goes_back_to_an_older_checkpoint_that_is_not_named(job: StoppedJob) -> None:
    """With version 1 alone to be read, neither a start nor an edit goes back to the last checkpoint that has it unless
    that is named."""
    both = saved(4, (3, 3), versions=(1, 2))
    job.run(both, saved(5, (4, 4)))
    one = ("-c", "task.checkpoint.read.versions=1", "-c", "task.checkpoint.write.versions=1,2")
    said = set_to(offsets(p1=1), "--yes", *one, status=1)[1]
    assert f"go back to checkpoint {both.id}" in said
    assert "add 2 to task.checkpoint.read.versions" in said
    set_to(offsets(p1=1), "--yes", "--from", str(both.id), *one)
    assert job.last.parent == both.id
    job.run(saved(8, id=replace(job.last.id, millis=job.last.id.millis + 1)))
    newest = job.last
    set_to(offsets(p1=1), "--yes", "--from", str(newest.id), "-c", "task.checkpoint.read.versions=1,2")
    assert (job.last.parent, versions_of(job.last)) == (newest.id, frozenset({2}))
    assert choose_newest(job.log.restorable, (1, 2)) == job.last


def test_retention_is_that_of_a_commit(job: StoppedJob) -> None:
    before = [record.id for record in job.log.checkpoints]
    set_to(offsets(p0=1), "--yes", "-c", "task.checkpoint.retained=2")
    assert [record.id for record in job.log.restorable] == [before[-1], job.last.id]


def test_a_log_that_changed_meanwhile_is_not_written_to(job: StoppedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another driver ran between the look at the log and the claim."""
    real = ownership.claimed_job

    def later(*arguments: Any) -> Any:
        job.run(saved(7, (5, 8)), run_id="between")
        return real(*arguments)

    monkeypatch.setattr(checkpoint_write, "claimed_job", later)
    assert "after this command read the log" in set_to(offsets(p0=1), "--yes", status=1)[1]
    assert job.last.run_id == "between"


@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("y", 0)])
def test_a_terminal_is_asked(job: StoppedJob, tmp_path: Path, answer: str, status: int) -> None:
    before = job.last
    (tmp_path / "offsets.json").write_text(offsets(p0=1))
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "penstock.cli", "checkpoint", "set", "flights", "--offsets", "offsets.json"]
    with subprocess.Popen(
        command,
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PENSTOCK_HOME": str(job.home)},
    ) as process:
        os.write(master, f"{answer}\n".encode())
        killer = threading.Timer(DEADLINE_S, process.kill)
        killer.start()
        text = process.communicate()[0]
        killer.cancel()
    os.close(master)
    os.close(slave)
    assert process.returncode == status, text
    assert "[y/N]" in text
    assert (job.last == before) == (answer == "n")


def test_a_job_without_stores_gets_no_warning(job: StoppedJob) -> None:
    job.run(saved(4, stores={}, markers={}))
    assert "warning" not in set_to(offsets(p0=1), "--yes")[1]
