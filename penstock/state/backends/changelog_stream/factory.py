"""The changelog stream backend: a commit's net changes are appended to a compacted stream.

Processing logs nothing; only `upload` writes. Each store has a stream, each task a partition of it. A store that is
backed up anew, or begins without a checkpoint, starts a generation: only records from its first offset on count.
"""

from __future__ import annotations

from penstock.errors import CorruptError, IncompatibleError
from penstock.state.backends.base import EMPTY, AdminContext, BackendContext, KeptIn, StateBackendFactory
from penstock.state.backends.changelog_stream.admin import ChangelogStreamAdmin
from penstock.state.backends.changelog_stream.backup import ChangelogStreamBackup
from penstock.state.backends.changelog_stream.partition import NAME, ChangelogRange
from penstock.state.backends.changelog_stream.restore import ChangelogStreamRestore


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
        except (CorruptError, IncompatibleError):
            return super().marker_text(marker)
        return EMPTY if own.offset is None else f"offsets {own.generation}..{own.offset}"

    def backup_manager(self, context: BackendContext) -> ChangelogStreamBackup:
        return ChangelogStreamBackup(context)

    def restore_manager(self, context: BackendContext) -> ChangelogStreamRestore:
        return ChangelogStreamRestore(context)

    def admin(self, context: AdminContext) -> ChangelogStreamAdmin:
        return ChangelogStreamAdmin(context)
