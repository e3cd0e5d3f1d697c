"""The systems `delta` and `iceberg`: an output is a table, and a message a row."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, FencedError, IncompatibleError, NotFoundError
from penstock.retry import Retry, retry
from penstock.system.base import (
    MarkedAtCommit,
    PartitionOffsets,
    Progress,
    RawRecord,
    RecordLimits,
    System,
    SystemAdmin,
    SystemReader,
    SystemWriter,
    WriterIdentity,
    WriterTransaction,
    check_may_mark,
    check_options,
    check_stream_name,
)
from penstock.system.files.rows import RowForm, RowLimits, row_value
from penstock.system.files.schema import parse_schema
from penstock.system.lake.tables import ConflictError, Lake, Mark, Table
from penstock.wording import counted

_PARTITIONS = 4
_AGAIN = Retry(pause_s=0.01, growth=1.5, longest_pause_s=1.0, within_s=60.0)
"""A commit is tried again while others come first."""


@dataclass(frozen=True, slots=True)
class LakeSystem(System):
    """Tables as outputs. A subclass knows how to open them."""

    name: str
    lake: Lake
    partitions: int
    """The number for a table that no job has written to."""
    schemas: Mapping[str, str]
    """By stream, of tables to be created; the empty name is for all others."""

    fences: ClassVar[bool] = True
    keeps_progress: ClassVar[bool] = True
    lag_unit: ClassVar[str] = "commit"

    @classmethod
    def made(cls, name: str, lake: Lake, options: Mapping[str, str]) -> LakeSystem:
        """The system with the options that all kinds of tables have. Raises ConfigError."""
        schemas = {key: text for key, text in options.items() if key.partition(".")[0] == "schema"}
        for key, text in schemas.items():
            try:
                parse_schema(text)
            except ConfigError as error:
                raise ConfigError(f"`systems.{name}.{key}`: {error}") from error
        count = options.get("partitions", str(_PARTITIONS))
        if not count.isascii() or not count.isdigit() or int(count) < 1:
            raise ConfigError(f"`systems.{name}.partitions` = `{count}` is not a number from 1")
        return cls(name, lake, int(count), {key.partition(".")[2]: text for key, text in schemas.items()})

    def admin(self) -> LakeAdmin:
        return LakeAdmin(self)

    def reader(self) -> SystemReader:
        raise ConfigError(
            f"the system `{self.name}` writes tables and does not read them: read the table in a query of PySpark, as "
            "in docs/lakes.md"
        )

    def writer(self, identity: WriterIdentity | None) -> LakeWriter:
        return LakeWriter(self, identity)

    def schema_of(self, stream: str) -> pa.Schema:
        """The schema of a table to be created. Raises ConfigError if none is configured."""
        text = self.schemas.get(stream) or self.schemas.get("")
        if text is None:
            raise ConfigError(
                f"the table `{self.name}.{stream}` does not exist: create it, or set `systems.{self.name}.schema` or "
                f"`systems.{self.name}.schema.{stream}`, as in `user STRING, visits BIGINT`, and it is created"
            )
        return parse_schema(text)

    def opened(self, stream: str) -> tuple[Table, int]:
        """The table as it is now, and the number of its partitions, which is noted there. Raises NotFoundError."""
        table = self.lake.open(stream)
        known = table.partitions
        if known is None:
            with suppress(ConflictError):  # another process has noted it
                table.note_partitions(self.partitions)
            table = self.lake.open(stream)
            known = table.partitions or self.partitions
        return table, known


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
        storage = {key.partition(".")[2]: text for key, text in options.items() if key.startswith("storage.")}
        rest = {key: text for key, text in options.items() if not key.startswith(("storage.", "schema"))}
        check_options(name, rest, ("folder", "partitions"))
        if not options.get("folder"):
            raise ConfigError(f"`systems.{name}.folder` is missing: the URL or path of the folder with the tables")
        return cls.made(name, DeltaLake(_absolute(options["folder"]), storage), options)


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
        catalog = {key.partition(".")[2]: text for key, text in options.items() if key.startswith("catalog.")}
        rest = {key: text for key, text in options.items() if not key.startswith(("catalog.", "schema"))}
        check_options(name, rest, ("namespace", "partitions"))
        if not catalog:
            raise ConfigError(
                f"`systems.{name}.catalog.*` is missing: PyIceberg's settings of the catalog, such as "
                f"`systems.{name}.catalog.type: rest` and `systems.{name}.catalog.uri`"
            )
        return cls.made(name, IcebergLake(name, options.get("namespace", "default"), catalog), options)


class LakeAdmin(SystemAdmin):
    """Looks at tables, and creates them."""

    def __init__(self, system: LakeSystem) -> None:
        self._system = system
        self._lock = threading.Lock()

    def partition_count(self, stream: str) -> int:
        """Notes the number in a table that no job has written to."""
        with self._lock:
            return self._system.opened(stream)[1]

    def offsets(self, stream: str) -> dict[int, PartitionOffsets]:
        """An offset is a number of commits to the table."""
        with self._lock:
            table, partitions = self._system.opened(stream)
        return {number: PartitionOffsets(0, table.version) for number in range(partitions)}

    def stream_identity(self, stream: str) -> str:
        with self._lock:
            return self._system.lake.open(stream).identity

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        check_stream_name(stream)
        where = f"`{self._system.name}.{stream}`"
        if retention is not None and retention != StreamRetention():
            raise ConfigError(f"{where} is a table, whose rows Penstock does not delete")
        if partitions < 1:
            raise ConfigError(f"stream {where} needs at least 1 partition, not {partitions}")
        with self._lock:
            try:
                known = self._system.opened(stream)[1]
            except NotFoundError:
                if self._system.lake.create(stream, self._system.schema_of(stream), partitions):
                    return True
                known = self._system.opened(stream)[1]
        if known != partitions:
            raise IncompatibleError(f"stream {where} exists with {counted(known, 'partition')}, not {partitions}")
        return False

    def streams(self) -> list[str]:
        return self._system.lake.names()

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        raise ConfigError(f"`{ssp}` is a table, which this system does not read")

    def fence(self, stream: str, writer: WriterIdentity) -> None:
        with self._lock:
            partitions = self._system.opened(stream)[1]
            append(self._system, stream, writer, dict.fromkeys(range(partitions)), None)

    def progress_of(self, name: str, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        found, wanted = {}, list(ssps)
        with self._lock:
            tables = {stream: self._system.lake.open(stream) for stream in {ssp.stream for ssp in wanted}}
        for ssp in wanted:
            mark = tables[ssp.stream].mark(name, ssp.partition)
            if mark is not None and mark.progress is not None:
                found[ssp] = mark.progress
        return found

    def progress_place(self, name: str) -> str:
        return "the tables themselves"

    def record_limits(self, stream: str) -> RecordLimits:
        with self._lock:
            return RowLimits(schema=self._system.lake.open(stream).schema.serialize().to_pybytes())

    def close(self) -> None:
        """Does nothing: no resources are held."""


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
        """Append to each table in one commit. Returns the number of commits that each had before."""
        by_stream: dict[str, dict[int, Iterable[RawRecord]]] = {}
        for ssp in sorted(parts):
            by_stream.setdefault(ssp.stream, {})[ssp.partition] = parts[ssp]
        found = {}
        for stream, own in by_stream.items():
            progress = {ssp.partition: mark for ssp, mark in marks.items() if ssp.stream == stream}
            values = [row_value(record) for records in own.values() for record in records]
            wanted = {partition: progress.get(partition) for partition in own}
            found[stream] = append(self._system, stream, self._identity, wanted, values).version
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


def _absolute(folder: str) -> str:
    return folder if "://" in folder else str(Path(folder).expanduser().absolute())
