"""Schedules of failures that containers meet, against real container processes."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.batch.batch import Batch
from penstock.errors import ContainerLostError
from penstock.runtime.messages.packet import PacketKind, from_batch, to_batch
from penstock.runtime.reports import SuccessfulBatch
from penstock.system.partitioner import partition_of
from penstock.wire.client import exchange
from penstock.wire.protocol import OPEN, OpenEpoch
from tests.support.apps.container_app import messages, oracle
from tests.support.processes.containers import (
    SECRET,
    ContainerProcess,
    Job,
    attempt,
    calls_with,
    everything,
    half_client,
    stored,
    wait_until,
)
from tests.support.tools.places import ROOT


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ContainerProcess]]:
    started = [ContainerProcess(tmp_path_factory.mktemp("logs")) for _ in range(2)]
    yield started
    for container in started:
        container.kill()


@pytest.fixture
def job(tmp_path: Path, containers: list[ContainerProcess]) -> Job:
    job = Job(tmp_path, containers)
    job.open()
    return job


@pytest.mark.slow
def test_a_batch_a_commit_and_a_restore(job: Job) -> None:
    first, second, third = messages(40), messages(40, 40), messages(10, 80)
    job.run_batch(1, first)
    job.run_batch(2, second)
    markers = job.commit()
    assert stored(job, markers) == oracle(first, second)
    job.run_batch(3, third)
    job.open(last_ended=2, markers=markers)
    outcome = job.run_batch(3, third)
    assert outcome.messages_in == outcome.messages_out == 10
    assert stored(job, job.commit(2)) == oracle(first, second, third)
    assert job.commit(3) == job.commit(4), "an unchanged store keeps its version"


def test_a_small_batch_is_one_message_for_all_tasks(tmp_path: Path, containers: list[ContainerProcess]) -> None:
    job = Job(tmp_path, containers[:1], tasks=4)
    job.open()
    first = messages(40)
    run = job.start(1, first)
    packets = [packet for task in range(4) for packet in run.for_task(task)]
    call = job.call(run, 0, tasks=[0, 1, 2, 3])
    sent = list(exchange(containers[0].address, SECRET, call, iter([to_batch(packets)]), everything))
    assert len([batch for batch in sent if batch.num_rows]) == 1  # the others only say that somebody is alive
    results = [packet for batch in sent for packet in from_batch(batch)]
    assert sorted(packet.source_task for packet in results if packet.kind == PacketKind.REPORT) == [0, 1, 2, 3]
    outcome = job.outcome(run, results)
    assert isinstance(outcome, SuccessfulBatch)
    job.end(1, outcome.tokens)
    assert stored(job, job.commit()) == oracle(first)


def test_the_pyspark_worker_is_killed_after_half_of_a_batchs_rows_were_sent(job: Job) -> None:
    first = messages(30)
    first[20]["touch"] = "half"
    run = job.start(1, first)
    task = partition_of(first[20]["key"].encode(), 2)
    data = [to_batch([p]) for p in run.for_task(task) if p.kind == 0]
    assert len(data) == 2, "one packet of each source"
    killed = half_client(job.homes[task].address, job.call(run, task), data[:1])
    wait_until((job.folder / "half").exists, "the container processed what was sent")
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    results = [packet for t in range(2) for packet in job.attempt(run, t)[0]]
    outcome = job.outcome(run, results)
    assert isinstance(outcome, SuccessfulBatch)
    assert outcome.messages_out == 30
    job.end(1, outcome.tokens)
    assert stored(job, job.commit()) == oracle(first)


def test_a_late_attempt_that_is_still_running_at_end_counts_for_nothing(job: Job) -> None:
    first = messages(20)
    run = job.start(1, first)
    results = [packet for t in range(2) for packet in job.attempt(run, t)[0]]
    outcome = job.outcome(run, results)
    assert isinstance(outcome, SuccessfulBatch)
    data = [to_batch([p]) for p in run.for_task(0) if p.kind == 0]
    late = half_client(job.homes[0].address, job.call(run, 0), data)
    wait_until(lambda: len((job.folder / "init-0").read_text()) == 2, "the late attempt began")
    job.end(1, outcome.tokens)
    second = messages(20, 20)
    job.run_batch(2, second)
    late.kill()
    late.wait(30)
    assert stored(job, job.commit()) == oracle(first, second)


def test_a_container_is_replaced_silently_inside_an_epoch(tmp_path: Path) -> None:
    """Another process answers under the old one's identity: every call is refused."""
    old, new = ContainerProcess(tmp_path), ContainerProcess(tmp_path)
    try:
        job = Job(tmp_path, [old], tasks=1)
        job.open()
        first = messages(10)
        job.run_batch(1, first)
        markers = job.commit()
        run = job.start(2, messages(10, 10))
        call, identity = job.call(run, 0), old.client.identity(job.epoch)
        old.kill()
        for refused in calls_with(job, new, identity):
            with pytest.raises(ContainerLostError, match="does not carry the container's token"):
                refused()
        with pytest.raises(ContainerLostError, match="meant for incarnation"):
            attempt(new.address, call, [to_batch(run.for_task(0))])
        job.homes[0] = new
        job.open(last_ended=1, markers=markers)
        assert stored(job, job.commit(2)) == oracle(first)
    finally:
        old.kill()
        new.kill()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"batch": Batch(2, 1, 0)}, "batch 2 run 1 came during batch 1 run 1"),
        ({"batch": Batch(0, 1, 0)}, "batch 0 run 1 came during"),
        ({"batch": Batch(1, 2, 0)}, "batch 1 run 2 came during"),
        ({"batch": Batch(1, 1, 7)}, "batch 1 run 1 came during"),
        ({"tasks": [1]}, "expects task 1 at batch 0; it is not here"),
        ({"stage": 7}, "stage 7"),
    ],
)
def test_an_attempt_of_something_else_is_refused(job: Job, changed: dict[str, object], said: str) -> None:
    run = job.start(1, messages(10))
    with pytest.raises(ContainerLostError, match=said):
        attempt(job.homes[0].address, job.call(run, 0, **changed), [to_batch(run.for_task(0))])
    job.run_batch(1, messages(10), run=2)


def test_an_attempt_may_start_its_run_but_not_one_of_before(job: Job) -> None:
    run = job.start(1, messages(10))
    own = [to_batch(run.for_task(0))]
    later = job.call(run, 0, batch=Batch(1, 2, 0), starts=True)
    assert attempt(job.homes[0].address, later, own)[-1].kind == PacketKind.REPORT
    with pytest.raises(ContainerLostError, match="batch 1 run 1 came after a later run"):
        attempt(job.homes[0].address, job.call(run, 0, starts=True), own)
    assert attempt(job.homes[0].address, later, own)[-1].kind == PacketKind.REPORT, "a second one"


@pytest.mark.slow
def test_a_worker_survives_refusals_that_come_while_it_ends_its_input(job: Job) -> None:
    """gRPC aborts a process that closes its side of a call twice at once."""
    run, times = job.start(1, messages(10)), 2000
    call = job.call(run, 0, batch=Batch(4, 1, 0))
    worker = subprocess.run(
        [sys.executable, "-m", "tests.support.processes.refused_client"],
        input=pickle.dumps((job.homes[0].address, SECRET, call, [to_batch(run.for_task(0))], times)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert worker.returncode == 0, worker.stderr.decode()[-2000:]
    assert int(worker.stdout) == times


def test_calls_of_an_older_epoch_are_refused(job: Job) -> None:
    run = job.start(1, messages(10))
    call, old, identity = job.call(run, 0), job.epoch, job.homes[0].client.identity(job.epoch)
    job.open()
    for refused in calls_with(job, job.homes[0], identity)[1:]:
        with pytest.raises(ContainerLostError, match=f"of epoch {old}, this container is in {job.epoch}"):
            refused()
    with pytest.raises(ContainerLostError, match="of epoch"):
        attempt(job.homes[0].address, call, [to_batch(run.for_task(0))])
    client = job.homes[0].client
    for epoch in (old, job.epoch):
        with pytest.raises(ContainerLostError, match=f"epoch {epoch} is not newer than {job.epoch}"):
            client.ask(OPEN, epoch, OpenEpoch(job.package, 0, None, {}, (), (0,)), 30)
    job.run_batch(1, messages(10))
