"""A decoder of Avro for PyIceberg that checks each length before it believes it.

PyIceberg brings two. Its decoder in C is fast, but reads past the end of a damaged file, which can end the process. Its
decoder in Python believes a number of any size, and takes up to three times as long as this one.
"""

from __future__ import annotations

import re

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder

_CONTINUED = bytes(range(128, 256))
"""Bytes of a number that has more bytes."""
_LONG = re.compile(rb"[\x80-\xff]{10}")
_TOO_LONG = "a number has more than 10 bytes"
_LAST_SHIFT = 63


class CheckedDecoder(BinaryDecoder):
    """Decodes values from bytes that may be damaged.

    What is not there raises EOFError or IndexError; what no writer writes raises ValueError. A call takes time and
    memory for the bytes that are there, whatever length they claim.
    """

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """The number of bytes that were not read yet."""
        return len(self._data) - self._at

    def tell(self) -> int:
        return self._at

    def read(self, n: int) -> bytes:
        start = self._at
        self.skip(n)
        return self._data[start : self._at]

    def skip(self, n: int) -> None:
        if n < 0:
            raise ValueError(f"a size is negative: {n}")
        if n > self.left:
            raise EOFError(f"{n} bytes cannot be in {self.left}")
        self._at += n

    def read_int(self) -> int:
        data, at = self._data, self._at
        number = data[at]
        if number > 127:
            number, shift = number & 127, 7
            while (byte := data[at := at + 1]) > 127:
                number |= (byte & 127) << shift
                shift += 7
                if shift > _LAST_SHIFT:
                    raise ValueError(_TOO_LONG)
            number |= byte << shift
            if number >> 64:
                raise ValueError("a number has more than 64 bits")
        self._at = at + 1
        return (number >> 1) ^ -(number & 1)

    def skip_int(self) -> None:
        self.read_int()

    def read_ints(self, n: int) -> tuple[int, ...]:
        """Most of a manifest is counts of columns, which are never negative. The decoder in C gets them once all
        of them are there."""
        data, end, missing = self._data, self._at, n
        while missing:
            piece = data[end : end + missing]
            if not 0 < missing <= len(piece):
                raise EOFError(f"{n} numbers cannot be in {self.left} bytes")
            end += missing
            missing -= len(piece.translate(None, _CONTINUED))
        numbers = data[self._at : end]
        if _LONG.search(numbers):
            raise ValueError(_TOO_LONG)
        self._at = end
        return new_decoder(numbers).read_ints(n) if n else ()

    def read_int_bytes_dict(self, n: int, dest: dict[int, bytes]) -> None:
        """The bounds of columns. Most of their keys and sizes have one byte."""
        data = self._data
        for _ in range(n):
            key = self.read_int()
            size = data[self._at]
            if size > 127 or size & 1:
                dest[key] = self.read_bytes()
            else:
                start = self._at + 1
                self._at = end = start + (size >> 1)
                dest[key] = data[start:end]
        self.skip(0)

    def read_bytes(self) -> bytes:
        return self.read(self.read_int())
