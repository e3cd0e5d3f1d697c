"""The command line: what it prints, where, and its exit status. Streams, leases and logs are real ones on disk."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.id import CheckpointId
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord, Claim
from penstock.checkpoint.v2 import CheckpointV2
from penstock.cli.application import load_application
from penstock.cli.errors import ApplicationLoadError
from penstock.cli.job_status import input_status
from penstock.cli.main import app
from penstock.cli.run_view import RunObserver
from penstock.cli.stop_signals import StopSignals
from penstock.cli.tail import printable
from penstock.config.table import describe
from penstock.engine.job import Job
from penstock.engine.progress import JobProgress, ProgressBoard
from penstock.engine.run_loop import StopRequest
from penstock.errors import ConfigError, NotFoundError
from penstock.metadata.file_store import FileObjectStore
from penstock.metadata.lease import LeaseHolder, LeaseKeeper, LeaseState, acquire
from penstock.metadata.paths import JobPaths
from penstock.system.local import LocalSystem

DEADLINE_S = 60.0
PATHS = JobPaths("flights", "1")
ELSEWHERE = LeaseHolder("elsewhere", 7, "1", "boot", "pid:[1]", "other-run", "2024-01-01T00:00:00+00:00")
APPLICATION = """
import penstock as ps

def build():
    app = ps.StreamApplication("flights")
    app.input("local.flights").filter(lambda flight: flight["n"])
    return app

app = build()
number = 7
def broken():
    raise RuntimeError("no application today")
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a Penstock home and a working directory of its own."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def imports() -> Iterator[None]:
    """What loading an application puts into the interpreter is taken out again."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def call(*arguments: str, status: int = 0, stdin: bytes | None = None) -> tuple[str, str]:
    """Run a command in this process: its standard output and error."""
    result = CliRunner().invoke(app, arguments, input=stdin)
    assert result.exit_code == status, result.output + repr(result.exception)
    assert "Traceback" not in result.stderr or status == 1 or "could not be loaded" in result.stderr
    return result.stdout, result.stderr


def call_json(*arguments: str) -> Any:
    """Run a command with --json; nothing but the document may be on standard output."""
    return json.loads(call(*arguments, "--json")[0])


def command(*arguments: str) -> list[str]:
    """The same command for a process of its own."""
    return [sys.executable, "-m", "penstock.cli", *arguments]


# Streams.


def test_create_is_idempotent_but_never_changes_the_partitions() -> None:
    assert "created `local.flights` with 4 partitions" in call("stream", "create", "flights", "--partitions", "4")[0]
    assert "exists" in call("stream", "create", "local.flights", "--partitions", "4")[0]
    error = call("stream", "create", "flights", "--partitions", "5", status=1)[1]
    assert error.startswith("error: ")
    assert "4" in error
    call("stream", "create", "flights", status=2)
    call("stream", "create", "flights", "--partitions", "0", status=2)


def published(count: int = 20, partitions: int = 4) -> None:
    lines = "\n".join(json.dumps({"id": f"k{n}", "n": n, "at": 1000 * (n + 1)}) for n in range(count))
    Path("in.jsonl").write_text(lines)
    call("stream", "create", "flights", "--partitions", str(partitions))
    options = ("--key", "id", "--timestamp", "at")
    assert f"{count} messages" in call("stream", "publish", "flights", "--file", "in.jsonl", *options)[0]


def test_publish_then_describe() -> None:
    published()
    facts = call_json("stream", "describe", "flights")
    assert (facts["stream"], facts["partitionCount"], facts["messages"]) == ("local.flights", 4, 20)
    assert sum(part["upcoming"] for part in facts["partitions"]) == 20
    assert all(part["oldest"] == 0 and part["newest"] == part["upcoming"] - 1 for part in facts["partitions"])
    table = call("stream", "describe", "local.flights")[0]
    assert "upcoming" in table
    assert "local.flights" in table


def test_publish_csv_from_standard_input_in_a_process_of_its_own() -> None:
    for arguments in (
        ("create", "numbers", "--partitions", "1"),
        ("publish", "numbers", "--file", "-", "--format", "csv", "--infer"),
    ):
        done = subprocess.run(
            command("stream", *arguments), input=b"a,b\n1,x\n,y\n", capture_output=True, check=False, timeout=DEADLINE_S
        )
        assert done.returncode == 0, done.stderr
    values = [json.loads(line)["value"] for line in call("stream", "tail", "numbers", "--json")[0].splitlines()]
    assert [json.loads(value) for value in values] == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]


def test_publish_names_the_line_that_is_wrong() -> None:
    Path("in.jsonl").write_text('{"n": 1}\n[2]\n')
    call("stream", "create", "s", "--partitions", "1")
    out, error = call("stream", "publish", "s", "--file", "in.jsonl", status=2)
    assert not out
    assert "line 2" in error
    assert "0 messages were published" in error
    assert "there is no file" in call("stream", "publish", "s", "--file", "no.jsonl", status=1)[1]


@pytest.mark.parametrize("arguments", [("describe", "no"), ("tail", "no"), ("publish", "no", "--file", "in.jsonl")])
def test_a_stream_that_is_not_there(arguments: tuple[str, ...]) -> None:
    Path("in.jsonl").write_text("{}\n")
    out, error = call("stream", *arguments, status=1)
    assert not out
    assert error.startswith("error: ")
    assert "penstock stream create" in error


def test_a_dot_in_a_name_without_a_system() -> None:
    error = call("stream", "describe", "my.stream", status=2)[1]
    assert "there is no system `my`" in error
    assert "local.my.stream" in error


def test_a_system_of_the_configuration() -> None:
    Path("p.yaml").write_text("systems: {other: {type: local, path: elsewhere}}\n")
    call("stream", "create", "other.s", "--partitions", "2", "--config", "p.yaml")
    assert Path("elsewhere").is_dir()
    assert call_json("stream", "describe", "other.s", "--config", "p.yaml")["partitionCount"] == 2


def tailed(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in call("stream", "tail", "flights", "--json", *arguments)[0].splitlines()]


def test_tail_shows_the_last_messages_by_time() -> None:
    published()
    assert [message["key"] for message in tailed()] == [f"k{n}" for n in range(10, 20)]
    assert [message["timestamp"] for message in tailed("-n", "3")] == [18_000, 19_000, 20_000]
    assert tailed("-n", "0") == []
    assert [message["key"] for message in tailed("--from-beginning")] == [f"k{n}" for n in range(20)]
    assert [message["key"] for message in tailed("--from-beginning", "-n", "2")] == ["k0", "k1"]
    own = tailed("--partition", "1", "--from-beginning")
    assert own
    assert {message["partition"] for message in own} == {1}
    assert [message["offset"] for message in own] == list(range(len(own)))
    assert "no partition 4" in call("stream", "tail", "flights", "--partition", "4", status=1)[1]


def test_tail_shows_text_as_text_and_bytes_as_hex() -> None:
    call("stream", "create", "flights", "--partitions", "1")
    writer = LocalSystem("local", str(Path("home/streams").resolve())).writer(None)
    writer.append(
        SystemStreamPartition("local", "flights", 0),
        [(0, b"\x00\x00\x00\x05", "grün\nrot".encode()), (1, None, b"\xff")],
    )
    writer.close()
    lines = call("stream", "tail", "flights")[0].splitlines()
    assert lines[0].split("\t") == ["0:0", "1970-01-01T00:00:00.000Z", "0x00000005", "grün\\nrot"]
    assert lines[1].split("\t")[2:] == ["-", "0xff"]
    first, second = tailed()
    assert (first["keyHex"], first["value"]) == ("00000005", "grün\nrot")
    assert (second["key"], second["valueHex"]) == (None, "ff")


@pytest.mark.parametrize(
    ("data", "text"), [(b"", ""), (b"a\tb", "a\tb"), (b"\x1b[31m", None), (b"\xc3", None), ("é".encode(), "é")]
)
def test_printable(data: bytes, text: str | None) -> None:
    assert printable(data) == text


def lines_of(process: subprocess.Popen[str]) -> queue.Queue[str]:
    """The lines a process writes, as they come."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)

    threading.Thread(target=read, daemon=True).start()
    return lines


def test_tail_follows_what_is_appended_until_it_is_interrupted() -> None:
    published(1, partitions=2)
    with subprocess.Popen(
        command("stream", "tail", "flights", "--follow", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        lines = lines_of(process)
        assert json.loads(lines.get(timeout=DEADLINE_S))["key"] == "k0"
        call("stream", "publish", "flights", "--file", "in.jsonl", "--key", "n")
        assert json.loads(lines.get(timeout=DEADLINE_S))["key"] == "0"
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_looking_at_streams_loads_neither_spark_nor_arrow() -> None:
    code = "import sys, penstock.cli.main; print([m for m in ('pyspark', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    assert done.stdout.strip() == "[]"


# Configuration.


def test_config_check_says_what_holds_and_where_it_comes_from() -> None:
    Path("p.yaml").write_text("task:\n  commit.ms: 5s\nstores.aircraft.object.cache.size: 9\n")
    values = call_json("config", "check", "--config", "p.yaml", "-c", "spark.hadoop.fs.s3a.secret.key=abc")
    found = {each["key"]: (each["value"], each["origin"]) for each in values}
    assert found["task.commit.ms"] == ("5000", "p.yaml:2")
    assert found["stores.aircraft.object.cache.size"] == ("9", "p.yaml:3")
    assert found["job.id"] == ("1", "default")
    assert found["job.name"] == (None, "the application's name")
    assert found["systems.local.type"] == ("local", "default")
    assert found["spark.hadoop.fs.s3a.secret.key"] == ("(hidden)", "-c")
    assert "p.yaml:2" in call("config", "check", "--config", "p.yaml")[0]


def test_config_check_reports_every_mistake() -> None:
    out, error = call("config", "check", "-c", "job.nme=x", "-c", "task.commit.ms=fast", status=2)
    assert not out
    assert "did you mean `job.name`" in error
    assert "`task.commit.ms` = `fast`" in error


@pytest.mark.usefixtures("imports")
def test_config_check_with_an_application() -> None:
    Path("flights.py").write_text(
        APPLICATION + 'app = ps.TaskApplication("flights", ps.StreamTask)\n'
        'app.input("local.flights")\napp.store("aircraft")\napp.output("far.out")\n'
    )
    error = call("config", "check", "flights.py:app", "-c", "stores.planes.object.cache.size=1", status=2)[1]
    assert "system `far`" in error
    assert "`stores.planes.*` is configured, but the application has the stores: `aircraft`" in error
    values = call_json(
        "config",
        "check",
        "flights.py:app",
        "-c",
        "systems.far.type=memory",
        "-c",
        "stores.rocksdb.block.cache.bytes=1MB",
    )
    found = {each["key"]: (each["value"], each["origin"]) for each in values}
    assert found["job.name"] == ("flights", "the application's name")
    cache = found["stores.aircraft.rocksdb.block.cache.bytes"]
    assert cache == ("1048576", "-c, as `stores.rocksdb.block.cache.bytes`")


def test_config_keys_lists_every_key() -> None:
    assert [each["key"] for each in call_json("config", "keys")] == [key.name for key in describe()]
    assert "task.commit.ms" in call("config", "keys")[0]


# Jobs: checkpoints and status.


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
    assert not home.exists(), "looking must not create anything"


@pytest.mark.usefixtures("log")
def test_status_of_a_job_that_does_not_run() -> None:
    published(20, partitions=2)
    facts = call_json("status", "flights")
    assert (facts["job"], facts["status"], facts["holder"]) == ("flights-1", "not running", None)
    assert (facts["runId"], facts["epoch"], facts["checkpoints"]) == ("run-a", 1, 2)
    assert facts["lastCheckpoint"]["ended"] == "stopped"
    (stream,) = facts["inputs"]
    assert stream["problem"] is None
    assert stream["lag"] == 20 - 3 - 4
    assert [(part["nextOffset"], part["upcoming"] - part["lag"]) for part in stream["partitions"]] == [(3, 3), (4, 4)]
    text, warnings = call("status", "flights")
    assert "not running: no driver has the lease" in text
    assert "total" in text
    assert not warnings


@pytest.mark.usefixtures("log")
def test_status_where_the_streams_cannot_be_looked_at() -> None:
    facts = call_json("status", "flights")
    assert "does not exist" in facts["inputs"][0]["problem"]
    assert facts["inputs"][0]["lag"] is None
    assert "warning: stream `local.flights`" in call("status", "flights")[1]
    published(20, partitions=3)
    assert "3 partitions now" in call_json("status", "flights")["inputs"][0]["problem"]


def test_a_stream_that_ends_before_the_position_has_no_lag() -> None:
    from penstock.api.ssp import SystemStream
    from penstock.system.base import PartitionOffsets

    found = input_status(SystemStream("local", "s"), {0: 9}, {0: PartitionOffsets(0, 4)}, None)
    assert (found.lag, found.partitions[0].upcoming) == (None, 4)


def put_lease(objects: FileObjectStore, **changes: Any) -> None:
    state = replace(LeaseState(ELSEWHERE, lease_ms=400, token="t"), **changes)
    objects.put_if_absent(PATHS.lease, state.encode())


def test_status_of_a_job_that_only_has_a_lease(objects: FileObjectStore) -> None:
    put_lease(objects, lease_ms=3_600_000)
    facts = call_json("status", "flights", "--no-wait")
    assert facts["status"] == "held, not verified"
    assert facts["holder"]["host"] == "elsewhere"
    assert "held, not verified" in call("status", "flights", "--no-wait")[0]


def test_a_lease_that_is_not_renewed_is_not_a_running_job(objects: FileObjectStore) -> None:
    put_lease(objects)
    facts = call_json("status", "flights")
    assert (facts["status"], facts["reason"]) == ("not running", "the lease was not renewed for 0.4 s")


def test_a_released_lease_is_seen_at_once(objects: FileObjectStore) -> None:
    put_lease(objects, lease_ms=3_600_000, released=True)
    facts = call_json("status", "flights")
    assert (facts["status"], facts["reason"]) == ("not running", "its last run released the lease")


@pytest.mark.usefixtures("log")
def test_a_job_whose_lease_is_renewed_runs(objects: FileObjectStore) -> None:
    lease = acquire(objects, PATHS, LeaseHolder.of_this_process("run-a"), 900, time.monotonic() + DEADLINE_S)
    keeper = LeaseKeeper(lease)
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


# Applications and runs, without Spark.


@pytest.mark.usefixtures("imports")
def test_an_application_from_a_file_or_a_module() -> None:
    Path("flights.py").write_text(APPLICATION)
    for reference in ("flights.py:app", "flights.py:build", "flights:app", "flights:build"):
        assert load_application(reference).app.name == "flights"
    loaded = load_application("flights.py:app")
    assert [module.__name__ for module in loaded.local_modules if module.__name__.startswith("penstock")] == [
        "penstock_app_flights"
    ]


@pytest.mark.usefixtures("imports")
@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("flights.py", "module:object"),
        ("flights.py:no", "applications there: `app`"),
        ("flights.py:number", "is a int, not an application"),
        ("flights.py:dict", "there is no `dict`"),
        ("no_such_module:app", "no module `no_such_module`"),
    ],
)
def test_what_is_no_application(reference: str, problem: str) -> None:
    Path("flights.py").write_text(APPLICATION)
    with pytest.raises(ConfigError, match=problem):
        load_application(reference)


@pytest.mark.usefixtures("imports")
def test_what_the_users_module_raises_is_told_with_the_users_traceback() -> None:
    Path("flights.py").write_text(APPLICATION)
    with pytest.raises(NotFoundError, match="no file"):
        load_application("no.py:app")
    with pytest.raises(ApplicationLoadError) as raised:
        load_application("flights.py:broken")
    assert "no application today" in raised.value.user_traceback
    assert "cli/application.py" not in raised.value.user_traceback
    Path("bad.py").write_text("x = (")
    error = call("run", "bad.py:app", status=2)[1]
    assert error.index("SyntaxError") < error.index("error: `bad.py:app` could not be loaded")


def test_functions_of_a_file_and_its_neighbours_run_where_the_files_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "helper.py").write_text("def twice(x):\n    return 2 * x\n")
    (folder / "job.py").write_text(
        "import penstock as ps\nfrom helper import twice\napp = ps.StreamApplication('job')\n"
        "def work(x):\n    return twice(x) + 1\n"
    )
    pickling = (
        "import sys\nfrom penstock.cli.application import load_application\nfrom pyspark import cloudpickle\n"
        "load_application('project/job.py:app').ship_by_value()\n"
        "sys.stdout.buffer.write(cloudpickle.dumps(sys.modules['penstock_app_job'].work))"
    )
    done = subprocess.run([sys.executable, "-c", pickling], capture_output=True, check=True, timeout=DEADLINE_S)
    calling = "import pickle, sys\nprint(pickle.load(sys.stdin.buffer)(20))"
    called = subprocess.run(
        [sys.executable, "-c", calling], input=done.stdout, capture_output=True, cwd="/", check=True, timeout=DEADLINE_S
    )
    assert called.stdout.strip() == b"41"


@pytest.mark.usefixtures("imports")
def test_a_run_that_cannot_start() -> None:
    Path("flights.py").write_text(APPLICATION)
    assert "did you mean `task.commit.ms`" in call("run", "flights.py:app", "-c", "task.comit.ms=1", status=2)[1]
    assert "penstock stream create" in call("run", "flights.py:app", status=1)[1]
    call("run", "flights.py:app", "--until", "tomorrow", status=2)


def test_a_traceback_only_with_debug() -> None:
    plain = call("status", "no", status=1)[1]
    asked = call("--debug", "status", "no", status=1)[1]
    assert "Traceback" not in plain
    assert asked.startswith("Traceback")
    assert asked.endswith(plain)
    assert "Traceback" not in call("status", "no", status=1)[1]


def progress(batch: int, rows: int) -> JobProgress:
    return JobProgress(
        id="u",
        run_id="r",
        name="flights-1",
        timestamp="",
        batch_id=batch,
        num_input_rows=10,
        num_output_rows=0,
        dead_letters=0,
        processed_rows_per_second=1234.5,
        duration_ms={},
        sources=(),
        total_input_rows=rows,
        last_checkpoint=None,
        container_bytes=0,
    )


def test_a_run_with_an_end_shows_how_much_is_left() -> None:
    board = ProgressBoard()
    observer = RunObserver(Job("flights-1", "r", board, StopRequest()))
    board.update(phase="restoring", restored_bytes=3 << 20)
    assert str(observer.look()) == "restoring (3.0 MB), 0 messages"
    board.update(phase="running", last=progress(1, 10), remaining=20, last_checkpoint="5-1")
    assert str(observer.look()) == "running, 10 of 30 messages, 1,234/s, batch 1, checkpoint 5-1"
    board.update(last=progress(2, 20))  # seen before `remaining` follows
    assert observer.look().total == 30
    board.update(remaining=10)
    assert observer.look().done == 20
    board.update(last=progress(2, 30), remaining=10)  # read again after a rewind
    assert (observer.look().done, observer.look().total) == (20, 30)


def test_a_run_without_an_end_counts() -> None:
    board = ProgressBoard()
    board.update(phase="running", last=progress(3, 30))
    view = RunObserver(Job("flights-1", "r", board, StopRequest())).look()
    assert (view.done, view.total, view.messages_text) == (30, None, "30 messages")


def test_signals_are_counted_and_then_left_to_python() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopSignals() as signals:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signals.count_only()
        signal.raise_signal(signal.SIGTERM)
        assert signals.count == 1
        signal.raise_signal(signal.SIGINT)
        assert signals.count == 2
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
