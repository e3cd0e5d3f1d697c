"""The cost of commits in the keyed fold when the store of the backups is slow.

The part of an asynchronous upload that is left when the last batch ends is outside of what is measured.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from dataclasses import replace
from typing import Any, TypeVar

from benchmarks import harness, jobs
from benchmarks.figures import commits_of
from benchmarks.state.job import WatchedStore
from benchmarks.workload import Workload, write_inputs
from penstock.driver import run_loop
from penstock.driver.commit.record import CommitRequest
from penstock.driver.commit.schedule import CommitSchedule
from penstock.state.backends.base import AdminContext, BackendContext
from penstock.state.backends.changelog_files.backup import ChangelogFilesBackup
from penstock.state.backends.changelog_files.factory import (
    ChangelogFilesAdmin,
    ChangelogFilesFactory,
    ChangelogFilesRestore,
)

MODES = ("none", "asynchronous", "synchronous")
WARM_UP_BATCHES = 4
PARTS = ("snapshot", "total")
TARGET = 0.95
"""The rows per second with asynchronous commits divided by those without any, at least."""
SLOW_BACKEND = "benchmarks.async_commit:SlowChangelogFiles"
_LATENCY = "PENSTOCK_BENCH_LATENCY_MS"
_BANDWIDTH = "PENSTOCK_BENCH_BYTES_PER_SECOND"
"""The environment of the driver reaches Spark's workers and the containers."""


def figures(run: harness.SideRun) -> dict[str, Any]:
    """Rows per second after the warm-up, and the commits that were completed meanwhile."""
    batches = run.result["batches"]
    first = batches[min(WARM_UP_BATCHES, len(batches) - 1) - 1]
    rest = [batch for batch in batches if batch["batch"] > first["batch"]]
    commits = [each for each in commits_of(rest) if each["checkpoint"] != first["commit"]["checkpoint"]]
    return {
        "rows_per_second": sum(batch["rows"] for batch in rest) / (rest[-1]["ended"] - first["ended"]),
        "commits": len(commits),
        **{f"{part}_ms": statistics.fmean(each[part] for each in commits) if commits else None for part in PARTS},
    }


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    os.environ |= {_LATENCY: str(parameters["latency_ms"]), _BANDWIDTH: str(parameters["bytes_per_second"])}
    if parameters["mode"] == "synchronous":
        setattr(run_loop, "CommitSchedule", WaitingCommits)  # noqa: B010 - mypy: a class is no variable
    return jobs.fold(parameters)


class WaitingCommits(CommitSchedule):
    """Commits for each of which the run loop waits as it begins."""

    def _begin(self, request: CommitRequest) -> None:
        super()._begin(request)
        self.wait()


class Line:
    """The one way from a process to the store: calls wait side by side, their bytes one after the other."""

    def __init__(self) -> None:
        self._latency_s = float(os.environ.get(_LATENCY, "0")) / 1000
        self._bytes_per_second = float(os.environ.get(_BANDWIDTH, "inf"))
        self._lock = threading.Lock()
        self._free_at = 0.0

    def call(self, kind: str, size: int) -> None:
        """Wait as long as a call takes that moves so many bytes."""
        wait_until = time.monotonic() + self._latency_s
        if size:
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + size / self._bytes_per_second
                wait_until = self._free_at + self._latency_s
        time.sleep(max(0.0, wait_until - time.monotonic()))


_line = Line()
"""The line that all tasks of this process share."""
C = TypeVar("C", AdminContext, BackendContext)


def _slow(context: C) -> C:
    return replace(context, objects=WatchedStore(context.objects, _line.call))


class SlowChangelogFiles(ChangelogFilesFactory):
    """Changelog files over the line."""

    @property
    def name(self) -> str:
        return SLOW_BACKEND

    def backup_manager(self, context: BackendContext) -> ChangelogFilesBackup:
        return super().backup_manager(_slow(context))

    def restore_manager(self, context: BackendContext) -> ChangelogFilesRestore:
        return super().restore_manager(_slow(context))

    def admin(self, context: AdminContext) -> ChangelogFilesAdmin:
        return super().admin(_slow(context))


@harness.benchmark(
    "async_commit", __doc__, events=4_000_000, batches=80, keys=100_000, commit_ms=1000, latency_ms=200.0,
    megabytes_per_second=20.0, repeat=7, threads=2,
)  # fmt: skip
def main(bench: harness.Bench) -> int:
    options, workload = bench.options, Workload.of(bench.options)
    inputs = write_inputs(workload.tables(), bench.work / "inputs", options.threads)
    for mode in bench.turns(MODES, options.repeat):
        parameters = {
            "mode": mode,
            **workload.parameters(),
            "streams": str(inputs / "streams"),
            "bytes_per_second": options.megabytes_per_second * 2**20,
            "config": {
                "task.commit.ms": 0 if mode == "none" else options.commit_ms,
                "task.commit.max.delay.ms": None,  # the default: a commit is skipped while one is under way
                "stores.backup.factories": SLOW_BACKEND,
            },
        }
        bench.run(mode, "async_commit:fold", parameters, figures=figures, verify="jobs:verify")
    sides = bench.medians("rows_per_second", "commits", "snapshot_ms", "total_ms")
    ratios = harness.against(bench.runs, "rows_per_second", "none")
    columns = {"rows_per_second": ",.0f", "commits": ",.0f", "snapshot_ms": ".1f", "total_ms": ",.0f"}
    harness.show("keyed fold, commits to a slow store", sides, **columns, peak_bytes="MB", verified="")
    bench.target("asynchronous / none", ratios["asynchronous"], at_least=TARGET)
    return bench.finish(sides, ratios=ratios)
