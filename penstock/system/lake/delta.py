"""Delta tables, by delta-rs.

Marks are transaction identifiers of Delta's protocol: `<writer>/<partition>/epoch` and `<writer>/<partition>`. A commit
that sets one conflicts with every other commit since the table was opened that sets the same one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from penstock.errors import ConfigError, NotFoundError, SystemAwayError
from penstock.system.base import Progress
from penstock.system.contract.writer import WriterMark
from penstock.system.lake.delta_log import DeltaLog
from penstock.system.lake.files import PARTITIONS, partitions_in
from penstock.system.lake.tables import ConflictError, Lake, LakeTable

_CHUNK_BITS = 24
"""A mark is one number: the slot, and the chunk in so many bits."""


@dataclass(frozen=True, slots=True)
class DeltaLake(Lake):
    """A folder of Delta tables.

    Args:
        folder: its URL or path.
        options: of delta-rs, for an object store.
    """

    folder: str
    options: Mapping[str, str] = field(repr=False)

    def open(self, stream: str) -> DeltaLakeTable:
        with _errors(self.folder, stream):
            try:
                return DeltaLakeTable(self.folder, stream, DeltaTable(self._url(stream), storage_options=self._options))
            except TableNotFoundError as error:
                raise NotFoundError(
                    f"there is no Delta table at `{self._url(stream)}`: create it, or correct `folder`"
                ) from error

    def log(self, stream: str) -> DeltaLog:
        return DeltaLog(self.folder, stream, self._url(stream), self._options)

    def create(self, stream: str, schema: pa.Schema, partitions: int) -> bool:
        with _errors(self.folder, stream):
            if DeltaTable.is_deltatable(self._url(stream), self._options):
                return False
            try:
                DeltaTable.create(
                    self._url(stream),
                    schema,
                    mode="error",
                    configuration={PARTITIONS: str(partitions)},
                    storage_options=self._options,
                    raise_if_key_not_exists=False,
                )
            except DeltaError:
                if DeltaTable.is_deltatable(self._url(stream), self._options):
                    return False  # another process made it meanwhile
                raise
            return True

    def names(self) -> list[str]:
        if "://" in self.folder:
            raise ConfigError(f"tables are listed in local folders only, not in `{self.folder}`")
        found = Path(self.folder)
        return sorted(each.name for each in found.iterdir() if (each / "_delta_log").is_dir()) if found.exists() else []

    @property
    def _options(self) -> dict[str, str]:
        return dict(self.options)

    def _url(self, stream: str) -> str:
        return f"{self.folder.rstrip('/')}/{stream}" if "://" in self.folder else os.path.join(self.folder, stream)


class DeltaLakeTable(LakeTable):
    """A Delta table."""

    def __init__(self, folder: str, stream: str, table: DeltaTable) -> None:
        self._folder = folder
        self._stream = stream
        self._table = table

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self._table.schema().to_arrow())

    @property
    def identity(self) -> str:
        return str(self._table.metadata().id)

    @property
    def version(self) -> int:
        return self._table.version() + 1

    @property
    def partitions(self) -> int | None:
        return partitions_in(self._table.metadata().configuration.get(PARTITIONS), f"the Delta table `{self._stream}`")

    def note_partitions(self, count: int) -> None:
        with _errors(self._folder, self._stream):
            self._table.alter.set_table_properties({PARTITIONS: str(count)}, raise_if_not_exists=False)

    def mark(self, writer: str, partition: int) -> WriterMark | None:
        with _errors(self._folder, self._stream):  # it may have to read the log
            epoch = self._table.transaction_version(f"{writer}/{partition}/epoch")
            done = self._table.transaction_version(f"{writer}/{partition}")
        if epoch is None:
            return None
        return WriterMark(
            epoch, None if done is None else Progress(done >> _CHUNK_BITS, done & ((1 << _CHUNK_BITS) - 1))
        )

    def append(self, rows: pa.Table | None, writer: str, marks: Mapping[int, WriterMark]) -> None:
        transactions = []
        for partition, (epoch, progress) in marks.items():
            transactions.append(Transaction(f"{writer}/{partition}/epoch", epoch))
            if progress is not None:
                number = progress.slot << _CHUNK_BITS | progress.chunk
                transactions.append(Transaction(f"{writer}/{partition}", number))
        properties = CommitProperties(app_transactions=transactions)
        with _errors(self._folder, self._stream):
            if rows is not None:
                write_deltalake(self._table, rows, mode="append", commit_properties=properties)
            elif transactions:
                self._table.create_write_transaction([], "append", self.schema, commit_properties=properties)


@contextlib.contextmanager
def _errors(folder: str, stream: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise ConflictError(f"the Delta table `{stream}` in `{folder}`: {error}") from error
    except (OSError, DeltaError) as error:
        raise SystemAwayError(f"the Delta table `{stream}` in `{folder}` cannot be read or written: {error}") from error
