"""Publishing files of records: forms, compression, keys, times, and what is said when a line is wrong."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.admin.stream.publish import MalformedRecordError, Published, PublishOptions, publish, read_records
from penstock.api.serdes import Json
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, NotFoundError, PenstockError
from penstock.system.base import RawMessage
from penstock.system.local import LocalSystem
from penstock.system.memory import MemorySystem
from penstock.system.partitioner import partition_of
from penstock.testing.system_contract import read
from tests.support.processes.containers import wait_until

PARTITIONS = 3


@pytest.fixture
def system() -> MemorySystem:
    made = MemorySystem("memory")
    made.create("s", PARTITIONS)
    return made


def stored(system: MemorySystem | LocalSystem) -> list[list[RawMessage]]:
    ends = system.admin().offsets("s")
    return [read(system, SystemStreamPartition(system.name, "s", p), e.oldest, e.upcoming) for p, e in ends.items()]


def values(system: MemorySystem) -> list[Any]:
    return [json.loads(message[3] or b"null") for partition in stored(system) for message in partition]


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_json_lines_by_key_and_time(system: MemorySystem, tmp_path: Path) -> None:
    lines = [{"id": f"k{i}", "n": i, "at": 1000 + i, "é": "ü"} for i in range(25)]
    source = write(tmp_path / "in.jsonl", "\n\n".join(json.dumps(line) for line in lines))
    seen: list[tuple[int, int]] = []
    options = PublishOptions(key_field="id", timestamp_field="at", batch_messages=10)
    done = publish(system, "s", source, options, lambda messages, size: seen.append((messages, size)))
    expected: list[list[RawMessage]] = [[] for _ in range(PARTITIONS)]
    for line in lines:
        key, value = str(line["id"]).encode(), json.dumps(line).encode()  # the line's own bytes
        partition = expected[partition_of(key, PARTITIONS)]
        partition.append((len(partition), int(str(line["at"])), key, value))
    assert stored(system) == expected
    size = sum(len(each[2] or b"") + len(each[3] or b"") for part in expected for each in part)
    assert done == Published(25, size, 49)
    assert [messages for messages, _ in seen] == [10, 20, 25]
    assert seen[-1] == (25, size)


def test_without_a_key_the_partitions_take_turns_across_batches(system: MemorySystem, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", "".join(f'{{"n": {i}}}\n' for i in range(7)))
    before = time.time_ns() // 1_000_000
    publish(system, "s", source, PublishOptions(batch_messages=2))
    after = time.time_ns() // 1_000_000
    assert [[m[3] for m in part] for part in stored(system)] == [
        [b'{"n": 0}', b'{"n": 3}', b'{"n": 6}'],
        [b'{"n": 1}', b'{"n": 4}'],
        [b'{"n": 2}', b'{"n": 5}'],
    ]
    assert all(before <= message[1] <= after and message[2] is None for part in stored(system) for message in part)


def test_csv_values_are_strings(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", '\ufeffa,b\r\n1,"x ""y"", z"\r\n\r\n,"two\r\nlines"\r\n3,4')
    assert list(read_records(source)) == [
        (2, {"a": "1", "b": 'x "y", z'}),
        (4, {"a": "", "b": "two\r\nlines"}),
        (6, {"a": "3", "b": "4"}),
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("0", 0), ("-12", -12), ("517", 517), ("1.50", 1.5), ("-2e3", -2000.0), ("007", "007"),
        ("-007", "-007"), ("NA", "NA"), (" 1", " 1"), ("+1", "+1"), (".5", ".5"), ("1.", "1."), ("nan", "nan"),
        ("1e999", "1e999"), ("true", "true"), ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", "9223372036854775808"), ("12345678901234567890123", "12345678901234567890123"),
        ("\u0661", "\u0661"), ("0.10000000000000000555", "0.10000000000000000555"), ("0.1000", 0.1), ("1e22", 1e22),
        ("9007199254740993.0", "9007199254740993.0"),
    ],
)  # fmt: skip
def test_inferred_values(tmp_path: Path, text: str, value: object) -> None:
    source = write(tmp_path / "in.csv", f"a,b\n{text},x\n")
    [(_, record)] = read_records(source, infer=True)
    assert record == {"a": value, "b": "x"}
    assert type(record["a"]) is type(value)


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        (1357016400000, 1357016400000), ("1357016400000", 1357016400000), (-5, -5), ("20130101", 1356998400000),
        ("2013-01-01T05:00:00Z", 1357016400000), ("2013-01-01 00:00:00-05:00", 1357016400000),
        ("2013-01-01T05:00:00.250", 1357016400250),
    ],
)  # fmt: skip
def test_times(system: MemorySystem, tmp_path: Path, stamp: object, expected: int) -> None:
    source = write(tmp_path / "in.jsonl", json.dumps({"at": stamp}))
    publish(system, "s", source, PublishOptions(timestamp_field="at"))
    assert stored(system)[0][0][1] == expected


def test_keys_of_other_kinds(system: MemorySystem, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", '{"k": 5}\n{"k": null}\n{"k": {"a": [1, 2]}}\n{"k": ""}')
    publish(system, "s", source, PublishOptions(key_field="k"))
    keys = {message[2] for part in stored(system) for message in part}
    assert keys == {b"5", None, b'{"a":[1,2]}', b""}


def test_a_line_is_published_as_it_is(system: MemorySystem, tmp_path: Path) -> None:
    lines = [
        b'{"n":123456789012345678901234567890, "m":-9223372036854775809}', b'{"x":1.0e2,"e":"\\u00e9", "x" : 2}',
        b'{"x":0.10000000000000000555}',
    ]  # fmt: skip
    source = write(tmp_path / "in.jsonl", b"\xef\xbb\xbf" + b" \r\n\t".join(lines) + b"\r\n")
    publish(system, "s", source, PublishOptions())
    assert [part[0][3] for part in stored(system)] == lines


def test_a_key_is_what_the_json_serde_writes(system: MemorySystem, tmp_path: Path) -> None:
    keys = [{"b": 1, "a": {"d": [2.0, None], "c": "é"}}, [1, "x"], 2**64 - 1, -(2**63), 1.5, True]
    text = "\n".join(json.dumps({"k": key}) for key in keys)
    publish(system, "s", write(tmp_path / "in.jsonl", text), PublishOptions(key_field="k"))
    serde = Json().for_keys()
    assert {message[2] for part in stored(system) for message in part} == {serde.to_bytes(key) for key in keys}


@pytest.mark.parametrize("key", ["18446744073709551616", "-9223372036854775809", "[123456789012345678901]"])
def test_a_key_that_no_serde_would_write_is_refused(system: MemorySystem, tmp_path: Path, key: str) -> None:
    """It was rounded to a double before: 18446744073709551616 and 18446744073709551617 were one key."""
    source = write(tmp_path / "in.jsonl", f'{{"k": {key}}}')
    with pytest.raises(MalformedRecordError, match=r"line 1: the key field 'k' holds .*cannot be a key.*64-bit"):
        publish(system, "s", source, PublishOptions(key_field="k"))
    assert values(system) == []


@pytest.mark.parametrize("name", ["in.csv.gz", "in.jsonl.gz", "csv.zip", "in.JSONL.zip"])
def test_compressed_files(system: MemorySystem, tmp_path: Path, name: str) -> None:
    text = b"a\n1\n2\n" if "csv" in name else b'{"a": "1"}\n{"a": "2"}\n'
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.mkdir("folder")
            archive.writestr("folder/flights.csv" if "csv" in name else "flights.jsonl", text)
    assert publish(system, "s", str(path), PublishOptions()).messages == 2
    assert values(system) == [{"a": "1"}, {"a": "2"}]


def test_standard_input(system: MemorySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"a":1}\n')))
    assert publish(system, "s", "-", PublishOptions()).messages == 1
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a\n2\n")))
    assert publish(system, "s", "-", PublishOptions(format="csv", infer=True)).messages == 1
    assert values(system) == [{"a": 1}, {"a": 2}]


def test_a_slow_pipe_is_published_as_it_comes(system: MemorySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the first 10,000 lines of a pipe waited for each other, with the time of the first one."""
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", open(reading, "rb", buffering=0))  # noqa: SIM115 - the test closes it
    told: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(publish, system, "s", "-", PublishOptions(), lambda messages, size: told.append(messages))
        os.write(writing, b'{"a":1}\n')
        wait_until(lambda: len(values(system)) == 1, "the first line is published", 20.0)
        os.write(writing, b'{"a":2}\n')
        wait_until(lambda: len(values(system)) == 2, "the second line is published", 20.0)
        os.write(writing, b'{"a":3}\n{"a":4}')
        os.close(writing)
        assert done.result(20.0).messages == 4
    sys.stdin.close()
    assert sorted(value["a"] for value in values(system)) == [1, 2, 3, 4]
    assert told[:2] == [1, 2], "progress is told of each"
    times = {message[3]: message[1] for partition in stored(system) for message in partition}
    assert times[b'{"a":2}'] - times[b'{"a":1}'] >= 500, "each has its own time"


def test_an_error_in_standard_input_publishes_nothing(system: MemorySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'{"a":1}\n' * 5 + b"no record\n"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    with pytest.raises(MalformedRecordError, match="line 6"):
        publish(system, "s", "-", PublishOptions(batch_messages=3))
    assert len(values(system)) == 3


@pytest.mark.parametrize(
    ("name", "last", "problem"),
    [
        ("in.jsonl", b'{"k": "a", ', 'this is not JSON .*: \'{"k": "a",\''),
        ("in.jsonl", b'["k"]', "expected a JSON object, found '\\[\"k\"\\]'"),
        ("in.jsonl", b'{"k": "\xff"}', "this is not JSON"),
        ("in.jsonl", b'{"at": 1}', "no field 'k', which holds the key .*its fields: 'at'"),
        ("in.jsonl", b'{"k": "a", "at": "noon"}', "neither epoch milliseconds nor an ISO 8601 time: 'noon'"),
        ("in.jsonl", b'{"k": "a", "at": 1.5}', "neither epoch"),
        ("in.jsonl", b'{"k": "a", "at": true}', "neither epoch"),
        ("in.csv", b"a", "expected 2 fields as in the header, found 1"),
        ("in.csv", b"a,1,2", "expected 2 fields as in the header, found 3"),
        ("in.csv", b'"a,1', "this is not CSV"),
        ("in.csv", b'"a"b,1', "this is not CSV"),
        ("in.csv", b"\xff,1", "this is not UTF-8"),
    ],
)
def test_a_malformed_line(system: MemorySystem, tmp_path: Path, name: str, last: bytes, problem: str) -> None:
    good = [b'{"k": "%d", "at": %d}' % (i, i) for i in range(6)]
    if name == "in.csv":
        good = [b"k,at", *(b"%d,%d" % (i, i) for i in range(5))]
    source = write(tmp_path / name, b"\n".join([*good, last]))
    options = PublishOptions(key_field="k", timestamp_field="at", batch_messages=4)
    with pytest.raises(MalformedRecordError, match=rf"{name}, line 7: .*{problem}") as caught:
        publish(system, "s", source, options)
    line = 5 if name == "in.csv" else 4
    assert f"Before this, 4 messages were published, up to line {line} of {source}." in str(caught.value)
    assert len(values(system)) == 4


def test_a_header_with_a_name_twice(tmp_path: Path) -> None:
    with pytest.raises(MalformedRecordError, match="line 1: the header names 'a' more than once"):
        list(read_records(write(tmp_path / "in.csv", "a,b,a\n1,2,3\n")))


def test_a_compressed_file_cut_off(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b'{"a": %d}\n' % (i * i) for i in range(5000)))
    found = read_records(write(tmp_path / "in.jsonl.gz", whole[:-500]))
    assert next(found) == (1, {"a": 0})
    with pytest.raises(MalformedRecordError, match=r"in\.jsonl\.gz, line \d+: the compressed file is damaged or cut"):
        list(found)


@pytest.mark.parametrize("name", ["in.jsonl.gz", "in.zip"])
def test_not_what_the_name_says(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        list(read_records(write(tmp_path / name, b'{"a": 1}\n')))


def test_a_zip_with_two_members(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        archive.writestr("a.csv", "a\n1\n")
        archive.writestr("b.csv", "a\n1\n")
    with pytest.raises(ConfigError, match="2 members"):
        list(read_records(str(tmp_path / "in.zip")))


def test_what_cannot_be_read(system: MemorySystem, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"there is no file .*none.jsonl to publish$"):
        publish(system, "s", str(tmp_path / "none.jsonl"), PublishOptions())
    with pytest.raises(ConfigError, match="cannot be read"):
        publish(system, "s", str(tmp_path), PublishOptions(format="csv"))
    with pytest.raises(ConfigError, match="which format"):
        publish(system, "s", write(tmp_path / "in.txt", "x"), PublishOptions())
    with pytest.raises(NotFoundError, match="penstock stream create"):
        publish(system, "none", write(tmp_path / "in.csv", "a\n1\n"), PublishOptions())
    with pytest.raises(ConfigError, match="batch_messages"):
        PublishOptions(batch_messages=0)


def test_a_failed_append_says_what_was_published(tmp_path: Path) -> None:
    """The third partition's file is damaged: what went to the two before it is counted."""
    system = LocalSystem("local", str(tmp_path / "root"))
    system.admin().create_stream("s", PARTITIONS)
    (tmp_path / "root" / "s" / "2.db").write_bytes(b"no database" * 100)
    source = write(tmp_path / "in.jsonl", '{"n": 1}\n' * 30)
    with pytest.raises(PenstockError, match=r"(?s)2\.db.*Before this, 20 messages were published, part of a batch"):
        publish(system, "s", source, PublishOptions())


def test_an_empty_file(system: MemorySystem, tmp_path: Path) -> None:
    for name, text in (("in.jsonl", ""), ("in.csv", ""), ("head.csv", "a,b\n")):
        assert publish(system, "s", write(tmp_path / name, text), PublishOptions(key_field="a")) == Published()
