"""Appends to tables: the value of a message is a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import retry_contended
from penstock.base.wording import counted
from penstock.errors import FencedError, NotFoundError
from penstock.system.base import (
    MarkedAtCommit,
    Progress,
    RawRecord,
    SystemWriter,
    WriterIdentity,
    WriterTransaction,
    check_may_mark,
)
from penstock.system.contract.writer import Marks, Parts, WriterMark
from penstock.system.lake.log import ADDED, offset_of
from penstock.system.lake.settings import LakeSettings
from penstock.system.lake.tables import ConflictError, LakeTable
from penstock.system.rows.form import RowForm, row_value


class LakeWriter(SystemWriter):
    """Appends to tables. The value of a record is a JSON object: a row of the table."""

    def __init__(self, settings: LakeSettings, identity: WriterIdentity | None) -> None:
        self._settings = settings
        self._identity = identity

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        """Returns the first offset that its commit can have."""
        values = [*map(row_value, records)]
        before = append(self._settings, ssp.stream, self._identity, {ssp.partition: None}, values)
        return offset_of(before.version + 1, ADDED)

    def begin(self) -> WriterTransaction:
        return MarkedAtCommit(self._identity, self._append_all)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        """Takes over from older epochs."""
        name, found = check_may_mark(self._identity).name, {}
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
        by_stream: dict[str, dict[int, Iterable[RawRecord]]] = {}
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
    identity: WriterIdentity | None,
    partitions: Mapping[int, Progress | None],
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
    table: LakeTable, system: str, stream: str, identity: WriterIdentity, partitions: Mapping[int, Progress | None]
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


def _is_new(table: LakeTable, identity: WriterIdentity, marks: Mapping[int, WriterMark]) -> bool:
    """True if a mark differs from the one in the table."""
    for partition, mark in marks.items():
        before = table.mark(identity.name, partition)
        if before is None or before.epoch != mark.epoch or mark.progress not in (None, before.progress):
            return True
    return False
