"""The system `files`: a stream is a folder of Parquet, JSON lines or CSV, and a message a row."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.config.settings import RootKeys
from penstock.errors import ConfigError, IncompatibleError, NotFoundError, PenstockError, RetryableError
from penstock.objects.open import open_root
from penstock.system.base import (
    CHUNK_BYTES,
    ColumnChunk,
    OffsetRange,
    PartitionOffsets,
    Progress,
    RawMessage,
    RecordLimits,
    System,
    SystemAdmin,
    SystemReader,
    SystemWriter,
    WriterIdentity,
    check_options,
    check_stream_name,
)
from penstock.system.files.cursor import C, RowCursor
from penstock.system.files.folders import Folder, partition_values
from penstock.system.files.formats import (
    COLUMN_ROWS,
    FORMATS,
    Format,
    column_names,
    format_of,
    read_columns,
    read_rows,
)
from penstock.system.files.listing import ROW_BITS, FoundFile, Listing
from penstock.system.files.manifests import MANIFESTS, note_partitions, noted_partitions, number_of
from penstock.system.files.rows import RowLimits
from penstock.system.files.schema import parse_schema
from penstock.system.files.writer import FilesWriter, Logs
from penstock.system.ranges import check_call, check_inside, missing
from penstock.wording import counted

logger = logging.getLogger(__name__)

_OPTIONS = ("folder", "format", "listing", "partitions", "poll.ms", "root.key", "root.key.previous")
"""The options, with `schema` and `schema.<stream>`. The keys of the root come from `job.root.key`."""
_PARTITIONS = 4
_POLL_MS = 1000
_SHARE = 10
"""A look at a folder takes at most one of so many parts of the time."""
_SHOWN = 5
_ROW = (1 << ROW_BITS) - 1
_NUMBER = re.compile("[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings in `systems.<name>.*`."""

    folder: str
    listing: str
    keys: RootKeys
    """The keys that sign the listing."""
    format: Format | None
    partitions: int | None
    poll_ms: int
    schemas: Mapping[str, str]
    """By stream; the empty name is for all others."""


class FilesSystem(System):
    """Folders of files as inputs: every file is read once, existing and new ones. As outputs, their rows become valid
    with a manifest."""

    fences: ClassVar[bool] = True
    keeps_progress: ClassVar[bool] = True
    has_keys: ClassVar[bool] = False
    lag_unit: ClassVar[str] = "file"

    def __init__(self, name: str, settings: _Settings) -> None:
        self.name = name
        self.settings = settings

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> FilesSystem:
        """The options are in docs/files.md."""
        schemas = {key: text for key, text in options.items() if key.partition(".")[0] == "schema"}
        check_options(name, {key: text for key, text in options.items() if key not in schemas}, _OPTIONS)
        for needed in ("folder", "listing"):
            if not options.get(needed):
                raise ConfigError(f"`systems.{name}.{needed}` is missing: the URL or path of a folder")
        settings = _Settings(
            _absolute(options["folder"]),
            _absolute(options["listing"]),
            RootKeys(options.get("root.key"), options.get("root.key.previous")),
            _format(name, options.get("format")),
            _positive(name, options, "partitions"),
            _positive(name, options, "poll.ms") or _POLL_MS,
            {key.partition(".")[2]: text for key, text in schemas.items()},
        )
        for key, text in schemas.items():
            try:
                parse_schema(text)
            except ConfigError as error:
                raise ConfigError(f"`systems.{name}.{key}`: {error}") from error
        return cls(name, settings)

    def folder(self, stream: str) -> Folder:
        return Folder(f"{self.settings.folder.rstrip('/')}/{stream}")

    def lag(self, position: int, upcoming: int) -> int:
        """In files that are not read to their end."""
        return max(0, (upcoming >> ROW_BITS) - (position >> ROW_BITS))

    def admin(self) -> FilesAdmin:
        return FilesAdmin(self)

    def reader(self) -> FilesReader:
        return FilesReader(self)

    def writer(self, identity: WriterIdentity | None) -> SystemWriter:
        return FilesWriter(
            self.admin(), identity, lambda stream: self.folder(stream).url, self.schema_of, self.written_format()
        )

    def written_format(self) -> Format:
        """The format of outputs. Raises ConfigError if outputs cannot have the configured one."""
        if self.settings.format == "csv":
            raise ConfigError(
                f"`systems.{self.name}.format` = `csv`: outputs are Parquet or lines of JSON, because CSV has "
                "neither nulls nor nested columns. Set it to parquet or json, or name another system for the output"
            )
        return self.settings.format or "parquet"

    def schema_of(self, stream: str) -> str:
        """The schema of an output. Raises ConfigError if none is configured."""
        schemas = self.settings.schemas
        text = schemas.get(stream) or schemas.get("")
        if text is None:
            raise ConfigError(
                f"`{self.name}.{stream}` is written to files, which need a schema: set `systems.{self.name}.schema` or "
                f"`systems.{self.name}.schema.{stream}` for this stream alone, as in `user STRING, visits BIGINT`"
            )
        return text


class FilesAdmin(SystemAdmin):
    """Looks at folders, and lists new files."""

    def __init__(self, system: FilesSystem) -> None:
        self._system = system
        self._lock = threading.Lock()
        self._listings = _Listings(system)
        self._logs = Logs(lambda stream: system.folder(stream).url)
        self._next_look: dict[str, float] = {}
        self._warned: set[str] = set()

    def partition_count(self, stream: str) -> int:
        """The first call for a folder begins its listing."""
        with self._lock:
            return self._begun(stream).partitions

    def offsets(self, stream: str) -> dict[int, PartitionOffsets]:
        """Lists files that are new since the last look."""
        with self._lock:
            listing = self._begun(stream)
            if time.monotonic() >= self._next_look.get(stream, 0.0):
                began = time.monotonic()
                self._look(stream, listing)
                took = time.monotonic() - began
                self._next_look[stream] = began + max(self._system.settings.poll_ms / 1000, took * _SHARE)
            return {n: PartitionOffsets(0, listing.upcoming(n)) for n in range(listing.partitions)}

    def stream_identity(self, stream: str) -> str:
        """The listing's identity, without which offsets mean nothing."""
        with self._lock:
            return self._begun(stream).identity

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        """Makes the folder, and begins its listing."""
        check_stream_name(stream)
        if retention is not None and retention != StreamRetention():
            raise ConfigError(f"`{self._system.name}.{stream}` is a folder, whose files Penstock does not delete")
        if partitions < 1:
            raise ConfigError(f"stream `{self._system.name}.{stream}` needs at least 1 partition, not {partitions}")
        with self._lock:
            self._system.folder(stream).create()
            listing = self._listings.get(stream)
            made = listing.begin(partitions)
            if listing.partitions != partitions:
                raise IncompatibleError(
                    f"stream `{self._system.name}.{stream}` exists with "
                    f"{counted(listing.partitions, 'partition')}, not {partitions}"
                )
            return made

    def streams(self) -> list[str]:
        return Folder(self._system.settings.folder).folders()

    def keeps_order(self, stream: str) -> bool:
        """Files belong to partitions by their names, so only one partition keeps an order across them."""
        return self.partition_count(stream) == 1

    def missing_columns(self, stream: str, names: Sequence[str]) -> Sequence[str]:
        """Looks into the newest Parquet file: older ones may lack a column that was added. A file that cannot be read
        may have been read already, and be gone; otherwise its reader says so."""
        with self._lock:
            found = [file for own in self._begun(stream).files for file in own]
        newest = max(found, key=lambda file: file.modified_ms, default=None)
        if newest is None or (self._system.settings.format or format_of(newest.path)) != "parquet":
            return ()
        try:
            with self._system.folder(stream).reading(newest) as (place, path):
                known = {*column_names(place, path), *partition_values(newest.path)}
        except (PenstockError, OSError, pa.ArrowException):
            return ()
        return [name for name in names if name not in known]

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        """The offset of the first file with a modification time at or after this time."""
        with self._lock:
            files = self._begun(ssp.stream).files[ssp.partition]
            later = (number for number, file in enumerate(files) if file.modified_ms >= timestamp_ms)
            return next(later, len(files)) << ROW_BITS

    def named_offset(self, ssp: SystemStreamPartition, name: str) -> int:
        """A file is named by its path below the folder, and a row by `path:row`, counted from 0."""
        with self._lock:
            listing = self._begun(ssp.stream)
            path, _, row = name.rpartition(":")
            for wanted, number in ((name, "0"), (path, row)):
                partition, place = listing.place(wanted)
                if place is None or not _NUMBER.fullmatch(number) or int(number) >> ROW_BITS:
                    continue
                if partition == ssp.partition:
                    return (place << ROW_BITS) + int(number)
                raise IncompatibleError(f"`{wanted}` is a file of partition {partition}, not of `{ssp}`")
        try:
            return super().named_offset(ssp, name)
        except IncompatibleError as error:
            raise IncompatibleError(
                f"`{name}` is not an offset of `{ssp}`: it is an integer, or the path of a listed file below the "
                "folder of the stream, with `:` and the number of a row if it is not the first one"
            ) from error

    def close(self) -> None:
        self._listings.close()
        self._logs.close()

    def fence(self, stream: str, writer: WriterIdentity) -> None:
        self._system.written_format()
        self._system.schema_of(stream)
        with self._lock:
            partitions = self._begun(stream).partitions
            note_partitions(self._logs.folder(stream), partitions)
            for partition in range(partitions):
                ssp = SystemStreamPartition(self._system.name, stream, partition)
                self._logs.get(ssp).append(writer, None, None, 0)

    def progress_of(self, name: str, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        with self._lock:
            marks = {ssp: self._logs.get(ssp).read().marks.get(name) for ssp in ssps}
        return {ssp: Progress(*mark) for ssp, mark in marks.items() if mark is not None}

    def published(self, stream: str, name: str, slot: int) -> None:
        with self._lock:
            self._logs.commits(stream).complete(name, slot)

    def record_limits(self, stream: str) -> RecordLimits:
        self.partition_count(stream)
        return RowLimits(schema=self._system.schema_of(stream))

    def _begun(self, stream: str) -> Listing:
        listing = self._listings.get(stream)
        if listing.exists:
            return listing
        listing.read()
        wanted = self._system.settings.partitions
        if not listing.exists:
            folder = self._system.folder(stream)
            if not folder.exists():
                raise NotFoundError(
                    f"there is no stream `{self._system.name}.{stream}`: the folder `{folder.url}` does not exist. "
                    "Create it, or correct `systems."
                    f"{self._system.name}.folder`"
                )
            listing.begin(self._noted_partitions(stream) or wanted or _PARTITIONS)
        if wanted is not None and wanted != listing.partitions:
            raise IncompatibleError(
                f"`systems.{self._system.name}.partitions` = {wanted}, and `{self._system.name}.{stream}` was listed "
                f"with {listing.partitions}: set it to {listing.partitions}, or name another "
                f"`systems.{self._system.name}.listing`, for which all files are new"
            )
        return listing

    def _look(self, stream: str, listing: Listing) -> None:
        if self._noted_partitions(stream) is not None:
            self._look_at_manifests(stream, listing)
            return
        folder = self._system.folder(stream)
        found = folder.files()
        if not found and folder.is_gone():
            raise RetryableError(
                f"the folder `{folder.url}` of `{self._system.name}.{stream}` is gone. Restore it, or create it if it "
                "should be empty"
            )
        listing.read()
        while new := listing.new(found):
            if listing.append(new):
                logger.info("%s.%s: %s listed", self._system.name, stream, counted(len(new), "new file"))
        changed = [file.path for file in listing.changed(found) if file.path not in self._warned]
        if changed:
            self._warned.update(changed)
            logger.warning(
                "%s.%s: %s changed after being listed, and will not be read again: %s",
                self._system.name,
                stream,
                counted(len(changed), "file"),
                ", ".join(changed[:_SHOWN]),
            )

    def _noted_partitions(self, stream: str) -> int | None:
        """The partition count of the stream, if Penstock writes it. Other folders may be in places that cannot hold
        objects."""
        return noted_partitions(self._logs.folder(stream)) if self._system.folder(stream).holds(MANIFESTS) else None

    def _look_at_manifests(self, stream: str, listing: Listing) -> None:
        """List the new commits, each partition's files in the order of their commits. A commit with a missing part
        holds back the later ones."""
        folder, commits = self._system.folder(stream), self._logs.commits(stream)
        listing.read()
        for partition in range(listing.partitions):
            listed = listing.files[partition]
            log = self._logs.get(SystemStreamPartition(self._system.name, stream, partition))
            found = [
                folder.stat(manifest.file.name)
                for _, manifest in takewhile(
                    lambda each: commits.has(each[1]), log.behind(number_of(listed[-1].path) if listed else -1)
                )
                if manifest.file is not None
            ]
            while new := listing.unseen(found):
                listing.append(new, partition)


class FilesReader(SystemReader):
    """Reads files from any row on. It keeps the file open in which the last range ended."""

    def __init__(self, system: FilesSystem) -> None:
        self._system = system
        self._listings = _Listings(system)
        self._cursor: RowCursor | None = None

    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        check_call(offsets, chunk_messages, chunk_bytes)
        yield from self._read(offsets, None, lambda cursor: cursor.take(chunk_messages, chunk_bytes, offsets.end))

    def read_columns(
        self, offsets: OffsetRange, schema: pa.Schema, chunk_messages: int
    ) -> Iterator[ColumnChunk] | None:
        """The columns of Parquet files. A range with other files is read row by row."""
        check_call(offsets, chunk_messages, CHUNK_BYTES)
        files = self._files(offsets)
        own = files[offsets.start >> ROW_BITS : (max(offsets.start, offsets.end - 1) >> ROW_BITS) + 1]
        if any((self._system.settings.format or format_of(file.path)) != "parquet" for file in own):
            return None
        return self._read(offsets, schema, lambda cursor: cursor.take_columns(chunk_messages, offsets.end))

    def _read(
        self, offsets: OffsetRange, schema: pa.Schema | None, take: Callable[[RowCursor], C]
    ) -> Generator[C, None, None]:
        """Yields what `take` takes from the files, one after the other."""
        files = self._files(offsets)
        position = offsets.start
        while position < offsets.end:
            cursor = self._cursor
            if cursor is None or (cursor.ssp, cursor.position, cursor.schema) != (offsets.ssp, position, schema):
                self._close_cursor()
                cursor = self._cursor = self._open(files[position >> ROW_BITS], offsets.ssp, position, schema)
            chunk = take(cursor)
            if not len(chunk):
                self._close_cursor()
                position = ((position >> ROW_BITS) + 1) << ROW_BITS
                continue
            position = cursor.position
            yield chunk

    def close(self) -> None:
        self._close_cursor()
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
        folder, first, added = self._system.folder(ssp.stream), position & _ROW, partition_values(file.path)

        def rows() -> Generator[bytes, None, None]:
            kind = self._system.settings.format or format_of(file.path)
            with folder.reading(file) as (place, path):
                yield from read_rows(place, path, kind, first, added)

        def columns() -> Generator[pa.StructArray, None, None]:
            with folder.reading(file) as (place, path):
                yield from read_columns(place, path, first, added, schema or pa.schema([]), COLUMN_ROWS)

        return RowCursor(ssp, position, schema, file.modified_ms, rows(), columns())

    def _close_cursor(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None


class _Listings:
    """The listings of a system's streams, as far as they were read."""

    def __init__(self, system: FilesSystem) -> None:
        self._system = system
        self._objects = open_root(system.settings.listing, system.settings.keys)
        self._known: dict[str, Listing] = {}

    def get(self, stream: str) -> Listing:
        if stream not in self._known:
            check_stream_name(stream)
            folder = self._system.folder(stream).url
            place = hashlib.sha256(folder.encode()).hexdigest()[:16]
            self._known[stream] = Listing(self._objects, f"{self._system.name}/{stream}/{place}", folder)
        return self._known[stream]

    def close(self) -> None:
        self._objects.close()


def _format(name: str, text: str | None) -> Format | None:
    for each in FORMATS:
        if each == text:
            return each
    if text is not None:
        raise ConfigError(f"`systems.{name}.format` = `{text}`: it is {', '.join(FORMATS)}")
    return None


def _absolute(place: str) -> str:
    """The place for processes that have another working directory."""
    return place if "://" in place else str(Path(place).absolute())


def _positive(name: str, options: Mapping[str, str], option: str) -> int | None:
    text = options.get(option)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) > 0):
        raise ConfigError(f"`systems.{name}.{option}` = `{text}`: it is an integer, at least 1")
    return int(text)
