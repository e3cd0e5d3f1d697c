"""Limits of the bytes that readers make from outside bytes: a small file may unpack to any number of them.

Content that may grow without a limit is read in pieces. Content that must be in memory as a whole has a budget, which
is checked before the bytes are made.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import CorruptError

LINE_BYTES = 64 << 20
"""For a line of a text file."""
RECORD_BYTES = 64 << 20
"""For a key or a value in a file of state that another program has written."""
ARCHIVE_BYTES = 256 << 20
"""For the members of an archive together. Snapshots have small members: large files are beside the archive."""


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


@contextmanager
def opened_archive(data: bytes, what: str) -> Iterator[zipfile.ZipFile]:
    """A zip archive whose members, all together, are within `ARCHIVE_BYTES`: reading one makes no more bytes than the
    archive says it has. Raises CorruptError if they are not."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        check_budget(sum(member.file_size for member in archive.infolist()), ARCHIVE_BYTES, f"{what}: its content")
        yield archive
