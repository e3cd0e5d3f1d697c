"""Containers' storage in one process, driven as a driver does it: log, coordinator of commits, admins of all
backends, and the containers' own code below their server. No Spark, no Flight, and batches are given as net changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import penstock as ps
from penstock.admin.jobs import FoundJob
from penstock.admin.state.repartition import Mover, RepartitionFacts, planned_for, repartition
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK, Clock, Retry, retry
from penstock.batch.batch import Batch, TaskSsp
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord, Claim
from penstock.checkpoint.task_versions import markers_of
from penstock.config.load import load_config
from penstock.container.container import Container, Epoch
from penstock.container.handlers import answers
from penstock.container.shared import EpochResources
from penstock.driver.commit.coordinator import CommitCoordinator, CompletedCommit
from penstock.driver.commit.record import Collection, CommitRequest, Recorder
from penstock.driver.feed.boundary import Boundary
from penstock.driver.part import DriverPart
from penstock.graph.specs import ApplicationGraph
from penstock.graph.topology import plan_topology
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.repartition import move
from penstock.repartition.placement import Rule
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.attempt import new_token
from penstock.start.job_streams import JobStreams
from penstock.start.layout import store_layout
from penstock.state import outside_backup
from penstock.state.backends.registry import BackendAdmins
from penstock.state.engines.engine import Changes
from penstock.state.kept import KeptStores
from penstock.system.base import System
from penstock.wire.ports import Fleet as FleetPort
from penstock.wire.ports import JobPackage
from penstock.wire.protocol import SNAPSHOT, UPLOAD, Call, Identity, OpenEpoch, Request

STAGE = 1
DEADLINE_S = 60.0
ROOT = "memory://life"
PATHS = JobPaths("life", "1")


class Nothing(ps.StreamTask):
    """Only its stores are used."""

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        raise AssertionError("no message comes")


def graph_with(stores: tuple[str, ...], kept: tuple[str, ...] = ()) -> ApplicationGraph:
    """`stores` are written behind an exchange by key, `kept` where the input's messages come in."""
    app = ps.StreamApplication("life")
    for store in (*stores, *kept):
        app.store(store, key=ps.Bytes(), value=ps.Bytes())
    source, results = app.input("local.events", value=ps.Json()), app.output("local.results")
    by_key = source.partition_by(str, key=ps.Bytes())
    by_key.process(Nothing, stores=list(stores), id="use").send_to(results, id="used")
    if kept:
        source.process(Nothing, stores=list(kept), id="keep").send_to(results, id="kept")
    return app.graph()


@dataclass
class Fleet:
    """The containers as the commit coordinator sees them. Calls go straight to them."""

    homes: dict[str, Epoch] = field(default_factory=dict)
    at: Callable[[str], None] = lambda _: None
    """Called at the steps of a commit: what it raises is raised there."""
    lost: str | None = None

    @property
    def any_lost(self) -> bool:
        return self.lost is not None

    def loss(self) -> str:
        return self.lost or ""

    def ask(
        self, call: Call[Any, Any], epoch: int, request: Request, *, abandoned: threading.Event | None = None
    ) -> list[Any]:
        """A call to all of them. What may pass is tried again, as the driver does it."""
        if call is not SNAPSHOT:
            self.at(call.name)
        again = call.again and replace(call.again, pause_s=0.001)
        answers = [
            retry(partial(_answer, call, home, request), again or Retry(0.0, tries=1), interrupt=abandoned)
            for home in self.homes.values()
        ]
        if call is UPLOAD:
            self.at("record")
        return answers


def _answer(call: Call[Any, Any], home: Epoch, request: Request) -> object:
    inside = cast("Container", SimpleNamespace(epoch=lambda _: home))
    *_, last = answers(call, inside, Identity("", home.number), request)
    return last


class StorageJob:
    """A job in one epoch after the other."""

    def __init__(
        self,
        folder: Path,
        objects: ObjectStore,
        systems: Mapping[str, System],
        *,
        tasks: int,
        stores: tuple[str, ...],
        config: Mapping[str, object],
        kept: tuple[str, ...] = (),
        inputs: int = 0,
    ) -> None:
        """`config` may be changed before each `open`, and `tasks` as well. `kept` are stores of the tasks that read the
        input. `inputs`: the number of the input's partitions, whose positions are the numbers of batches."""
        self.folder = folder
        self.objects = objects
        self.systems = dict(systems)
        self.tasks = tasks
        self.stores = stores
        self.kept = kept
        self.uid = "uid"
        self.overrides = dict(config)
        self.graph = graph_with(stores, kept)
        self.topology = plan_topology(self.graph)
        self.clock: Clock = SYSTEM_CLOCK
        self.fleet = Fleet()
        self.notes: list[str] = []
        self.parts: tuple[DriverPart, ...] = ()
        """Parts of wings that take part in collections."""
        self._batch = 0
        self._inputs = [SystemStreamPartition("local", "events", number) for number in range(inputs)]
        if inputs:
            self.systems["local"].admin().create_stream("events", inputs)
        self._open: dict[str, KeptStores] = {}
        """By container, the stores that its process keeps open from one epoch to the next."""

    def settings(self, tasks: int | None = None) -> Any:
        """The configuration, as it is now, for this number of tasks. Each number has its own streams: a changelog
        has a partition for each task."""
        number = self.tasks if tasks is None else tasks
        given = {
            "job.name": PATHS.name,
            "job.id": PATHS.job_id,
            "job.root": ROOT,
            "job.logged.store.base.dir": str(self.folder / "local"),
            **{f"stores.{store}.changelog": f"local.{store}-of-{number}" for store in (*self.stores, *self.kept)},
            **self.overrides,
        }
        return load_config(overrides=given, environ={})

    def start(self) -> CheckpointLog:
        """Another driver: a log of its own."""
        return CheckpointLog(self.objects, PATHS)

    def open(
        self,
        log: CheckpointLog,
        claim: Claim,
        record: CheckpointRecord | None,
        homes: Mapping[str, tuple[int, ...]],
        *,
        empty: bool = False,
    ) -> CommitCoordinator:
        """Enter the claim's epoch from a checkpoint, with the tasks in these containers; as `Epochs` does."""
        config = self.settings()
        layout = store_layout(self.graph)
        admins = BackendAdmins(config, PATHS, self.objects, self.tasks, list(layout), self.systems, self.uid)
        admins.prepare(claim.epoch)
        markers = (
            {}
            if record is None
            else {
                task: markers_of(record, task, config.changelog_partitions(record.stores, task))
                for task in range(self.tasks)
            }
        )
        self.notes = []
        self._batch = 0 if record is None else record.batch
        self.fleet = Fleet()
        runtime = RuntimeSettings(PATHS.name, self.tasks, {"local.results": self.tasks})
        package = JobPackage(self.topology, runtime, config, self.uid, "probe", self.systems)
        for name, tasks in homes.items():
            request = OpenEpoch(
                b"",
                self._batch,
                None if record is None else str(record.id),
                {} if record is None else {str(t): {} if empty else cast("Any", markers[t]) for t in tasks},
                () if empty or record is None else tuple(record.stores),
                tasks,
            )
            try:
                copies = self._open.setdefault(name, KeptStores(name))
                resources = EpochResources(package, name, claim.epoch, len(tasks), self.objects, copies)
                self.fleet.homes[name] = Epoch(resources, request, threading.Event(), lambda _: None)
                copies.drop_kept()
            except BaseException:
                self.leave()
                raise
            self.notes += self.fleet.homes[name].notes
        settings = config.task
        commits = CommitCoordinator(
            Recorder(log, layout, self.tasks, settings),
            cast("FleetPort", self.fleet),
            [Collection(log, admins, self.parts)],
            lambda: None,
            self.clock,
        )
        commits.last = record
        return commits

    def leave(self, *, keeping: Sequence[str] = ()) -> None:
        """Leave the epoch, as containers do. Those that are `keeping` live on."""
        homes, self.fleet.homes = self.fleet.homes, {}
        for name, home in homes.items():
            home.leave(keep=name in keeping)
        for name in self._open.keys() - set(keeping):
            self._open.pop(name).close()

    def run_batch(self, changes: Mapping[tuple[str, int], Changes]) -> None:
        """A batch with these net changes (store, task), and its End."""
        self._batch += 1
        for home in self.fleet.homes.values():
            for number, task in home.tasks.items():
                token = new_token()
                attempt = task.start_attempt(STAGE, token, Batch(self._batch, 1, 1))
                for store in (*self.stores, *self.kept):
                    attempt.instance.overlays[store].changes.update(changes.get((store, number), {}))
                task.finish_attempt(attempt)
                task.end(self._batch, {STAGE: token})

    def content(self) -> dict[tuple[str, int], dict[bytes, bytes]]:
        return {
            (store, number): dict(task.engine(store).scan(None, None))
            for home in self.fleet.homes.values()
            for number, task in home.tasks.items()
            for store in (*self.stores, *self.kept)
        }

    def commit(self, commits: CommitCoordinator, claim: Claim, *, last: bool = False) -> CompletedCommit:
        """A whole commit. Raises what fails."""
        commits.begin(claim, self.request(last=last))
        done = commits.wait(DEADLINE_S, threading.Event())
        assert done is not None
        return done

    def request(self, *, last: bool = False) -> CommitRequest:
        positions = {TaskSsp(ssp.partition, ssp): self._batch for ssp in self._inputs}
        return CommitRequest(Boundary(positions, self._batch, 1), ended="stopped" if last else None)

    def repartition(self, tasks: int, mover: Mover, rules: Mapping[str, Rule]) -> RepartitionFacts:
        """Move the state of the stopped job to another number of tasks: the command, in this process, over the objects
        and the systems of this job. Raises what fails."""
        found = FoundJob(self.settings(tasks), PATHS, self.objects)
        streams = JobStreams.open(self.graph, found.config, self.systems)
        with pytest.MonkeyPatch.context() as patch:
            for module in (move, outside_backup):
                patch.setattr(module, "open_job_root", lambda _: self.objects)
                patch.setattr(module, "open_systems", lambda _: self.systems)
            return repartition(planned_for(found, self.graph, streams, tasks, rules), mover)
