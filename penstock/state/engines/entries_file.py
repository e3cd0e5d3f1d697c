"""The file of a store that is kept in memory: a copy of all its entries.

magic       8 bytes   "PSTMEM" and the format, 2
size        8 bytes   of the records, big-endian
records     zstd      as in `penstock.state.records`
checksum    32 bytes  SHA-256 of everything before
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from penstock.base.files import explained
from penstock.errors import CorruptError, IncompatibleError
from penstock.state.records import Changes, compress, decode_records, decompress, encode_records

ENTRIES = "entries.zst"
_NAME = b"PSTMEM"
_FORMAT = 2
_MAGIC = _NAME + _FORMAT.to_bytes(2, "big")
_SIZE_BYTES = 8
_CHECKSUM_BYTES = 32


def write_entries(directory: Path, entries: Changes) -> None:
    """Make the directory, which must not exist, with the file in it."""
    directory.mkdir(parents=True)
    records = encode_records(entries)
    start, body = _MAGIC + len(records).to_bytes(_SIZE_BYTES, "big"), compress(records)
    checksum = hashlib.sha256(start)
    checksum.update(body)
    (directory / ENTRIES).write_bytes(b"".join((start, body, checksum.digest())))


def read_entries(path: Path) -> dict[bytes, bytes | None]:
    """Raises CorruptError, IncompatibleError."""
    with explained(f"the copy `{path}` could not be read", "job.logged.store.base.dir"):
        data = path.read_bytes()
    what = f"the copy `{path}`"
    body = _checked(data, what)[len(_MAGIC) :]
    size = int.from_bytes(body[:_SIZE_BYTES], "big")
    return decode_records(decompress(body[_SIZE_BYTES:], size, what), str(path))


def _checked(data: bytes, what: str) -> bytes:
    """All before the checksum. Raises CorruptError, and IncompatibleError for another format."""
    written = int.from_bytes(data[len(_NAME) : len(_MAGIC)], "big")
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if hashlib.sha256(body).digest() != checksum:
        raise CorruptError(f"{what} is damaged: its checksum does not match")
    if not data.startswith(_NAME):
        raise CorruptError(f"{what} is damaged: it does not begin with `{_NAME.decode()}`")
    if written != _FORMAT:
        raise IncompatibleError(f"{what} has format {written}; this Penstock reads format {_FORMAT}")
    return body
