"""A process that has lost the lease claims nothing: the run of the driver that has the job goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.driver.part import StopRequest
from penstock.driver.run import Run
from penstock.errors import FencedError
from penstock.job.lease import LeaseHolder, LeaseState
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.objects.store import ObjectStore
from penstock.start import prepare
from penstock.start.job_streams import JobStreams
from penstock.start.part import complete
from penstock.start.plan import StartRequest
from penstock.system.base import WriterIdentity
from penstock.system.local import LocalSystem
from tests.support.jobs.home import wait_until
from tests.support.stores.checkpoints import checkpoint

PATHS = JobPaths("flights", "1")
ELSEWHERE = LeaseHolder("elsewhere", 1, "1", "boot", "pid:[1]", "other", "2024-01-01T00:00:00+00:00")


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    system = LocalSystem("local", str(tmp_path / "streams"))
    with closing(system.admin()) as admin:
        admin.create_stream("events", 1)
    with closing(system.writer(WriterIdentity("w", 1))) as writer:
        writer.append(SystemStreamPartition("local", "events", 0), [(0, b"k", b"v")])
    overrides = {
        "job.name": PATHS.name,
        "job.root": str(tmp_path / "jobs"),
        "job.lease.ms": 300,
        "job.logged.store.base.dir": str(tmp_path / "state"),
        "systems.local.samza.factory": "local",
        "systems.local.path": str(tmp_path / "streams"),
    }
    return load_config(overrides=overrides, environ={})


@pytest.fixture
def objects(config: JobConfig) -> Iterator[ObjectStore]:
    with closing(open_job_root(config.job)) as objects:
        yield objects


class OtherDriver:
    """Takes the job over and runs it."""

    def __init__(self, objects: ObjectStore, run: Run) -> None:
        state = LeaseState(ELSEWHERE, 600_000, "token").encode()
        objects.put_if_match(PATHS.lease, state, objects.get_with_tag(PATHS.lease)[1])
        wait_until(lambda: run._keeper.lease.lost is not None, "the loss of the lease")
        self.log = CheckpointLog(objects, PATHS)

    def claim(self) -> None:
        self.claimed = self.log.claim("other")

    def commit(self) -> None:
        """Raises FencedError if somebody has claimed since."""
        self.log.append(checkpoint(self.claimed, 1))


def test_a_start_that_stood_still_before_its_claim_claims_nothing(
    config: JobConfig, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[OtherDriver] = []
    real = prepare.make_streams

    def standing_still(*arguments: Any) -> prepare.MadeStreams:
        made = real(*arguments)
        others.append(OtherDriver(objects, run))
        others[0].claim()
        return made

    app = ps.StreamApplication("flights")
    app.input("local.events").send_to(app.output("local.copies"))
    graph = complete(app.graph(), config)
    monkeypatch.setattr(prepare, "make_streams", standing_still)
    with ExitStack() as undo:
        streams = JobStreams.open(graph, config)
        undo.callback(streams.close)
        run = Run(config, StopRequest(), undo)
        with pytest.raises(FencedError, match=r"another driver took this job over: .*claims nothing"):
            run.prepare(graph, streams, StartRequest(run.run_id))
    others[0].commit()


def test_a_rewind_claims_nothing_before_the_other_driver_has_claimed(config: JobConfig, objects: ObjectStore) -> None:
    with ExitStack() as undo:
        run = Run(config, StopRequest(), undo)
        claim = run.log.claim(run.run_id)
        other = OtherDriver(objects, run)
        with pytest.raises(FencedError, match=r"another driver took this job over: .*claims nothing"):
            run.log.claim(run.run_id)
        assert CheckpointLog(objects, PATHS).read().owner == claim
        other.claim()
        other.commit()


def test_a_log_that_is_empty_is_not_begun_either(config: JobConfig, objects: ObjectStore) -> None:
    with ExitStack() as undo:
        run = Run(config, StopRequest(), undo)
        OtherDriver(objects, run)
        with pytest.raises(FencedError, match="claims nothing"):
            run.log.begin(7, "fork")
        assert CheckpointLog(objects, PATHS).read().end == 0
