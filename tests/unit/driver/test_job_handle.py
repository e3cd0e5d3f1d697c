"""The handle of a job, with a body in place of a run loop; the view of a running job, and its INFO log."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

import penstock as ps
from penstock.drain.wing import DrainProgress
from penstock.driver.job import Job
from penstock.driver.part import StopRequest
from penstock.driver.program import PROGRESS_LOGGER, RunObserver, log_progress
from penstock.driver.show.progress import JobProgress, ProgressBoard, SourceProgress
from penstock.testing import SettableClock, TestRunner


def job_until_stopped(error: Exception | None = None) -> tuple[Job, StopRequest]:
    stop = StopRequest()
    job = Job("shop-1", "r", ProgressBoard(), stop)

    def body() -> None:
        assert stop.graceful.wait(60)
        if error is not None:
            raise error

    job.start(body, lambda: None)
    return job, stop


def test_a_block_ends_with_a_graceful_stop() -> None:
    handle, stop = job_until_stopped()
    with handle as job:
        assert job.is_active
    assert not handle.is_active
    assert not stop.immediate.is_set()


def test_an_error_of_the_job_comes_out_of_the_block() -> None:
    with pytest.raises(ValueError, match="of the job"), job_until_stopped(ValueError("of the job"))[0]:
        pass


def test_an_error_of_the_block_is_not_hidden_by_one_of_the_job(caplog: pytest.LogCaptureFixture) -> None:
    handle, stop = job_until_stopped(ValueError("of the job"))
    with pytest.raises(KeyError), handle:
        raise KeyError("of the block")
    assert not handle.is_active, "the block waits for the last commit"
    assert not stop.immediate.is_set()
    assert "of the job" in caplog.text


def progress(batch: int, rows: int, latest: int) -> JobProgress:
    source = SourceProgress("local.in", {"0": 0}, {"0": rows}, {"0": latest}, rows, lag=latest - rows)
    return JobProgress(
        id="u", run_id="r", name="shop-1", timestamp="", batch_id=batch, num_input_rows=rows, num_output_rows=0,
        dead_letters=0, processed_rows_per_second=100.0, duration_ms={}, sources=(source,), total_input_rows=rows,
        last_checkpoint=None, container_bytes=0,
    )  # fmt: skip


def test_a_run_without_an_end_shows_its_lag() -> None:
    board = ProgressBoard()
    board.update(phase="running", last=progress(3, 30, latest=1230))
    view = RunObserver(Job("shop-1", "r", board, StopRequest())).look()
    assert str(view) == "running, 30 messages (1,200 behind), 100/s, batch 3"
    board.update(last=replace(progress(3, 30, latest=1230), total_dead_letters=2))
    view = RunObserver(Job("shop-1", "r", board, StopRequest())).look()
    assert str(view) == "running, 30 messages (1,200 behind), 2 dead letters, 100/s, batch 3"


def test_the_rate_is_that_of_the_last_seconds_whatever_the_batches_were() -> None:
    """A message every 10 ms, in batches of 1 s that an empty one follows; then nothing; then batches of 30 s."""
    clock, board = SettableClock(), ProgressBoard()
    board.update(phase="running")
    observer = RunObserver(Job("shop-1", "r", board, StopRequest()), clock.monotonic)
    assert observer.look().rate is None
    read = 0
    for batch in range(1, 30):
        with board.batch(batch, 100):
            clock.advance(1)
            assert batch < 3 or observer.look().rate == pytest.approx(100)
        read += 100
        empty = replace(progress(batch, read, read), num_input_rows=0, processed_rows_per_second=0.0)
        board.update(last=empty)
        assert batch == 1 or observer.look().rate == pytest.approx(100)
    for _ in range(12):
        clock.advance(1)
        idle = observer.look().rate
    assert idle == 0
    for batch in range(30, 33):
        with board.batch(batch, 600):
            for _ in range(30):
                clock.advance(1)
                slow = observer.look().rate
        read += 600
        board.update(last=progress(batch, read, read))
        assert observer.look().rate == pytest.approx(20, rel=0.3)
    assert slow == pytest.approx(20)


def test_a_long_batch_after_an_idle_time_has_no_rate_yet() -> None:
    clock, board = SettableClock(), ProgressBoard()
    board.update(phase="running", last=progress(1, 100, 100))
    observer = RunObserver(Job("shop-1", "r", board, StopRequest()), clock.monotonic)
    for _ in range(20):
        clock.advance(1)
        idle = str(observer.look())
    assert "0/s" in idle
    with board.batch(2, 5_000):
        for _ in range(40):
            clock.advance(1)
            assert "/s" not in str(observer.look())
    board.update(last=progress(2, 5_100, 5_100))
    assert observer.look().rate == pytest.approx(5_000 / 40, rel=0.3)


def test_a_batch_that_takes_long_shows_how_far_it_is() -> None:
    clock = SettableClock()
    done = {1: 4000}
    board = ProgressBoard(processed=lambda _: done)
    board.update(phase="running", running=(4, 10_000))
    job = Job("shop-1", "r", board, StopRequest())
    observer = RunObserver(job, clock.monotonic)
    assert "batch" not in str(observer.look())
    clock.advance(5)
    assert "batch 4 of 10,000 messages, 4,000 processed," in f"{observer.look()},"
    done[2] = 3500
    assert "of 10,000 messages, 4,000 processed in stage 1, 3,500 processed in stage 2" in str(observer.look())
    board.update(running=None)
    assert job.running_batch is None


def test_a_drain_that_takes_long_shows_what_it_waits_for() -> None:
    clock = SettableClock()
    board = ProgressBoard()
    board.update(phase="draining", running=(4, 0))
    board.tell("drain", DrainProgress("r", waits_for="the output `local.out` to be written"))
    observer = RunObserver(Job("shop-1", "r", board, StopRequest()), clock.monotonic)
    assert str(observer.look()).startswith("draining, ")
    clock.advance(5)
    assert str(observer.look()).startswith("draining (waits for the output `local.out` to be written), ")


def test_a_script_logs_starts_batches_and_checkpoints(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, PROGRESS_LOGGER)
    board, end = ProgressBoard(), threading.Event()
    job = Job("shop-1", "r7", board, StopRequest(), "/logs/shop-1")

    def body() -> None:
        end.wait()

    job.start(body, lambda: None)
    log_progress(job)
    board.update(phase="running", last=progress(3, 30, latest=30), last_checkpoint="5-1")
    end.set()
    job.await_termination(60)
    for thread in threading.enumerate():
        if thread.name == "progress-shop-1":
            thread.join(60)
    assert "job shop-1 started, run r7; the output of its tasks is in /logs/shop-1" in caplog.text
    assert "ended, 30 messages, 100/s, batch 3, checkpoint 5-1" in caplog.text


def test_jobs_applications_streams_and_stores_say_what_they_are() -> None:
    board = ProgressBoard()
    board.update(phase="running", last=progress(3, 30, latest=30), last_checkpoint="5-1")
    assert repr(Job("shop-1", "r7", board, StopRequest())) == "<Job shop-1: running, batch 3, checkpoint 5-1, run r7>"

    seen: list[str] = []

    class Look(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            seen.append(repr(context.store("totals")))

        def process(self, *_: object) -> None: ...

    app = ps.StreamApplication("shop")
    assert repr(app) == "<StreamApplication shop: empty>"
    app.store("totals")
    app.output("m.out")
    stream = app.input("m.in")
    stream.process(Look, stores=["totals"])
    assert repr(app) == "<StreamApplication shop: inputs m.in; stores totals; outputs m.out>"
    assert repr(stream) == "<MessageStream from `input-1` of application shop>"
    TestRunner(app, partitions=1).input("m.in", [1]).run()
    assert seen == ["<store totals: string keys, json values>"]
