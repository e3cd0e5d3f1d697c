"""`penstock stream`: what it prints, where, and its exit status, over real streams on disk."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.admin.stream.found import open_stream
from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import printable
from penstock.job.identity import owner_of_intermediates
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem
from tests.support.processes.python import run_python
from tests.support.tools.cli import call, call_json, command, published

DEADLINE_S = 60.0
pytestmark = pytest.mark.usefixtures("home")


def test_create_is_idempotent_but_never_changes_the_partitions() -> None:
    assert "created `local.flights` with 4 partitions" in call("stream", "create", "flights", "--partitions", "4")[0]
    assert "exists" in call("stream", "create", "local.flights", "--partitions", "4")[0]
    error = call("stream", "create", "flights", "--partitions", "5", status=1)[1]
    assert error.startswith("error: ")
    assert "4" in error
    call("stream", "create", "flights", status=2)
    call("stream", "create", "flights", "--partitions", "0", status=2)


def test_a_stream_ends_until_something_is_published() -> None:
    published()
    assert call("stream", "end", "flights")[0] == "`local.flights` has ended, until a message is published to it\n"
    assert all(part["ended"] for part in call_json("stream", "describe", "flights")["partitions"])
    Path("more.jsonl").write_text('{"n": 1}\n')
    call("stream", "publish", "flights", "--file", "more.jsonl")
    ended = [part["ended"] for part in call_json("stream", "describe", "flights")["partitions"]]
    assert sorted(ended) == [False, True, True, True]
    assert "nowhere" in call("stream", "end", "nowhere", status=1)[1]


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


def test_publish_a_plain_value_under_a_key() -> None:
    records = [{"code": "UA", "name": "United Airlines"}, {"code": "B6", "name": 5}, {"code": "UA", "name": None}]
    Path("in.jsonl").write_text("\n".join(map(json.dumps, records)))
    call("stream", "create", "airlines", "--partitions", "1")
    call("stream", "publish", "airlines", "--file", "in.jsonl", "--key", "code", "--value", "name")
    with closing(open_stream("airlines").system.reader()) as reader:
        ssp = SystemStreamPartition("local", "airlines", 0)
        found = [message for chunk in reader.read(OffsetRange(ssp, 0, 3), 10) for message in chunk]
    assert [each[2:] for each in found] == [(b"UA", b"United Airlines"), (b"B6", b"5"), (b"UA", None)]
    assert (
        "the record has no field 'nam'"
        in call("stream", "publish", "airlines", "--file", "in.jsonl", "--value", "nam", status=1)[1]
    )


def test_headers_in_and_out() -> None:
    records = [{"n": 1, "h": {"trace": "7f", "none": None}}, {"n": 2, "h": None}, {"n": 3, "h": {"tab": "\t"}}]
    Path("in.jsonl").write_text("\n".join(map(json.dumps, records)))
    call("stream", "create", "s", "--partitions", "1")
    call("stream", "publish", "s", "--file", "in.jsonl", "--value", "n", "--headers", "h")
    found = [json.loads(line).get("headers") for line in call("stream", "tail", "s", "--json")[0].splitlines()]
    assert found == [
        [{"name": "trace", "value": "7f"}, {"name": "none", "value": None}],
        None,
        [{"name": "tab", "value": "\t"}],
    ]
    shown = [line.split("\t")[3:] for line in call("stream", "tail", "s")[0].splitlines()]
    assert shown == [["1", "trace=7f", "none=-"], ["2"], ["3", "tab=\\t"]]
    Path("in.jsonl").write_text('{"n": 1, "h": ["trace"]}\n')
    assert (
        "line 1: the headers field 'h' is not an object"
        in call("stream", "publish", "s", "--file", "in.jsonl", "--headers", "h", status=1)[1]
    )


def test_publish_names_the_line_that_is_wrong() -> None:
    Path("in.jsonl").write_text('{"n": 1}\n[2]\n')
    call("stream", "create", "s", "--partitions", "1")
    out, error = call("stream", "publish", "s", "--file", "in.jsonl", status=1)
    assert not out
    assert "line 2" in error
    assert "published" not in error
    assert "there is no file" in call("stream", "publish", "s", "--file", "no.jsonl", status=1)[1]


@pytest.mark.parametrize("arguments", [("describe", "no"), ("publish", "no", "--file", "in.jsonl")])
def test_a_stream_that_is_not_there(arguments: tuple[str, ...]) -> None:
    Path("in.jsonl").write_text("{}\n")
    out, error = call("stream", *arguments, status=1)
    assert not out
    assert error.startswith("error: ")
    assert "penstock stream create" in error


@pytest.mark.parametrize("arguments", [("tail", "no"), ("delete", "no", "--yes")])
def test_a_stream_to_look_at_is_not_created(arguments: tuple[str, ...]) -> None:
    error = call("stream", *arguments, status=1)[1]
    assert error == "error: the stream `local.no` does not exist; `penstock stream list local` lists those that do\n"


def test_a_dot_in_a_name_without_a_system() -> None:
    error = call("stream", "describe", "my.stream", status=2)[1]
    assert "there is no system `my`" in error
    assert "local.my.stream" in error


def test_a_system_of_the_configuration() -> None:
    Path("p.yaml").write_text("systems: {other: {samza.factory: local, path: elsewhere}}\n")
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


INTERRUPTIBLE = """
import signal, sys
from penstock.cli.main import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
main()
"""


def test_tail_shows_what_an_intermediate_stream_has_without_the_byte_that_says_what_it_is() -> None:
    call("stream", "create", "flights", "--partitions", "1")
    system = LocalSystem("local", str(Path("home/streams").resolve()))
    system.admin().own("flights", owner_of_intermediates("totals-1", "77"))
    serde = ps.IntermediateMessageSerde(ps.Json())
    values = [serde.to_bytes([1]), serde.to_bytes(ps.WatermarkMessage(5)), b"\x07", None]
    system.writer(None).append(SystemStreamPartition("local", "flights", 0), [(0, None, value) for value in values])
    shown = [line.split("\t")[3] for line in call("stream", "tail", "flights")[0].splitlines()]
    assert shown == ["[1]", 'WATERMARK {"version":1,"task-name":null,"timestamp":5}', "0x07", "-"]
    types = [(each.get("type"), each.get("value"), each.get("valueHex")) for each in tailed()]
    assert types[0] == ("USER_MESSAGE", "[1]", None)
    assert types[1] == ("WATERMARK", '{"version":1,"task-name":null,"timestamp":5}', None)
    assert types[2:] == [(None, None, "07"), (None, None, None)]


def test_tail_follows_what_is_appended_until_it_is_interrupted() -> None:
    published(1, partitions=2)
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "stream", "tail", "flights", "--follow", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            lines = lines_of(process)
            assert json.loads(lines.get(timeout=DEADLINE_S))["key"] == "k0"
            call("stream", "publish", "flights", "--file", "in.jsonl", "--key", "n")
            assert json.loads(lines.get(timeout=DEADLINE_S))["key"] == "0"
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_tail_waits_for_a_stream_that_it_follows() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "stream", "tail", "flights", "--follow", "-n", "1", "--from-beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("waiting for the stream: the stream `local.flights` does not")
            published(1, partitions=2)
            assert "k0" in lines_of(process).get(timeout=DEADLINE_S)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


def test_looking_at_streams_loads_neither_spark_nor_arrow() -> None:
    code = "import sys, penstock.cli.main; print([m for m in ('pyspark', 'pyarrow') if m in sys.modules])"
    done = run_python("-c", code)
    assert done.stdout.strip() == "[]"


def test_the_configuration_may_come_from_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text("systems.other.samza.factory: local\n", encoding="utf-8")
    monkeypatch.setenv("PENSTOCK_CONFIG", str(tmp_path / "job.yaml"))
    out, _ = call("stream", "create", "other.orders", "--partitions", "1")
    assert "created `other.orders`" in out
    monkeypatch.delenv("PENSTOCK_CONFIG")
    _, err = call("stream", "create", "other.rest", "--partitions", "1", status=2)
    assert "no system `other`" in err


MB = 1 << 20


def limits(name: str) -> tuple[int | None, int | None]:
    facts = call_json("stream", "describe", name)
    listed = next(each for each in call_json("stream", "list") if each["stream"] == f"local.{name}")
    assert (listed["retentionMs"], listed["retentionBytes"]) == (facts["retentionMs"], facts["retentionBytes"])
    return facts["retentionMs"], facts["retentionBytes"]


def test_create_with_limits() -> None:
    command = ("stream", "create", "s", "--partitions", "2", "--retention", "7d", "--retention-bytes", "10GB")
    assert "created" in call(*command)[0]
    assert "exists" in call(*command)[0]
    assert limits("s") == (7 * 86_400_000, 10 << 30)
    assert "7d, 10GB per partition" in call("stream", "describe", "s")[0]
    assert "7d, 10GB per partition" in call("stream", "list")[0]
    error = call("stream", "create", "s", "--partitions", "2", "--retention", "8d", status=1)[1]
    assert "penstock stream retain local.s" in error
    assert "exists" in call("stream", "create", "s", "--partitions", "2")[0]
    call("stream", "create", "forever", "--partitions", "2")
    assert limits("forever") == (None, None)
    assert "forever" in call("stream", "describe", "forever")[0]


def test_each_limit_is_changed_by_itself(home: Path) -> None:
    call("stream", "create", "s", "--partitions", "1")
    writer = LocalSystem("local", str(home / "streams")).writer(None)
    writer.append(SystemStreamPartition("local", "s", 0), [(0, None, bytes(MB))] * 4)
    assert "--yes" in call("stream", "retain", "s", "--retention", "12h", status=2)[1]
    assert limits("s") == (None, None)
    assert "keeps its messages: 12h; 0 were deleted" in call("stream", "retain", "s", "--retention", "12h", "--yes")[0]
    assert call_json("stream", "retain", "local.s", "--retention-bytes", "3MB", "--yes") == {
        "stream": "local.s",
        "retentionMs": 12 * 3_600_000,
        "retentionBytes": 3 * MB,
        "deleted": 2,
    }
    assert limits("s") == (12 * 3_600_000, 3 * MB)
    assert call_json("stream", "describe", "s")["messages"] == 2
    assert "0 were deleted" in call("stream", "retain", "s", "--retention", "12h")[0]  # it has it: no question
    call("stream", "retain", "s", "--retention", "none", "--retention-bytes", "none")
    assert limits("s") == (None, None)


def test_what_is_refused() -> None:
    call("stream", "create", "s", "--partitions", "1")
    assert "--retention" in call("stream", "retain", "s", status=2)[1]
    assert "unknown unit `weeks`" in call("stream", "retain", "s", "--retention", "2weeks", status=2)[1]
    assert "at least 1048576" in call("stream", "retain", "s", "--retention-bytes", "1KB", status=2)[1]
    assert "penstock stream create local.no" in call("stream", "retain", "no", "--retention", "1d", status=1)[1]
