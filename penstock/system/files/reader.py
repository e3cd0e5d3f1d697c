"""Reads ranges of a folder's rows."""

from __future__ import annotations

from collections.abc import Generator

import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import counted
from penstock.errors import NotFoundError
from penstock.system.base import OffsetRange, PartitionOffsets
from penstock.system.files.formats import read_columns, read_rows
from penstock.system.files.listing import ROW_BITS, ROW_MASK, FoundFile
from penstock.system.files.listings import Listings
from penstock.system.files.settings import FilesSettings
from penstock.system.ranges import check_inside, missing
from penstock.system.rows.cursor import RowCursor
from penstock.system.rows.messages import COLUMN_ROWS
from penstock.system.rows.reader import Opens, RowReader


class FilesReader(RowReader):
    """Reads files from any row on."""

    def __init__(self, settings: FilesSettings) -> None:
        super().__init__()
        self._settings = settings
        self._listings = Listings(settings)

    def opens(self, offsets: OffsetRange, schema: pa.Schema | None) -> Opens:
        files = self._files(offsets)
        return lambda position: self._open(files[position >> ROW_BITS], offsets.ssp, position, schema)

    def close(self) -> None:
        super().close()
        self._listings.close()

    def _files(self, offsets: OffsetRange) -> list[FoundFile]:
        ssp = offsets.ssp
        listing = self._listings.get(ssp.stream)
        if not listing.exists or (ssp.partition < listing.partitions and offsets.end > listing.upcoming(ssp.partition)):
            listing.read()
        if not listing.exists:
            raise missing(offsets, offsets.start, "its folder has no listing")
        if ssp.partition >= listing.partitions:
            raise NotFoundError(
                f"stream `{ssp.system_stream}` has {counted(listing.partitions, 'partition')}: no {ssp}"
            )
        check_inside(offsets, PartitionOffsets(0, listing.upcoming(ssp.partition)))
        return listing.files[ssp.partition]

    def _open(self, file: FoundFile, ssp: SystemStreamPartition, position: int, schema: pa.Schema | None) -> RowCursor:
        settings, number, first = self._settings, position >> ROW_BITS, position & ROW_MASK
        by_column = schema is not None and settings.format_of(file) == "parquet"

        def rows() -> Generator[bytes, None, None]:
            with settings.source(ssp.stream, file) as source:
                yield from read_rows(source, settings.format_of(file), first, schema)

        def columns(schema: pa.Schema) -> Generator[pa.StructArray, None, None]:
            with settings.source(ssp.stream, file) as source:
                yield from read_columns(source, first, schema, COLUMN_ROWS)

        behind = (number + 1) << ROW_BITS
        made = columns(schema) if by_column else None
        return RowCursor(ssp, position, behind, schema, file.modified_ms, rows(), made)
