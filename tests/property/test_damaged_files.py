"""Binary files with some bytes changed, cut out or put in, as a stranger may send them: each is read, or refused with
an error of Penstock, within a budget of memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.spark.state_import.files import read_schema
from penstock.spark.state_import.reader import fetch_snapshot, read_changelog
from penstock.state.backends.changelog_files.versions import decode_delta
from penstock.state.records import compress, decode_records, decompress
from tests.support.faults.damaged_bytes import damaged, memory_budget
from tests.support.stores.spark_state import OneFile
from tests.support.tools.places import GOLDEN
from tests.support.tools.profiles import examples

SPARK = GOLDEN / "spark_state"
BUDGET = 96 << 20
"""More than any budget of a reader, with room for one copy."""


def several(pattern: str, at_most: int = 4) -> list[bytes]:
    """Golden files of different locations."""
    found = {path.parts[len(SPARK.parts)]: path for path in sorted(SPARK.rglob(pattern))}
    return [path.read_bytes() for path in list(found.values())[:at_most]]


def snapshot(data: bytes) -> object:
    with TemporaryDirectory() as folder:
        return fetch_snapshot(OneFile(data), "state/0/0", "1.zip", Path(folder) / "target")


PARSERS: dict[str, tuple[Callable[[bytes], object], list[bytes]]] = {
    "changelog": (lambda d: list(read_changelog(d, "k")), several("*.changelog")),
    "changelog, unpacked": (lambda d: list(read_changelog(compress(d), "k")), [b"\x00\x02v2\x01\0\0\0\1k\0\0\0\2vv\0"]),
    "snapshot": (snapshot, several("*.zip")),
    "schema": (lambda d: read_schema(d, "k"), several("schema*") + several("*_schema*")),
    "delta": (lambda d: decode_delta(d, "k"), [(GOLDEN / "delta-format1.delta").read_bytes()]),
    "records": (lambda d: decode_records(d, "k"), [b"\0\0\0\1k\0\0\0\2vv\xff\xff\xff\xff"]),
    "zstd": (lambda d: decompress(d, 3000, "k"), [compress(b"abc" * 1000)]),
}


@pytest.mark.parametrize("name", PARSERS)
def test_the_files_themselves_are_read(name: str) -> None:
    read, files = PARSERS[name]
    assert files
    if name != "snapshot":  # that of Spark names files beside it
        for data in files:
            read(data)


@pytest.mark.attack
@pytest.mark.few(4)
@pytest.mark.parametrize("name", PARSERS)
@given(st.data())
@examples(4)
def test_a_damaged_file_is_read_or_refused_within_a_budget(name: str, data: st.DataObject) -> None:
    read, files = PARSERS[name]
    found = data.draw(damaged(data.draw(st.sampled_from(files))))
    with memory_budget(BUDGET), suppress(PenstockError):
        read(found)
