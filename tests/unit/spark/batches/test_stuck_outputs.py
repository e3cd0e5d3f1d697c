"""An append that does not return, in the worker that writes the outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from threading import Event
from typing import Any

import pytest

from penstock.errors import PenstockTimeoutError
from penstock.runtime.messages import incoming
from penstock.runtime.messages.packet import Packet, from_batch
from penstock.runtime.stage.sink import OuterStages, OutputWriters, SinkAttempts
from penstock.spark.workers.worker import alive_writes
from penstock.testing.in_process import InProcessDriver
from tests.support.world.waiting_job import Waiting
from tests.support.world.world import ends, fixture_of

job = fixture_of(Waiting)


@pytest.fixture
def kept() -> Iterator[OuterStages]:
    """The outer stages of a worker."""
    job: Any = None
    with closing(OuterStages(job, job, {})) as stages:
        yield stages


def writes_in_workers(driver: InProcessDriver, kept: OuterStages, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's last stage runs as it does on Spark."""
    plainly = SinkAttempts.write

    def write(attempts: SinkAttempts, writers: OutputWriters) -> Iterator[Packet]:
        monkeypatch.setattr(kept, "writers", lambda _: writers)
        monkeypatch.setattr(SinkAttempts, "write", plainly)
        for batch in alive_writes(kept, attempts, driver.job.writer(1)):
            yield from from_batch(batch)

    monkeypatch.setattr(SinkAttempts, "write", write)
    monkeypatch.setattr(incoming, "IDLE_SECONDS", 0.01)


def test_it_is_named_and_the_run_fails(job: Waiting, kept: OuterStages, monkeypatch: pytest.MonkeyPatch) -> None:
    job.config["task.callback.drain.timeout.ms"] = 1000  # the other steps of the drain must keep it
    driver, released = job.waits(), Event()
    writes_in_workers(driver, kept, monkeypatch)
    writer = job.systems["m"].writer

    def stuck(identity: Any) -> Any:
        released.wait()
        return writer(identity)

    monkeypatch.setattr(job.systems["m"], "writer", stuck)
    job.ask_to_drain(driver)
    left: list[bool] = []
    monkeypatch.setattr(kept, "leave_writers", lambda: left.append(True))
    try:
        with pytest.raises(
            PenstockTimeoutError, match=r"the append to the output `m\.out` has taken [\d,]+ ms; task\.callback"
        ):
            ends(driver)
    finally:
        released.set()
    assert left, "a writer that is stuck could not be closed"
    assert job.checkpoints[-1].ended is None


def test_one_that_is_in_time_is_reported_once(job: Waiting, kept: OuterStages, monkeypatch: pytest.MonkeyPatch) -> None:
    job.config["task.callback.drain.timeout.ms"] = 600_000
    driver = job.waits()
    writes_in_workers(driver, kept, monkeypatch)
    job.ask_to_drain(driver)
    ends(driver)
    assert {str(each) for each in job.came() if each[0] != "drained"} == job.results()
    assert job.checkpoints[-1].ended == "drained"
