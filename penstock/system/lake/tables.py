"""The tables of a lake: the interface to them, the settings by which a system opens them, and the writer that
appends to them. The value of a message is a row.

A commit to a table is one atomic step, in which rows and marks become valid together. Marks are of a writer's name
and a partition: the epoch that may write, and how far publishing is. A partition of an output is only a name here:
the rows of all partitions are in the same table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import retry_contended
from penstock.base.wording import counted
from penstock.errors import ConfigError, FencedError, NotFoundError, RetryableError
from penstock.system import base
from penstock.system.contract.writer import Marks, Parts, WriterMark
from penstock.system.lake.log import ADDED, Changes, TableLog, offset_of
from penstock.system.rows.schema import RowForm, parse_schema, row_value


class ConflictError(RetryableError):
    """Another commit came first. Nothing was written; look at the table again."""


class LakeTable(ABC):
    """A table as it was when it was opened."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema: ...

    @property
    @abstractmethod
    def identity(self) -> str:
        """Tells the table from a later one of its name."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The number of commits before the next one, or another number that grows with each commit."""

    @property
    @abstractmethod
    def partitions(self) -> int | None:
        """The number of partitions that was noted in the table; None if no job has written to it."""

    @abstractmethod
    def note_partitions(self, count: int) -> None:
        """Note the number of partitions. Raises ConflictError."""

    @abstractmethod
    def mark(self, writer: str, partition: int) -> WriterMark | None:
        """The marks of a writer's name; None if it has written nothing."""

    @abstractmethod
    def append(self, rows: pa.Table | None, writer: str, marks: Mapping[int, WriterMark]) -> None:
        """Append rows, and set the marks of partitions, in one step.

        Raises:
            ConflictError: a mark of one of these partitions was set since the table was opened.
            SystemAwayError: the place of the table does not answer; perhaps it has been written.
        """


class Lake(ABC):
    """The place of the tables. Plain data."""

    @abstractmethod
    def open(self, stream: str) -> LakeTable:
        """The table as it is now. Raises NotFoundError."""

    @abstractmethod
    def log(self, stream: str) -> TableLog:
        """The commits of a table. Nothing is opened here."""

    @abstractmethod
    def create(self, stream: str, schema: pa.Schema, partitions: int) -> bool:
        """Create a table; False if there is one."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all tables, ascending."""


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The settings in `systems.<name>.*`."""

    name: str
    lake: Lake
    partitions: int
    """The number for a table that no job has written to."""
    schemas: Mapping[str, str]
    """By stream, of tables to be created; the empty name is for all others."""
    changes: Changes
    """Inputs: the treatment of commits that remove or change rows."""
    poll_ms: int
    """Inputs: the time between two looks for new commits."""

    def schema_of(self, stream: str) -> pa.Schema:
        """The schema of a table to be created. Raises ConfigError if none is configured."""
        text = self.schemas.get(stream) or self.schemas.get("")
        if text is None:
            raise ConfigError(
                f"the table `{self.name}.{stream}` does not exist: create it, or set `systems.{self.name}.schema` or "
                f"`systems.{self.name}.schema.{stream}`, as in `user STRING, visits BIGINT`, and it is created"
            )
        return parse_schema(text)

    def opened(self, stream: str) -> tuple[LakeTable, int]:
        """The table as it is now, and the number of its partitions, which is noted there. Raises NotFoundError."""
        table = self.lake.open(stream)
        known = table.partitions
        if known is None:
            with suppress(ConflictError):  # another process has noted it
                table.note_partitions(self.partitions)
            table = self.lake.open(stream)
            known = table.partitions or self.partitions
        return table, known


class LakeWriter(base.SystemWriter):
    """Appends to tables. The value of a record is a JSON object: a row of the table."""

    def __init__(self, settings: LakeSettings, identity: base.WriterIdentity | None) -> None:
        self._settings = settings
        self._identity = identity

    def append(self, ssp: SystemStreamPartition, records: Iterable[base.RawRecord]) -> int:
        """Returns the first offset that its commit can have."""
        values = [*map(row_value, records)]
        before = append(self._settings, ssp.stream, self._identity, {ssp.partition: None}, values)
        return offset_of(before.version + 1, ADDED)

    def begin(self) -> base.WriterTransaction:
        return base.MarkedAtCommit(self._identity, self._append_all)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, base.Progress]:
        """Takes over from older epochs."""
        name, found = base.check_may_mark(self._identity).name, {}
        by_stream: dict[str, list[SystemStreamPartition]] = {}
        for ssp in ssps:
            by_stream.setdefault(ssp.stream, []).append(ssp)
        for stream, own in by_stream.items():
            marks = {ssp.partition: None for ssp in own}
            table = append(self._settings, stream, self._identity, marks, None)
            for ssp in own:
                mark = table.mark(name, ssp.partition)
                if mark is not None and mark.progress is not None:
                    found[ssp] = mark.progress
        return found

    def close(self) -> None:
        """Does nothing: no resources are held."""

    def _append_all(self, parts: Parts, marks: Marks) -> None:
        """Append to each table in one commit."""
        by_stream: dict[str, dict[int, Iterable[base.RawRecord]]] = {}
        for ssp in sorted(parts):
            by_stream.setdefault(ssp.stream, {})[ssp.partition] = parts[ssp]
        for stream, own in by_stream.items():
            progress = {ssp.partition: mark for ssp, mark in marks.items() if ssp.stream == stream}
            values = [row_value(record) for records in own.values() for record in records]
            wanted = {partition: progress.get(partition) for partition in own}
            append(self._settings, stream, self._identity, wanted, values)


def append(
    settings: LakeSettings,
    stream: str,
    identity: base.WriterIdentity | None,
    partitions: Mapping[int, base.Progress | None],
    values: list[bytes | None] | None,
) -> LakeTable:
    """Append rows to a table and set the marks of these partitions, in one commit. Returns the table as it was.

    Raises:
        FencedError: a larger epoch of the writer's name has written to one of the partitions.
        NotFoundError: there is no such table or partition.
        ConfigError: a value is not a row of the table.
        IncompatibleError: a mark does not follow the one before.
        RetryableError: others wrote to the table all the time, or it cannot be reached.
    """

    def once() -> LakeTable:
        table, known = settings.opened(stream)
        if (beyond := max(partitions, default=0)) >= known:
            raise NotFoundError(
                f"stream `{settings.name}.{stream}` has {counted(known, 'partition')}: there is no partition {beyond}"
            )
        rows = pa.Table.from_batches([RowForm(table.schema).batch(values)]) if values else None
        marks = {} if identity is None else _marks(table, settings.name, stream, identity, partitions)
        if rows is not None or (identity is not None and _is_new(table, identity, marks)):
            table.append(rows, "" if identity is None else identity.name, marks)
        return table

    return retry_contended(once, ConflictError)


def _marks(
    table: LakeTable,
    system: str,
    stream: str,
    identity: base.WriterIdentity,
    partitions: Mapping[int, base.Progress | None],
) -> dict[int, WriterMark]:
    marks = {}
    for partition, progress in partitions.items():
        ssp = SystemStreamPartition(system, stream, partition)
        before = table.mark(identity.name, partition)
        if before is not None and before.epoch > identity.epoch:
            raise FencedError(
                f"the writer `{identity.name}` of epoch {identity.epoch} must not append to `{ssp.system_stream}` "
                f"partition {partition}: epoch {before.epoch} has taken over. Stop this run"
            )
        done = None if before is None else before.progress
        if progress is not None:
            progress.check_follows(done, ssp)
        marks[partition] = WriterMark(identity.epoch, progress)
    return marks


def _is_new(table: LakeTable, identity: base.WriterIdentity, marks: Mapping[int, WriterMark]) -> bool:
    """True if a mark differs from the one in the table."""
    for partition, mark in marks.items():
        before = table.mark(identity.name, partition)
        if before is None or before.epoch != mark.epoch or mark.progress not in (None, before.progress):
            return True
    return False
