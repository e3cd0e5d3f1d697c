"""Stores that were filled outside of a run: their backup, which imports have in common, and the first checkpoint of a
job inside a streaming query, which names them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from penstock.admin.checkpoint.change import NextCheckpoint, next_checkpoint
from penstock.admin.checkpoint.target import before_the_first
from penstock.admin.jobs import FoundJob, opened
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import QUERY, OfferedBatch, QuerySection
from penstock.checkpoint.edit import CheckpointContent
from penstock.checkpoint.log import OnDamage
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointId, CheckpointRecord
from penstock.checkpoint.sections import Sections
from penstock.checkpoint.task_values import Markers
from penstock.config.model import JobConfig
from penstock.errors import IncompatibleError, PenstockError
from penstock.graph.specs import ApplicationGraph
from penstock.job.identity import settle
from penstock.start.job_streams import JobStreams
from penstock.start.layout import store_layout
from penstock.state.backends.base import BackendContext, StoreCopy
from penstock.state.backends.registry import BackendAdmins
from penstock.state.backends.resources import BackendRoots
from penstock.state.outside_backup import BaseUpload, FirstBackup, OutsideBackup
from penstock.system.base import System
from penstock.system.contract.definition import QUERY_SYSTEM
from penstock.system.spark import QuerySystem

logger = logging.getLogger(__name__)

_UPLOADERS = 4


@dataclass(slots=True)
class StoreUploads:
    """The stores of a job that is held, on their way to their backends. Used by one thread."""

    following: NextCheckpoint
    tasks: int
    systems: Mapping[str, System]
    _open: list[BaseUpload] = field(default_factory=list)
    _copies: list[StoreCopy] = field(default_factory=list)
    _stores: list[str] = field(default_factory=list)

    def prepare(self, stores: Sequence[str]) -> None:
        """Make what the backends keep for the stores. Raises PenstockError."""
        found, tasks, systems = self.following.found, self.tasks, self.systems
        uid, restorable = settle(found.objects, found.paths, found.config.job.root), self.following.view.restorable
        with closing(
            BackendAdmins(found.config, found.paths, found.objects, tasks, list(stores), systems, uid, restorable)
        ) as admins:
            admins.prepare(self.following.claim.epoch)

    def outside(self, before: CheckpointId, stores: Sequence[str]) -> OutsideBackup:
        """For a checkpoint after `before` whose stores other processes back up. The backends are prepared."""
        self.prepare(stores)
        found, following = self.following.found, self.following
        return OutsideBackup(found.config, found.paths, following.claim.epoch, before, following.id)

    def add(self, store: str, copies: Sequence[StoreCopy], roots: BackendRoots) -> None:
        """A store is to be backed up. `copies` has its content, task by task."""
        found, epoch = self.following.found, self.following.claim.epoch
        for backend in found.config.store(store).backup_factories:
            for task, copy in enumerate(copies):
                objects = roots.of(backend)
                context = BackendContext(objects, found.paths, task, (store,), epoch, found.config, self.systems)
                self._open.append(BaseUpload(backend, context))
                self._copies.append(copy)
                self._stores.append(store)

    def run(self, before: CheckpointId, checkpoint_id: CheckpointId) -> dict[int, Markers]:
        """Back everything up for a checkpoint. Returns the markers, task by task.

        Args:
            before: the checkpoint that it comes after.
        """
        with ThreadPoolExecutor(_UPLOADERS, thread_name_prefix="import") as pool:
            futures = [
                pool.submit(each.run, before, checkpoint_id, copy)
                for each, copy in zip(self._open, self._copies, strict=True)
            ]
            try:
                found: dict[int, dict[str, dict[str, str]]] = {}
                for each, store, future in zip(self._open, self._stores, futures, strict=True):
                    found.setdefault(each.task, {}).setdefault(each.backend, {})[store] = future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        return dict(found)

    def done(self, checkpoint_id: CheckpointId, markers: Mapping[int, Markers]) -> None:
        """The checkpoint is in the log. What fails here costs space, no state: the job's next commit does it again."""
        for each, store in zip(self._open, self._stores, strict=True):
            try:
                each.done(checkpoint_id, markers[each.task][each.backend][store])
            except PenstockError as error:
                logger.warning("cleaning up in backend %s failed: %s", each.backend, error)

    def close(self) -> None:
        for each in self._open:
            each.close()


BackUp: TypeAlias = Callable[[FirstBackup], Mapping[int, Markers]]
"""Makes all backups of a first checkpoint. Returns the markers, task by task."""


@dataclass(frozen=True, slots=True)
class FirstState:
    """The content of the first checkpoint of a query's job."""

    graph: ApplicationGraph
    config: JobConfig
    query: str
    batch: int
    """The last batch that the state has seen."""
    plan: str
    """Tells the batch from others of its number (`OfferedBatch.plan`)."""
    tasks: int
    stores: tuple[str, ...]
    back_up: BackUp
    batches: int = 0
    """The number of batches that made the state; with 0, the job's first batch brings initial state."""


def first_record(config: JobConfig, on_damage: OnDamage = "raise") -> CheckpointRecord | None:
    """The last checkpoint of the job; None if it has none.

    Args:
        on_damage: see `CheckpointLog.read`.
    """
    with opened(config) as found:
        return found.log.read(on_damage).latest


def write_first_state(state: FirstState) -> CheckpointRecord:
    """Back up all stores while the job is held, and append its first checkpoint. Until that nothing has changed: what a
    process that dies before leaves behind is named by no checkpoint.

    Raises:
        IncompatibleError: the job has a checkpoint.
        LeaseHeldError, FencedError: the job runs.
        PenstockError: a backend failed.
    """
    with opened(state.config) as found:
        seen = found.log.read()
        if seen.latest is not None:
            raise IncompatibleError(f"job {found.paths.root} has the checkpoint {seen.latest.id}: nothing was imported")
        system = QuerySystem(state.query, state.tasks, state.batch + 1)
        with closing(JobStreams.open(state.graph, state.config, {QUERY_SYSTEM: system})) as streams:
            return _commit(state, found, seen, streams)


def _commit(state: FirstState, found: FoundJob, seen: LogView, streams: JobStreams) -> CheckpointRecord:
    late = f"job {found.paths.root} has a checkpoint now: nothing was imported"
    with next_checkpoint(found, "import", seen, late) as following:
        base = _base(state, streams)
        backup = StoreUploads(following, state.tasks, streams.systems).outside(base.id, state.stores)
        markers = state.back_up(FirstBackup(backup, state.tasks, state.stores))
        record = following.record(base, CheckpointContent(_offsets(state, streams), markers, streams.identities()))
        following.append(record)
    return record


def _base(state: FirstState, streams: JobStreams) -> CheckpointRecord:
    sections = Sections.of({QUERY: QuerySection(OfferedBatch(state.plan, has_output=False))})
    first = before_the_first(state.tasks, store_layout(state.graph))
    return replace(first, batch=state.batches, next_offsets=_offsets(state, streams), sections=sections)


def _offsets(state: FirstState, streams: JobStreams) -> dict[int, dict[SystemStreamPartition, int]]:
    grouping = streams.group(streams.ends())
    return {task: dict.fromkeys(ssps, state.batch + 1) for task, ssps in grouping.tasks.items()}
