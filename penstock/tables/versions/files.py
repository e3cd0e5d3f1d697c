"""Writes the sorted files of a table: SST objects of bounded size. Runs in Spark's Python workers."""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import rocksdict

from penstock.api.serdes import Serde
from penstock.tables.versions.encode import PROBLEM, VersionProblem
from penstock.tables.versions.manifest import TableFile

FILE_BYTES = 32 << 20
"""The approximate size at which a file ends. A file is put as a whole, from memory."""
WRITTEN = pa.schema(
    [
        ("name", pa.string()),
        ("task", pa.int32()),
        ("sha256", pa.string()),
        ("size_bytes", pa.int64()),
        ("rows", pa.int64()),
        ("first", pa.binary()),
        ("last", pa.binary()),
        ("problem", pa.string()),
        ("null_keys", pa.int64()),
    ]
)
"""The result of writing: a row for each file, and for each problem."""
_RESERVED = b"\xff" * 16
_LOOK_EVERY = 256


@dataclass(slots=True)
class FileWriter:
    """Writes entries that come sorted by task and key. Not shared by threads."""

    put: Callable[[str, bytes], None]
    key_serde: Serde[Any]
    columns: tuple[str, ...]
    """The names of the key's columns, for messages."""
    file_bytes: int = FILE_BYTES
    _token: str = field(default_factory=lambda: secrets.token_hex(4))
    _count: int = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Store the files. Yields one batch of `WRITTEN`."""
        written: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory(prefix="penstock-table-") as folder:
            current = _File(Path(folder))
            try:
                for task, key, value in _entries(batches):
                    if task == PROBLEM:
                        problem = VersionProblem.decode(key)
                        written.append({"problem": problem.text, "null_keys": problem.null_keys})
                        continue
                    if task != current.task or current.full(self.file_bytes):
                        self._finish(current, written)
                        duplicate = task == current.task and key == current.last
                        current = _File(Path(folder), task)
                        if duplicate:
                            raise _BadEntryError(self._duplicate(key))
                    elif key <= current.last:
                        raise _BadEntryError(self._duplicate(key))
                    current.add(key, value)
                self._finish(current, written)
            except _BadEntryError as error:
                written.append({"problem": str(error), "null_keys": 0})
            finally:
                current.abandon()
        yield pa.RecordBatch.from_pylist(written, schema=WRITTEN)

    def _finish(self, current: _File, written: list[dict[str, Any]]) -> None:
        if not current.rows:
            return
        if current.last.startswith(_RESERVED):
            raise _BadEntryError(f"the key {self._shown(current.last)} begins with 16 bytes 0xff, which is reserved")
        data = current.finish()
        # Another attempt of this task may write at the same time, and its files have other bytes.
        name = f"{current.task}-{self._token}-{self._count:05d}.sst"
        self._count += 1
        self.put(name, data)
        sha256 = hashlib.sha256(data).hexdigest()
        file = TableFile(name, current.task, sha256, len(data), current.rows, current.first, current.last)
        written.append({name: getattr(file, name) for name in TableFile.__dataclass_fields__})

    def _duplicate(self, key: bytes) -> str:
        names = ", ".join(f"`{name}`" for name in self.columns)
        return (
            f"two rows have the key {self._shown(key)} (column{'s' if len(self.columns) > 1 else ''} {names}), and a "
            "table has one row for each key. Remove the duplicates, or add a column to the key"
        )

    def _shown(self, key: bytes) -> str:
        try:
            return repr(self.key_serde.from_bytes(key))
        except Exception:
            return repr(key)


@dataclass(slots=True)
class _File:
    """The file that is being written."""

    folder: Path
    task: int = PROBLEM
    rows: int = 0
    first: bytes = b""
    last: bytes = b""
    _writer: Any = None

    def add(self, key: bytes, value: bytes) -> None:
        if self._writer is None:
            self._writer = rocksdict.SstFileWriter(_options())
            self._writer.open(str(self._path))
            self.first = key
        self._writer[key] = value
        self.last = key
        self.rows += 1

    def full(self, limit: int) -> bool:
        return self.rows % _LOOK_EVERY == 0 and self.rows > 0 and self._writer.file_size() >= limit

    def finish(self) -> bytes:
        self._writer.finish()
        self._writer = None
        data = self._path.read_bytes()
        self._path.unlink()
        return data

    def abandon(self) -> None:
        self._writer = None

    @property
    def _path(self) -> Path:
        return self.folder / "table.sst"


class _BadEntryError(Exception):
    """An entry for which the version is refused."""


def _entries(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes, bytes]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in ("task", "key", "value")), strict=True)


def _options() -> Any:
    options = rocksdict.Options(raw_mode=True)
    table = rocksdict.BlockBasedOptions()
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options
