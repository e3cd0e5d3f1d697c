"""Ends of containers, their refusals, and ways out of what is stuck, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
import pytest

from penstock.errors import ContainerLostError, CorruptError
from penstock.runtime.messages.packet import PacketKind, from_batch, to_batch
from penstock.wire.client import ContainerClient, exchange
from penstock.wire.protocol import CLOSE, NoArguments
from tests.support.apps.container_app import messages
from tests.support.processes.containers import (
    DEADLINE_S,
    SECRET,
    ContainerProcess,
    Job,
    attempt,
    everything,
    half_client,
    wait_until,
)


@pytest.fixture
def job(tmp_path: Path, container: ContainerProcess) -> Job:
    return opened(tmp_path, container)


@pytest.fixture
def shared_job(tmp_path: Path, shared_container: ContainerProcess) -> Job:
    """In a container that lives on."""
    return opened(tmp_path, shared_container)


def opened(folder: Path, container: ContainerProcess) -> Job:
    job = Job(folder, [container], tasks=1, config={"task.shutdown.ms": 3000})
    job.open()
    return job


PARENT = """
import subprocess, sys
from pathlib import Path
from tests.support.processes.containers import ContainerProcess
container = ContainerProcess(Path(sys.argv[1]))
print(container.address.pid, flush=True)
sys.stdin.read()
"""


def test_a_container_ends_when_its_parent_process_dies(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root
    )
    assert parent.stdout is not None
    container = psutil.Process(int(parent.stdout.readline()))
    assert container.is_running()
    parent.kill()
    parent.wait(DEADLINE_S)
    assert not psutil.wait_procs([container], timeout=DEADLINE_S)[1]


def test_a_killed_container_breaks_its_beats_and_every_call_and_is_reported(
    container: ContainerProcess, job: Job
) -> None:
    """With the signal, its last words and its log."""
    lost: list[ContainerClient] = []
    container.client.listen(lost.append)
    wait_until(lambda: container.client.last_beat is not None, "a beat")
    beat = container.client.last_beat
    assert beat is not None
    assert (beat.incarnation, beat.stalled_ms) == (container.address.incarnation, 0)
    assert beat.resident_bytes > 1 << 20
    run = job.start(1, messages(10))
    assert container.client.death() is None
    container.kill()
    wait_until(lambda: lost, "the loss is noticed")
    assert lost == [container.client]
    assert "beats" in str(container.client.lost)
    with pytest.raises(ContainerLostError):
        job.start_run(1, 2)
    with pytest.raises(ContainerLostError):
        job.attempt(run, 0)
    death = container.client.death()
    assert death is not None
    assert f"process {container.address.pid} was killed by SIGKILL (9: probably out of memory" in death
    assert f"incarnation {container.address.incarnation}" in death, "its last words"
    assert container.address.log_path in death


def test_beats_tell_how_many_messages_are_processed(shared_container: ContainerProcess, shared_job: Job) -> None:
    shared_container.client.listen(lambda _: None)
    for batch, count in ((1, 10), (2, 3)):
        shared_job.run_batch(batch, messages(count))
        wait_until(lambda: (b := shared_container.client.last_beat) is not None and b.batch == batch, "a beat")  # noqa: B023
        wait_until(lambda: shared_container.client.last_beat.processed == {1: count}, "all of them")  # type: ignore[union-attr]  # noqa: B023


def test_a_container_that_crashes_says_where_and_what_it_processed(container: ContainerProcess, job: Job) -> None:
    lost: list[ContainerClient] = []
    container.client.listen(lost.append)
    run = job.start(1, [*messages(10), {"key": "k", "n": 1, "wait": "gate"}])
    with ThreadPoolExecutor(1) as pool:
        attempting = pool.submit(job.attempt, run, 0)
        wait_until(lambda: container.client.last_beat and container.client.last_beat.processing, "a beat that tells")
        os.kill(container.address.pid, signal.SIGSEGV)
        with pytest.raises(ContainerLostError):
            attempting.result(DEADLINE_S)
    wait_until(lambda: lost, "the loss is noticed")
    death = container.client.death()
    assert death is not None
    assert "was killed by SIGSEGV (11) while it processed" in death
    assert "Fatal Python error: Segmentation fault" in container.log


def test_a_container_killed_inside_an_exchange_is_a_lost_container(container: ContainerProcess, job: Job) -> None:
    """Whatever the writing meets when the process goes away: never another kind of error, and it does not hang."""
    run = job.start(1, messages(10))
    data = to_batch([p._replace(payload=b"x" * 1_000_000) for p in run.for_task(0) if p.kind == 0])

    def batches() -> Iterator[pa.RecordBatch]:
        yield to_batch([])
        container.kill()
        for _ in range(100):
            yield data

    with pytest.raises(ContainerLostError):
        attempt(container.address, job.call(run, 0), batches())


def test_close_ends_the_process_while_beats_are_listened_to(container: ContainerProcess, job: Job) -> None:
    container.client.listen(lambda _: None)
    job.run_batch(1, messages(10))
    container.client.ask(CLOSE, job.epoch, NoArguments(), DEADLINE_S)
    assert container.ended(DEADLINE_S) == 0
    assert (job.folder / "close-0").read_text() == "x"
    assert not Path(urlsplit(container.address.socket_uri).path).exists()


def test_a_new_epoch_cancels_an_attempt_that_waits_for_input(container: ContainerProcess, job: Job) -> None:
    """The worker of the cancelled attempt is told so as soon as it goes on; it must not hang."""
    run = job.start(1, messages(10))
    call, data = job.call(run, 0), [to_batch([p]) for p in run.for_task(0)]
    opened, sent = threading.Event(), threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield data[0]
        sent.set()
        assert opened.wait(DEADLINE_S)
        yield from data[1:]

    with ThreadPoolExecutor(1) as pool:
        attempting = pool.submit(attempt, container.address, call, batches())
        assert sent.wait(DEADLINE_S)
        wait_until((job.folder / "init-0").exists, "the attempt began")
        try:
            job.open()
            opened.set()
            with pytest.raises(ContainerLostError):
                attempting.result(DEADLINE_S)
            job.run_batch(1, messages(10))
        finally:
            opened.set()
            container.kill()


def test_user_code_that_never_returns_ends_the_process_at_an_epoch(container: ContainerProcess, job: Job) -> None:
    run = job.start(1, [{"key": "a", "n": 1, "touch": "stuck", "wait": "never"}])
    client = half_client(container.address, job.call(run, 0), [to_batch(run.for_task(0))])
    try:
        wait_until((job.folder / "stuck").exists, "user code runs")
        with pytest.raises(ContainerLostError):
            job.open()
        assert container.ended(DEADLINE_S) == 70
        assert "did not end within 3 s (task.shutdown.ms)" in container.log
    finally:
        client.kill()
        client.wait(DEADLINE_S)


def test_beats_say_how_long_user_code_is_stuck_also_in_a_retry(container: ContainerProcess, job: Job) -> None:
    container.client.listen(lambda _: None)
    run = job.start(1, [{"key": "a", "n": 1, "touch": "stuck", "wait": "go"}])
    clients = []
    try:
        for _ in range(2):
            clients.append(half_client(container.address, job.call(run, 0), [to_batch(run.for_task(0))]))
            wait_until((job.folder / "stuck").exists, "user code runs")
        clients[0].kill()
        before = time.monotonic()
        beat = container.client
        wait_until(lambda: beat.last_beat_at > before + 1.5, "more beats")
        assert beat.last_beat is not None
        assert beat.last_beat.stalled_ms > 1000
    finally:
        (job.folder / "go").touch()
        for client in clients:
            client.kill()
            client.wait(DEADLINE_S)


def test_an_input_that_fails_takes_its_attempt_with_it(shared_container: ContainerProcess, shared_job: Job) -> None:
    """A shuffle fetch fails in a worker that lives on: the container does not wait for the rest for ever."""
    run = shared_job.start(1, messages(10))

    def batches() -> Iterator[pa.RecordBatch]:
        yield to_batch(run.for_task(0)[:1])
        wait_until((shared_job.folder / "init-0").exists, "the attempt began")
        raise OSError("fetch failed")

    with pytest.raises(OSError, match="fetch failed"):
        list(exchange(shared_container.address, SECRET, shared_job.call(run, 0), batches(), everything))
    wait_until((shared_job.folder / "close-0").exists, "the attempt is discarded, with its task")


def test_fifty_megabytes_each_way_do_not_deadlock(shared_container: ContainerProcess, shared_job: Job) -> None:
    count, padding = 100, "x" * 500_000
    outcome_messages = [{"key": f"k{n}", "n": n, "padding": padding} for n in range(count)]
    run = shared_job.start(1, outcome_messages)
    with ThreadPoolExecutor(1) as pool:
        found, report = pool.submit(shared_job.attempt, run, 0).result(DEADLINE_S)
    assert report.messages == shared_job.emitted(found) == count
    assert sum(len(p.payload or b"") for p in run.for_task(0)) > 50_000_000
    assert sum(len(p.payload or b"") for p in found) > 50_000_000


def test_a_worker_that_can_write_no_more_is_alive(shared_container: ContainerProcess, shared_job: Job) -> None:
    """The container is slow and the buffers are full: Spark would kill a worker in which nothing moves."""
    first = {"key": "k", "n": 0, "touch": "stuck", "wait": "go"}
    run = shared_job.start(1, [first, *({"key": f"k{n}", "n": n, "padding": "x" * 500_000} for n in range(1, 200))])
    packets = run.for_task(0)
    written = []

    def batches() -> Iterator[pa.RecordBatch]:
        for packet in packets:
            yield to_batch([packet])
            written.append(packet)

    def work() -> int:
        reports = 0
        for batch in exchange(shared_container.address, SECRET, shared_job.call(run, 0), batches(), everything):
            if (
                not batch.num_rows
                and (shared_job.folder / "stuck").exists()
                and not (shared_job.folder / "go").exists()
            ):
                assert len(written) < len(packets), "all of it fits into the buffers: there must be more"
                (shared_job.folder / "go").touch()
            reports += sum(packet.kind == PacketKind.REPORT for packet in from_batch(batch))
        return reports

    with ThreadPoolExecutor(1) as pool:
        try:
            assert pool.submit(work).result(DEADLINE_S) == 1
        finally:
            (shared_job.folder / "go").touch()


def test_a_missing_delta_is_named_while_other_tasks_restore(shared_container: ContainerProcess, tmp_path: Path) -> None:
    """Task 0 has much to restore and is cancelled when task 1 fails: the failure counts, not the cancellation."""
    job = Job(tmp_path, [shared_container], config={"state.snapshot.interval.commits": 0})
    job.open()
    for batch in range(1, 31):
        job.run_batch(batch, [{"key": f"k{n}", "n": n} for n in range(200)])
        markers = job.commit(batch)
    (missing,) = job.root.rglob("1/7.*.delta")
    missing.unlink()
    with pytest.raises(CorruptError, match=r"state/totals/1/7\.\d+\.delta` is missing.*version 30 of store `totals`"):
        job.open(last_ended=30, markers=markers)
    with pytest.raises(ContainerLostError, match="this container is in"):
        job.start_run(31, 1)
