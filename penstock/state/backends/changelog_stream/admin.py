"""The admin of the changelog stream backend."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.refusals import Refusals
from penstock.base.wording import counted, listed
from penstock.errors import ConfigError, FencedError, IncompatibleError, NotFoundError
from penstock.job.owned_streams import OwnedStreams, is_owned_by, owner_text
from penstock.state.backends.base import (
    AdminContext,
    Garbage,
    Retention,
    StateBackendAdmin,
    StoreMarker,
)
from penstock.state.backends.changelog_stream.partition import (
    ChangelogRange,
    changelog_system,
    changelog_writer,
)
from penstock.system.base import OffsetRange, SystemAdmin
from penstock.system.contract.messages import partitions_with_messages

logger = logging.getLogger(__name__)

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
            except IncompatibleError:
                self._check_partitions(stream)
                raise
            self._own(stream, store)
            try:
                admin.fence(stream.stream, writer)
            except FencedError as error:
                raise FencedError(
                    f"{error}. If the job has no newer run, this stream belongs to an earlier job of the same name: "
                    "give the job another `job.id`, or the store another `stores.<name>.changelog`"
                ) from error

    def validate_resources(self) -> None:
        refusals = Refusals("changelogs are refused")
        for stream, store in self._streams().items():
            with refusals.noted(), suppress(NotFoundError):  # one that is missing is created
                self._check_partitions(stream)
                self._check_owner(stream, store, self._owned.owner(stream, self._admin(stream)))
        refusals.check()

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
            except NotFoundError as error:  # the stream was removed or created again: there is nothing of ours in it
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
                raise ConfigError(
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
            raise ConfigError(
                f"the changelog `{stream}` of store `{store}` belongs to another owner: {owner}. This is {mine}. Each "
                f"store of each job needs a separate stream: set `stores.{store}.changelog`. If the owner's job was "
                f"deleted, `penstock stream delete {stream}` deletes what it left"
            )

    def _compacts_by_age(self, stream: SystemStream) -> bool:
        system = self._context.systems.get(stream.system)
        return system is not None and not system.compacts_on_request and system.compacts_by_age

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
        raise ConfigError(
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
            raise ConfigError(
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
