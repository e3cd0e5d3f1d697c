"""The backup manager of the blob backend."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from penstock.base.parallel import ByteBudget
from penstock.checkpoint.id import CheckpointId
from penstock.state.backends.base import BackendContext, StoreCopy, TaskBackupManager
from penstock.state.backends.base_backup import BaseBackup, Bases
from penstock.state.backends.blob.marker import BlobMarker
from penstock.state.backends.blob.store_backup import StoreBackup
from penstock.state.records import Changes


class BlobBackup(TaskBackupManager):
    """Uploads, at each commit, the files of every changed store that its last index does not have.

    The base of a store with content is an upload of all its files in the background, from the copy of one commit; the
    commit that finds it done uploads the rest of its own copy, and the index. A store with a marker that another
    backend restored has other files than its index: its first change uploads them all, within the commit.
    """

    def __init__(self, context: BackendContext, budget: ByteBudget, max_part_bytes: int) -> None:
        self._context = context
        self._stores = {store: StoreBackup(context, store, budget, max_part_bytes) for store in context.stores}
        self._bases = Bases[None]()
        self._changed: set[str] = set()
        """The stores whose changes of the last snapshot are not durable yet."""

    def init(self, checkpoint_id: CheckpointId | None, markers: Mapping[str, str]) -> None:
        for name, store in self._stores.items():
            if name in markers:
                store.resume(BlobMarker.parse(markers[name]))
            elif checkpoint_id is not None:
                self._bases.need(name, self._base(name, checkpoint_id))

    def wants_copy(self, store: str, *, changed: bool, last: bool) -> bool:
        """True also for an unchanged store, as long as it has no index that is known to be good."""
        return changed or store in self._bases or not self._stores[store].is_current

    def snapshot(self, checkpoint_id: CheckpointId, changes: Mapping[str, Changes]) -> None:
        self._changed = {store for store, changed in changes.items() if changed}

    def upload(self, checkpoint_id: CheckpointId, copies: Mapping[str, StoreCopy]) -> Mapping[str, str]:
        for _ in self._bases.advance(copies):
            pass  # what its own copy has beyond a base that is complete, this upload adds
        after = {}
        for name, store in self._stores.items():
            if name in self._bases:
                continue
            last = store.last()
            if last is None or name in self._changed:
                last = store.upload(checkpoint_id, copies[name].directory)
            after[name] = last
        # Only now, so that a second try after an error begins where the first one did.
        for name, snapshot in after.items():
            self._stores[name].advance(snapshot)
        self._changed -= after.keys()
        return {name: snapshot.marker.serialize() for name, snapshot in after.items()}

    def close(self) -> None:
        self._bases.cancel()

    def _base(self, name: str, checkpoint_id: CheckpointId) -> BaseBackup[None]:
        """Its files are named after the checkpoint that the job continues from, which wrote nothing in this epoch."""

        def work(copy: StoreCopy, cancelled: threading.Event) -> None:
            self._stores[name].put_files(checkpoint_id, copy.directory, cancelled)

        return BaseBackup(work, self._context.pools.maintenance)
