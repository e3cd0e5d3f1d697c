"""`penstock state get`, `scan` and `diff` of state that real backends committed, against plain dicts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from penstock.api.serdes import Bytes, Double, Integer, Json, Long, String, Tuple
from penstock.checkpoint.record import CheckpointRecord
from penstock.cli.main import app
from penstock.graph.event_time import DELETED, VersionKey, VersionValue
from penstock.graph.stores import StoreSpec, TimeToLive
from penstock.state.engines.memory import MemoryEngine
from penstock.state.stores.build import build_store
from penstock.system.partitioner import partition_of
from tests.support.stores.state_job import JOB, Changes, StateJob
from tests.support.tools.fixtures import fixture_of

TASKS = 3
BACKENDS = ("changelog-files", "blob", "changelog-stream")
APPLICATION = """
import penstock as ps

class Town(ps.Serde):
    name = "flights.town"
    def to_bytes(self, obj):
        return obj.encode("utf-16-be")
    def from_bytes(self, data):
        return data.decode("utf-16-be")

class Place:
    def __init__(self, name):
        self.name = name
    def __repr__(self):
        return f"<Place {self.name}>"

class PlaceSerde(ps.Serde):
    name = "flights.place"
    def to_bytes(self, obj):
        return obj.name.encode()
    def from_bytes(self, data):
        if data == b"broken":
            raise ValueError("no place of that name")
        return Place(data.decode())

app = ps.StreamApplication("contract")
app.input("local.in")
app.store("first", key=Town(), value=PlaceSerde())
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def call(*arguments: str, status: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, ("state", *arguments))
    assert result.exit_code == status, result.output + repr(result.exception)
    assert "Traceback" not in result.stderr
    return result.stdout, result.stderr


def lines(command: str, *arguments: str) -> list[dict[str, Any]]:
    out = call(command, "--json", *arguments)[0]
    assert not out or out.endswith("\n")
    return [json.loads(line) for line in out.split("\n")[:-1]]


def data(fields: dict[str, Any], name: str) -> bytes:
    """The bytes of a field of the store `first`, whose values are JSON and whose keys are text."""
    if f"{name}Hex" in fields:
        return bytes.fromhex(fields[f"{name}Hex"])
    return fields[name].encode() if name == "key" else orjson.dumps(fields[name])


def entries(found: list[dict[str, Any]]) -> list[tuple[tuple[bytes, int], bytes]]:
    return [((data(each, "key"), each["task"]), data(each, "value")) for each in found]


def seeded(seed: int, number: int = 120, keys: int = 60) -> dict[int, Changes]:
    """Changes of all tasks: keys lie in the task that owns them."""
    chance = random.Random(seed)
    found: dict[int, dict[bytes, bytes | None]] = {task: {} for task in range(TASKS)}
    for _ in range(number):
        key = b"k%d" % chance.randrange(keys)
        value = None if chance.random() < 0.3 else orjson.dumps({"n": chance.randrange(10), "of": seed})
        found[partition_of(key, TASKS)][key] = value
    return dict(found)


job = fixture_of(
    lambda home, param: StateJob(home, backends=BACKENDS if param == "all" else (param,)),
    params=[*(pytest.param(name, marks=pytest.mark.slow) for name in BACKENDS), "all"],
)


files = fixture_of(StateJob, using=("home",))
"""One backend, which is quick."""


# Every version of every backend holds what it should.


def test_every_version_is_scanned_and_diffed_as_the_dicts_say(job: StateJob, tmp_path: Path) -> None:
    records = [job.commit(seeded(seed)) for seed in range(4)]
    for record in records:
        for backend in job.harnesses:
            found = lines("scan", JOB, "first", "--version", str(record.id), "--backend", backend)
            assert entries(found) == list(job.expected(record).items())
    for before in records:
        for after in records:
            check_diff(job, before, after)
    assert not list(tmp_path.glob("penstock-read-*")), "the scratch folder is removed"


def check_diff(job: StateJob, before: CheckpointRecord, after: CheckpointRecord, *options: str) -> None:
    *found, last = lines("diff", JOB, "first", "--from", str(before.id), "--to", str(after.id), *options)
    old, new = job.expected(before), job.expected(after)
    expected = [place for place in sorted(old | new) if old.get(place) != new.get(place)]
    assert [(data(each, "key"), each["task"]) for each in found] == expected
    for each, place in zip(found, expected, strict=True):
        assert each["change"] == ("added" if place not in old else "changed" if place in new else "removed")
        assert ("from" in each, "to" in each) == (place in old, place in new)
        for name, values in (("from", old), ("to", new)):
            if name in each:
                assert data(each, name) == values[place]
    changes = [each["change"] for each in found]
    assert last == {
        "counts": {change: changes.count(change) for change in ("added", "removed", "changed")},
        "from": str(before.id),
        "to": str(after.id),
    }


def test_get_finds_every_key_and_no_other(files: StateJob) -> None:
    first, last = files.commit(seeded(1)), files.commit(seeded(2))
    for record in (first, last):
        expected = files.expected(record)
        for key in ("k0", "k7", "k33", "k59"):
            place = (key.encode(), partition_of(key.encode(), TASKS))
            options = (JOB, "first", key, "--version", str(record.id))
            if place not in expected:
                out, error = call("get", *options, status=1)
                assert not out
                assert f"there is no key `{key}` in store `first` of any task at checkpoint {record.id}" in error
                continue
            (found,) = lines("get", *options)
            assert entries([found]) == [(place, expected[place])]
            assert (found["checkpoint"], found["backend"]) == (str(record.id), "changelog-files")
            out, error = call("get", *options)
            assert json.loads(out) == json.loads(expected[place])
            assert f"task {place[1]}, checkpoint {record.id} (batch {record.batch}), restored from changelog-" in error


def test_keys_and_values_of_every_size(job: StateJob) -> None:
    """Empty, binary, 64 KB, 1 MB; one changes to a value of the same length."""
    big, bigger = b"K" * 65536, orjson.dumps("v" * (1 << 20))
    odd: Changes = {b"": b'""', b"\x00\xff": b"0", big: b"[]", b"big": bigger, b"zero": b"null", b"raw": b"\xff{"}
    first = job.commit({0: odd, 1: {b"": b"1"}})
    second = job.commit({0: {b"big": bigger[:-2] + b'w"', b"": None, b"\x00\xff": b"1"}})
    for record in (first, second):
        found = lines("scan", JOB, "first", "--version", str(record.id))
        assert entries(found) == list(job.expected(record).items())
    check_diff(job, first, second)
    for key, value in odd.items():
        found = lines("get", JOB, "first", "--hex", key.hex(), "--version", str(first.id), "--task", "0")
        assert entries(found) == [((key, 0), value)]
    assert call("get", JOB, "first", "big", "--version", str(first.id))[0].encode() == bigger + b"\n"
    table = call("scan", JOB, "first", "--version", str(first.id))[0]
    assert "(64.0 KB)" in table
    assert "(1.0 MB)" in table
    assert len(table) < 10_000


# Which task.


def test_a_key_outside_of_its_own_task_is_found_and_the_task_is_said(files: StateJob) -> None:
    owner = partition_of(b"k", TASKS)
    others = [task for task in range(TASKS) if task != owner]
    files.commit({task: {b"k": b"%d" % task} for task in others})
    found = lines("get", JOB, "first", "k")
    assert [(each["task"], each["value"]) for each in found] == [(task, task) for task in others]
    out, error = call("get", JOB, "first", "k")
    assert out == "".join(f"{task}\n" for task in others)
    assert all(f"task {task}, checkpoint" in error for task in others)
    (one,) = lines("get", JOB, "first", "k", "--task", str(others[1]))
    assert one["task"] == others[1]
    assert f"store `first` of task {owner} " in call("get", JOB, "first", "k", "--task", str(owner), status=1)[1]
    files.commit({owner: {b"k": b"9"}})
    assert [each["task"] for each in lines("get", JOB, "first", "k")] == [owner], "the owner is asked first"
    assert [each["task"] for each in lines("scan", JOB, "first")] == list(range(TASKS))
    for command in ("scan", "get"):
        key = ("k",) if command == "get" else ()
        assert "there is no task 3: checkpoint" in call(command, JOB, "first", *key, "--task", "3", status=2)[1]


# Which entries.


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("options", "first", "end"),
    [
        (("--prefix", "k1"), b"k1", b"k2"),
        (("--prefix", ""), b"", None),
        (("--prefix", "k12"), b"k12", b"k13"),
        (("--from-key", "k3", "--to-key", "k5"), b"k3", b"k5"),
        (("--from-key", "k50"), b"k50", None),
        (("--to-key", "k2"), b"", b"k2"),
        (("--to-key", ""), b"", b""),
        (("--prefix", "k1", "--from-key", "k15", "--to-key", "k3"), b"k15", b"k2"),
        (("--hex", "--prefix", "0x6b31"), b"k1", b"k2"),
        (("--hex", "--from-key", "6b33", "--to-key", "ff"), b"k3", b"\xff"),
        (("--hex", "--prefix", "ff"), b"\xff", None),
        (("--from-key", "k5", "--to-key", "k5"), b"k5", b"k5"),
    ],
)
def test_a_part_of_the_keys(files: StateJob, options: tuple[str, ...], first: bytes, end: bytes | None) -> None:
    record = files.commit({**seeded(3), 0: {**seeded(3)[0], b"\xff\xff": b"1", b"\xfe": b"2", b"": b"3"}})
    expected = [
        (place, value)
        for place, value in files.expected(record).items()
        if first <= place[0] and (end is None or place[0] < end)
    ]
    assert entries(lines("scan", JOB, "first", *options)) == expected
    assert entries(lines("scan", JOB, "first", *options, "--task", "0")) == [e for e in expected if e[0][1] == 0]


def test_tables_are_cut_and_say_so(files: StateJob) -> None:
    first = files.commit({0: {b"k%02d" % n: b"%d" % n for n in range(21)}})
    files.commit({0: {b"k00": None, b"k01": b"100", b"new": b'"\\n\\u009b"'}})
    out, error = call("scan", JOB, "first", "--version", str(first.id))
    assert ("k19" in out, "k20" in out) == (True, False)
    assert "there are more than 20: --limit N" in error
    out, error = call("scan", JOB, "first", "--version", str(first.id), "--limit", "21")
    assert "k20" in out
    assert not error
    assert len(lines("scan", JOB, "first", "--version", str(first.id))) == 21
    assert len(lines("scan", JOB, "first", "--limit", "2")) == 2
    out, error = call("diff", JOB, "first", "--from", str(first.id))
    assert [line.split()[:2] for line in out.splitlines() if line.split()[1:2] in (["k00"], ["k01"], ["new"])] == [
        ["removed", "k00"],
        ["changed", "k01"],
        ["added", "new"],
    ]
    assert not error
    assert "\x9b" not in out, "nothing controls the terminal"
    out, error = call("diff", JOB, "first", "--from", str(first.id), "--limit", "1")
    assert "k01" not in out
    assert "there are more than 1" in error
    *some, last = lines("diff", JOB, "first", "--from", str(first.id), "--limit", "1")
    assert len(some) == 1
    assert last["counts"] == {"added": 1, "removed": 1, "changed": 1}, "of all, whatever is shown"


# Which version.


def test_versions_by_id_batch_and_distance_from_the_latest(files: StateJob) -> None:
    old = files.commit({0: {b"k": b"0"}})
    first = files.commit({0: {b"k": b"1"}}, batch=7)
    restarted = files.commit({0: {b"k": b"2"}}, batch=7)
    last = files.commit({0: {b"k": b"3"}}, retained=[first, restarted])
    for version, value in {
        str(first.id): 1, "7": 2, "40": 3, "latest": 3, "latest-0": 3, "latest-1": 2, "latest-2": 1, str(last.id): 3,
    }.items():  # fmt: skip
        for option in ("--version", "--checkpoint"):
            assert lines("get", JOB, "first", "k", option, version)[0]["value"] == value
    assert lines("get", JOB, "first", "k")[0]["value"] == 3
    *_, counts = lines("diff", JOB, "first", "--from", "latest-2", "--to", "7")
    assert (counts["from"], counts["to"]) == (str(first.id), str(restarted.id))
    for gone in (str(old.id), "10", "latest-3", "8", "1-1"):
        for arguments in (("get", JOB, "first", "k"), ("scan", JOB, "first"), ("list", JOB), ("verify", JOB)):
            out, error = call(*arguments, "--version", gone, status=1)
            assert not out
            assert f"version `{gone}` is not retained. Retained: " in error
            assert [error.count(f"{each.id} (batch {each.batch})") for each in (last, restarted, first)] == [1, 1, 1]
            assert str(old.id) not in error.split("Retained: ")[1]
    for wrong in ("last", "-1", "latest-", "latest~1", "", "7.0"):
        assert "is not a version" in call("scan", JOB, "first", f"--version={wrong}", status=2)[1]
    call("diff", JOB, "first", status=2)


def test_a_damaged_log_is_read_by_id_alone(files: StateJob, home: Path) -> None:
    first = files.commit({0: {b"k": b"1"}})
    last = files.commit({0: {b"k": b"2"}})
    path = home / "jobs" / files.paths.checkpoint(files.log.read().slot_of(last))
    path.write_bytes(path.read_bytes()[:-9])
    assert lines("get", JOB, "first", "k", "--version", str(first.id))[0]["value"] == 1
    assert "damaged" in call("get", JOB, "first", "k", status=1)[1]
    assert "damaged" in call("diff", JOB, "first", "--from", str(first.id), "--to", "latest", status=1)[1]


def test_a_store_a_job_or_a_backend_that_is_not_there(files: StateJob) -> None:
    files.commit({0: {b"k": b"1"}})
    for arguments in (("get", JOB, "third", "k"), ("scan", JOB, "third"), ("diff", JOB, "third", "--from", "latest")):
        assert "has no store `third`; it has: `first`, `second`" in call(*arguments, status=1)[1]
    assert "there is no job `other`" in call("scan", "other", "first", status=1)[1]
    error = call("scan", JOB, "first", "--backend", "blob", status=1)[1]
    assert "no marker of store `first` from `blob`; it has from: changelog-files" in error


def test_a_job_without_a_checkpoint(files: StateJob) -> None:
    for arguments in (("scan", JOB, "first"), ("diff", JOB, "first", "--from", "latest")):
        assert "`contract-1` has no checkpoint yet" in call(*arguments, status=1)[1]


def test_a_task_whose_state_is_lost_is_named_and_another_backend_is_used(home: Path) -> None:
    with closing(StateJob(home, backends=("changelog-files", "blob"))) as job:
        record = job.commit(seeded(1))
        (delta,) = (home / "jobs" / JOB / "state" / "first" / "1").glob("*.delta")
        delta.unlink()
        assert entries(lines("scan", JOB, "first")) == list(job.expected(record).items())
        error = call("scan", JOB, "first", "--backend", "changelog-files", status=1)[1]
        assert f"delta `{delta.relative_to(home / 'jobs')}` is missing" in error
        assert lines("scan", JOB, "first", "--task", "0", "--backend", "changelog-files")


def test_a_checkpoint_of_version_1_alone(home: Path) -> None:
    with closing(StateJob(home, backends=("changelog-stream",), versions=(1,))) as job:
        first, second = (job.commit(seeded(seed)) for seed in range(2))
        for record in (first, second):
            found = lines("scan", JOB, "first", "--version", str(record.id))
            assert entries(found) == list(job.expected(record).items())
        check_diff(job, first, second)


# Serdes.


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("serde", "text", "key", "shown"),
    [
        ("ordered-integer", "-5", bytes.fromhex("7ffffffb"), -5),
        ("ordered-long", "9007199254740993", bytes.fromhex("8020000000000001"), 9007199254740993),
        ("ordered-double", "-inf", bytes.fromhex("000fffffffffffff"), "-inf"),
        ("tuple(string,ordered-long)", '["u", 9]', bytes.fromhex("7500018000000000000009"), ["u", 9]),
        (
            "tuple(tuple(bytes,ordered-integer),ordered-double)",
            '[["00ff", -1], "-inf"]',
            Tuple(Tuple(Bytes(), Integer()), Double()).to_bytes(((b"\x00\xff", -1), float("-inf"))),
            [["00ff", -1], "-inf"],
        ),
        ("version-key(string)", '["u", 9]', bytes.fromhex("750001 7ffffffffffffff6"), ["u", 9]),
        ("json", "[18446744073709551615]", b"[18446744073709551615]", [2**64 - 1]),
        ("integer", "-5", Integer().to_bytes(-5), -5),
        ("integer", "2147483647", Integer().to_bytes(2**31 - 1), 2**31 - 1),
        ("long", "9007199254740993", Long().to_bytes(9007199254740993), 9007199254740993),
        ("double", "-0.5", Double().to_bytes(-0.5), -0.5),
        ("double", "inf", Double().to_bytes(float("inf")), "inf"),
        ("json", '{"b": 1, "a": [null]}', b'{"a":[null],"b":1}', {"a": [None], "b": 1}),
        ("json", '"text"', b'"text"', "text"),
        ("string", "Zürich\n", "Zürich\n".encode(), "Zürich\n"),
    ],
)
def test_keys_by_their_serde(home: Path, serde: str, text: str, key: bytes, shown: object) -> None:
    with closing(StateJob(home, layouts={"first": f"task {serde} {serde}"})) as job:
        job.commit({0: {key: key}})
        expected = {"key": shown, "value": shown, "task": 0}
        (found,) = lines("get", JOB, "first", "--", text)
        assert found.items() >= expected.items()
        assert lines("get", JOB, "first", "--hex", f"0x{key.hex()}")[0].items() >= expected.items()
        assert lines("scan", JOB, "first", f"--from-key={text}") == [expected]
        assert lines("scan", JOB, "first", f"--to-key={text}") == []


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("serde", "text"),
    [
        ("integer", "2147483648"), ("integer", "1_0"), ("integer", ""), ("long", "1.0"), ("double", "x"),
        ("json", "text"), ("json", "18446744073709551616"), ("ordered-long", "x"), ("tuple(string)", '"x"'),
        ("tuple(string)", "[5]"), ("tuple(string)", '["a", "b"]'), ("tuple(json)", '["a"]'), ("string", "\udc80"),
        ("bytes", "6b"), ("flights.town", "6b"),
    ],
)  # fmt: skip
def test_texts_that_are_no_key_of_a_serde(home: Path, serde: str, text: str) -> None:
    with closing(StateJob(home, layouts={"first": f"task {serde} json"})) as job:
        job.commit({0: {b"k": b"1"}})
        error = call("get", JOB, "first", "--", text, status=2)[1]
        assert f"the serde `{serde}`" in error
        assert "--hex" in error
        call("scan", JOB, "first", f"--from-key={text}", status=2)
        if serde not in {"string", "json"}:
            assert "--hex" in call("scan", JOB, "first", f"--prefix={text}", status=2)[1]
    assert "is not hex" in call("get", JOB, "first", "--hex", "6", status=2)[1]


def test_the_versions_of_a_table_with_history(home: Path) -> None:
    with closing(StateJob(home, layouts={"first": "(table) version-key(string) version(json)"})) as job:
        keys, values = VersionKey(String()), VersionValue(Json())
        versions: dict[tuple[str, int], object] = {("u", 5): 1, ("u", 7): DELETED, ("v", 1): [2]}
        job.commit({0: {keys.to_bytes(key): values.to_bytes(value) for key, value in versions.items()}})
        found = [(line["key"], line["value"]) for line in lines("scan", JOB, "first")]
        assert found == [(["u", 7], None), (["u", 5], 1), (["v", 1], [2])]
        assert [line["key"] for line in lines("scan", JOB, "first", "--prefix", '["u"]')] == [["u", 7], ["u", 5]]


def test_ranges_and_prefixes_of_tuples(home: Path) -> None:
    serde = Tuple(String(), Long())
    keys = [("t", 1), ("u", -1), ("u", 9), ("u", 100), ("v", 0)]
    with closing(StateJob(home, layouts={"first": f"task {serde.name} json"})) as job:
        job.commit({0: {serde.to_bytes(key): b"1" for key in keys}})
        for options, found in (
            (("--prefix", '["u"]'), keys[1:4]),
            (("--from-key", '["u"]', "--to-key", '["u", 100]'), keys[1:3]),
            (("--from-key", '["u", 9]'), keys[2:]),
        ):
            assert [tuple(line["key"]) for line in lines("scan", JOB, "first", *options)] == found
        error = call("scan", JOB, "first", "--from-key", '["u", 9]', "--to-key", '["u"]', status=2)[1]
        assert """--from-key `["u", 9]` comes after --to-key `["u"]`""" in error


def test_unknown_serdes_and_bytes_are_hex_and_it_is_said_once(files: StateJob) -> None:
    files.commit({0: {b"\x00a": b"va", b"\x00b": b"vb"}}, store="second")
    out, error = call("scan", JOB, "second")
    assert "0x0061" in out
    assert "0x7662" in out
    assert error.count("value serde `flights.town` is not one of Penstock's") == 1
    assert "key serde" not in error, "bytes are hex by nature"
    assert lines("scan", JOB, "second", "--hex", "--prefix", "0062") == [
        {"keyHex": "0062", "valueHex": "7662", "task": 0}
    ]
    assert call("get", JOB, "second", "--hex", "0061")[0] == "0x7661\n"


def test_what_does_not_decode_is_hex_and_it_is_said_once(files: StateJob) -> None:
    files.commit({0: {b"\xff": b"{", b"\xfe": b"[", b"k": b"1"}})
    out, error = call("scan", JOB, "first")
    assert "0xff" in out
    assert "0x7b" in out
    assert error.count("a key that the serde `string` cannot read") == 1
    assert error.count("a value that the serde `json` cannot read") == 1
    assert lines("scan", JOB, "first")[0] == {"key": "k", "value": 1, "task": 0}


@pytest.fixture
def own_serdes(home: Path, tmp_path: Path) -> Iterator[StateJob]:
    (tmp_path / "flights.py").write_text(APPLICATION)
    layouts = {"first": "task flights.town flights.place", "second": "task string json"}
    with closing(StateJob(home, layouts=layouts)) as job:
        job.commit({0: {"Oslo".encode("utf-16-be"): b"north", "Rom".encode("utf-16-be"): b"broken"}})
        yield job


@pytest.mark.usefixtures("own_serdes")
def test_serdes_of_the_application() -> None:
    options = ("--app", "flights.py:app")
    out, error = call("scan", JOB, "first", *options)
    assert "Oslo" in out
    assert "<Place north>" in out
    assert error.count("cannot read is shown as hex (ValueError: no place of that name)") == 1
    assert lines("get", JOB, "first", "Oslo", *options)[0]["value"] == "<Place north>"
    assert call("get", JOB, "first", "Rom", *options)[0] == f"0x{b'broken'.hex()}\n"
    assert "is not one of Penstock's" in call("scan", JOB, "first")[1]


@pytest.mark.usefixtures("own_serdes")
def test_an_application_that_is_another_one(tmp_path: Path) -> None:
    error = call("scan", JOB, "second", "--app", "flights.py:app", status=2)[1]
    assert "declares no store `second`; it has: first" in error
    (tmp_path / "flights2.py").write_text(APPLICATION.replace("value=PlaceSerde()", "value=ps.Json()"))
    error = call("scan", JOB, "first", "--app", "flights2.py:app", status=2)[1]
    assert "written with the serdes `flights.town` and `flights.place`" in error
    assert "declares `flights.town` and `json`" in error


def test_a_layout_of_another_form(home: Path) -> None:
    with closing(StateJob(home, layouts={"first": "something"})) as job:
        job.commit({0: {b"k": b"v"}})
        assert lines("scan", JOB, "first") == [{"keyHex": "6b", "valueHex": "76", "task": 0}]


def test_what_has_expired_at_a_checkpoint_is_not_shown(home: Path) -> None:
    """The checkpoints have the batch times 1, 2 and 3; the entries live for two milliseconds."""
    with closing(StateJob(home, layouts={"first": "task string json ttl-1", "second": "task string json"})) as job:
        store = build_store(StoreSpec("first", String(), Json(), TimeToLive(2)), MemoryEngine(), 10, time_ms=1)
        owner = partition_of(b"early", TASKS)
        for time, key in ((1, "early"), (2, "late")):
            overlay = store.begin(time)
            store.put(key, time)
            job.commit({owner: overlay.take()}, retained=None)
        job.commit({})
    shown = [[each["key"] for each in lines("scan", JOB, "first", "--version", str(10 * n))] for n in (1, 2, 3)]
    assert shown == [["early"], ["early", "late"], ["late"]]
    assert call("get", JOB, "first", "early", "--version", "20")[0] == "1\n"
    assert "there is no key `early`" in call("get", JOB, "first", "early", status=1)[1]
    *found, last = lines("diff", JOB, "first", "--from", "20")
    assert [(each["change"], each["key"], each["from"]) for each in found] == [("removed", "early", 1)]
    assert last["counts"] == {"added": 0, "removed": 1, "changed": 0}
    call("verify", JOB)
