"""DrainUtils, DrainMonitor, fan_out and keys of the coordinator stream, as the proposals have them."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest

import penstock as ps
from penstock import admin
from penstock.admin.samza import coordinator_key, parse_coordinator_key
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import CorruptError
from penstock.start.startpoint_manager import StartpointManager
from penstock.start.startpoint_request import NAMESPACE, RequestKey
from tests.support.stores.stopped_job import PATHS, STREAM, StoppedJob, saved, ssp
from tests.support.tools.fixtures import fixture_of
from tests.support.tools.places import GOLDEN

INPUT = f"local.{STREAM}"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoppedJob:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    job = StoppedJob(tmp_path)
    job.run(saved(1, (2, 3)), saved(2))
    return job


job = fixture_of(lambda made: admin.open_job("flights"))


def test_requests_to_drain_are_written_read_and_deleted(job: admin.FoundJob) -> None:
    utils = admin.DrainUtils
    first = utils.write_drain_notification(job)
    named = utils.write_drain_notification(job, ps.DrainMode.DEFAULT, run_id="v1")
    assert isinstance(first, uuid.UUID)
    assert {each.uuid: each.run_id for each in utils.notifications(job)} == {first: "*", named: "v1"}
    assert utils.cleanup(job, "v1") == 1
    assert [each.uuid for each in utils.notifications(job)] == [first]
    assert (utils.cleanup_all(job), utils.cleanup_all(job)) == (1, 0)
    with pytest.raises(ps.ConfigError, match="no run has the id"):
        utils.write_drain_notification(job, run_id="not a name")


def test_a_request_for_some_operators_names_them(job: admin.FoundJob) -> None:
    utils, alone = admin.DrainUtils, ps.DrainMode.OPERATORS
    utils.write_drain_notification(job, alone, operators=["hours", "pairs"])
    assert [each.operators for each in utils.notifications(job)] == [("hours", "pairs")]
    for wrong in ({"mode": alone}, {"operators": ["hours"]}):
        with pytest.raises(ps.ConfigError, match="only the mode OPERATORS has some, and needs them"):
            utils.write_drain_notification(job, **wrong)
    assert len(utils.notifications(job)) == 1


def test_a_monitor_calls_back_once(job: admin.FoundJob) -> None:
    called = threading.Event()
    monitor = admin.DrainMonitor(job, "v1", interval_ms=5)
    assert monitor.register_drain_callback(called.set)
    assert not monitor.register_drain_callback(called.set)
    monitor.start()
    admin.DrainUtils.write_drain_notification(job, run_id="v1")
    assert called.wait(20.0)
    monitor.stop()
    assert monitor.state.name == "STOPPED"
    with pytest.raises(ps.ConfigError, match="must be at least 1"):
        admin.DrainMonitor(job, "v1", interval_ms=0)


def test_a_monitor_needs_a_run(job: admin.FoundJob) -> None:
    with pytest.raises(ps.NotFoundError, match="name the run"):
        admin.DrainMonitor(job)


def test_each_task_gets_the_startpoint_that_counts(made: StoppedJob, job: admin.FoundJob) -> None:
    assert admin.fan_out(job) == {}
    manager = StartpointManager(made.objects, PATHS)
    old = manager.write_startpoint(ssp(0), ps.StartpointSpecific("5", creation_timestamp=1_000))  # expired
    manager.write_startpoint(ssp(0), ps.StartpointSpecific("6"))
    admin.set_startpoint(job, INPUT, ps.StartpointOldest(), partitions=[0])
    admin.set_startpoint(job, INPUT, ps.StartpointSpecific("8"), partitions=[1], task="1")
    found = admin.fan_out(job)
    assert {task: {at: each.offset for at, each in own.items()} for task, own in found.items()} == {
        "Partition 0": {ssp(0): 0},
        "Partition 1": {ssp(1): 8},
    }
    assert isinstance(found["Partition 0"][ssp(0)].startpoint, ps.StartpointOldest)
    assert old in manager.requests(), "nothing was taken"


def test_with_nearest_a_task_gets_the_offset_of_the_checkpoint(job: admin.FoundJob) -> None:
    admin.set_startpoint(job, INPUT, ps.StartpointSpecific("5"), partitions=[1], with_state="nearest")
    assert admin.fan_out(job)["Partition 1"][ssp(1)].offset == 3


def test_what_a_start_would_refuse_is_refused(made: StoppedJob, job: admin.FoundJob) -> None:
    StartpointManager(made.objects, PATHS).write_startpoint(ssp(0), ps.StartpointSpecific("99"))
    with pytest.raises(ps.IncompatibleError, match="99"):
        admin.fan_out(job)


def test_a_key_is_samzas() -> None:
    golden = (GOLDEN / "startpoint-coordinator-key.json").read_text()
    key = RequestKey(SystemStreamPartition("kafka", "dep.flights", 3), "Partition 3")
    assert coordinator_key(NAMESPACE, str(key)) == golden
    assert parse_coordinator_key(golden) == (NAMESPACE, str(key))
    with pytest.raises(CorruptError, match="not a key"):
        parse_coordinator_key('["a"]')
