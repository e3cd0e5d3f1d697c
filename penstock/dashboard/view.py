"""The page of a job as a document for the browser: sentences, a graph, series for charts, and facts. Pure.

The first sentences are what a person wants to know: does the job keep up, what holds it back, and what will a start do?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from penstock.admin.checkpoint.facts import ListedCheckpoint
from penstock.admin.job.inputs import InputStatus
from penstock.admin.job.status import JobStatus, UnreadableJob
from penstock.base.wording import counted, duration_text, lag_text, listed, utc_text
from penstock.batch.watermarks import holds_back_text
from penstock.dashboard.work import (
    History,
    Interval,
    Totals,
    busy_ms,
    commits_table,
    shown_id,
    stores_table,
    whole,
    work_tables,
)
from penstock.facts import Facts, FactTable
from penstock.job.shown import GraphEdge, JobGraph, RunWork

_ENDED = {
    "stopped": "it was stopped, and continues with the next start",
    "drained": "it has drained, and nothing is in flight",
    "end-of-stream": "its inputs have ended",
}
Level: TypeAlias = Literal["good", "warning", "bad", "idle", "plain"]

WINDOW_S = 60.0
"""Rates are those of this time."""
_TREND_S = 20.0
"""A trend is the change in this time."""
_STUCK_MS = 30_000
"""A batch that takes longer is worth a word: metrics come every ten seconds."""
_SMALL_S = 15.0
"""A lag of what the job reads in this time is no lag: metrics are up to ten seconds older than the ends of inputs."""
_CHANGE = 0.1
"""A lag that changes by less than this share does not change."""
_LATE_MS = 60_000
"""A watermark that is further behind is explained."""
_HOT, _MANY = 0.2, 500
"""A key with this share of so many messages is named."""
_PART = 0.3
"""A part of a batch as large as this share of it is named."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A sentence, how bad it is, and what explains it."""

    level: Level
    text: str
    why: tuple[str, ...] = ()


def verdict(status: JobStatus, history: History | None = None, work: RunWork | None = None) -> Verdict:
    """The state of a job in a sentence.

    Args:
        status: the job's.
        history: the looks at its run; None if nobody has looked before.
        work: what the run works at now.
    """
    if status.failure is not None:
        at = "" if status.failure.since_ms is None else utc_text(status.failure.since_ms)
        since = f" at {at}" if at and at not in status.failure.error else ""
        place = () if status.failure.place is None else (f"In {status.failure.place}",)
        return Verdict("bad", f"Failed{since}: {status.failure.error}", place)
    if status.status == "not running":
        ended = None if status.last_checkpoint is None else status.last_checkpoint.ended
        return Verdict("idle", f"Not running: {status.reason if ended is None else _ENDED[ended]}")
    if status.outage is not None:
        return Verdict("bad", f"Waits for a system: {status.outage.reason}")
    if status.status == "not responding":
        return Verdict("bad", f"Not responding: {status.reason}")
    phase = status.phase
    if phase is None:
        return Verdict("warning", "Starting")
    if status.drain.step in ("asked", "draining", "last commit"):
        return Verdict("warning", "Drains: it reads no more, and ends once everything in flight is processed")
    if phase.phase != "running":
        progress = f" ({phase.progress})" if phase.progress else ""
        return Verdict("warning", f"{phase.phase.capitalize()}{progress}, since {utc_text(phase.since_ms)}")
    if history is None:
        behind = behind_text(status)
        return Verdict("plain", f"Running{f', {behind} not read yet' if behind else ''}")
    return _running(status, history, RunWork() if work is None else work)


def unread(status: JobStatus) -> Counter[str] | None:
    """The distance of the run from the ends of all inputs, by unit; None if one of them is not known."""
    found: Counter[str] = Counter()
    for each in status.inputs:
        for part in each.partitions:
            if part.left is None:
                return None
            found[each.lag_unit] += part.left
    return found


def unread_by_input(status: JobStatus) -> dict[str, float]:
    """The unread part of each input whose ends are known, with its unit if it is not messages."""
    found = {}
    for each in status.inputs:
        left = [part.left for part in each.partitions if part.left is not None]
        if len(left) == len(each.partitions):
            name = each.stream if each.lag_unit == "message" else f"{each.stream} ({each.lag_unit}s)"
            found[name] = float(sum(left))
    return found


def behind_text(status: JobStatus) -> str:
    """The same in words; empty if there is none, or if it is not known."""
    found = unread(status)
    return "" if found is None else lag_text((number, unit) for unit, number in found.items())


def _running(status: JobStatus, history: History, work: RunWork) -> Verdict:
    lately = _window(history.of_this_start)
    slow = (*_large_parts(lately), *_busiest(lately), *_hot_keys(work))
    why = (*_unknown(status.inputs), *slow, *_held_back(status), *_others(status))
    left, behind = unread(status), behind_text(status)
    seconds = sum(each.seconds for each in lately)
    if not seconds:
        return Verdict(
            "plain", f"Running{f', {behind} not read yet' if behind else ''}; rates follow in some seconds", why
        )
    inputs = {each.stream for each in status.inputs}
    read = sum(rate * each.seconds for each in lately for stream, rate in each.read.items() if stream in inputs)
    rate = read / seconds
    speed = f"{rate:,.0f} messages a second"
    if left is None:
        return Verdict("warning", f"Runs with {speed}; how far behind is not known", why)
    total = sum(left.values())
    waits_ms = 0 if history.waits_since_ms is None else history.lags[-1][0] - history.waits_since_ms
    if total and waits_ms >= _STUCK_MS:
        return Verdict("warning", f"No batch has ended for {duration_text(waits_ms)}, {behind} not read yet", why)
    is_small = total <= max(rate * _SMALL_S, 1) if set(left) <= {"message"} else not total
    if is_small:
        return Verdict("good", f"Keeps up: {speed}", why)
    return _trend(speed, behind, float(total), history, why)


def _trend(speed: str, behind: str, total: float, history: History, why: tuple[str, ...]) -> Verdict:
    now_ms = history.lags[-1][0] if history.lags else 0
    before = next((each for each in reversed(history.lags) if now_ms - each[0] >= _TREND_S * 1000), None)
    spent = 0.0 if before is None else (now_ms - before[0]) / 1000
    if before is None or abs(total - before[1]) <= _CHANGE * before[1]:
        return Verdict("warning", f"Behind: {speed}, {behind} not read yet", why)
    if total > before[1]:
        return Verdict("warning", f"Falls behind: {speed}, {behind} not read yet, and more than {spent:.0f} s ago", why)
    left = duration_text(round(total / (before[1] - total) * spent * 1000))
    return Verdict("warning", f"Catches up: {speed}, {behind} not read yet, about {left} left", why)


def _window(intervals: Sequence[Interval]) -> list[Interval]:
    """The intervals of the last minute, and at least one."""
    end_ms = intervals[-1].end_ms if intervals else 0
    return [each for each in intervals if end_ms - each.end_ms < WINDOW_S * 1000]


def _unknown(inputs: Sequence[InputStatus]) -> Iterator[str]:
    for each in inputs:
        if each.problem is not None:
            yield f"Stream `{each.stream}`: {each.problem}"


def _large_parts(lately: Sequence[Interval]) -> Iterator[str]:
    parts = next((each.batch_ms for each in reversed(lately) if each.batch_ms), {})
    total = sum(parts.values())
    large = [f"{ms:,.0f} ms {part}" for part, ms in parts.items() if total and ms >= _PART * total]
    if large:
        yield f"A batch takes {total:,.0f} ms, of which {listed(large)}"


def _busiest(lately: Sequence[Interval]) -> Iterator[str]:
    spent = busy_ms(lately)
    total = spent.total()
    for operator, ms in spent.most_common(1):
        if total and ms >= _PART * total and len(spent) > 1:
            yield f"Operator `{operator}` takes {ms / total:.0%} of the operators' time"


def _hot_keys(work: RunWork) -> Iterator[str]:
    for each in work.keys[:1]:
        if each.share >= _HOT and each.messages >= _MANY:
            share = f"{each.share:.0%} of the messages of stage {each.stage}"
            yield f"Key {each.key} has {share}: one task gets all of them"


def _held_back(status: JobStatus) -> Iterator[str]:
    late = any((each.delay_ms or 0) > _LATE_MS for each in status.watermarks)
    for each in status.inputs:
        for part in each.partitions:
            if late and part.partition == each.held_back_by:
                yield holds_back_text(each.stream, part.partition, part.event_time_ms)
            if part.open_transaction is not None:
                yield f"{each.stream} partition {part.partition}: {part.open_transaction}"


def _others(status: JobStatus) -> Iterator[str]:
    if status.dead_letters:
        yield f"{counted(status.dead_letters, 'message')} went to the dead-letter stream since the last start"
    for side in status.side_inputs:
        if side.failing:
            yield f"The side inputs of store {side.store} fail, and are tried again"
    for table in status.tables:
        if table.failing:
            yield f"A version of table {table.table} cannot be loaded, and is tried again"


def next_start(status: JobStatus) -> tuple[str, ...]:
    """The effect of a start of the job now, in sentences."""
    last = status.last_checkpoint
    if last is None:
        return ("There is no checkpoint yet: a start begins where the configuration says.",)
    at = f" of {utc_text(last.batch_time_ms)}" if last.batch_time_ms else ""
    stores = f", restores {listed(sorted(last.stores))}" if last.stores else ""
    sentences = [f"A start continues from checkpoint {last.id}{at} (batch {last.batch}){stores}."]
    waiting = [each for each in status.startpoints if each.status != "unreadable"]
    if behind := lag_text((each.lag or 0, each.lag_unit) for each in status.inputs):
        sentences.append(f"It has {behind} to read{', without the startpoints' if waiting else ''}.")
    if status.outbox is not None and status.outbox.published != status.outbox.messages:
        sentences.append("It first publishes exactly-once output that readers do not see yet.")
    if waiting:
        sentences.append(f"It applies {counted(len(waiting), 'startpoint')}.")
    if status.drain.awaiting:
        sentences.append("It drains, because that was asked for.")
    if status.has_ended:
        sentences += _unknown(status.inputs)
    return tuple(sentences)


_CHECKPOINTS = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """The facts of a job at one moment."""

    status: JobStatus
    graph: JobGraph | None
    checkpoints: Sequence[ListedCheckpoint]
    history: History
    now_ms: int = 0
    work: RunWork = field(default_factory=RunWork)
    """The present work of the run."""


def job_document(seen: Seen) -> Document:
    """The page of a job."""
    status, found = seen.status, verdict(seen.status, seen.history, seen.work)
    shown = _shown(seen)
    facts = shown.asked_facts() + shown.known_facts()  # a screen cuts what does not fit at its end
    # Rates of a run that has ended, or of another start, would be read as those of now.
    live = None if status.has_ended else seen.history.live(seen.now_ms)
    return {
        "job": status.job,
        "status": status.status,
        "verdict": asdict(found),
        "next": next_start(status),
        "facts": [(label.strip(), str(value)) for label, value in shown.as_facts().pairs() if value is not None],
        "notes": facts.notes,
        "traceback": None if status.failure is None else status.failure.traceback,
        "actions": list(_actions(status)),
        "graph": None if seen.graph is None else _graph(seen.graph, status, live, seen.history.last),
        "series": _series(seen.history),
        "stores": [] if status.last_checkpoint is None else sorted(status.last_checkpoint.stores),
        "inputs": [each.stream for each in status.inputs],
        "tables": [page_table(each) for each in _tables(seen, facts) if each.rows],
    }


def list_document(found: Iterable[JobStatus | UnreadableJob]) -> Document:
    """The page with all jobs."""
    return {"jobs": [_line(each) for each in found]}


def _line(found: JobStatus | UnreadableJob) -> Document:
    if not isinstance(found, JobStatus):
        return {"job": found.job, "verdict": asdict(Verdict("bad", f"Cannot be read: {found.problem}"))}
    last = found.last_checkpoint
    return {
        "job": found.job,
        "verdict": asdict(verdict(found)),
        "checkpoint": None if last is None else last.id,
        "at": utc_text(last.batch_time_ms) if last is not None and last.batch_time_ms else None,
    }


def _actions(status: JobStatus) -> Iterator[str]:
    if not status.has_ended:
        yield "stop"
    if status.drain.step in {"asked", "draining"} or status.drain.awaiting:
        yield "cancel drain"
    elif status.drain.step is None:
        yield "drain"
    yield "startpoint"
    if status.startpoints:
        yield "delete startpoints"


def _graph(graph: JobGraph, status: JobStatus, live: Interval | None, totals: Totals | None) -> Document:
    edges = list(dict.fromkeys((each.source, each.target) for each in graph.edges if _is_shown(each, totals)))
    sources, targets = Counter(source for source, _ in edges), Counter(target for _, target in edges)

    def rate(source: int | str, target: int | str) -> float | None:
        """The messages per second of an edge; None if only the sum of several edges is known."""
        if live is None:
            return None
        if isinstance(source, str):
            return live.read.get(source) if sources[source] == 1 else None
        if targets[target] != 1:
            return None
        return live.sent.get(target) if isinstance(target, str) else live.processed.get(target)

    read, sent = ({}, {}) if live is None else (live.read, live.sent)
    nodes = dict.fromkeys(end for edge in edges for end in edge if isinstance(end, str))
    return {
        "stages": [
            {
                "number": stage.number,
                "operators": [{"id": op.stream or op.id, "stores": op.stores} for op in stage.operators],
                "rate": None if live is None else live.processed.get(stage.number),
            }
            for stage in graph.stages
        ],
        "streams": [
            {"name": name, "rate": read.get(name, sent.get(name)), "lag": _lag_of(name, status)} for name in nodes
        ],
        "edges": [{"source": source, "target": target, "rate": rate(source, target)} for source, target in edges],
    }


def _is_shown(edge: GraphEdge, totals: Totals | None) -> bool:
    """True but for dead letters, which are drawn once there are any."""
    is_letters = isinstance(edge.source, int) and isinstance(edge.target, str) and not edge.channel
    return not is_letters or (totals is not None and totals.get(f"stream.{edge.target}", "messages-sent") > 0)


def _lag_of(stream: str, status: JobStatus) -> str | None:
    """The unread part of an input in words; None if it is none, or is not known."""
    for each in status.inputs:
        if each.stream == stream:
            known = [part.left for part in each.partitions if part.left is not None]
            return lag_text([(sum(known), each.lag_unit)]) or None if len(known) == len(each.partitions) else None
    return None


def _series(history: History) -> Document:
    """The points of the charts, by name."""
    found = list(_with_gaps(whole(history.intervals)))
    inputs = dict.fromkeys(name for _, unread in history.unread for name in unread)

    def by(name: str, otherwise: float | None = None) -> dict[str, list[float | None]]:
        keys = dict.fromkeys(key for each in found for key in getattr(each, name))
        return {
            key: [getattr(each, name).get(key, otherwise if each.start else None) for each in found] for key in keys
        }

    return {
        "times": [each.end_ms for each in found],
        "read": by("read", 0.0),
        "sent": by("sent", 0.0),
        "lag": {name: [unread.get(name) for _, unread in history.unread] for name in inputs},
        "lag_times": [time_ms for time_ms, _ in history.unread],
        "parts": by("batch_ms"),
    }


def _with_gaps(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """The intervals, and one without a value between those of two starts."""
    before: Interval | None = None
    for each in intervals:
        if before is not None and before.start != each.start:
            yield Interval("", each.end_ms - round(each.seconds * 1000), 0.0, 0, {}, {}, {}, {}, {})
        yield each
        before = each


def _shown(seen: Seen) -> JobStatus:
    """The status with the streams of inputs in place of the ids of their operators."""
    watermarks = (replace(each, operator=shown_id(seen.graph, each.operator)) for each in seen.status.watermarks)
    return replace(seen.status, watermarks=tuple(watermarks))


def _tables(seen: Seen, facts: Facts) -> Iterator[FactTable]:
    totals, found = seen.history.last, seen.checkpoints
    yield from work_tables(seen.graph, seen.work, seen.history, seen.now_ms)
    yield from facts.tables
    if totals is not None:
        yield stores_table(totals)
        yield commits_table(totals)
    more = f"The newest {_CHECKPOINTS} of {len(found)}" if len(found) > _CHECKPOINTS else ""
    yield FactTable("Checkpoints, newest first", found[: -_CHECKPOINTS - 1 : -1], note=more)


Document = dict[str, Any]
ROWS = 50
"""The most rows of a table."""


def page_table(table: FactTable) -> Document:
    """A table of a page."""
    grid = table.grid(ROWS)
    return {
        "title": grid.title,
        "columns": grid.headings,
        "right": [each.heading for each in grid.columns if each.right],
        "rows": [[_text(cell) for cell in row] for row in grid.rows],
        "note": grid.note,
        "first_to_go": grid.first_to_go,
    }


def _text(cell: object) -> str:
    return "" if cell is None else f"{cell:,}" if type(cell) is int else str(cell)
