"""Manifests of Iceberg and lists of them: what is damaged is refused, and all else is read as PyIceberg reads it."""

from __future__ import annotations

import bz2
import io
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType
from zstandard import ZstdCompressor

from penstock.errors import CorruptError
from penstock.system.lake.iceberg_manifests import CheckedDecoder, CheckedManifest, CheckedSnapshot
from tests.support.faults.damaged_bytes import damaged, memory_budget
from tests.support.parsers.lakes import walk
from tests.support.tools.profiles import examples
from tests.support.world.lake_tables import WrittenIceberg, all_rows, of

Kind: TypeAlias = Literal["list", "manifest"]
Codec: TypeAlias = Literal["null", "deflate", "zstandard", "bzip2"]
KINDS: tuple[Kind, ...] = ("list", "manifest")
CODECS: tuple[Codec, ...] = ("null", "deflate", "zstandard", "bzip2")
ENTRIES = 3
BUDGET = 64 << 20


class _OneFile:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def new_input(self, path: str) -> _OneFile:
        return self

    def open(self) -> io.BytesIO:
        return io.BytesIO(self._data)


def in_memory(data: bytes) -> FileIO:
    """A place whose only file has these bytes."""
    return cast("FileIO", _OneFile(data))


@dataclass(frozen=True)
class Written:
    """The files of PyIceberg's writers."""

    manifests: bytes
    """A list of one manifest."""
    entries: bytes
    manifest: ManifestFile
    """As PyIceberg reads it from the list."""

    def file(self, kind: Kind) -> bytes:
        return self.manifests if kind == "list" else self.entries


@cache
def written(codec: Codec) -> Written:
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "text", StringType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "n"), spec_id=3)
    places = PyArrowFileIO()
    with TemporaryDirectory() as folder:
        entries, manifests = Path(folder, "manifest.avro"), Path(folder, "list.avro")
        with ManifestWriterV2(spec, schema, places.new_output(str(entries)), 7, codec) as writer:
            for status in ManifestEntryStatus:
                known = None if status == ManifestEntryStatus.ADDED else status.value + 1
                entry = ManifestEntry.from_args(
                    status=status,
                    snapshot_id=known,
                    sequence_number=known,
                    file_sequence_number=known,
                    data_file=_file(status.value),
                )
                writer.add_entry(entry)
        with write_manifest_list(2, places.new_output(str(manifests)), 7, None, 1, codec) as lists:
            lists.add_manifests([writer.to_manifest_file()])
        (manifest,) = read_manifest_list(places.new_input(str(manifests)))
        return Written(manifests.read_bytes(), entries.read_bytes(), manifest)


def read(kind: Kind, data: bytes, *counts: int | None) -> Sequence[Any]:
    """As a table reads the file.

    Args:
        counts: those of the entries, by the list; by default the right ones.
    """
    if kind == "list":
        return CheckedSnapshot.model_construct(manifest_list="list.avro").manifests(in_memory(data))
    manifest = CheckedManifest(*written("null").manifest._data)
    manifest[0] = "manifest.avro"
    for place, count in enumerate(counts or (1, 1, 1), 7):
        manifest[place] = count
    return manifest.fetch_manifest_entry(in_memory(data), discard_deleted=False)


def _file(number: int) -> DataFile:
    columns = range(1, 70)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"data/{number}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(number),
        record_count=number,
        file_size_in_bytes=1 << 40,
        column_sizes={column: column << number * 14 for column in columns},
        value_counts={},
        null_value_counts=dict.fromkeys(columns, 0),
        lower_bounds={column: b"a" * column for column in columns},
        upper_bounds=dict.fromkeys(columns, b""),
        split_offsets=[4, 1 << 62],
        equality_ids=[1],
        sort_order_id=number,
    )


def plain(value: Any) -> Any:
    """A row of PyIceberg as values that can be compared, all the way down."""
    if isinstance(value, Record):
        return [plain(each) for each in value._data]
    if isinstance(value, Mapping):
        return dict(value)
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("discards", [False, True])
def test_what_is_whole_is_read_as_the_library_reads_it(codec: Codec, discards: bool) -> None:
    whole = written(codec)
    (found,) = read("list", whole.manifests)
    assert plain(found) == plain(whole.manifest)
    entries = found.fetch_manifest_entry(in_memory(whole.entries), discard_deleted=discards)
    assert len(entries) == ENTRIES - discards
    wanted = whole.manifest.fetch_manifest_entry(in_memory(whole.entries), discard_deleted=discards)
    assert plain(entries) == plain(wanted)
    assert [each.data_file.spec_id for each in entries] == [3] * len(entries)


@pytest.mark.attack
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
@examples(10)
def test_what_is_damaged_is_read_or_refused(kind: Kind, codec: Codec, data: st.DataObject) -> None:
    found = data.draw(damaged(written(codec).file(kind)))
    with memory_budget(BUDGET):
        try:
            read(kind, found)
        except CorruptError:
            return


@pytest.mark.attack
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_breaks_off_is_refused(kind: Kind, codec: Codec) -> None:
    """Only a list that breaks off behind its header is one without manifests."""
    whole = written(codec).file(kind)
    ends = [found.end() for found in re.finditer(re.escape(whole[-16:]), whole)]
    sizes = {*range(0, len(whole), 1 + len(whole) // 200), *ends, *(end + 1 for end in ends)}
    for size in sizes - {len(whole), len(whole) + 1}:
        if (kind, size) != ("list", ends[0]):
            with pytest.raises(CorruptError, match="is damaged"):
                read(kind, whole[:size])
    with pytest.raises(CorruptError, match="is damaged"):
        read(kind, whole + b"\0")


def number(value: int) -> bytes:
    """A number in Avro."""
    found, value = bytearray(), value << 1 ^ value >> 63
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def text(value: bytes) -> bytes:
    return number(len(value)) + value


SYNC = b"s" * 16
REFUSED = "cannot be in|ends within a value|a size is negative|more than 10 bytes|left behind"


def container(schema: Any, *blocks: tuple[int, bytes], codec: str = "null") -> bytes:
    """A file of Avro.

    Args:
        schema: as JSON, or the text of it.
        blocks: the number of rows of each block, and its bytes.
    """
    shown = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    meta = {b"avro.schema": shown, b"avro.codec": codec.encode()}
    head = b"Obj\1" + number(len(meta)) + b"".join(text(key) + text(value) for key, value in meta.items()) + b"\0"
    return head + SYNC + b"".join(number(count) + text(data) + SYNC for count, data in blocks)


def field(name: str, number: int, kind: Any) -> dict[str, Any]:
    return {"name": name, "field-id": number, "type": kind}


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": list(fields)}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "element-id": 900}


PAIR = record(field("key", 901, "int"), field("value", 902, "bytes"))
PAIRS_OF_NUMBERS = {
    "type": "array",
    "logicalType": "map",
    "items": record(field("key", 901, "int"), field("value", 902, "long")),
}
PAIRS = {"type": "array", "logicalType": "map", "items": PAIR}
LIST = [
    field("manifest_path", 500, "string"),
    field("manifest_length", 501, "long"),
    field("partition_spec_id", 502, "int"),
    field("added_snapshot_id", 503, "long"),
    *(field(f"files{number}", number, "int") for number in (504, 505, 506)),
    *(field(f"rows{number}", number, "long") for number in (512, 513, 514)),
]
ROW = text(b"m.avro") + number(9) + number(0) + number(7) + number(1) * 6
HUGE = [1 << 20, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1]


ENTRY = [
    (134, "int", number(0)),
    (100, "string", text(b"data.parquet")),
    (101, "string", text(b"PARQUET")),
    (102, {"type": "record", "name": "r102", "fields": []}, b""),
    (103, "long", number(9)),
    (104, "long", number(9)),
    (108, PAIRS_OF_NUMBERS, b"\0"),
    (109, PAIRS_OF_NUMBERS, b"\0"),
    (110, PAIRS_OF_NUMBERS, b"\0"),
    (125, PAIRS, b"\0"),
    (128, PAIRS, b"\0"),
    (132, array("long"), b"\0"),
]


def entry_with(changed: int, data: bytes, kind: Any = None) -> bytes:
    """A manifest with an entry in which a field has these bytes, and is declared to be of this kind."""
    columns = [field(f"f{own}", own, kind if kind and own == changed else known) for own, known, _ in ENTRY]
    schema = record(field("status", 0, "int"), field("data_file", 2, record(*columns)))
    row = number(1) + b"".join(data if own == changed else given for own, _, given in ENTRY)
    return container(schema, (1, row))


def test_a_list_made_by_hand_is_read() -> None:
    (found,) = read("list", container(record(*LIST), (1, ROW), codec="null"))
    assert (found.manifest_path, found.manifest_length, found.added_snapshot_id) == ("m.avro", 9, 7)
    assert len(read("list", container(record(*LIST), (0, b""), (2, ROW * 2), (1, ROW)))) == 3
    assert read("list", container(record(*LIST))) == []


SUMMARY = record(field("contains_null", 509, "boolean"), field("lower_bound", 510, ["null", "bytes"]))


@pytest.mark.attack
@pytest.mark.parametrize("huge", [*HUGE, *(-size for size in HUGE), -1])
@pytest.mark.parametrize(
    ("column", "begin"),
    [
        (field("partitions", 507, array(SUMMARY)), b""),
        (field("partitions", 507, array(SUMMARY)), number(1) + b"\1" + number(1)),
        (field("key_metadata", 519, "bytes"), b""),
        (field("more", 999, "bytes"), b""),
        (field("more", 999, ["null", "string"]), number(1)),
        (field("more", 999, {"type": "fixed", "name": "f", "size": 1 << 40}), b""),
    ],
    ids=["summaries", "a bound", "a key", "unread bytes", "an unread text", "an unread value of a fixed size"],
)
def test_a_length_is_not_believed(column: Any, begin: bytes, huge: int) -> None:
    """Neither in a column that is read nor in one that is passed over."""
    for rest in (b"", b"\2" * 40, number(-5) * 9):
        block = ROW + begin + number(huge) + rest
        with memory_budget(BUDGET), pytest.raises(CorruptError, match=REFUSED):
            read("list", container(record(*LIST, column), (1, block)))


@pytest.mark.attack
@pytest.mark.parametrize("huge", [*HUGE, *(-size for size in HUGE), -1])
@pytest.mark.parametrize("field_id", [*range(108, 111), 125, 128, 132, 100])
def test_a_length_of_an_entry_is_not_believed(field_id: int, huge: int) -> None:
    for rest in (b"", b"\2" * 40):
        with memory_budget(BUDGET), pytest.raises(CorruptError, match=REFUSED):
            read("manifest", entry_with(field_id, number(huge) + rest))


UNSIGNED = 2**64 - 1
"""PyIceberg has no negative numbers where there are many."""
INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 20_000), max_size=20)


@given(INTEGERS)
def test_numbers_are_read_one_by_one_and_together(numbers: list[int]) -> None:
    data = b"".join(map(number, numbers))
    one_by_one, together = CheckedDecoder(data), CheckedDecoder(data + b"\2")
    assert [one_by_one.read_int() for _ in numbers] == numbers
    found = together.read_ints(len(numbers))
    assert [each & UNSIGNED for each in found] == [each & UNSIGNED for each in numbers]
    assert (one_by_one.left, together.left) == (0, 1)
    for more in (2, -1):
        with pytest.raises(EOFError):
            together.read_ints(more)


@pytest.mark.attack
def test_a_number_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(CorruptError, match="more than 64 bits"):
        read("manifest", entry_with(103, b"\xff" * 9 + b"\2"))


@pytest.mark.attack
@pytest.mark.parametrize("count", [*HUGE, -1, -(1 << 62), 2])
def test_a_count_of_rows_is_not_believed(count: int) -> None:
    with memory_budget(BUDGET), pytest.raises(CorruptError, match=REFUSED):
        read("list", container(record(*LIST), (count, ROW)))


@pytest.mark.attack
@pytest.mark.parametrize("size", [10, 1 << 16, 1 << 20])
def test_a_number_has_an_end(size: int) -> None:
    endless = b"\xff" * size + b"\1\1"
    for field_id, begin in ((103, b""), (100, b""), (109, b"\2\2"), (125, b"\2"), (125, b"\2\2"), (132, b"\4")):
        with memory_budget(BUDGET), pytest.raises(CorruptError, match="a number has more than 10 bytes"):
            read("manifest", entry_with(field_id, begin + endless))


@pytest.mark.attack
@pytest.mark.parametrize(
    "empty",
    ["null", record(), record(field("a", 903, record())), {"type": "fixed", "name": "f", "size": 0}],
    ids=["null", "a record", "a record of a record", "a fixed size of 0"],
)
def test_values_without_bytes_are_refused(empty: Any) -> None:
    """A few bytes would claim any number of them."""
    pairs = {**PAIRS, "items": record(field("key", 901, empty), field("value", 902, empty))}
    many = number(1 << 62) + b"\0"
    for field_id, kind in ((132, array(empty)), (109, pairs)):
        with pytest.raises(CorruptError, match=r"the fields \[.*\] of its schema have no bytes"):
            read("manifest", entry_with(field_id, many, kind))
    fields = [field(f"f{place}", 10_000 + place, empty) for place in range(2)]
    with pytest.raises(CorruptError, match=r"the fields \[10000, 10001\] of its schema have no bytes"):
        read("manifest", entry_with(102, b"\2", record(field("n", 903, "int"), *fields)))


@pytest.mark.attack
@pytest.mark.parametrize("levels", [1, 50, 500, 5000, 100_000])
def test_a_schema_that_is_nested_deeply_is_refused(levels: int) -> None:
    inner, deep = b"", json.dumps(array("long")).encode().split(b'"long"')
    shown = json.dumps(record(*LIST, field("more", 999, "KIND"))).encode()
    inner = deep[0] * levels + b'"long"' + deep[1] * levels
    with memory_budget(BUDGET), pytest.raises(CorruptError, match="is damaged"):
        read("list", container(shown.replace(b'"KIND"', inner), (1, ROW + b"\2" * levels)))


@pytest.mark.attack
@pytest.mark.parametrize(
    ("codec", "pack"),
    [
        ("deflate", lambda data: zlib.compress(data, 9, -15)),
        ("zstandard", lambda data: ZstdCompressor(level=19).compress(data)),
        ("bzip2", bz2.compress),
    ],
)
def test_what_unpacks_to_much_more_is_refused(codec: Codec, pack: Callable[[bytes], bytes]) -> None:
    bomb = pack(bytes(32 << 20))
    with memory_budget(BUDGET), pytest.raises(CorruptError, match="unpacks to more than"):
        read("list", container(record(*LIST), (1, bomb), codec=codec))
    small = pack(bytes(1 << 20))
    with memory_budget(BUDGET), pytest.raises(CorruptError, match=r"unpacks to more than|cannot be in|left behind"):
        read("list", container(record(*LIST), *[(1, small)] * 3, codec=codec))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: b"PAR1" + data[4:], "no file of Avro"),
        (lambda data: data[:-1] + b"t", "another end"),
        (lambda data: data.replace(b"null", b"lz77", 1), "its codec is unknown: lz77"),
        (lambda data: data.replace(b"avro.schema", b"avro.scheme"), "No schema"),
    ],
)
def test_an_error_says_what_is_wrong(change: Callable[[bytes], bytes], why: str) -> None:
    with pytest.raises(CorruptError, match=rf"the list of manifests `list\.avro` is damaged: ValueError: .*{why}"):
        read("list", change(container(record(*LIST), (1, ROW))))


def test_a_manifest_with_fewer_entries_than_its_list_says_is_refused() -> None:
    entries = written("null").entries
    with pytest.raises(CorruptError, match="it has 3 entries, and its list says 4"):
        read("manifest", entries, 2, 1, 1)
    assert len(read("manifest", entries, None, 1, 1)) == ENTRIES


def test_no_file_of_a_table_reaches_the_decoder_in_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of commits, of a snapshot, of files that rows were deleted from, and writes."""
    table = WrittenIceberg(tmp_path)
    table.append([{"n": 1, "text": "a"}, {"n": 2, "text": "b"}])
    table.delete_by_position(0)

    def refuse(data: bytes) -> None:
        raise AssertionError("PyIceberg reads a file itself")

    monkeypatch.setattr("pyiceberg.avro.file.new_decoder", refuse)
    with pytest.raises(AssertionError, match="reads a file itself"):
        table.rows()
    system = table.system(partitions="1")
    walk(system.lake.log("orders"))
    with closing(system.writer(None)) as writer:
        writer.append(of(0), [(1, None, b'{"n": 3, "text": "c"}')])
    assert [row["n"] for row in all_rows(system, "snapshot")] == [2, 3]
