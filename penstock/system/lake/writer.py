"""Appends to tables: the value of a message is a row."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import FencedError, NotFoundError
from penstock.retry import Retry, retry
from penstock.system.base import (
    MarkedAtCommit,
    Progress,
    RawRecord,
    SystemWriter,
    WriterIdentity,
    WriterTransaction,
    check_may_mark,
)
from penstock.system.files.rows import RowForm, row_value
from penstock.system.lake.log import ADDED, offset_of
from penstock.system.lake.tables import ConflictError, Mark, Table
from penstock.wording import counted

if TYPE_CHECKING:
    from penstock.system.lake.system import LakeSystem

_AGAIN = Retry(pause_s=0.01, growth=1.5, longest_pause_s=1.0, within_s=60.0)
"""A commit is tried again while others come first."""


class LakeWriter(SystemWriter):
    """Appends to tables. The value of a record is a JSON object: a row of the table."""

    def __init__(self, system: LakeSystem, identity: WriterIdentity | None) -> None:
        self._system = system
        self._identity = identity

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        return self._append_all({ssp: records}, {})[ssp.stream]

    def begin(self) -> WriterTransaction:
        def at_commit(
            parts: Mapping[SystemStreamPartition, Iterable[RawRecord]], marks: Mapping[SystemStreamPartition, Progress]
        ) -> None:
            self._append_all(parts, marks)

        return MarkedAtCommit(self._identity, at_commit)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        """Takes over from older epochs."""
        name, found = check_may_mark(self._identity).name, {}
        by_stream: dict[str, list[SystemStreamPartition]] = {}
        for ssp in ssps:
            by_stream.setdefault(ssp.stream, []).append(ssp)
        for stream, own in by_stream.items():
            marks = {ssp.partition: None for ssp in own}
            table = append(self._system, stream, self._identity, marks, None)
            for ssp in own:
                mark = table.mark(name, ssp.partition)
                if mark is not None and mark.progress is not None:
                    found[ssp] = mark.progress
        return found

    def close(self) -> None:
        """Does nothing: no resources are held."""

    def _append_all(
        self,
        parts: Mapping[SystemStreamPartition, Iterable[RawRecord]],
        marks: Mapping[SystemStreamPartition, Progress],
    ) -> dict[str, int]:
        """Append to each table in one commit. Returns the first offset that this commit can have."""
        by_stream: dict[str, dict[int, Iterable[RawRecord]]] = {}
        for ssp in sorted(parts):
            by_stream.setdefault(ssp.stream, {})[ssp.partition] = parts[ssp]
        found = {}
        for stream, own in by_stream.items():
            progress = {ssp.partition: mark for ssp, mark in marks.items() if ssp.stream == stream}
            values = [row_value(record) for records in own.values() for record in records]
            wanted = {partition: progress.get(partition) for partition in own}
            found[stream] = offset_of(append(self._system, stream, self._identity, wanted, values).version + 1, ADDED)
        return found


def append(
    system: LakeSystem,
    stream: str,
    identity: WriterIdentity | None,
    partitions: Mapping[int, Progress | None],
    values: list[bytes | None] | None,
) -> Table:
    """Append rows to a table and set the marks of these partitions, in one commit. Returns the table as it was.

    Raises:
        FencedError: a larger epoch of the writer's name has written to one of the partitions.
        NotFoundError: there is no such table or partition.
        ConfigError: a value is not a row of the table.
        IncompatibleError: a mark does not follow the one before.
        RetryableError: others wrote to the table all the time, or it cannot be reached.
    """

    def once() -> Table:
        table, known = system.opened(stream)
        if (beyond := max(partitions, default=0)) >= known:
            raise NotFoundError(
                f"stream `{system.name}.{stream}` has {counted(known, 'partition')}: there is no partition {beyond}"
            )
        rows = pa.Table.from_batches([RowForm(table.schema).batch(values)]) if values else None
        marks = {} if identity is None else _marks(table, system.name, stream, identity, partitions)
        if rows is not None or (identity is not None and _is_new(table, identity, marks)):
            table.append(rows, "" if identity is None else identity.name, marks)
        return table

    again = replace(_AGAIN, pause_s=random.uniform(0.005, 0.05))  # noqa: S311 - so that writers do not meet again
    return retry(once, again, passes=lambda error: isinstance(error, ConflictError))


def _marks(
    table: Table, system: str, stream: str, identity: WriterIdentity, partitions: Mapping[int, Progress | None]
) -> dict[int, Mark]:
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
        marks[partition] = Mark(identity.epoch, progress)
    return marks


def _is_new(table: Table, identity: WriterIdentity, marks: Mapping[int, Mark]) -> bool:
    """True if a mark differs from the one in the table."""
    for partition, mark in marks.items():
        before = table.mark(identity.name, partition)
        if before is None or before.epoch != mark.epoch or mark.progress not in (None, before.progress):
            return True
    return False
