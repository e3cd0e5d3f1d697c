"""`penstock status` and `penstock checkpoint list|show`, over real leases and logs on disk."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.folder_system import FolderSystem
from penstock.admin.job.inputs import input_status
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.watermarks import TIME, TimeSection
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim
from penstock.checkpoint.sections import Sections
from penstock.checkpoint.task_values import CheckpointV2
from penstock.cli.main import app
from penstock.errors import ConfigError, FailedMessage, UserCodeError
from penstock.host.logs import log_path
from penstock.job.identity import adopt, settle
from penstock.job.lease import LeaseHolder, LeaseState, acquire
from penstock.job.paths import JobPaths
from penstock.job.shown import Failure, LastWords, RunFailure, failure_board, failure_of, put_failure
from penstock.objects.file import FileObjectStore
from penstock.system.base import OpenTransaction
from penstock.system.local.admin import LocalAdmin
from penstock.testing.system_contract import append
from tests.support.jobs.home import wait_until
from tests.support.tools.cli import call, call_json, published
from tests.support.tools.leases import LONG_MS, EagerKeeper

DEADLINE_S = 60.0
PATHS = JobPaths("flights", "1")
ELSEWHERE = LeaseHolder("elsewhere", 7, "1", "boot", "pid:[1]", "other-run", "2024-01-01T00:00:00+00:00")
pytestmark = pytest.mark.usefixtures("home")


def record(claim: Claim, number: int, parent: CheckpointId | None, **changes: Any) -> CheckpointRecord:
    made = CheckpointRecord(
        id=CheckpointId(1_700_000_000_000 + number, 5),
        parent=parent,
        epoch=claim.epoch,
        run_id=claim.run_id,
        writer=claim.writer,
        task_count=2,
        batch=number,
        batch_time_ms=1_700_000_000_000,
        stores={"aircraft": "totals string json"},
        next_offsets={task: {SystemStreamPartition("local", "flights", task): number + task} for task in range(2)},
        tasks={},
    )
    v2 = CheckpointV2(made.id, {}, {"changelog-files": {"aircraft": f"marker-{number}"}}).encode()
    return replace(made, tasks={task: {"2": v2} for task in range(2)}, **changes)


def timed_by(event_times: Mapping[int, Mapping[SystemStreamPartition, int]], watermarks: Mapping[str, int]) -> Sections:
    return Sections.of({TIME: TimeSection(event_times, watermarks)})


@pytest.fixture
def objects(home: Path) -> FileObjectStore:
    return FileObjectStore(home / "jobs")


@pytest.fixture
def log(objects: FileObjectStore) -> CheckpointLog:
    """A log with a start checkpoint and a last one."""
    log = CheckpointLog(objects, PATHS)
    claim = log.claim("run-a")
    first = record(claim, 0, None, kind_detail="start")
    log.append(first)
    log.append(record(claim, 3, first.id, ended="stopped"))
    return log


def test_a_log_without_checkpoints(objects: FileObjectStore) -> None:
    CheckpointLog(objects, PATHS).claim("run-a")
    assert call_json("checkpoint", "list", "flights") == []
    assert "no checkpoint yet" in call("checkpoint", "show", "flights", status=1)[1]
    assert call_json("status", "flights")["lastCheckpoint"] is None


@pytest.mark.parametrize("arguments", [("status", "no"), ("checkpoint", "list", "no-7"), ("checkpoint", "show", "no")])
def test_a_job_that_is_not_there(arguments: tuple[str, ...], home: Path) -> None:
    out, error = call(*arguments, status=1)
    assert not out
    assert f"there is no job `{arguments[-1]}`" in error
    assert "job.root" in error
    assert "which has no jobs" in error
    assert not home.exists(), "looking must not create anything"


@pytest.mark.usefixtures("log")
def test_a_wrong_name_is_answered_with_the_jobs_there() -> None:
    assert "which has `flights-1`. Check the name" in call("status", "flight", status=1)[1]


def test_an_input_that_was_created_again(log: CheckpointLog, home: Path) -> None:
    published(20, partitions=2)
    last, claim = log.read().checkpoints[-1], log.claim("run-a")
    stream = SystemStream("local", "flights")
    log.append(replace(record(claim, 5, last.id, ended="stopped"), identities={stream: "another one"}))
    facts = call_json("status", "flights")
    (status,) = facts["inputs"]
    assert "deleted and created again: the job will not start" in status["problem"]
    assert facts["lastCheckpoint"]["ended"] == "stopped"


@pytest.mark.usefixtures("log")
def test_what_waits_behind_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of the transaction that is still being written are not shown."""
    published(20, partitions=2)
    now_ms = time.time_ns() // 1_000_000
    found = {0: OpenTransaction(9, 30, 1_700_000_000_000), 1: OpenTransaction(9, 2, now_ms)}
    monkeypatch.setattr(LocalAdmin, "open_transactions", lambda *_: found)
    (stream,) = call_json("status", "flights")["inputs"]
    shown = [part["openTransaction"] for part in stream["partitions"]]
    assert shown == [{"offset": 9, "messages": 30, "sinceMs": 1_700_000_000_000}, None]
    said = " ".join(call("status", "flights")[1].split())
    assert "stream `local.flights` partition 0: at most 30 messages behind an open transaction since 2023-11-14" in said


@pytest.mark.usefixtures("log")
def test_the_lag_of_a_stream_whose_offsets_have_gaps(tmp_path: Path) -> None:
    system = FolderSystem("local", tmp_path / "streams")
    system.admin().create_stream("flights", 2)
    for partition in range(2):
        append(system, SystemStreamPartition("local", "flights", partition), [(0, b"key", b"value")])
    factory = "systems.local.samza.factory=examples.folder_system:FolderSystem"
    where = ("-c", factory, "-c", f"systems.local.folder={system.folder}")
    assert not call_json("status", "flights", *where)["inputs"][0]["denseOffsets"]
    assert "note: the offsets of `local.flights` have gaps" in call("status", "flights", *where)[1]


@pytest.mark.usefixtures("log")
def test_status_where_the_streams_cannot_be_looked_at() -> None:
    facts = call_json("status", "flights")
    assert "does not exist" in facts["inputs"][0]["problem"]
    assert facts["inputs"][0]["lag"] is None
    assert "warning: stream `local.flights`" in call("status", "flights")[1]
    published(20, partitions=3)
    assert "3 partitions now" in call_json("status", "flights")["inputs"][0]["problem"]


@pytest.mark.usefixtures("log")
def test_what_is_known_is_shown_at_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    published(20, partitions=2)
    shown: list[str] = []

    def asked(*_: object) -> dict[int, OpenTransaction]:
        shown.append(capsys.readouterr().out)
        return {}

    monkeypatch.setattr(LocalAdmin, "open_transactions", asked)
    app(["status", "flights"], standalone_mode=False)
    assert [line.split()[0] for line in shown[0].splitlines()[:2]] == ["job", "status"]
    assert "last checkpoint" in shown[0]
    assert "Inputs" in capsys.readouterr().out


@pytest.mark.slow
def test_brokers_that_are_away_cost_five_seconds_in_all(log: CheckpointLog) -> None:
    """Two systems with three inputs; the third system answers."""
    published(20, partitions=2)
    last, claim = log.read().checkpoints[-1], log.claim("run-a")
    names = (("east", "a"), ("east", "b"), ("west", "a"), ("local", "flights"))
    inputs = {SystemStreamPartition(*name, partition): 1 for name in names for partition in range(2)}
    log.append(replace(record(claim, 5, last.id, ended="stopped"), next_offsets={0: inputs, 1: {}}))
    away = [
        each
        for name in ("east", "west")
        for each in (
            "-c",
            f"systems.{name}.samza.factory=kafka",
            "-c",
            f"systems.{name}.consumer.bootstrap.servers=127.0.0.1:1",
        )
    ]
    for arguments in (("status", "flights"), ("status",)):
        began = time.monotonic()
        _, said = call(*arguments, *away)
        assert time.monotonic() - began < 12, "one after the other, it is 90 s"
        assert "stream `east.a`: its ends are unknown: the system `east` did not answer within 5 s" in " ".join(
            said.split()
        )
    problems = {each["stream"]: each["problem"] for each in call_json("status", "flights", *away)["inputs"]}
    assert [stream for stream, problem in problems.items() if problem is None] == ["local.flights"]


def test_who_holds_the_watermark_back(log: CheckpointLog) -> None:
    published(20, partitions=2)
    ssps = [SystemStreamPartition("local", "flights", task) for task in range(2)]
    last = log.read().checkpoints[-1]
    claim = log.claim("run-b")
    at = 1_700_000_000_000
    times = {0: {ssps[0]: at - 2_000}, 1: {ssps[1]: at - 3_500}}
    marks = {"hourly": at - 3_500}
    timed = record(claim, 5, last.id, sections=timed_by(times, marks))
    log.append(timed)
    facts = call_json("status", "flights")
    (stream,) = facts["inputs"]
    assert stream["heldBackBy"] == 1
    assert [part["eventTimeMs"] for part in stream["partitions"]] == [at - 2_000, at - 3_500]
    notes = call("status", "flights")[1]
    assert "note: `local.flights` partition 1 holds the watermark back: its highest event time is 2023-" in notes
    log.append(record(claim, 6, timed.id, sections=timed_by(times, marks), ended_inputs=tuple(ssps[1:])))
    assert call_json("status", "flights")["inputs"][0]["heldBackBy"] == 0


def test_an_idle_partition_does_not_hold_the_watermark_back(log: CheckpointLog) -> None:
    """Partition 1 has nothing unread and has had its position for an hour. Partition 0 has unread messages."""
    published(20, partitions=2)
    upcoming = [part["upcoming"] for part in call_json("status", "flights")["inputs"][0]["partitions"]]
    ssps = [SystemStreamPartition("local", "flights", task) for task in range(2)]
    last, claim = log.read().checkpoints[-1], log.claim("run-b")
    at = 1_700_000_000_000
    times = {0: {ssps[0]: at + 3_600_000 - 2_000}, 1: {ssps[1]: at - 3_500}}
    marks = {"hourly": at - 3_500}
    before = record(claim, 5, last.id, sections=timed_by(times, marks))
    before = replace(before, next_offsets={0: {ssps[0]: 0}, 1: {ssps[1]: upcoming[1]}})
    log.append(before)
    assert call_json("status", "flights")["inputs"][0]["heldBackBy"] == 1, "not idle yet"
    moved = {0: {ssps[0]: 1}, 1: before.next_offsets[1]}
    after = record(claim, 6, before.id, sections=timed_by(times, {"hourly": at + 3_600_000 - 2_000}))
    log.append(replace(after, batch_time_ms=at + 3_600_000, next_offsets=moved))
    assert call_json("status", "flights")["inputs"][0]["heldBackBy"] == 0
    assert "partition 1 holds the watermark back" not in call("status", "flights")[1]
    assert re.search(r"hourly .* 2.0 s", call("status", "flights")[0])


def test_how_far_a_watermark_of_long_ago_is_behind(log: CheckpointLog) -> None:
    last = log.read().checkpoints[-1]
    long_ago = 1_700_000_000_000 - 95_403_376_500
    log.append(record(log.claim("run-b"), 5, last.id, sections=timed_by({}, {"hourly": long_ago})))
    assert re.search(r"hourly .* 1,104.2 d", call("status", "flights")[0])


def test_a_dataframe_of_a_query_has_no_partition_that_holds_it_back(log: CheckpointLog) -> None:
    rows = [SystemStreamPartition("spark", "rows", task) for task in range(2)]
    last = log.read().checkpoints[-1]
    positions = {task: {ssp: 7} for task, ssp in enumerate(rows)}
    times = {task: {ssp: 1_700_000_000_000 + task} for task, ssp in enumerate(rows)}
    of_query = {rows[0].system_stream: "query"}
    made = record(log.claim("run-b"), 5, last.id, next_offsets=positions, identities=of_query)
    log.append(made.having(TIME, TimeSection(times)))
    (frame,) = call_json("status", "flights")["inputs"]
    assert (frame["stream"], frame["heldBackBy"], frame["problem"]) == ("spark.rows", None, None)
    assert [part["eventTimeMs"] for part in frame["partitions"]] == [1_700_000_000_000, 1_700_000_000_001]


def test_a_stream_that_ends_before_the_position_has_no_lag() -> None:
    from penstock.api.ssp import SystemStream
    from penstock.system.base import PartitionOffsets
    from penstock.system.memory import MemorySystem

    found = input_status(SystemStream("local", "s"), {0: 9}, {0: PartitionOffsets(0, 4)}, None, system=MemorySystem())
    assert (found.lag, found.partitions[0].upcoming) == (None, 4)


def put_lease(objects: FileObjectStore, **changes: Any) -> None:
    state = replace(LeaseState(ELSEWHERE, lease_ms=400, token="t"), **changes)
    objects.put_if_absent(PATHS.lease, state.encode())


@pytest.mark.parametrize(
    ("lease", "reason"),
    [
        ({}, "the lease was not renewed for 0.4 s"),
        ({"lease_ms": 3_600_000, "released": True}, "its last run released the lease"),
    ],
)
def test_a_lease_that_nobody_has(objects: FileObjectStore, lease: dict[str, Any], reason: str) -> None:
    put_lease(objects, **lease)
    facts = call_json("status", "flights")
    assert (facts["status"], facts["reason"]) == ("not running", reason)


@pytest.mark.usefixtures("log")
def test_a_job_whose_lease_is_renewed_runs(objects: FileObjectStore) -> None:
    lease = acquire(objects, PATHS, LeaseHolder.of_this_process("run-a"), LONG_MS, time.monotonic() + DEADLINE_S)
    keeper = EagerKeeper(lease)
    keeper.start()
    try:
        facts = call_json("status", "flights")
    finally:
        keeper.stop(DEADLINE_S)
    assert facts["status"] == "running"
    assert facts["holder"]["pid"] == os.getpid()


def test_both_readings_of_a_job_name(objects: FileObjectStore) -> None:
    for name, job_id, run in (("a", "1", "first"), ("a-1", "1", "second"), ("a", "2", "third")):
        CheckpointLog(objects, JobPaths(name, job_id)).claim(run)
    asked = {"a": "first", "a-1": "first", "a-1-1": "second", "a-2": "third"}
    assert {name: call_json("status", name)["runId"] for name in asked} == asked
    assert call_json("status", "a", "-c", "job.id=2")["runId"] == "third"


def test_jobs_of_one_name_in_two_roots_have_logs_of_their_own(objects: FileObjectStore, tmp_path: Path) -> None:
    CheckpointLog(objects, PATHS).claim("run-a")
    settle(objects, PATHS, str(objects.root))
    second = tmp_path / "another"
    shutil.copytree(objects.root, second)
    here = call_json("status", "flights", "--no-wait")["logs"]
    copied = call_json("status", "flights", "--no-wait", "-c", f"job.root={second}")["logs"]
    assert copied != here, "a copy is not the job whose containers run"
    adopt(FileObjectStore(second), PATHS, str(second), moved=False)
    found = {
        here,
        copied,
        call_json("status", "flights", "--no-wait", "-c", f"job.root={second}")["logs"],
    }
    assert len(found) == 3


def test_status_names_the_containers_of_this_host(log: CheckpointLog, home: Path) -> None:
    """They are those that log where the job's containers do, not those of other jobs."""
    assert call_json("status", "flights", "--no-wait")["containers"] == []
    folder = Path(call_json("status", "flights", "--no-wait")["logs"])
    folder.mkdir(parents=True)
    log_path(str(folder), "7-0", "00ff").touch()
    command = [sys.executable, "-m", "penstock.container", "7-0"]
    with ExitStack() as ending:
        pids = []
        for incarnation in ("00ff", "another-jobs"):
            process = subprocess.Popen([*command, incarnation, str(os.getpid())], stdin=subprocess.PIPE)
            ending.enter_context(process)
            ending.callback(process.kill)
            pids.append(process.pid)
        wait_until(lambda: call_json("status", "flights", "--no-wait")["containers"], "the container's process")
        assert call_json("status", "flights", "--no-wait")["containers"] == [{"container": "7-0", "pid": pids[0]}]
        assert f"7-0 (pid {pids[0]})" in call("status", "flights", "--no-wait")[0]


def last_words(objects: FileObjectStore, error: Exception, epoch: int, lost: str | None = None) -> None:
    """The record that a driver writes when the error ends its run."""
    lease = acquire(objects, PATHS, LeaseHolder.of_this_process("run-a"), LONG_MS, time.monotonic() + DEADLINE_S)
    lease.lost = lost
    with suppress(type(error)), ExitStack() as undo:
        undo.callback(lease.release)
        undo.push(LastWords(failure_board(objects, PATHS), lease, lambda: epoch))
        raise error


def test_a_failed_job_says_since_when_why_and_where(objects: FileObjectStore) -> None:
    epoch = CheckpointLog(objects, PATHS).claim("run-a").epoch
    failed = FailedMessage("local.flights", 1, 42, "'JFK'", "totals", "KeyError: 'distance'", "Traceback ...")
    before_ms = time.time_ns() // 1_000_000
    last_words(objects, UserCodeError(failed), epoch)
    facts = call_json("status", "flights")
    assert facts["status"] == "failed"
    assert (facts["failure"]["error"], facts["failure"]["place"]) == (failed.reason, failed.place)
    assert before_ms <= facts["failure"]["sinceMs"] <= time.time_ns() // 1_000_000
    assert call_json("status")[0]["status"] == "failed"
    said = " ".join(call("status", "flights")[0].split())
    assert "failed: KeyError: 'distance'" in said
    assert "stream `local.flights` partition 1 offset 42 key 'JFK'" in said
    assert "last holder" in said


def test_the_next_claim_makes_a_failure_a_thing_of_the_past(objects: FileObjectStore) -> None:
    log = CheckpointLog(objects, PATHS)
    last_words(objects, ConfigError("no such thing"), log.claim("run-a").epoch)
    assert call_json("status", "flights")["failure"]["error"] == "no such thing"
    log.claim("run-a")
    facts = call_json("status", "flights")
    assert (facts["status"], facts["reason"], facts["failure"]) == (
        "not running",
        "its last run released the lease",
        None,
    )


def test_last_words_of_a_replaced_driver_do_not_hide_those_of_the_newer_run(objects: FileObjectStore) -> None:
    log = CheckpointLog(objects, PATHS)
    old, new = log.claim("run-a").epoch, log.claim("run-a").epoch
    shown = failure_board(objects, PATHS)
    put_failure(shown, RunFailure(new, Failure(5, "the newer run")))
    put_failure(shown, RunFailure(old, Failure(6, "the replaced one")))
    assert failure_of(shown, new) == Failure(5, "the newer run")
    assert failure_of(shown, old) is None
    newest = log.claim("run-a").epoch
    last_words(objects, ConfigError("of a driver that has lost its lease"), newest, lost="another driver took over")
    assert failure_of(shown, new) == Failure(5, "the newer run")


def test_a_stop_is_no_failure(objects: FileObjectStore) -> None:
    epoch = CheckpointLog(objects, PATHS).claim("run-a").epoch
    lease = acquire(objects, PATHS, LeaseHolder.of_this_process("run-a"), LONG_MS, time.monotonic() + DEADLINE_S)
    shown = failure_board(objects, PATHS)
    words = LastWords(shown, lease, lambda: epoch, stops=ConfigError)
    words.say(KeyboardInterrupt())
    words.say(ConfigError("somebody stopped the run"))
    assert failure_of(shown, epoch) is None
    words.say(ValueError("no stop"))
    lease.release()
    assert call_json("status", "flights")["failure"]["error"] == "ValueError: no stop"


def test_last_words_of_any_text_are_written_and_cut(objects: FileObjectStore) -> None:
    epoch = CheckpointLog(objects, PATHS).claim("run-a").epoch
    last_words(objects, OSError("no file \udce4" + "x" * 1_000_000), epoch)
    said = call_json("status", "flights")["failure"]["error"]
    assert said.startswith("OSError: no file \\udce4xxx")
    assert len(said) < 5_000


def test_last_words_that_are_lost_hide_no_error(objects: FileObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    (objects.root / PATHS.metadata("failure", "last-run")).mkdir(parents=True)
    last_words(objects, ConfigError("the first error"), CheckpointLog(objects, PATHS).claim("run-a").epoch)
    assert "will not say why this run failed" in caplog.text


def test_a_job_whose_driver_was_killed_has_failed_since_its_last_sign_of_life(objects: FileObjectStore) -> None:
    CheckpointLog(objects, PATHS).claim("other-run")
    put_lease(objects, renewed_ms=1_700_000_000_000)
    facts = call_json("status", "flights")
    assert (facts["status"], facts["failure"]["sinceMs"]) == ("failed", 1_700_000_000_000)
    said = " ".join(call("status", "flights")[0].split())
    assert "its driver is silent, its last sign of life was at 2023-11-14T22:13:20.000Z" in said
    assert "pid 7 on host `elsewhere`" in said
    assert "it is gone, is stopped, or does not reach the job root" in facts["failure"]["error"]
    assert "is gone," not in said.replace("it is gone, is stopped", "")


def test_a_run_that_had_ended_before_it_was_killed_has_not_failed(objects: FileObjectStore) -> None:
    log = CheckpointLog(objects, PATHS)
    claim = log.claim("other-run")
    first = record(claim, 0, None, kind_detail="start")
    log.append(first)
    log.append(record(claim, 3, first.id, ended="stopped"))
    put_lease(objects)
    assert call_json("status", "flights")["status"] == "not running"


def test_words_of_an_older_start_do_not_speak_for_a_driver_that_was_killed(objects: FileObjectStore) -> None:
    log = CheckpointLog(objects, PATHS)
    claim = log.claim("other-run")
    put_failure(failure_board(objects, PATHS), RunFailure(claim.epoch, Failure(5, "of an older start"), "older"))
    assert call_json("status", "flights")["failure"]["error"] == "of an older start"
    put_lease(objects)
    assert "its driver is silent" in call_json("status", "flights")["failure"]["error"]


def test_damaged_last_words_hide_nothing_else(objects: FileObjectStore) -> None:
    CheckpointLog(objects, PATHS).claim("run-a")
    objects.put_if_absent(PATHS.metadata("failure", "last-run"), b"{")
    assert call_json("status", "flights")["status"] == "not running"


def test_the_lease_says_when_it_was_renewed(objects: FileObjectStore) -> None:
    before_ms = time.time_ns() // 1_000_000
    lease = acquire(objects, PATHS, LeaseHolder.of_this_process("run-a"), LONG_MS, time.monotonic() + DEADLINE_S)
    taken = LeaseState.decode(objects.get(PATHS.lease), PATHS.lease).renewed_ms
    assert taken is not None
    assert before_ms <= taken
    lease.renew()
    renewed = LeaseState.decode(objects.get(PATHS.lease), PATHS.lease).renewed_ms
    assert renewed is not None
    assert taken <= renewed <= time.time_ns() // 1_000_000
