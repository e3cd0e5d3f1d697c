"""The systems `delta` and `iceberg`: a stream is a table, and a message a row.

Their admin looks at tables and creates them, and their readers read ranges of a table's rows. The libraries of the two
formats are extras.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import ClassVar

import pyarrow as pa

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import counted
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.system import base
from penstock.system.contract.definition import absolute_place, positive_option
from penstock.system.lake.log import (
    ADDED,
    CHANGES,
    SNAPSHOT,
    FileRows,
    PartitionFiles,
    TableLog,
    TableLogs,
    offset_of,
    place_of,
    upcoming,
)
from penstock.system.lake.tables import Lake, LakeSettings, LakeWriter, append
from penstock.system.ranges import check_inside
from penstock.system.rows.messages import COLUMN_ROWS, ROWS, fitted_rows, readable_rows
from penstock.system.rows.reader import Opens, RowCursor, RowReader
from penstock.system.rows.schema import RowLimits, split_schemas

_SAME_BEGIN_S = 30.0


class LakeAdmin(base.SystemAdmin):
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

    def offsets(self, stream: str) -> dict[int, base.PartitionOffsets]:
        """All partitions have the same ends: those of the table."""
        with self._lock:
            log = self._logs.get(stream)
            ends = base.PartitionOffsets(offset_of(self._oldest(log), SNAPSHOT), upcoming(log))
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
        base.check_stream_name(stream)
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

    def fence(self, stream: str, writer: base.WriterIdentity) -> None:
        with self._lock:
            partitions = self._settings.opened(stream)[1]
            append(self._settings, stream, writer, dict.fromkeys(range(partitions)), None)

    def progress_of(
        self, name: str, ssps: Iterable[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, base.Progress]:
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

    def record_limits(self, stream: str) -> base.RecordLimits:
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


class LakeReader(RowReader):
    """Reads rows from any offset on."""

    def __init__(self, settings: LakeSettings) -> None:
        super().__init__()
        self._settings = settings
        self._logs = TableLogs(settings.lake.log, settings.poll_ms)
        self._files: dict[SystemStreamPartition, PartitionFiles] = {}
        self._identities: dict[str, tuple[str, int]] = {}

    def opens(self, offsets: base.OffsetRange, schema: pa.Schema | None) -> Opens:
        log, files = self._opened(offsets)

        def opened(position: int) -> RowCursor | None:
            found = files.find(position, offsets.end)
            return None if found is None else _cursor(log, found, offsets.ssp, max(position, found.start), schema)

        return opened

    def _opened(self, offsets: base.OffsetRange) -> tuple[TableLog, PartitionFiles]:
        ssp = offsets.ssp
        log = self._logs.get(ssp.stream, offsets.end)
        partitions = log.partitions or self._settings.partitions
        if ssp.partition >= partitions:
            raise NotFoundError(f"stream `{ssp.system_stream}` has {counted(partitions, 'partition')}: no `{ssp}`")
        if self._identities.get(ssp.stream) != (log.identity, partitions):
            self._identities[ssp.stream] = log.identity, partitions
            self.close()
            self._files = {each: own for each, own in self._files.items() if each.stream != ssp.stream}
        check_inside(offsets, base.PartitionOffsets(0, upcoming(log)))
        if ssp not in self._files:
            self._files[ssp] = PartitionFiles(log, ssp.partition, partitions, self._settings.changes)
        return log, self._files[ssp]


def _cursor(
    log: TableLog, found: FileRows, ssp: SystemStreamPartition, position: int, schema: pa.Schema | None
) -> RowCursor:
    file, first = found.file, position - found.start

    def rows() -> Generator[bytes, None, None]:
        row = first
        for batch in log.batches(file, first, ROWS, None):
            yield from readable_rows(file.path, batch, row, {})
            row += batch.num_rows

    def columns(wanted: pa.Schema) -> Generator[pa.StructArray, None, None]:
        for batch in log.batches(file, first, COLUMN_ROWS, wanted.names):
            if batch.num_rows:
                yield fitted_rows(batch, wanted, {}, file.path)

    made = None if schema is None else columns(schema)
    return RowCursor(ssp, position, found.end, schema, file.time_ms, rows(), made)


_PARTITIONS = 4
_POLL_MS = 1000
_OPTIONS = ("changes", "partitions", "poll.ms")
"""The options that both kinds have, with `schema` and `schema.<table>`."""


class LakeSystem(LakeSettings, base.System):
    """Tables as inputs and outputs. A subclass knows how to open them."""

    __slots__ = ()

    fences: ClassVar[bool] = True
    keeps_progress: ClassVar[bool] = True
    has_keys: ClassVar[bool] = False
    lag_unit: ClassVar[str] = "commit"

    @classmethod
    def of(cls, name: str, lake: Lake, schemas: Mapping[str, str], options: Mapping[str, str]) -> LakeSystem:
        """The system with the options that all kinds of tables have. Raises ConfigError."""
        changes = next((each for each in CHANGES if each == options.get("changes", CHANGES[0])), None)
        if changes is None:
            raise ConfigError(f"`systems.{name}.changes` = `{options['changes']}`: it is {', '.join(CHANGES)}")
        return cls(
            name,
            lake,
            positive_option(name, options, "partitions") or _PARTITIONS,
            schemas,
            changes,
            positive_option(name, options, "poll.ms") or _POLL_MS,
        )

    def lag(self, position: int, upcoming: int) -> int:
        """In commits that are not read to their end."""
        return max(0, place_of(upcoming).number - place_of(position).number)

    def admin(self) -> LakeAdmin:
        return LakeAdmin(self)

    def reader(self) -> LakeReader:
        return LakeReader(self)

    def writer(self, identity: base.WriterIdentity | None) -> LakeWriter:
        return LakeWriter(self, identity)


class DeltaSystem(LakeSystem):
    """Delta tables in a folder."""

    __slots__ = ()

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> LakeSystem:
        """The options are in docs/lakes.md."""
        try:
            from penstock.system.lake.delta import DeltaLake
        except ImportError as error:
            raise ConfigError(f"the system `{name}` needs deltalake: pip install penstock-streams[delta]") from error
        schemas, others = split_schemas(name, options)
        storage = {key.partition(".")[2]: text for key, text in others.items() if key.startswith("storage.")}
        rest = {key: text for key, text in others.items() if not key.startswith("storage.")}
        base.check_options(name, rest, ("folder", *_OPTIONS))
        if not options.get("folder"):
            raise ConfigError(f"`systems.{name}.folder` is missing: the URL or path of the folder with the tables")
        return cls.of(name, DeltaLake(absolute_place(options["folder"]), storage), schemas, rest)


class IcebergSystem(LakeSystem):
    """Iceberg tables of a catalog."""

    __slots__ = ()

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> LakeSystem:
        """The options are in docs/lakes.md."""
        try:
            from penstock.system.lake.iceberg import IcebergLake
        except ImportError as error:
            raise ConfigError(f"the system `{name}` needs pyiceberg: pip install penstock-streams[iceberg]") from error
        schemas, others = split_schemas(name, options)
        catalog = {key.partition(".")[2]: text for key, text in others.items() if key.startswith("catalog.")}
        rest = {key: text for key, text in others.items() if not key.startswith("catalog.")}
        base.check_options(name, rest, ("namespace", "outside", *_OPTIONS))
        outside = options.get("outside", "refuse")
        if outside not in ("refuse", "read"):
            raise ConfigError(f"`systems.{name}.outside` = `{outside}`: it is refuse or read")
        namespace = options.get("namespace", "default")
        if not catalog:
            raise ConfigError(
                f"`systems.{name}.catalog.*` is missing: PyIceberg's settings of the catalog, such as "
                f"`systems.{name}.catalog.type: rest` and `systems.{name}.catalog.uri`"
            )
        lake = IcebergLake(name, namespace, catalog, "read" if outside == "read" else "refuse")
        return cls.of(name, lake, schemas, rest)
