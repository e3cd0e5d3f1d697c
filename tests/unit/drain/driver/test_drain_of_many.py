"""Ten jobs of one root, in ten threads, are drained at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.base.retry import SYSTEM_CLOCK
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.drain.requests import DRAIN, DrainRequests, write_drain_notification
from penstock.errors import NotFoundError
from penstock.job.paths import JobPaths
from penstock.testing.in_process import InProcessDriver
from tests.support.world.timed_job import TimedWorld, steps

DEADLINE_S = 60.0


class OneOfMany(TimedWorld):
    """A job with messages that wait for time, which no watermark will let go."""

    def __init__(self, first: OneOfMany | None, folder: Path, job_id: str) -> None:
        times = {"job.batch.interval.ms": 5, "job.drain-monitor.poll.interval.ms": 5}
        super().__init__(folder, config={"job.id": job_id, **times})
        self.clock = SYSTEM_CLOCK  # type: ignore[assignment]  # other threads wait
        self.paths = JobPaths("timed", job_id)
        if first is not None:
            self.root, self.objects, self.store = first.root, first.objects, first.store

    def waiting(self) -> OneOfMany:
        self.put(10, 20, 30, 40)
        self.one: InProcessDriver = self.driver(containers=1)
        self.one.loop.start()
        steps(self.one)
        self.one.loop.commit()
        self.thread = threading.Thread(target=self._run, daemon=True)
        return self

    def _run(self) -> None:
        while not self.one.loop.run_to_the_end():
            pass

    def last(self) -> CheckpointRecord:
        last = CheckpointLog(self.objects, self.paths).read().latest
        assert last is not None
        return last


def ask(job: OneOfMany) -> str | None:
    """The uuid of the request; None if the job has drained already."""
    try:
        return str(write_drain_notification(job.objects, job.paths).uuid)
    except NotFoundError:
        return None


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[list[OneOfMany]]:
    made: list[OneOfMany] = []
    for number in range(1, 11):
        job = OneOfMany(made[0] if made else None, tmp_path / str(number), str(number))
        made.append(job)
        job.waiting()
    yield made
    for job in made:
        job.one.stop.request()
        job.one.stop.request()
        if job.thread.ident is not None:
            job.thread.join(DEADLINE_S)
        job.close()


def test_each_job_drains_exactly_its_own_requests(jobs: list[OneOfMany]) -> None:
    """Every second one is asked twice; the last one, whose name begins as that of the first, is not asked."""
    for job in jobs:
        job.thread.start()
    *asked, other = jobs
    came = other.came()
    assert set(came) < set(other.given)
    wanted = [job for number, job in enumerate(asked) for _ in range(1 + number % 2)]
    with ThreadPoolExecutor(len(wanted)) as threads:
        given = list(threads.map(ask, wanted))
    deadline = time.monotonic() + DEADLINE_S
    for job in asked:
        job.thread.join(deadline - time.monotonic())
        assert not job.thread.is_alive()
        assert job.last().ended == "drained"
        own = {name for name, who in zip(given, wanted, strict=True) if who is job}
        assert own >= set(job.last().section(DRAIN).answered) != set(), (
            "a second request may come after the last commit has begun"
        )
        assert job.came() == {n: [] for n in range(4)}
        left = {str(each.uuid) for each in DrainRequests(job.objects, job.paths).find().notifications}
        assert left <= own - set(job.last().section(DRAIN).answered), "a request that came too late is for the next run"
    assert other.thread.is_alive()
    assert not other.one.loop.boundary.closed
    assert other.came() == came
    other.one.stop.request()
    other.thread.join(DEADLINE_S)
    assert other.last().ended == "stopped"
