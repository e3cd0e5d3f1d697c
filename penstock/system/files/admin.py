"""Looks at folders, and lists their new files."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import takewhile

import pyarrow as pa

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import counted
from penstock.errors import ConfigError, IncompatibleError, NotFoundError, PenstockError, RetryableError
from penstock.system import base
from penstock.system.files.folders import Folder, check_listed, check_no_others, check_none_ignored
from penstock.system.files.formats import column_names, numbered_rows
from penstock.system.files.listing import ROW_BITS, ROW_MASK, FoundFile, Listing, Order, name_order
from penstock.system.files.manifests import MANIFESTS, note_partitions, noted_partitions, number_of
from penstock.system.files.settings import FilesSettings, Listings, PartitionLogs
from penstock.system.rows.schema import RowLimits

logger = logging.getLogger(__name__)

_PARTITIONS = 4
_SHARE = 10
"""A look at a folder takes at most one of so many parts of the time."""
_SHOWN = 5
_SEARCHED_BYTES = 64 << 20
"""The largest file that is searched for the line of a row, for an error."""
_NUMBER = re.compile("[0-9]{1,19}")


class FilesAdmin(base.SystemAdmin):
    """Looks at folders, and lists new files."""

    def __init__(self, settings: FilesSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._listings = Listings(settings)
        self._logs = PartitionLogs(settings)
        self._next_look: dict[str, float] = {}
        self._warned: set[str] = set()
        self._claimed: set[str] = set()
        """The streams whose folders Penstock writes, as far as this was made sure."""

    def partition_count(self, stream: str) -> int:
        """The first call for a folder begins its listing."""
        with self._lock:
            return self._begun(stream).partitions

    def offsets(self, stream: str) -> dict[int, base.PartitionOffsets]:
        """Lists files that are new since the last look."""
        with self._lock:
            listing = self._begun(stream)
            if time.monotonic() >= self._next_look.get(stream, 0.0):
                began = time.monotonic()
                self._look(stream, listing)
                took = time.monotonic() - began
                self._next_look[stream] = began + max(self._settings.poll_ms / 1000, took * _SHARE)
            return {
                n: base.PartitionOffsets(0, listing.upcoming(n), ended=n > 0 and listing.order is not None)
                for n in range(listing.partitions)
            }

    def stream_identity(self, stream: str) -> str:
        """The listing's identity, without which offsets mean nothing."""
        with self._lock:
            return self._begun(stream).identity

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        """Makes the folder, and begins its listing."""
        base.check_stream_name(stream)
        if retention is not None and retention != StreamRetention():
            raise ConfigError(f"`{self._settings.name}.{stream}` is a folder, whose files Penstock does not delete")
        if partitions < 1:
            raise ConfigError(f"stream `{self._settings.name}.{stream}` needs at least 1 partition, not {partitions}")
        with self._lock:
            listing = self._listings.get(stream)
            listing.read()
            if not listing.exists:  # a stream that exists may be asked for again, whoever writes it
                self._check_no_others(stream)
            self._settings.folder(stream).create()
            made = listing.begin(partitions, self._settings.order)
            if listing.partitions != partitions:
                raise IncompatibleError(
                    f"stream `{self._settings.name}.{stream}` exists with "
                    f"{counted(listing.partitions, 'partition')}, not {partitions}"
                )
            return made

    def streams(self) -> list[str]:
        return Folder(self._settings.base).folders()

    def keeps_order(self, stream: str) -> bool:
        """Files are in the partition with the fewest bytes, or all in one if they are read in the order of names."""
        with self._lock:
            listing = self._begun(stream)
            return listing.order is not None or listing.partitions == 1

    def missing_columns(self, stream: str, names: Sequence[str]) -> Sequence[str]:
        """Looks into the newest file, if it is Parquet or CSV: older ones may lack a column that was added. A file that
        cannot be read may have been read already, and be gone; otherwise its reader says so."""
        with self._lock:
            found = [file for own in self._begun(stream).files for file in own]
        newest = max(found, key=lambda file: file.modified_ms, default=None)
        if newest is None:
            return ()
        try:
            with self._settings.source(stream, newest) as source:
                known = column_names(source, self._settings.format_of(newest))
        except (PenstockError, OSError, pa.ArrowException):
            return ()
        if known is None:
            return ()
        return [name for name in names if name not in known and name not in source.added]

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        """The offset of the first file with a modification time at or after this time."""
        with self._lock:
            files = self._begun(ssp.stream).files[ssp.partition]
            later = (number for number, file in enumerate(files) if file.modified_ms >= timestamp_ms)
            return next(later, len(files)) << ROW_BITS

    def named_offset(self, ssp: SystemStreamPartition, name: str) -> int:
        """A file is named by its path below the folder, and a row by `path:row`, counted from 0."""
        found = self._named(ssp.stream, name)
        if found is not None:
            partition, offset = found
            if partition == ssp.partition:
                return offset
            raise IncompatibleError(f"`{name}` is in a file of partition {partition}, not of `{ssp}`")
        try:
            return super().named_offset(ssp, name)
        except IncompatibleError as error:
            raise IncompatibleError(
                f"`{name}` is not an offset of `{ssp}`: it is an integer, or the path of a listed file below the "
                "folder of the stream, with `:` and the number of a row if it is not the first one"
            ) from error

    def named_partition(self, stream: str, name: str) -> int | None:
        found = self._named(stream, name)
        return None if found is None else found[0]

    def message_name(self, ssp: SystemStreamPartition, offset: int, *, with_line: bool = False) -> str | None:
        """`path:row`, as in `named_offset`. The line is found in text files of up to 64 MiB."""
        place, row = offset >> ROW_BITS, offset & ROW_MASK
        with self._lock:
            files = self._begun(ssp.stream).files
        if ssp.partition >= len(files) or place >= len(files[ssp.partition]):
            return None
        file = files[ssp.partition][place]
        line = self._line(ssp.stream, file, row) if with_line and file.size_bytes <= _SEARCHED_BYTES else None
        return f"{file.path}:{row}" + ("" if line is None else f", line {line:,}")

    def _line(self, stream: str, file: FoundFile, row: int) -> int | None:
        kind = self._settings.format_of(file)
        if kind == "parquet":
            return None
        with (
            suppress(PenstockError, OSError),
            self._settings.source(stream, file) as source,
            closing(numbered_rows(source, kind, None, row)) as rows,
        ):
            return next((line for line, _ in rows), None)
        return None

    def _named(self, stream: str, name: str) -> tuple[int, int] | None:
        """The partition and the offset of a listed file or row."""
        with self._lock:
            listing = self._begun(stream)
            listing.read()
            path, _, row = name.rpartition(":")
            for wanted, number in ((name, "0"), (path, row)):
                partition, place = listing.place(wanted)
                if place is not None and _NUMBER.fullmatch(number) and not int(number) >> ROW_BITS:
                    return partition, (place << ROW_BITS) + int(number)
        return None

    def close(self) -> None:
        self._listings.close()
        self._logs.close()

    def check_writable(self, stream: str) -> None:
        with self._lock:
            self._check_writable(stream)

    def claim(self, stream: str) -> int:
        """Make the folder one that Penstock writes, before anything else is written to it. Returns the number of the
        stream's partitions.

        Raises:
            ConfigError: it has no schema, cannot have the format or the order, or holds files of others.
            NotFoundError: it does not exist.
        """
        with self._lock:
            return self._claim(stream)

    def _claim(self, stream: str) -> int:
        self._check_writable(stream)
        partitions = self._begun(stream).partitions
        note_partitions(self._logs.folder(stream), partitions)
        self._claimed.add(stream)
        return partitions

    def _check_writable(self, stream: str) -> None:
        self._settings.written_format()
        self._settings.schema_of(stream)
        self._check_no_others(stream)

    def _check_no_others(self, stream: str) -> None:
        if self._noted_partitions(stream) is None:
            listing = self._listings.get(stream)
            listing.read()
            check_no_others(self._title(stream), self._settings.folder(stream), listing)

    def _title(self, stream: str) -> str:
        return f"{self._settings.name}.{stream}"

    def fence(self, stream: str, writer: base.WriterIdentity) -> None:
        with self._lock:
            for partition in range(self._claim(stream)):
                ssp = SystemStreamPartition(self._settings.name, stream, partition)
                self._logs.get(ssp).append(writer, None, None, 0)

    def progress_of(
        self, name: str, ssps: Iterable[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, base.Progress]:
        with self._lock:
            marks = {ssp: self._logs.get(ssp).read().marks.get(name) for ssp in ssps}
        return {ssp: base.Progress(*mark) for ssp, mark in marks.items() if mark is not None}

    def published(self, stream: str, name: str, slot: int) -> None:
        with self._lock:
            if stream not in self._claimed:
                self._check_no_others(stream)
            self._logs.commits(stream).complete(name, slot)

    def record_limits(self, stream: str) -> base.RecordLimits:
        self.partition_count(stream)
        return RowLimits(schema=self._settings.schema_of(stream))

    def _begun(self, stream: str) -> Listing:
        settings = self._settings
        listing = self._listings.get(stream)
        if listing.exists:
            return listing
        listing.read()
        wanted, order = settings.partitions, settings.order
        if not listing.exists:
            folder = settings.folder(stream)
            if not folder.exists():
                raise NotFoundError(
                    f"there is no stream `{settings.name}.{stream}`: the folder `{folder.url}` does not exist. "
                    f"Create it, or correct `systems.{settings.name}.folder`"
                )
            noted = self._noted_partitions(stream)
            if noted is not None:
                self._check_order(stream, order)
                check_none_ignored(self._title(stream), self._settings.folder(stream))
            listing.begin(noted or wanted or _PARTITIONS, order)
        if wanted is not None and wanted != listing.partitions:
            raise IncompatibleError(
                f"`systems.{settings.name}.partitions` = {wanted}, and `{settings.name}.{stream}` was listed "
                f"with {listing.partitions}: set it to {listing.partitions}, or name another "
                f"`systems.{settings.name}.listing`, for which all files are new"
            )
        if order is not None and order != listing.order:
            raise IncompatibleError(
                f"`systems.{settings.name}.order` = {order}, and `{settings.name}.{stream}` was listed without "
                f"an order: leave it out, or name another `systems.{settings.name}.listing`, for which all files "
                "are new"
            )
        return listing

    def _check_order(self, stream: str, order: Order | None) -> None:
        name = self._settings.name
        if order is not None:
            check_none_ignored(self._title(stream), self._settings.folder(stream))
            raise ConfigError(
                f"`systems.{name}.order` = {order}, and `{name}.{stream}` is a folder that Penstock writes, whose "
                "partitions have the order of its commits: read it by a system without `order`, and with another "
                "`listing`"
            )

    def _look(self, stream: str, listing: Listing) -> None:
        name = self._settings.name
        if self._noted_partitions(stream) is not None:
            self._check_order(stream, listing.order)
            self._look_at_manifests(stream, listing)
            return
        folder = self._settings.folder(stream)
        found = folder.files()
        if not found and folder.is_gone():
            raise RetryableError(
                f"the folder `{folder.url}` of `{name}.{stream}` is gone. Restore it, or create it if it should be "
                "empty"
            )
        listing.read()
        if listing.order is not None and listing.unseen(found):
            found = _complete(listing, found, folder.files())
        while new := listing.new(found):
            late = listing.behind_their_place(new)
            if listing.append(new):
                logger.info("%s.%s: %s listed", name, stream, counted(len(new), "new file"))
                if late:
                    self._warn_of_late(stream, late)
        changed = [file.path for file in listing.changed(found) if file.path not in self._warned]
        if changed:
            self._warned.update(changed)
            logger.warning(
                "%s.%s: %s changed after being listed, and will not be read again: %s",
                name,
                stream,
                counted(len(changed), "file"),
                ", ".join(changed[:_SHOWN]),
            )

    def _warn_of_late(self, stream: str, late: Sequence[FoundFile]) -> None:
        logger.warning(
            "%s.%s: %s came after others that are behind by the order of names, and will be read after these: %s",
            self._settings.name,
            stream,
            counted(len(late), "file"),
            ", ".join(file.path for file in late[:_SHOWN]),
        )

    def _noted_partitions(self, stream: str) -> int | None:
        """The partition count of the stream, if Penstock writes it. Other folders may be in places that cannot hold
        objects."""
        return noted_partitions(self._logs.folder(stream)) if self._settings.folder(stream).holds(MANIFESTS) else None

    def _look_at_manifests(self, stream: str, listing: Listing) -> None:
        """List the new commits, each partition's files in the order of their commits. A commit with a missing part
        holds back the later ones."""
        folder, commits = self._settings.folder(stream), self._logs.commits(stream)
        listing.read()
        check_listed(self._title(stream), folder, listing)
        for partition in range(listing.partitions):
            listed = listing.files[partition]
            log = self._logs.get(SystemStreamPartition(self._settings.name, stream, partition))
            found = [
                folder.stat(manifest.file.name)
                for _, manifest in takewhile(
                    lambda each: commits.has(each[1]), log.behind(number_of(listed[-1].path) if listed else -1)
                )
                if manifest.file is not None
            ]
            while new := listing.unseen(found):
                listing.append(new, partition)


def _complete(listing: Listing, found: Sequence[FoundFile], again: Sequence[FoundFile]) -> list[FoundFile]:
    """The files of a look, with those that it missed although they were there before others that it found. A folder is
    not listed in one step: files of a second look whose names come before the last one of the first are added.

    Whoever writes files in the order of their names is then read in it, however the looks fall between.
    """
    last = max(name_order(file.path) for file in listing.unseen(found))
    known = {file.path for file in found}
    return [*found, *(file for file in again if file.path not in known and name_order(file.path) < last)]
