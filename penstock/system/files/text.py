"""Lines of JSON in data files, and the file itself: opened by its name, packed or not."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyarrow import fs

from penstock.base.budgets import LINE_BYTES, check_budget
from penstock.system.rows.cells import Columns

Numbered: TypeAlias = tuple[int, bytes]
"""A row as JSON, and the number of its line, from 1."""

PACKED: Mapping[str, str] = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
BLOCK = 1 << 20
BLANK_LINES = 1_000_000
"""The most blank lines in a row: a packed file may hold any number of them, and give nothing."""


class SourceFile(NamedTuple):
    """A data file that is being read."""

    system: fs.FileSystem
    path: str
    """A path by which the file system opens it."""
    title: str
    """Its URL or path, for errors."""
    name: str
    """Its path below the folder of the stream, by which people know it."""
    added: Columns
    """The columns that its path gives."""

    def opened(self) -> pa.NativeFile:
        """Its bytes, unpacked if its name says that they are packed."""
        packed = next((kind for ending, kind in PACKED.items() if self.name.lower().endswith(ending)), None)
        return self.system.open_input_stream(self.path, compression=packed, buffer_size=BLOCK)


def json_lines(stream: Any, path: str) -> Iterator[Numbered]:
    """Each line is a message, unchanged. Blank lines are passed over. Raises CorruptError if a line is too long."""
    blank = 0
    for number, line in enumerate(_lines(stream, path), 1):
        if line := line.strip():
            blank = 0
            yield number, line
        else:
            blank += 1
            if blank > BLANK_LINES:
                check_budget(blank, BLANK_LINES, f"`{path}`, up to line {number:,},", "blank lines in a row")


def _lines(stream: Any, path: str) -> Iterator[bytes]:
    begin = stream.read(len(BOM_UTF8)).removeprefix(BOM_UTF8)
    parts: list[bytes] = []
    size, ended = 0, 0
    while block := begin + stream.read(BLOCK):
        begin = b""
        end, *others = block.split(b"\n")
        parts.append(end)
        size += len(end)
        check_budget(size, LINE_BYTES, f"line {ended + 1:,} of `{path}`")
        if others:
            *lines, rest = others
            yield b"".join(parts)
            yield from lines
            ended += len(others)
            parts, size = [rest], len(rest)
    yield b"".join(parts)
