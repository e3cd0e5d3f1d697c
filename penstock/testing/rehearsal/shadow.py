"""Shadow runs: a job's code and a changed one over the same real input, and the differences of what they send and keep.

with admin.open_job("flights") as job:
    print(shadow(job, before=app, after=changed).outputs)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from penstock.admin.jobs import FoundJob, choose_version
from penstock.application.application import Application
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import json_text
from penstock.batch.batch import TaskSsp
from penstock.batch.portions import PortionRead
from penstock.checkpoint.record import CheckpointRecord
from penstock.driver.feed.boundary import Boundary
from penstock.driver.feed.feed import Next
from penstock.errors import IncompatibleError, PenstockError, UserCodeError
from penstock.facts import Column, Facts, FactTable, Shown
from penstock.graph.stores import StoreSpec
from penstock.graph.topology import Topology
from penstock.host.process import process_folder
from penstock.replay.wing import ReadUpTo
from penstock.start.inputs import with_matches
from penstock.start.job_streams import JobStreams
from penstock.start.part import complete
from penstock.state.engines.engine import Content
from penstock.state.reading.comparison import Difference, differences
from penstock.state.reading.reader import VersionEntry
from penstock.state.stores.timed_entries import live_view
from penstock.testing.clock import SettableClock
from penstock.testing.in_process import InProcessDriver
from penstock.testing.rehearsal.feeds import Forwarding, NotedFeed
from penstock.testing.rehearsal.job import Positions, Rehearsal
from penstock.testing.rehearsal.passes import run
from penstock.testing.rehearsal.replay import check_follows, positions_of
from penstock.testing.rehearsal.trace import EXAMPLES, NOTHING, Entries, First, SentRows, compare, shown

_NAMES = {"before": "the job's own application", "after": "the changed application"}


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The messages of one output."""

    output: Annotated[str, Column("output")]
    before: Annotated[int, Column("before", right=True)]
    after: Annotated[int, Column("after", right=True)]
    """The messages that each of the two sent."""
    keys: Annotated[int, Column("keys that differ", right=True)]
    """Keys of which the two did not send the same messages, each as often; a message without a key counts alone. Order,
    partitions and timestamps are not compared."""


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


@dataclass(slots=True)
class _Side:
    """One of the two runs, which stays open until both are compared."""

    rows: SentRows
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
        after: the changed one, which continues from the same state.
        from_checkpoint: where both begin, by its id or label; the last checkpoint, if None.
        to_checkpoint: where both end; the present ends of the inputs, if None.

    Raises:
        NotFoundError: a checkpoint is not retained.
        IncompatibleError: an application cannot go on from the checkpoint, or the checkpoint cannot be forked; or the
            job did not come to the checkpoint where both end by reading alone.
        UserCodeError: an application fails.
    """
    begin = choose_version(job, from_checkpoint or "latest")
    end = None if to_checkpoint is None else choose_version(job, to_checkpoint)
    if end is not None:
        check_follows(job, begin, end)
    until = _ends(job, (before, after), begin) if end is None else positions_of(end)
    if all(offset <= positions_of(begin).get(ssp, 0) for ssp, offset in until.items()):
        raise IncompatibleError(
            f"there is nothing to read behind checkpoint {begin.id}, so the two would not differ, whatever they do: "
            "begin with an older checkpoint"
        )
    until_ms = SYSTEM_CLOCK.now_ms() if end is None else end.batch_time_ms
    closing = None if end is None else end.closing
    with process_folder("penstock-shadow-") as folder, ExitStack() as stack:
        sides: list[_Side] = []
        for name, app in (("before", before), ("after", after)):
            rehearsal = Rehearsal(job, app, begin, until, until_ms, (), closing)
            if sides:  # the batches are the same: some operators send once for each
                rehearsal = replace(rehearsal, batches=sides[0].feed.made())
            sides.append(_run(rehearsal, name, folder, stack))
        outputs, examples = _outputs(*sides)
        stores, entries = _stores(*sides)
        facts = tuple(side.facts for side in sides)
        return ShadowFacts(job.paths.root, str(begin.id), outputs, stores, (*examples, *entries), facts)


def _ends(job: FoundJob, apps: Sequence[Application], begin: CheckpointRecord) -> Positions:
    """The present ends of the inputs, which both runs read up to."""
    found = dict(positions_of(begin))
    for app in apps:
        graph = with_matches(complete(app.graph(), job.config), job.config, {})
        with closing(JobStreams.open(graph, job.config)) as streams:
            found |= {ssp: max(end.upcoming, found.get(ssp, 0)) for ssp, end in streams.ends().items()}
    return found


def _run(rehearsal: Rehearsal, name: str, folder: Path, stack: ExitStack) -> _Side:
    made: list[SentRows] = []

    def watch(topology: Topology) -> SentRows:
        made.append(SentRows(topology, folder / name))
        return made[0]

    feeds: list[_TimedFeed] = []

    def feed(driver: InProcessDriver, clock: SettableClock) -> _TimedFeed:
        feeds.append(_TimedFeed(rehearsal.noted(driver, clock)))
        return feeds[0]

    try:
        driver = stack.enter_context(rehearsal.opened(name, watch, feed))
        began, cpu = time.monotonic(), time.process_time()
        run(driver)
    except PenstockError as error:
        break_or_space = "\n" if isinstance(error, UserCodeError) else " "
        error.args = (f"{_NAMES[name]}:{break_or_space}{error}",)
        raise
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
        numbers = [side.rows.outputs.get(name, NOTHING) for side in (before, after)]
        sent = [int(np.count_nonzero(own["output"] == number)) for own, number in zip(rows, numbers, strict=True)]
        keys, firsts = compare(rows, numbers)
        found.append(OutputDifference(name, sent[0], sent[1], keys))
        examples += [_example(name, (before, after), rows, first) for first in firsts]
    return tuple(found), examples


def _example(name: str, sides: tuple[_Side, _Side], rows: Sequence[Any], first: First) -> Example:
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
        if row["source"] != NOTHING:
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
                if differing <= EXAMPLES:
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
