"""Small files that unpack to many bytes: what is too much is refused before it is made."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from penstock.base import budgets
from penstock.errors import CorruptError
from penstock.spark.state_import.reader import fetch_snapshot, read_changelog
from penstock.state.backends.changelog_files.versions import StoreSnapshot
from penstock.system.files import formats
from penstock.system.files.formats import SourceFile, read_rows
from tests.support.stores.spark_state import OneFile
from tests.support.tools.places import ROOT

pytestmark = pytest.mark.attack

READS = """
import resource, sys
from penstock.errors import CorruptError
from penstock.spark.state_import.reader import read_changelog
data = open(sys.argv[1], "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    list(read_changelog(data, "1.changelog"))
except CorruptError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def test_a_changelog_with_one_huge_record_takes_no_memory(tmp_path: Path) -> None:
    size = 200 << 20
    file = tmp_path / "1.changelog"
    file.write_bytes(zstd(struct.pack(">i", size) + bytes(size)))
    assert file.stat().st_size < 1 << 20
    command = [sys.executable, "-c", READS, str(file)]
    said, grown_kb = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.splitlines()
    assert said == "a key or a value in `1.changelog` has 209,715,200 bytes or more; at most 67,108,864 are read"
    assert int(grown_kb) < 32 << 10


def test_a_changelog_of_many_records_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.state_import.files.RECORD_BYTES", 1000)
    record = struct.pack(">i", 1) + b"k" + struct.pack(">i", 1000) + bytes(1000)
    assert len(list(read_changelog(zstd(record * 1000 + struct.pack(">i", -1)), "f"))) == 1000


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return buffer.getvalue()


def test_snapshots_are_within_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = archive(a=bytes(600_000), b=bytes(600_000))
    assert len(bomb) < 10_000
    monkeypatch.setattr(budgets, "ARCHIVE_BYTES", 1_000_000)
    says = "its content has 1,200,000 bytes or more; at most 1,000,000 are read"
    with pytest.raises(CorruptError, match=says):
        fetch_snapshot(OneFile(bomb), "state/0/0", "1.zip", tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []
    with pytest.raises(CorruptError, match=says):
        StoreSnapshot.decode(_checked(bomb), "k")


LYING = """
import resource, sys, tempfile
from penstock.base.budgets import opened_archive
data = open(sys.argv[1], "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    with opened_archive(data, "f") as archive:
        print(len(archive.read("a")))
except Exception as error:
    print(type(error).__name__)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_an_archive_whose_directory_lies_takes_no_memory(tmp_path: Path) -> None:
    """The directory says 1,000 bytes, and the member unpacks to 100 MB."""
    size = 100 << 20
    lying = archive(a=bytes(size)).replace(struct.pack("<I", size), struct.pack("<I", 1000))
    assert len(lying) < 1 << 20
    with zipfile.ZipFile(io.BytesIO(lying)) as opened:
        assert opened.getinfo("a").file_size == 1000
    file = tmp_path / "f.zip"
    file.write_bytes(lying)
    command = [sys.executable, "-c", LYING, str(file)]
    said, grown_kb = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.splitlines()
    assert said == "BadZipFile"
    assert int(grown_kb) < 16 << 10


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_of_a_method_without_pieces(method: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as made:
        made.writestr("a", b"x")
    with (
        pytest.raises(CorruptError, match="f is compressed by a method other than deflate"),
        budgets.opened_archive(buffer.getvalue(), "f"),
    ):
        pass


def _checked(data: bytes) -> bytes:
    import hashlib

    return data + hashlib.sha256(data).hexdigest().encode()


@pytest.mark.parametrize("lines", [(b"x" * 3_000_000,), (b"1", b"x" * 3_000_000), (b"x" * 3_000_000, b"1")])
def test_a_line_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[bytes, ...]) -> None:
    monkeypatch.setattr(formats, "LINE_BYTES", 2_000_000)
    file = tmp_path / "f.jsonl"
    file.write_bytes(b"\n".join(lines))
    with pytest.raises(CorruptError, match=r"line \d of `.*f.jsonl` has .* bytes or more; at most 2,000,000 are read"):
        list(read_rows(SourceFile(fs.LocalFileSystem(), str(file), str(file), file.name, {}), "json"))
    monkeypatch.setattr(formats, "LINE_BYTES", 4_000_000)
    assert tuple(read_rows(SourceFile(fs.LocalFileSystem(), str(file), str(file), file.name, {}), "json")) == lines


def test_a_header_without_an_end(tmp_path: Path) -> None:
    file = tmp_path / "f.csv"
    file.write_bytes(b"x" * 3_000_000)
    with pytest.raises(CorruptError, match="the header of"):
        list(read_rows(SourceFile(fs.LocalFileSystem(), str(file), str(file), file.name, {}), "csv"))
