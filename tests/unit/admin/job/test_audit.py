"""The audit log: whatever changes something of a job leaves a record of it, written before the change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import penstock as ps
from penstock import admin
from penstock.admin.job import logs
from penstock.admin.job.logs import AuditRecord, UnreadableAuditRecord, audited, operator, this_process
from penstock.api.retention import StreamRetention
from penstock.checkpoint.forks import Home, pin_of
from penstock.checkpoint.log import CheckpointLog
from penstock.errors import FailedMessage
from penstock.job import commands as commands_module
from penstock.job.commands import AuditEntry, AuditLog
from penstock.job.identity import settle
from penstock.job.lease import LeaseHolder, acquire
from penstock.job.paths import JobPaths
from penstock.runtime.messages.stored import encode_dead_letter
from penstock.tables.manifest import TableFingerprint, TableManifest
from penstock.tables.registry import TableRegistry
from penstock.testing.clock import SettableClock
from tests.support.jobs.example_job import ExampleJob, flights
from tests.support.stores.spark_state import GOLDEN
from tests.support.stores.stopped_job import PATHS
from tests.support.tools.cli import call, call_json
from tests.support.tools.leases import LONG_MS, EagerKeeper
from tests.support.tools.places import ROOT

TRIPS = "local.trips"
KEY = "the key of this root, 32 characters or more"
SSP = ps.SystemStreamPartition("local", "trips", 0)


@dataclass(frozen=True)
class Change:
    """A call that changes something, the action that its record names, and some of the changes."""

    call: Callable[[admin.FoundJob], object]
    action: str
    changes: dict[str, str]
    prepare: Callable[[admin.FoundJob], object] = lambda job: None
    runs: bool = False


def set_oldest(job: admin.FoundJob) -> object:
    return admin.set_startpoint(job, TRIPS, ps.StartpointOldest(), partitions=[0], with_state="keep")


def exported_startpoint(job: admin.FoundJob) -> tuple[str, ...]:
    set_oldest(job)
    lines = admin.export_startpoints(job).lines
    admin.delete_startpoints(job, TRIPS)
    return lines


def exported_drain(job: admin.FoundJob) -> tuple[str, ...]:
    admin.drain(job)
    lines = admin.export_drains(job).lines
    admin.cancel_drain(job)
    return lines


def push_table(job: admin.FoundJob) -> None:
    registry = TableRegistry(job.objects, job.paths, "planes")
    print_ = TableFingerprint("string", "json", ("tail",), None, single_value=False, tasks=2, broadcast=False)
    registry.publish(TableManifest("planes", 0, 1, "1-a", "/data/planes", "v1", 0, 1_700_000_000_000, print_))


def write_letter(job: admin.FoundJob) -> None:
    dead = admin.open_stream("dead")
    admin.create_stream(dead, 1)
    failed = FailedMessage(TRIPS, 0, 1, "k", "task", "ValueError: no", "")
    letter = encode_dead_letter(failed, b"k", b"5", repartitioned=False)
    with closing(dead.system.writer(None)) as writer:
        writer.append(ps.SystemStreamPartition("local", "dead", 0), [(0, b"k", letter)])


def import_spark(job: admin.FoundJob) -> admin.ImportFacts:
    def of_key(key: Any, value: Any) -> tuple[str, int]:
        return key["k"] or "none", value["c"]

    source = str(GOLDEN / "tws-lz4" / "checkpoint")
    with admin.plan_spark_import(flights(), source, "miles", variable="total", function=of_key) as planned:
        return admin.import_spark(planned, replace=True)


def labelled(job: admin.FoundJob) -> None:
    job.log.label("here", job.log.read().restorable[-1].id, 0)


def forked_from(job: admin.FoundJob) -> None:
    """The job is the fork of another one, whose log has the same checkpoints."""
    parent = JobPaths("flights", "0")
    for key in job.objects.list(job.paths.checkpoints):
        job.objects.put_if_absent(key.replace(job.paths.root, parent.root), job.objects.get(key))
    log = CheckpointLog(job.objects, parent)
    forked = log.read().restorable[-1].id
    log.label(pin_of(job.paths), forked, 0)
    home = Home(parent, settle(job.objects, parent, job.config.job.root), str(forked))
    job.objects.put_if_absent(job.paths.home, home.encode())


def repartition(job: admin.FoundJob) -> admin.RepartitionFacts:
    with admin.plan_repartition(flights(), 4) as planned:
        return admin.repartition(planned)


def edit_state(job: admin.FoundJob) -> admin.EditFacts:
    with admin.plan_edit(job, "miles", sets={"N1": "7"}) as planned:
        return admin.edit_state(planned)


CHANGING = {
    "adopt": Change(admin.adopt, "job adopt", {}),
    "cancel_drain": Change(admin.cancel_drain, "drain cancel", {"run": "the next one"}, admin.drain),
    "detach": Change(admin.detach, "job detach", {"parent": "flights-0 -> none", "copied": "0 objects"}, forked_from),
    "collect_garbage": Change(admin.collect_garbage, "state gc", {}),
    "delete_job": Change(admin.delete_job, "job delete", {"checkpoints": "4"}),
    "delete_startpoints": Change(
        lambda job: admin.delete_startpoints(job, TRIPS),
        "startpoint delete",
        {f"{TRIPS} 0": "oldest -> none"},
        set_oldest,
    ),
    "delete_stream": Change(
        lambda job: admin.delete_stream(admin.open_stream("trips"), force=True),
        "stream delete",
        {"stream": TRIPS, "messages": "4 -> none"},
    ),
    "drain": Change(admin.drain, "drain", {"run": "the next one"}),
    "edit_state": Change(edit_state, "state edit", {"store": "miles", "entries": "1"}),
    "end_stream": Change(lambda job: admin.end_stream(admin.open_stream("trips")), "stream end", {"stream": TRIPS}),
    "fork": Change(lambda job: admin.fork(job, "what-if"), "fork", {}),
    "label_checkpoint": Change(lambda job: admin.label_checkpoint(job, None, "here"), "checkpoint label", {}),
    "unlabel_checkpoint": Change(lambda job: admin.unlabel_checkpoint(job, "here"), "checkpoint unlabel", {}, labelled),
    "import_drains": Change(
        lambda job: admin.import_drains(job, LINES), "drain import", {"run": "the next one"}, exported_drain
    ),
    "import_spark": Change(import_spark, "state import-spark", {"store": "miles"}),
    "import_startpoints": Change(
        lambda job: admin.import_startpoints(job, LINES),
        "startpoint import",
        {f"{TRIPS} 0": "oldest: 3 -> 0"},
        exported_startpoint,
    ),
    "repartition": Change(repartition, "state repartition", {"tasks": "2 -> 4"}),
    "replay": Change(
        lambda job: admin.replay(admin.open_stream("dead")),
        "stream replay",
        {"dead letters": "local.dead", f"messages of {TRIPS}": "1 put back"},
        write_letter,
    ),
    "set_retention": Change(
        lambda job: admin.set_retention(admin.open_stream("trips"), StreamRetention(max_age_ms=3_600_000)),
        "stream retain",
        {"retention": f"forever -> {StreamRetention(max_age_ms=3_600_000)}"},
    ),
    "set_startpoint": Change(set_oldest, "startpoint set", {f"{TRIPS} 0": "oldest, state keep: 3 -> 0"}),
    "sign": Change(admin.sign, "job sign", {}),
    "stop": Change(lambda job: admin.stop(job, wait=False), "stop", {"run": "run-9"}, runs=True),
    "use_table": Change(
        lambda job: admin.use_table(job, "planes", 1),
        "table use",
        {"table": "planes", "version": "newest -> 1"},
        push_table,
    ),
    "write_checkpoint": Change(
        lambda job: admin.write_checkpoint(admin.plan_offsets(job, {SSP: 1})),
        "checkpoint set",
        {f"{TRIPS} 0 of task 0": "3 -> 1"},
    ),
}
"""Every function of `penstock.admin` that changes something of a job."""
LINES: list[str] = []

READING = {
    "fan_out",
    "audit", "checkpoints", "container_logs", "describe_stream", "effective_values", "export_checkpoint",
    "export_drains", "export_startpoints", "graph", "job_content", "key_facts", "lease", "open_all_jobs", "open_diff",
    "open_job", "open_state", "open_stream", "plan_edit", "plan_import", "plan_offsets", "plan_repartition",
    "plan_spark_import",
    "read_checkpoint",
    "startpoints", "state_versions", "status", "statuses", "stream_use", "streams", "table_versions", "verify",
}  # fmt: skip
OF_NO_JOB = {"create_stream", "publish"}
"""They give a stream what any producer may give it."""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ExampleJob, Path]]:
    folder = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_HOME", str(folder / "home"))
        yield ExampleJob(folder / "home", folder / "kept"), folder / "home"


@pytest.fixture
def home(example: tuple[ExampleJob, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    made, home = example
    made.restore()
    monkeypatch.setenv("PENSTOCK_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "400")
    return home


def world(home: Path) -> tuple[dict[str, bytes], admin.StreamFacts]:
    """Every file of the job and of this host, and its input."""
    found: dict[str, bytes] = {}
    for path in home.rglob("*"):
        if home / "streams" not in path.parents:
            with suppress(FileNotFoundError, IsADirectoryError):  # a temporary file of a run is gone
                found[str(path.relative_to(home))] = path.read_bytes()
    return found, admin.describe_stream(admin.open_stream("trips"))


def the_log(**overrides: object) -> list[AuditRecord]:
    with admin.open_job("flights", overrides=overrides, deleted=True) as job:
        found = admin.audit(job)
    assert not [each for each in found if isinstance(each, UnreadableAuditRecord)]
    return [each for each in found if isinstance(each, AuditRecord)]


@pytest.fixture
def run(home: Path) -> Iterator[Callable[[admin.FoundJob], None]]:
    """Begins a run that holds the job's lease."""
    with ExitStack() as stack:

        def begin(job: admin.FoundJob) -> None:
            holder = LeaseHolder.of_this_process("run-9")
            keeper = EagerKeeper(acquire(job.objects, job.paths, holder, LONG_MS, time.monotonic() + 60))
            keeper.start()
            stack.callback(keeper.stop, 60)

        yield begin


def prepared(job: admin.FoundJob, change: Change, run: Callable[[admin.FoundJob], None]) -> None:
    made = change.prepare(job)
    LINES[:] = made if isinstance(made, tuple) else []
    if change.runs:
        run(job)


def test_every_function_is_known_to_change_or_not() -> None:
    functions = {name for name in getattr(admin, "__all__", ()) if name[0].islower()}
    assert functions == CHANGING.keys() | READING | OF_NO_JOB


@pytest.mark.few(9)
@pytest.mark.parametrize("name", CHANGING)
def test_a_change_leaves_a_record(name: str, home: Path, run: Callable[[admin.FoundJob], None]) -> None:
    change = CHANGING[name]
    overrides: dict[str, object] = {"job.root.key": KEY} if name == "sign" else {}
    with admin.open_job("flights", overrides=overrides) as job:
        prepared(job, change, run)
        before, began_ms = len(admin.audit(job)) if not overrides else 0, time.time_ns() // 1_000_000
        change.call(job)
    *_, record = found = the_log(**overrides)
    assert len(found) == before + 1
    assert (record.user, record.host) == (psutil.Process().username(), LeaseHolder.of_this_process("x").host)
    assert (record.program, record.action, record.outcome, record.error) == ("python", change.action, "done", None)
    assert record.changes.items() >= change.changes.items()
    assert record.ended_ms is not None
    assert began_ms <= record.time_ms <= record.ended_ms


@pytest.mark.few(9)
@pytest.mark.parametrize("name", CHANGING)
def test_nothing_is_changed_without_a_record(name: str, home: Path, run: Callable[[admin.FoundJob], None]) -> None:
    change = CHANGING[name]
    with admin.open_job("flights", overrides={"job.root.key": KEY} if name == "sign" else {}) as job:
        prepared(job, change, run)
        for key in job.objects.list(job.paths.audit_log):
            job.objects.delete(key)
        job.objects.remove_empty_folders(job.paths.audit_log)
        in_the_way = home / "jobs" / job.paths.audit_log
        in_the_way.write_text("no folder")
        before, stream = world(home)
        with pytest.raises(ps.PenstockError, match="nothing was changed, because the audit log could not be written"):
            change.call(job)
    after, stream_after = world(home)
    if change.runs:  # the run renews its lease, by temporary files
        lease = f"jobs/{job.paths.lease.rpartition('/')[0]}/"
        before, after = ({k: v for k, v in each.items() if not k.startswith(lease)} for each in (before, after))
    assert (after, stream_after) == (before, stream)


def test_what_only_looks_leaves_nothing(home: Path) -> None:
    before = world(home)
    for command in (("status",), ("job", "audit"), ("checkpoint", "list"), ("startpoint", "list"), ("state", "list")):
        call(*command, "flights")
    call("state", "gc", "flights", "--dry-run")
    call("startpoint", "set", "flights", "--stream", TRIPS, "--all-partitions", "--oldest", "--dry-run")
    with admin.open_job("flights") as job:
        assert not admin.write_checkpoint(admin.plan_offsets(job, {SSP: 3})).checkpoint
    assert world(home) == before


def test_a_failure_and_a_death_in_the_middle(home: Path) -> None:
    code = (
        "import os; from penstock import admin; from penstock.admin.job.logs import audited\n"
        "with admin.open_job('flights') as job, audited(job, 'state gc'): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 9

    def interrupt(job: admin.FoundJob) -> None:
        with audited(job, "stop") as change:
            change.changes["run"] = "run-9"
            raise KeyboardInterrupt

    with admin.open_job("flights") as job:
        push_table(job)
        with pytest.raises(KeyboardInterrupt):
            interrupt(job)
        with pytest.raises(ps.NotFoundError):
            admin.use_table(job, "planes", 7)
    died, interrupted, failed = the_log()
    assert (died.action, died.outcome, died.ended_ms, died.error) == ("state gc", "unknown", None, None)
    assert (interrupted.outcome, interrupted.error, interrupted.changes) == (
        "failed", "KeyboardInterrupt: ", {"run": "run-9"}
    )  # fmt: skip
    assert failed.error is not None
    assert "has no version 7" in failed.error
    out = call("job", "audit", "flights")[0]
    assert "unknown: the command has not ended" in out
    assert "failed: NotFoundError: table `planes` has no version 7" in out


def test_an_outcome_that_cannot_be_written_is_a_warning(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with admin.open_job("flights") as job, audited(job, "state gc") as change:
        job.objects.delete(change.record)
    assert "the audit log does not have the outcome of this command" in caplog.text


def test_a_damaged_record_does_not_hide_the_others(home: Path) -> None:
    for _ in range(3):
        call("drain", "flights")
        call("drain", "flights", "--cancel")
    _, damaged, newer, *_ = sorted((home / "jobs" / PATHS.audit_log).iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-9])
    newer.write_text('{"format": 9}')
    found = call_json("job", "audit", "flights")
    assert [each.get("outcome") for each in found] == ["done", None, None, "done", "done", "done"]
    assert "is damaged" in found[1]["problem"]
    assert "has format 9" in found[2]["problem"]
    assert "unreadable: `flights-1/audit/" in call("job", "audit", "flights")[0]


def test_the_command_line_is_recorded_without_secrets(home: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    secret = ("-c", f"job.root.key=file:{tmp_path / 'key'}")
    call("job", "sign", "flights", *secret, "-capp.password=env:HOME")
    with admin.open_job("flights", overrides={"job.root.key": KEY}) as job:
        admin.drain(job)
    by_command, by_python = call_json("job", "audit", "flights", *secret)
    assert by_command["program"] == "penstock job sign flights -c job.root.key=... -capp.password=..."
    assert by_python["program"] == "python"


def test_commands_at_once_have_a_record_each(home: Path) -> None:
    def drain(number: int) -> None:
        with admin.open_job("flights") as job:
            admin.drain(job, run_id=f"run-{number}")

    threads = [threading.Thread(target=drain, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = the_log()
    assert {each.changes["run"] for each in found} == {f"run-{number}" for number in range(8)}
    assert {each.outcome for each in found} == {"done"}


def test_the_oldest_records_go_also_of_one_millisecond(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_module, "MOST_RECORDS", 5)
    monkeypatch.setattr(logs, "SYSTEM_CLOCK", SettableClock(int(time.time() * 1000)))
    with admin.open_job("flights") as job:
        for number in range(8):
            admin.drain(job, run_id=f"run-{number}")
    assert [each.changes["run"] for each in the_log()] == [f"run-{number}" for number in range(3, 8)]
    newest = call_json("job", "audit", "flights", "--limit", "2")
    assert [each["changes"]["run"] for each in newest] == ["run-6", "run-7"]


def test_a_record_is_small(home: Path) -> None:
    changes = {f"{number} {'x' * 5000}": "y\ud800" * 5000 for number in range(1000)}
    entry = AuditEntry(1, "u" * 5000, "h" * 5000, "p" * 5000, "stop", changes, 2, "e" * 5000)
    assert len(entry.encode()) < 32_000
    with admin.open_job("flights") as job:
        log = AuditLog(job.objects, job.paths)
        log.end(log.begin(entry), entry)
        ((_, found),) = log.read()
    assert isinstance(found, AuditEntry)
    assert found.changes["..."] == "980 more"


def test_the_log_of_a_deleted_job_stays(home: Path) -> None:
    call("drain", "flights")
    call("job", "delete", "flights", "--yes")
    with pytest.raises(ps.NotFoundError, match="there is no job"), admin.open_job("flights"):
        pass
    assert [each["action"] for each in call_json("job", "audit", "flights")] == ["drain", "job delete"]
    assert "there is no job" in call("job", "audit", "others", status=1)[1]


def test_a_change_of_a_stream_that_no_job_uses_is_in_no_log(home: Path) -> None:
    call("stream", "create", "others", "--partitions", "1")
    call("stream", "end", "others")
    call("stream", "delete", "others", "--yes")
    assert the_log() == []


def test_a_change_of_a_stream_needs_the_key_of_the_root(home: Path) -> None:
    with admin.open_job("flights", overrides={"job.root.key": KEY}) as job:
        admin.sign(job)
    with pytest.raises(ps.ConfigError, match=r"no `job\.root\.key`"):
        admin.end_stream(admin.open_stream("trips"))
    assert not admin.describe_stream(admin.open_stream("trips")).partitions[0].ended
    assert [each.action for each in the_log(**{"job.root.key": KEY})] == ["job sign"]


def test_the_example_of_the_page(home: Path) -> None:
    section = (ROOT / "docs" / "operations.md").read_text("utf-8").split("\n## Who did what\n")[1].split("\n## ")[0]
    commands = section.split("```sh\n")[1].split("```")[0].splitlines()
    for line in commands[:-1]:
        call(*line.split()[1:])
    (found,) = json.loads(call(*commands[-1].split()[1:])[0])
    (shown,) = json.loads(section.split("```json\n")[1].split("```")[0])
    for varying in ("record", "timeMs", "endedMs", "user", "host"):
        del found[varying], shown[varying]
    assert found == shown


def test_an_operator_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", no_entry)
    assert operator() == str(os.getuid())
    assert this_process().startswith(f"{os.getuid()} on host `")
