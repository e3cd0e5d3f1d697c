"""Shadow runs: a job's code and a changed one over the same real input, and the differences of what they send and keep.

with admin.open_job("flights") as job:
    print(shadow(job, before=app, after=changed).outputs)
"""

from __future__ import annotations

import heapq
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np
from xxhash import xxh3_64_intdigest

from penstock.admin.jobs import FoundJob, choose_version
from penstock.application.application import Application
from penstock.base.wording import json_text
from penstock.batch.batch import TaskSsp
from penstock.batch.portions import PortionRead
from penstock.checkpoint.record import CheckpointRecord
from penstock.driver.feed.boundary import Boundary
from penstock.driver.feed.feed import Next
from penstock.facts import Column, Facts, FactTable, Shown
from penstock.graph.stores import StoreSpec
from penstock.graph.topology import Topology
from penstock.host.process import process_folder
from penstock.replay.wing import ReadUpTo
from penstock.runtime.messages.packet import Packet
from penstock.runtime.stage.task_instance import TaskAttempt, TaskInstance
from penstock.start.job_streams import JobStreams
from penstock.state.engines.engine import Content
from penstock.state.reading.comparison import Difference, differences
from penstock.state.reading.reader import VersionEntry
from penstock.state.stores.timed_entries import live_view
from penstock.testing.clock import SettableClock
from penstock.testing.in_process import InProcessDriver
from penstock.testing.rehearsal.job import Forwarding, NotedFeed, Positions, Rehearsal
from penstock.testing.rehearsal.passes import run
from penstock.testing.rehearsal.replay import positions_of
from penstock.testing.rehearsal.trace import Entries, Origin, rows_of, shown

_ROW = np.dtype(
    [("output", "<u4"), ("source", "<u4"), ("key", "<u8"), ("content", "<u8"), ("offset", "<i8"), ("at", "<u8")]
)
_PACKED = struct.Struct("<IIQQqQ")
_BUCKETS = 32
"""The rows are compared in so many parts, by their keys, so that memory is bounded."""
_NOTHING = 0xFFFFFFFF
_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The messages of one output."""

    output: Annotated[str, Column("output")]
    before: Annotated[int, Column("before", right=True)]
    after: Annotated[int, Column("after", right=True)]
    """The messages that each of the two sent."""
    keys: Annotated[int, Column("keys that differ", right=True)]
    """Keys of which the two did not send the same messages, each as often. Their order is not compared."""


@dataclass(frozen=True, slots=True)
class StoreDifference:
    """The entries of one store at the end."""

    store: Annotated[str, Column("store")]
    before: Annotated[int, Column("before", right=True)]
    after: Annotated[int, Column("after", right=True)]
    differing: Annotated[int, Column("entries that differ", right=True)]


@dataclass(frozen=True, slots=True)
class Example:
    """The first message of a key, or an entry, that is not the same."""

    where: Annotated[str, Column("where")]
    key: Annotated[Any, Column("key", json_text)]
    before: Annotated[Any, Column("before", json_text)]
    after: Annotated[Any, Column("after", json_text)]
    """None: there is no such message or entry."""
    made_from: Annotated[str | None, Column("made from")] = None
    """The input message, `stream.partition offset`; None: it fired, or an entry is meant."""


@dataclass(frozen=True, slots=True)
class SideFacts:
    """One of the two runs."""

    which: Annotated[str, Column("run")]
    messages: Annotated[int, Column("messages read", right=True)]
    seconds: Annotated[float, Column("seconds", "{:.1f}".format, right=True)]
    cpu_seconds: Annotated[float, Column("CPU seconds", "{:.1f}".format, right=True)]
    slowest_batch_ms: Annotated[int, Column("slowest batch, ms", right=True)]


@dataclass(frozen=True, slots=True)
class ShadowFacts(Shown):
    """The differences of two runs over the same input."""

    job: str
    checkpoint: str
    outputs: tuple[OutputDifference, ...]
    stores: tuple[StoreDifference, ...]
    examples: tuple[Example, ...]
    sides: tuple[SideFacts, ...]

    @property
    def differs(self) -> bool:
        return any(each.keys for each in self.outputs) or any(each.differing for each in self.stores)

    def as_facts(self) -> Facts:
        """Everything, for people."""
        return Facts(
            {"job": self.job, "from checkpoint": self.checkpoint},
            (
                FactTable("Outputs", self.outputs),
                FactTable("Stores", self.stores),
                FactTable("First differences", self.examples),
                FactTable("Runs", self.sides),
            ),
        )


class _Rows:
    """Keeps what is sent in two files: a row of fixed size for each message, and keys and values."""

    def __init__(self, topology: Topology, folder: Path) -> None:
        folder.mkdir()
        self._topology = topology
        self.folder = folder
        self._rows: BinaryIO = (folder / "rows").open("wb")
        self._contents: BinaryIO = (folder / "contents").open("wb")
        self._at = 0
        self.outputs: dict[str, int] = {}
        self.sources: list[str] = []
        self._source_of: dict[object, int] = {}
        self.serdes: dict[str, tuple[Any, Any]] = {}

    def arrived(self, batch: int, packets: Sequence[Packet]) -> None:
        for row in rows_of(self._topology, packets):
            if row.channel.output is None:
                continue
            name = str(row.channel.output)
            number = self.outputs.setdefault(name, len(self.outputs))
            self.serdes[name] = (row.channel.key_serde, row.channel.value_serde)
            source, offset = (_NOTHING, -1) if row.origin is None else (self._source(row.origin), row.origin[1])
            content = row.content
            key = xxh3_64_intdigest(row.key or b"") if row.key is not None else 0
            self._rows.write(_PACKED.pack(number, source, key, xxh3_64_intdigest(content), offset, self._at))
            self._contents.write(struct.pack("<I", len(content)) + content)
            self._at += 4 + len(content)

    def _source(self, origin: Origin) -> int:
        found = self._source_of.get(origin[0])
        if found is None:
            found = self._source_of[origin[0]] = len(self.sources)
            self.sources.append(str(origin[0]))
        return found

    def processed(self, attempt: TaskAttempt, task: TaskInstance) -> None: ...

    def read(self) -> Any:
        """All rows, in the order in which they were sent, not yet in memory."""
        self._rows.close()
        self._contents.close()
        path = self.folder / "rows"
        return np.memmap(path, _ROW, "r") if path.stat().st_size else np.empty(0, _ROW)

    def content(self, at: int) -> tuple[bytes | None, bytes | None]:
        """The key and the value of a row."""
        with (self.folder / "contents").open("rb") as file:
            file.seek(at)
            (size,) = struct.unpack("<I", file.read(4))
            key, rest = _part(file.read(size))
            return key, _part(rest)[0]


def _part(data: bytes) -> tuple[bytes | None, bytes]:
    """The first part of a `Row.content`, and what is behind it."""
    if data[:1] == b"-":
        return None, data[1:]
    size, _, rest = data.partition(b":")
    return rest[: int(size)], rest[int(size) :]


@dataclass(frozen=True, slots=True)
class _First:
    """The first rows of a key that differ: their numbers, and None where there is none."""

    before: int | None
    after: int | None

    @property
    def number(self) -> int:
        return min(each for each in (self.before, self.after) if each is not None)


def _compare(before: Any, after: Any) -> tuple[int, list[_First]]:
    """The number of keys whose messages differ, and the first rows of some of them. The rows are of one output. Pure.

    Each bucket has the rows of some keys, so the two are never in memory as a whole.
    """
    count, firsts = 0, list[_First]()
    for bucket in range(_BUCKETS):
        numbers = [np.flatnonzero(rows["key"] >> np.uint64(59) == bucket) for rows in (before, after)]
        rows = np.concatenate([before[numbers[0]], after[numbers[1]]])
        if not len(rows):
            continue
        signs = np.repeat(np.array([1, -1]), [len(own) for own in numbers])
        order = np.lexsort((rows["content"], rows["key"]))
        pairs = rows[order][["key", "content"]]
        starts = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]]))
        unlike = np.add.reduceat(signs[order], starts) != 0
        lengths = np.diff(np.concatenate([starts, [len(rows)]]))
        members = order[np.repeat(unlike, lengths)]
        keys = rows["key"][members]
        count += len(np.unique(keys))
        firsts += _firsts(members, keys, numbers)
        firsts = heapq.nsmallest(_EXAMPLES, firsts, key=lambda each: each.number)
    return count, firsts


def _firsts(members: Any, keys: Any, numbers: Sequence[Any]) -> Iterator[_First]:
    """The first differing rows of each key. `members`: places among the rows of both, those of `before` first."""
    of_before = len(numbers[0])
    found: dict[int, list[int | None]] = {}
    for place, key in sorted(zip(members.tolist(), keys.tolist(), strict=True))[: 1000 * _EXAMPLES]:
        own = found.setdefault(key, [None, None])
        side = int(place >= of_before)
        if own[side] is None:
            own[side] = int(numbers[side][place - side * of_before])
    return (_First(before, after) for before, after in found.values())


@dataclass(slots=True)
class _Side:
    """One of the two runs, which stays open until both are compared."""

    rows: _Rows
    driver: InProcessDriver
    feed: _TimedFeed
    facts: SideFacts


def shadow(
    job: FoundJob,
    before: Application,
    after: Application,
    from_checkpoint: str | None = None,
    to_checkpoint: str | None = None,
) -> ShadowFacts:
    """Run two applications on the same input from the same checkpoint on, and compare what they send, by key, and what
    they keep. Nothing is written to the job or to a system.

    Args:
        job: the job. It may run.
        before: its application.
        after: the changed one, which goes on from the same state.
        from_checkpoint: where both begin, by its id or label; the last checkpoint, if None.
        to_checkpoint: where both end; the present ends of the inputs, if None.

    Raises:
        NotFoundError: a checkpoint is not retained.
        IncompatibleError: an application cannot go on from the checkpoint, or the checkpoint cannot be forked.
        UserCodeError: an application fails.
    """
    begin = choose_version(job, from_checkpoint or "latest")
    end = None if to_checkpoint is None else choose_version(job, to_checkpoint)
    until = _ends(job, before, begin) if end is None else positions_of(end)
    until_ms = None if end is None else end.batch_time_ms
    with process_folder("penstock-shadow-") as folder, ExitStack() as stack:
        sides: list[_Side] = []
        for name, app in (("before", before), ("after", after)):
            rehearsal = Rehearsal(job, app, begin, until, until_ms)
            if sides:  # the batches are the same: some operators send once for each
                rehearsal = replace(rehearsal, batches=sides[0].feed.made())
            sides.append(_run(rehearsal, name, folder, stack))
        outputs, examples = _outputs(*sides)
        stores, entries = _stores(*sides)
        facts = tuple(side.facts for side in sides)
        return ShadowFacts(job.paths.root, str(begin.id), outputs, stores, (*examples, *entries), facts)


def _ends(job: FoundJob, app: Application, begin: CheckpointRecord) -> Positions:
    """The present ends of the inputs, which both runs read up to."""
    with closing(JobStreams.open(app.graph(), job.config)) as streams:
        ends = {ssp: end.upcoming for ssp, end in streams.ends().items()}
    return {**positions_of(begin), **ends}


def _run(rehearsal: Rehearsal, name: str, folder: Path, stack: ExitStack) -> _Side:
    made: list[_Rows] = []

    def watch(topology: Topology) -> _Rows:
        made.append(_Rows(topology, folder / name))
        return made[0]

    feeds: list[_TimedFeed] = []

    def feed(driver: InProcessDriver, clock: SettableClock) -> _TimedFeed:
        feeds.append(_TimedFeed(rehearsal.noted(driver, clock)))
        return feeds[0]

    driver = stack.enter_context(rehearsal.opened(name, watch, feed))
    began, cpu = time.monotonic(), time.process_time()
    run(driver)
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    messages = 0 if driver.board.last is None else driver.board.last.total_input_rows
    facts = SideFacts(name, messages, seconds, cpu, round(max(feeds[0].took, default=0)))
    return _Side(made[0], driver, feeds[0], facts)


class _TimedFeed(Forwarding):
    """Notes how long each batch takes, in milliseconds."""

    def __init__(self, feed: NotedFeed) -> None:
        super().__init__(feed)
        self._noted = feed.noted
        self.took: list[float] = []
        self._began = 0.0

    def next(self, boundary: Boundary) -> Next:
        found = super().next(boundary)
        self._began = time.monotonic()
        return found

    def ended(self, took_ms: float, read: Mapping[TaskSsp, PortionRead]) -> None:
        self.took.append((time.monotonic() - self._began) * 1000)  # the clock of the run is another one
        super().ended(took_ms, read)

    def made(self) -> list[ReadUpTo]:
        """The batches."""
        return [ReadUpTo(each.moment.time_ms, {at: end for at, _, end in each.ranges}) for each in self._noted]


def _outputs(before: _Side, after: _Side) -> tuple[tuple[OutputDifference, ...], list[Example]]:
    """The differences of each output, and the first ones as examples."""
    rows = before.rows.read(), after.rows.read()
    found, examples = [], list[Example]()
    for name in sorted({**before.rows.outputs, **after.rows.outputs}):
        own = [
            each[each["output"] == side.rows.outputs.get(name, _NOTHING)]
            for each, side in zip(rows, (before, after), strict=True)
        ]
        keys, firsts = _compare(*own)
        found.append(OutputDifference(name, len(own[0]), len(own[1]), keys))
        examples += [_example(name, (before, after), own, first) for first in firsts]
    return tuple(found), examples


def _example(name: str, sides: tuple[_Side, _Side], rows: Sequence[Any], first: _First) -> Example:
    key: Any = None
    values: list[Any] = []
    made_from: str | None = None
    for side, own, number in zip(sides, rows, (first.before, first.after), strict=True):
        if number is None:
            values.append(None)
            continue
        row = own[number]
        key_serde, value_serde = side.rows.serdes[name]
        key_bytes, value_bytes = side.rows.content(int(row["at"]))
        key = shown("key", key_serde, key_bytes)
        values.append(shown("value", value_serde, value_bytes))
        if row["source"] != _NOTHING:
            made_from = made_from or f"{side.rows.sources[int(row['source'])]} {int(row['offset'])}"
    return Example(name, key, values[0], values[1], made_from)


def _stores(before: _Side, after: _Side) -> tuple[tuple[StoreDifference, ...], list[Example]]:
    """The differences of each store, and the first ones as examples."""
    specs = [{spec.name: spec for spec in side.driver.job.topology.graph.written_stores} for side in (before, after)]
    found, examples = [], list[Example]()
    for name in sorted({**specs[0], **specs[1]}):
        counts, differing = [0, 0], 0
        for task in range(before.driver.job.settings.tasks):
            entries = [_entries(side, own.get(name), task) for side, own in zip((before, after), specs, strict=True)]
            for each in differences(_counted(entries[0], counts, 0), _counted(entries[1], counts, 1)):
                differing += 1
                if differing <= _EXAMPLES:
                    examples.append(_example_of_entry(specs[1].get(name) or specs[0][name], after, each))
        found.append(StoreDifference(name, counts[0], counts[1], differing))
    return tuple(found), examples


def _entries(side: _Side, spec: StoreSpec | None, task: int) -> Iterator[VersionEntry]:
    """The entries of a task's store, by key; none, if the application does not have the store."""
    if spec is None:
        return
    engine: Content = side.driver.fleet.container_of(task).tasks[task].engine(spec.name)
    if spec.ttl is not None:
        engine = live_view(engine, side.driver.loop.boundary.batch_time_ms)
    for key, value in engine.scan(None, None):
        yield VersionEntry(key, task, value)


def _counted(entries: Iterator[VersionEntry], counts: list[int], side: int) -> Iterator[VersionEntry]:
    for each in entries:
        counts[side] += 1
        yield each


def _example_of_entry(spec: StoreSpec, side: _Side, found: Difference) -> Example:
    entries = Entries(side.driver.job.topology)
    change = entries.change(spec, found.task, found.key, found.before, found.after).as_json()
    return Example(f"store {spec.name}", change["key"], change["before"], change["after"])
