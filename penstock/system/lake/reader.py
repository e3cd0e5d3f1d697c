"""Reads ranges of a table's rows."""

from __future__ import annotations

from collections.abc import Generator

import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import counted
from penstock.errors import NotFoundError
from penstock.system.base import OffsetRange, PartitionOffsets
from penstock.system.lake.log import FileRows, PartitionFiles, TableLog, TableLogs, upcoming
from penstock.system.lake.settings import LakeSettings
from penstock.system.ranges import check_inside
from penstock.system.rows.cursor import RowCursor
from penstock.system.rows.messages import COLUMN_ROWS, ROWS, fitted_rows, readable_rows
from penstock.system.rows.reader import Opens, RowReader


class LakeReader(RowReader):
    """Reads rows from any offset on."""

    def __init__(self, settings: LakeSettings) -> None:
        super().__init__()
        self._settings = settings
        self._logs = TableLogs(settings.lake.log, settings.poll_ms)
        self._files: dict[SystemStreamPartition, PartitionFiles] = {}
        self._identities: dict[str, tuple[str, int]] = {}

    def opens(self, offsets: OffsetRange, schema: pa.Schema | None) -> Opens:
        log, files = self._opened(offsets)

        def opened(position: int) -> RowCursor | None:
            found = files.find(position, offsets.end)
            return None if found is None else _cursor(log, found, offsets.ssp, max(position, found.start), schema)

        return opened

    def _opened(self, offsets: OffsetRange) -> tuple[TableLog, PartitionFiles]:
        ssp = offsets.ssp
        log = self._logs.get(ssp.stream, offsets.end)
        partitions = log.partitions or self._settings.partitions
        if ssp.partition >= partitions:
            raise NotFoundError(f"stream `{ssp.system_stream}` has {counted(partitions, 'partition')}: no `{ssp}`")
        if self._identities.get(ssp.stream) != (log.identity, partitions):
            self._identities[ssp.stream] = log.identity, partitions
            self.close()
            self._files = {each: own for each, own in self._files.items() if each.stream != ssp.stream}
        check_inside(offsets, PartitionOffsets(0, upcoming(log)))
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
