"""Bytes from outside the process: each parser of the table reads them, or refuses them with an error of Penstock, in
little time and memory. A value that was read has the declared type, and is the same when it is written and read again.

The table is `tests/support/parsers/table.py`. `make fuzz` damages the same bytes for longer, guided by the code that
runs; what it found before is kept, and run here.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStreamPartition
from penstock.container import launch
from penstock.container import launch as launch_module
from penstock.container.launch import Register
from penstock.errors import CorruptError, PenstockError
from penstock.host.posix import ExecutorProcess
from penstock.job.identity import JobIdentity
from penstock.state.engines.memory import MemoryEngine
from penstock.system.base import OffsetRange, WriterIdentity
from penstock.system.local import LocalSystem
from penstock.wire.containers import ContainerSpec, LaunchFailure
from tests.support.faults.damaged_bytes import damaged, grows_too_fast, memory_budget
from tests.support.parsers.coverage import EXEMPT
from tests.support.parsers.kept import CORPUS, folder_of, kept
from tests.support.parsers.parser import conforms
from tests.support.parsers.stored import with_checksum
from tests.support.parsers.table import PARSERS
from tests.support.processes.python import run_python
from tests.support.tools.profiles import examples

BUDGET = 16 << 20
DOCUMENTS = {
    name: each.document for name, each in PARSERS.items() if each.document is not None and not each.touches_files
}


@pytest.mark.parametrize("name", PARSERS)
def test_valid_bytes_are_read(name: str) -> None:
    parser = PARSERS[name]
    assert parser.seeds
    for data in parser.seeds:
        if parser.is_whole:
            assert conforms(parser.value(data), parser.kind)
        parser.judge(data)


@pytest.mark.attack
def test_what_was_found_once_is_read_or_refused() -> None:
    assert {each.name for each in CORPUS.iterdir()} <= {folder_of(name).name for name in PARSERS}
    for name, parser in PARSERS.items():
        for data in kept(name):
            parser.judge_within_limits(data)


def test_each_function_that_parses_runs_for_a_parser_of_the_table() -> None:
    """A new parser fails here until the table has it."""
    ran = run_python("-m", "tests.support.parsers.coverage")  # what is cached in this process would not run again
    assert {*ran.stdout.splitlines()} == EXEMPT.keys()


@pytest.mark.attack
@pytest.mark.few(20)
@pytest.mark.parametrize("name", PARSERS)
@given(st.data())
@examples(0.5)
def test_what_is_damaged_is_read_or_refused_within_a_budget(name: str, data: st.DataObject) -> None:
    parser = PARSERS[name]
    found = data.draw(damaged(data.draw(st.sampled_from([*parser.seeds, *kept(name)]))))
    with memory_budget(parser.memory):
        parser.judge(found)


@pytest.mark.attack
@given(st.binary(max_size=200))
@examples(2)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for parser in PARSERS.values():
        if not parser.touches_files:
            parser.judge(data)


FILLERS = (
    b"0",
    b"9",
    b"[",
    b'{"a":',
    b" ",
    b"\\",
    b'"',
    b"a",
    b"\0",
    b"\0\1",
    b"\xff",
    b"=",
    b"\n",
    b",",
    b"a: &a [*a]\n",
)
"""Many each of digits in numbers, levels of nesting, blanks, escapes, ends and names."""


def filled(whole: bytes, filler: bytes, at: int) -> Callable[[int], bytes]:
    return lambda size: whole[:at] + filler * (size // len(filler)) + whole[at:]


@pytest.mark.attack
@pytest.mark.few(20)
@pytest.mark.parametrize("name", [name for name, parser in PARSERS.items() if parser.is_whole])
def test_what_is_much_longer_takes_no_more_work_for_a_byte(name: str) -> None:
    parser = PARSERS[name]
    size = 1 << 13 if parser.grows else 1 << 11
    for whole in parser.seeds:
        for filler in FILLERS:
            for at in (0, len(whole) // 2, len(whole)) if parser.grows else (len(whole) // 2,):
                assert not grows_too_fast(parser.judge, filled(whole, filler, at), size), (filler, at)


# Documents of JSON.

DEEP = b'{"files-present":[],"dir-name":"x","sub-dirs-present":[' * 400 + b"]}" * 400
VALUES: list[Any] = [
    *(None, True, False, "", "x", "0", "-1", "../../x", "a\0b", "1" * 40, "1-1", "\u0661", "kafka.a.-1", "\ud7ff"),
    *(0, 1, 2, 3, -1, -5, 2**31, 2**53, 2**62, 2**63, 2**64 - 1, 1.5, 1e300, -0.0),
    *([], [[]], [None], [1, 2], ["a", "b"], [[1, 1, 2**60]], {}, {"": None}, {"x": []}, {"0": {}}, [0] * 50),
]


def paths(document: Any) -> Iterator[tuple[Any, ...]]:
    yield ()
    entries = (
        document.items() if isinstance(document, dict) else enumerate(document if isinstance(document, list) else ())
    )
    for key, value in entries:
        yield from ((key, *rest) for rest in paths(value))


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the document with the value at the path."""
    if not path:
        return value
    changed = dict(document) if isinstance(document, dict) else list(document)
    changed[path[0]] = replaced(document[path[0]], path[1:], value)
    return changed


def without(document: Any, path: tuple[Any, ...]) -> Any:
    """A copy of the document with nothing at the path."""
    parent = document
    for step in path[:-1]:
        parent = parent[step]
    changed = dict(parent) if isinstance(parent, dict) else list(parent)
    del changed[path[-1]]
    return replaced(document, path[:-1], changed)


@pytest.mark.attack
@pytest.mark.few(10)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_value_at_any_place_is_read_or_refused(name: str) -> None:
    parser, document = PARSERS[name], DOCUMENTS[name]
    for path in paths(document):
        for value in VALUES:
            parser.judge(orjson.dumps(replaced(document, path, value)))
        if path:
            parser.judge(orjson.dumps(without(document, path)))


@pytest.mark.attack
@pytest.mark.few(10)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_nested_deeply_is_refused(name: str) -> None:
    parser, document = PARSERS[name], DOCUMENTS[name]
    wrap = bytes if parser.wrap is with_checksum else parser.wrap  # a checksum of it cannot be computed
    for path in paths(document):
        text = orjson.dumps(replaced(document, path, "DEEP")).replace(b'"DEEP"', DEEP)
        replace(parser, wrap=wrap).judge(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.attack
@given(st.data())
@examples(6)
def test_any_json_at_any_places_is_read_or_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(DOCUMENTS)))
    document = DOCUMENTS[name]
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(paths(document))))
        document = replaced(document, path, data.draw(JSON | st.sampled_from(VALUES)))
    PARSERS[name].judge(orjson.dumps(document))


@pytest.mark.parametrize("size", [1 << 33, 1 << 40, (1 << 63) - 1])
def test_a_size_is_not_believed_before_it_was_checked(tmp_path: Path, size: int) -> None:
    """Memory is taken for what is there, not for what a header claims."""
    parser = PARSERS["head of a delta"]
    entries = MemoryEngine()
    entries.apply({b"key": b"value"})
    entries.copy_to(tmp_path / "copy")
    (copy,) = (tmp_path / "copy").iterdir()
    written = copy.read_bytes()[:-32]
    claim = written[:8] + size.to_bytes(8, "big") + written[16:]
    with memory_budget(BUDGET):
        with pytest.raises(CorruptError, match="claims"):
            parser.value(orjson.dumps(parser.document | {"size": size}))
        copy.write_bytes(claim + hashlib.sha256(claim).digest())
        with pytest.raises(CorruptError, match="claims"):
            MemoryEngine(tmp_path / "copy")


# Local streams: SQLite holds no column to its type.

SSP = SystemStreamPartition("local", "s", 0)
CELLS = ["text", b"blob", 1.5, -1, 0, 7, 2**62]


@pytest.mark.attack
@pytest.mark.few(30)
@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("head", column) for column in ("format", "uid", "partition", "upcoming")),
        *(("fence", "epoch"), ("peak", "offset")),
        *(("compacted", column) for column in ("start_offset", "end_offset", "kept")),
    ],
)
@pytest.mark.parametrize("value", CELLS, ids=repr)
def test_any_value_in_a_partition_is_read_or_refused(tmp_path: Path, table: str, column: str, value: object) -> None:
    system = LocalSystem("local", str(tmp_path))
    admin, writer = system.admin(), system.writer(WriterIdentity("w", 3))
    admin.create_stream("s", 1)
    writer.append(SSP, [(n, b"k", b"v") for n in range(4)])
    admin.compact(OffsetRange(SSP, 0, 3), WriterIdentity("w", 3))
    admin.close()
    writer.close()
    with sqlite3.connect(tmp_path / "s" / "0.db") as connection:
        connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
    connection.close()

    def read() -> object:
        reader = system.reader()
        return [list(reader.read_compacted(OffsetRange(SSP, 0, 4), 2)), list(reader.read(OffsetRange(SSP, 3, 4), 2))]

    calls: list[Callable[[], object]] = [
        lambda: system.admin().offsets("s"),
        lambda: system.admin().offset_at_time(SSP, 2),
        lambda: system.admin().compact(OffsetRange(SSP, 1, 3), WriterIdentity("w", 4)),
        lambda: system.admin().fence("s", WriterIdentity("w", 4)),
        lambda: system.writer(WriterIdentity("w", 4)).append(SSP, [(9, b"k", b"v")]),
        read,
    ]
    for call in calls:
        try:
            call()
        except PenstockError:
            continue


def test_a_uid_that_cannot_be_part_of_a_name_is_refused() -> None:
    """It would become a part of names of folders and streams; and an error quotes little of a large document."""
    for uid in ("", "../../x", "a b", "a\0", "x" * 65, "x" * (1 << 20), "\u0661"):
        with pytest.raises(CorruptError, match="is not the identity of a job") as caught:
            JobIdentity.decode(orjson.dumps({"format": 1, "uid": uid, "folder": None}), "k")
        assert len(str(caught.value)) < 2000


def test_a_register_that_is_too_large_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_module, "_LARGEST", 1 << 20)
    large = Register(tmp_path / "register.json")
    with large.path.open("wb") as file:
        file.truncate(1 << 30)
    with memory_budget(BUDGET), pytest.raises(CorruptError, match="it has more than"):
        large.read()


def test_an_executor_with_a_damaged_register_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would start more beside those that run, and leave lost ones alive."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(launch, "own_executor", lambda: ExecutorProcess(7, "3", "h", None))
    spec = ContainerSpec("run", "secret", None, str(tmp_path))
    (tmp_path / "penstock-run-7.json").write_bytes(b'[{"pid":"8"}]')
    (failure,) = launch.ensure_containers(spec, 1, 1.0, frozenset(), {})
    assert isinstance(failure, LaunchFailure)
    assert failure.executor_id == "3"
    assert "penstock-run-7.json, is damaged" in failure.reason
