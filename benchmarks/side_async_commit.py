"""The keyed fold with commits to a slow store: what runs in the side's own process."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import side_penstock
from benchmarks.slow_backend import NAME, environment
from penstock.driver.commit.commit import CompletedCommit
from penstock.driver.commit.record import CommitRequest
from penstock.driver.loop import assembly
from penstock.driver.loop.commits import Commits
from penstock.spark.containers.directory import ContainerDirectory
from penstock.spark.job import launch
from penstock.wire.calls import UPLOAD

Marks = dict[str, dict[str, float]]
"""Checkpoint id -> when and how long, in epoch seconds and milliseconds."""


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the fold; its batches, and its commits in their order, those at the start and the end included."""
    os.environ.update(environment(parameters["latency_ms"], parameters["bytes_per_second"]))
    commits = CommitNotes(synchronous=parameters["mode"] == "synchronous")
    commits.watch()
    config = {
        **side_penstock.configuration(
            Path(parameters["streams"]), Path(parameters["work"]), parameters["batch_messages"], parameters["threads"]
        ),
        "task.commit.ms": 0 if parameters["mode"] == "none" else parameters["commit_ms"],
        "task.commit.max.delay.ms": None,  # the default: a commit is skipped while one is under way
        "stores.backup.factories": NAME,
    }
    job = side_penstock.application().run(config, until="latest")
    batches = side_penstock.follow(job)
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

        class WatchedCommits(Commits):
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

        setattr(launch, "ContainerDirectory", WatchedDirectory)  # noqa: B010 - mypy: a class is no variable
        setattr(assembly, "Commits", WatchedCommits)  # noqa: B010

    def note(self, checkpoint_id: str, **marks: float) -> None:
        """Called from the run loop's and the commit's thread."""
        with self._lock:
            self._marks.setdefault(checkpoint_id, {}).update(marks)

    def listed(self) -> list[dict[str, float]]:
        """The complete ones, by the time they began."""
        with self._lock:
            complete = [dict(marks) for marks in self._marks.values() if "completed" in marks]
        return sorted(complete, key=lambda marks: marks["began"])
