"""The handle of a job, with a body in place of a run loop."""

from __future__ import annotations

import pytest

from penstock.driver.context import StopRequest
from penstock.driver.handle.job import Job
from penstock.driver.show.progress import ProgressBoard


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
