"""The pushed tables of a container in one epoch: its loaded versions, and views of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from penstock.api.state.side_inputs import PushedTable
from penstock.batch.batch import NO_BATCH, Batch
from penstock.container.part import Answers, ContainerPart, EpochContext, once
from penstock.errors import ContainerLostError
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.snapshot import Snapshot
from penstock.state.stores.view import SideView
from penstock.tables.container.folders import TableFolders
from penstock.tables.container.load import ALL, LoadingPlace, TableLoad
from penstock.tables.container.store import TableView
from penstock.tables.versions.manifest import TableFile, TableManifest
from penstock.tables.versions.registry import TableRegistry
from penstock.tables.wing import LOAD_TABLE, TABLES, LoadTable, TableProgress

_UNITS = 4
_TRANSFERS = 4
_KEPT_ON_HOST = 2
"""The number of newest versions that stay on the host, for a rollback and for the next start."""


class PushedTables(ContainerPart):
    """A service, and `SideStores` for pushed tables. Thread-safe.

    It has two versions of each table: the one that the running batch reads, and the one that the driver asked for last.
    """

    name = "pushed tables"

    def __init__(self, epoch: EpochContext) -> None:
        super().__init__(epoch)
        resources, tasks = epoch.resources, epoch.request.tasks
        graph = resources.package.topology.graph
        self._broadcast = {
            spec.name: spec.side.broadcast for spec in graph.stores if isinstance(spec.side, PushedTable)
        }
        self._tasks = tuple(tasks)
        self._resources = resources
        self._lock = threading.Lock()
        self._metrics = MetricsRegistry(f"container {resources.container}")
        self._units = ThreadPoolExecutor(_UNITS, thread_name_prefix=f"tables-{resources.epoch}")
        self._transfers = ThreadPoolExecutor(_TRANSFERS, thread_name_prefix=f"table-files-{resources.epoch}")
        self._places = {table: self._place(table) for table in self._broadcast}
        self._loads: dict[str, dict[int, TableLoad]] = {table: {} for table in self._broadcast}
        self._asked: dict[str, int] = {}
        """Table → the version that the driver asked for last."""
        self._in_use: dict[str, int | None] = {}
        """Table → the version that the next batches read, as far as it is known."""
        self._batch = NO_BATCH
        self._stopped = False

    def start(self) -> None:
        """Remove the leftovers of dead processes."""
        if self._places:
            self._units.submit(self._clean)

    def answers(self) -> Mapping[str, Answers]:
        return {LOAD_TABLE.name: once(self.load), TABLES.name: once(lambda _: self.progress())}

    def load(self, request: LoadTable) -> None:
        """Load a version, unless that has begun and not failed. Returns at once."""
        manifest = TableManifest.decode(request.manifest, f"the manifest of table {request.table}")
        table, version = request.table, manifest.version
        with self._lock:
            if self._stopped:
                raise ContainerLostError("this container leaves the epoch")
            loads = self._loads[table]
            self._asked[table], self._in_use[table] = version, request.in_use
            if version not in loads or loads[version].progress().state == "failed":
                loads[version] = load = TableLoad(manifest, self._units_of(table), self._places[table])
                load.begin()
            self._drop_unused(table)

    def progress(self) -> list[TableProgress]:
        """The progress of the versions that were asked for last."""
        with self._lock:
            return [self._loads[table][version].progress() for table, version in self._asked.items()]

    def start_run(self, batch: Batch) -> None:
        """Begin a run of a batch, after all attempts of earlier ones: close the versions that it does not read."""
        with self._lock:
            changed = batch.tables != self._batch.tables
            self._batch = batch
            self._in_use.update(batch.tables)
            if changed:
                for table in self._loads:
                    self._drop_unused(table)
        if changed:
            self._units.submit(self._clean)

    def views(self, task: int, batch: Batch) -> Mapping[str, SideView]:
        """See `SideStores`. Raises ContainerLostError if a version that the batch names is not loaded."""
        return {table: self._view(table, batch.tables.get(table), task) for table in self._loads}

    def newest(self, table: str, task: int) -> SideView:
        """A task's view of the version that was asked for last. For reading, once it is loaded."""
        return self._view(table, self._asked.get(table), task)

    def release(self, task: int, batch: int) -> None:
        """Nothing to release: the next batch closes versions that it does not read."""

    def metrics(self) -> Snapshot:
        return self._metrics.snapshot()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for loads in self._loads.values():
                for load in loads.values():
                    load.close()
                loads.clear()
            self._asked.clear()
        self._units.shutdown()
        self._transfers.shutdown()

    def status(self) -> str:
        found = [each for each in self.progress() if each.state == "loading"]
        return ", ".join(f"loads version {each.version} of table `{each.table}`" for each in found)

    def _place(self, table: str) -> LoadingPlace:
        resources = self._resources
        downloaded = self._metrics.new_counter(f"store.{table}", "tables-bytes-downloaded")
        registry = TableRegistry(resources.objects, resources.paths, table)

        def pieces(manifest: TableManifest, file: TableFile) -> Iterator[bytes | memoryview]:
            for piece in registry.pieces(manifest, file):
                downloaded.inc(len(piece))
                yield piece

        return LoadingPlace(
            resources.package.config.store(table),
            TableFolders(resources.folders.of_store(table)),
            pieces,
            self._units,
            self._transfers,
        )

    def _units_of(self, table: str) -> tuple[str, ...]:
        return (ALL,) if self._broadcast[table] else tuple(str(task) for task in self._tasks)

    def _view(self, table: str, version: int | None, task: int) -> SideView:
        with self._lock:
            load = None if version is None else self._loads[table].get(version)
        unit = ALL if self._broadcast[table] else str(task)
        engine = None if load is None else load.engine(unit)
        if load is None or version is None or engine is None:
            raise ContainerLostError(f"version {version} of table `{table}` is not loaded here for task {task}")
        return TableView(engine, table, version, lambda: load.damaged(unit))

    def _drop_unused(self, table: str) -> None:
        """Close the versions that neither the running batch nor the next ones read, and that the driver has not
        asked for. Called under the lock."""
        loads = self._loads[table]
        for version in loads.keys() - {self._batch.tables.get(table), self._in_use.get(table), self._asked.get(table)}:
            loads.pop(version).close()

    def _clean(self) -> None:
        for table, place in self._places.items():
            with self._lock:
                loaded = tuple(self._loads[table])
            place.folders.clean(loaded, _KEPT_ON_HOST)
