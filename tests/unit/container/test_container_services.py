"""Services and resources of a container, and the context that backends get of their task."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.config import load_config
from penstock.container.shared import EpochResources, Service, Services
from penstock.graph.topology import plan_topology
from penstock.runtime.settings import RuntimeSettings
from penstock.state.backends.base import BackendContext, TaskBackupManager, TaskRestoreManager
from penstock.wire.ports import JobPackage
from tests.support.stores.plain_backend import PlainFactory
from tests.support.tools.fixtures import fixture_of
from tests.support.world.sums_job import TASKS, SumsWorld, drain_and_commit


class Noted(Service):
    """Notes what is done to it."""

    def __init__(self, name: str, notes: list[str], fails: str = "") -> None:
        self.name, self.notes, self.fails = name, notes, fails
        self.given: float | None = None

    def _note(self, what: str) -> None:
        self.notes.append(f"{what} {self.name}")
        if what == self.fails:
            raise RuntimeError(f"{self.name} cannot {what}")

    def start(self) -> None:
        self._note("start")

    def wind_down(self, timeout_s: float) -> None:
        self.given = timeout_s
        self._note("wind down")

    def stop(self) -> None:
        self._note("stop")

    def status(self) -> str:
        return f"{self.name} works"


def services_of(*each: Service) -> Services:
    services = Services()
    for service in each:
        services.add(service)
    return services


def test_they_stop_in_the_reverse_of_the_order_in_which_they_started() -> None:
    notes: list[str] = []
    services = services_of(*(Noted(name, notes) for name in "abc"))
    services.stop()
    services.stop()
    assert notes == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]
    assert services.status() == {}


def test_one_that_does_not_stop_is_logged_and_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    notes: list[str] = []
    services_of(Noted("a", notes), Noted("b", notes, fails="stop"), Noted("c", notes)).stop()
    assert notes[3:] == ["stop c", "stop b", "stop a"]
    assert "stopping the b failed" in caplog.text


def test_one_that_does_not_start_is_stopped_with_the_others() -> None:
    notes: list[str] = []
    services = services_of(Noted("a", notes))
    with pytest.raises(RuntimeError, match="b cannot start"):
        services.add(Noted("b", notes, fails="start"))
    services.stop()
    assert notes == ["start a", "start b", "stop b", "stop a"]


def test_winding_down_is_one_time_for_all() -> None:
    notes: list[str] = []
    first, second = Noted("a", notes), Noted("b", notes)
    services_of(first, second).wind_down(5.0)
    assert first.given is not None
    assert second.given is not None
    assert second.given <= first.given <= 5.0
    assert services_of(first).status() == {"a": "a works"}


def test_what_a_restore_finds_to_be_damaged_the_backup_of_the_same_backend_knows(tmp_path: Path) -> None:
    app = ps.StreamApplication("a")
    app.input("m.in")
    folders = {"job.root": str(tmp_path / "jobs"), "job.logged.store.base.dir": str(tmp_path / "state")}
    config = load_config(overrides={"job.name": "a", **folders})
    package = JobPackage(plan_topology(app.graph()), RuntimeSettings("a", 2, {}), config, "uid", "probe", {})
    resources = EpochResources(package, "c", 1, 2)
    restoring = resources.backend_context("changelog-files", 0, ("totals",))
    backing_up = resources.backend_context("changelog-files", 0, ("totals", "others"))
    restoring.damaged.add("a/snapshot.zip")
    assert backing_up.damaged == {"a/snapshot.zip"}
    assert resources.backend_context("blob", 0, ("totals",)).damaged == set()
    resources.close()


SEEN: list[BackendContext] = []


class NotedFactory(PlainFactory):
    """Keeps what it is given."""

    def backup_manager(self, context: BackendContext) -> TaskBackupManager:
        SEEN.append(context)
        return super().backup_manager(context)

    def restore_manager(self, context: BackendContext) -> TaskRestoreManager:
        SEEN.append(context)
        return super().restore_manager(context)


world = fixture_of(SumsWorld)


def test_a_backend_knows_its_container_its_partitions_its_job_and_its_clock(world: SumsWorld) -> None:
    for _ in range(2):  # backups, and then restores, too
        SEEN.clear()
        world.put(1, 2, 3)
        driver = world.started(stores_sums_backup_factories=f"{__name__}:NotedFactory")
        drain_and_commit(driver)
        assert {context.task for context in SEEN} == set(range(TASKS))
        for context in SEEN:
            assert context.container == driver.fleet.assignment.homes[context.task]
            assert context.partitions == (SystemStreamPartition("m", "events", context.task),)
            assert context.uid == driver.job.uid
            assert context.clock is world.clock
        driver.close()
