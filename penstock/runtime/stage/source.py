"""Stage 0: reads the portions of one task and runs the operators before the first exchange."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from penstock.api.serdes import ColumnSerde, Serde
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.errors import PenstockError, RetryableError, SystemAwayError
from penstock.graph.topology import Topology
from penstock.runtime.context import OperatorFailedError, Position
from penstock.runtime.messages.packet import Packet
from penstock.runtime.messages.router import JointOutput
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.attempt import InputAttempt, new_token
from penstock.runtime.stage.failed_attempt import failed_attempt
from penstock.runtime.stage.instance import StageInstance
from penstock.system.base import ColumnChunk, OffsetRange, RawMessage, System, SystemReader

READ_MESSAGES = 4096
_READ_ROWS = 1 << 15
"""As `READ_MESSAGES`, of messages that are read into columns."""
_KEPT_READERS = 64
"""Readers kept between batches: each has files or connections open."""


Chunk: TypeAlias = list[RawMessage] | ColumnChunk
"""Some messages, in offset order."""
C = TypeVar("C", list[RawMessage], Chunk)

_ReaderPlace: TypeAlias = tuple[SystemStreamPartition | str, int | None]
"""A partition, and its task if readers cannot seek: several tasks may read a broadcast input. Or a system whose
partitions share a reader."""


@dataclass(frozen=True, slots=True)
class _KeptReader:
    """A reader between two batches, and the offset after the last message it read."""

    reader: SystemReader
    position: int


class InputReaders:
    """The readers of one process for the inputs of a job, kept from batch to batch: opening a partition costs more than
    reading a few messages of it. There is one for each partition, or for all partitions of a system where readers
    share (`System.readers_share`), except for partitions that several tasks of the process read.

    A reader that cannot seek (`System.readers_seek`) is kept only for a portion that begins after the last message it
    read; for any other portion, it is closed and a new one is made. A reader that met an error is closed too. A reader
    that is in use belongs to that use alone: a read that was left in another thread disturbs nobody. Thread-safe.
    """

    def __init__(self, systems: Mapping[str, System]) -> None:
        self._systems = systems
        self._lock = threading.Lock()
        self._kept: dict[_ReaderPlace, _KeptReader] = {}
        """In order of use; the last one used is at the end."""
        self._by_task: frozenset[SystemStreamPartition] = frozenset()
        """Partitions that several tasks read."""
        self._closed = False

    def expect(self, portions: Iterable[Portion]) -> None:
        """Prepare for the portions of a batch, which may be read in any order. Called before the first `read` of the
        batch."""
        wanted = [portion.offsets for portion in portions]
        times = Counter(offsets.ssp for offsets in wanted)
        self._by_task = frozenset(ssp for ssp, count in times.items() if count > 1)
        ranges: dict[str, list[OffsetRange]] = {}
        for offsets in wanted:
            if self._shares(offsets.ssp):
                ranges.setdefault(offsets.ssp.system, []).append(offsets)
        for name, expected in ranges.items():
            reader = self._take((name, None), 0) or self._systems[name].reader()
            reader.expect(expected)
            self._keep((name, None), _KeptReader(reader, 0))

    def read(self, portion: Portion, task: int) -> Generator[list[RawMessage], None, None]:
        """Every message of the portion; see `SystemReader.read`. Close the iterator if you leave it before its end."""
        return self._used(portion, task, partial(_read, portion=portion))

    def read_columns(self, portion: Portion, task: int, schema: pa.Schema) -> Generator[Chunk, None, None]:
        """As `read`; in columns, if the messages are there as such."""
        return self._used(portion, task, partial(_read_columns, portion=portion, schema=schema))

    def _used(
        self, portion: Portion, task: int, read: Callable[[SystemReader], Generator[C, None, int]]
    ) -> Generator[C, None, None]:
        ssp = portion.offsets.ssp
        system = self._systems[ssp.system]
        place: _ReaderPlace = (ssp, None if system.readers_seek else task)
        if self._shares(ssp):
            place = (ssp.system, None)
        reader = self._take(place, portion.offsets.start) or system.reader()
        try:
            position = yield from read(reader)
        except BaseException:
            reader.close()
            raise
        self._keep(place, _KeptReader(reader, position))

    def close(self) -> None:
        """Close the readers. A reader that is in use is closed when that use ends."""
        with self._lock:
            self._closed = True
            left, self._kept = self._kept, {}
        for kept in left.values():
            kept.reader.close()

    def _shares(self, ssp: SystemStreamPartition) -> bool:
        return self._systems[ssp.system].readers_share and ssp not in self._by_task

    def _take(self, place: _ReaderPlace, start: int) -> SystemReader | None:
        with self._lock:
            kept = self._kept.pop(place, None)
        if kept is None:
            return None
        if place[1] is not None and kept.position != start:
            kept.reader.close()
            return None
        return kept.reader

    def _keep(self, place: _ReaderPlace, used: _KeptReader) -> None:
        left: list[_KeptReader | None]
        with self._lock:
            if self._closed:
                left = [used]
            else:
                left = [self._kept.pop(place, None)]
                self._kept[place] = used
                if len(self._kept) > _KEPT_READERS:
                    left.append(self._kept.pop(next(iter(self._kept))))
        for kept in left:
            if kept is not None:
                kept.reader.close()


def _read(reader: SystemReader, portion: Portion) -> Generator[list[RawMessage], None, int]:
    """Yields the messages of the portion; returns the offset after them."""
    return _until_the_end(portion, READ_MESSAGES, reader.read, lambda messages: messages[-1][0])


def _read_columns(reader: SystemReader, portion: Portion, schema: pa.Schema) -> Generator[Chunk, None, int]:
    def read(rest: OffsetRange, size: int) -> Iterator[Chunk]:
        by_column = reader.read_columns(rest, schema, size)
        return reader.read(rest, min(size, READ_MESSAGES)) if by_column is None else by_column

    return _until_the_end(portion, _READ_ROWS, read, _last_offset)


def _last_offset(messages: Chunk) -> int:
    return int(messages.offsets[-1]) if isinstance(messages, ColumnChunk) else messages[-1][0]


def _until_the_end(
    portion: Portion, at_once: int, read: Callable[[OffsetRange, int], Iterator[C]], last: Callable[[C], int]
) -> Generator[C, None, int]:
    """Never asks for more messages than are left: a reader that cannot seek has to continue after the last one."""
    rest, left = portion.offsets, portion.messages
    while left and rest.start < rest.end:
        size = min(at_once, left)
        chunks = read(rest, size)
        for messages in chunks:
            yield messages
            left -= len(messages)
            rest = replace(rest, start=last(messages) + 1)
            if left < size:
                break
        else:
            return rest.end
        if isinstance(chunks, Generator):
            chunks.close()
    return rest.start


class ReadProgress:
    """The progress of stage 0, for another thread to look at."""

    def __init__(self) -> None:
        self.position: Position | None = None
        self.tasks = 0

    def begin(self, position: Position) -> None:
        self.position = position
        self.tasks += 1

    def __call__(self) -> object:
        """A value that changes whenever another task began or another message has been processed."""
        position = self.position
        return None if position is None else (self.tasks, position.progress())


class PortionReaders(Protocol):
    """Reads the portions of a task."""

    def read(self, portion: Portion, task: int) -> Generator[Chunk, None, None]:
        """Every message of the portion, in chunks. Close the iterator if you leave it before its end."""
        ...

    def read_columns(self, portion: Portion, task: int, schema: pa.Schema) -> Generator[Chunk, None, None]:
        """As `read`; in columns, if the messages are there as such."""
        ...


def run_source(
    topology: Topology,
    settings: RuntimeSettings,
    batch: Batch,
    task: int,
    portions: Sequence[tuple[int, Portion]],
    readers: PortionReaders,
    progress: ReadProgress | None = None,
    kept: dict[int, StageInstance] | None = None,
    together: JointOutput | None = None,
    token: str | None = None,
) -> Iterator[Packet]:
    """All output for the task's portions (input index, portion): data packets, trailers unless it ends together with
    others, the report.

    `kept` has instances of stage 0 by task, which serve one batch after the other; one that failed is closed.
    `together`: see `Attempt.finish`. `token`: of the attempt; by default a new one.
    """
    token = token or new_token()
    instance = None if kept is None else kept.pop(task, None)
    try:
        if instance is None:
            instance = StageInstance(topology, 0, task, settings, {})
        if progress is not None:
            progress.begin(instance.position)
        attempt = InputAttempt(instance, token, batch)
        for index, portion in portions:
            with closing(_chunks(readers, portion, task, topology.graph.sources[index].value_serde)) as chunks:
                for messages in chunks:
                    yield from attempt.accept(index, portion.offsets.ssp.partition, messages)
            attempt.end_portion(index, portion)
        yield from attempt.finish(together)
        if kept is not None and not attempt.failed:
            kept[task], instance = instance, None
    except SystemAwayError as error:  # reported: Spark would try the task again at once, several times
        yield from failed_attempt(topology, settings, 0, task, token, error, together)
    except RetryableError:
        raise
    except (PenstockError, OperatorFailedError) as error:
        yield from failed_attempt(topology, settings, 0, task, token, error, together)
    finally:
        if instance is not None:
            instance.close()


def _chunks(readers: PortionReaders, portion: Portion, task: int, serde: Serde[Any]) -> Generator[Chunk, None, None]:
    if isinstance(serde, ColumnSerde):
        return readers.read_columns(portion, task, serde.schema)
    return readers.read(portion, task)


def run_sources(
    topology: Topology,
    settings: RuntimeSettings,
    batch: Batch,
    portions: Mapping[int, Sequence[tuple[int, Portion]]],
    readers: InputReaders,
    progress: ReadProgress,
    kept: dict[int, StageInstance],
) -> Iterator[Packet]:
    """All output of several tasks, one after the other. `portions`: task → its portions (input index, portion).
    `kept`: see `run_source`."""
    readers.expect(portion for own in portions.values() for _, portion in own)
    together, token = JointOutput(len(portions)), new_token()
    for task, own in portions.items():
        yield from run_source(topology, settings, batch, task, own, readers, progress, kept, together, token)
    yield from together.end()
