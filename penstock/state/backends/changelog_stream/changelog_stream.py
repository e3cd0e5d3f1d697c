"""The changelog stream backend: a commit's net changes are appended to a compacted stream (DESIGN section 8).

Processing logs nothing; only `upload` writes. A store has a stream, a task a partition of it. A store that is backed up
anew, or begins without a checkpoint, starts a generation: only what is behind its first offset counts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.id import CheckpointId
from penstock.errors import ConfigError, FencedError, IncompatibleError, NotFoundError, RetryableError
from penstock.state.backends.base import (
    AdminContext,
    BackendContext,
    Garbage,
    RestoreProgress,
    RestoreTarget,
    Retention,
    StateBackendAdmin,
    StateBackendFactory,
    StoreCopy,
    StoreMarker,
    TaskBackupManager,
    TaskRestoreManager,
)
from penstock.state.backends.base_backup import BaseBackup, Bases
from penstock.state.backends.changelog_stream.owner import is_owned_by, owner_text
from penstock.state.backends.changelog_stream.partition import (
    NAME,
    Changelog,
    ChangelogMarker,
    changelog_system,
    changelog_writer,
    read_changes,
    size_of,
)
from penstock.state.records import Changes
from penstock.system.base import OffsetRange, SystemAdmin
from penstock.wording import counted

logger = logging.getLogger(__name__)

_MIN_DIRTY_RATIO = 0.5
"""A partition is compacted when at least this part of what is looked at is new, as Kafka's log cleaner does it."""


class ChangelogStreamBackup(TaskBackupManager):
    """Appends net changes."""

    def __init__(self, context: BackendContext) -> None:
        self._context = context
        self._logs: dict[str, Changelog] = {}
        self._markers: dict[str, ChangelogMarker] = {}
        self._bases = Bases[ChangelogMarker]()
        self._taken: dict[str, Changes] = {}
        self._timestamp_ms = 0

    def init(self, checkpoint_id: CheckpointId | None, markers: Mapping[str, str]) -> None:
        self._timestamp_ms = 0 if checkpoint_id is None else checkpoint_id.millis
        given = {store: ChangelogMarker.deserialize(marker) for store, marker in markers.items()}
        for store in self._context.stores:
            log = self._logs[store] = self._open(store)
            marker = self._continue(store, log, checkpoint_id, given.get(store))
            if marker is not None:
                self._markers[store] = marker
            else:
                base = BaseBackup(partial(self._write_base, store), self._context.pools.maintenance)
                self._bases.need(store, base)

    def wants_copy(self, store: str, *, changed: bool, last: bool) -> bool:
        return self._bases.needs_copy(store)

    def snapshot(self, checkpoint_id: CheckpointId, changes: Mapping[str, Changes]) -> None:
        self._timestamp_ms = checkpoint_id.millis
        self._taken = dict(changes)
        self._bases.add(changes)

    def upload(self, checkpoint_id: CheckpointId, copies: Mapping[str, StoreCopy]) -> Mapping[str, str]:
        for store, marker, since in self._bases.advance(copies):
            self._markers[store], self._taken[store] = marker, since
        for store, marker in list(self._markers.items()):
            changes = self._taken.get(store, {}).items()
            written = self._logs[store].append(checkpoint_id.millis, changes, self._context.check_leaving)
            if written is not None:
                self._markers[store] = replace(marker, offset=written.end - 1)
            self._taken.pop(store, None)  # so that a second call appends no store again that is done
        return {store: marker.serialize() for store, marker in self._markers.items()}

    def close(self) -> None:
        self._bases.cancel()
        for log in self._logs.values():
            log.close()

    def _open(self, store: str) -> Changelog:
        stream = self._context.config.store(store).changelog
        ssp = SystemStreamPartition(stream.system, stream.stream, self._context.task)
        system = changelog_system(self._context.systems, stream)
        return Changelog(system, ssp, changelog_writer(self._context.paths, self._context.epoch))

    def _continue(
        self, store: str, log: Changelog, checkpoint_id: CheckpointId | None, marker: ChangelogMarker | None
    ) -> ChangelogMarker | None:
        """What the next commit follows, the log being at it; None if the store needs a base."""
        upcoming = log.take_over()
        if checkpoint_id is None or (marker is not None and marker.offset is None):
            return ChangelogMarker(log.ssp, upcoming, None)  # the store is empty: a new generation, nothing to revert
        if marker is None or marker.ssp != log.ssp:
            return None
        try:
            return log.revert(marker, checkpoint_id.millis)
        except NotFoundError as error:
            # Another backend restored the store. Going on behind a hole would make markers that restore nothing.
            logger.warning(
                "store `%s` of task %d gets a new base in its changelog, the old one cannot be continued: %s",
                store,
                self._context.task,
                error,
            )
            return None

    def _write_base(self, store: str, copy: StoreCopy, cancelled: threading.Event) -> ChangelogMarker:
        """Everything in the copy, as a new generation. Until it is complete nobody else appends to the partition."""

        def proceed() -> None:
            if cancelled.is_set():
                raise RetryableError(f"the base of store `{store}` was cancelled")

        log = self._open(store)  # of this thread alone
        try:
            generation = log.take_over()
            with closing(copy.entries()) as entries:
                written = log.append(self._timestamp_ms, entries, proceed)
            return ChangelogMarker(log.ssp, generation, None if written is None else written.end - 1)
        finally:
            log.close()


class ChangelogStreamRestore(TaskRestoreManager):
    """Replays a marker's range, and nothing behind it: whatever other epochs wrote there has no effect."""

    def __init__(self, context: BackendContext) -> None:
        self._context = context

    def restore(self, store: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> None:
        wanted, engine = ChangelogMarker.deserialize(marker), target.engine()
        reader = changelog_system(self._context.systems, wanted.ssp.system_stream).reader()
        try:
            for changes in read_changes(reader, wanted.range):
                if progress.cancelled.is_set():
                    raise RetryableError(f"the restore of store `{store}` of task {self._context.task} was cancelled")
                engine.apply(changes)
                progress.report(size_of(changes))
        except NotFoundError as error:
            raise NotFoundError(
                f"store `{store}` of task {self._context.task} cannot be rebuilt from its changelog: {error}"
            ) from error
        finally:
            reader.close()


class ChangelogStreamAdmin(StateBackendAdmin):
    """Creates, fences and compacts the streams."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._admins: dict[str, SystemAdmin] = {}

    def create_resources(self, epoch: int) -> None:
        """Create the streams that are not there, and fence all of them.

        Raises:
            ConfigError: two stores share a stream, or another job or store owns it; or its system or partition count
                does not fit.
            FencedError: a larger epoch has written to one.
        """
        writer = changelog_writer(self._context.paths, epoch)
        for stream, store in self._streams().items():
            admin = self._admin(stream)
            try:
                admin.create_stream(stream.stream, self._context.tasks)
            except IncompatibleError:
                self._check_partitions(stream)
                raise
            self._own(stream, store)
            try:
                admin.fence(stream.stream, writer)
            except FencedError as error:
                raise FencedError(
                    f"{error}. If no newer run of the job is there, this stream is of an earlier job of the same name: "
                    "give the job another `job.id`, or the store another `stores.<name>.changelog`"
                ) from error

    def validate_resources(self) -> None:
        for stream in self._streams():
            self._check_partitions(stream)

    def collect(self, retention: Retention, *, dry_run: bool) -> Garbage:
        """Compact each partition that a marker left, or in a sweep all; see `needless`. It is done in one transaction
        each, fenced with the epoch; outside of sweeps only where much is new, so that what all collections cost grows
        with what was written."""
        retained, left = _by_partition(retention.retained), _by_partition(retention.left)
        writer = changelog_writer(self._context.paths, retention.epoch)
        ratio = 0.0 if retention.sweep else _MIN_DIRTY_RATIO
        names = []
        for ssp in sorted(retained.keys() | left.keys() if retention.sweep else left.keys()):
            offsets = needless(ssp, retained.get(ssp, ()), left.get(ssp, ()), in_use=self._in_use(ssp))
            if offsets is None or ssp.system not in self._context.systems:
                continue
            admin = self._admin(ssp.system_stream)
            try:
                owner = admin.owner(ssp.stream)
                if owner is not None and not is_owned_by(owner, self._context.paths.root, self._context.uid):
                    continue  # the job was made of a copy of another one, whose stream this is
                dropped = admin.compact(offsets, writer, min_dirty_ratio=ratio, dry_run=dry_run)
            except NotFoundError as error:  # the stream was removed or created anew: there is nothing of ours in it
                logger.warning("the changelog `%s` is not compacted: %s", ssp.system_stream, error)
                continue
            if dropped:
                names.append(
                    f"{ssp.system_stream}/{ssp.partition} <= offset {offsets.end - 1}: {counted(dropped, 'record')}"
                )
        return Garbage(tuple(names))

    def close(self) -> None:
        for admin in self._admins.values():
            admin.close()
        self._admins.clear()

    def _streams(self) -> dict[SystemStream, str]:
        """The stream of each store."""
        stores: dict[SystemStream, str] = {}
        for store in self._context.stores:
            stream = self._context.config.store(store).changelog
            other = stores.setdefault(stream, store)
            if other != store:
                raise ConfigError(
                    f"the stores `{other}` and `{store}` share the changelog `{stream}`: each store needs one of its "
                    f"own, set `stores.{store}.changelog`"
                )
        return stores

    def _own(self, stream: SystemStream, store: str) -> None:
        """Become the stream's owner. Raises ConfigError if it has another one."""
        mine = owner_text(self._context.paths.root, self._context.uid, store)
        owner = self._admin(stream).own(stream.stream, mine)
        if owner != mine:
            raise ConfigError(
                f"the changelog `{stream}` of store `{store}` belongs to another owner: {owner}. This is {mine}. Each "
                f"store of each job needs a stream of its own: set `stores.{store}.changelog`. If the owner's job was "
                f"deleted, `penstock stream delete {stream}` deletes what it left"
            )

    def _admin(self, stream: SystemStream) -> SystemAdmin:
        if stream.system not in self._admins:
            self._admins[stream.system] = changelog_system(self._context.systems, stream).admin()
        return self._admins[stream.system]

    def _check_partitions(self, stream: SystemStream) -> None:
        found = self._admin(stream).partition_count(stream.stream)
        if found != self._context.tasks:
            raise ConfigError(
                f"the changelog `{stream}` has {counted(found, 'partition')}, the job "
                f"{counted(self._context.tasks, 'task')}: name another "
                "stream as `stores.<name>.changelog`, or start the job with another `job.id`"
            )

    def _in_use(self, ssp: SystemStreamPartition) -> bool:
        return any(self._context.config.store(store).changelog == ssp.system_stream for store in self._context.stores)


def needless(
    ssp: SystemStreamPartition,
    retained: Sequence[ChangelogMarker],
    left: Sequence[ChangelogMarker],
    *,
    in_use: bool,
) -> OffsetRange | None:
    """The range to compact, from the first offset that any retained marker needs to the end of the one that ends first.

    Every retained marker begins at or behind the range's start and ends at or behind its end. So a record goes only
    for one that all of them see, and a delete only when nothing is left for any of them to delete. Where no retained
    marker names the partition, and the job no longer writes it, all that a marker that left named goes.
    """
    if retained:
        start = min(marker.generation for marker in retained)
        end = min((marker.range.end for marker in retained if marker.offset is not None), default=start)
        return OffsetRange(ssp, start, end)
    if left and not in_use:
        end = max(marker.range.end for marker in left)
        return OffsetRange(ssp, end, end)
    return None


def _by_partition(markers: Iterable[StoreMarker]) -> dict[SystemStreamPartition, list[ChangelogMarker]]:
    found: dict[SystemStreamPartition, list[ChangelogMarker]] = {}
    for own in markers:
        marker = ChangelogMarker.deserialize(own.marker)
        found.setdefault(marker.ssp, []).append(marker)
    return found


class ChangelogStreamFactory(StateBackendFactory):
    """`changelog-stream`."""

    @property
    def name(self) -> str:
        return NAME

    def backup_manager(self, context: BackendContext) -> ChangelogStreamBackup:
        return ChangelogStreamBackup(context)

    def restore_manager(self, context: BackendContext) -> ChangelogStreamRestore:
        return ChangelogStreamRestore(context)

    def admin(self, context: AdminContext) -> ChangelogStreamAdmin:
        return ChangelogStreamAdmin(context)
