"""Writes to the tables of a database: rows and marks in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import retry_contended
from penstock.base.wording import counted
from penstock.errors import ConfigError, NotFoundError, PenstockError, SystemRefusedError
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
from penstock.system.database import marks
from penstock.system.database.connection import Database
from penstock.system.database.errors import BusyError, busy_is_away, is_of_a_row
from penstock.system.database.rows import RowChange, needed
from penstock.system.database.settings import DatabaseSettings
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
