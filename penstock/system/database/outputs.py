"""The outputs of a job in a database: looks at their tables, and writes to them, rows and marks in one
transaction.

Marks are in the table `penstock_progress` of the same database: who may write to an output, and how far it is
published.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import CreateTable

from penstock import errors
from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import retry_contended
from penstock.base.wording import counted
from penstock.system import base
from penstock.system.contract.writer import Marks, Parts, WriterMark
from penstock.system.database.connection import BusyError, Database, DatabaseSettings, busy_is_away, is_of_a_row
from penstock.system.database.rows import RowChange, TableForm, TableLimits, needed
from penstock.system.database.tables import TableTarget

MARKS_TABLE = "penstock_progress"
_NAME = sa.String(255).with_variant(sa.String(255, collation="utf8mb4_bin"), "mysql", "mariadb")
_MARKS = sa.Table(
    MARKS_TABLE,
    sa.MetaData(),
    sa.Column("writer", _NAME, primary_key=True),
    sa.Column("stream", _NAME, primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("slot", sa.BigInteger),
    sa.Column("chunk", sa.BigInteger),
    implicit_returning=False,
)


def has_marks(database: Database) -> bool:
    """True if the table of the marks exists."""
    with database.look(f"the table `{MARKS_TABLE}` cannot be looked for") as connection:
        return sa.inspect(connection).has_table(MARKS_TABLE)


def ensure_marks(database: Database) -> None:
    """Create the table of the marks, unless it exists."""
    if has_marks(database):
        return
    try:
        with database.look(f"the table `{MARKS_TABLE}` cannot be created") as connection:
            connection.execute(CreateTable(_MARKS))
    except errors.PenstockError as error:
        if has_marks(database):
            return  # another process was faster
        if isinstance(error, errors.SystemRefusedError) and is_of_a_row(error):
            raise errors.SystemRefusedError(
                f"{error}. Let the user create it, or create it as in docs/databases.md"
            ) from error
        raise


def take_over_marks(
    connection: sa.Connection, identity: base.WriterIdentity, ssps: Iterable[SystemStreamPartition]
) -> dict[SystemStreamPartition, WriterMark]:
    """Lock the marks of a writer's name in these partitions until the transaction ends, and set its epoch. Returns them
    as they are now.

    Raises:
        FencedError: a larger epoch has written to one of the partitions.
        BusyError: another process has added the marks meanwhile.
    """
    wanted = sorted(ssps)
    found = _marks_of(connection, identity.name, wanted, lock=True)
    for ssp, mark in found.items():
        if mark.epoch > identity.epoch:
            raise errors.FencedError(
                f"the writer `{identity.name}` of epoch {identity.epoch} must not append to `{ssp.system_stream}` "
                f"partition {ssp.partition}: epoch {mark.epoch} has taken over. Stop this run"
            )
    own = {"writer": identity.name, "epoch": identity.epoch}
    if missing := [_place(ssp) | own for ssp in wanted if ssp not in found]:
        try:
            connection.execute(_MARKS.insert(), missing)
        except IntegrityError as error:
            raise BusyError(f"another process has begun to write as `{identity.name}`") from error
    older = [ssp for ssp in wanted if ssp in found and found[ssp].epoch < identity.epoch]
    _update(connection, identity.name, {ssp: {"epoch": identity.epoch} for ssp in older})
    return {
        ssp: found[ssp]._replace(epoch=identity.epoch) if ssp in found else WriterMark(identity.epoch, None)
        for ssp in wanted
    }


def keep_marks(connection: sa.Connection, name: str, progress: Mapping[SystemStreamPartition, base.Progress]) -> None:
    """Set the progress in partitions that were taken over."""
    _update(connection, name, {ssp: {"slot": own.slot, "chunk": own.chunk} for ssp, own in progress.items()})


def read_marks(
    database: Database, name: str, ssps: Sequence[SystemStreamPartition]
) -> dict[SystemStreamPartition, WriterMark]:
    """The marks of a writer's name, without a lock."""
    try:
        with database.look(f"the table `{MARKS_TABLE}` cannot be read") as connection:
            return _marks_of(connection, name, ssps, lock=False)
    except errors.NotFoundError:
        return {}


def _marks_of(
    connection: sa.Connection, name: str, ssps: Sequence[SystemStreamPartition], *, lock: bool
) -> dict[SystemStreamPartition, WriterMark]:
    by_stream: dict[str, dict[int, SystemStreamPartition]] = {}
    for ssp in ssps:
        by_stream.setdefault(str(ssp.system_stream), {})[ssp.partition] = ssp
    found = {}
    for stream, parts in sorted(by_stream.items()):
        asked = (
            sa.select(_MARKS.c.part, _MARKS.c.epoch, _MARKS.c.slot, _MARKS.c.chunk)
            .where(_MARKS.c.writer == name, _MARKS.c.stream == stream, _MARKS.c.part.in_(list(parts)))
            .order_by(_MARKS.c.part)  # everybody locks them in this order
        )
        for part, epoch, slot, chunk in connection.execute(asked.with_for_update() if lock else asked):
            found[parts[part]] = WriterMark(epoch, None if slot is None else base.Progress(slot, chunk))
    return found


def _update(connection: sa.Connection, name: str, values: Mapping[SystemStreamPartition, Mapping[str, int]]) -> None:
    for ssp, own in sorted(values.items()):
        place = _place(ssp)
        at = (_MARKS.c.writer == name, _MARKS.c.stream == place["stream"], _MARKS.c.part == place["part"])
        connection.execute(_MARKS.update().where(*at).values(**own))


def _place(ssp: SystemStreamPartition) -> dict[str, int | str]:
    return {"stream": str(ssp.system_stream), "part": ssp.partition}


T = TypeVar("T")


class DatabaseWriter(base.SystemWriter):
    """Writes to tables. A record is an upsert of its value, or deletes the row of its key if it has no value."""

    def __init__(self, settings: DatabaseSettings, identity: base.WriterIdentity | None) -> None:
        self._settings = settings
        self._identity = identity
        self._database = Database(settings)
        self._targets: dict[str, TableTarget] = {}
        self._is_ready = False

    def append(self, ssp: SystemStreamPartition, records: Iterable[base.RawRecord]) -> int:
        """Rows have no offsets: it returns 0."""
        self._write({ssp: records}, {})
        return 0

    def begin(self) -> base.WriterTransaction:
        return base.MarkedAtCommit(self._identity, self._write)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, base.Progress]:
        """Takes over from older epochs."""
        identity, wanted = base.check_may_mark(self._identity), list(ssps)
        self._prepare()

        def once() -> dict[SystemStreamPartition, WriterMark]:
            with self._database.transaction(f"the table `{MARKS_TABLE}` cannot be written") as connection:
                return take_over_marks(connection, identity, wanted)

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
                    raise errors.ConfigError(f"a record cannot be written to `{form.table}`: {error}") from error
        wanted = {stream: needed(own) for stream, own in changes.items()}
        try:
            _again(lambda: self._once(list(parts), wanted, progress))
        except errors.SystemRefusedError as error:
            if not is_of_a_row(error):
                raise
            raise self._refusal(wanted, error) from error
        except errors.NotFoundError:
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
                before = take_over_marks(connection, self._identity, ssps)
                for ssp, own in progress.items():
                    own.check_follows(before[ssp].progress, ssp)
            for stream, rows in changes.items():
                self._targets[stream].change(connection, rows)
            if self._identity is not None:
                keep_marks(connection, self._identity.name, progress)

    def _refusal(
        self, changes: Mapping[str, list[RowChange]], refused: errors.SystemRefusedError
    ) -> errors.PenstockError:
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
            except errors.SystemRefusedError as error:
                return errors.SystemRefusedError(
                    f"{error}. It is the row with the key {place}. Nothing was written. Change the table so that it "
                    "takes the row, or what the application sends"
                )
        return refused

    def _prepare(self) -> None:
        if self._identity is not None and not self._is_ready:
            ensure_marks(self._database)
            self._is_ready = True

    def _target(self, stream: str) -> TableTarget:
        if stream not in self._targets:
            with self._database.look(f"the table `{self._settings.name}.{stream}` cannot be looked at") as connection:
                self._targets[stream] = TableTarget(self._settings, stream, connection)
        return self._targets[stream]

    def _check(self, ssp: SystemStreamPartition) -> None:
        if ssp.partition >= self._settings.partitions:
            has = counted(self._settings.partitions, "partition")
            raise errors.NotFoundError(f"stream `{ssp.system_stream}` has {has}: there is no partition {ssp.partition}")


class _UndoError(Exception):
    """Rolls a transaction back."""


def _again(work: Callable[[], T]) -> T:
    with busy_is_away():
        return retry_contended(work, BusyError)


def _key_and_value(record: base.RawRecord) -> tuple[bytes | None, bytes | None]:
    key, value = record[1], record[2]
    for each in (key, value):
        if each is not None and not isinstance(each, bytes):
            raise errors.ConfigError(f"a record's key and value are bytes, not {type(each).__name__}")
    return key, value


logger = logging.getLogger(__name__)


class DatabaseAdmin(base.SystemAdmin):
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

    def offsets(self, stream: str) -> dict[int, base.PartitionOffsets]:
        """Refuses: a start asks it of inputs."""
        raise errors.ConfigError(self._settings.not_read)

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        """Refuses to create a table."""
        base.check_stream_name(stream)
        where = f"`{self._settings.name}.{stream}`"
        if retention is not None and retention != StreamRetention():
            raise errors.ConfigError(f"{where} is a table, whose rows Penstock does not delete")
        try:
            known = self.partition_count(stream)
        except errors.NotFoundError as error:
            raise errors.ConfigError(f"{error}. Penstock creates no tables of a database") from error
        if known != partitions:
            raise errors.IncompatibleError(
                f"stream {where} exists with {counted(known, 'partition')}, not {partitions}: "
                f"`systems.{self._settings.name}.partitions` says how many"
            )
        return False

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        raise errors.ConfigError(self._settings.not_read)

    def fence(self, stream: str, writer: base.WriterIdentity) -> None:
        partitions = self.partition_count(stream)
        self._warn_of_unused_keys()
        ssps = [SystemStreamPartition(self._settings.name, stream, number) for number in range(partitions)]
        with closing(DatabaseWriter(self._settings, writer)) as own:
            own.progress(ssps)

    def keeps_progress_of(self, name: str) -> bool:
        with self._lock:
            return has_marks(self._database)

    def progress_of(
        self, name: str, ssps: Iterable[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, base.Progress]:
        with self._lock:
            found = read_marks(self._database, name, list(ssps))
        return {ssp: mark.progress for ssp, mark in found.items() if mark.progress is not None}

    def progress_place(self, name: str) -> str:
        return f"the table `{MARKS_TABLE}`"

    def record_limits(self, stream: str) -> base.RecordLimits:
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
