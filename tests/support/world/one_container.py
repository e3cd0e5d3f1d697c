"""One container, called as a driver calls it. Its engines and backends are real, and the object store is a folder."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.container.attempts import RunningAttempt
from penstock.container.container import Epoch
from penstock.container.shared import EpochResources, stores_directory
from penstock.graph.topology import plan_topology
from penstock.runtime.messages.packet import Packet
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.attempt import new_token
from penstock.runtime.stage.source import InputReaders, run_source
from penstock.start.layout import store_layout
from penstock.state.backends.registry import BackendAdmins
from penstock.state.kept import KeptStores
from penstock.system.base import OffsetRange
from penstock.wire.ports import JobPackage
from penstock.wire.protocol import (
    AttemptCall,
    CleanUp,
    EndBatch,
    Identity,
    Markers,
    OpenEpoch,
    StartRun,
    TakeSnapshot,
    UploadSnapshot,
)
from tests.support.world.world import World

TASKS = 2
STAGE = 1
STORES = ("sums", "last")
Content = dict[int, dict[str, int]]
"""Task -> key -> sum."""


class Sum(ps.StreamTask):
    """Sums up the values of each key, and keeps the last one."""

    def init(self, context: ps.TaskContext) -> None:
        self.sums, self.last = context.store("sums"), context.store("last")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        self.sums[envelope.key] = self.sums.get(envelope.key, 0) + envelope.value
        self.last[envelope.key] = envelope.value


@dataclass(frozen=True)
class Saved:
    """A checkpoint that a driver would have in its log."""

    id: str
    markers: Markers
    batch: int
    content: Content


class OneContainer(World):
    """The container's process, which lives on from epoch to epoch until `restart`."""

    def __init__(self, folder: Path, engine: str = "memory", **config: object) -> None:
        super().__init__(folder / "local", "sums", ("in",), TASKS, root=str(folder / "jobs"))
        app = ps.StreamApplication(self.paths.name)
        for store in STORES:
            app.store(store, key=ps.String(), value=ps.Json())
        app.input("m.in", key=ps.String(), value=ps.Json()).process(Sum, stores=list(STORES), id="sum")
        self._graph = app.graph()
        self.topology = plan_topology(self._graph)
        self.settings = RuntimeSettings(self.paths.name, TASKS, {})
        self.keys: dict[str, object] = {
            **{f"stores.{store}.factory": engine for store in STORES},
            **{f"stores.{store}.changelog": f"local.{store}" for store in STORES},
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        """The configuration of the next epoch."""
        self.kept = KeptStores("c")
        self.epoch: Epoch | None = None
        self.sums: Content = {task: {} for task in range(TASKS)}
        """The content that the store `sums` must have."""
        self._number = self._batch = self._commits = 0

    # Epochs.

    def enter(
        self, saved: Saved | None = None, *, covered: Sequence[str] = STORES, cancelled: threading.Event | None = None
    ) -> Epoch:
        """Enter the next epoch from a checkpoint, as after a rewind. Stores that are not `covered` begin empty."""
        self.leave()
        self._number += 1
        self._batch = 0 if saved is None else saved.batch
        self.sums = {task: {} for task in range(TASKS)} if saved is None else _copy(saved.content)
        config = self.load(self.keys)
        layout = list(store_layout(self._graph))
        BackendAdmins(config, self.paths, self.objects, TASKS, layout, self.systems, "uid").prepare(self._number)
        package = JobPackage(self.topology, self.settings, config, "uid", "probe", self.systems)
        resources = EpochResources(package, "c", self._number, TASKS, self.store, self.kept)
        request = OpenEpoch(
            b"",
            self._batch,
            None if saved is None else saved.id,
            {} if saved is None else _only(saved.markers, covered),
            () if saved is None else tuple(covered),
            tuple(range(TASKS)),
        )
        self.store.read.clear()
        self.epoch = Epoch(resources, request, cancelled or threading.Event(), lambda _: None)
        self.kept.drop_kept()
        return self.epoch

    def leave(self) -> None:
        """Leave the epoch; stores that are at a checkpoint stay open in the process."""
        epoch, self.epoch = self.epoch, None
        if epoch is not None:
            epoch.leave(keep=True)

    def restart(self) -> None:
        """End the process, and begin another one on the same host."""
        self.leave()
        self.kept.close()
        self.kept = KeptStores("c")

    def close(self) -> None:
        self.store.heal()
        self.restart()
        super().close()

    # Batches.

    def batch(self) -> Batch:
        """The batch that follows."""
        return Batch(self._batch + 1, 1, 1)

    def packets(self, batch: Batch, task: int, messages: Mapping[str, int]) -> list[Packet]:
        """The packets for a task that brings it these messages, by key."""
        ssp = SystemStreamPartition("m", "in", task)
        records = [(0, key.encode(), orjson.dumps(value)) for key, value in messages.items()]
        first = self.system.admin().offsets("in")[task].upcoming
        self.append("in", task, *records)
        ranges = [(0, Portion(OffsetRange(ssp, first, first + len(records)), len(records)))] if records else []
        sent = run_source(self.topology, self.settings, batch, task, ranges, InputReaders(self.systems))
        return [packet for packet in sent if packet.stage == STAGE]

    def begin(self, batch: Batch, task: int, token: str = "") -> RunningAttempt:
        """Begin an attempt of a task."""
        epoch = self._open
        call = AttemptCall(Identity("", epoch.number), batch, STAGE, [task])
        return epoch.attempts.begin(call, task, token or new_token())

    def feed(self, running: RunningAttempt, messages: Mapping[str, int]) -> None:
        """All messages of an attempt."""
        packets = self.packets(running.attempt.batch, running.attempt.task, messages)
        self._open.attempts.process(running, packets)

    def end(self, batch: Batch, tokens: Sequence[str]) -> None:
        """Apply the attempts with these tokens, by task."""
        self._open.end(EndBatch(batch, {task: {STAGE: token} for task, token in enumerate(tokens)}))
        self._batch = batch.number

    def run(self, *messages: Mapping[str, int]) -> None:
        """A batch with these messages, by task."""
        batch, tokens = self.batch(), []
        self._open.start_run(StartRun(batch))
        for task in range(TASKS):
            own = messages[task] if task < len(messages) else {}
            running = self.begin(batch, task)
            self.feed(running, own)
            self._open.attempts.finish(running)
            tokens.append(running.attempt.token)
            for key, value in own.items():
                self.sums[task][key] = self.sums[task].get(key, 0) + value
        self.end(batch, tokens)

    # Commits.

    def snapshot(self) -> Saved:
        """The synchronous part of a commit. The result has no markers yet."""
        self._commits += 1
        checkpoint_id = f"{1_700_000_000_000 + self._commits}-0"
        self._open.snapshot(TakeSnapshot(checkpoint_id))
        return Saved(checkpoint_id, {}, self._batch, _copy(self.sums))

    def upload(self, begun: Saved) -> Saved:
        """The part in the background. The result is a checkpoint that can be restored."""
        markers: Any = self._open.upload(UploadSnapshot(begun.id)).markers
        return Saved(begun.id, markers, begun.batch, begun.content)

    def clean_up(self, saved: Saved) -> None:
        """The record is in the log."""
        self._open.clean_up(CleanUp(saved.id, saved.markers))

    def commit(self) -> Saved:
        saved = self.upload(self.snapshot())
        self.clean_up(saved)
        return saved

    # What is there.

    def content(self, store: str = "sums") -> Content:
        return {
            task: {key.decode(): orjson.loads(value) for key, value in instance.engine(store).scan(None, None)}
            for task, instance in self._open.tasks.items()
        }

    def local(self, pattern: str) -> list[Path]:
        """Folders and files of the stores on this host."""
        return sorted(stores_directory(self.load(self.keys), "uid").glob(f"*/*/{pattern}"))

    def state_read(self) -> list[str]:
        """The keys of state that were read from the object store since the epoch was entered."""
        return [key for key in self.store.read if "/state/" in key]

    def damage(self, kind: str) -> int:
        """Flip a bit in the objects of state with this ending. Returns their number."""
        found = [key for key in self.objects.list(f"{self.paths.root}/state") if key.endswith(kind)]
        for key in found:
            data = bytearray(self.objects.get(key))
            data[-1] ^= 1
            self.store.replace(key, bytes(data))
        return len(found)

    @property
    def _open(self) -> Epoch:
        assert self.epoch is not None
        return self.epoch


def _only(markers: Markers, stores: Sequence[str]) -> Markers:
    return {
        task: {name: {store: own[store] for store in stores if store in own} for name, own in backends.items()}
        for task, backends in markers.items()
    }


def _copy(content: Content) -> Content:
    return {task: dict(own) for task, own in content.items()}
