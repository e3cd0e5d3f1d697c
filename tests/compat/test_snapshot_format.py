"""Snapshots and markers of `changelog-files` as they were first written stay readable."""

from __future__ import annotations

import hashlib
import io
import zipfile

import pytest

from penstock.errors import CorruptError, IncompatibleError
from penstock.state.backends.changelog_files.versions import ChangelogMarker, StoreSnapshot
from penstock.state.backends.objects import DirIndex, FileBlob, FileIndex
from tests.support.tools.places import GOLDEN

SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
SNAPSHOT = StoreSnapshot(
    (12, 3),
    "aircraft",
    5,
    DirIndex.of({"000008.sst": FileIndex("000008.sst", 4, SHA, (FileBlob(f"2-1700000000000-7-{SHA}", 0),))}),
    {"CURRENT": b"MANIFEST-000005\n", "sub/options": b"\x00\xff"},
)


def test_a_snapshot_of_format_1_is_read() -> None:
    assert StoreSnapshot.decode((GOLDEN / "snapshot-format1.zip").read_bytes(), "golden") == SNAPSHOT


def test_any_zip_tool_reads_a_snapshot() -> None:
    with zipfile.ZipFile(GOLDEN / "snapshot-format1.zip") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["snapshot.json", "files/CURRENT", "files/sub/options"]
        assert archive.read("files/CURRENT") == b"MANIFEST-000005\n"


def test_a_snapshot_round_trips_and_equal_ones_are_equal_bytes() -> None:
    assert SNAPSHOT.encode() == SNAPSHOT.encode()
    assert StoreSnapshot.decode(SNAPSHOT.encode(), "here") == SNAPSHOT


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "longer", "no zip"])
def test_a_damaged_snapshot_is_named(damage: str) -> None:
    data = SNAPSHOT.encode()
    damaged = {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "flipped": data[:40] + bytes([data[40] ^ 1]) + data[41:],
        "longer": data + b"x",
        "no zip": b"0" * 200,
    }[damage]
    with pytest.raises(CorruptError, match=r"snapshot `a/b/12\.3\.zip` is damaged"):
        StoreSnapshot.decode(damaged, "a/b/12.3.zip")


def test_a_newer_format_is_refused_as_such() -> None:
    data = SNAPSHOT.encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        new.writestr("snapshot.json", old.read("snapshot.json").replace(b'"format":1', b'"format":2'))
        new.comment = b"0" * 64
    body = buffer.getvalue()[:-64]
    with pytest.raises(IncompatibleError, match="format 2"):
        StoreSnapshot.decode(body + hashlib.sha256(body).hexdigest().encode(), "newer")


def test_markers_with_and_without_snapshots() -> None:
    first = '{"format":1,"version":3,"epoch":2,"lineage":[[1,1,2],[2,3,3]]}'
    assert ChangelogMarker.parse(first) == ChangelogMarker(3, ((1, 1, 2), (2, 3, 3)))
    second = (GOLDEN / "changelog-files-marker-format1.json").read_text("utf-8").strip()
    marker = ChangelogMarker(12, ((1, 5, 9), (3, 10, 12)), ((9, 1), (4, 1)))
    assert ChangelogMarker.parse(second) == marker
    assert marker.serialize() == second
