"""`penstock stream replay`: dead letters of a job go back to its input once, and the corrected job counts them."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.admin.stream import replay
from penstock.api.ssp import SystemStreamPartition
from penstock.config.load import load_config
from penstock.errors import FailedMessage
from penstock.objects.file import FileObjectStore
from penstock.runtime.messages.stored import encode_dead_letter
from penstock.system.base import OffsetRange
from penstock.system.contract.writer import AppendedAtCommit
from penstock.system.local import LocalSystem
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.cli import call, call_json, own_home
from tests.support.world.timed_job import steps

TASKS = 2
BINARY = b"\xff\x00binary"


class Count(ps.StreamTask):
    """Counts the messages of each key; fails at what is bad, once it has counted it."""

    fails = True

    def init(self, context: Any) -> None:
        self.counts = context.store("counts")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        count = (self.counts.get(envelope.key) or 0) + 1
        self.counts.put(envelope.key, count)
        collector.emit(key=envelope.key, value=count)
        if self.fails and envelope.value[0] == "bad":
            raise ValueError("bad")


def checked(value: bytes) -> bytes:
    if Count.fails and value == BINARY:
        raise ValueError("binary")
    return value


def halves(envelope: Any) -> list[Any]:
    """Two messages of each: one that fails leaves two dead letters, of two tasks."""
    text = envelope.value.decode("latin-1")
    return [[text, f"{envelope.key.decode()}-{half}"] for half in range(4)]


def application() -> ps.StreamApplication:
    app = ps.StreamApplication("counts")
    app.store("counts", key=ps.String(), value=ps.Integer())
    source = app.input("local.in", key=ps.Bytes(), value=ps.Bytes()).map(checked)
    counted = source.flat_map(halves, envelope=True).partition_by(lambda half: half[1], key=ps.String(), id="by-key")
    counted.process(Count, stores=["counts"], id="count").send_to(app.output("local.out"))
    return app


class Home:
    """The job, on drivers of this process; its streams are those of the commands."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.system = LocalSystem("local", str(home / "streams"))
        for stream in ("in", "dead", "other", "out"):
            self.system.admin().create_stream(stream, TASKS)
        self.given: list[tuple[Any, ...]] = []
        """Partition, timestamp, key and value, and the headers of every second one."""

    def put(self, *values: bytes) -> None:
        with closing(self.system.writer(None)) as writer:
            for value in values:
                n = len(self.given)
                headers = ((("n", b"%d" % n),),) if n % 2 else ()
                record: Any = (1_700_000_000_000 + n, b"k%d" % (n % 3), value, *headers)
                writer.append(SystemStreamPartition("local", "in", n % TASKS), [record])
                self.given.append((n % TASKS, *record))

    def run(self, *, fails: bool) -> None:
        Count.fails = fails
        overrides = {
            "job.name": "counts",
            "job.root": str(self.home / "jobs"),
            "job.logged.store.base.dir": str(self.home),
            "task.dead.letter.stream": "local.dead",
            "job.batch.target.ms": 0,
            "job.batch.interval.ms": 1,
            "stores.counts.factory": "memory",
        }
        graph = application().graph()
        config = load_config(overrides=overrides, stores=["counts"], environ={})
        objects = FileObjectStore(self.home / "jobs")
        with closing(InProcessDriver(graph, config, objects, {"local": self.system})) as driver:
            driver.loop.start()
            steps(driver)
            driver.loop.finish()

    def messages(self, stream: str) -> list[tuple[Any, ...]]:
        """Partition, timestamp, key and value of each, and its headers if it has some."""
        found: list[tuple[Any, ...]] = []
        with closing(self.system.admin()) as admin, closing(self.system.reader()) as reader:
            for partition, ends in admin.offsets(stream).items():
                ssp = SystemStreamPartition("local", stream, partition)
                for chunk in reader.read(OffsetRange(ssp, ends.oldest, ends.upcoming), 100):
                    found += [(partition, *message[1:]) for message in chunk]
        return found

    @property
    def counts(self) -> dict[str, int]:
        """The last count of each key."""
        return {
            (key or b"").decode(): max(json.loads(v or b"") for _, _, k, v, *_ in self.messages("out") if k == key)
            for _, _, key, *_ in self.messages("out")
        }

    @property
    def expected(self) -> dict[str, int]:
        """The oracle: every message counts once."""
        keys = Counter(key.decode() for _, _, key, *_ in self.given)
        return {f"{key}-{half}": count for key, count in keys.items() for half in range(4)}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(own_home(tmp_path, monkeypatch))
    home.put(b"good", BINARY, b"bad", b"bad", BINARY, b"good", b"bad")
    home.run(fails=True)
    return home


BAD = 5
"""Messages that fail, at first."""


def test_every_message_is_put_back_once_and_counts_once(home: Home) -> None:
    """With its key, value, timestamp and partition; also what failed behind a `partition_by`, in four letters each."""
    assert len(home.messages("dead")) == 2 + 3 * 4
    out, _ = call("stream", "replay", "dead")
    assert out == f"put {BAD} messages of `local.dead` back to `local.in`\n"
    failed = [each for each in home.given if each[3] != b"good"]
    assert Counter(home.messages("in")) == Counter(home.given) + Counter(failed)
    again, said = call("stream", "replay", "dead")
    assert "nothing of `local.dead` to put back" in again
    assert "had been handled by an earlier replay" in said
    assert len(home.messages("in")) == len(home.given) + BAD
    home.run(fails=False)
    assert home.counts == home.expected


def test_a_replay_that_dies_continues(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies between two appends; new dead letters come before it is started again."""
    monkeypatch.setattr(replay, "_CHUNK", 3)
    commit, commits = AppendedAtCommit.commit, iter(range(100))

    def dying(transaction: AppendedAtCommit) -> None:
        if next(commits) == 2:
            raise OSError("the process died here")
        commit(transaction)

    with monkeypatch.context() as patched:
        patched.setattr(AppendedAtCommit, "commit", dying)
        call("stream", "replay", "dead", status=1)
    assert len(home.given) < len(home.messages("in")) < len(home.given) + BAD
    home.put(b"bad")
    first = len(home.messages("in")) - len(home.given)
    done = call_json("stream", "replay", "dead")
    assert (first + sum(done["messages"].values()), done["refused"]) == (BAD, 0)
    home.run(fails=False)
    assert home.counts == home.expected


def test_another_stream(home: Home) -> None:
    done = call_json("stream", "replay", "dead", "--to", "other")
    assert done["messages"] == {"local.other": BAD}
    assert Counter(home.messages("other")) == Counter(each for each in home.given if each[3] != b"good")
    assert len(home.messages("in")) == len(home.given)
    call("stream", "create", "small", "--partitions", "1")
    _, error = call("stream", "replay", "dead", "--to", "small", status=1)
    assert "`local.small` has no partition 1" in error
    assert "does not exist" in call("stream", "replay", "dead", "--to", "nowhere", status=1)[1]


def test_what_cannot_be_put_back_is_said_and_the_rest_is(home: Home) -> None:
    timer = FailedMessage("none.none", 1, -2, "k", "count", "ValueError: no", "")
    old = json.dumps({"stream": "local.in", "partition": 0, "offset": 1, "operator": "count", "value": "00"}).encode()
    with closing(home.system.writer(None)) as writer:
        letters = [encode_dead_letter(timer, b"k", None, repartitioned=True, fired={"name": "n"}), old, b"text"]
        writer.append(SystemStreamPartition("local", "dead", 0), [(7, b"k", each) for each in letters])
    _, error = call("stream", "replay", "dead", status=1)
    said = " ".join(error.split())
    assert "3 dead letters cannot be put back" in said
    assert "no input message led to it: operator `count` failed at a timer" in said
    assert said.count("it is not a dead letter of this version of Penstock") == 2
    assert len(home.messages("in")) == len(home.given) + BAD


def test_what_is_gone_from_the_input_is_said(home: Home) -> None:
    """Behind a `partition_by`, the dead letter does not have the message itself."""
    with closing(home.system.admin()) as admin:
        admin.delete_stream("in")
        admin.create_stream("in", TASKS)
    given, home.given = home.given, []
    home.put(*[b"of another input"] * len(given))
    _, error = call("stream", "replay", "dead", status=1)
    assert "12 dead letters cannot be put back" in error
    assert "`local.in` was deleted and created again" in error
    assert Counter(each[3] for each in home.messages("in")) == {BINARY: 2, b"of another input": len(given)}


def test_a_dead_letter_has_text_where_the_bytes_are_text(home: Home) -> None:
    letters = [json.loads(each[3] or b"") for each in home.messages("dead")]
    binary = [each for each in letters if not each["repartitioned"]]
    assert [(each["key"], bytes.fromhex(each["valueHex"])) for each in binary] == [("k1", BINARY)] * 2
    assert all(json.loads(each["value"])[0] == "bad" for each in letters if each["repartitioned"])


def test_the_stream_of_a_job_alone_takes_none(home: Home) -> None:
    with closing(home.system.admin()) as admin:
        admin.own("other", "job counts, changelog of store `counts`")
    _, error = call("stream", "replay", "dead", "--to", "other", status=2)
    assert "that only its owner writes" in error


@pytest.mark.parametrize("schema", [(), ("-c", "systems.lake.schema=n BIGINT")])
def test_an_input_that_others_write_takes_none(home: Home, tmp_path: Path, schema: tuple[str, ...]) -> None:
    """Nothing is written to its folder: it stays the input that it was. The letters go to another stream."""
    (folder := tmp_path / "lake" / "rides").mkdir(parents=True)
    (folder / "hour-0.csv").write_bytes(b"n\n1\n")
    lake = ("-c", "systems.lake.samza.factory=files", "-c", f"systems.lake.folder={tmp_path / 'lake'}")
    failed = FailedMessage("lake.rides", 0, 0, "k", "count", "ValueError: no", "")
    call("stream", "create", "letters", "--partitions", "1")
    with closing(home.system.writer(None)) as writer:
        letter = encode_dead_letter(failed, None, b'{"n":1}', repartitioned=False)
        writer.append(SystemStreamPartition("local", "letters", 0), [(7, None, letter)])
    error = " ".join(call("stream", "replay", "letters", *lake, *schema, status=2)[1].split())
    assert ("Penstock cannot write to `lake.rides`" if schema else "need a schema") in error
    if schema:
        assert "--to STREAM" in error
    assert [each.name for each in folder.rglob("*")] == ["hour-0.csv"]
    done = call_json("stream", "replay", "letters", "--to", "local.other", *lake)
    assert done["messages"] == {"local.other": 1}
