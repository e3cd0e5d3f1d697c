"""A system from which a job reads, and to which it writes nothing: a shadow's (`job.shadow.enabled`).

What the job writes goes to streams of the same names in a local folder. A stream is **held** from the first call that
would write to it. From then on it is read in the folder, too; any other one is read where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.api.requests import Startpoint
from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.base.secrets import RootKeys
from penstock.config.model import HELD_FACTORY, HELD_PATH, SystemSettings
from penstock.config.settings import ROOT_OPTIONS
from penstock.errors import NotFoundError
from penstock.system import base
from penstock.system.contract.messages import OpenTransaction
from penstock.system.local import LocalSystem
from penstock.system.registry import open_system


def _as_read(flag: str) -> Any:
    """A flag about reading, which the other system answers."""
    return property(lambda self: getattr(self.inner, flag))


class HeldSystem(base.System):
    """Reads `inner`, and writes to a folder alone. Flags about writing are those of local streams.

    Example:
        >>> import tempfile
        >>> from penstock.api.ssp import SystemStreamPartition
        >>> from penstock.system.held import HeldSystem
        >>> from penstock.system.memory import MemorySystem
        >>> real = MemorySystem("m")
        >>> real.admin().create_stream("out", 2)
        True
        >>> held = HeldSystem("m", real, tempfile.mkdtemp())
        >>> ssp = SystemStreamPartition("m", "out", 1)
        >>> held.writer(None).append(ssp, [(0, b"key", b"value")])
        0
        >>> held.admin().offsets("out")[1].upcoming, real.admin().offsets("out")[1].upcoming
        (1, 0)
    """

    fences = LocalSystem.fences
    compacts_on_request = LocalSystem.compacts_on_request
    keeps_owners = LocalSystem.keeps_owners
    retains = LocalSystem.retains
    ends_streams = LocalSystem.ends_streams
    reports_appended = LocalSystem.reports_appended
    keeps_progress = LocalSystem.keeps_progress
    carries_headers = LocalSystem.carries_headers
    takes_root = True

    dense_offsets = _as_read("dense_offsets")
    has_keys = _as_read("has_keys")
    lag_unit = _as_read("lag_unit")
    readers_seek = _as_read("readers_seek")
    readers_share = _as_read("readers_share")
    shows_positions = _as_read("shows_positions")

    def __init__(self, name: str, inner: base.System, path: str) -> None:
        """
        Args:
            name: that of `inner`.
            inner: the system that is read.
            path: the folder of what is written, an absolute one.
        """
        self.name = name
        self.inner = inner
        self.written = LocalSystem(name, path)

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> HeldSystem:
        given = dict(options)
        factory, path = given.pop(HELD_FACTORY), given.pop(HELD_PATH)
        root, key, previous = (given.pop(option, None) for option in ROOT_OPTIONS)
        inner = open_system(SystemSettings(name, factory, given, root or "", RootKeys(key, previous)))
        return cls(name, inner, path)

    def messages_in(self, ends: Iterable[base.PartitionOffsets]) -> int | None:
        return self.inner.messages_in(ends)

    def lag(self, position: int, upcoming: int) -> int:
        return self.inner.lag(position, upcoming)

    def serving(self, stream: str) -> base.System:
        with closing(self.written.admin()) as written:
            return self.written if is_held(written, stream) else self.inner

    def admin(self) -> HeldAdmin:
        return HeldAdmin(self.inner.admin(), self.written.admin())

    def reader(self) -> HeldReader:
        return HeldReader(self)

    def writer(self, identity: base.WriterIdentity | None) -> HeldWriter:
        return HeldWriter(self.written.writer(identity), self.admin())


def is_held(written: base.SystemAdmin, stream: str) -> bool:
    """True if the folder has the stream, by its admin."""
    try:
        written.partition_count(stream)
    except NotFoundError:
        return False
    return True


class HeldAdmin(base.SystemAdmin):
    """Looks at both systems, and changes the one in the folder alone."""

    def __init__(self, inner: base.SystemAdmin, written: base.SystemAdmin) -> None:
        self._inner = inner
        self._written = written

    def is_held(self, stream: str) -> bool:
        """True if the job has written to the stream, or made it."""
        return is_held(self._written, stream)

    def hold(self, stream: str) -> base.SystemAdmin:
        """Make the stream in the folder, with as many partitions as it really has, and return the folder's admin.
        Raises NotFoundError if there is no such stream."""
        if not self.is_held(stream):
            self._written.create_stream(stream, self._inner.partition_count(stream))
        return self._written

    def _of(self, stream: str) -> base.SystemAdmin:
        return self._written if self.is_held(stream) else self._inner

    def partition_count(self, stream: str) -> int:
        return self._of(stream).partition_count(stream)

    def offsets(self, stream: str) -> dict[int, base.PartitionOffsets]:
        return self._of(stream).offsets(stream)

    def stream_identity(self, stream: str) -> str | None:
        """The real one's, if there is one: a checkpoint of a shadow fits a job that is none, and the other way."""
        try:
            return self._inner.stream_identity(stream)
        except NotFoundError:
            return self._written.stream_identity(stream)

    def missing_columns(self, stream: str, names: Sequence[str]) -> Sequence[str]:
        return self._of(stream).missing_columns(stream, names)

    def keeps_order(self, stream: str) -> bool:
        return self._of(stream).keeps_order(stream)

    def open_transactions(self, stream: str) -> dict[int, OpenTransaction]:
        return self._of(stream).open_transactions(stream)

    def complete_from(self, stream: str) -> dict[int, int]:
        return self._of(stream).complete_from(stream)

    def deletions_kept_ms(self, stream: str) -> int | None:
        return self._of(stream).deletions_kept_ms(stream)

    def compaction(self, stream: str) -> base.Compaction:
        return self._of(stream).compaction(stream)

    def streams(self) -> list[str]:
        return sorted({*self._inner.streams(), *self._written.streams()})

    def retention(self, stream: str) -> StreamRetention:
        return self._of(stream).retention(stream)

    def record_limits(self, stream: str) -> base.RecordLimits:
        """The limits of the real stream, so that a shadow refuses what the job would."""
        try:
            return self._inner.record_limits(stream)
        except NotFoundError:
            return self._written.record_limits(stream)

    def check_writable(self, stream: str) -> None:
        self._inner.check_writable(stream)

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        return self._of(ssp.stream).offset_at_time(ssp, timestamp_ms)

    def named_offset(self, ssp: SystemStreamPartition, name: str) -> int:
        return self._of(ssp.stream).named_offset(ssp, name)

    def named_partition(self, stream: str, name: str) -> int | None:
        return self._of(stream).named_partition(stream, name)

    def message_name(self, ssp: SystemStreamPartition, offset: int, *, with_line: bool = False) -> str | None:
        return self._of(ssp.stream).message_name(ssp, offset, with_line=with_line)

    def resolve_startpoint_to_offset(
        self, ssp: SystemStreamPartition, startpoint: Startpoint, *, clamp: bool = False
    ) -> int:
        return self._of(ssp.stream).resolve_startpoint_to_offset(ssp, startpoint, clamp=clamp)

    def owner(self, stream: str) -> str | None:
        return self._of(stream).owner(stream)

    def owners(self) -> dict[str, str]:
        return self._written.owners()

    def keeps_progress_of(self, name: str) -> bool:
        return self._written.keeps_progress_of(name)

    def progress_of(
        self, name: str, ssps: Iterable[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, base.Progress]:
        return self._written.progress_of(name, [ssp for ssp in ssps if self.is_held(ssp.stream)])

    def progress_place(self, name: str) -> str:
        return self._written.progress_place(name)

    # What would change a stream.

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        return self._written.create_stream(stream, partitions, retention)

    def create_compacted(self, stream: str, partitions: int, settings: Mapping[str, str]) -> bool:
        return self._written.create_compacted(stream, partitions, settings)

    def delete_stream(self, stream: str) -> None:
        self._written.delete_stream(stream)

    def set_retention(self, stream: str, retention: StreamRetention) -> int:
        return self.hold(stream).set_retention(stream, retention)

    def end_stream(self, stream: str) -> None:
        self.hold(stream).end_stream(stream)

    def fence(self, stream: str, writer: base.WriterIdentity) -> None:
        self.hold(stream).fence(stream, writer)

    def published(self, stream: str, name: str, slot: int) -> None:
        self.hold(stream).published(stream, name, slot)

    def show_positions(self, group: str, positions: Mapping[SystemStreamPartition, int]) -> None:
        """Show nothing: the group is the job's, and its positions are not the shadow's."""

    def own(self, stream: str, owner: str) -> str:
        return self.hold(stream).own(stream, owner)

    def compact(
        self,
        offsets: base.OffsetRange,
        writer: base.WriterIdentity,
        *,
        min_dirty_ratio: float = 0.0,
        dry_run: bool = False,
    ) -> int:
        written = self.hold(offsets.ssp.stream)
        return written.compact(offsets, writer, min_dirty_ratio=min_dirty_ratio, dry_run=dry_run)

    def close(self) -> None:
        self._inner.close()
        self._written.close()


class HeldReader(base.SystemReader):
    """Reads held streams in the folder, and others where they are."""

    def __init__(self, system: HeldSystem) -> None:
        self._system = system
        self._inner: base.SystemReader | None = None
        self._written = system.written.reader()
        self._files = system.written.admin()
        self._is_held: Callable[[str], bool] = partial(is_held, self._files)

    def read(
        self, offsets: base.OffsetRange, chunk_messages: int, chunk_bytes: int = base.CHUNK_BYTES
    ) -> Iterator[list[base.RawMessage]]:
        return self._of(offsets).read(offsets, chunk_messages, chunk_bytes)

    def read_columns(
        self, offsets: base.OffsetRange, schema: pa.Schema, chunk_messages: int
    ) -> Iterator[base.ColumnChunk | list[base.RawMessage]] | None:
        return self._of(offsets).read_columns(offsets, schema, chunk_messages)

    def expect(self, ranges: Sequence[base.OffsetRange]) -> None:
        if read := [each for each in ranges if not self._is_held(each.ssp.stream)]:
            self._real().expect(read)

    def read_compacted(
        self, offsets: base.OffsetRange, chunk_messages: int, chunk_bytes: int = base.CHUNK_BYTES
    ) -> Iterator[list[base.RawMessage]]:
        return self._of(offsets).read_compacted(offsets, chunk_messages, chunk_bytes)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        self._written.close()
        self._files.close()

    def _of(self, offsets: base.OffsetRange) -> base.SystemReader:
        return self._written if self._is_held(offsets.ssp.stream) else self._real()

    def _real(self) -> base.SystemReader:
        if self._inner is None:
            self._inner = self._system.inner.reader()
        return self._inner


class HeldWriter(base.SystemWriter):
    """Writes to the folder. It makes each stream before the first message for it."""

    def __init__(self, written: base.SystemWriter, admin: HeldAdmin) -> None:
        self._written = written
        self._admin = admin
        self._held: set[str] = set()

    def append(self, ssp: SystemStreamPartition, records: Iterable[base.RawRecord]) -> int:
        self._hold(ssp)
        return self._written.append(ssp, records)

    def begin(self) -> base.WriterTransaction:
        return _HeldTransaction(self._written.begin(), self._hold)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, base.Progress]:
        asked = list(ssps)
        for ssp in asked:
            self._hold(ssp)
        return self._written.progress(asked)

    def close(self) -> None:
        self._written.close()
        self._admin.close()

    def _hold(self, ssp: SystemStreamPartition) -> None:
        if ssp.stream not in self._held:
            self._admin.hold(ssp.stream)
            self._held.add(ssp.stream)


class _HeldTransaction(base.WriterTransaction):
    def __init__(self, inner: base.WriterTransaction, hold: Callable[[SystemStreamPartition], None]) -> None:
        self._inner = inner
        self._hold = hold

    def append(self, ssp: SystemStreamPartition, records: Iterable[base.RawRecord]) -> None:
        self._hold(ssp)
        self._inner.append(ssp, records)

    def commit(self) -> None:
        self._inner.commit()

    def abort(self) -> None:
        self._inner.abort()

    def appended(self) -> base.Appended:
        return self._inner.appended()

    def mark(self, ssp: SystemStreamPartition, progress: base.Progress) -> None:
        self._hold(ssp)
        self._inner.mark(ssp, progress)
