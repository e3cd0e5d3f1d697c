"""Commits beside the batches, in this process on one Spark session: what goes on, what waits, and what ends a run.

Uploads are held at gates, so that nothing here depends on how fast anything is.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from penstock.checkpoint.record import CheckpointRecord
from penstock.driver.commit import CommitCoordinator
from penstock.engine.job import Job
from penstock.engine.session import create_session
from penstock.errors import PenstockTimeoutError
from tests.support import job_app
from tests.support.fault_jobs import FaultHome, executor_env
from tests.support.faults import Fault
from tests.support.jobs import DEADLINE_S, wait_until

pytestmark = pytest.mark.spark

TASKS = 2
ASKED = {"task.commit.ms": 0}
"""Only the application asks for commits."""
EVERY_BATCH = {"task.commit.ms": 1}
NO_DELAY = {"task.commit.max.delay.ms": 0}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    cloudpickle.register_pickle_by_value(job_app)
    session = create_session("tests", {"spark.master": "local[2]", **executor_env()})
    yield session
    session.stop()


class Running:
    """A job, a gate for its uploads, and what its run loop waits for."""

    def __init__(self, spark: SparkSession, home: FaultHome, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.faults = home.faults
        self.job: Job | None = None
        self.looks = 0
        """How often the run loop looked while it waited for the commit in flight."""
        self.abandoned = threading.Event()
        """The run loop has given up on the commit in flight: whatever its uploads do counts for nothing."""
        self._spark = spark
        self._waits = threading.local()
        self._seed = 0
        self._published = 0
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
        """What ended the job, if it failed."""
        assert self.job is not None
        return self.job.exception

    @property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        return self.home.checkpoints if (self.home.folder / "jobs" / "totals-1" / "checkpoints").exists() else ()

    @property
    def count(self) -> int:
        """How many checkpoints there are."""
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
        self._published += number + commit

    def await_output(self) -> None:
        """Wait until all input was processed, and every batch has ended."""
        wait_until(lambda: self.failed or self.outputs >= self._published, "the output of the input so far")
        assert not self.failed, self.failed

    def await_batches(self) -> None:
        """Wait until all input was processed, and the last batch reported."""
        self.await_output()
        job = self.job
        assert job is not None
        wait_until(
            lambda: self.failed or (job.progress and job.progress.total_input_rows >= self._published), "the progress"
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


@pytest.fixture
def home(tmp_path: Path) -> FaultHome:
    return FaultHome(tmp_path, config={"task.commit.ms": 300_000, "task.shutdown.ms": 5000})


@pytest.fixture
def running(spark: SparkSession, home: FaultHome, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    running = Running(spark, home, monkeypatch)
    yield running
    running.faults.open()
    if running.job is not None and running.job.is_active:
        running.job.stop(wait=False)
        running.job.stop(wait=False)
        wait_until(lambda: not running.job or not running.job.is_active, "the end of the job")


def offsets(record: CheckpointRecord) -> int:
    """How many messages a checkpoint is behind."""
    return sum(offset for own in record.next_offsets.values() for offset in own.values())


# What goes on, and what waits.


def test_batches_go_on_while_an_upload_lasts_and_commits_that_are_due_are_skipped(running: Running) -> None:
    running.start(EVERY_BATCH)
    running.hold()
    running.publish()
    running.await_held()
    before = running.count
    for _ in range(3):
        running.publish()
        running.await_batches()
    assert running.count == before
    assert running.looks == 0, "nothing waited"
    assert len(running.faults.trace("snapshot.begin")) == 2 * TASKS, "the start's and the one in flight: others wait"
    assert running.job is not None
    assert running.job.last_checkpoint == str(running.checkpoints[-1].id)
    running.faults.open()
    wait_until(lambda: offsets(running.checkpoints[-1]) == running._published, "the commit of all the rest")
    held, rest = running.checkpoints[before : before + 2]
    assert offsets(held) < offsets(rest) == running._published
    assert len(running.faults.trace("snapshot.begin")) == 3 * TASKS, "what was skipped is in one commit"
    running.publish()
    running.await_batches()
    progress = running.job.last_progress
    assert progress is not None
    assert progress["commitMs"].keys() == {"snapshot", "total"}
    assert 0 <= progress["commitMs"]["snapshot"] <= progress["commitMs"]["total"]
    running.finish()


def test_after_max_delay_processing_waits_for_the_commit_in_flight(running: Running) -> None:
    running.start(EVERY_BATCH, NO_DELAY)
    running.hold()
    running.publish()
    running.await_held()
    running.publish()  # as one batch or as two, of which the second has to wait
    running.await_looks()
    waiting_at = running.outputs
    running.publish()
    running.await_looks()
    assert running.outputs == waiting_at, "no batch while processing waits"
    running.faults.open()
    running.await_batches()
    assert running.job is not None
    progress = running.job.last_progress
    assert progress is not None
    assert progress["durationMs"].keys() >= {"commitWait", "walCommit"}
    running.finish()


def test_pending_bytes_make_processing_wait_before_max_delay(running: Running) -> None:
    running.start(EVERY_BATCH, {"task.commit.max.pending.bytes": 1})
    running.hold()
    running.publish()
    running.await_held()
    wait_until(lambda: running.publish(4) or running.looks > 0, "pending bytes are told and processing waits")  # type: ignore[func-returns-value]
    running.faults.open()
    running.await_batches()
    running.finish()


def test_a_commit_that_is_asked_for_does_not_wait_for_its_time(running: Running) -> None:
    """Also if one is in flight: it is made once that one is done, though nothing more comes."""
    running.start(ASKED)
    running.publish()
    running.await_batches()
    assert running.count == 1, "nobody asked"
    running.publish(commit=True)
    wait_until(lambda: running.count == 2, "the commit that was asked for")
    running.hold()
    running.publish(commit=True)
    running.await_held()
    running.publish(commit=True)
    running.await_batches()
    assert running.count == 2
    running.faults.open()
    wait_until(lambda: running.count == 4, "the commit in flight, and the one that was asked for meanwhile")
    assert offsets(running.checkpoints[-1]) == running._published
    running.finish()
    assert running.count == 5
    assert running.checkpoints[-1].ended == "stopped"


# The end of a run.


def test_the_last_commit_is_awaited_at_a_stop(running: Running) -> None:
    job = running.start(ASKED)
    running.publish()
    running.await_batches()
    running.hold()
    job.stop(wait=False)
    running.await_held()
    running.await_looks()
    assert (job.phase, job.is_active) == ("stopping", True)
    running.faults.open()
    assert job.await_termination(DEADLINE_S)
    last = running.checkpoints[-1]
    assert (last.ended, offsets(last)) == ("stopped", running._published)
    running.home.verify()


@pytest.mark.parametrize("moment", ["the last commit", "the one before", "a batch that waits"])
def test_a_second_stop_while_a_commit_is_awaited_ends_the_run_at_once(running: Running, moment: str) -> None:
    """As after a crash: what is in flight is dropped, and it is no failure."""
    job = running.start(EVERY_BATCH if moment == "a batch that waits" else ASKED, NO_DELAY)
    running.hold()
    running.publish(commit=moment != "the last commit")
    if moment == "a batch that waits":
        running.await_held()
        running.publish()
        running.await_looks()
    else:
        running.await_output()
    if moment == "the one before":
        running.await_held()
    job.stop(wait=False)
    running.await_looks()
    before = running.count
    job.stop(wait=False)
    assert running.abandoned.wait(DEADLINE_S)
    running.faults.open()  # its uploads come to a good end, too late
    assert job.await_termination(DEADLINE_S)
    assert running.count == before
    assert running.checkpoints[-1].ended is None
    running.start(until="latest").await_termination(DEADLINE_S)
    running.home.verify()


def test_a_commit_that_takes_too_long_ends_the_run_and_the_next_one_goes_on(running: Running) -> None:
    job = running.start(EVERY_BATCH, NO_DELAY, {"task.commit.timeout.ms": 1500, "job.retry.max": 1})
    running.hold()
    running.publish()
    running.await_held()
    last = running.checkpoints[-1]
    running.publish()
    assert running.abandoned.wait(DEADLINE_S)
    running.faults.open()
    with pytest.raises(PenstockTimeoutError, match=r"task\.commit\.timeout\.ms"):
        job.await_termination(DEADLINE_S)
    assert running.checkpoints[-1] == last
    assert len(running.home.log.claims) == 1, "it is no lost container"
    running.start(until="latest").await_termination(DEADLINE_S)
    assert running.checkpoints[1].parent == last.id, "it went on from the last complete one"
    running.home.verify()


def test_an_upload_that_fails_for_good_ends_an_idle_run(running: Running) -> None:
    job = running.start(ASKED)
    running.faults.plan(Fault("broken", "upload.end", "fail", task=1))
    running.publish(commit=True)
    with pytest.raises(ps.PenstockError, match="injected: `broken` is final"):
        job.await_termination(DEADLINE_S)
    assert job.phase == "failed"
    assert running.count == 1
    running.start(until="latest").await_termination(DEADLINE_S)
    running.home.verify()


def test_an_upload_that_fails_for_good_ends_the_run_in_the_middle_of_a_batch(running: Running, tmp_path: Path) -> None:
    """Not a commit later, and not a batch later: what the batch would have written is not there."""
    job = running.start(ASKED)
    running.faults.plan(
        Fault("held", "upload.begin", "block", times=TASKS), Fault("broken", "upload.end", "fail", task=0)
    )
    running.publish(commit=True)
    running.await_batches()
    before = running.outputs
    gate = tmp_path / "slow"
    running.home.append(0, [{"key": "k1", "n": 1, "do": "slow", "gate": str(gate)}])
    wait_until(gate.exists, "the batch is in the user's code")
    running.faults.open()
    with pytest.raises(ps.PenstockError, match="injected: `broken` is final"):
        job.await_termination(DEADLINE_S)
    assert running.outputs == before
    running.start(until="latest").await_termination(DEADLINE_S)
    running.home.verify()


# Failures that may pass.


def test_an_upload_is_tried_again(running: Running) -> None:
    running.start(EVERY_BATCH)
    running.faults.plan(
        Fault("nothing happened", "upload.begin", "retryable", times=2),
        Fault("half", "upload.middle", "retryable"),
        Fault("lost reply", "upload.end", "retryable", times=2),
    )
    running.publish()
    wait_until(lambda: running.failed or offsets(running.checkpoints[-1]) == running._published, "the commit")
    assert running.faults.left() == []
    running.finish()
    assert len(running.home.log.claims) == 1


@pytest.mark.parametrize("point", ["snapshot.begin", "snapshot.end"])
def test_a_snapshot_that_fails_is_never_gone_on_from(running: Running, point: str) -> None:
    """Some changes were taken and are in no commit: whatever comes next must not be without them."""
    job = running.start(EVERY_BATCH)
    running.publish()
    running.await_batches()
    running.faults.plan(Fault("snapshot", point, "retryable", task=1))
    running.publish()
    wait_until(lambda: not job.is_active or not running.faults.left(), "the failure")
    running.publish()
    wait_until(
        lambda: not job.is_active or offsets(running.checkpoints[-1]) == running._published, "the end or a commit"
    )
    if job.is_active:
        running.finish()
    else:
        assert "injected" in str(job.exception)
        running.start(until="latest").await_termination(DEADLINE_S)
    running.home.verify()


def test_a_clean_up_that_fails_costs_nothing(running: Running) -> None:
    running.start(EVERY_BATCH)
    running.faults.plan(
        Fault("once", "clean_up.begin", "retryable"),
        Fault("broken", "clean_up.end", "fail", times=2, skip=1),
    )
    for _ in range(3):
        running.publish()
        wait_until(lambda: running.failed or offsets(running.checkpoints[-1]) == running._published, "the commit")
    wait_until(lambda: not running.faults.left(), "the failures")
    running.finish()
    assert len(running.home.log.claims) == 1


def test_one_manager_is_called_by_one_thread_at_a_time(running: Running) -> None:
    """The next snapshot of a task does not come before the clean-up of the commit before has ended."""
    running.start(EVERY_BATCH)
    running.hold("clean_up.begin")
    running.publish()
    running.await_held()
    snapshots = len(running.faults.trace("snapshot.begin"))
    for _ in range(2):
        running.publish()
        running.await_batches()
    assert len(running.faults.trace("snapshot.begin")) == snapshots
    running.finish()


def test_a_container_that_is_lost_while_processing_waits_for_another_is_replaced(running: Running) -> None:
    """One container's upload stands at the gate: that the other one is gone is noticed all the same."""
    running.start(EVERY_BATCH, NO_DELAY, {"task.shutdown.ms": 1000})
    running.publish()
    wait_until(lambda: offsets(running.checkpoints[-1]) == running._published, "a commit")
    running.faults.plan(Fault("hold-gate", "upload.begin", "block", task=0))
    running.publish()
    running.await_held()
    running.publish()
    running.await_looks()
    pids = {each["task"]: int(each["pid"]) for each in running.faults.trace("upload.begin")}
    assert pids[0] != pids[1], "two containers"
    os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: running.failed or len(running.home.log.claims) > 1, "a new epoch")
    assert not running.failed, running.failed
    running.faults.open()
    running.await_batches()
    running.finish()


# An End that waits for copies.


BRIEF_HOLDS = {"stores.backup.factories": "tests.support.fault_backend:BriefHolds"}


def await_refused_end(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    """One store's copy stands at the gate, in one of two containers; the next batch's End is asked for again."""
    running.publish()
    wait_until(lambda: running.failed or offsets(running.checkpoints[-1]) == running._published, "a commit")
    running.faults.plan(Fault("hold-gate", "copy.begin", "block"))
    running.publish()
    running.await_held()
    running.publish()
    wait_until(lambda: running.failed or len(refusals(caplog)) >= 3, "an End that is refused more than once")
    assert not running.failed, running.failed


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the driver logged each time a container asked it to try its End again."""
    found = (record.getMessage() for record in caplog.records)
    return [text for text in found if re.search(r"batch \d+ waits for its end: the stores of task \d are", text)]


def test_an_end_is_asked_for_again_until_the_stores_are_copied(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "penstock.engine"):
        job = running.start(EVERY_BATCH, BRIEF_HOLDS)
        await_refused_end(running, caplog)
        ended = job.last_progress
        assert ended is not None
        seen = len(refusals(caplog))
        wait_until(lambda: running.failed or len(refusals(caplog)) >= seen + 3, "it goes on asking")
        assert job.last_progress == ended, "the batch has not ended, though the other container has applied it"
        running.faults.open()
        running.await_batches()
    assert len(set(refusals(caplog))) == 1, "only one task of one batch had to wait"
    running.finish()
    assert len(running.home.log.claims) == 1, "it is no lost container"


def test_a_container_that_is_lost_while_another_one_copies_is_replaced(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "penstock.engine"):
        running.start(EVERY_BATCH, BRIEF_HOLDS, {"task.shutdown.ms": 1000})
        await_refused_end(running, caplog)
        (holding,) = {task for text in set(refusals(caplog)) for task in re.findall(r"task (\d)", text)}
        pids = {str(each["task"]): int(each["pid"]) for each in running.faults.trace("snapshot.begin")}
        os.kill(next(pid for task, pid in pids.items() if task != holding), signal.SIGKILL)
        wait_until(lambda: running.failed or len(running.home.log.claims) > 1, "a new epoch")
        assert not running.failed, running.failed
        running.faults.open()
        running.await_batches()
    running.finish()


def test_an_end_that_waits_too_long_ends_the_run_and_the_next_one_continues(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "penstock.engine"):
        job = running.start(EVERY_BATCH, BRIEF_HOLDS, {"task.commit.timeout.ms": 8000, "task.shutdown.ms": 1000})
        await_refused_end(running, caplog)
        last = running.checkpoints[-1]
        with pytest.raises(PenstockTimeoutError, match=r"batch \d+ could not end within task\.commit\.timeout\.ms"):
            job.await_termination(DEADLINE_S)
    assert running.checkpoints[-1] == last
    assert len(running.home.log.claims) == 1, "it is no lost container"
    running.faults.open()
    running.start(BRIEF_HOLDS, until="latest").await_termination(DEADLINE_S)
    running.home.verify()


# What the log of the driver tells.


def test_a_restore_from_the_second_backend_is_told_with_what_is_missing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = FaultHome(tmp_path, ("changelog-files", "SecondFiles"))
    running = Running(spark, home, monkeypatch)
    running.publish()
    running.start(until="latest").await_termination(DEADLINE_S)
    data = home.folder / "jobs" / "totals.files-1" / "state" / "totals"
    missing = next(iter(sorted(data.glob("*/*.delta"))))
    missing.unlink()
    for snapshot in data.glob(f"{missing.parent.name}/*.zip"):  # with one the delta is not needed
        snapshot.unlink()
    running.publish()
    with caplog.at_level(logging.ERROR, "penstock"):
        running.start(until="latest").await_termination(DEADLINE_S)
    (told,) = (record.getMessage() for record in caplog.records if "could not be restored" in record.getMessage())
    assert "store `totals` of task" in told
    assert f"{missing.relative_to(home.folder / 'jobs')}` is missing" in told
    assert "SecondFiles was used instead" in told
    last = home.checkpoints[-1]
    by_key, _ = home.expected(last)
    for backend in home.loaded().store("totals").backup_factories:
        assert home.stored_by(backend, "totals", last) == by_key
    home.verify_ended()
