"""The outputs of a job in a database: looks at their tables, and writes to them, rows and marks in one
transaction.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TypeVar

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import retry_contended
from penstock.base.wording import counted
from penstock.errors import ConfigError, IncompatibleError, NotFoundError, PenstockError, SystemRefusedError
from penstock.system.base import (
    MarkedAtCommit,
    PartitionOffsets,
    Progress,
    RawRecord,
    RecordLimits,
    SystemAdmin,
    SystemWriter,
    WriterIdentity,
    WriterTransaction,
    check_may_mark,
    check_stream_name,
)
from penstock.system.contract.writer import Marks, Parts, WriterMark
from penstock.system.database import marks
from penstock.system.database.connection import BusyError, Database, DatabaseSettings, busy_is_away, is_of_a_row
from penstock.system.database.rows import RowChange, TableForm, TableLimits, needed
from penstock.system.database.tables import TableTarget

T = TypeVar("T")


class DatabaseWriter(SystemWriter):
    """Writes to tables. A record is an upsert of its value, or deletes the row of its key if it has no value."""

    def __init__(self, settings: DatabaseSettings, identity: WriterIdentity | None) -> None:
        self._settings = settings
        self._identity = identity
        self._database = Database(settings)
        self._targets: dict[str, TableTarget] = {}
        self._is_ready = False

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        """Rows have no offsets: it returns 0."""
        self._write({ssp: records}, {})
        return 0

    def begin(self) -> WriterTransaction:
        return MarkedAtCommit(self._identity, self._write)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        """Takes over from older epochs."""
        identity, wanted = check_may_mark(self._identity), list(ssps)
        self._prepare()

        def once() -> dict[SystemStreamPartition, WriterMark]:
            with self._database.transaction(f"the table `{marks.TABLE}` cannot be written") as connection:
                return marks.take_over(connection, identity, wanted)

        return {ssp: mark.progress for ssp, mark in _again(once).items() if mark.progress is not None}

    def close(self) -> None:
        self._database.close()

    def _write(self, parts: Parts, progress: Marks) -> None:
        """Change the rows, and set the marks, in one transaction.

        Raises:
            FencedError: a larger epoch of the writer's name has written to one of the partitions.
            NotFoundError: there is no such table or partition.
            ConfigError: a record is no change of a row, or the database refuses it.
            IncompatibleError: a mark does not follow the one before.
            RetryableError: others had the locks all the time, or the database does not answer.
        """
        self._prepare()
        changes: dict[str, list[RowChange]] = {}
        for ssp in sorted(parts):
            self._check(ssp)
            form, own = self._target(ssp.stream).form, changes.setdefault(ssp.stream, [])
            for record in parts[ssp]:
                try:
                    own.append(form.change(*_key_and_value(record)))
                except ValueError as error:
                    raise ConfigError(f"a record cannot be written to `{form.table}`: {error}") from error
        wanted = {stream: needed(own) for stream, own in changes.items()}
        try:
            _again(lambda: self._once(list(parts), wanted, progress))
        except SystemRefusedError as error:
            if not is_of_a_row(error):
                raise
            raise self._refusal(wanted, error) from error
        except NotFoundError:
            self._targets.clear()  # look at the tables again
            raise

    def _once(
        self,
        ssps: list[SystemStreamPartition],
        changes: Mapping[str, list[RowChange]],
        progress: Marks,
    ) -> None:
        with self._database.transaction("the tables cannot be written") as connection:
            if self._identity is not None:
                before = marks.take_over(connection, self._identity, ssps)
                for ssp, own in progress.items():
                    own.check_follows(before[ssp].progress, ssp)
            for stream, rows in changes.items():
                self._targets[stream].change(connection, rows)
            if self._identity is not None:
                marks.keep(connection, self._identity.name, progress)

    def _refusal(self, changes: Mapping[str, list[RowChange]], refused: SystemRefusedError) -> PenstockError:
        """The error, with the row that the database refuses: the rows are written one by one, and rolled back."""
        self._targets.clear()  # somebody may have changed the table
        for stream, rows in changes.items():
            target = self._target(stream)
            place = ""
            try:
                with self._database.look(f"the table `{target.form.table}` cannot be written") as connection:
                    for row in rows:
                        place = ", ".join(f"{n} = {part}" for n, part in zip(target.form.key, row.key, strict=True))
                        target.change(connection, [row])
                    raise _UndoError
            except _UndoError:
                continue
            except SystemRefusedError as error:
                return SystemRefusedError(
                    f"{error}. It is the row with the key {place}. Nothing was written. Change the table so that it "
                    "takes the row, or what the application sends"
                )
        return refused

    def _prepare(self) -> None:
        if self._identity is not None and not self._is_ready:
            marks.ensure(self._database)
            self._is_ready = True

    def _target(self, stream: str) -> TableTarget:
        if stream not in self._targets:
            with self._database.look(f"the table `{self._settings.name}.{stream}` cannot be looked at") as connection:
                self._targets[stream] = TableTarget(self._settings, stream, connection)
        return self._targets[stream]

    def _check(self, ssp: SystemStreamPartition) -> None:
        if ssp.partition >= self._settings.partitions:
            has = counted(self._settings.partitions, "partition")
            raise NotFoundError(f"stream `{ssp.system_stream}` has {has}: there is no partition {ssp.partition}")


class _UndoError(Exception):
    """Rolls a transaction back."""


def _again(work: Callable[[], T]) -> T:
    with busy_is_away():
        return retry_contended(work, BusyError)


def _key_and_value(record: RawRecord) -> tuple[bytes | None, bytes | None]:
    key, value = record[1], record[2]
    for each in (key, value):
        if each is not None and not isinstance(each, bytes):
            raise ConfigError(f"a record's key and value are bytes, not {type(each).__name__}")
    return key, value


logger = logging.getLogger(__name__)


class DatabaseAdmin(SystemAdmin):
    """Looks at tables. It creates none: their owner knows their types and indexes."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self._settings = settings
        self._database = Database(settings)
        self._lock = threading.Lock()
        self._used: set[str] = set()
        """The tables that somebody has asked for."""
        self._warns = True

    def partition_count(self, stream: str) -> int:
        """The configured number: partitions are only names here."""
        self._form(stream)
        return self._settings.partitions

    def offsets(self, stream: str) -> dict[int, PartitionOffsets]:
        """Refuses: a start asks it of inputs."""
        raise ConfigError(self._settings.not_read)

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        """Refuses to create a table."""
        check_stream_name(stream)
        where = f"`{self._settings.name}.{stream}`"
        if retention is not None and retention != StreamRetention():
            raise ConfigError(f"{where} is a table, whose rows Penstock does not delete")
        try:
            known = self.partition_count(stream)
        except NotFoundError as error:
            raise ConfigError(f"{error}. Penstock creates no tables of a database") from error
        if known != partitions:
            raise IncompatibleError(
                f"stream {where} exists with {counted(known, 'partition')}, not {partitions}: "
                f"`systems.{self._settings.name}.partitions` says how many"
            )
        return False

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        raise ConfigError(self._settings.not_read)

    def fence(self, stream: str, writer: WriterIdentity) -> None:
        partitions = self.partition_count(stream)
        self._warn_of_unused_keys()
        ssps = [SystemStreamPartition(self._settings.name, stream, number) for number in range(partitions)]
        with closing(DatabaseWriter(self._settings, writer)) as own:
            own.progress(ssps)

    def keeps_progress_of(self, name: str) -> bool:
        with self._lock:
            return marks.is_there(self._database)

    def progress_of(self, name: str, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        with self._lock:
            found = marks.read(self._database, name, list(ssps))
        return {ssp: mark.progress for ssp, mark in found.items() if mark.progress is not None}

    def progress_place(self, name: str) -> str:
        return f"the table `{marks.TABLE}`"

    def record_limits(self, stream: str) -> RecordLimits:
        return TableLimits(form=self._form(stream))

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _warn_of_unused_keys(self) -> None:
        """Say once which keys are of no output. A job fences its outputs when it has looked at all of them."""
        if self._warns:
            self._warns = False
            for table in sorted(self._settings.keys.keys() - self._used):
                name = self._settings.name
                logger.warning(
                    "`systems.%s.key.%s` has no effect: the job has no output `%s.%s`. Correct the table's name, or "
                    "remove the key",
                    *(name, table, name, table),
                )

    def _form(self, stream: str) -> TableForm:
        self._used.add(stream)
        looking = f"the table `{self._settings.name}.{stream}` cannot be looked at"
        with self._lock, self._database.look(looking) as connection:
            return TableTarget(self._settings, stream, connection).form
