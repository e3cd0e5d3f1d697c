"""A system in a single file: every partition is a file of JSON lines in a folder that all hosts share.

An offset is the position of a line in its file, so offsets have gaps. A second file holds the end of the partition.
An append replaces it last: readers never see what a crash left behind the end, and the next append overwrites it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.system.base import (
    CHUNK_BYTES,
    OffsetRange,
    PartitionOffsets,
    RawMessage,
    RawRecord,
    System,
    SystemAdmin,
    SystemReader,
    SystemWriter,
    WriterIdentity,
    check_options,
    check_stream_name,
)
from penstock.system.ranges import check_call, check_inside, take_chunk


@dataclass(frozen=True)
class FolderSystem(System):
    """The streams are in the folder `systems.<name>.folder`."""

    name: str
    folder: Path

    readers_seek: ClassVar[bool] = True

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> FolderSystem:
        check_options(name, options, ["folder"])
        if "folder" not in options:
            raise ConfigError(f"`systems.{name}.folder` is missing: the folder of the system's streams")
        return cls(name, Path(options["folder"]).absolute())

    def admin(self) -> FolderAdmin:
        return FolderAdmin(self)

    def reader(self) -> FolderReader:
        return FolderReader(self)

    def writer(self, identity: WriterIdentity | None) -> FolderWriter:
        return FolderWriter(self)  # it does not fence, so the identity of the writer does not matter

    def partitions(self, stream: str) -> int:
        """The number of partitions of the stream. Raises NotFoundError if the stream does not exist."""
        check_stream_name(stream)
        found = len(list((self.folder / stream).glob("*.end")))
        if not found:
            raise NotFoundError(
                f"the stream `{self.name}.{stream}` does not exist in `{self.folder}`; create it with "
                f"`penstock stream create {self.name}.{stream} --partitions N`"
            )
        return found

    def file(self, ssp: SystemStreamPartition) -> Path:
        """The file of a partition. Raises NotFoundError if the partition does not exist."""
        if ssp.system != self.name:
            raise ConfigError(f"`{ssp}` is not a partition of the system `{self.name}`")
        count = self.partitions(ssp.stream)
        if not 0 <= ssp.partition < count:
            raise NotFoundError(f"`{ssp.system_stream}` has the partitions 0 to {count - 1}, not {ssp.partition}")
        return self.folder / ssp.stream / f"{ssp.partition}.jsonl"


class FolderAdmin(SystemAdmin):
    """Describes, creates and deletes streams."""

    def __init__(self, system: FolderSystem) -> None:
        self._system = system

    def partition_count(self, stream: str) -> int:
        return self._system.partitions(stream)

    def offsets(self, stream: str) -> dict[int, PartitionOffsets]:
        name = self._system.name
        files = {
            n: self._system.file(SystemStreamPartition(name, stream, n)) for n in range(self.partition_count(stream))
        }
        return {number: PartitionOffsets(0, _end(file)) for number, file in files.items()}

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        check_stream_name(stream)
        if partitions < 1:
            raise ConfigError(f"a stream has at least one partition, not {partitions}")
        if retention is not None and retention.is_limited:
            raise ConfigError(f"the system `{self._system.name}` cannot delete old messages")
        target, building = self._system.folder / stream, self._system.folder / f".creating-{uuid.uuid4().hex}"
        building.mkdir(parents=True)
        for number in range(partitions):
            (building / f"{number}.jsonl").touch()
            (building / f"{number}.end").write_text("0")
        try:
            building.rename(target)  # in one step, and only if nothing is there
        except OSError:
            shutil.rmtree(building)
            if (found := self.partition_count(stream)) != partitions:
                sizes = f"`{target}` exists with {found} partitions; {partitions} were requested"
                raise IncompatibleError(sizes) from None
            return False
        return True

    def streams(self) -> list[str]:
        return sorted(each.name for each in self._system.folder.glob("[!.]*") if each.is_dir())

    def delete_stream(self, stream: str) -> None:
        self.partition_count(stream)
        leaving = self._system.folder / f".deleting-{uuid.uuid4().hex}"
        (self._system.folder / stream).rename(leaving)
        shutil.rmtree(leaving)

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        file = self._system.file(ssp)
        end = _end(file)
        return next((message[0] for message in _messages(file, 0, end) if message[1] >= timestamp_ms), end)

    def close(self) -> None:
        """Nothing is open."""


class FolderReader(SystemReader):
    """Reads ranges. It opens the file for each range, so it sees a stream that was created again."""

    def __init__(self, system: FolderSystem) -> None:
        self._system = system

    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        check_call(offsets, chunk_messages, chunk_bytes)
        return self._chunks(offsets, chunk_messages, chunk_bytes)

    def _chunks(self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int) -> Iterator[list[RawMessage]]:
        file = self._system.file(offsets.ssp)
        check_inside(offsets, PartitionOffsets(0, _end(file)))
        messages = _messages(file, offsets.start, offsets.end)
        while chunk := take_chunk(messages, chunk_bytes, chunk_messages):
            yield chunk

    def close(self) -> None:
        """Nothing is open."""


class FolderWriter(SystemWriter):
    """Appends lines, then moves the end behind them."""

    def __init__(self, system: FolderSystem) -> None:
        self._system = system

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        path = self._system.file(ssp)
        lines = b"".join(map(_line, records))
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            end = _end(path)
            if lines:
                file.truncate(end)
                file.seek(end)
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
                _set_end(path, end + len(lines))
        return end

    def close(self) -> None:
        """Nothing is open."""


def _end(file: Path) -> int:
    return int(file.with_suffix(".end").read_text())


def _set_end(file: Path, end: int) -> None:
    new = file.with_suffix(".new")
    with new.open("w") as written:
        written.write(str(end))
        written.flush()
        os.fsync(written.fileno())
    new.rename(file.with_suffix(".end"))
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _messages(path: Path, start: int, end: int) -> Iterator[RawMessage]:
    """The messages whose lines begin at `start` or later and before `end`."""
    with path.open("rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()  # skips the rest of a line that began before `start`, or the line break before `start`
        while (offset := file.tell()) < end:
            timestamp, *data = json.loads(file.readline())
            key, value = (None if each is None else b64decode(each) for each in data)
            yield offset, timestamp, key, value


def _line(record: RawRecord) -> bytes:
    if len(record) != 3 or not isinstance(record[0], int) or not all(isinstance(d, bytes | None) for d in record[1:]):
        raise ConfigError(f"a record is not (timestamp: int, key: bytes or None, value: bytes or None): {record!r}")
    data = [None if each is None else b64encode(each).decode() for each in record[1:]]
    return json.dumps([record[0], *data]).encode() + b"\n"
