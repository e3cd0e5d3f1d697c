"""Reads the output of java.io.DataOutputStream."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from penstock.base.budgets import RECORD_BYTES, check_budget
from penstock.errors import CorruptError

_INT = struct.Struct(">i")


class JavaStream:
    """Values out of chunks of bytes, taken one after the other."""

    def __init__(self, chunks: Iterator[bytes], name: str, broken: str) -> None:
        """
        Args:
            broken: the error if the chunks end too early.
        """
        self.name = name
        self._chunks = chunks
        self._broken = broken
        self._buffer = b""
        self._position = 0

    def take(self, count: int) -> bytes:
        """The next bytes. Raises CorruptError if there are fewer, or the count is negative."""
        if count < 0:
            raise CorruptError(f"`{self.name}` has a length of {count}")
        check_budget(count, RECORD_BYTES, f"a key or a value in `{self.name}`")
        taken = self._buffer[self._position : self._position + count]
        if len(taken) < count:
            taken = self._fill(count)
        self._position += count
        return taken

    def peek(self, count: int) -> bytes:
        """The next bytes, without taking them."""
        taken = self.take(count)
        self._position -= count
        return taken

    def number(self) -> int:
        """The next four bytes."""
        value: int = _INT.unpack(self.take(4))[0]
        return value

    def utf(self) -> bytes:
        """The next text, behind its length of two bytes."""
        return self.take(int.from_bytes(self.take(2), "big"))

    def at_end(self) -> bool:
        return self._position == len(self._buffer) and not any(self._chunks)

    def _fill(self, count: int) -> bytes:
        parts = [self._buffer[self._position :]]
        missing = count - len(parts[0])
        while missing > 0:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise CorruptError(self._broken)
            parts.append(chunk)
            missing -= len(chunk)
        self._buffer, self._position = b"".join(parts), 0
        return self._buffer[:count]
