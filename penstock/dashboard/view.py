"""The page of a job as a document for the browser: sentences, a graph, series for charts, and facts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock.admin.checkpoint.facts import ListedCheckpoint
from penstock.admin.job.status import JobStatus, UnreadableJob
from penstock.base.wording import lag_text, size_text, utc_text
from penstock.dashboard.verdict import Verdict, next_start, verdict
from penstock.dashboard.work import History, Interval, Totals, shown_id, whole, work_tables
from penstock.facts import Facts, FactTable
from penstock.job.shown import GraphEdge, JobGraph, RunWork

_CHECKPOINTS = 20
_STORE, _BACKEND = "store.", "backend."
_FILES, _MEMORY = "rocksdb.live-sst-files-size", "rocksdb.cur-size-all-mem-tables"


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
        yield _stores(totals)
        yield _commits(totals)
    more = f"The newest {_CHECKPOINTS} of {len(found)}" if len(found) > _CHECKPOINTS else ""
    yield FactTable("Checkpoints, newest first", found[: -_CHECKPOINTS - 1 : -1], note=more)


def _stores(totals: Totals) -> FactTable:
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


def _commits(totals: Totals) -> FactTable:
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
