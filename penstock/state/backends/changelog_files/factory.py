"""The changelog files backend (Spark's changelog checkpointing): one `.delta` per store and commit that changed it, and
now and then a snapshot in the background."""

from __future__ import annotations

from penstock.base.parallel import ByteBudget
from penstock.errors import CorruptError, IncompatibleError
from penstock.job.paths import versioned_name
from penstock.state.backends.base import EMPTY, AdminContext, BackendContext, KeptIn, StateBackendFactory
from penstock.state.backends.changelog_files.admin import ChangelogFilesAdmin
from penstock.state.backends.changelog_files.backup import ChangelogFilesBackup
from penstock.state.backends.changelog_files.keeper import SMALL_FILE_BYTES, Limits
from penstock.state.backends.changelog_files.marker import NAME, ChangelogMarker
from penstock.state.backends.changelog_files.restore import ChangelogFilesRestore
from penstock.state.backends.changelog_files.snapshot import SHARED_FOLDER
from penstock.state.backends.content.files import MAX_PART_BYTES
from penstock.state.backends.content.names import content_of

_KINDS = {"delta": "deltas", "zip": "snapshots"}
_IN_FLIGHT = ByteBudget(64 << 20)
"""For the snapshots of all tasks of a process together."""


class ChangelogFilesFactory(StateBackendFactory):
    """The factory of the backend `changelog-files`."""

    def __init__(
        self,
        budget: ByteBudget = _IN_FLIGHT,
        max_part_bytes: int = MAX_PART_BYTES,
        small_file_bytes: int = SMALL_FILE_BYTES,
    ) -> None:
        self._budget = budget
        self._limits = Limits(max_part_bytes, small_file_bytes)

    @property
    def name(self) -> str:
        return NAME

    @property
    def kept_in(self) -> KeptIn:
        return "job-folder"

    def marker_text(self, marker: str) -> str:
        """The version and its epoch, `12.3`, as in the names of its files."""
        try:
            own = ChangelogMarker.parse(marker)
        except (CorruptError, IncompatibleError):
            return super().marker_text(marker)
        return f"{own.version}.{own.epoch}" if own.version else EMPTY

    def kind_of(self, name: str) -> str | None:
        folder, _, last = name.rpartition("/")
        if folder == SHARED_FOLDER:
            return "snapshot files" if content_of(last) else None
        versioned = None if folder else versioned_name(name)
        return None if versioned is None else _KINDS[versioned[2]]

    def backup_manager(self, context: BackendContext) -> ChangelogFilesBackup:
        return ChangelogFilesBackup(context, self._budget, self._limits)

    def restore_manager(self, context: BackendContext) -> ChangelogFilesRestore:
        return ChangelogFilesRestore(context, self._budget)

    def admin(self, context: AdminContext) -> ChangelogFilesAdmin:
        return ChangelogFilesAdmin(context)
