"""One partition of a changelog stream: markers into it; writing it, reading it, and bringing it back to a marker.

A partition belongs to one store of one task. A record is a key and its new value, or None where the key was deleted;
the last record of a key counts. A marker's range holds this task's commits and nothing else, for these reasons:

* Every write carries the epoch, and the system refuses an epoch that is older than one it has seen. Whoever takes
  over raises the fence before it looks at the partition, so nothing can follow that it has not seen.
* Records that a dead epoch wrote behind the last checkpoint are outweighed before the first commit: every key that it
  changed is written again as it was (`Changelog.revert`). Its records may then lie inside the range of the next
  marker: for every one of their keys a later record in the range has the valid value.
* An append whose outcome is not known is made again. If both happened, the same values stand there twice with nothing
  of another writer between them, and the marker names the end of the one that surely happened. For a keyed log that
  is the same as once.

A range is read exactly or not at all, on either kind of system. A system that compacts on request knows what is gone.
One that compacts by the age of records, as Kafka does, drops a record for a newer one of its key once that newer one
is older than the stream's lag. A range is therefore whole as long as everything behind its end is younger: a record
inside the range then went only for a later record inside it. This is checked again after the range was read. If
nothing was ever appended behind the range, its age does not matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import decoding, number
from penstock.base.retry import SYSTEM_CLOCK, Retry, retry
from penstock.checkpoint.streams import CHANGELOG_STREAM, ChangelogStreamMarker
from penstock.errors import ConfigError, CorruptError, NotFoundError, RetryableError
from penstock.job.paths import JobPaths
from penstock.metrics.registry import Counter
from penstock.system.base import OffsetRange, RawMessage, RawRecord, System, SystemAdmin, WriterIdentity

_READ_MESSAGES = 5_000
_END_OF_TRANSACTION = 1
"""The number of offsets a system may use behind a last record, for the end of the transaction that wrote it. Every
record but the last of a transaction is followed by another with the same timestamp."""
_SHOWN = Retry(pause_s=0.02, longest_pause_s=0.5, within_s=10.0)
"""Committed records become readable within this time."""


class ChangelogReader:
    """Reads ranges of the changelogs of one system. Used by one thread at a time."""

    def __init__(self, system: System) -> None:
        self._on_request = system.compacts_on_request
        self._system = system
        self._reader = system.reader()
        self._opened: SystemAdmin | None = None

    def read(self, offsets: OffsetRange) -> Iterator[list[RawMessage]]:
        """The records of a range that compaction has kept. In an empty store, they give the same as the whole range.

        Raises:
            NotFoundError: the range, or the stream, does not exist, or may no longer exist as a whole.
            RetryableError: the read failed for now; the records read so far are of no use.
        """
        if self._on_request:
            yield from self._reader.read_compacted(offsets, _READ_MESSAGES)
        elif len(offsets):
            yield from self._read_whole(offsets, offsets.end)

    def read_every(self, offsets: OffsetRange) -> Iterator[list[RawMessage]]:
        """Every record of a range. Raises as `read`, also if one was dropped for another one in the range."""
        if self._on_request:
            yield from self._reader.read(offsets, _READ_MESSAGES)
        elif len(offsets):
            yield from self._read_whole(offsets, offsets.start)

    def keys(self, ssp: SystemStreamPartition) -> set[bytes]:
        """The keys that have a value, if the partition is read from its beginning. Messages without a key are
        ignored."""
        ends = self._admin.offsets(ssp.stream)[ssp.partition]
        found: set[bytes] = set()
        for messages in self._reader.read(OffsetRange(ssp, ends.oldest, ends.upcoming), _READ_MESSAGES):
            for _, _, key, value, *_ in messages:
                if value is None:
                    found.discard(key or b"")
                elif key is not None:
                    found.add(key)
        return found

    def identity(self, ssp: SystemStreamPartition) -> str | None:
        """The id that distinguishes the stream from others of its name; None if the system has none."""
        return self._admin.stream_identity(ssp.stream)

    def close(self) -> None:
        self._reader.close()
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _admin(self) -> SystemAdmin:
        if self._opened is None:
            self._opened = self._system.admin()
        return self._opened

    def _read_whole(self, offsets: OffsetRange, untouched_from: int) -> Iterator[list[RawMessage]]:
        self._wait_for(offsets)
        deletes_stay_ms = self._check(offsets, untouched_from)
        began = time.monotonic()
        yield from self._reader.read(offsets, _READ_MESSAGES)
        self._check(offsets, untouched_from)
        # A delete may go once it has stayed for so long; the value that it deleted was perhaps read before that.
        if (time.monotonic() - began) * 2000 > deletes_stay_ms:
            raise NotFoundError(
                f"{_partition(offsets.ssp)}: reading took longer than half of the stream's `delete.retention.ms` = "
                f"{deletes_stay_ms}, so a delete may have been removed before it was read. Raise this setting"
            )

    def _wait_for(self, offsets: OffsetRange) -> None:
        """Wait until the end of the range, which was committed, can be read. If that fails, reading reports it."""

        def look() -> None:
            if self._admin.offsets(offsets.ssp.stream)[offsets.ssp.partition].upcoming < offsets.end:
                raise _LateError(f"{_partition(offsets.ssp)} has nothing at offset {offsets.end - 1} yet")

        try:
            retry(look, _SHOWN)
        except _LateError:
            return

    def _check(self, offsets: OffsetRange, untouched_from: int) -> int:
        """The time that deletes stay, in milliseconds. Raises NotFoundError unless the range is whole."""
        found = self._admin.compaction(offsets.ssp.stream)
        if found.untouched_from[offsets.ssp.partition] > untouched_from + _END_OF_TRANSACTION:
            raise NotFoundError(
                f"{_partition(offsets.ssp)}: the offsets {offsets.start} to {offsets.end - 1} may no longer be whole. "
                f"Records behind offset {untouched_from - 1} are older than the stream's `min.compaction.lag.ms` = "
                f"{found.lag_ms}, so older ones of their keys may be gone. Use a newer checkpoint, or restore "
                "from another backend (`stores.<name>.restore.factories`). A store that `blob` backs up as well can be "
                "restored from every retained checkpoint"
            )
        return found.deletes_stay_ms


class _LateError(RetryableError):
    """The end of a range cannot be read yet."""


def _partition(ssp: SystemStreamPartition) -> str:
    return f"the changelog `{ssp.system_stream}` partition {ssp.partition}"


NAME = CHANGELOG_STREAM
GROUP = f"backend.{NAME}"
_APPEND_RECORDS = 50_000
_APPEND_BYTES = 8 << 20
"""The most keys and values of one append: they are held in memory once more, and written in one transaction."""


@dataclass(frozen=True, slots=True)
class ChangelogRange:
    """A store at one commit: the result of the records from `generation` to `offset`, both included, in an empty store.

    Its text is a ChangelogStreamMarker. In one that Samza wrote the generation begins with the stream.
    """

    ssp: SystemStreamPartition
    generation: int
    """The first offset of the generation. Earlier records have nothing to do with the store."""
    offset: int | None
    """The last record of the store; None if it has none and is empty."""
    identity: str | None = field(default=None, compare=False)
    """The identity of the stream, if its system has one: offsets mean nothing in a later stream of its name. It is
    checked with `check_identity`. None if Samza wrote the marker, too."""

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.ssp, self.generation, self.generation if self.offset is None else self.offset + 1)

    def serialize(self) -> str:
        offset = None if self.offset is None else str(self.offset)
        return ChangelogStreamMarker(self.ssp, offset, str(self.generation), self.identity).serialize()

    @classmethod
    def parse(cls, text: str) -> ChangelogRange:
        """Raises CorruptError if the text is not a marker, IncompatibleError for a newer version."""
        written = ChangelogStreamMarker.parse(text)
        with decoding(f"an offset of marker `{text}` is not a number"):
            generation = 0 if written.generation_offset is None else number(written.generation_offset)
            offset = None if written.offset is None else number(written.offset)
            marker = cls(written.ssp, generation, offset, written.stream_identity)
        if marker.offset is not None and marker.offset < marker.generation:
            raise CorruptError(f"marker `{text}` ends before its generation begins")
        return marker

    def check_identity(self, found: str | None) -> None:
        """Raise NotFoundError if the stream that is there is not the one of the marker."""
        if self.identity is not None and found is not None and self.identity != found:
            raise NotFoundError(
                f"the changelog `{self.ssp.system_stream}` is not the stream that the checkpoint was written to. That "
                "one was deleted, and one of the same name was created since, by hand or by a start. Restore from "
                "another backend (`stores.<name>.restore.factories`), if one backed the store up as well; or start "
                "without the state: clear it, and process the input again"
            )


def history_system(systems: Mapping[str, System], stream: SystemStream) -> System:
    """The system that a changelog is restored from. Raises as `changelog_system`."""
    return changelog_system(systems, stream).serving(stream.stream)


def changelog_system(systems: Mapping[str, System], stream: SystemStream) -> System:
    """The system of a changelog. Raises ConfigError if there is none, or it cannot hold a changelog."""
    system = systems.get(stream.system)
    if system is None:
        raise ConfigError(
            f"there is no system `{stream.system}` for the changelog `{stream}`: set "
            f"`systems.{stream.system}.samza.factory`"
        )
    if not (system.compacts_on_request or system.compacts_by_age):
        raise ConfigError(
            f"the changelog `{stream}` cannot be on the system `{stream.system}`: it may delete records at any time, "
            "so a marker might not restore its store. Name a stream of another system, such as `local`"
        )
    if not system.fences:
        raise ConfigError(
            f"the changelog `{stream}` cannot be on the system `{stream.system}`: it does not fence writers, so a "
            "driver that lost the job might write into it. Name a stream of another system, such as `local`"
        )
    return system


def changelog_writer(paths: JobPaths, epoch: int) -> WriterIdentity:
    """The writer of all changelogs of a job."""
    return WriterIdentity(f"{paths.root}/state", epoch)


class Changelog:
    """One partition, as one epoch writes it. Used by one thread."""

    def __init__(
        self, system: System, ssp: SystemStreamPartition, writer: WriterIdentity, uploaded: Counter | None = None
    ) -> None:
        """`uploaded` counts the bytes of the keys and values that are appended."""
        self.ssp = ssp
        self._uploaded = uploaded or Counter()
        self._by_age = not system.compacts_on_request
        self._history = ChangelogReader(system)
        self._writer = system.writer(writer)
        self._identity: str | None = None

    @property
    def identity(self) -> str | None:
        """The stream's identity at the first call, if its system has one."""
        if self._identity is None:
            self._identity = self._history.identity(self.ssp)
        return self._identity

    def take_over(self) -> int:
        """Keep older epochs from writing from here on. Returns the offset that the next record will get."""
        return self._writer.append(self.ssp, [])

    def append(
        self,
        timestamp_ms: int,
        changes: Iterable[tuple[bytes, bytes | None]],
        proceed: Callable[[], None] | None = None,
    ) -> OffsetRange | None:
        """Append the changes, many at once. Returns their range, None if there are none.

        `proceed` is called before each append and may raise. A call that raised may have appended a part;
        calling it again appends everything behind that part.
        """
        start, end = None, 0
        if self._by_age:
            timestamp_ms = SYSTEM_CLOCK.now_ms()  # what compaction goes by is real time
        for part, size_bytes in _parts(timestamp_ms, changes):
            if proceed is not None:
                proceed()
            first, end = self._append(part)
            self._uploaded.inc(size_bytes)
            start = first if start is None else start
        return None if start is None else OffsetRange(self.ssp, start, end)

    def leftovers(self) -> set[bytes]:
        """The keys with a value in the whole partition, if the system keeps records from before a generation: whoever
        reads it from its beginning, as Samza does, must find them deleted. They are held in memory."""
        return self._history.keys(self.ssp) if self._by_age else set()

    def _append(self, records: list[RawRecord]) -> tuple[int, int]:
        """Append at once. Returns the first offset, and the one behind the last record. There may be gaps between
        them."""
        if not self._by_age:
            first = self._writer.append(self.ssp, records)
            return first, first + len(records)
        with self._writer.begin() as transaction:
            transaction.append(self.ssp, records)
        ranges = transaction.appended()[self.ssp]
        return ranges[0][0], ranges[-1][1]

    def revert(self, marker: ChangelogRange, timestamp_ms: int) -> ChangelogRange:
        """Bring the partition back to the marker. Returns a marker of the same content whose range includes the records
        that were behind it.

        Call `take_over` first. The values are read from the log itself, so it does not matter who restored the store.
        The keys that changed behind the marker, with their values, are held in memory.

        Raises:
            NotFoundError: some of the marker's records are gone.
        """
        marker.check_identity(self.identity)
        upcoming = self.take_over()
        behind = OffsetRange(self.ssp, marker.range.end, upcoming)
        if upcoming < marker.range.end:
            raise NotFoundError(
                f"the changelog `{self.ssp.system_stream}` partition {self.ssp.partition} has nothing at offset "
                f"{marker.offset} of the marker: the upcoming one is {upcoming}. Was the stream created again?"
            )
        changed = self._net(behind)
        before = self._net(marker.range, changed.keys())
        # Where a key is back at its old value there is nothing to write: a start that fails again and again does not
        # make the log longer each time.
        differ = ((key, before.get(key)) for key, value in changed.items() if before.get(key) != value)
        reverts = self.append(timestamp_ms, differ)
        end = behind.end if reverts is None else reverts.end
        return replace(marker, offset=end - 1) if changed else marker

    def close(self) -> None:
        self._history.close()
        self._writer.close()

    def _net(self, offsets: OffsetRange, only: Collection[bytes] | None = None) -> dict[bytes, bytes | None]:
        """The last value of every key in the range (or of the keys `only`). Checks that the range can be read."""
        net: dict[bytes, bytes | None] = {}
        for chunk in read_changes(self._history, offsets):
            if only is not None and not only:
                break
            net.update(chunk if only is None else {key: chunk[key] for key in chunk if key in only})
        return net


def read_changes(history: ChangelogReader, offsets: OffsetRange) -> Iterator[dict[bytes, bytes | None]]:
    """The net changes of a range, in chunks to be applied in order.

    Raises:
        NotFoundError: the range, or the stream, does not exist, or no longer as a whole.
        CorruptError: there is a record without a key, which no changelog has.
        RetryableError: the read failed for now.
    """
    for messages in history.read(offsets):
        yield {key_of(message, offsets.ssp): message[3] for message in messages}


def key_of(message: RawMessage, ssp: SystemStreamPartition) -> bytes:
    """Raises CorruptError if the record has no key."""
    if message[2] is None:
        raise CorruptError(
            f"the record at offset {message[0]} of the changelog `{ssp.system_stream}` partition {ssp.partition} has "
            "no key: something other than a state backend wrote it"
        )
    return message[2]


def _parts(timestamp_ms: int, changes: Iterable[tuple[bytes, bytes | None]]) -> Iterator[tuple[list[RawRecord], int]]:
    """The records of each append, and the bytes of their keys and values."""
    part: list[RawRecord] = []
    size = 0
    for key, value in changes:
        part.append((timestamp_ms, key, value))
        size += len(key) + (0 if value is None else len(value))
        if size >= _APPEND_BYTES or len(part) >= _APPEND_RECORDS:
            yield part, size
            part, size = [], 0
    if part:
        yield part, size
