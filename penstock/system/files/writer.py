"""Appends to folders: files of rows, which manifests make valid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import counted
from penstock.errors import NotFoundError
from penstock.system.base import (
    MarkedAtCommit,
    Progress,
    RawRecord,
    SystemWriter,
    WriterIdentity,
    WriterTransaction,
    check_may_mark,
)
from penstock.system.contract.writer import Marks, Parts
from penstock.system.files.admin import FilesAdmin
from penstock.system.files.formats import file_of
from penstock.system.files.listing import ROW_BITS
from penstock.system.files.logs import PartitionLogs
from penstock.system.files.manifests import PartitionLog
from penstock.system.files.settings import FilesSettings
from penstock.system.rows.form import row_form, row_value


class FilesWriter(SystemWriter):
    """Appends to folders. The value of a record is a JSON object: a row of the stream's schema."""

    def __init__(self, settings: FilesSettings, admin: FilesAdmin, identity: WriterIdentity | None) -> None:
        self._settings = settings
        self._admin = admin
        self._identity = identity
        self._kind = settings.written_format()
        self._logs = PartitionLogs(settings)
        self._partitions: dict[str, int] = {}

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        file, rows = self._file(ssp, records)
        return self._log(ssp).append(self._identity, None, file, rows, self._kind).files << ROW_BITS

    def begin(self) -> WriterTransaction:
        return MarkedAtCommit(self._identity, self._append_all)

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

    def _append_all(self, parts: Parts, marks: Marks) -> None:
        """All files are made before the first is put."""
        made = {ssp: self._file(ssp, parts[ssp]) for ssp in sorted(parts)}
        for ssp, (file, rows) in made.items():
            self._log(ssp).append(self._identity, marks.get(ssp), file, rows, self._kind)

    def _file(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> tuple[bytes | None, int]:
        """A file of these rows, if there are any, and their number."""
        values = [*map(row_value, records)]
        if not values:
            return None, 0
        return file_of(row_form(self._settings.schema_of(ssp.stream)).batch(values), self._kind), len(values)

    def _log(self, ssp: SystemStreamPartition) -> PartitionLog:
        known = self._partitions.get(ssp.stream)
        if known is None:
            known = self._partitions[ssp.stream] = self._admin.claim(ssp.stream)
        if ssp.partition >= known:
            raise NotFoundError(f"stream `{ssp.system_stream}` has {counted(known, 'partition')}: there is no `{ssp}`")
        return self._logs.get(ssp)
