"""The blob store backend (SEP-28): every commit uploads the files that its copy has and the last index has not."""

from __future__ import annotations

from penstock.base.parallel import ByteBudget
from penstock.errors import CorruptError, IncompatibleError
from penstock.state.backends.base import AdminContext, BackendContext, KeptIn, StateBackendFactory
from penstock.state.backends.blob.admin import BlobAdmin
from penstock.state.backends.blob.backup import BlobBackup
from penstock.state.backends.blob.marker import BlobMarker
from penstock.state.backends.blob.names import FOLDER, index_epoch
from penstock.state.backends.blob.restore import BlobRestore
from penstock.state.backends.content.files import MAX_PART_BYTES
from penstock.state.backends.content.names import content_of

NAME = "blob"
_IN_FLIGHT = ByteBudget(128 << 20)
"""Shared by all tasks of a process."""


class BlobFactory(StateBackendFactory):
    """The factory of the backend `blob`."""

    def __init__(self, budget: ByteBudget = _IN_FLIGHT, max_part_bytes: int = MAX_PART_BYTES) -> None:
        self._budget = budget
        self._max_part_bytes = max_part_bytes

    @property
    def name(self) -> str:
        return NAME

    @property
    def kept_in(self) -> KeptIn:
        return "job-folder"

    def marker_text(self, marker: str) -> str:
        """The name of the index: epoch and checkpoint."""
        try:
            return BlobMarker.parse(marker).index.removesuffix(".index")
        except (CorruptError, IncompatibleError):
            return super().marker_text(marker)

    def kind_of(self, name: str) -> str | None:
        folder, _, last = name.rpartition("/")
        if folder != FOLDER:
            return None
        if index_epoch(last) is not None:
            return "indexes"
        return "files" if content_of(last) else None

    def backup_manager(self, context: BackendContext) -> BlobBackup:
        return BlobBackup(context, self._budget, self._max_part_bytes)

    def restore_manager(self, context: BackendContext) -> BlobRestore:
        return BlobRestore(context, self._budget)

    def admin(self, context: AdminContext) -> BlobAdmin:
        return BlobAdmin(context)
