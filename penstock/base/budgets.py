"""Limits of what readers make from outside bytes: a small file may unpack to any number of bytes, and a small message
to any number of values.

Content that may grow without a limit is read in pieces. Content that must be in memory as a whole has a budget, which
is checked before it is made.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Final

from penstock.errors import CorruptError

LINE_BYTES = 64 << 20
"""For a line of a text file."""
RECORD_BYTES = 64 << 20
"""For a key or a value in a file of state that another program has written."""
ARCHIVE_BYTES = 256 << 20
"""For the members of an archive together. Snapshots have small members: large files are beside the archive."""
MESSAGE_LEVELS: Final = 128
"""The most values in one another, in a message or a value of a store."""
MESSAGE_DIGITS: Final = 1000
"""The most digits of a decimal that is written without an exponent."""
MESSAGE_STEPS: Final = 20_000
"""Checks of a message, beside those in which each of its bytes takes part once."""
_EMPTY = 1000
EMPTY_PER_BYTE: Final = 10
"""Values without bytes that a message may have for each of its bytes."""


class MessageBudget:
    """The values that one message may still become, beside values that have bytes: those are as many as its bytes.

    Serdes that read messages without such limits of their own ask it before they make values. What exceeds it is one
    failed message.
    """

    __slots__ = ("_empty", "levels")

    def __init__(self, size: int) -> None:
        """
        Args:
            size: of the message, in bytes.
        """
        self.levels = MESSAGE_LEVELS
        self._empty = _EMPTY + EMPTY_PER_BYTE * size

    def enter(self) -> None:
        """Go one level deeper. Raises ValueError if there are too many."""
        self.levels -= 1
        if self.levels < 0:
            raise ValueError(f"its values are in one another for more than {MESSAGE_LEVELS} levels")

    def leave(self) -> None:
        """Go back."""
        self.levels += 1

    def take(self, empty: int) -> None:
        """Make values that have no bytes. Raises ValueError if there are too many.

        Args:
            empty: the number of them.
        """
        self._empty -= empty
        if self._empty < 0:
            raise ValueError(
                f"it has too many values without bytes: at most {_EMPTY:,}, and {EMPTY_PER_BYTE} more for each byte"
            )


class WorkBudget:
    """The checks that may still be made of one message, by rules that may lead to each other."""

    __slots__ = ("_left",)

    def __init__(self, size: int, rules: int) -> None:
        """
        Args:
            size: of the message, in bytes.
            rules: the number of rules: each may look at each byte.
        """
        self._left = MESSAGE_STEPS + size * rules

    def spend(self, steps: int = 1) -> None:
        """Raises ValueError if there are too many."""
        self._left -= steps
        if self._left < 0:
            raise ValueError("it takes more work to check than its size allows")


def check_decimal(value: Decimal) -> None:
    """Raise ValueError for a decimal that has too many digits: an application that writes them out, or makes an integer
    of it, would make as many.

    Example:
        >>> check_decimal(Decimal("1e-300000000"))
        Traceback (most recent call last):
        ValueError: a decimal has 300,000,000 digits; at most 1,000 are read
    """
    if not value.is_finite():
        return
    _, digits, exponent = value.as_tuple()
    count = max(value.adjusted() + 1, -int(exponent), len(digits))
    if count > MESSAGE_DIGITS:
        raise ValueError(f"a decimal has {count:,} digits; at most {MESSAGE_DIGITS:,} are read")


def check_hashes(hashes: Iterable[int]) -> None:
    """Raise ValueError for keys of which many have the same hash: a dict or a set of them takes their square in time.
    Python's hashes of numbers, unlike those of texts, are known to everybody."""
    before, run = None, 0
    for each in sorted(hashes):
        run = run + 1 if each == before else 1
        before = each
        if run > _SAME_HASHES:
            raise ValueError(f"more than {_SAME_HASHES} of its keys have the same hash")


def check_numbers_as_keys(data: bytes) -> None:
    """The same for the numbers and UUIDs in a text of JSON, before they are keys."""
    if len(data) < _FEW_KEYS_BYTES:
        return
    text = _ESCAPES.sub(lambda found: chr(int(found[1], 16)), data.decode("utf-8", "ignore"))
    uuids = [int(each.replace("-", ""), 16) for each in set(_UUIDS.findall(text))]
    check_hashes((*_number_hashes(text), *map(hash, uuids)))


def _number_hashes(text: str) -> Iterator[int]:
    for each in set(_NUMBERS.findall(text)):
        if len(each) >= _SHORTEST_NUMBER:
            with suppress(ArithmeticError, TypeError, ValueError):  # of what is no number, or NaN
                yield hash(Decimal(each))


_SAME_HASHES = 100
_FEW_KEYS_BYTES = 1 << 13
"""Keys in fewer bytes take no time, whatever their hashes."""
_SHORTEST_NUMBER = 15
"""Numbers of fewer characters, with exponents too, have the hash of few others."""
_NUMBERS = re.compile(r"-?[\d._]+(?:[eE][+-]?[\d_]+)?")
"""Numbers in a text, decimals too: these may have `_` and digits of other scripts."""
_ESCAPES = re.compile(r"\\u([0-9a-fA-F]{4})")
"""A digit may be written so, in a text that becomes a number."""
_UUIDS = re.compile(r"\b[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}\b")


def check_budget(size: int, budget: int, what: str, unit: str = "bytes") -> None:
    """Raise CorruptError if there are more bytes, or other units, than their budget.

    Args:
        what: the content, which begins the error: "a line of `f`".

    Example:
        >>> check_budget(3, 2, "a line of `f`")
        Traceback (most recent call last):
        penstock.errors.CorruptError: a line of `f` has 3 bytes or more; at most 2 are read
    """
    if size > budget:
        raise CorruptError(f"{what} has {size:,} {unit} or more; at most {budget:,} are read")


class Archive:
    """A zip archive that is read within `ARCHIVE_BYTES`, whatever its directory says about the sizes."""

    def __init__(self, archive: zipfile.ZipFile, what: str) -> None:
        self._archive = archive
        self._what = f"{what}: its content"
        self._read = 0
        members = archive.infolist()
        check_budget(sum(member.file_size for member in members), ARCHIVE_BYTES, self._what)
        if any(member.compress_type not in _METHODS for member in members):
            raise CorruptError(f"{what} is compressed by a method other than deflate, which is not read")

    def namelist(self) -> list[str]:
        return self._archive.namelist()

    def read(self, name: str) -> bytes:
        """The content of a member. Raises CorruptError beyond the budget of the archive."""
        found = io.BytesIO()
        with self._archive.open(name) as member:
            while piece := member.read(_PIECE_BYTES):  # a read of everything unpacks it before it looks at the size
                self._read += len(piece)
                check_budget(self._read, ARCHIVE_BYTES, self._what)
                found.write(piece)
        return found.getvalue()


_PIECE_BYTES = 1 << 16
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""The compressions that give a piece without unpacking more than the piece."""


@contextmanager
def opened_archive(data: bytes, what: str) -> Iterator[Archive]:
    """A zip archive. Raises CorruptError if its members say that they exceed `ARCHIVE_BYTES` together."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        yield Archive(archive, what)
