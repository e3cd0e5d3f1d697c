"""The manifests of Iceberg tables and the lists of them, read so that a damaged one is refused.

PyIceberg reads these files when a table is read, planned or written. It does so with a decoder in C that checks no
length, and takes what breaks off as the end. Here, a table gets snapshots and manifests that read their files
themselves. They use PyIceberg's readers with another decoder, so that the entries are the same.

PyIceberg brings two decoders. That in C is fast, but reads past the end of a damaged file, which can end the process.
That in Python believes a number of any size, and takes up to three times as long as the one here, which checks each
length before it believes it.
"""

from __future__ import annotations

import bz2
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from pyiceberg.avro.codecs import AVRO_CODEC_KEY, KNOWN_CODECS
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import StructProtocol
from pyiceberg.types import FixedType, IcebergType, ListType, MapType, NestedField, StructType, UnknownType
from zstandard import ZstdDecompressor

from penstock.errors import CorruptError
from penstock.system.lake.files import parsing

_CONTINUED = bytes(range(128, 256))
"""Bytes of a number that has more bytes."""
_LONG = re.compile(rb"[\x80-\xff]{10}")
_TOO_LONG = "a number has more than 10 bytes"
_LAST_SHIFT = 63


class CheckedDecoder(BinaryDecoder):
    """Decodes values from bytes that may be damaged.

    What is not there raises EOFError or IndexError; what no writer writes raises ValueError. A call takes time and
    memory for the bytes that are there, whatever length they claim.
    """

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """The number of bytes that were not read yet."""
        return len(self._data) - self._at

    def tell(self) -> int:
        return self._at

    def read(self, n: int) -> bytes:
        start = self._at
        self.skip(n)
        return self._data[start : self._at]

    def skip(self, n: int) -> None:
        if n < 0:
            raise ValueError(f"a size is negative: {n}")
        if n > self.left:
            raise EOFError(f"{n} bytes cannot be in {self.left}")
        self._at += n

    def read_int(self) -> int:
        data, at = self._data, self._at
        number = data[at]
        if number > 127:
            number, shift = number & 127, 7
            while (byte := data[at := at + 1]) > 127:
                number |= (byte & 127) << shift
                shift += 7
                if shift > _LAST_SHIFT:
                    raise ValueError(_TOO_LONG)
            number |= byte << shift
            if number >> 64:
                raise ValueError("a number has more than 64 bits")
        self._at = at + 1
        return (number >> 1) ^ -(number & 1)

    def skip_int(self) -> None:
        self.read_int()

    def read_ints(self, n: int) -> tuple[int, ...]:
        """Most of a manifest is counts of columns, which are never negative. The decoder in C gets them once all
        of them are there."""
        data, end, missing = self._data, self._at, n
        while missing:
            piece = data[end : end + missing]
            if not 0 < missing <= len(piece):
                raise EOFError(f"{n} numbers cannot be in {self.left} bytes")
            end += missing
            missing -= len(piece.translate(None, _CONTINUED))
        numbers = data[self._at : end]
        if _LONG.search(numbers):
            raise ValueError(_TOO_LONG)
        self._at = end
        return new_decoder(numbers).read_ints(n) if n else ()

    def read_int_bytes_dict(self, n: int, dest: dict[int, bytes]) -> None:
        """The bounds of columns. Most of their keys and sizes have one byte."""
        data = self._data
        for _ in range(n):
            key = self.read_int()
            size = data[self._at]
            if size > 127 or size & 1:
                dest[key] = self.read_bytes()
            else:
                start = self._at + 1
                self._at = end = start + (size >> 1)
                dest[key] = data[start:end]
        self.skip(0)

    def read_bytes(self) -> bytes:
        return self.read(self.read_int())


_PARTITION = 102
"""The id of the record in an entry that has no fields if the table has no partitions."""
_PLAUSIBLE = 256
"""The most bytes that one of a file unpacks to. Those of entries that are alike are up to 150."""
_ALWAYS_PLAUSIBLE = 1 << 20


def checked(table: IcebergTable) -> IcebergTable:
    """The table, whose files of metadata are then read by this module alone."""
    snapshots = table.metadata.snapshots
    snapshots[:] = [CheckedSnapshot.model_construct(**dict(each)) for each in snapshots]
    return table


class CheckedSnapshot(Snapshot):
    """A snapshot that reads its list of manifests."""

    def manifests(self, io: FileIO) -> list[ManifestFile]:
        """Raises CorruptError if the list is damaged."""
        what = f"the list of manifests `{self.manifest_list}`"
        return _rows(
            io,
            self.manifest_list,
            what,
            MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION],
            {-1: CheckedManifest, 508: PartitionFieldSummary},
            {517: ManifestContent},
        )


class CheckedManifest(ManifestFile):
    """A manifest that reads its entries."""

    def fetch_manifest_entry(self, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
        """Raises CorruptError if the manifest is damaged."""
        what = f"the manifest `{self.manifest_path}`"
        entries: list[ManifestEntry] = _rows(
            io,
            self.manifest_path,
            what,
            MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION],
            {-1: ManifestEntry, 2: DataFile},
            {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
        )
        counts = (self.added_files_count, self.existing_files_count, self.deleted_files_count)
        known = [count for count in counts if count is not None]
        if len(known) == len(counts) and sum(known) != len(entries):
            raise CorruptError(f"{what} is damaged: it has {len(entries)} entries, and its list says {sum(known)}")
        for entry in entries:
            self._complete(entry)
        return [each for each in entries if not discard_deleted or each.status != ManifestEntryStatus.DELETED]

    def _complete(self, entry: ManifestEntry) -> None:
        """Add what an entry has from its manifest, by Iceberg's specification: a commit does not know its number when
        it writes the manifest."""
        if entry.snapshot_id is None and self.added_snapshot_id is not None:
            entry.snapshot_id = self.added_snapshot_id
        if self.sequence_number == 0 or entry.status == ManifestEntryStatus.ADDED:
            if entry.sequence_number is None:
                entry.sequence_number = self.sequence_number
            if entry.file_sequence_number is None:
                entry.file_sequence_number = self.sequence_number
        entry.data_file.spec_id = self.partition_spec_id


def _rows(
    io: FileIO,
    path: str,
    what: str,
    schema: Schema,
    types: dict[int, Callable[..., StructProtocol]],
    enums: dict[int, Callable[..., Enum]],
) -> list[Any]:
    """The rows of a file of Avro.

    Args:
        what: what the file is, for the error.
        schema: the fields that are wanted.
        types: the class of each record, by the id of its field; -1 for a row.
        enums: the class of each enum, by the id of its field.
    """
    with io.new_input(path).open() as file:
        data = file.read()
    with parsing(what):
        try:
            return list(_decoded(data, schema, types, enums))
        except IndexError as error:
            raise EOFError("it ends within a value") from error


def _decoded(
    data: bytes,
    schema: Schema,
    types: dict[int, Callable[..., StructProtocol]],
    enums: dict[int, Callable[..., Enum]],
) -> Iterator[Any]:
    file = CheckedDecoder(data)
    header: AvroFileHeader = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(file)
    if header.magic != MAGIC:
        raise ValueError("it is no file of Avro")
    written = header.get_schema()
    _check_sizes(written.as_struct())
    reader = resolve_reader(written, schema, types, enums)
    budget = _ALWAYS_PLAUSIBLE + _PLAUSIBLE * len(data)
    while file.left:
        count = file.read_int()
        block = _unpacked(header.meta, file.read_bytes(), budget)
        budget -= len(block)
        if file.read(SYNC_SIZE) != header.sync:
            raise ValueError("a block has another end than the file's header says")
        yield from _block(reader, count, CheckedDecoder(block))


def _block(reader: Reader, count: int, block: CheckedDecoder) -> Iterator[Any]:
    if not 0 <= count <= block.left:
        raise ValueError(f"{count} rows cannot be in {block.left} bytes")
    for _ in range(count):
        yield reader.read(block)
    if block.left:
        raise ValueError(f"{block.left} bytes of a block are left behind its {count} rows")


def _unpacked(meta: Mapping[str, str], data: bytes, most: int) -> bytes:
    """The bytes of a block. Raises ValueError if they are more than `most`; the rest of these is not unpacked."""
    codec = meta.get(AVRO_CODEC_KEY, "null")
    if codec == "deflate":
        found = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most + 1)
    elif codec == "zstandard":
        with ZstdDecompressor().stream_reader(data) as stream:
            found = stream.read(most + 1)
    elif codec == "bzip2":
        try:
            found = bz2.BZ2Decompressor().decompress(data, most + 1)
        except OSError as error:  # no file is meant
            raise ValueError(str(error)) from error
    elif codec == "null":
        found = data
    elif codec == "snappy" and (snappy := KNOWN_CODECS["snappy"]) is not None:
        found = snappy.decompress(data)  # it makes at most 64 bytes of three
    else:
        raise ValueError(f"its codec is unknown: {codec:.100}")
    if len(found) > most:
        raise ValueError(f"a block unpacks to more than {most} bytes")
    return found


def _check_sizes(kind: IcebergType) -> None:
    """Raise ValueError if a schema has values without bytes: nothing bounds how many there are. One record of Iceberg's
    may have none."""
    parts = _parts(kind)
    empty = [part.field_id for part in parts if _is_empty(part)]
    if empty not in ([], [_PARTITION] if isinstance(kind, StructType) else []):
        raise ValueError(f"the values of the fields {empty} of its schema have no bytes")
    for part in parts:
        _check_sizes(part.field_type)


def _is_empty(field: NestedField) -> bool:
    if not field.required:
        return False  # a byte says whether it is there
    kind = field.field_type
    if isinstance(kind, StructType):
        return all(map(_is_empty, kind.fields))
    return isinstance(kind, UnknownType) or (isinstance(kind, FixedType) and len(kind) == 0)


def _parts(kind: IcebergType) -> tuple[NestedField, ...]:
    if isinstance(kind, StructType):
        return kind.fields
    if isinstance(kind, ListType):
        return (kind.element_field,)
    return (kind.key_field, kind.value_field) if isinstance(kind, MapType) else ()
