"""The files of a copy that are uploaded: their hashes, and their comparison with an index."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RetryableError
from penstock.state.backends.content import FileHashes, LocalFile, diff, part_ranges
from penstock.state.backends.objects import DirIndex, FileBlob, FileIndex
from penstock.state.backends.resources import process_pools

NAMES = st.sampled_from(["CURRENT", "000001.sst", "000002.sst", "sub/x", "sub/CURRENT"])
CONTENTS = st.sampled_from([b"", b"1", b"2", b"10", b"20", b"30"])
FOLDERS = st.dictionaries(NAMES, CONTENTS)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def local(files: dict[str, bytes]) -> list[LocalFile]:
    return [LocalFile(path, len(data), sha(data), (sha(data),) if data else ()) for path, data in files.items()]


def indexed(files: dict[str, bytes], commit: str = "1-1-0") -> DirIndex:
    return DirIndex.of(
        {
            path: FileIndex(
                path.rpartition("/")[2],
                len(data),
                sha(data),
                (FileBlob(f"{commit}-{sha(data)}", 0),) if data else (),
            )
            for path, data in files.items()
        }
    )


@given(FOLDERS, FOLDERS)
def test_every_file_is_retained_or_added_by_its_content(now: dict[str, bytes], before: dict[str, bytes]) -> None:
    difference = diff(local(now), indexed(before))
    assert difference.retained.keys() | difference.added.keys() == now.keys()
    assert not difference.retained.keys() & difference.added.keys()
    for path, file in difference.retained.items():
        assert file.sha256 == sha(now[path])
        assert now[path] in before.values()
        assert file.name == path.rpartition("/")[2]
        assert file.blobs in {other.blobs for other in indexed(before).by_path().values()}
    for path in difference.added:
        assert now[path] not in before.values()
    assert difference.removed.keys() == {path for path, data in before.items() if now.get(path) != data}


@given(FOLDERS)
def test_nothing_differs_from_itself(files: dict[str, bytes]) -> None:
    difference = diff(local(files), indexed(files))
    assert (difference.added, difference.removed) == ({}, {})
    assert DirIndex.of(difference.retained) == indexed(files)


def test_the_same_name_and_size_prove_nothing() -> None:
    difference = diff(local({"000009.sst": b"aaaa"}), indexed({"000009.sst": b"bbbb"}))
    assert (list(difference.added), list(difference.retained)) == (["000009.sst"], [])
    assert list(difference.removed) == ["000009.sst"]


def test_content_under_another_name_is_not_uploaded_again() -> None:
    difference = diff(local({"sub/new": b"aaaa"}), indexed({"old": b"aaaa"}))
    assert difference.retained == {
        "sub/new": FileIndex("new", 4, sha(b"aaaa"), (FileBlob(f"1-1-0-{sha(b'aaaa')}", 0),))
    }
    assert list(difference.removed) == ["old"]


@given(st.integers(0, 10**5), st.integers(100, 10**5))
def test_parts_make_up_the_file(size: int, max_bytes: int) -> None:
    at = 0
    for offset, part in part_ranges(size, max_bytes):
        assert offset == at
        assert 0 < part <= max_bytes
        at += part
    assert at == size


def test_files_are_hashed_whole_and_in_parts(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x").write_bytes(b"abcdefghij")
    (tmp_path / "empty").write_bytes(b"")
    files = FileHashes(4).list(tmp_path, process_pools().transfers, threading.Event(), "it")
    assert files == [
        LocalFile("empty", 0, sha(b""), ()),
        LocalFile("sub/x", 10, sha(b"abcdefghij"), (sha(b"abc"), sha(b"def"), sha(b"ghij"))),
    ]


def test_an_sst_that_stays_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    original = FileHashes._hash

    def count(self: FileHashes, directory: Path, identity: tuple[str, int, int, int]) -> object:
        hashed.append(identity[0])
        return original(self, directory, identity)

    monkeypatch.setattr(FileHashes, "_hash", count)
    first, second, third = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    first.mkdir()
    (first / "1.sst").write_bytes(b"one")
    (first / "CURRENT").write_bytes(b"x")
    second.mkdir()
    os.link(first / "1.sst", second / "1.sst")
    os.link(first / "CURRENT", second / "CURRENT")
    (second / "2.sst").write_bytes(b"two")
    third.mkdir()
    (third / "1.sst").write_bytes(b"ONE")
    os.link(second / "2.sst", third / "2.sst")
    hashes = FileHashes()
    for directory, expected in ((first, ["1.sst", "CURRENT"]), (second, ["2.sst", "CURRENT"]), (third, ["1.sst"])):
        hashed.clear()
        files = hashes.list(directory, process_pools().transfers, threading.Event(), "it")
        assert sorted(hashed) == expected
        assert {file.path: file.sha256 for file in files} == {p.name: sha(p.read_bytes()) for p in directory.iterdir()}


def test_hashing_can_be_cancelled(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(RetryableError, match="it was cancelled"):
        FileHashes().list(tmp_path, process_pools().transfers, cancelled, "it")
