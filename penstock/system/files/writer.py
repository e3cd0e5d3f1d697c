"""Appends to folders: files of rows, which manifests make valid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import NotFoundError
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.system.base import (
    MarkedAtCommit,
    Progress,
    RawRecord,
    SystemAdmin,
    SystemWriter,
    WriterIdentity,
    WriterTransaction,
    check_may_mark,
)
from penstock.system.files.formats import Format
from penstock.system.files.listing import ROW_BITS
from penstock.system.files.manifests import Commits, PartitionLog, note_partitions
from penstock.system.files.rows import row_form, row_value
from penstock.wording import counted


class Logs:
    """The manifests of partitions, by stream."""

    def __init__(self, url_of: Callable[[str], str]) -> None:
        self._url_of = url_of
        self._stores: dict[str, ObjectStore] = {}
        self._logs: dict[SystemStreamPartition, PartitionLog] = {}
        self._commits: dict[str, Commits] = {}

    def get(self, ssp: SystemStreamPartition) -> PartitionLog:
        if ssp not in self._logs:
            self._logs[ssp] = PartitionLog(self.folder(ssp.stream), ssp)
        return self._logs[ssp]

    def commits(self, stream: str) -> Commits:
        if stream not in self._commits:
            self._commits[stream] = Commits(self.folder(stream))
        return self._commits[stream]

    def folder(self, stream: str) -> ObjectStore:
        if stream not in self._stores:
            self._stores[stream] = open_store(self._url_of(stream), is_for_others=True)
        return self._stores[stream]

    def close(self) -> None:
        while self._stores:
            self._stores.popitem()[1].close()


class FilesWriter(SystemWriter):
    """Appends to folders. The value of a record is a JSON object: a row of the stream's schema."""

    def __init__(
        self,
        admin: SystemAdmin,
        identity: WriterIdentity | None,
        url_of: Callable[[str], str],
        schema_of: Callable[[str], str],
        kind: Format,
    ) -> None:
        """
        Args:
            url_of: gives the URL of a stream's folder.
            schema_of: gives the schema of a stream.
            kind: the format of its files."""
        self._admin = admin
        self._identity = identity
        self._schema_of = schema_of
        self._kind = kind
        self._logs = Logs(url_of)
        self._partitions: dict[str, int] = {}

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        return self._append_all({ssp: records}, {})[ssp] << ROW_BITS

    def begin(self) -> WriterTransaction:
        def append(
            parts: Mapping[SystemStreamPartition, Iterable[RawRecord]], marks: Mapping[SystemStreamPartition, Progress]
        ) -> None:
            self._append_all(parts, marks)

        return MarkedAtCommit(self._identity, append)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        """Takes over from older epochs."""
        name = check_may_mark(self._identity).name
        found = {}
        for ssp in ssps:
            log = self._log(ssp)
            log.append(self._identity, None, None, 0)
            if name in (marks := log.read().marks):
                found[ssp] = Progress(*marks[name])
        return found

    def close(self) -> None:
        self._logs.close()
        self._admin.close()

    def _append_all(
        self,
        parts: Mapping[SystemStreamPartition, Iterable[RawRecord]],
        marks: Mapping[SystemStreamPartition, Progress],
    ) -> dict[SystemStreamPartition, int]:
        """The number of files that each partition had before. All files are made before the first is put."""
        made: dict[SystemStreamPartition, tuple[bytes | None, int]] = {}
        for ssp in sorted(parts):
            values = [row_value(record) for record in parts[ssp]]
            made[ssp] = (
                row_form(self._schema_of(ssp.stream)).file(values, self._kind) if values else None,
                len(values),
            )
        return {
            ssp: self._log(ssp).append(self._identity, marks.get(ssp), *own, self._kind).files
            for ssp, own in made.items()
        }

    def _log(self, ssp: SystemStreamPartition) -> PartitionLog:
        known = self._partitions.get(ssp.stream)
        if known is None:
            known = self._partitions[ssp.stream] = self._admin.partition_count(ssp.stream)
            note_partitions(self._logs.folder(ssp.stream), known)
        if ssp.partition >= known:
            raise NotFoundError(f"stream `{ssp.system_stream}` has {counted(known, 'partition')}: there is no `{ssp}`")
        return self._logs.get(ssp)
