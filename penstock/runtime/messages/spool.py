"""Payloads that wait for the end of the input: some in memory, the others in a file."""

from __future__ import annotations

import os
import tempfile
from typing import BinaryIO, NamedTuple, TypeAlias

import pyarrow as pa

from penstock.errors import RetryableError

MEMORY_BYTES = 64 << 20


class _FilePart(NamedTuple):
    """The place of a payload in the file."""

    start: int
    size: int


class SpoolLevel(NamedTuple):
    """The fill level of a spool."""

    left: int
    """Bytes that still fit into memory."""
    end: int


SpooledPayload: TypeAlias = bytes | pa.Buffer | _FilePart
"""The handle that `Spool.put` returns."""


class Spool:
    """Holds payloads: the first ones in memory, up to `memory_bytes`, the others in a temporary file without a name.

    Used by one thread. The file goes with the process, if it is not closed before.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES, folder: str | None = None) -> None:
        """`folder`: for the file; by default Spark's scratch folder on this host."""
        self._left = memory_bytes
        self._folder = folder or _folder()
        self._file: BinaryIO | None = None
        self._end = 0

    def put(self, payload: bytes | pa.Buffer) -> SpooledPayload:
        """Keep a payload. Raises RetryableError if the disk is full or failing."""
        size = len(payload)
        if size <= self._left:
            self._left -= size
            return payload
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - it stays open
            rest = memoryview(payload)
            while rest:
                rest = rest[os.pwrite(self._file.fileno(), rest, self._end + size - len(rest)) :]
        except OSError as error:
            what = f"messages that wait for an output cannot be kept in {self._folder}"
            raise RetryableError(f"{what}: {error}") from error
        place = _FilePart(self._end, size)
        self._end += size
        return place

    def get(self, spooled: SpooledPayload) -> bytes | pa.Buffer:
        """A payload that was put. May be called again for it. Raises RetryableError if the disk fails."""
        if not isinstance(spooled, _FilePart):
            return spooled
        if self._file is None:
            raise ValueError("the spool is closed")
        try:
            data = os.pread(self._file.fileno(), spooled.size, spooled.start)
        except OSError as error:
            raise RetryableError(f"messages that wait for an output cannot be read again: {error}") from error
        if len(data) < spooled.size:
            raise RetryableError(f"of {spooled.size} bytes that wait for an output, {len(data)} are left")
        return data

    def level(self) -> SpoolLevel:
        return SpoolLevel(self._left, self._end)

    def level_with(self, level: SpoolLevel, spooled: SpooledPayload) -> SpoolLevel:
        if isinstance(spooled, _FilePart):
            return SpoolLevel(level.left, max(level.end, spooled.start + spooled.size))
        return SpoolLevel(level.left - len(spooled), level.end)

    def cut(self, level: SpoolLevel) -> None:
        self._left, self._end = level

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _folder() -> str:
    folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return folders[0] if os.path.isdir(folders[0]) else tempfile.gettempdir()
