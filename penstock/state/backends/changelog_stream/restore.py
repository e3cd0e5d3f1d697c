"""The restore manager of the changelog stream backend."""

from __future__ import annotations

from penstock.errors import NotFoundError, RetryableError
from penstock.state.backends.base import (
    BackendContext,
    RestoreProgress,
    RestoreTarget,
    TaskRestoreManager,
)
from penstock.state.backends.changelog_stream.history import ChangelogReader
from penstock.state.backends.changelog_stream.partition import (
    GROUP,
    ChangelogRange,
    changelog_system,
    key_of,
    read_changes,
)
from penstock.state.records import changes_bytes
from penstock.system.base import OffsetRange


class ChangelogStreamRestore(TaskRestoreManager):
    """Replays a marker's range, and nothing behind it: records of other epochs there have no effect."""

    advances_open = True

    def __init__(self, context: BackendContext) -> None:
        self._context = context
        self._downloaded = context.metrics.new_counter(GROUP, "bytes-downloaded")

    def restore(self, store: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> None:
        wanted, engine = ChangelogRange.parse(marker), target.engine()
        history = ChangelogReader(changelog_system(self._context.systems, wanted.ssp.system_stream))
        try:
            wanted.check_identity(history.identity(wanted.ssp))
            for changes in read_changes(history, wanted.range):
                if progress.cancelled.is_set():
                    raise RetryableError(f"the restore of store `{store}` of task {self._context.task} was cancelled")
                engine.apply(changes)
                size_bytes = changes_bytes(changes)
                self._downloaded.inc(size_bytes)
                progress.report(size_bytes)
        except NotFoundError as error:
            raise NotFoundError(
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
        history = ChangelogReader(changelog_system(self._context.systems, wanted.ssp.system_stream))
        engine = target.engine()
        try:
            wanted.check_identity(history.identity(wanted.ssp))
            for messages in history.read_every(OffsetRange(wanted.ssp, before.range.end, wanted.range.end)):
                if progress.cancelled.is_set():
                    raise RetryableError(f"store `{store}` of task {self._context.task} is not followed any more")
                changes = {key_of(message, wanted.ssp): message[3] for message in messages}
                engine.apply(changes)
                size_bytes = changes_bytes(changes)
                self._downloaded.inc(size_bytes)
                progress.report(size_bytes)
        finally:
            history.close()
        return True
