"""The inputs and outputs of a job inside a streaming query: Spark's DataFrames, as streams of the system `spark`.

An input DataFrame is a stream with a partition for each task. Its offsets are the ids of the query's batches: batch n
is the range [n, n + 1) of every partition, however many rows it has. Nobody reads or writes these streams through the
system: the engine feeds stage 0 with the rows of a batch, and makes DataFrames of the objects that a record names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.errors import ConfigError
from penstock.system.contract.admin import SystemAdmin
from penstock.system.contract.definition import QUERY_SYSTEM, System, check_options
from penstock.system.contract.messages import PartitionOffsets, RawRecord, SystemReader
from penstock.system.contract.writer import Progress, SystemWriter, WriterIdentity, WriterTransaction

LAST_BATCH = 2**62
"""Greater than the id of any batch."""


def queries_of(identities: Mapping[SystemStream, str]) -> set[str]:
    """The ids of the queries that a job runs inside. `identities`: those of the streams in a checkpoint."""
    return {query for stream, query in identities.items() if stream.system == QUERY_SYSTEM}


class QuerySystem(System):
    """The DataFrames of one query.

    Its outputs are exactly once by themselves: the record of a batch names the objects with its rows, and these stay
    until the query asks for the next batch.
    """

    fences = True
    keeps_progress = True
    readers_seek = True

    def __init__(self, query: str, partitions: int, first_batch: int) -> None:
        """
        Args:
            query: the query's id, which Spark's checkpoint location keeps.
            partitions: one for each task.
            first_batch: the first batch of a job without a checkpoint."""
        self.name = QUERY_SYSTEM
        self.query = query
        self.partitions = partitions
        self.first_batch = first_batch

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> QuerySystem:
        """The query itself is known once Spark hands over its first batch."""
        check_options(name, options, ())
        return cls("", 1, 0)

    def admin(self) -> SystemAdmin:
        return _Admin(self)

    def reader(self) -> SystemReader:
        """Refuses: the engine feeds the rows."""
        return _refuse("read")

    def writer(self, identity: WriterIdentity | None) -> SystemWriter:
        """The writer does nothing, because the outputs are published already."""
        return _Writer()


class _Admin(SystemAdmin):
    def __init__(self, system: QuerySystem) -> None:
        self._system = system

    def partition_count(self, stream: str) -> int:
        return self._system.partitions

    def offsets(self, stream: str) -> dict[int, PartitionOffsets]:
        ends = PartitionOffsets(self._system.first_batch, LAST_BATCH)
        return dict.fromkeys(range(self._system.partitions), ends)

    def stream_identity(self, stream: str) -> str:
        return self._system.query

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        return False

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        raise ConfigError(f"`{ssp}` is a DataFrame of a query: Spark knows its offsets, and no time leads to one")

    def fence(self, stream: str, writer: WriterIdentity) -> None:
        """Does nothing: only rows that a record names are output, and the log refuses the records of older epochs."""

    def close(self) -> None:
        """Does nothing: no resources are held."""


class _Writer(SystemWriter):
    """Publishes nothing: the record that names the rows is enough."""

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        return _refuse("written")

    def begin(self) -> WriterTransaction:
        return _Transaction()

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        return {}

    def close(self) -> None:
        """Does nothing: no resources are held."""


class _Transaction(WriterTransaction):
    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> None:
        """Does nothing."""

    def mark(self, ssp: SystemStreamPartition, progress: Progress) -> None:
        """Does nothing."""

    def commit(self) -> None:
        """Does nothing."""

    def abort(self) -> None:
        """Does nothing."""


def _refuse(how: str) -> NoReturn:
    raise ConfigError(
        f"the streams of the system `{QUERY_SYSTEM}` are DataFrames of a query, which cannot be {how} here: a job with "
        "them runs inside its query only"
    )
