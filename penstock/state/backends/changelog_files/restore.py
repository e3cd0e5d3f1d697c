"""The restore manager of the changelog files backend: a snapshot, and the deltas after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from penstock.base.parallel import ByteBudget
from penstock.errors import CorruptError, NotFoundError, PenstockError, RetryableError
from penstock.state.backends.base import BackendContext, RestoreProgress, RestoreTarget, TaskRestoreManager
from penstock.state.backends.changelog_files.delta import decode_delta
from penstock.state.backends.changelog_files.history import StoredVersions, Way, ways
from penstock.state.backends.changelog_files.marker import ChangelogMarker, Version
from penstock.state.backends.changelog_files.snapshot import StoreSnapshot, shared_names
from penstock.state.backends.content.store import fetch_files
from penstock.state.engines.engine import Engine
from penstock.state.engines.open import make_empty
from penstock.state.records import Changes, changes_bytes

_LOAD_BYTES = 64 << 20
"""Net changes of several deltas are gathered up to this size and loaded at once."""


class ChangelogFilesRestore(TaskRestoreManager):
    """Takes the newest snapshot that is whole, and replays exactly the deltas of the lineage after it."""

    advances_open = True

    def __init__(self, context: BackendContext, budget: ByteBudget) -> None:
        self._context = context
        self._budget = budget

    def restore(self, store: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> None:
        wanted = ChangelogMarker.parse(marker)
        folder = self._context.paths.state_folder(store, self._context.task)
        # A snapshot that is not listed yet costs deltas; those it would save are there as long as it is named.
        known = ways(wanted, StoredVersions.among(self._context.objects.list(folder)))
        broken: list[PenstockError] = []
        for way in known:
            self._check(progress, store)
            try:
                engine = self._begin(store, way, target, progress)
            except (CorruptError, NotFoundError) as error:
                broken.append(error)
                if way.snapshot is not None:
                    self._context.damaged.add(self._context.paths.snapshot(store, self._context.task, *way.snapshot))
                if way is not known[-1]:
                    progress.note(f"{error}; an older one and more deltas were used instead")
                make_empty(target.directory)
                continue
            refused = partial(self._beyond_repair, store, wanted, way, broken)
            self._load(store, way.deltas(), engine, progress, refused)
            return
        lost = all(isinstance(error, NotFoundError) for error in broken)
        raise (NotFoundError if lost else CorruptError)(
            f"version {wanted.version} of store `{store}` of task {self._context.task} cannot be rebuilt: "
            f"{'; '.join(map(str, broken))}"
        )

    def advance(self, store: str, held: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> bool:
        wanted = ChangelogMarker.parse(marker)
        since = wanted.since(ChangelogMarker.parse(held))
        if since is None:
            return False
        if since:
            self._load(store, since, target.engine(), progress)
        return True

    def _check(self, progress: RestoreProgress, store: str) -> None:
        if progress.cancelled.is_set():
            raise RetryableError(f"the restore of store `{store}` of task {self._context.task} was cancelled")

    def _begin(self, store: str, way: Way, target: RestoreTarget, progress: RestoreProgress) -> Engine:
        """The engine as of the way's snapshot. Raises CorruptError or NotFoundError if the snapshot is not whole."""
        if way.snapshot is None:
            return target.engine()
        context = self._context
        key = context.paths.snapshot(store, context.task, *way.snapshot)
        try:
            data = context.objects.get(key)
        except NotFoundError as error:
            raise NotFoundError(f"snapshot `{key}` is missing") from error
        snapshot = StoreSnapshot.decode(data, key)
        if (snapshot.version, snapshot.store, snapshot.task) != (way.snapshot, store, context.task):
            raise CorruptError(f"`{key}` is a snapshot of version {snapshot.version} of store `{snapshot.store}`")
        for path, content in snapshot.small.items():
            local = target.directory / path
            local.parent.mkdir(parents=True, exist_ok=True)
            local.write_bytes(content)
        progress.report(len(data))
        names = shared_names(context.paths, store, context.task)
        try:
            fetch_files(context, names, snapshot.shared, target.directory, self._budget, progress)
        except (CorruptError, NotFoundError) as error:
            raise type(error)(f"snapshot `{key}` is not complete: {error}") from error
        return target.engine()

    def _load(
        self,
        store: str,
        deltas: Iterable[Version],
        engine: Engine,
        progress: RestoreProgress,
        refused: Callable[[Version, PenstockError], PenstockError] = lambda _, error: error,
    ) -> None:
        """Load deltas in order. `refused` makes the error to raise where one is damaged or missing."""
        gathered: dict[bytes, bytes | None] = {}
        size = 0
        replayed = self._context.metrics.new_counter(f"store.{store}", "changelog-deltas-replayed")
        for delta in deltas:
            self._check(progress, store)
            try:
                read, changes = self._read(store, delta)
            except (CorruptError, NotFoundError) as error:
                raise refused(delta, error) from error
            replayed.inc()
            gathered.update(changes)
            size += changes_bytes(changes)
            progress.report(read)
            if size >= _LOAD_BYTES:
                engine.load(gathered)
                gathered, size = {}, 0
        engine.load(gathered)

    def _read(self, store: str, delta: Version) -> tuple[int, Changes]:
        key = self._context.paths.delta(store, self._context.task, *delta)
        try:
            data = self._context.objects.get(key)
        except NotFoundError as error:
            raise NotFoundError(f"delta `{key}` is missing") from error
        header, changes = decode_delta(data, key)
        if (header.version, header.epoch) != delta:
            raise CorruptError(f"`{key}` holds version {header.version} of epoch {header.epoch}")
        return len(data), changes

    def _beyond_repair(
        self,
        store: str,
        wanted: ChangelogMarker,
        way: Way,
        broken: Sequence[PenstockError],
        delta: Version,
        error: PenstockError,
    ) -> PenstockError:
        first = way.snapshot[0] if way.snapshot else 0
        intact = f"versions {first} to {delta[0] - 1}" if delta[0] - 1 > first else f"version {first}"
        return type(error)(
            f"{'; '.join(map(str, (error, *broken)))}: version {wanted.version} of store `{store}` of task "
            f"{self._context.task} cannot be rebuilt. Before it {intact} can be"
        )
