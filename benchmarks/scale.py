"""The growth of a job with its tasks, containers and checkpoints: measured small, and multiplied.

The storage of a few tasks runs in this process, with the code of containers and driver and an object store that counts.
Its commits follow each other by a clock of their own. The records of a log and the calls of a large job are made whole.
`--page` is the page whose figures are replaced, between two marks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import penstock as ps
from benchmarks.harness import console, options
from benchmarks.state.job import StateJob, WatchedStore
from penstock.batch.batch import Batch, TaskSsp
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import keep
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, decode_record, encode_record
from penstock.config.kinds import RetentionPolicy
from penstock.config.load import load_config
from penstock.container.container import Epoch
from penstock.container.handlers import HANDLERS
from penstock.driver.commit.coordinator import CommitCoordinator
from penstock.driver.commit.record import Collection, CommitRequest, Recorder
from penstock.driver.feed.boundary import Boundary
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.runtime.stage.attempt import new_token
from penstock.state.backends.changelog_files.versions import ChangelogMarker
from penstock.state.backends.registry import BackendAdmins
from penstock.testing.clock import SettableClock
from penstock.wire.protocol import (
    BEAT_SECONDS,
    CLEAN_UP,
    END,
    OPEN,
    Call,
    CleanUp,
    EndBatch,
    Identity,
    Markers,
    OpenEpoch,
    Request,
    UploadResult,
    dump,
)

BEGIN, END_MARK = "<!-- figures: make bench-scale -->\n", "<!-- end of the figures -->\n"
KINDS = ("put", "get", "list", "delete")
DAY_S, MONTH_S = 86_400, 30 * 86_400
PUT_DOLLARS, GET_DOLLARS = 5e-6, 0.4e-6
"""Prices of an object store for a write or a listing, and for a read. Deletions are free."""
_SEED_KEYS, _CHANGED = 1000, 50
_PATHS = JobPaths("scale", "1")


class Fleet:
    """One container, which is called directly."""

    any_lost = False

    def __init__(self, epoch: Epoch) -> None:
        self._inside = SimpleNamespace(epoch=lambda _: epoch)

    def ask(self, call: Call[Any, Any], epoch: int, request: Request, **options: object) -> list[Any]:
        *_, answer = HANDLERS[call.name](cast("Any", self._inside), Identity("", epoch), request)
        return [answer]


@dataclass(frozen=True, slots=True)
class Storage:
    """Requests to an object store, by kind."""

    requests: Mapping[str, float]
    """For each commit and store of a task; those for the log are apart."""
    objects: float
    """The number of objects that a store of a task has in the end."""
    log: Mapping[str, float]
    """For each commit of the whole job."""
    records: int
    """The number of records in the log in the end."""


def storage(tasks: int, stores: int, commits: int, work: Path) -> Storage:
    """Commit once a second, a few keys of each store each time, and collect what no checkpoint needs."""
    names = [f"store-{n}" for n in range(stores)]
    calls, log_calls = list[str](), list[str]()
    root = open_store("memory://scale")
    objects = WatchedStore(root, lambda kind, _: calls.append(kind))
    log = CheckpointLog(WatchedStore(root, lambda kind, _: log_calls.append(kind)), _PATHS)
    claim = log.claim("run")
    clock = SettableClock(time.time_ns() // 1_000_000)
    settings = {"job.name": "scale", "job.root": "memory://scale"}
    job = StateJob(work, settings=settings, stores=names, tasks=tasks, objects=objects, clock=clock)
    layout = dict.fromkeys(names, "use bytes bytes")
    admins = BackendAdmins(job.config, _PATHS, objects, tasks, names, {}, "uid")
    admins.prepare(claim.epoch)
    recorder, fleet = Recorder(log, layout, tasks, job.config.task), cast("Any", Fleet(job.epoch))
    coordinator = CommitCoordinator(recorder, fleet, [Collection(log, admins)], lambda: None, clock)
    for number in range(commits):
        first = (number + 1) * _CHANGED
        changed = {b"%d" % ((first + n) % _SEED_KEYS): b"%d" % (number + 1) for n in range(_CHANGED)}
        job.run_batch(lambda *_: changed)  # noqa: B023
        coordinator.begin(claim, CommitRequest(Boundary({}, number + 1, 1)))
        assert coordinator.wait(60, threading.Event()) is not None
        clock.advance(1)
        if number == commits // 2:
            calls.clear()
            log_calls.clear()
    coordinator.close()
    measured = commits - commits // 2 - 1
    left = sum(len(root.list(_PATHS.store_folder(name))) for name in names) / (tasks * stores)
    job.close()
    of_stores = {kind: calls.count(kind) / (tasks * stores * measured) for kind in KINDS}
    of_log = {kind: log_calls.count(kind) / measured for kind in KINDS}
    return Storage(of_stores, left, of_log, len(log.read().checkpoints))


def record_of(tasks: int, stores: int) -> CheckpointRecord:
    """A record of a job that has run for a while, as its driver makes it."""
    names = {f"store-{n}": "use string json" for n in range(stores)}
    marker = ChangelogMarker(1_000_000, ((3, 900_000, 1_000_000),), ((999_990, 3), (999_970, 3))).serialize()
    found: Markers = {str(task): {"changelog-files": dict.fromkeys(names, marker)} for task in range(tasks)}
    positions = {TaskSsp(t, ps.SystemStreamPartition("kafka", "events", t)): 10**9 + t for t in range(tasks)}
    times = dict.fromkeys(positions, 1790000000000)
    boundary = Boundary(
        positions, 10**6, 1_790_000_000_000, event_times=times, watermarks={"window": 1_790_000_000_000}
    )
    log = CheckpointLog(open_store(f"memory://records-{tasks}"), _PATHS)
    claim = log.claim("run")
    recorder = Recorder(log, names, tasks, load_config(overrides={"job.name": "scale"}, environ={}).task)
    return recorder.record(
        CheckpointId(1_790_000_000_000, 0), CheckpointId(1_789_999_999_000, 0), claim, CommitRequest(boundary), found
    )


def fastest_ms(step: Callable[[], object]) -> float:
    """The milliseconds of the fastest of five runs."""
    return 1000 * min(timeit.repeat(step, number=1))


def retained(every_s: int, days: int) -> int:
    """The most checkpoints that are kept at once, with the default retention."""
    policy = RetentionPolicy(newest=10, hours=24, days=7)
    kept: dict[int, CheckpointId] = {}
    most = 0
    for slot in range(days * DAY_S // every_s):
        new = CheckpointId(1_790_000_000_000 + slot * every_s * 1000, 0)
        kept = keep(kept, new, policy)
        kept[slot] = new
        most = max(most, len(kept))
    return most


def table(header: str, rows: Iterable[Iterable[str]]) -> str:
    """A table of the page; the columns of `header` are separated by bars."""
    lines = [header, "|".join("---" for _ in header.split("|")), *(" | ".join(row) for row in rows)]
    return "\n".join(f"|{line}|" if line.startswith("---") else f"| {line} |" for line in lines)


def records_table(counts: Sequence[int], stores: int) -> str:
    rows = []
    for tasks in counts:
        record = record_of(tasks, stores)
        data = encode_record(record)
        write_ms = fastest_ms(partial(encode_record, record))
        read_ms = fastest_ms(partial(decode_record, data, "record"))
        size, day = f"{len(data) / 1000:,.0f} KB", f"{len(data) * DAY_S / 1e9:,.1f} GB"
        rows.append((f"{tasks:,}", size, f"{write_ms:.1f} ms", f"{read_ms:.1f} ms", day))
    return table("tasks | a record | written | read | a day at one a second", rows)


def calls_table(tasks: int, containers: int, stores: int) -> str:
    each = [*range(tasks // containers)]
    of_store = {f"store-{n}": "x" * 90 for n in range(stores)}
    markers: Markers = {str(task): {"changelog-files": of_store} for task in each}
    tokens = {task: {stage: new_token() for stage in (1, 2)} for task in each}
    identity, checkpoint = Identity("0123456789abcdef", 3), str(record_of(tasks, stores).id)
    opened = OpenEpoch(bytes(20_000), 1, checkpoint, markers, ("store-0",), tuple(each))
    calls = {
        "`open`, once an epoch, with an application of 20 KB": OPEN.encode(identity, opened),
        "`end`, of each batch": END.encode(identity, EndBatch(Batch(1, 1, 1), tokens)),
        "the answer of `upload`, of each commit": dump(UploadResult(markers)),
        "`clean-up`, of each commit": CLEAN_UP.encode(identity, CleanUp(checkpoint, markers)),
    }
    rows = (
        (name, f"{len(call) / 1000:,.1f} KB", f"{len(call) * containers / 1000:,.0f} KB")
        for name, call in calls.items()
    )
    return table("call | to or from a container | of all", rows)


def objects_table(found: Mapping[int, Storage]) -> str:
    rows = []
    for tasks, each in found.items():
        requests = (f"{each.requests[kind]:.2f}" for kind in KINDS)
        rows.append((str(tasks), *requests, f"{each.objects:.0f}"))
    return table("tasks | writes | reads | listings | deletions | objects in the end", rows)


def cost_table(found: Storage, tasks: int, stores: int) -> str:
    rows, places = [], tasks * stores
    for seconds in (1, 10, 60):
        # Snapshots follow the number of commits; everything else does, too.
        writes, reads = (
            sum(places * found.requests[kind] + found.log[kind] for kind in kinds) / seconds
            for kinds in (("put", "list"), ("get",))
        )
        dollars = MONTH_S * (writes * PUT_DOLLARS + reads * GET_DOLLARS)
        rows.append((f"{seconds} s", f"{writes:,.0f}", f"{reads:,.1f}", f"{dollars:,.0f}"))
    return table("a commit every | writes and listings a second | reads a second | dollars a month", rows)


def figures(options: argparse.Namespace) -> str:
    tasks, containers, stores = options.tasks, options.containers, options.stores
    with tempfile.TemporaryDirectory() as work:
        small = storage(2, stores, options.commits, Path(work) / "small")
        large = storage(8, stores, options.commits // 4, Path(work) / "large")
    most = retained(300, options.days)
    requests = ", ".join(f"{count:.2f} {kind}" for kind, count in small.log.items() if count)
    prices = (
        f"{PUT_DOLLARS * 1e6:g} dollars for a million writes or listings and {GET_DOLLARS * 1e6:g} for a million reads"
    )
    log = (
        f"The log of a job that commits once a second keeps {small.records} records after\n"
        f"{options.commits:,} commits. With the default retention (`10,24h,7d`) and a commit every five\n"
        f"minutes it keeps at most {most} in {options.days} days.\n"
        f"Each commit makes these requests for the log: {requests}."
    )
    parts = (
        f"{tasks:,} tasks in {containers} containers, each task with {stores} stores, on {time.strftime('%Y-%m-%d')}.",
        "### The checkpoint log",
        records_table([10, 100, tasks], stores),
        log,
        "### Objects of state",
        "For each store of a task and commit that changes it, with the backend `changelog-files`:",
        objects_table({2: small, 8: large}),
        f"An object store that takes {prices}\nfor a job of {tasks:,} tasks, without what it takes for the bytes:",
        cost_table(large, tasks, stores),
        "### Calls",
        calls_table(tasks, containers, stores),
        f"Beats: {containers / BEAT_SECONDS:,.0f} a second come to the driver.\n",
    )
    return "\n\n".join(parts)


def main(given: Sequence[str] | None = None) -> int:
    sizes = {"tasks": 1000, "containers": 200, "stores": 2, "commits": 2000, "days": 365}
    found = options("scale", __doc__, given, **sizes, page=Path())
    text = figures(found)
    console.print(text, markup=False)
    if found.page.is_file():
        before, _, rest = found.page.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END_MARK)
        found.page.write_text(before + BEGIN + "\n" + text + "\n" + END_MARK + after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
