"""The system `files`: a stream is a folder of Parquet, JSON lines or CSV, and a message a row.

Its readers read ranges of a folder's rows. Its writers append files of rows, which manifests make valid.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import ClassVar

import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.base.secrets import RootKeys
from penstock.base.wording import counted
from penstock.config.settings import ROOT_OPTIONS
from penstock.errors import ConfigError, NotFoundError
from penstock.system import base
from penstock.system.contract.definition import absolute_place, positive_option
from penstock.system.contract.writer import Marks, Parts
from penstock.system.files.admin import FilesAdmin
from penstock.system.files.folders import Links
from penstock.system.files.formats import FORMATS, Format, file_of, read_columns, read_rows
from penstock.system.files.listing import ROW_BITS, ROW_MASK, FoundFile, Order
from penstock.system.files.manifests import PartitionLog
from penstock.system.files.settings import FilesSettings, Listings, PartitionLogs
from penstock.system.ranges import check_inside, missing
from penstock.system.rows.messages import COLUMN_ROWS
from penstock.system.rows.reader import Opens, RowCursor, RowReader
from penstock.system.rows.schema import row_form, row_value, split_schemas


class FilesReader(RowReader):
    """Reads files from any row on."""

    def __init__(self, settings: FilesSettings) -> None:
        super().__init__()
        self._settings = settings
        self._listings = Listings(settings)

    def opens(self, offsets: base.OffsetRange, schema: pa.Schema | None) -> Opens:
        files = self._files(offsets)
        return lambda position: self._open(files[position >> ROW_BITS], offsets.ssp, position, schema)

    def close(self) -> None:
        super().close()
        self._listings.close()

    def _files(self, offsets: base.OffsetRange) -> list[FoundFile]:
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
        check_inside(offsets, base.PartitionOffsets(0, listing.upcoming(ssp.partition)))
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


class FilesWriter(base.SystemWriter):
    """Appends to folders. The value of a record is a JSON object: a row of the stream's schema."""

    def __init__(self, settings: FilesSettings, admin: FilesAdmin, identity: base.WriterIdentity | None) -> None:
        self._settings = settings
        self._admin = admin
        self._identity = identity
        self._kind = settings.written_format()
        self._logs = PartitionLogs(settings)
        self._partitions: dict[str, int] = {}

    def append(self, ssp: SystemStreamPartition, records: Iterable[base.RawRecord]) -> int:
        file, rows = self._file(ssp, records)
        return self._log(ssp).append(self._identity, None, file, rows, self._kind).files << ROW_BITS

    def begin(self) -> base.WriterTransaction:
        return base.MarkedAtCommit(self._identity, self._append_all)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, base.Progress]:
        """Takes over from older epochs."""
        name = base.check_may_mark(self._identity).name
        found = {}
        for ssp in ssps:
            log = self._log(ssp)
            log.append(self._identity, None, None, 0)
            if name in (marks := log.read().marks):
                found[ssp] = base.Progress(*marks[name])
        return found

    def close(self) -> None:
        self._logs.close()
        self._admin.close()

    def _append_all(self, parts: Parts, marks: Marks) -> None:
        """All files are made before the first is put."""
        made = {ssp: self._file(ssp, parts[ssp]) for ssp in sorted(parts)}
        for ssp, (file, rows) in made.items():
            self._log(ssp).append(self._identity, marks.get(ssp), file, rows, self._kind)

    def _file(self, ssp: SystemStreamPartition, records: Iterable[base.RawRecord]) -> tuple[bytes | None, int]:
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


_OPTIONS = ("folder", "format", "links", "listing", "order", "partitions", "poll.ms")
"""The options, with `schema` and `schema.<stream>`."""
_POLL_MS = 1000


class FilesSystem(FilesSettings, base.System):
    """Folders of files as inputs: every file is read once, existing and new ones. As outputs, their rows become valid
    with a manifest."""

    __slots__ = ()

    fences: ClassVar[bool] = True
    keeps_progress: ClassVar[bool] = True
    has_keys: ClassVar[bool] = False
    lag_unit: ClassVar[str] = "file"
    takes_root: ClassVar[bool] = True

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> FilesSystem:
        """The options are in docs/files.md."""
        schemas, options = split_schemas(name, options)
        root, key, previous = (options.pop(option, None) for option in ROOT_OPTIONS)
        base.check_options(name, options, _OPTIONS)
        if root is not None:
            options.setdefault("listing", f"{root.rstrip('/')}/_files")
        for needed in ("folder", "listing"):
            if not options.get(needed):
                raise ConfigError(f"`systems.{name}.{needed}` is missing: the URL or path of a folder")
        return cls(
            name,
            absolute_place(options["folder"]),
            absolute_place(options["listing"]),
            RootKeys(key, previous),
            _format(name, options.get("format")),
            positive_option(name, options, "partitions"),
            positive_option(name, options, "poll.ms") or _POLL_MS,
            schemas,
            _order(name, options.get("order")),
            _links(name, options.get("links")),
        )

    def lag(self, position: int, upcoming: int) -> int:
        """In files that are not read to their end."""
        return max(0, (upcoming >> ROW_BITS) - (position >> ROW_BITS))

    @property
    def signed_objects(self) -> str:
        """The listings."""
        return self.listing

    def admin(self) -> FilesAdmin:
        return FilesAdmin(self)

    def reader(self) -> FilesReader:
        return FilesReader(self)

    def writer(self, identity: base.WriterIdentity | None) -> base.SystemWriter:
        return FilesWriter(self, self.admin(), identity)


def _format(name: str, text: str | None) -> Format | None:
    for each in FORMATS:
        if each == text:
            return each
    if text is not None:
        raise ConfigError(f"`systems.{name}.format` = `{text}`: it is {', '.join(FORMATS)}")
    return None


def _order(name: str, text: str | None) -> Order | None:
    if text is None:
        return None
    if text == "name":
        return "name"
    raise ConfigError(f"`systems.{name}.order` = `{text}`: it is `name`, or left out")


def _links(name: str, text: str | None) -> Links:
    if text is None or text == "inside":
        return "inside"
    if text == "follow":
        return "follow"
    raise ConfigError(f"`systems.{name}.links` = `{text}`: it is inside or follow")
