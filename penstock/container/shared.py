"""The tasks of a container share these in one epoch: object stores, folders, threads, metrics, and services.

The folders of the stores are on this host, with the engines over them. The metrics are what tasks, stores and
backends count, and what goes with the container's beats. Each background service has one owner, which starts and
stops it.
"""

from __future__ import annotations

import logging
import shutil
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from penstock.base.retry import SYSTEM_CLOCK, Clock
from penstock.batch.batch import Batch
from penstock.checkpoint.record import CheckpointId
from penstock.config.model import JobConfig
from penstock.errors import NotFoundError
from penstock.job.identity import known_uid
from penstock.job.paths import JobPaths
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.snapshot import GaugeValue, MetricId, Row, Snapshot, Value
from penstock.objects.forwarding import MeteredObjectStore
from penstock.objects.open import open_job_root
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import BackendContext
from penstock.state.backends.resources import BackendPools, BackendRoots
from penstock.state.engines.engine import Engine
from penstock.state.engines.open import open_engine, open_restored
from penstock.state.kept import KeptStores, StoreAtCheckpoint
from penstock.state.restore import LocalCopies, restore_order
from penstock.wire.ports import JobPackage


class EpochMetrics:
    """The registries of a container in one epoch, one for each task. Thread-safe."""

    def __init__(self, source: str = "Partition") -> None:
        """`source`: the word for a task in metric names."""
        self._source = source
        self._lock = threading.Lock()
        self._tasks: dict[int, MetricsRegistry] = {}

    def of_task(self, task: int) -> MetricsRegistry:
        with self._lock:
            if task not in self._tasks:
                self._tasks[task] = MetricsRegistry(f"{self._source} {task}")
            return self._tasks[task]

    def snapshot(self) -> Snapshot:
        with self._lock:
            return Snapshot().merged(*(registry.snapshot() for registry in self._tasks.values()))


class ChangedRows:
    """Filters metrics for the next beat to those that have changed: most metrics of most tasks do not."""

    def __init__(self) -> None:
        self._sent: dict[MetricId, Value] = {}

    def of(self, snapshot: Snapshot) -> list[Row]:
        changed = Snapshot({key: value for key, value in snapshot.items() if self._sent.get(key) != value})
        self._sent.update(changed)
        return changed.rows()


def engine_metrics(task: int, store: str, engine: Engine) -> Snapshot:
    gauges = {name: GaugeValue(number) for name, number in engine.statistics().items()}
    values: dict[str, Value] = {**gauges, **engine.measurements()}
    return Snapshot({MetricId(f"Partition {task}", f"store.{store}", name): each for name, each in values.items()})


def stores_directory(config: JobConfig, job_uid: str) -> Path:
    """The folder of a job's stores on a host. A job that was deleted and created again has another one."""
    return Path(config.job.logged_store_base_dir) / f"{config.job.name}-{config.job.id}-{job_uid}"


class StoreFolders:
    """`<base>/<store>/<task>/`: `live-<epoch>-<container>`, the working copy, private to this container and epoch;
    `making-...`, a copy being uploaded; `copy-<checkpoint id>`, see `penstock.state.restore`."""

    def __init__(self, config: JobConfig, stores: tuple[str, ...], base: Path, container: str, epoch: int) -> None:
        self.stores = stores
        self.base = base
        self._config = config
        self._container = container
        self._epoch = epoch
        self._live_name = f"live-{epoch}-{container}"
        self._copies: dict[tuple[str, int], LocalCopies] = {}
        self._adopted: dict[tuple[str, int], Path] = {}
        """Working copies that an earlier epoch or a standby has made, and that stay in their folders."""

    def of_store(self, store: str) -> Path:
        return self.base / store

    def live(self, store: str, task: int) -> Path:
        """The working copy's folder, without the remains of an older epoch."""
        adopted = self._adopted.get((store, task))
        folder = self._folder(store, task)
        for pattern in ("live-*", "making-*"):
            for path in folder.glob(pattern):
                epoch = path.name.split("-")[1]
                # A process that still has the copy of an older epoch open is fenced.
                if epoch.isdigit() and int(epoch) < self._epoch and path != adopted:
                    shutil.rmtree(path, ignore_errors=True)
        return folder / self._live_name

    def adopt(self, store: str, task: int, directory: Path) -> None:
        """Make a folder the working copy. It is removed as such."""
        self._adopted[store, task] = directory

    def leave(self, store: str, task: int) -> Path:
        """The working copy's folder, which stays: it has another owner from now on."""
        return self._adopted.pop((store, task), None) or self._folder(store, task) / self._live_name

    def making(self, store: str, task: int, checkpoint_id: CheckpointId) -> Path:
        return self._folder(store, task) / f"making-{self._epoch}-{self._container}-{checkpoint_id}"

    def copies(self, store: str, task: int) -> LocalCopies:
        place = (store, task)
        if place not in self._copies:
            self._copies[place] = LocalCopies(self._folder(store, task))
        return self._copies[place]

    def open(self, store: str, directory: Path, *, read_only: bool = False) -> Engine:
        return open_engine(self._config.store(store), directory, read_only=read_only)

    def open_restored(self, store: str, directory: Path) -> Engine:
        """The store's engine over a folder that a restore has filled, whatever kind of engine wrote the files."""
        return open_restored(self._config.store(store), directory)

    def remove_live(self, store: str, task: int) -> None:
        """Remove the working copy and unfinished copies; they are never read again."""
        folder = self._folder(store, task)
        adopted = self._adopted.pop((store, task), None)
        if adopted is not None:
            shutil.rmtree(adopted, ignore_errors=True)
        for path in (*folder.glob(f"live-{self._epoch}-*"), *folder.glob(f"making-{self._epoch}-*")):
            if self._container in path.name:
                shutil.rmtree(path, ignore_errors=True)

    def remove_all_live(self, tasks: Iterable[int]) -> None:
        for task in tasks:
            for store in self.stores:
                self.remove_live(store, task)

    def _folder(self, store: str, task: int) -> Path:
        return self.base / store / str(task)


_WRITERS = 2
_MAX_POOL = 64


class EpochResources:
    """Opened when a container enters an epoch, closed last when it leaves it."""

    def __init__(
        self,
        package: JobPackage,
        container: str,
        epoch: int,
        tasks: int,
        objects: ObjectStore | None = None,
        kept_stores: KeptStores | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`tasks`: how many of the job's tasks the container will hold. `objects`: the job root, if it is open.
        `kept_stores`: those of the process. `clock`: for the time-based work of backends."""
        config = package.config
        self.package = package
        self.container = container
        self.clock = clock
        self.epoch = epoch
        self.tasks = tasks
        graph, base = package.topology.graph, stores_directory(config, package.job_uid)
        self.stores = tuple(spec.name for spec in graph.written_stores)
        self.metrics = EpochMetrics()
        self.standby_metrics = EpochMetrics("Standby")
        self.kept_stores = kept_stores or KeptStores(container)
        self.leaving = threading.Event()
        """Set once the container leaves the epoch: long work looks at it now and then."""
        self.paths = JobPaths(config.job.name, config.job.id)
        self.objects = objects or open_job_root(config.job)
        self._roots = BackendRoots(config, self.objects)
        self.folders = StoreFolders(config, self.stores, base, container, epoch)
        self.writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix=f"write-{epoch}")
        """For write-behind engines."""
        self._backends = BackendPools.for_tasks(tasks, str(epoch))
        self._damaged: dict[str, set[str]] = defaultdict(set)

    def pool(self, name: str) -> ThreadPoolExecutor:
        """A pool for work on all tasks. The caller shuts it down."""
        size = min(2 * max(self.tasks, 1), _MAX_POOL)
        return ThreadPoolExecutor(size, thread_name_prefix=f"{name}-{self.epoch}")

    def check_root(self) -> None:
        """Raise NotFoundError unless this host reads what the driver has written under job.root, and under the roots of
        backends."""
        try:
            self.objects.get(self.package.probe)
        except NotFoundError as error:
            raise NotFoundError(
                f"host `{socket.gethostname()}` does not see what the driver wrote under job.root "
                f"`{self.package.config.job.root}`: a job root must be shared by all hosts, for example an object "
                "store"
            ) from error
        for url, objects in self._roots.separate():
            if known_uid(objects, self.paths) != self.package.job_uid:
                raise NotFoundError(
                    f"host `{socket.gethostname()}` does not see what the driver wrote under {url} "
                    "(state.backends.<name>.root): a root must be shared by all hosts, for example an object store"
                )

    def backend_context(self, backend: str, task: int, stores: tuple[str, ...]) -> BackendContext:
        metrics = self.metrics.of_task(task)
        return BackendContext(
            MeteredObjectStore(self._roots.of(backend), metrics, f"backend.{backend}"),
            self.paths,
            task,
            stores,
            self.epoch,
            self.package.config,
            self.package.systems,
            self._backends,
            self.leaving,
            metrics,
            self.clock,
            damaged=self._damaged[backend],
            container=self.container,
            partitions=self.package.partitions.get(task, ()),
            uid=self.package.job_uid,
        )

    def standby_context(self, backend: str, task: int, store: str) -> BackendContext:
        """The context of a standby's backend. It counts apart, and a damaged object does not affect others' trust in
        it."""
        context = self.backend_context(backend, task, (store,))
        metrics = self.standby_metrics.of_task(task)
        objects = MeteredObjectStore(self._roots.of(backend), metrics, f"backend.{backend}")
        return replace(context, objects=objects, metrics=metrics, damaged=set())

    def target(
        self, checkpoint_id: CheckpointId, store: str, markers: Mapping[str, Mapping[str, str]]
    ) -> StoreAtCheckpoint:
        """A store at a checkpoint. `markers`: of its task, by backend and store."""
        order = restore_order(store, self.package.config.store(store).restore_factories, markers)
        return StoreAtCheckpoint.of(checkpoint_id, store, order, markers)

    def time_to_go_back(self) -> float:
        """The end of the time that stores have to go back to a checkpoint, on the monotonic clock, if it begins now."""
        return time.monotonic() + self.package.config.task.shutdown_ms / 1000 / 4

    @property
    def found_damage(self) -> bool:
        """True if an object that a backend needs was found damaged or missing in this epoch."""
        return any(self._damaged.values())

    def stop_backends(self) -> None:
        """Wait for running background work of backends, and cancel work that has not begun."""
        self._backends.close()

    def close(self) -> None:
        self.leaving.set()
        self._backends.close()
        self.writers.shutdown()
        self._roots.close()
        self.objects.close()


logger = logging.getLogger(__name__)


class Service:
    """Work of a container from the opening of an epoch until the container leaves it. By default it does nothing.

    A service is never started again: the next epoch makes another one. Its methods but `status` and `metrics` are
    called by one thread at a time.
    """

    name: str

    def start(self) -> None:
        """Begin. All services that were added before are running."""

    def start_run(self, batch: Batch) -> None:
        """Prepare for this run of a batch. Services that were added later have ended what they did for earlier runs."""

    def wind_down(self, timeout_s: float) -> None:
        """Let work that makes the next start quicker end within that time: the run has ended well, and `stop`
        follows."""

    def stop(self) -> None:
        """Stop and join the work. All services that were added before are still running."""

    def status(self) -> str:
        """The present work in a few words; empty if there is none. Called by any thread."""
        return ""

    def metrics(self) -> Snapshot:
        """Called by any thread, after `stop` as well."""
        return Snapshot()


class Services:
    """The services of one epoch, stopped in the reverse of the order in which they were added.

    Used by one thread; `status` and `metrics` by any.
    """

    def __init__(self) -> None:
        self._all: list[Service] = []
        self._running: list[Service] = []

    def add(self, service: Service) -> None:
        """Start a service, and own it from here on. Raises the errors of its start; `stop` stops such a service,
        too."""
        self._all.append(service)
        self._running.append(service)
        service.start()

    def start_run(self, batch: Batch) -> None:
        for service in reversed(self._running):
            service.start_run(batch)

    def wind_down(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for service in self._running:
            service.wind_down(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Stop all services. A failure of one is logged and does not keep the others. Idempotent."""
        while self._running:
            service = self._running[-1]  # it stays listed until it has stopped, for `status`
            try:
                service.stop()
            except Exception:
                logger.exception("stopping the %s failed", service.name)
            self._running.pop()

    def status(self) -> dict[str, str]:
        return {service.name: service.status() for service in list(self._running)}

    def metrics(self) -> Snapshot:
        return Snapshot().merged(*(service.metrics() for service in self._all))
