"""The page of a job as a document for the browser: sentences, a graph, series for charts, and tables. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from penstock.admin.checkpoint.facts import ListedCheckpoint
from penstock.admin.job.status import JobStatus, UnreadableJob
from penstock.api.time.firing import END_OF_TIME
from penstock.base.wording import counted, duration_text, lag_text, size_text, utc_text
from penstock.dashboard.rates import History, Interval, Totals, whole
from penstock.dashboard.tables import Document, table
from penstock.dashboard.verdict import Verdict, next_start, verdict
from penstock.dashboard.work import shown_id, work_tables
from penstock.job.shown import GraphEdge, JobGraph, RunWork

ROWS = 50
"""The most rows of a table; those with the largest lag come first."""
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
    # Rates of a run that has ended, or of another start, would be read as those of now.
    live = None if status.has_ended else seen.history.live(seen.now_ms)
    return {
        "job": status.job,
        "status": status.status,
        "verdict": asdict(found),
        "next": next_start(status),
        "facts": list(_facts(status)),
        "traceback": None if status.failure is None else status.failure.traceback,
        "actions": list(_actions(status)),
        "graph": None if seen.graph is None else _graph(seen.graph, status, live, seen.history.last),
        "series": _series(seen.history),
        "stores": [] if status.last_checkpoint is None else sorted(status.last_checkpoint.stores),
        "inputs": [each.stream for each in status.inputs],
        "tables": [each for each in _tables(seen) if each["rows"]],
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


def _behind(status: JobStatus) -> str | None:
    if any(each.lag is None for each in status.inputs):
        return None
    return lag_text((each.lag or 0, each.lag_unit) for each in status.inputs) or "0"


def _facts(status: JobStatus) -> Iterator[tuple[str, str]]:
    last, outbox = status.last_checkpoint, status.outbox
    rows: list[tuple[str, object]] = [
        ("status", f"{status.status}: {status.reason}"),
        ("behind its last checkpoint", _behind(status)),
        ("last checkpoint", None if last is None else last.id),
        ("batch", None if last is None else f"{last.batch:,}"),
        ("at", utc_text(last.batch_time_ms) if last is not None and last.batch_time_ms else None),
        ("tasks", None if last is None else last.task_count),
        ("last holder" if status.has_ended else "holder", status.holder),
        ("run", status.run_id),
        ("epoch", status.epoch),
        ("drain", status.drain.step),
        ("exactly-once output to publish", None if outbox is None else counted(outbox.messages, "message")),
        ("dead letters since the last start", f"{status.dead_letters:,}" if status.dead_letters else None),
        ("job root", status.root),
        ("container logs", status.logs),
    ]
    return ((name, str(value)) for name, value in rows if value is not None)


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


def _tables(seen: Seen) -> Iterator[Document]:
    status, totals = seen.status, seen.history.last
    yield from work_tables(seen.graph, seen.work, seen.history, seen.now_ms)
    yield _inputs(status)
    yield table(
        "Watermarks",
        "operator, watermark, behind",
        (
            (
                shown_id(seen.graph, each.operator),
                _time(each.watermark_ms),
                None if each.delay_ms is None else duration_text(each.delay_ms),
            )
            for each in status.watermarks
        ),
        "behind",
    )
    if totals is not None:
        yield _stores(totals)
        yield _commits(totals)
    yield table(
        "Backends, as of the last checkpoint",
        "store, backend, can restore",
        ((each.store, each.backend, f"{each.tasks_with_marker} of {each.tasks} tasks") for each in status.backends),
    )
    yield _checkpoints(seen.checkpoints)
    yield table(
        "Startpoints that wait for the next start",
        "stream, partition, task, startpoint, state, status",
        (
            (each.stream, each.partition, each.task, each.text, each.state_choice, each.problem or each.status)
            for each in status.startpoints
        ),
        "partition",
    )
    yield _drain(status)
    yield table(
        "Standbys",
        "task, container, checkpoint, behind, does",
        (
            (e.task, e.container, e.checkpoint_id, None if e.behind_ms is None else duration_text(e.behind_ms), e.doing)
            for e in sorted(status.standbys, key=lambda each: -(each.behind_ms or 0))[:ROWS]
        ),
        "task, behind",
    )
    yield table(
        "Side inputs",
        "store, partition, lag, state",
        (
            (e.store, e.partition, e.lag, "fails" if e.failing else "catches up" if e.catching_up else "")
            for e in sorted(status.side_inputs, key=lambda each: -each.lag)[:ROWS]
        ),
        "lag",
    )
    yield table(
        "Pushed tables",
        "table, version, loading",
        (
            (e.table, e.in_use, None if e.loading is None else f"version {e.loading}, {e.percent} %")
            for e in status.tables
        ),
        "version",
    )
    yield table(
        "Containers on the dashboard's host",
        "container, pid",
        ((each.container, str(each.pid)) for each in status.containers),
        "pid",
    )


def _inputs(status: JobStatus) -> Document:
    rows: list[tuple[int, tuple[object, ...]]] = []
    for each in status.inputs:
        for p in each.partitions:
            time = _time(p.event_time_ms)
            cells = (each.stream, p.partition, p.next_offset, p.read, p.upcoming, p.left, time, p.lost or None)
            rows.append((-1 if p.left is None else p.left, cells))
    rows.sort(key=lambda row: -row[0])
    more = f"{ROWS} of {len(rows):,} partitions, those with the most unread" if len(rows) > ROWS else ""
    columns = "stream, partition, committed, read, upcoming, unread, event time, lost"
    right = "partition, committed, read, upcoming, unread, lost"
    return table("Input partitions by lag", columns, (cells for _, cells in rows[:ROWS]), right, more)


def _stores(totals: Totals) -> Document:
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
    columns = "store, keys (estimate), size in RocksDB, gets, from memory, keys written, keys deleted, expired"
    return table("Stores, all tasks, since the last start", columns, rows, columns.partition(", ")[2])


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


def _commits(totals: Totals) -> Document:
    rows = [
        _timer(totals, "job", "commit-ns", "whole commit"),
        _timer(totals, "job", "snapshot-ns", "snapshot, which processing waits for"),
        _timer(totals, "job", "commit-wait-ns", "waiting for the commit before"),
    ]
    for backend in totals.subjects(_BACKEND):
        group = f"{_BACKEND}{backend}"
        uploads = _timer(totals, group, "upload-ns", f"upload to {backend}, each task")
        rows.append((*uploads[:-1], size_text(round(totals.get(group, "bytes-uploaded")))))
    columns = "part, times, mean, longest, uploaded"
    kept = [row for row in rows if row[1]]
    return table("Commits, since the last start", columns, kept, columns.partition(", ")[2])


def _timer(totals: Totals, group: str, name: str, what: str) -> tuple[object, ...]:
    mean = totals.mean_ms(group, name)
    if mean is None:
        return (what, 0, None, None, None)
    return (what, totals.calls[group, name], f"{mean:,.0f} ms", f"{totals.longest_ms[group, name]:,.0f} ms", None)


def _checkpoints(found: Sequence[ListedCheckpoint]) -> Document:
    rows: list[tuple[object, ...]] = []
    for each in reversed(found[-_CHECKPOINTS:]):
        own = each.checkpoint
        if own is None:
            rows.append((None, None, None, None, each.problem.what if each.problem is not None else None))
            continue
        at = utc_text(own.batch_time_ms) if own.batch_time_ms else None
        what = "kept: can be restored" if each.retained else "its state may be gone"
        rows.append((own.id, own.kind if own.ended is None else own.ended, own.batch, at, what))
    more = f"the newest {_CHECKPOINTS} of {len(found)}" if len(found) > _CHECKPOINTS else ""
    return table("Checkpoints, newest first", "checkpoint, kind, batch, at, state", rows, "batch", more)


def _drain(status: JobStatus) -> Document:
    progress = status.drain.progress
    stages = () if progress is None else progress.stages
    return table(
        "Drain",
        "stage, operators, processed, left, ended",
        ((e.stage, ", ".join(e.names), e.counts, e.left or None, "yes" if e.ended else "") for e in stages),
        "stage, left",
    )


def _time(epoch_ms: int | None) -> str | None:
    if epoch_ms is None:
        return None
    return "its inputs have ended" if epoch_ms == END_OF_TIME else utc_text(epoch_ms)
