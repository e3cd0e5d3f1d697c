"""The pushed tables of a container in one epoch: its versions, loaded in the background, and views of them."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from penstock.api.side_inputs import PushedTable
from penstock.base.files import explained
from penstock.base.parallel import in_parallel
from penstock.base.retry import Retry, retry
from penstock.batch.batch import NO_BATCH, Batch
from penstock.config.settings import StoreSettings
from penstock.container.part import Answers, ContainerPart, EpochContext, once
from penstock.errors import ContainerLostError, CorruptError, NotFoundError, PenstockError, RetryableError
from penstock.host.posix import sync
from penstock.host.process import HostFolder
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.snapshot import Snapshot
from penstock.state.engines.engine import Engine
from penstock.state.engines.open import open_rocksdb
from penstock.state.stores.task_store import SideView
from penstock.tables.manifest import TableFile, TableManifest
from penstock.tables.registry import TableRegistry
from penstock.tables.store import DATABASE, TableFolders, TableView, open_table
from penstock.tables.wing import LOAD_TABLE, TABLES, LoadTable, TableProgress

logger = logging.getLogger(__name__)
ALL = "all"
"""The unit of a broadcast table, which a container loads once."""
Pieces: TypeAlias = Callable[[TableManifest, TableFile], Iterator[bytes | memoryview]]
_DOWNLOAD = Retry(pause_s=0.2, tries=4)


@dataclass(frozen=True, slots=True)
class LoadingPlace:
    """The resources that the loads of one table share."""

    settings: StoreSettings
    folders: TableFolders
    pieces: Pieces
    units: Executor
    """Loads units; it waits for transfers."""
    transfers: Executor


@dataclass(frozen=True, slots=True)
class _LoadedUnit:
    folder: HostFolder
    engine: Engine

    def close(self) -> None:
        try:
            self.engine.close()
        except Exception as error:  # it was only read
            logger.warning("`%s` was not closed cleanly: %s", self.folder.path, error)
        self.folder.release()


class TableLoad:
    """One version of a table for some units, which are tasks or `all`. Thread-safe.

    It is loading, then loaded or failed, and closed at last. Only one that is loaded is read.
    """

    def __init__(self, manifest: TableManifest, units: Sequence[str], place: LoadingPlace) -> None:
        self.manifest = manifest
        self.units = tuple(units)
        self._checksum = hashlib.sha256(manifest.encode()).hexdigest()
        self._place = place
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._opened: dict[str, _LoadedUnit] = {}
        self._done_bytes = 0
        self._total_bytes = sum(file.size_bytes for unit in units for file in self._files(unit))
        self._failure: str | None = None

    def begin(self) -> None:
        for unit in self.units:
            self._submit(partial(self._load, unit))

    def progress(self) -> TableProgress:
        with self._lock:
            loaded = self._failure is None and len(self._opened) == len(self.units)
            return TableProgress(
                self.manifest.table,
                self.manifest.version,
                "failed" if self._failure is not None else "loaded" if loaded else "loading",
                self._total_bytes if loaded else self._done_bytes,
                self._total_bytes,
                self._failure or "",
            )

    def engine(self, unit: str) -> Engine | None:
        opened = self._opened.get(unit)
        return None if opened is None else opened.engine

    def damaged(self, unit: str) -> None:
        """Note that the unit's files cannot be read. The next process that opens them loads them again."""
        with self._lock:
            opened = None if self._stopped.is_set() else self._opened.get(unit)
        if opened is not None:
            logger.error("the files of %s in `%s` are damaged: they will be loaded again", self, opened.folder.path)
            self._place.folders.set_aside(opened.folder)

    def close(self) -> None:
        """Stop loading, and close the engines, in the background. Idempotent."""
        with self._lock:
            self._stopped.set()
            opened, self._opened = self._opened, {}
        for each in opened.values():
            self._submit(each.close)

    def __str__(self) -> str:
        return f"version {self.manifest.version} of table `{self.manifest.table}`"

    def _submit(self, work: Callable[[], None]) -> None:
        """Run on the pool; or here, once the pool is closed."""
        try:
            self._place.units.submit(work)
        except RuntimeError:
            work()

    def _files(self, unit: str) -> tuple[TableFile, ...]:
        return self.manifest.of_task(0 if unit == ALL else int(unit))

    def _load(self, unit: str) -> None:
        try:
            opened = self._open(unit)
        except BaseException as error:
            self._fail(unit, error)
            return
        with self._lock:
            if not self._stopped.is_set():
                self._opened[unit] = opened
                return
        opened.close()

    def _fail(self, unit: str, error: BaseException) -> None:
        with self._lock:
            if self._stopped.is_set() or self._failure is not None:
                return
            known = isinstance(error, PenstockError)
            self._failure = str(error) if known else f"{type(error).__name__}: {error}"
        logger.error("%s was not loaded for task %s", self, unit, exc_info=None if known else error)
        self.close()

    def _check(self) -> None:
        if self._stopped.is_set():
            raise RetryableError(f"the loading of {self} was cancelled")

    def _open(self, unit: str) -> _LoadedUnit:
        self._check()
        with explained(f"{self} cannot be loaded into `{self._place.folders.base}`", "job.logged.store.base.dir"):
            opened = self._reopen(unit)
            if opened is None:
                with self._place.folders.loading(unit, self._stopped):
                    opened = self._reopen(unit) or self._fetch(unit)
        return opened

    def _reopen(self, unit: str) -> _LoadedUnit | None:
        folder = self._place.folders.take(self.manifest.version, unit, self._checksum)
        if folder is None:
            return None
        try:
            opened = self._opened_in(folder, unit)
        except CorruptError as error:
            logger.warning("the loaded copy of %s is not used, but loaded again: %s", self, error)
            self._place.folders.drop(folder)
            return None
        except BaseException:
            folder.release()
            raise
        self._add(sum(file.size_bytes for file in self._files(unit)))
        return opened

    def _fetch(self, unit: str) -> _LoadedUnit:
        folders, settings = self._place.folders, self._place.settings
        folder = folders.make()
        try:
            tables = {folder.path / f"{number}.sst": file for number, file in enumerate(self._files(unit))}
            jobs = [partial(self._download, file, path) for path, file in tables.items()]
            for _ in in_parallel(jobs, self._place.transfers, self._stopped, f"the loading of {self}"):
                pass
            database = open_rocksdb(settings, folder.path / DATABASE)
            try:
                database.ingest(tables)
            finally:
                database.close()
            self._check()
            folder = folders.publish(folder, self.manifest.version, unit, self._checksum)
            return self._opened_in(folder, unit)
        except BaseException:
            folders.drop(folder)
            raise

    def _opened_in(self, folder: HostFolder, unit: str) -> _LoadedUnit:
        rows = sum(file.rows for file in self._files(unit))
        return _LoadedUnit(folder, open_table(self._place.settings, folder.path / DATABASE, rows, self._check))

    def _download(self, file: TableFile, path: Path) -> None:
        try:
            retry(lambda: self._download_once(file, path), _DOWNLOAD, interrupt=self._stopped)
        except NotFoundError as error:
            raise NotFoundError(f"file `{file.name}` of {self} is missing: {error}") from error

    def _download_once(self, file: TableFile, path: Path) -> None:
        digest, size = hashlib.sha256(), 0
        try:
            with path.open("wb") as out:
                for piece in self._place.pieces(self.manifest, file):
                    self._check()
                    digest.update(piece)
                    out.write(piece)
                    size += len(piece)
                    self._add(len(piece))
                out.flush()
                sync(out.fileno())  # otherwise RocksDB does it, and lets no other thread run meanwhile
            if size != file.size_bytes:
                raise CorruptError(f"file `{file.name}` of {self} has {size} bytes instead of {file.size_bytes}")
            if digest.hexdigest() != file.sha256:
                raise CorruptError(f"file `{file.name}` of {self} is damaged: its hash differs")
        except BaseException:
            self._add(-size)
            raise

    def _add(self, size: int) -> None:
        with self._lock:
            self._done_bytes += size


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
