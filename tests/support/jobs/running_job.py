"""A job in this process whose uploads wait at gates, and what its run loop waits for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

from penstock.checkpoint.record import CheckpointRecord
from penstock.driver.commit.coordinator import CommitCoordinator
from penstock.driver.job import Job
from tests.support.apps import job_app
from tests.support.faults.plan import Fault
from tests.support.jobs.fault_jobs import FaultHome
from tests.support.jobs.home import wait_until

TASKS = 2
ASKED = {"task.commit.ms": 0}
"""Only the application asks for commits."""
EVERY_BATCH = {"task.commit.ms": 1}
NO_DELAY = {"task.commit.max.delay.ms": 0}


class Running:
    """A job, a gate for its uploads, and what its run loop waits for."""

    def __init__(self, spark: SparkSession, home: FaultHome, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.faults = home.faults
        self.job: Job | None = None
        self.looks = 0
        """Counts the looks of the run loop while it waited for the commit in flight."""
        self.abandoned = threading.Event()
        """The run loop has given up on the commit in flight: whatever its uploads do counts for nothing."""
        self._spark = spark
        self._waits = threading.local()
        self._seed = 0
        self.published = 0
        wait, poll, abandon = CommitCoordinator.wait, CommitCoordinator.poll, CommitCoordinator.abandon

        def counting_wait(coordinator: CommitCoordinator, *args: Any) -> Any:
            self._waits.inside = True
            try:
                return wait(coordinator, *args)
            finally:
                self._waits.inside = False

        def counting_poll(coordinator: CommitCoordinator) -> Any:
            if getattr(self._waits, "inside", False) and coordinator.in_flight is not None:
                self.looks += 1
            return poll(coordinator)

        def noted_abandon(coordinator: CommitCoordinator) -> None:
            abandon(coordinator)
            self.abandoned.set()

        monkeypatch.setattr(CommitCoordinator, "abandon", noted_abandon)
        monkeypatch.setattr(CommitCoordinator, "wait", counting_wait)
        monkeypatch.setattr(CommitCoordinator, "poll", counting_poll)

    def start(self, *configs: Mapping[str, object], until: Literal["latest"] | None = None) -> Job:
        """Start the job and wait until its start checkpoint is complete."""
        merged = {key: value for config in configs for key, value in config.items()}
        self.job = job_app.totals_app().run({**self.home.config, **merged}, spark=self._spark, until=until)
        if until is None:
            wait_until(lambda: self.failed or (self.job and self.job.phase == "running"), "the start checkpoint")
            assert not self.failed, self.failed
            self.looks = 0
        return self.job

    @property
    def failed(self) -> BaseException | None:
        assert self.job is not None
        return self.job.exception

    @property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        return self.home.checkpoints if (self.home.folder / "jobs" / "totals-1" / "checkpoints").exists() else ()

    @property
    def count(self) -> int:
        return len(self.checkpoints)

    def hold(self, point: str = "upload.begin", gate: str = "gate") -> None:
        """From now on everybody who comes to the point waits there."""
        self.faults.plan(Fault(f"hold-{gate}", point, "block", times=1000, gate=gate))

    def await_held(self, gate: str = "gate") -> None:
        """Wait until somebody does."""
        wait_until(lambda: self.failed or self.faults.is_reached(f"hold-{gate}"), "an upload at the gate")
        assert not self.failed, self.failed

    def publish(self, number: int = 40, *, commit: bool = False) -> None:
        """More input; the last event of it may ask for a commit."""
        self._seed += 1
        self.home.publish(number, seed=self._seed)
        if commit:
            self.home.append(0, [{"key": "k1", "n": 1, "do": "commit"}])
        self.published += number + commit

    def await_output(self) -> None:
        """Wait until all input was processed, and every batch has ended."""
        wait_until(lambda: self.failed or self.outputs >= self.published, "the output of the input so far")
        assert not self.failed, self.failed

    def await_batches(self) -> None:
        """Wait until all input was processed, and the last batch reported."""
        self.await_output()
        job = self.job
        assert job is not None
        wait_until(
            lambda: self.failed or (job.progress and job.progress.total_input_rows >= self.published), "the progress"
        )

    def await_looks(self, more: int = 3) -> None:
        """Wait until the run loop is seen to wait for the commit in flight."""
        seen = self.looks
        wait_until(lambda: self.failed or self.looks >= seen + more, "processing waits")
        assert not self.failed, self.failed

    @property
    def outputs(self) -> int:
        return self.home.length("totals")

    def finish(self) -> None:
        """Stop, and verify every checkpoint."""
        assert self.job is not None
        self.faults.open()
        self.job.stop()
        self.home.verify()


def offsets(record: CheckpointRecord) -> int:
    """The number of messages that a checkpoint is behind."""
    return sum(offset for own in record.next_offsets.values() for offset in own.values())
