"""The cost of commits in the keyed fold when the store of the backups is slow.

Rows per second are those between the reports of two batches: the last one of the warm-up, and the last of all. The
commits at a job's start and end are outside of that. So is the part of an asynchronous upload that is left when the
last batch ends.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import harness, jobs
from benchmarks.state.slow_backend import NAME, environment
from benchmarks.workload import Workload, write_inputs
from penstock.driver.commit.coordinator import CompletedCommit
from penstock.driver.commit.record import CommitRequest
from penstock.driver.commit.schedule import CommitSchedule
from penstock.driver.loop import run_loop
from penstock.spark import job
from penstock.spark.containers.directory import ContainerDirectory
from penstock.wire.calls import UPLOAD

MODES = ("none", "asynchronous", "synchronous")
WARM_UP_BATCHES = 4
TARGET = 0.95
"""The rows per second with asynchronous commits divided by those without any, at least."""


def figures(run: harness.SideRun) -> dict[str, Any]:
    """Rows per second after the warm-up, and the commits that began meanwhile."""
    batches = run.result["batches"]
    first = batches[min(WARM_UP_BATCHES, len(batches) - 1) - 1]
    rest = [batch for batch in batches if batch["batch"] > first["batch"]]
    started, ended = first["ended"], rest[-1]["ended"]
    commits = [commit for commit in run.result["commits"] if started <= commit["began"] <= ended]
    return {
        "rows_per_second": sum(batch["rows"] for batch in rest) / (ended - started),
        "commits": len(commits),
        "upload_ms": statistics.fmean(commit["upload_ms"] for commit in commits) if commits else None,
        "snapshot_ms": statistics.fmean(commit["snapshot_ms"] for commit in commits) if commits else None,
        "commit_wait_ms": sum(batch["duration_ms"].get("commitWait", 0) for batch in rest),
        "batches": batches,
        "all_commits": run.result["commits"],
    }


def summary(runs: Sequence[harness.Run]) -> dict[str, Any]:
    """A side's rounds: the median rows per second, the means of the rest, the largest memory."""
    own = [run for run in runs if run["commits"]]
    return {
        "rows_per_second": round(harness.median(runs, "rows_per_second")),
        "commits": sum(run["commits"] for run in runs),
        **{name: statistics.fmean(run[name] for run in own) if own else None for name in ("upload_ms", "snapshot_ms")},
        "peak_bytes": max(run["peak_bytes"] for run in runs),
        "verified": not any(map(harness.is_wrong, runs)),
    }


def main(given: Sequence[str] | None = None) -> int:
    default = Workload(events=4_000_000, batches=80)
    options = harness.options(
        "async_commit", __doc__, given, events=default.events, batches=default.batches, keys=default.keys,
        modes=list(MODES), commit_ms=1000, latency_ms=200.0, megabytes_per_second=20.0, repeat=7, threads=2,
    )  # fmt: skip
    workload = Workload.of(options)
    with harness.Bench("async_commit", options) as bench:
        inputs = write_inputs(workload.tables(), bench.work / "inputs", options.threads)
        for mode in bench.turns(options.modes, options.repeat):
            parameters = {
                "mode": mode,
                **workload.parameters(),
                "streams": str(inputs / "streams"),
                "bytes_per_second": options.megabytes_per_second * 2**20,
            }
            verify = "jobs:verify"
            bench.run(mode, "async_commit:fold", parameters, figures=figures, verify=verify)
        sides: Mapping[str, dict[str, Any]] = {mode: summary(runs) for mode, runs in bench.runs.items()}
        ratios = harness.against(bench.runs, "rows_per_second", "none") if "none" in sides else {}
        columns = {"rows_per_second": ",", "commits": "", "snapshot_ms": ".1f", "upload_ms": ",.0f"}
        harness.show("keyed fold, commits to a slow store", sides, **columns, peak_bytes="MB", verified="")
        if "asynchronous" in ratios:
            bench.target("asynchronous / none", ratios["asynchronous"], at_least=TARGET)
        return bench.finish(sides, ratios=ratios)


Marks = dict[str, dict[str, float]]
"""Checkpoint id -> when and how long, in epoch seconds and milliseconds."""


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the fold; its batches, and its commits in their order, those at the start and the end included."""
    os.environ.update(environment(parameters["latency_ms"], parameters["bytes_per_second"]))
    commits = CommitNotes(synchronous=parameters["mode"] == "synchronous")
    commits.watch()
    config = {
        **jobs.configuration(parameters),
        "task.commit.ms": 0 if parameters["mode"] == "none" else parameters["commit_ms"],
        "task.commit.max.delay.ms": None,  # the default: a commit is skipped while one is under way
        "stores.backup.factories": NAME,
    }
    batches = jobs.follow(jobs.application().run(config, until="latest"))
    return {"batches": batches, "commits": commits.listed()}


class CommitNotes:
    """Takes note of every commit of this process. With `synchronous` the run loop waits for each one as it begins."""

    def __init__(self, *, synchronous: bool) -> None:
        self._synchronous = synchronous
        self._lock = threading.Lock()
        self._marks: Marks = {}

    def watch(self) -> None:
        """From here on the jobs of this process have commits, and a directory, that are watched."""
        found, synchronous = self, self._synchronous

        class WatchedDirectory(ContainerDirectory):
            def ask(self, call: Any, epoch: int, request: Any, **options: Any) -> list[Any]:
                began = time.monotonic()
                answers: list[Any] = super().ask(call, epoch, request, **options)
                if call is UPLOAD:
                    found.note(request.checkpoint_id, upload_ms=(time.monotonic() - began) * 1000)
                return answers

        class WatchedCommits(CommitSchedule):
            def _begin(self, request: CommitRequest) -> None:
                began = time.time()
                super()._begin(request)
                flight = self._coordinator.in_flight
                if flight is not None:
                    found.note(str(flight.checkpoint_id), began=began, snapshot_ms=flight.snapshot_ms)
                if synchronous:
                    self.wait()

            def _note(self, done: CompletedCommit | None) -> None:
                super()._note(done)
                if done is not None:
                    found.note(str(done.record.id), completed=time.time())

        setattr(job, "ContainerDirectory", WatchedDirectory)  # noqa: B010 - mypy: a class is no variable
        setattr(run_loop, "CommitSchedule", WatchedCommits)  # noqa: B010

    def note(self, checkpoint_id: str, **marks: float) -> None:
        """Called from the run loop's and the commit's thread."""
        with self._lock:
            self._marks.setdefault(checkpoint_id, {}).update(marks)

    def listed(self) -> list[dict[str, float]]:
        """The complete ones, by the time they began."""
        with self._lock:
            complete = [dict(marks) for marks in self._marks.values() if "completed" in marks]
        return sorted(complete, key=lambda marks: marks["began"])


if __name__ == "__main__":
    sys.exit(main())
