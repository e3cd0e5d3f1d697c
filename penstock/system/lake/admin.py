"""Looks at tables, and creates them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.base.clock import SYSTEM_CLOCK
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
from penstock.system.lake.log import ADDED, SNAPSHOT, PartitionFiles, TableLog, TableLogs, offset_of, upcoming
from penstock.system.lake.settings import LakeSettings
from penstock.system.lake.writer import append
from penstock.system.rows.form import RowLimits

_SAME_BEGIN_S = 30.0


class LakeAdmin(SystemAdmin):
    """Looks at tables, and creates them."""

    def __init__(self, settings: LakeSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._logs = TableLogs(settings.lake.log, settings.poll_ms)
        self._begins: dict[tuple[str, str], tuple[int, float]] = {}

    def partition_count(self, stream: str) -> int:
        """The number that is noted in the table, or the configured one. Nothing is written: an input may be a table of
        somebody else."""
        with self._lock:
            return self._partitions(self._logs.get(stream))

    def offsets(self, stream: str) -> dict[int, PartitionOffsets]:
        """All partitions have the same ends: those of the table."""
        with self._lock:
            log = self._logs.get(stream)
            ends = PartitionOffsets(offset_of(self._oldest(log), SNAPSHOT), upcoming(log))
            return dict.fromkeys(range(self._partitions(log)), ends)

    def stream_identity(self, stream: str) -> str:
        with self._lock:
            return self._logs.get(stream).identity

    def keeps_order(self, stream: str) -> bool:
        """Files belong to partitions by their names, so only one partition keeps an order across them."""
        return self.partition_count(stream) == 1

    def missing_columns(self, stream: str, names: Sequence[str]) -> Sequence[str]:
        with self._lock:
            known = self._logs.get(stream).schema.names
        return [name for name in names if name not in known]

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        check_stream_name(stream)
        where = f"`{self._settings.name}.{stream}`"
        if retention is not None and retention != StreamRetention():
            raise ConfigError(f"{where} is a table, whose rows Penstock does not delete")
        if partitions < 1:
            raise ConfigError(f"stream {where} needs at least 1 partition, not {partitions}")
        with self._lock:
            try:
                known = self._settings.opened(stream)[1]
            except NotFoundError:
                if self._settings.lake.create(stream, self._settings.schema_of(stream), partitions):
                    return True
                known = self._settings.opened(stream)[1]
        if known != partitions:
            raise IncompatibleError(f"stream {where} exists with {counted(known, 'partition')}, not {partitions}")
        return False

    def streams(self) -> list[str]:
        return self._settings.lake.names()

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        """The timestamp of a row is the time of its commit; in a snapshot, that of its file."""
        with self._lock:
            log = self._logs.get(ssp.stream)
            files = PartitionFiles(log, ssp.partition, self._partitions(log), "added")
            found = files.at_time(timestamp_ms, self._oldest(log))
            return upcoming(log) if found is None else found

    def named_offset(self, ssp: SystemStreamPartition, name: str) -> int:
        """`version:12` begins with the rows that this version added, `snapshot:12` with all rows that the table had
        then, and `snapshot` with all that it has now. Iceberg's names are ids of snapshots, or sequence numbers."""
        kind, colon, version = name.partition(":")
        if kind not in ("version", "snapshot") or (kind == "version" and not colon):
            try:
                return super().named_offset(ssp, name)
            except IncompatibleError as error:
                raise IncompatibleError(
                    f"`{name}` is not an offset of `{ssp}`: it is an integer, `version:N`, `snapshot:N` or `snapshot`"
                ) from error
        with self._lock:
            log = self._logs.get(ssp.stream)
            number = self._number(log, version) if colon else self._begin(log, "newest", lambda: log.head)
            if number is None or number < self._oldest(log):
                oldest = log.name_of(max(1, self._oldest(log)))
                raise IncompatibleError(
                    f"{log.title} has no {log.noun} `{version}` to begin with: the oldest one is {oldest}, and the "
                    f"newest {log.name_of(log.head)}"
                )
            return offset_of(number, ADDED if kind == "version" else SNAPSHOT)

    def fence(self, stream: str, writer: WriterIdentity) -> None:
        with self._lock:
            partitions = self._settings.opened(stream)[1]
            append(self._settings, stream, writer, dict.fromkeys(range(partitions)), None)

    def progress_of(self, name: str, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        found, wanted = {}, list(ssps)
        with self._lock:
            tables = {stream: self._settings.lake.open(stream) for stream in {ssp.stream for ssp in wanted}}
        for ssp in wanted:
            mark = tables[ssp.stream].mark(name, ssp.partition)
            if mark is not None and mark.progress is not None:
                found[ssp] = mark.progress
        return found

    def progress_place(self, name: str) -> str:
        return "the tables themselves"

    def record_limits(self, stream: str) -> RecordLimits:
        with self._lock:
            return RowLimits(schema=self._settings.lake.open(stream).schema.serialize().to_pybytes())

    def close(self) -> None:
        """Does nothing: no resources are held."""

    def _partitions(self, log: TableLog) -> int:
        return log.partitions or self._settings.partitions

    def _oldest(self, log: TableLog) -> int:
        return self._begin(log, "oldest", lambda: log.oldest(SYSTEM_CLOCK.now_ms()))

    def _begin(self, log: TableLog, kind: str, find: Callable[[], int]) -> int:
        """The number of a snapshot to begin with. A start asks for one partition after the other, and all must begin
        with the same one: a compaction in between moves rows from files of one partition to those of another."""
        now = time.monotonic()
        known = self._begins.get((log.identity, kind))
        if known is None or now >= known[1]:
            known = self._begins[log.identity, kind] = find(), now + _SAME_BEGIN_S
        return known[0]

    def _number(self, log: TableLog, name: str) -> int | None:
        return log.number_of(name) if name.isascii() and name.isdecimal() and len(name) < 20 else None
