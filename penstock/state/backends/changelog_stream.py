"""The changelog stream backend: a commit's net changes are appended to a compacted stream.

Processing logs nothing; only `upload` writes. Each store has a stream, each task a partition of it. A store that is
backed up anew, or begins without a checkpoint, starts a generation: only records from its first offset on count. The
admin makes the streams, and compacts them. The managers of backups and restores are here too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

from penstock import errors
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import counted, listed
from penstock.checkpoint.record import CheckpointId
from penstock.job.identity import OwnedStreams, is_owned_by, owner_text
from penstock.state.backends.base import (
    EMPTY,
    AdminContext,
    BackendContext,
    Garbage,
    KeptIn,
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
from penstock.state.backends.changelog_partition import (
    GROUP,
    NAME,
    Changelog,
    ChangelogRange,
    ChangelogReader,
    changelog_system,
    changelog_writer,
    history_system,
    key_of,
    read_changes,
)
from penstock.state.engines.engine import Changes, changes_bytes
from penstock.system.base import OffsetRange, SystemAdmin
from penstock.system.contract.messages import partitions_with_messages

logger = logging.getLogger(__name__)


class ChangelogStreamBackup(TaskBackupManager):
    """Appends net changes to a task's partitions."""

    def __init__(self, context: BackendContext) -> None:
        self._context = context
        self._logs: dict[str, Changelog] = {}
        self._markers: dict[str, ChangelogRange] = {}
        self._bases = Bases[ChangelogRange]()
        self._taken: dict[str, Changes] = {}
        self._timestamp_ms = 0
        self._uploaded = context.metrics.new_counter(GROUP, "bytes-uploaded")

    def init(self, checkpoint_id: CheckpointId | None, markers: Mapping[str, str]) -> None:
        self._timestamp_ms = 0 if checkpoint_id is None else checkpoint_id.millis
        given = {store: ChangelogRange.parse(marker) for store, marker in markers.items()}
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
            changes = self._taken.get(store, {})
            written = self._logs[store].append(checkpoint_id.millis, changes.items(), self._context.check_leaving)
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
        writer = changelog_writer(self._context.paths, self._context.epoch)
        return Changelog(system, ssp, writer, self._uploaded)

    def _continue(
        self, store: str, log: Changelog, checkpoint_id: CheckpointId | None, marker: ChangelogRange | None
    ) -> ChangelogRange | None:
        """The marker that the next commit follows, with the log brought back to it; None if the store needs a base."""
        upcoming = log.take_over()
        if checkpoint_id is None or (marker is not None and marker.offset is None):
            # The store is empty: a new generation, nothing to revert.
            log.append(self._timestamp_ms, ((key, None) for key in log.leftovers()))
            return ChangelogRange(log.ssp, upcoming, None, log.identity)
        if marker is None or marker.ssp != log.ssp:
            return None
        try:
            return log.revert(marker, checkpoint_id.millis)
        except errors.NotFoundError as error:
            # Another backend restored the store. Going on behind a hole would make markers that restore nothing.
            logger.warning(
                "store `%s` of task %d gets a new base in its changelog, because the old one cannot be continued: %s",
                store,
                self._context.task,
                error,
            )
            return None

    def _write_base(self, store: str, copy: StoreCopy, cancelled: threading.Event) -> ChangelogRange:
        """Write the whole copy as a new generation. Until it is complete nobody else appends to the partition."""

        def proceed() -> None:
            if cancelled.is_set():
                raise errors.RetryableError(f"the base of store `{store}` was cancelled")

        log = self._open(store)  # of this thread alone
        try:
            generation = log.take_over()
            with closing(copy.entries()) as entries:
                written = log.append(self._timestamp_ms, _replacing(log.leftovers(), entries), proceed)
            return ChangelogRange(log.ssp, generation, None if written is None else written.end - 1, log.identity)
        finally:
            log.close()


def _replacing(leftovers: set[bytes], entries: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes | None]]:
    """The entries, followed by a delete of every leftover key that is not among them."""
    for key, value in entries:
        leftovers.discard(key)
        yield key, value
    for key in leftovers:
        yield key, None


class ChangelogStreamRestore(TaskRestoreManager):
    """Replays a marker's range, and nothing behind it: records of other epochs there have no effect."""

    advances_open = True

    def __init__(self, context: BackendContext) -> None:
        self._context = context
        self._downloaded = context.metrics.new_counter(GROUP, "bytes-downloaded")

    def restore(self, store: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> None:
        wanted, engine = ChangelogRange.parse(marker), target.engine()
        history = ChangelogReader(history_system(self._context.systems, wanted.ssp.system_stream))
        try:
            wanted.check_identity(history.identity(wanted.ssp))
            for changes in read_changes(history, wanted.range):
                if progress.cancelled.is_set():
                    raise errors.RetryableError(
                        f"the restore of store `{store}` of task {self._context.task} was cancelled"
                    )
                engine.apply(changes)
                size_bytes = changes_bytes(changes)
                self._downloaded.inc(size_bytes)
                progress.report(size_bytes)
        except errors.NotFoundError as error:
            raise errors.NotFoundError(
                f"store `{store}` of task {self._context.task} cannot be rebuilt from its changelog: {error}"
            ) from error
        finally:
            history.close()

    def advance(self, store: str, held: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> bool:
        """Reads every record since. If some of them were compacted away, there may have been deletes among them: then
        the store is restored whole."""
        before, wanted = ChangelogRange.parse(held), ChangelogRange.parse(marker)
        one_generation = (before.ssp, before.generation, before.identity) == (
            wanted.ssp,
            wanted.generation,
            wanted.identity,
        )
        if not one_generation or before.range.end > wanted.range.end:
            return False
        history = ChangelogReader(history_system(self._context.systems, wanted.ssp.system_stream))
        engine = target.engine()
        try:
            wanted.check_identity(history.identity(wanted.ssp))
            for messages in history.read_every(OffsetRange(wanted.ssp, before.range.end, wanted.range.end)):
                if progress.cancelled.is_set():
                    raise errors.RetryableError(
                        f"store `{store}` of task {self._context.task} is not followed any more"
                    )
                changes = {key_of(message, wanted.ssp): message[3] for message in messages}
                engine.apply(changes)
                size_bytes = changes_bytes(changes)
                self._downloaded.inc(size_bytes)
                progress.report(size_bytes)
        finally:
            history.close()
        return True


_MIN_DIRTY_RATIO = 0.5
"""A partition is compacted if at least this part of the range is new, as Kafka's log cleaner does it."""


class ChangelogStreamAdmin(StateBackendAdmin):
    """Creates, fences and compacts the streams."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._admins: dict[str, SystemAdmin] = {}
        self._owned = OwnedStreams(context.objects, context.paths)

    def create_resources(self, epoch: int) -> None:
        """Create the streams that do not exist, and fence all of them.

        Raises:
            ConfigError: two stores share a stream, or another job or store owns it; or it has messages, and neither an
                owner nor a marker in a checkpoint of the job; or its system or partition count does not fit.
            FencedError: a larger epoch has written to one.
        """
        writer = changelog_writer(self._context.paths, epoch)
        for stream, store in self._streams().items():
            admin = self._admin(stream)
            try:
                if self._compacts_by_age(stream):
                    settings = self._context.config.store(store).changelog_settings
                    admin.create_compacted(stream.stream, self._context.tasks, settings)
                else:
                    admin.create_stream(stream.stream, self._context.tasks)
            except errors.IncompatibleError:
                self._check_partitions(stream)
                raise
            self._own(stream, store)
            try:
                admin.fence(stream.stream, writer)
            except errors.FencedError as error:
                raise errors.FencedError(
                    f"{error}. If the job has no newer run, this stream belongs to an earlier job of the same name: "
                    "give the job another `job.id`, or the store another `stores.<name>.changelog`"
                ) from error

    def validate_resources(self) -> None:
        refusals = errors.Refusals("changelogs are refused")
        for stream, store in self._streams().items():
            with refusals.noted(), suppress(errors.NotFoundError):  # one that is missing is created
                self._check_partitions(stream)
                self._check_owner(stream, store, self._owned.owner(stream, self._admin(stream)))
        refusals.check()

    def needed(self, markers: Sequence[StoreMarker]) -> Collection[str]:
        return ()  # it keeps nothing below the job root

    def collect(self, retention: Retention, *, dry_run: bool) -> Garbage:
        """Compact each partition that a marker left, or in a sweep all partitions; see `needless`. Each compaction is
        one transaction, fenced with the epoch. Outside of sweeps only partitions with much new data are compacted, so
        that the cost of all collections grows with the amount written."""
        retained, left = _by_partition(retention.retained), _by_partition(retention.left)
        writer = changelog_writer(self._context.paths, retention.epoch)
        ratio = 0.0 if retention.sweep else _MIN_DIRTY_RATIO
        names = []
        for ssp in sorted(retained.keys() | left.keys() if retention.sweep else left.keys()):
            offsets = needless(ssp, retained.get(ssp, ()), left.get(ssp, ()), in_use=self._in_use(ssp))
            if offsets is None or ssp.system not in self._context.systems or self._compacts_by_age(ssp.system_stream):
                continue
            admin = self._admin(ssp.system_stream)
            try:
                owner = self._owned.owner(ssp.system_stream, admin)
                if owner is not None and not is_owned_by(owner, self._context.paths.root, self._context.uid):
                    continue  # the job was made of a copy of another one, whose stream this is
                dropped = admin.compact(offsets, writer, min_dirty_ratio=ratio, dry_run=dry_run)
            except (
                errors.NotFoundError
            ) as error:  # the stream was removed or created again: there is nothing of ours in it
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
        stores: dict[SystemStream, str] = {}
        for store in self._context.stores:
            stream = self._context.config.store(store).changelog
            other = stores.setdefault(stream, store)
            if other != store:
                raise errors.ConfigError(
                    f"the stores `{other}` and `{store}` share the changelog `{stream}`: each store needs a separate "
                    f"one, set `stores.{store}.changelog`"
                )
        return stores

    def _own(self, stream: SystemStream, store: str) -> None:
        """Become the stream's owner. Raises ConfigError if it has another one."""
        owner = self._owned.own(
            stream,
            self._admin(stream),
            owner_text(self._context.paths.root, self._context.uid, store),
            lambda: self._refuse_messages(stream, store),
            keeps_owners=self._context.systems[stream.system].keeps_owners,
        )
        self._check_owner(stream, store, owner)

    def _check_owner(self, stream: SystemStream, store: str, owner: str | None) -> None:
        mine = owner_text(self._context.paths.root, self._context.uid, store)
        if owner not in (None, mine):
            raise errors.ConfigError(
                f"the changelog `{stream}` of store `{store}` belongs to another owner: {owner}. This is {mine}. Each "
                f"store of each job needs a separate stream: set `stores.{store}.changelog`. If the owner's job was "
                f"deleted, `penstock stream delete {stream}` deletes what it left"
            )

    def _compacts_by_age(self, stream: SystemStream) -> bool:
        system = self._context.systems.get(stream.system)
        served = None if system is None else system.serving(stream.stream)
        return served is not None and not served.compacts_on_request and served.compacts_by_age

    def _refuse_messages(self, stream: SystemStream, store: str) -> None:
        """Raise ConfigError if a stream without an owner has messages that no checkpoint of the job needs. Compaction
        would delete them. A job that continues an imported checkpoint takes over the changelog that it names."""
        admin = self._admin(stream)
        # In this order: what is committed in between is before the end that is read second.
        open_now = admin.open_transactions(stream.stream)
        held = sorted({*open_now, *partitions_with_messages(admin.offsets(stream.stream))})
        if not held:
            return
        identity = admin.stream_identity(stream.stream)
        named = [
            each
            for at, own in _by_partition(self._context.restorable()).items()
            if at.system_stream == stream
            for each in own
        ]
        if any(each.identity in (None, identity) for each in named):
            return
        names = (
            "the checkpoints of the job name an earlier stream of this name, which was deleted"
            if named
            else "no checkpoint of the job names it"
        )
        raise errors.ConfigError(
            f"the changelog `{stream}` of store `{store}` has messages that this job did not write (partition "
            f"{listed([str(partition) for partition in held])}), and {names}. A changelog is "
            f"written and compacted by its job alone: set `stores.{store}.changelog` to another stream. To continue a "
            "changelog of Samza, import its checkpoint first (`penstock checkpoint import`). If nobody needs these "
            f"messages, delete the stream: `penstock stream delete {stream}`"
        )

    def _admin(self, stream: SystemStream) -> SystemAdmin:
        if stream.system not in self._admins:
            self._admins[stream.system] = changelog_system(self._context.systems, stream).admin()
        return self._admins[stream.system]

    def _check_partitions(self, stream: SystemStream) -> None:
        found = self._admin(stream).partition_count(stream.stream)
        if found != self._context.tasks:
            raise errors.ConfigError(
                f"the changelog `{stream}` has {counted(found, 'partition')}, the job "
                f"{counted(self._context.tasks, 'task')}: name another "
                "stream as `stores.<name>.changelog`, or start the job with another `job.id`"
            )

    def _in_use(self, ssp: SystemStreamPartition) -> bool:
        return any(self._context.config.store(store).changelog == ssp.system_stream for store in self._context.stores)


def needless(
    ssp: SystemStreamPartition,
    retained: Sequence[ChangelogRange],
    left: Sequence[ChangelogRange],
    *,
    in_use: bool,
) -> OffsetRange | None:
    """The range to compact, from the first offset that any retained marker needs to the end of the one that ends first.

    Every retained marker begins at or behind the range's start and ends at or behind its end. So a record goes only
    for one that all of them see, and a delete only when nothing is left for any of them to delete. If no retained
    marker names the partition, and the job no longer writes it, everything goes that the departed markers named.
    """
    if retained:
        start = min(marker.generation for marker in retained)
        end = min((marker.range.end for marker in retained if marker.offset is not None), default=start)
        return OffsetRange(ssp, start, end)
    if left and not in_use:
        end = max(marker.range.end for marker in left)
        return OffsetRange(ssp, end, end)
    return None


def _by_partition(markers: Iterable[StoreMarker]) -> dict[SystemStreamPartition, list[ChangelogRange]]:
    found: dict[SystemStreamPartition, list[ChangelogRange]] = {}
    for own in markers:
        marker = ChangelogRange.parse(own.marker)
        found.setdefault(marker.ssp, []).append(marker)
    return found


class ChangelogStreamFactory(StateBackendFactory):
    """The factory of the backend `changelog-stream`."""

    @property
    def name(self) -> str:
        return NAME

    @property
    def kept_in(self) -> KeptIn:
        return "system"

    def marker_text(self, marker: str) -> str:
        try:
            own = ChangelogRange.parse(marker)
        except (errors.CorruptError, errors.IncompatibleError):
            return super().marker_text(marker)
        return EMPTY if own.offset is None else f"offsets {own.generation}..{own.offset}"

    def backup_manager(self, context: BackendContext) -> ChangelogStreamBackup:
        return ChangelogStreamBackup(context)

    def restore_manager(self, context: BackendContext) -> ChangelogStreamRestore:
        return ChangelogStreamRestore(context)

    def admin(self, context: AdminContext) -> ChangelogStreamAdmin:
        return ChangelogStreamAdmin(context)
