"""Streams of a job as a checkpoint has them. Pure.

Of a durable intermediate stream it has what ended batches wrote, and what is still to be read. Of a store's changelog
stream it has where that stood, in Samza's two written forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import orjson
from msgspec import UNSET, Struct, UnsetType, structs

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import END_OF_TIME, NO_WATERMARK
from penstock.base.documents import Count, Form, Positive, Time, dataclass_form, decode, mapping, text, unread_format
from penstock.checkpoint.record import CheckpointId
from penstock.checkpoint.sections import Section
from penstock.errors import ConfigError, CorruptError, RetryableError

Ranges: TypeAlias = tuple[tuple[Count, Count], ...]
"""Offsets as `[start, end)`: ascending, none empty, adjacent ones joined."""

MOST_ENTRIES = 100
"""The most entries of `IntermediateStream.unread`."""


@dataclass(frozen=True, slots=True)
class WrittenRanges:
    """The offsets that an ended batch wrote to a stream, or several consecutive batches."""

    batch: Count
    """The last of them."""
    watermark: Time
    """The output watermark of the operator that writes, after that batch."""
    ranges: Mapping[Count, Ranges] = field(default_factory=dict)
    """By partition, only where something was written."""

    def joined(self, later: WrittenRanges) -> WrittenRanges:
        """One entry for this and a later one. Its watermark counts once both have been read: that is never early."""
        ranges = dict(self.ranges)
        for partition, behind in later.ranges.items():
            ranges[partition] = join((*ranges.get(partition, ()), *behind))
        return WrittenRanges(later.batch, max(self.watermark, later.watermark), ranges)

    def behind(self, read: Mapping[int, int]) -> WrittenRanges:
        """The same without the ranges before these offsets, up to which each partition has been read."""
        left = {
            partition: tuple((max(start, read[partition]), end) for start, end in ranges if end > read[partition])
            if partition in read
            else ranges
            for partition, ranges in self.ranges.items()
        }
        return replace(self, ranges={partition: ranges for partition, ranges in left.items() if ranges})


@dataclass(frozen=True, slots=True)
class IntermediateStream:
    """One stream between two batches. Only what ended batches wrote is ever read, in later batches."""

    generation: Positive = 1
    """It grows whenever unread messages are dropped."""
    watermark: Time = NO_WATERMARK
    """The reader's: that of the last `WrittenRanges` that all tasks have read to the end."""
    positions: Mapping[Count, Count] = field(default_factory=dict)
    """By partition, the offset behind what was read last."""
    unread: tuple[WrittenRanges, ...] = ()
    """Oldest first. Each entry has only the ranges that are still to be read, at least one. Watermarks ascend; only the
    last may equal the one before it."""

    def next_ranges(self) -> dict[int, tuple[int, int]]:
        """The first range of each partition that has something unread, joined with those that are adjacent to it,
        whichever batches wrote them."""
        found: dict[int, tuple[int, int]] = {}
        for written in self.unread:
            for partition, ranges in written.ranges.items():
                for start, end in ranges:
                    if partition not in found:
                        found[partition] = start, end
                    elif found[partition][1] == start:
                        found[partition] = found[partition][0], end
        return found

    def after(self, read: Mapping[int, int], written: WrittenRanges | None) -> IntermediateStream:
        """The stream after one more batch.

        Args:
            read: by partition, the offset behind what the batch read: within the range of `next_ranges`.
            written: what the batch wrote; without ranges if only the writer's watermark is new.

        Raises:
            RetryableError: the batch cannot have read or written this.
        """
        first = self.next_ranges()
        for partition, offset in read.items():
            start, end = first.get(partition, (0, -1))
            if not start <= offset <= end:
                raise RetryableError(
                    f"partition {partition} of an intermediate stream: {_shown(first.get(partition))} was to be read, "
                    f"but offset {offset} was reported as the next one"
                )
        entries = [each.behind(read) for each in self.unread]
        if written is not None:
            self._check_is_new(written)
            entries.append(written)
        watermark, unread = _settled(self.watermark, entries)
        return IntermediateStream(self.generation, watermark, {**self.positions, **read}, unread)

    def left(self) -> int:
        """The number of offsets that are still to be read."""
        return sum(end - start for written in self.unread for own in written.ranges.values() for start, end in own)

    def left_of(self, partition: int) -> int:
        return sum(end - start for written in self.unread for start, end in written.ranges.get(partition, ()))

    def needed(self, partition: int) -> int | None:
        """The oldest offset that is still to be read from here on; None: nothing is known of the partition."""
        for written in self.unread:
            if partition in written.ranges:
                return written.ranges[partition][0][0]
        return self.positions.get(partition)

    def ends(self) -> dict[int, int]:
        """By partition, the offset behind everything that was written or read."""
        found = dict(self.positions)
        for written in self.unread:
            for partition, ranges in written.ranges.items():
                found[partition] = ranges[-1][1]
        return found

    def next_generation(self) -> IntermediateStream:
        """Nothing is left to be read, and no watermark counts."""
        return IntermediateStream(self.generation + 1, NO_WATERMARK, self.ends())

    def without_end(self) -> IntermediateStream:
        """The same where nothing has ended after all: an input that had ended has new messages."""

        def known(watermark: int) -> int:
            return NO_WATERMARK if watermark == END_OF_TIME else watermark

        entries = [replace(each, watermark=known(each.watermark)) for each in self.unread]
        watermark, unread = _settled(known(self.watermark), entries)
        return replace(self, watermark=watermark, unread=unread)

    def _check_is_new(self, written: WrittenRanges) -> None:
        known = self.ends()
        for partition, ranges in written.ranges.items():
            if ranges[0][0] < known.get(partition, 0):
                raise RetryableError(
                    f"partition {partition} of an intermediate stream: a batch wrote {_shown(ranges[0])}, but the "
                    f"batches before it had come to offset {known[partition]}: the stream is not the one that the "
                    "job wrote before. Stop the job; its next start says what can be done"
                )


@dataclass(frozen=True, slots=True)
class StreamsSection:
    """The durable intermediate streams at a checkpoint. Raises ValueError if one has no layout."""

    streams: Mapping[SystemStream, IntermediateStream] = field(default_factory=dict)
    layouts: Mapping[SystemStream, str] = field(default_factory=dict)
    """The operator that writes each stream and the serdes of its keys and values, as a text that a start compares."""

    def __post_init__(self) -> None:
        if bare := self.streams.keys() - self.layouts.keys():
            raise ValueError(f"it has no layout of the intermediate stream `{min(bare)}`")


_STREAM = text(SystemStream.parse)
STREAMS = Section(
    "streams",
    StreamsSection,
    dataclass_form(
        StreamsSection, streams=mapping(_STREAM, Form(IntermediateStream)), layouts=mapping(_STREAM, Form(str))
    ),
    needed=True,
)


def join(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same offsets in the form of `Ranges`. None may be in two of them."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], end
        elif end > start:
            joined.append((start, end))
    return tuple(joined)


def _settled(watermark: int, entries: Iterable[WrittenRanges]) -> tuple[int, tuple[WrittenRanges, ...]]:
    """The reader's watermark, and the entries of which something is left, at most `MOST_ENTRIES`.

    Two kinds of entries join exactly, and only beyond the bound is a watermark delayed:

    - one of which nothing is left waits only for those before it, so its watermark is theirs;
    - one that raises no watermark is joined by the next.
    """
    unread: list[WrittenRanges] = []
    for each in entries:
        last = unread[-1].watermark if unread else watermark
        before = unread[-2].watermark if len(unread) > 1 else watermark
        if not each.ranges and not unread:
            watermark = max(watermark, each.watermark)
        elif unread and (not each.ranges or last == before or len(unread) == MOST_ENTRIES):
            unread[-1] = unread[-1].joined(each)
        else:
            unread.append(replace(each, watermark=max(each.watermark, last)))
    return watermark, tuple(unread)


def _shown(offsets: tuple[int, int] | None) -> str:
    return "nothing" if offsets is None else f"[{offsets[0]}, {offsets[1]})"


VERSION = 1

CHANGELOG_STREAM = "changelog-stream"
"""The backend whose markers these are, by Penstock's name."""

SAMZA_BACKEND = "org.apache.samza.storage.KafkaChangelogStateBackendFactory"
"""The same backend by Samza's name, which checkpoints carry so that Samza finds the markers."""


@dataclass(frozen=True, slots=True)
class ChangelogStreamMarker:
    """A position in a changelog stream (Samza's `KafkaStateCheckpointMarker`, the marker in a V2 checkpoint).

    `offset` is that of the store's last record, None while there is none. `generation_offset` is the first offset of
    the store's present generation, which Samza does not have; None means that the stream is read from its beginning.
    `stream_identity` is that of the stream (`SystemAdmin.stream_identity`), None if Samza wrote the marker or the
    system has none.
    """

    ssp: SystemStreamPartition
    offset: str | None
    generation_offset: str | None = None
    stream_identity: str | None = None

    def serialize(self) -> str:
        """The JSON Samza writes, fields in its order; those that it does not have follow where there is a value."""
        document: dict[str, object] = {
            "version": VERSION,
            "changelog-ssp": {
                "system": self.ssp.system,
                "partition": self.ssp.partition,
                "stream": self.ssp.stream,
                "keyBucket": -1,
            },
            "changelog-offset": self.offset,
        }
        if self.generation_offset is not None:
            document["generation-offset"] = self.generation_offset
        if self.stream_identity is not None:
            document["stream-identity"] = self.stream_identity
        return orjson.dumps(document).decode()

    @classmethod
    def parse(cls, text: str) -> ChangelogStreamMarker:
        """Read what Samza or Penstock wrote; unknown fields and the key bucket are ignored.

        Raises:
            CorruptError: this is no such marker.
            IncompatibleError: it is of a newer version.
        """
        what = f"not a changelog stream marker, {text[:200]!r}"
        version = decode(_Version, text, what).version
        if version > VERSION:
            raise unread_format(f"marker `{text}`", version, VERSION)
        own = decode(_Fields, text, what)
        generation, identity = (
            None if each is UNSET else each for each in (own.generation_offset, own.stream_identity)
        )
        ssp = SystemStreamPartition(*structs.astuple(own.changelog_ssp))
        return cls(ssp, own.changelog_offset, generation, identity)


def changelog_markers(markers: Mapping[str, Mapping[str, str]]) -> dict[str, ChangelogStreamMarker]:
    """Store -> marker, of the markers of a task by backend and store. Raises as `ChangelogStreamMarker.parse`."""
    return {store: ChangelogStreamMarker.parse(text) for store, text in markers.get(CHANGELOG_STREAM, {}).items()}


class _Version(Struct):
    version: Count


class _Ssp(Struct):
    system: str
    stream: str
    partition: Count


class _Fields(Struct, rename="kebab"):
    """The fields of a marker, the last two as Penstock writes them."""

    changelog_ssp: _Ssp
    changelog_offset: str | None
    generation_offset: str | UnsetType = UNSET
    stream_identity: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class ChangelogOffset:
    """The same position in a V1 checkpoint, among the input offsets (Samza's `KafkaChangelogSSPOffset`)."""

    id: CheckpointId
    offset: str | None

    def __str__(self) -> str:
        return f"{self.id}:{'null' if self.offset is None else self.offset}"

    @classmethod
    def is_one(cls, text: str) -> bool:
        """True if the text has this form, which no offset of an input of Penstock has."""
        try:
            cls.parse(text)
        except CorruptError:
            return False
        return True

    @classmethod
    def parse(cls, text: str) -> ChangelogOffset:
        """Read `<checkpoint id>:<offset or null>`. Raises CorruptError for anything else."""
        checkpoint_id, _, offset = text.partition(":")
        if not offset or ":" in offset:
            raise CorruptError(f"`{text}` is not a changelog's position, which looks like `1614147487244-33577:17`")
        try:
            return cls(CheckpointId.parse(checkpoint_id), None if offset == "null" else offset)
        except ConfigError as error:
            raise CorruptError(f"`{text}` is not a changelog's position: {error}") from error
