"""Looks at the tables of a database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import counted
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.system.base import (
    PartitionOffsets,
    Progress,
    RecordLimits,
    SystemAdmin,
    WriterIdentity,
    check_stream_name,
)
from penstock.system.database import marks
from penstock.system.database.connection import Database
from penstock.system.database.rows import TableForm, TableLimits
from penstock.system.database.settings import DatabaseSettings
from penstock.system.database.tables import TableTarget
from penstock.system.database.writer import DatabaseWriter

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
