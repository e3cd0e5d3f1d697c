"""The backup manager of the changelog stream backend."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.id import CheckpointId
from penstock.errors import NotFoundError, RetryableError
from penstock.state.backends.base import (
    BackendContext,
    StoreCopy,
    TaskBackupManager,
)
from penstock.state.backends.base_backup import BaseBackup, Bases
from penstock.state.backends.changelog_stream.partition import (
    GROUP,
    Changelog,
    ChangelogRange,
    changelog_system,
    changelog_writer,
)
from penstock.state.records import Changes

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
        except NotFoundError as error:
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
                raise RetryableError(f"the base of store `{store}` was cancelled")

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
