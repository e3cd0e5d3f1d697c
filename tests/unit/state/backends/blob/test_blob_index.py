"""Indexes, markers and names of the blob backend, as they are written and as they may be found."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.record import CheckpointId
from penstock.errors import CorruptError, IncompatibleError
from penstock.job.paths import JobPaths
from penstock.state.backends.blob import BlobMarker, SnapshotIndex, blob_names, epoch_of, index_name, is_index
from penstock.state.backends.objects import DirIndex, FileBlob, FileIndex, file_name

A, B, C = "a" * 64, "b" * 64, "c" * 64

# By hand, never regenerated: what format 1 looks like.
GOLDEN = f"""{{
  "format": 1,
  "checkpoint-id": "1614147487244-33577",
  "creation-time-millis": 1614147487244,
  "job-name": "flights",
  "job-id": "1",
  "task": 3,
  "store-name": "totals",
  "epoch": 7,
  "prev-snapshot-index-blob-id": "6-1614147480000-1.index",
  "dir-index": {{
    "dir-name": "",
    "files-present": [
      {{"file-name": "000008.sst", "size": 70, "sha256": "{A}", "blobs": [
        {{"blob-id": "6-1614147480000-1-{B}", "offset": 0}},
        {{"blob-id": "7-1614147487244-33577-{C}", "offset": 35}}
      ]}},
      {{"file-name": "empty", "size": 0, "sha256": "{C}", "blobs": []}}
    ],
    "sub-dirs-present": [
      {{"dir-name": "sub", "files-present": [
        {{"file-name": "x", "size": 1, "sha256": "{B}", "blobs": [{{"blob-id": "7-1-0-{B}", "offset": 0}}]}}
      ], "sub-dirs-present": []}}
    ]
  }}
}}"""

INDEX = SnapshotIndex(
    "1614147487244-33577",
    1614147487244,
    "flights",
    "1",
    3,
    "totals",
    7,
    "6-1614147480000-1.index",
    DirIndex.of(
        {
            "sub/x": FileIndex("x", 1, B, (FileBlob(f"7-1-0-{B}", 0),)),
            "empty": FileIndex("empty", 0, C, ()),
            "000008.sst": FileIndex(
                "000008.sst",
                70,
                A,
                (FileBlob(f"6-1614147480000-1-{B}", 0), FileBlob(f"7-1614147487244-33577-{C}", 35)),
            ),
        }
    ),
)


def changed(*path: str | int, to: Any) -> bytes:
    fields = orjson.loads(GOLDEN)
    at = fields
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = to
    return orjson.dumps(fields)


FILE = ("dir-index", "files-present", 0)


def test_the_golden_index_reads_and_writes_exactly() -> None:
    assert SnapshotIndex.decode(GOLDEN.encode(), "k") == INDEX
    assert orjson.loads(INDEX.encode()) == orjson.loads(GOLDEN)
    assert SnapshotIndex.decode(INDEX.encode(), "k") == INDEX


def test_parts_of_a_file() -> None:
    files = INDEX.directory.by_path()
    assert [(blob.sha256, blob.offset, size) for blob, size in files["000008.sst"].parts()] == [(B, 0, 35), (C, 35, 35)]
    assert list(files["empty"].parts()) == []
    assert sorted(files) == ["000008.sst", "empty", "sub/x"]


def test_a_first_index_has_none_before_it() -> None:
    assert SnapshotIndex.decode(changed("prev-snapshot-index-blob-id", to=None), "k").previous is None


def test_unknown_fields_are_ignored() -> None:
    assert SnapshotIndex.decode(changed("new", to={"a": 1}), "k") == INDEX
    assert SnapshotIndex.decode(changed(*FILE, "owner", to="root"), "k") == INDEX
    assert SnapshotIndex.decode(changed(*FILE, "blobs", 0, "compression", to="none"), "k") == INDEX


def test_a_newer_format_is_refused_as_such() -> None:
    with pytest.raises(IncompatibleError, match="index `k` has format 2; this Penstock reads formats up to 1"):
        SnapshotIndex.decode(changed("format", to=2), "k")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"7",
        GOLDEN.encode()[:-1],
        changed("format", to="x"),
        changed("checkpoint-id", to="x"),
        changed("task", to=None),
        changed("dir-index", to={}),
        changed("dir-index", "files-present", to=7),
        changed(*FILE, "size", to=35),
        changed(*FILE, "size", to=-1),
        changed(*FILE, "blobs", to=[]),
        changed(*FILE, "blobs", 0, "offset", to=1),
        changed(*FILE, "blobs", 1, "offset", to=0),
        changed(*FILE, "blobs", 1, "offset", to=70),
        changed(*FILE, "blobs", 0, "blob-id", to="../../../other/0/blob/x"),
        changed(*FILE, "blobs", 0, "blob-id", to="6-1-1.index"),
        changed(*FILE, "file-name", to=".."),
        changed(*FILE, "file-name", to="/etc/passwd"),
        changed(*FILE, "file-name", to="a/b"),
        changed(*FILE, "file-name", to=""),
        changed(*FILE, "file-name", to="empty"),
        changed(*FILE, "file-name", to="sub"),
        changed("dir-index", "sub-dirs-present", 0, "dir-name", to=".."),
    ],
)
def test_a_damaged_index_is_named(data: bytes) -> None:
    with pytest.raises(CorruptError, match="index `k` is damaged"):
        SnapshotIndex.decode(data, "k")


@given(
    st.dictionaries(
        st.lists(st.text("ab.0", min_size=1).map(lambda name: f"f{name}"), min_size=1, max_size=3).map("/d".join),
        st.integers(1, 10**12),
        max_size=8,
    )
)
def test_a_directory_round_trips(sizes: dict[str, int]) -> None:
    taken = {path.split("/")[0] for path in sizes if "/" in path}
    files = {
        path: FileIndex(path.rpartition("/")[2], size, A, (FileBlob(f"1-2-3-{A}", 0),))
        for path, size in sizes.items()
        if path not in taken and not any(other.startswith(f"{path}/") for other in sizes)
    }
    directory = DirIndex.of(files)
    assert directory.by_path() == files
    assert msgspec.json.decode(msgspec.json.encode(directory), type=DirIndex) == directory


def test_a_marker_as_it_is_written() -> None:
    marker = BlobMarker("7-1614147487244-33577.index", A)
    text = '{"format":1,"index":"7-1614147487244-33577.index","sha256":"' + A + '"}'
    assert marker.serialize() == text
    assert BlobMarker.parse(text) == marker
    assert BlobMarker.parse(text.replace('"format":1', '"format":1,"new":2')) == marker


@pytest.mark.parametrize("name", ["", "x", "../x.index", "7-1-0", f"7-1-0-{A}", "a/7-1-0.index", "07-1-0.index"])
def test_a_marker_names_an_index_and_nothing_else(name: str) -> None:
    with pytest.raises(CorruptError, match="blob backend"):
        BlobMarker.parse(orjson.dumps({"format": 1, "index": name, "sha256": A}).decode())


def test_a_marker_of_a_newer_format_is_refused_as_such() -> None:
    with pytest.raises(IncompatibleError, match="has format 2"):
        BlobMarker.parse('{"format":2}')


def test_names_carry_the_epoch_and_are_told_from_others() -> None:
    names = blob_names(JobPaths("flights", "1"), "totals", 3)
    sha256 = hashlib.sha256(b"x").hexdigest()
    file = names.key(file_name(12, CheckpointId(34, 56), sha256))
    index = names.key(index_name(12, CheckpointId(34, 56)))
    assert file == f"flights-1/state/totals/3/blob/12-34-56-{sha256}"
    assert index == "flights-1/state/totals/3/blob/12-34-56.index"
    assert (epoch_of(file), epoch_of(index)) == (12, 12)
    assert (is_index(file), is_index(index)) == (False, True)
    for other in (
        "flights-1/state/totals/3/1.2.delta",
        "flights-1/state/totals/3/blob/x",
        "flights-1/state/blob/3/12-34-56.indexes",
        "flights-1/state/totals/3/12-34-56.index",
    ):
        assert epoch_of(other) is None
