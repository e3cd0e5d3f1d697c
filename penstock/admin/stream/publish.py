"""Publishes a file of records to a stream, as `penstock stream publish`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from queue import Empty, Full, Queue
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from penstock.admin.stream.found import closed_to_others, refuse_shadow
from penstock.admin.stream.records import Format, MalformedRecordError, Record, malformed, read_lines, read_records
from penstock.api.messages import Headers, headers_of
from penstock.api.serdes import Json, Serde
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import counted
from penstock.errors import ConfigError, PenstockError
from penstock.system.base import RawRecord, System, SystemWriter
from penstock.system.partitioner import partitions_of

T = TypeVar("T")
LINGER_S = 1.0
"""The time after which a batch is complete, since its first element came."""
_LOOK_S = 0.1


class _Flow(Generic[T]):
    """Reads an iterable on a separate thread, which may block for as long as it likes. Its end, or its error, comes
    behind its last element."""

    def __init__(self, source: Iterable[T], ahead: int) -> None:
        self.waiting: Queue[tuple[T] | BaseException | None] = Queue(ahead)
        self._source = source
        self._left = threading.Event()
        threading.Thread(target=self._read, name="penstock-publish-reader", daemon=True).start()

    def leave(self) -> None:
        """Nobody takes anything more: the thread ends with the element that it waits for."""
        self._left.set()

    def _read(self) -> None:
        try:
            for element in self._source:
                if not self._put((element,)):
                    return
        except BaseException as error:
            self._put(error)
        else:
            self._put(None)

    def _put(self, item: tuple[T] | BaseException | None) -> bool:
        while not self._left.is_set():
            try:
                self.waiting.put(item, timeout=_LOOK_S)
            except Full:
                continue
            return True
        return False


def batches_in_time(source: Iterable[T], size: int) -> Iterator[list[T]]:
    """Batches of at most `size`, each within a second after its first element. An error of the source is raised in
    place of the batch that it would be in."""
    flow = _Flow(source, 2 * size)
    batch: list[T] = []
    deadline = 0.0
    try:
        while True:
            try:
                item = flow.waiting.get(timeout=max(0.0, deadline - time.monotonic()) if batch else None)
            except Empty:
                yield batch
                batch = []
                continue
            if isinstance(item, BaseException):
                raise item
            if item is None:
                if batch:
                    yield batch
                return
            if not batch:
                deadline = time.monotonic() + LINGER_S
            batch.append(item[0])
            if len(batch) == size:
                yield batch
                batch = []
    finally:
        flow.leave()


__all__ = ["Format", "MalformedRecordError", "PublishOptions", "Published", "publish", "read_records"]

Progress: TypeAlias = Callable[[int, int], None]
"""Called after each batch with the messages and the bytes (keys and values) published so far."""

_MOST_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """The mapping of records to messages.

    Args:
        format: `csv` or `jsonl`; None to decide by the file's name.
        key_field: the field with the key. The key is the UTF-8 bytes of a string, or the bytes that `ps.Json()` writes
            for another value. Every record must have the field; null means no key. Messages without a key go to the
            partitions in turn.
        value_field: the field with the value; None: the whole record is the value. The value is the UTF-8 bytes of a
            string, as `ps.String()` reads them, or the bytes that `ps.Json()` writes for another value. Null is a
            message without a value, which deletes the key in a table.
        timestamp_field: the field with the timestamp: epoch milliseconds (an integer, or a string of one), or an ISO
            8601 time (UTC if it has no zone). None for the time at which the message's batch was made.
        headers_field: the field with the headers, an object from name to text or null; null means no headers. None: the
            messages have none. A system without headers refuses it.
        infer: guess the types of CSV fields, see `read_records`.
        batch_messages: how many messages are appended at once.

    Raises:
        ConfigError: `batch_messages` is less than 1.

    Example:
        >>> admin.PublishOptions(key_field="tail").batch_messages
        10000
    """

    format: Format | None = None
    key_field: str | None = None
    value_field: str | None = None
    timestamp_field: str | None = None
    headers_field: str | None = None
    infer: bool = False
    batch_messages: int = 10_000

    def __post_init__(self) -> None:
        if self.batch_messages < 1:
            raise ConfigError(f"batch_messages must be at least 1, not {self.batch_messages}")


@dataclass(frozen=True, slots=True)
class Published:
    """The result of `publish`: messages, the bytes of their keys and values, and the line of the last record."""

    messages: int = 0
    bytes: int = 0
    last_line: int = 0


class FileMessage(NamedTuple):  # a tuple, because one is made for every line
    """A message that a line of a file is published as."""

    line: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def publish(
    system: System, stream: str, source: str, options: PublishOptions, progress: Progress | None = None
) -> Published:
    """Publish every record of a file, or of standard input.

    Records are appended in batches, atomically in each partition, and in the file's order within a partition. What
    comes from standard input is appended within a second, however slowly it comes. A line of
    JSON is published unchanged, without the white space around it. The value of a CSV record is compact JSON. With
    `value_field`, that field alone is the value. The partition follows from the key's bytes by Kafka's murmur2.

    Args:
        system: the system, such as that of `open_stream`.
        stream: the stream's name, without that of the system.
        source: the path of the file, or `-` for standard input.
        options: the format, and the fields with key and timestamp.
        progress: called after each batch with the messages and the bytes so far.

    Raises:
        MalformedRecordError: a line is not a record, or lacks the key or timestamp; nothing of its batch is published.
            Like every error here, the message says how much was published before.
        ConfigError: the stream is the changelog of a store, or has no headers and `headers_field` is given; or
            the configuration is that of a shadow.
        PenstockError: the file cannot be read, or appending to the stream failed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> file = Path(tempfile.mkdtemp(), "trips.json")
        >>> _ = file.write_text('{"tail": "N1", "miles": 300}')
        >>> stream = admin.open_stream("trips")
        >>> admin.publish(stream.system, "trips", str(file), admin.PublishOptions(key_field="tail")).messages
        1
    """
    if options.headers_field is not None and not system.carries_headers:
        raise ConfigError(f"the system `{system.name}` has no headers: leave out `headers_field`")
    refuse_shadow(system)
    with closing(system.admin()) as admin:
        partitions = admin.partition_count(stream)
        if (closed := closed_to_others(f"{system.name}.{stream}", admin.owner(stream))) is not None:
            raise ConfigError(closed)
    done = Published()
    writer = system.writer(None)
    appender = _Appender(writer, [SystemStreamPartition(system.name, stream, i) for i in range(partitions)])
    try:
        batches = batches_in_time if source == "-" else _batches
        for batch in batches(messages_of(source, options), options.batch_messages):
            size = appender.append(batch)
            done = Published(done.messages + len(batch), done.bytes + size, batch[-1].line)
            if progress is not None:
                progress(done.messages, done.bytes)
    except PenstockError as error:
        raise type(error)(f"{error}{_progress_made(done, appender.of_this_batch, source)}") from error
    finally:
        writer.close()
    return done


class _Appender:
    """Appends batches, spread over the partitions. `of_this_batch` counts what a batch that failed has appended."""

    def __init__(self, writer: SystemWriter, ssps: list[SystemStreamPartition]) -> None:
        self._writer = writer
        self._ssps = ssps
        self._turn = 0
        self.of_this_batch = 0

    def append(self, batch: list[FileMessage]) -> int:
        """Append a batch; returns the bytes of its keys and values."""
        self.of_this_batch = 0
        for number, records in enumerate(self._spread(batch)):
            if records:
                self._writer.append(self._ssps[number], records)
                self.of_this_batch += len(records)
        self.of_this_batch = 0
        return sum(len(message.key or b"") + len(message.value or b"") for message in batch)

    def _spread(self, batch: list[FileMessage]) -> list[list[RawRecord]]:
        count = len(self._ssps)
        spread: list[list[RawRecord]] = [[] for _ in range(count)]
        by_key = partitions_of(pa.array([message.key for message in batch], pa.large_binary()), count).tolist()
        for message, partition in zip(batch, by_key, strict=True):
            if message.key is None:
                partition = self._turn
                self._turn = (self._turn + 1) % count
            record = (message.timestamp, message.key, message.value)
            spread[partition].append((*record, message.headers) if message.headers else record)
        return spread


def _batches(messages: Iterable[FileMessage], size: int) -> Iterator[list[FileMessage]]:
    messages = iter(messages)
    while batch := list(islice(messages, size)):
        yield batch


def messages_of(source: str, options: PublishOptions) -> Iterator[FileMessage]:
    """The messages of a file, as they are published. Raises as `publish`."""
    value: bytes | None
    for line, record, value in read_lines(source, options.format, infer=options.infer):
        try:
            timestamp = _timestamp(record, options.timestamp_field)
            key = None if options.key_field is None else _bytes(record, options.key_field, "key")
            if options.value_field is not None:
                value = _bytes(record, options.value_field, "value")
            headers = () if options.headers_field is None else _headers(record, options.headers_field)
        except (ValueError, TypeError) as error:  # orjson's encoding error is a TypeError
            raise malformed(source, line, str(error)) from error
        yield FileMessage(line, timestamp, key, value, headers)


_SERDES: dict[str, Serde[Any]] = {"key": Json().for_keys(), "value": Json()}


def _bytes(record: Record, field: str, purpose: str) -> bytes | None:
    value = _field(record, field, purpose)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    try:
        return _SERDES[purpose].to_bytes(value)
    except TypeError as error:
        raise ValueError(
            f"the {purpose} field {field!r} holds {value!r}, which cannot be a {purpose}: {error}"
        ) from error


def _headers(record: Record, field: str) -> Headers:
    given = _field(record, field, "headers")
    if not isinstance(given, dict | None):
        raise TypeError(f"the headers field {field!r} is not an object: {given!r:.200}")
    return headers_of(given or {})


def _timestamp(record: Record, field: str | None) -> int:
    """The time in a field, or without one the present."""
    if field is None:
        return SYSTEM_CLOCK.now_ms()
    value = _field(record, field, "timestamp")
    if isinstance(value, str):
        value = _parse_time(value)
    if type(value) is int and -_MOST_MS <= value <= _MOST_MS:
        return value
    raise ValueError(f"the timestamp field {field!r} is neither epoch milliseconds nor an ISO 8601 time: {value!r}")


def _parse_time(text: str) -> int | str:
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) != 8:  # eight digits would be a date, as 20130101
        return int(text) if len(digits) < 20 else text
    try:
        time_read = datetime.fromisoformat(text)
    except ValueError:
        return text
    if time_read.tzinfo is None:
        time_read = time_read.replace(tzinfo=UTC)
    return round(time_read.timestamp() * 1000)


def _field(record: Record, field: str, purpose: str) -> object:
    if field not in record:
        known = ", ".join(map(repr, record)) or "none"
        raise ValueError(f"the record has no field {field!r}, which holds the {purpose} (its fields: {known})")
    value: object = record[field]
    return value


def _progress_made(done: Published, of_this_batch: int, source: str) -> str:
    whole = f"{_were(done.messages)} published, up to line {done.last_line} of {source}"
    part = f"{_were(of_this_batch)} published, part of a batch"
    match done.messages > 0, of_this_batch > 0:
        case True, True:
            return f"\nBefore this, {whole}; then {part}."
        case True, False:
            return f"\nBefore this, {whole}."
        case False, True:
            return f"\nBefore this, {part}."
        case _:
            return ""


def _were(messages: int) -> str:
    return f"{counted(messages, 'message')} {'was' if messages == 1 else 'were'}"
