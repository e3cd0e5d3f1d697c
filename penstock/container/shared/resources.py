"""Resources that all tasks of a container share in one epoch: object stores, folders, and threads."""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from penstock.base.clock import SYSTEM_CLOCK, Clock
from penstock.checkpoint.id import CheckpointId
from penstock.container.shared.metrics import EpochMetrics
from penstock.container.shared.store_folders import StoreFolders, stores_directory
from penstock.errors import NotFoundError
from penstock.job.identity import known_uid
from penstock.job.paths import JobPaths
from penstock.objects.metered import MeteredObjectStore
from penstock.objects.open import open_job_root
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import BackendContext
from penstock.state.backends.pools import BackendPools
from penstock.state.backends.roots import BackendRoots
from penstock.state.kept.store import StoreAtCheckpoint
from penstock.state.kept.stores import KeptStores
from penstock.state.restore import restore_order
from penstock.wire.package import JobPackage

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
