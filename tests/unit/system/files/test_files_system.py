"""Folders as streams: every row of every file once, in an order that stays."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import random
import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow import fs

from penstock.api.requests import StartpointSpecific
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError, RetryableError
from penstock.objects.open import open_store
from penstock.system.base import ColumnChunk, RawMessage
from penstock.system.contract.messages import UnreadableRow, unreadable_row
from penstock.system.files import listing
from penstock.system.files.formats import SourceFile, read_columns
from penstock.system.files.listing import FoundFile, Listing
from penstock.system.files.system import FilesSystem
from penstock.system.registry import open_system
from tests.support.stores.hooked_store import RetriedWrites
from tests.support.streams.folder import STREAM, Room, chunks, csv, jsonl, numbered, of, parquet
from tests.support.tools.configs import load


@pytest.mark.parametrize(
    ("ending", "write"),
    [
        ("parquet", parquet),
        ("json", jsonl),
        ("jsonl.gz", lambda rows: gzip.compress(jsonl(rows))),
        ("csv", csv),
        ("csv.gz", lambda rows: gzip.compress(csv(rows))),
    ],
)
def test_every_row_once_in_any_portions(
    room: Room, ending: str, write: Callable[[list[dict[str, Any]]], bytes]
) -> None:
    expected = []
    for n, count in enumerate([130, 1, 0, 77]):
        rows = numbered(1000 * n, count)
        expected += [{**row, "n": str(row["n"])} for row in rows] if ending.startswith("csv") else rows
        if count:
            room.put(f"{n}.{ending}", write(rows), modified_s=1_700_000_000 + n)
    ends = room.ends(partitions=2)
    whole = room.rows(ends)
    assert sorted((json.loads(m[3] or b"") for own in whole.values() for m in own), key=str) == sorted(
        expected, key=str
    )
    rng = random.Random(ending)
    for partition, end in ends.items():
        found: list[RawMessage] = []
        position = 0
        reader = room.system().reader()
        while position < end:
            if rng.random() < 0.3:  # another worker continues
                reader.close()
                reader = room.system().reader()
            for chunk in reader.read(of(partition, position, end), rng.choice([1, 7, 40])):
                found += chunk
                position = chunk[-1][0] + 1
                break
            else:
                position = end
        reader.close()
        assert found == whole[partition]


def test_new_files_come_behind_those_that_were_listed(room: Room) -> None:
    room.put("b.json", jsonl(numbered(10, 2)))
    first = room.rows(room.ends(partitions=1))
    room.put("a.json", jsonl(numbered(0, 2)), modified_s=1_600_000_000)
    room.put("_temporary/0.json", jsonl(numbered(90, 1)))
    room.put("_SUCCESS", b"x")
    (room.folder / "empty.json").touch()
    ends = room.ends()
    assert ends == {0: 2 << listing.ROW_BITS}
    rows = room.rows(ends)[0]
    assert rows[:2] == first[0]
    assert [json.loads(m[3] or b"")["n"] for m in rows] == [10, 11, 0, 1]
    assert [m[1] for m in rows] == [1_700_000_000_000] * 2 + [1_600_000_000_000] * 2


def test_several_processes_that_look_at_once_list_every_file_once(room: Room) -> None:
    admins = [room.system(poll_ms=1).admin() for _ in range(3)]
    for n in range(12):
        room.put(f"{n}.json", jsonl(numbered(10 * n, 3)))
        admins[n % 3]._next_look.clear()
        admins[n % 3].offsets(STREAM)
    seen = []
    for admin in admins:
        admin._next_look.clear()
        seen.append(admin.offsets(STREAM))
        admin.close()
    assert seen[0] == seen[1] == seen[2]
    assert sorted(row["n"] for row in room.all()) == [10 * n + k for n in range(12) for k in range(3)]


def test_the_listing_is_read_from_its_last_whole_object_on(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "WHOLE_EVERY", 4)
    for n in range(11):
        room.put(f"{n}.json", jsonl(numbered(n, 1)))
        room.ends()
    (whole,) = (room.home / "jobs" / "_files").rglob("whole/*")
    assert whole.name == f"{8:020d}"
    for number in range(1, 9):
        (whole.parent.parent / "log" / f"{number:020d}").unlink()
    assert [row["n"] for row in sorted(room.all(), key=lambda row: int(row["n"]))] == list(range(11))


def test_values_as_json(room: Room) -> None:
    row = {
        "at": datetime(2024, 5, 1, 12, 30, tzinfo=UTC),
        "local": datetime(2024, 5, 1, 12, 30, 0, 250_000),  # noqa: DTZ001 - Spark has such times
        "day": date(2024, 5, 1),
        "exact": Decimal("12.340"),
        "data": b"\x00\xff",
        "nested": {"a": [1, None]},
    }
    room.put("part-0.snappy.parquet", parquet([row]))
    assert room.all() == [
        {
            "at": "2024-05-01T12:30:00Z",
            "local": "2024-05-01T12:30:00.250000",
            "day": "2024-05-01",
            "exact": "12.340",
            "data": "AP8=",
            "nested": {"a": [1, None]},
        }
    ]


def reason(data: bytes) -> str:
    """Why a row could not be read."""
    row = unreadable_row(data)
    assert row is not None
    assert row.data is None
    return row.reason


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, float("-inf")], {"a": [None, float("nan")]}])
def test_numbers_that_json_does_not_have_are_failed_messages_by_row_and_kept_by_column(room: Room, value: Any) -> None:
    data = parquet([{"x": None}, {"x": value}, {"x": None}])
    room.put("a.parquet", data)
    rows = [message[3] or b"" for own in room.rows(room.ends()).values() for message in own]
    assert rows[::2] == [b'{"x":null}'] * 2
    assert reason(rows[1]).startswith("`a.parquet`, row 1, counted from 0: the column `x` has a NaN or an infinity")
    schema = pyarrow.parquet.read_schema(io.BytesIO(data))
    file = SourceFile(fs.LocalFileSystem(), str(room.folder / "a.parquet"), "a.parquet", "a.parquet", {})
    (found,) = read_columns(file, 0, schema, 10)
    assert repr(found.to_pylist()) == repr([{"x": None}, {"x": value}, {"x": None}])


FAR_US = 253402300800_000_000
"""The first microsecond of the year 10000."""


@pytest.mark.parametrize(
    ("kind", "near", "shown", "far"),
    [
        (pa.timestamp("us", "Asia/Tokyo"), FAR_US - 1000, "9999-12-31T23:59:59.999000Z", [FAR_US, 1 << 62, -(1 << 62)]),
        (pa.timestamp("us", "America/Lima"), -62135596800_000_000, "0001-01-01T00:00:00Z", [-62135596800_000_001]),
        (pa.timestamp("us"), FAR_US - 1000, "9999-12-31T23:59:59.999000", [FAR_US]),
        (pa.timestamp("ms", "UTC"), 0, "1970-01-01T00:00:00Z", [1 << 60]),
        (pa.date32(), 2932896, "9999-12-31", [2932897, 1 << 30, -(1 << 30)]),
        (pa.list_(pa.timestamp("us", "Asia/Tokyo")), [FAR_US - 1000], ["9999-12-31T23:59:59.999000Z"], [[0, FAR_US]]),
        (pa.struct({"a": pa.timestamp("us")}), {"a": 0}, {"a": "1970-01-01T00:00:00"}, [{"a": FAR_US}]),
    ],
)
def test_a_time_that_python_does_not_have_is_one_failed_message(
    room: Room, kind: pa.DataType, near: Any, shown: Any, far: list[Any]
) -> None:
    def cells(values: list[Any]) -> pa.Array:
        plain = pa.array(values, pa.int32() if pa.types.is_date(kind) else pa.int64()) if not_nested else None
        return pa.array(values, nested).cast(kind) if plain is None else plain.cast(kind)

    not_nested = not pa.types.is_nested(kind)
    nested = pa.list_(pa.int64()) if pa.types.is_list(kind) else pa.struct({"a": pa.int64()})
    sink = pa.BufferOutputStream()
    table = pa.table({"n": range(len(far) + 2), "t": cells([near, *far, near])})
    pa.parquet.write_table(table, sink)
    room.put("day=1/a.parquet", bytes(sink.getvalue()))
    rows = [message[3] or b"" for own in room.rows(room.ends()).values() for message in own]
    good = [{"n": n, "t": shown, "day": "1"} for n in (0, len(far) + 1)]
    assert [json.loads(rows[0]), json.loads(rows[-1])] == good
    for number, row in enumerate(rows[1:-1], 1):
        begin = f"`day=1/a.parquet`, row {number}, counted from 0: the column `t` has a time beyond"
        assert reason(row).startswith(begin)
        with pytest.raises(json.JSONDecodeError):
            json.loads(row)


def test_text_of_parquet_that_is_not_utf_8_is_one_failed_message(room: Room) -> None:
    text = pa.array([b"a", b"\xff", b"b"]).view(pa.string())
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.table({"t": text}), sink)
    room.put("a.parquet", bytes(sink.getvalue()))
    rows = [message[3] for own in room.rows(room.ends()).values() for message in own]
    failed = UnreadableRow("`a.parquet`, row 1, counted from 0: the column `t` has text that is not UTF-8", None)
    assert rows == [b'{"t":"a"}', failed.message(), b'{"t":"b"}']


def test_partition_columns(room: Room) -> None:
    room.put("year=2024/place=New%20York/a.parquet", parquet([{"n": 1}]))
    room.put("year=2025/place=__HIVE_DEFAULT_PARTITION__/a.json", b'{"n": 2}\n{}\nno object\n')
    found = [m[3] for own in room.rows(room.ends()).values() for m in own]
    assert set(found) == {
        b"no object",
        b'{"n":1,"year":"2024","place":"New York"}',
        b'{"n": 2,"year":"2025","place":null}',
        b'{"year":"2025","place":null}',
    }


def test_columns_that_the_newest_file_lacks(room: Room) -> None:
    def missing(*names: str) -> list[str]:
        with closing(room.system(partitions=1).admin()) as admin:
            admin.offsets(STREAM)
            return list(admin.missing_columns(STREAM, names))

    assert missing("n", "m") == []
    room.put("year=2024/a.parquet", parquet([{"n": 1, "old": 2}]), 1_700_000_000)
    newest = room.put("year=2024/b.parquet", parquet([{"n": 1, "new": 2}]), 1_700_000_100)
    assert missing("n", "new", "year") == []
    assert missing("n", "nn", "old") == ["nn", "old"]
    newest.unlink()
    assert missing("nn") == [], "the file that is gone may have been read"
    room.put("c.json", b"{}", 1_700_000_200)
    assert missing("nn") == []


def test_files_that_change_or_go(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    room.put("a.json", jsonl(numbered(0, 5)))
    ends = room.ends(partitions=1)
    path = room.put("a.json", jsonl(numbered(0, 6)))
    with pytest.raises(CorruptError, match=r"a.json` was changed after it was listed: .* Put the earlier one back"):
        room.rows(ends)
    sizes = [len(jsonl(numbered(0, count))) for count in (5, 6)]
    with pytest.raises(CorruptError, match=r"it had {:,} bytes, and has {:,}\.".format(*sizes)):
        room.rows(ends)
    assert room.ends() == ends
    assert "1 file changed after being listed, and will not be read again: a.json" in caplog.text
    path.unlink()
    with pytest.raises(NotFoundError, match=r"a.json` is gone. It is listed, and was not read to its end"):
        room.rows(ends)


@pytest.mark.parametrize(
    ("modified_ms", "after"),
    [(1_699_999_999_000, "2023-11-14T22:13:19.000Z"), (1_700_000_000_001, "2023-11-14T22:13:20.001Z")],
)
def test_a_file_of_the_same_size_that_was_written_again(room: Room, modified_ms: int, after: str) -> None:
    path = room.put("a.json", b'{"n":1}')
    ends = room.ends(partitions=1)
    os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
    with pytest.raises(CorruptError) as error:
        room.rows(ends)
    times = f"was last modified at {after}, not at 2023-11-14T22:13:20.000Z"
    assert f"it has its 7 bytes still, and {times}" in str(error.value)


def test_files_that_cannot_be_read(room: Room) -> None:
    room.put("a.parquet", b"no parquet")
    with pytest.raises(CorruptError, match=r"a.parquet` cannot be read: "):
        room.all()
    room.put("a.dat", b"x")
    with pytest.raises((ConfigError, CorruptError), match=r"its name does not say its format|cannot be read"):
        room.all()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json.gz", gzip.compress(jsonl(numbered(0, 5000)), mtime=0)[:2000]),
        ("a.parquet", parquet(numbered(0, 500))[:2000]),
        ("a.csv", b"a\xff\xfe\n1\n"),
        ("a.csv", b"a,b,a\n1,2,3\n"),
        ("a.csv", b'a,b\n1,2\n3,"4\n5,6\n'),
        ("a.csv.gz", gzip.compress(b"a\n" * 5000, mtime=0)[:30]),
    ],
)
def test_damaged_files_are_not_tried_again(room: Room, name: str, data: bytes) -> None:
    room.put(name, data)
    with pytest.raises(CorruptError, match=f"{name}` cannot be read: "):
        room.all()


ROWS = jsonl(numbered(0, 500))
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "bz2": bz2.compress,
    "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    "lz4": lambda data: pa.compress(data, "lz4", asbytes=True),
}


@pytest.mark.parametrize("ending", PACKED)
def test_packed_files_of_several_members(room: Room, ending: str) -> None:
    pack = PACKED[ending]
    parts = [ROWS[:0], ROWS[:1001], ROWS[1001:], ROWS[:0]]
    room.put(f"a.json.{ending}", b"".join(pack(part) for part in parts))
    assert room.all() == numbered(0, 500)


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data[:5],
        lambda data: data + b"garbage, as of a copy that went wrong",
        lambda data: data + data[: len(data) // 2],
        lambda data: b"{}" + data,
    ],
    ids=["half", "last", "head", "behind", "second", "before"],
)
def test_a_damaged_packed_file_is_named_with_what_to_do(room: Room, ending: str, damage: Any) -> None:
    room.put(f"a.json.{ending}", damage(PACKED[ending](ROWS)))
    with pytest.raises(CorruptError, match=rf"a.json.{ending}` cannot be read: .* cut off or damaged.* startpoint"):
        room.all()


@pytest.mark.parametrize("at", [-8, -5, -4, -1])
def test_a_gzip_file_whose_checksum_or_length_is_wrong(room: Room, at: int) -> None:
    data = bytearray(PACKED["gz"](ROWS))
    data[at] ^= 1
    room.put("a.csv.gz", bytes(data))
    with pytest.raises(CorruptError, match=r"a.csv.gz` cannot be read: .* cut off or damaged.* \(zlib .*check"):
        room.all()


NS = 1_704_067_200_123_456_789


@pytest.mark.parametrize(("zone", "end"), [(None, ""), ("UTC", "Z"), ("Asia/Tokyo", "+09:00")])
def test_nanoseconds_keep_their_digits_by_row_and_by_column(room: Room, zone: str | None, end: str) -> None:
    kind = pa.timestamp("ns", zone)
    times = pa.array([NS, NS - 789, None, -1, 0], pa.int64()).cast(kind)
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.table({"t": times}), sink)
    room.put("a.parquet", bytes(sink.getvalue()))
    hour, day = ("09", "01") if zone == "Asia/Tokyo" else ("00", "31")
    before = f"1970-01-01T08:59:59.999999999{end}" if day == "01" else f"1969-12-31T23:59:59.999999999{end}"
    assert [row["t"] for row in room.all()] == [
        f"2024-01-01T{hour}:00:00.123456789{end}",
        f"2024-01-01T{hour}:00:00.123456{end}",
        None,
        before,
        f"1970-01-01T{hour}:00:00{end}",
    ]
    (found,) = chunks(room, pa.schema({"t": kind}))
    assert isinstance(found, ColumnChunk)
    assert found.values.field(0).equals(times)
    declared = pa.schema({"t": pa.timestamp("us", zone)})
    wanted = re.escape(f'pa.timestamp("ns"{"" if zone is None else f", {chr(34)}{zone}{chr(34)}"}), and round')
    with pytest.raises(IncompatibleError, match=rf"column `t` of .*a.parquet` has the type timestamp\[ns.*{wanted}"):
        chunks(room, declared)


def test_times_of_day_keep_their_digits_and_maps_their_keys(room: Room) -> None:
    sink = pa.BufferOutputStream()
    times = pa.array([1, 86_399_999_999_999, 1000, None], pa.int64()).cast(pa.time64("ns"))
    maps = pa.array([[("a", 1), ("b", None)], [], None, [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    pa.parquet.write_table(pa.table({"t": times, "m": maps}), sink)
    room.put("a.parquet", bytes(sink.getvalue()))
    rows = [message[3] or b"" for own in room.rows(room.ends()).values() for message in own]
    assert [json.loads(row) for row in rows[:3]] == [
        {"t": "00:00:00.000000001", "m": {"a": 1, "b": None}},
        {"t": "23:59:59.999999999", "m": {}},
        {"t": "00:00:00.000001", "m": None},
    ]
    assert reason(rows[3]) == "`a.parquet`, row 3, counted from 0: a map has a key twice"


def test_nested_nanoseconds_are_no_rows(room: Room) -> None:
    sink = pa.BufferOutputStream()
    times = pa.array([[0], [NS]], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("ns")))
    pa.parquet.write_table(pa.table({"t": times}), sink)
    room.put("a.parquet", bytes(sink.getvalue()))
    rows = [message[3] or b"" for own in room.rows(room.ends()).values() for message in own]
    assert rows[0] == b'{"t":["1970-01-01T00:00:00"]}'
    begin = "`a.parquet`, row 1, counted from 0: the column `t` has nested times with nanoseconds"
    assert reason(rows[1]).startswith(begin)


@pytest.mark.parametrize("kind", [pa.date32(), pa.time64("us"), pa.duration("us"), pa.int64(), pa.string()], ids=str)
def test_a_point_in_time_is_not_cut_to_a_part_of_it(room: Room, kind: pa.DataType) -> None:
    room.put("a.parquet", parquet([{"t": datetime(2024, 1, 1, 12, 30, tzinfo=UTC)}]))
    with pytest.raises(IncompatibleError, match=r'Declare the column as .*pa.timestamp\("us", "UTC"'):
        chunks(room, pa.schema({"t": kind}))


@pytest.mark.parametrize(
    ("number", "data", "says"),
    [
        (0, b'{"format":1,"identity":"i","folder":"f","partitions":1099511627776}', "partitions"),
        (1, b'{"files":[["a.json",1,1,4]]}', "a partition that the stream does not have"),
    ],
)
def test_a_damaged_listing_is_refused(tmp_path: Path, number: int, data: bytes, says: str) -> None:
    objects = open_store(str(tmp_path))
    if number:
        Listing(objects, "p", "f").begin(4)
    objects.put_if_absent(f"p/log/{number:020d}", data)
    with pytest.raises(CorruptError, match=says):
        Listing(objects, "p", "f").read()


def test_a_listing_knows_its_own_objects_whose_replies_were_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "WHOLE_EVERY", 2)
    objects = open_store(str(tmp_path))
    own, others = Listing(RetriedWrites(objects), "p", "f"), Listing(objects, "p", "f")
    assert own.begin(1)
    assert not others.begin(1)
    assert [own.append([FoundFile(name, 1, 1)]) for name in ("a", "b")] == [True, True]
    assert objects.list("p/whole"), "the object of all files is written"
    others.read()
    own.append([FoundFile("c", 1, 1)])
    assert not others.append([FoundFile("d", 1, 1)])
    assert [file.path for file in others.files[0]] == ["a", "b", "c"]


def test_files_without_rows_and_names_of_any_kind(room: Room) -> None:
    room.put("a.parquet", b"")
    room.put("b.parquet", parquet([]))
    room.put("c.json", b"\n \n")
    room.put("d.csv", b"\n")
    room.put("e.csv", b"n\n")
    room.put("a b = 100% #1?.json", b'\xef\xbb\xbf{"n":1}\r\n{"n":2}')
    room.put("day=1 May/k=a=b/x=1.json", b'{"n":3}\n')
    for hidden in ("_temporary/a.json", ".hidden/a.json", ".a.json", "_a.json", "day=2/.a.json.crc"):
        room.put(hidden, b'{"n":0}\n')
    assert sorted(room.all(), key=lambda row: row["n"]) == [{"n": 1}, {"n": 2}, {"n": 3, "day": "1 May", "k": "a=b"}]


def test_links_to_folders_are_followed_but_not_in_a_circle(room: Room, tmp_path: Path) -> None:
    room.put("a.json", b'{"n":1}')
    room.put("day=1/night/b.json", b'{"n":2}')
    elsewhere = room.put("../elsewhere/c.json", b'{"n":3}').parent
    other = room.put("../other/d.json", b'{"n":4}').parent
    for link, target in (
        (room.folder / "day=1" / "night" / "above", room.folder / "day=1"),
        (room.folder / "linked", elsewhere),
        (elsewhere / "back", room.folder),
        (room.folder / "day=1" / "place=1", other),
        (room.folder / "day=1" / "place=2", other),
    ):
        link.symlink_to(target)
    assert sorted(map(json.dumps, room.all(links="follow"))) == [
        '{"n": 1}',
        '{"n": 2, "day": "1"}',
        '{"n": 3}',
        '{"n": 4, "day": "1", "place": "1"}',  # two partitions may be one folder
        '{"n": 4, "day": "1", "place": "2"}',
    ]


def test_a_folder_that_goes_is_no_empty_one(room: Room, tmp_path: Path) -> None:
    path = room.put("a.json", jsonl(numbered(0, 5)))
    ends = room.ends()
    path.unlink()
    assert room.ends() == ends, "everything in it was read and deleted"
    path.parent.rmdir()
    with pytest.raises(RetryableError, match=r"the folder `.*` of `files.*` is gone"):
        room.ends()
    path.parent.mkdir()
    assert room.ends() == ends


def test_ranges_that_are_not_there(room: Room) -> None:
    with closing(room.system().reader()) as reader, pytest.raises(NotFoundError, match="has no listing"):
        list(reader.read(of(0, 0, 1), 10))
    room.put("a.json", jsonl(numbered(0, 5)))
    (end, *_) = room.ends(partitions=1).values()
    with closing(room.system().reader()) as reader, pytest.raises(NotFoundError, match="upcoming one is"):
        list(reader.read(of(0, 0, end + 1), 10))


def test_looking_at_streams(room: Room) -> None:
    with closing(room.system().admin()) as admin:
        assert admin.streams() == [STREAM]
        assert admin.partition_count(STREAM) == 4
        with pytest.raises(NotFoundError, match=r"the folder `.*/data/others` does not exist"):
            admin.partition_count("others")
        assert admin.create_stream("others", 3)
        assert not admin.create_stream("others", 3)
        with pytest.raises(IncompatibleError, match="exists with 3 partitions, not 4"):
            admin.create_stream("others", 4)
        assert admin.stream_identity("others") != admin.stream_identity(STREAM)
        for n in range(3):
            room.put(f"{n}.json", jsonl(numbered(0, 1)), modified_s=1_700_000_000 + n)
    with closing(room.system(listing=room.home / "another", partitions=1).admin()) as admin:
        admin.offsets(STREAM)
        ssp = SystemStreamPartition("files", STREAM, 0)
        found = [admin.offset_at_time(ssp, 1_700_000_000_000 + ms) for ms in (-1, 1000, 1001, 9000)]
        assert [offset >> listing.ROW_BITS for offset in found] == [0, 1, 2, 3]
    with closing(room.system(partitions=2).admin()) as admin, pytest.raises(IncompatibleError, match="was listed"):
        admin.partition_count(STREAM)


def test_options(room: Room) -> None:
    config = load("systems.in.samza.factory=files", f"systems.in.folder={room.home}", f"job.root={room.home}/jobs")
    system = open_system(config.system("in"))
    assert isinstance(system, FilesSystem)
    assert system.listing == f"file://{room.home}/jobs/_files"
    for option, said in [
        ("format", "it is parquet, json, csv"),
        ("partitions", "is not a number from 1"),
        ("x", "unknown options: "),
    ]:
        with pytest.raises(ConfigError, match=said):
            room.system(**{option: "0"})
    with pytest.raises(ConfigError, match=r"systems.files.folder` is missing"):
        room.system(folder="")
    with pytest.raises(ConfigError, match=r"systems.files.schema.rides`: .*`STRONG` is not a type"):
        room.system(schema_rides="user STRONG")


def test_a_file_and_a_row_name_an_offset(room: Room) -> None:
    for number, name in enumerate(("a.json", "b/c.json", "d:1.json", "7")):
        room.put(name, b"".join(b'{"n": %d}\n' % (10 * number + row) for row in range(3)))
    with closing(room.system(partitions=2, format="json").admin()) as admin:
        ends = admin.offsets(STREAM)
    with closing(room.system(partitions=2, format="json").reader()) as reader:
        rows = {
            n: [each for chunk in reader.read(of(n, 0, own.upcoming), 9) for each in chunk] for n, own in ends.items()
        }
    with closing(room.system(partitions=2, format="json").admin()) as admin:
        at = {json.loads(value or b"")["n"]: (n, offset) for n, own in rows.items() for offset, _, _, value, *_ in own}
        names = {"a.json": 0, "a.json:0": 0, "a.json:2": 2, "b/c.json:1": 11, "d:1.json": 20, "d:1.json:2": 22, "7": 30}
        for name, value in names.items():
            partition, offset = at[value]
            here, other = (SystemStreamPartition("files", STREAM, n) for n in (partition, 1 - partition))
            assert admin.resolve_startpoint_to_offset(here, StartpointSpecific(name)) == offset
            with pytest.raises(IncompatibleError, match=f"is in a file of partition {partition}, not of"):
                admin.resolve_startpoint_to_offset(other, StartpointSpecific(name))
        ssp = SystemStreamPartition("files", STREAM, 0)
        assert admin.resolve_startpoint_to_offset(ssp, StartpointSpecific("1")) == 1
        for name in ("missing.json", "a.json:x", f"a.json:{2**32}", "a.json:-1"):
            with pytest.raises(IncompatibleError, match="an integer, or the path of a listed file"):
                admin.resolve_startpoint_to_offset(ssp, StartpointSpecific(name))
