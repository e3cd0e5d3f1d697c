"""The work of a job between two looks at its metrics, and tables of it: batches by stage, operators and tasks by
time, keys by messages, stores, and commits. Pure.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from penstock.base.wording import counted, duration_text, listed, size_text
from penstock.facts import FactTable
from penstock.job.shown import GraphStage, JobGraph, RunWork
from penstock.metrics.snapshot import CounterValue, GaugeValue, Snapshot, TimerValue

STALE_MS = 30_000
"""Metrics come every ten seconds. Older rates are not those of now."""
LOOKS = 600
"""Looks that the chart of the lag shows: 20 minutes of one every two seconds."""
K = TypeVar("K")
MOMENTS = 240
"""Intervals that are kept: 40 minutes of a job that is looked at every ten seconds."""
PARTS = {
    "run-ns": "stages",
    "end-ns": "applying",
    "snapshot-ns": "snapshot",
    "commit-wait-ns": "waiting for the last commit",
}
"""The parts of a batch, by their timers. The rest of `batch-ns` is `other`."""
_STAGE, _STREAM = "stage.", "stream."
_STORE, _BACKEND = "store.", "backend."
_FILES, _MEMORY = "rocksdb.live-sst-files-size", "rocksdb.cur-size-all-mem-tables"
_LAG = "messages-behind-high-watermark"
_MESSAGES, _PROCESS = "messages-actually-processed", "process-ns"


@dataclass(frozen=True, slots=True)
class Totals:
    """The metrics of all sources added up, by group and name: counts, sums of gauges, and of timers milliseconds."""

    start: str
    """Distinguishes one start of a run from another one: counters begin at 0."""
    time_ms: int
    sums: Mapping[tuple[str, str], float]
    calls: Mapping[tuple[str, str], int]
    """The counts of timers."""
    longest_ms: Mapping[tuple[str, str], float]
    tasks: Mapping[tuple[int, str], TaskShare] = field(default_factory=dict)
    """(Stage, task) → its work since the start."""

    @classmethod
    def of(cls, start: str, time_ms: int, metrics: Snapshot) -> Totals:
        """Add up the metrics of a run at one moment."""
        sums: dict[tuple[str, str], float] = {}
        calls: dict[tuple[str, str], int] = {}
        longest: dict[tuple[str, str], float] = {}
        for key, value in metrics.items():
            at = key.group, key.name
            if isinstance(value, TimerValue):
                sums[at] = sums.get(at, 0.0) + value.total_ns / 1e6
                calls[at] = calls.get(at, 0) + value.count
                longest[at] = max(longest.get(at, 0.0), value.max_ns / 1e6)
            else:
                number = value.value if isinstance(value, GaugeValue) else value.count
                if math.isfinite(number):  # an application's gauge may be anything
                    sums[at] = sums.get(at, 0.0) + number
        return cls(start, time_ms, sums, calls, longest, _tasks(metrics))

    def get(self, group: str, name: str) -> float:
        """The sum, or 0."""
        return self.sums.get((group, name), 0.0)

    def known(self, group: str, name: str) -> float | None:
        """The sum; None if nothing has this metric."""
        return self.sums.get((group, name))

    def mean_ms(self, group: str, name: str) -> float | None:
        """The mean of a timer; None if it has no call."""
        calls = self.calls.get((group, name), 0)
        return self.get(group, name) / calls if calls else None

    def subjects(self, kind: str) -> list[str]:
        """The subjects of the groups of a kind, such as the stores of `store.`."""
        return sorted({group.removeprefix(kind) for group, _ in self.sums if group.startswith(kind)})


@dataclass(frozen=True, slots=True)
class TaskShare:
    """The work of a task in a stage: messages, and the milliseconds that they took."""

    messages: float
    process_ms: float


@dataclass(frozen=True, slots=True)
class Interval:
    """The work of a run between two moments. Rates are per second."""

    start: str
    end_ms: int
    seconds: float
    batches: int
    batch_ms: Mapping[str, float]
    """The mean batch by part, in milliseconds; empty without a batch."""
    read: Mapping[str, float]
    """By input."""
    sent: Mapping[str, float]
    """By output."""
    processed: Mapping[int, float]
    """By stage."""
    lag: Mapping[str, float]
    """By input, at the end, in offsets."""
    busy: Mapping[str, float] = field(default_factory=dict)
    """By operator, the milliseconds per second that it took, of all tasks together."""
    tasks: Mapping[tuple[int, str], TaskShare] = field(default_factory=dict)
    """(Stage, task) → its work in the interval, of tasks that had any."""
    in_batch: bool = False
    """True if a batch ran at its end."""

    def over(self, seconds: float) -> Interval:
        """The same work in a longer time."""
        share = self.seconds / seconds
        read, sent = _slower(self.read, share), _slower(self.sent, share)
        processed, busy = _slower(self.processed, share), _slower(self.busy, share)
        return replace(self, seconds=seconds, read=read, sent=sent, processed=processed, busy=busy)


def _tasks(metrics: Snapshot) -> dict[tuple[int, str], TaskShare]:
    messages: dict[tuple[int, str], float] = {}
    spent: dict[tuple[int, str], float] = {}
    for key, value in metrics.items():
        kind, _, stage = key.group.partition(".")
        if kind == "stage" and stage.isdecimal():
            if key.name == _MESSAGES and isinstance(value, CounterValue):
                messages[int(stage), key.source] = value.count
            elif key.name == _PROCESS and isinstance(value, TimerValue):
                spent[int(stage), key.source] = value.total_ns / 1e6
    return {at: TaskShare(messages.get(at, 0), spent.get(at, 0)) for at in {**messages, **spent}}


def _slower(rates: Mapping[K, float], share: float) -> dict[K, float]:
    return {name: rate * share for name, rate in rates.items()}


def between(before: Totals, after: Totals) -> Interval | None:
    """The work between two moments; None if they are of two starts, or the later one is not later."""
    seconds = (after.time_ms - before.time_ms) / 1000
    if before.start != after.start or seconds <= 0:
        return None

    def rates(kind: str, name: str) -> Iterator[tuple[str, float]]:
        for group, own in after.sums:
            if own == name and group.startswith(kind):
                yield group.removeprefix(kind), (after.get(group, name) - before.get(group, name)) / seconds

    batches = round(after.get("job", "batches") - before.get("job", "batches"))
    return Interval(
        after.start,
        after.time_ms,
        seconds,
        batches,
        _parts(before, after, batches) if batches > 0 else {},
        dict(rates(_STREAM, "messages-read")),
        dict(rates(_STREAM, "messages-sent")),
        {int(stage): rate for stage, rate in rates(_STAGE, "messages-actually-processed") if stage.isdecimal()},
        {group.removeprefix(_STREAM): value for (group, name), value in after.sums.items() if name == _LAG},
        dict(rates("operator.", "busy-ns")),
        _shares(before, after),
        after.get("job", "batch-since-ms") > 0,
    )


def _shares(before: Totals, after: Totals) -> dict[tuple[int, str], TaskShare]:
    found = {}
    for at, now in after.tasks.items():
        then = before.tasks.get(at, TaskShare(0, 0))
        if now.messages > then.messages or now.process_ms > then.process_ms:
            found[at] = TaskShare(now.messages - then.messages, now.process_ms - then.process_ms)
    return found


def whole(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """The intervals in which batches ended, and idle ones. Messages count once their batch has ended, so the time that
    it took before counts with it: otherwise a job with long batches would read nothing, and then too much at once."""
    waited, of = 0.0, ""
    for each in intervals:
        waited = waited if each.start == of else 0.0
        of = each.start
        if not each.batches and each.in_batch:
            waited += each.seconds
            continue
        yield each if not waited else each.over(each.seconds + waited)
        waited = 0.0


def _parts(before: Totals, after: Totals, batches: int) -> dict[str, float]:
    def spent(name: str) -> float:
        return max(0.0, after.get("job", name) - before.get("job", name)) / batches

    parts = {part: spent(name) for name, part in PARTS.items()}
    return {**parts, "other": max(0.0, spent("batch-ns") - sum(parts.values()))}


def busy_ms(intervals: Iterable[Interval]) -> Counter[str]:
    """The time that each operator took."""
    spent: Counter[str] = Counter()
    for each in intervals:
        spent.update({operator: round(rate * each.seconds) for operator, rate in each.busy.items()})
    return spent


@dataclass(slots=True)
class History:
    """The last intervals of a job, of however many runs."""

    intervals: deque[Interval] = field(default_factory=lambda: deque(maxlen=MOMENTS))
    last: Totals | None = None
    waits_since_ms: int | None = None
    """Since when there is something to read and no batch has ended; None if there is nothing."""
    _batches: float = 0.0
    lags: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=MOMENTS))
    """(epoch milliseconds, everything that was unread then) of each look at a job that runs."""
    unread: deque[tuple[int, Mapping[str, float]]] = field(default_factory=lambda: deque(maxlen=LOOKS))
    """(epoch milliseconds, what was unread then of each input, in its unit) of each look at a job, for the chart: a
    driver that hangs says nothing of it."""

    def add(self, now: Totals) -> None:
        """Take the next moment. One that is known is left out."""
        found = None if self.last is None else between(self.last, now)
        if found is not None:
            self.intervals.append(found)
        self.last = now

    def saw(self, now_ms: int, left: float) -> None:
        """Note how much a running job has not read yet."""
        self.lags.append((now_ms, left))
        batches = 0.0 if self.last is None else self.last.get("job", "batches")
        if not left:
            self.waits_since_ms = None
        elif self.waits_since_ms is None or batches != self._batches:
            self.waits_since_ms = now_ms
        self._batches = batches

    def saw_inputs(self, now_ms: int, unread: Mapping[str, float]) -> None:
        """Note how much of each input waits now."""
        if unread:
            self.unread.append((now_ms, unread))

    def live(self, now_ms: int) -> Interval | None:
        """The newest whole interval, if its rates are those of now."""
        found = list(whole(self.of_this_start))
        last = found[-1] if found else None
        return last if last is not None and now_ms - last.end_ms <= STALE_MS else None

    def forget(self) -> None:
        """From now on, nothing is known of the job's start. The charts keep what was."""
        self.last = self.waits_since_ms = None
        self.lags.clear()

    @property
    def of_this_start(self) -> tuple[Interval, ...]:
        """The intervals of the start that was seen last, the newest last."""
        return tuple(each for each in self.intervals if self.last is not None and each.start == self.last.start)


LONG_MS = 3_000
"""A batch that has run for less is not shown by itself."""
_MOST = 10
_WINDOW_MS = 60_000


def shown_id(graph: JobGraph | None, operator: str) -> str:
    """The stream of an input, the id of any other operator."""
    streams = {each.id: each.stream for stage in _stages_of(graph) for each in stage.operators}
    return streams.get(operator) or operator


def work_tables(graph: JobGraph | None, work: RunWork, history: History, now_ms: int) -> Iterator[FactTable]:
    """The tables that say why a job is slow, those of the running batch first."""
    lately = [each for each in history.of_this_start if now_ms - each.end_ms < _WINDOW_MS]
    if work.batch is not None and now_ms - work.since_ms >= LONG_MS:
        yield _stages(graph, work, now_ms)
        yield _tasks_now(graph, work)
    yield _operators(graph, lately)
    yield _tasks_lately(graph, lately)
    yield FactTable.of(
        "Keys with the most messages, in the last minute",
        "key, stage>, messages>, share>",
        ((each.key, each.stage, f"about {each.messages:,}", f"{each.share:.0%}") for each in work.keys),
        "By a sample. One task gets all messages of a key: more tasks do not help against a key with a large share."
        if work.keys
        else "",
    )


def _stages_of(graph: JobGraph | None) -> tuple[GraphStage, ...]:
    return () if graph is None else graph.stages


def _names(graph: JobGraph | None, stage: int) -> str:
    return ", ".join(op.stream or op.id for each in _stages_of(graph) if each.number == stage for op in each.operators)


def _stages(graph: JobGraph | None, work: RunWork, now_ms: int) -> FactTable:
    processed = dict(work.processed)
    numbers = sorted({*processed, *(each.number for each in _stages_of(graph))})
    rows = []
    for number in numbers:
        busy = Counter(each.operator for each in work.tasks if each.stage == number and each.operator)
        at = listed([f"{shown_id(graph, name)} ({counted(tasks, 'task')})" for name, tasks in busy.most_common(3)])
        rows.append((number, _names(graph, number), processed.get(number), at))
    took = duration_text(max(0, now_ms - work.since_ms))
    return FactTable.of(
        "The running batch, by stage",
        "stage>, operators, messages so far>, busy now",
        rows,
        f"Batch {work.batch} of {counted(work.messages, 'message')}, for {took}. Stages in Spark's workers do not say "
        "how far they are.",
    )


def _tasks_now(graph: JobGraph | None, work: RunWork) -> FactTable:
    totals = dict(work.processed)
    rows = [
        (
            each.task,
            each.stage,
            each.messages,
            f"{each.messages / totals[each.stage]:.0%}" if totals.get(each.stage) else None,
            duration_text(each.process_ms),
            shown_id(graph, each.operator) if each.operator else "",
        )
        for each in work.tasks
    ]
    headings = "task>, stage>, messages so far>, share>, time>, busy now"
    return FactTable.of("The running batch, its busiest tasks", headings, rows)


def _operators(graph: JobGraph | None, lately: list[Interval]) -> FactTable:
    spent = busy_ms(lately)
    stages = {op.id: stage.number for stage in _stages_of(graph) for op in stage.operators}
    seconds = sum(each.seconds for each in lately) or 1.0
    rows = [
        (
            shown_id(graph, operator),
            stages.get(operator),
            duration_text(ms),
            f"{ms / spent.total():.0%}",
            f"{ms / seconds / 1000:.1f}",
        )
        for operator, ms in spent.most_common(_MOST)
        if ms
    ]
    return FactTable.of("Operators by time, in the last minute", "operator, stage>, time>, share>, cores>", rows)


def _tasks_lately(graph: JobGraph | None, lately: list[Interval]) -> FactTable:
    messages: Counter[tuple[int, str]] = Counter()
    spent: Counter[tuple[int, str]] = Counter()
    stages: Counter[int] = Counter()
    for interval in lately:
        for at, share in interval.tasks.items():
            messages[at] += round(share.messages)
            spent[at] += round(share.process_ms)
            stages[at[0]] += round(share.messages)
    chosen = {*dict(messages.most_common(_MOST // 2)), *dict(spent.most_common(_MOST // 2))}
    rows = [
        (
            source.removeprefix("Partition "),
            stage,
            messages[stage, source],
            f"{messages[stage, source] / stages[stage]:.0%}" if stages[stage] else None,
            duration_text(spent[stage, source]),
        )
        for stage, source in sorted(chosen, key=lambda at: (-spent[at], -messages[at], at))
    ]
    return FactTable.of("Busiest tasks, in the last minute", "task>, stage>, messages>, share>, time>", rows)


def stores_table(totals: Totals) -> FactTable:
    """The stores of all tasks, since the last start."""
    rows: list[tuple[object, ...]] = []
    for store in totals.subjects(_STORE):
        group = f"{_STORE}{store}"
        gets, hits, size = totals.get(group, "gets"), totals.get(group, "cache-hits"), totals.known(group, _FILES)
        rows.append(
            (
                store,
                _whole(totals.known(group, "keys")),
                None if size is None else size_text(round(size + totals.get(group, _MEMORY))),
                _whole(totals.known(group, "gets")),
                f"{hits / gets:.0%}" if gets else None,
                _whole(totals.known(group, "puts")),
                _whole(totals.known(group, "deletes")),
                _whole(totals.known(group, "expired")),
            )
        )
    sizes = "store, keys (estimate)>, size in RocksDB>, gets>, from memory>?2"
    headings = f"{sizes}, keys written>, keys deleted>?3, expired>?1"
    return FactTable.of("Stores, all tasks, since the last start", headings, rows)


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


def commits_table(totals: Totals) -> FactTable:
    """The parts of commits, since the last start."""
    rows = [
        _timer(totals, "job", "commit-ns", "whole commit"),
        _timer(totals, "job", "snapshot-ns", "snapshot, which processing waits for"),
        _timer(totals, "job", "commit-wait-ns", "waiting for the commit before"),
    ]
    for backend in totals.subjects(_BACKEND):
        group = f"{_BACKEND}{backend}"
        uploads = _timer(totals, group, "upload-ns", f"upload to {backend}, each task")
        rows.append((*uploads[:-1], size_text(round(totals.get(group, "bytes-uploaded")))))
    kept = [row for row in rows if row[1]]
    return FactTable.of("Commits, since the last start", "part, times>, mean>, longest>, uploaded>", kept)


def _timer(totals: Totals, group: str, name: str, what: str) -> tuple[object, ...]:
    mean = totals.mean_ms(group, name)
    if mean is None:
        return (what, 0, None, None, None)
    return (what, totals.calls[group, name], f"{mean:,.0f} ms", f"{totals.longest_ms[group, name]:,.0f} ms", None)
