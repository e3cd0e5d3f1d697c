"""An append that does not return, in the worker that writes the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from penstock.errors import PenstockTimeoutError
from penstock.runtime.messages import streams
from penstock.runtime.messages.packet import Packet, from_batch
from penstock.runtime.stage.kept_streams import KeptStreams
from penstock.runtime.stage.sink import OutputWriters, SinkAttempt
from penstock.runtime.steps import StepLimit, StepLimits
from penstock.spark.workers import worker
from penstock.spark.workers.worker import SinkStage
from penstock.testing import in_process
from penstock.testing.in_process import InProcessDriver
from penstock.wire.package import PackedPackage, WorkerPackage
from tests.support.world.waiting_job import Waiting, to_the_end


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Waiting]:
    job = Waiting(tmp_path)
    yield job
    job.close()


def writes_in_workers(driver: InProcessDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's last stage runs as it does on Spark."""
    package = WorkerPackage(driver.job.topology, driver.job.settings, driver.job.streams.systems)
    stage = SinkStage(PackedPackage("", b""), (), None, driver.job.writer(1))  # type: ignore[arg-type]

    def write_outputs(attempts: Sequence[SinkAttempt], writers: OutputWriters, limit: StepLimit) -> Iterator[Packet]:
        monkeypatch.setattr(StepLimits, "of_outputs", lambda _, batch: limit)
        for batch in stage._written(package, dict(enumerate(attempts)), writers):
            yield from from_batch(batch)

    monkeypatch.setattr(in_process, "write_outputs", write_outputs)
    monkeypatch.setattr(streams, "IDLE_SECONDS", 0.01)


def test_it_is_named_and_the_run_fails(job: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    job.config["task.callback.drain.timeout.ms"] = 1000  # the other steps of the drain must keep it
    driver, released = job.waits(), Event()
    writes_in_workers(driver, monkeypatch)
    writer = job.systems["m"].writer

    def stuck(identity: Any) -> Any:
        released.wait()
        return writer(identity)

    monkeypatch.setattr(job.systems["m"], "writer", stuck)
    job.ask(driver)
    kept = KeptStreams()
    stuck_writers = kept.writers("", {}, driver.job.writer(1))
    monkeypatch.setattr(worker, "_kept", kept)
    try:
        with pytest.raises(
            PenstockTimeoutError, match=r"the append to the output `m\.out` has taken [\d,]+ ms; task\.callback"
        ):
            to_the_end(driver)
    finally:
        released.set()
    assert kept.writers("", {}, driver.job.writer(1)) is not stuck_writers, "a writer that is stuck could not be closed"
    assert job.checkpoints[-1].ended is None


def test_one_that_is_in_time_is_reported_once(job: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    job.config["task.callback.drain.timeout.ms"] = 600_000
    driver = job.waits()
    writes_in_workers(driver, monkeypatch)
    job.ask(driver)
    to_the_end(driver)
    assert {str(each) for each in job.came() if each[0] != "drained"} == job.results()
    assert job.checkpoints[-1].ended == "drained"
