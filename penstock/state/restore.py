"""Restores a store: from a copy on the host, or from the first backend that has a marker for it and works.

Copies are of the last checkpoints: a restart on their host needs no download.

    copy-<checkpoint id>/       the engine's files, immutable
    copy-<checkpoint id>.json   the markers of the store, and every file with its size and SHA-256; written last, so
                                a folder without it is not a copy

A copy is used only for exactly the checkpoint it was made at, and after all of it was verified. The id alone does not
identify that checkpoint: a driver that was replaced publishes copies before it finds that it cannot write its record,
and its successor's record may have the same id. A marker of a backend means one content.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
from msgspec import Struct

from penstock.base.documents import Count, VersionedDocument, decode, decoding
from penstock.base.files import explained, known_files
from penstock.base.retry import Retry, retry
from penstock.checkpoint.record import CheckpointId
from penstock.errors import ConfigError, CorruptError, IncompatibleError, PenstockError, RetryableError, SystemAwayError
from penstock.host.posix import sync_path
from penstock.state.backends.base import BackendContext, RestoreProgress, RestoreTarget
from penstock.state.backends.registry import backend_factory
from penstock.state.engines.engine import Engine
from penstock.state.engines.open import make_empty

logger = logging.getLogger(__name__)
_RESTORE = Retry(pause_s=0.5, tries=3)


@dataclass(frozen=True, slots=True)
class FailedRestore:
    """A backend that could not restore a store, and why."""

    store: str
    task: int
    backend: str
    reason: str
    may_pass: bool

    def __str__(self) -> str:
        return f"store `{self.store}` of task {self.task} could not be restored from {self.backend}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RestoredStore:
    """An open store, the backend it came from, and the preferred ones that could not serve."""

    engine: Engine
    backend: str
    failed: tuple[FailedRestore, ...]
    without_marker: tuple[str, ...] = ()


def restore_order(store: str, wanted: Sequence[str], markers: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """The backends to restore a store from: the wanted ones, then every other one that has a marker.

    A marker means that its backend alone can rebuild the store. A store is therefore restored from any backend that
    the checkpoint has a marker from, whatever the configuration prefers now.

    Example:
        >>> restore_order("totals", ["blob"], {"changelog-files": {"totals": "7"}, "other": {}})
        ('blob', 'changelog-files')
    """
    return (*wanted, *(name for name, stores in markers.items() if store in stores and name not in wanted))


def restore_store(
    contexts: Callable[[str], BackendContext],
    task: int,
    store: str,
    wanted: Sequence[str],
    markers: Mapping[str, Mapping[str, str]],
    directory: Path,
    open_engine: Callable[[Path], Engine],
    progress: RestoreProgress,
) -> RestoredStore:
    """Fill the folder from the first of the wanted backends that has a marker (factory -> store -> marker) and works.
    `contexts` gives a backend's context, by its name.

    A failure that may pass is retried. A permanent one is reported, and the next backend used.

    Raises:
        CorruptError: no wanted backend has a marker, or none could restore it; names those that were tried.
        IncompatibleError: none could, and what one of them has is of another version's format.
        RetryableError: it was cancelled, or a backend that may work later did not.
        ConfigError: a backend could not be reached because of its configuration or rights.
    """
    named = [name for name in wanted if store in markers.get(name, {})]
    if not named:
        has = ", ".join(name for name, stores in markers.items() if store in stores) or "none"
        raise CorruptError(
            f"the checkpoint has no marker for store `{store}` of task {task} from {', '.join(wanted)}; "
            f"it has one from: {has}. Set stores.{store}.restore.factories to one that has"
        )
    failed: list[FailedRestore] = []
    errors: list[PenstockError] = []
    for name in named:
        try:
            engine = _restore(contexts(name), store, name, markers[name][store], directory, open_engine, progress)
        except PenstockError as error:
            if progress.cancelled.is_set():
                raise
            errors.append(error)
            failed.append(FailedRestore(store, task, name, str(error), isinstance(error, RetryableError)))
            logger.warning("%s", failed[-1])
        else:
            before = wanted[: wanted.index(name)]
            return RestoredStore(engine, name, tuple(failed), tuple(each for each in before if each not in named))
    tried = "; ".join(f"{each.backend}: {each.reason}" for each in failed)
    failure, cause = _unrestored(f"store `{store}` of task {task}", tried, errors)
    raise failure from cause


def _unrestored(what: str, tried: str, errors: Sequence[PenstockError]) -> tuple[PenstockError, PenstockError | None]:
    """The error for a store that no backend could restore, and its cause, from the errors of all that were tried. One
    that may pass outweighs a refusal, a refusal outweighs a format of another version, and that outweighs damage."""
    if any(isinstance(each, RetryableError) for each in errors):
        away = next((each for each in reversed(errors) if isinstance(each, SystemAwayError)), None)
        kind = RetryableError if away is None else SystemAwayError
        return kind(f"{what} could not be restored for now. Tried {tried}"), away
    if refused := [each for each in errors if isinstance(each, ConfigError)]:  # nothing says that it is damaged
        return ConfigError(f"{what} could not be restored. Tried {tried}"), refused[-1]
    if unread := [each for each in errors if isinstance(each, IncompatibleError)]:  # the version that wrote it reads it
        return IncompatibleError(f"{what} cannot be restored by this version of Penstock. Tried {tried}"), unread[-1]
    text = (
        f"{what} cannot be restored from this checkpoint. Tried {tried}. "
        "`penstock checkpoint list` shows older checkpoints, `penstock run --from ID` starts from one"
    )
    return CorruptError(text), None


def _restore(
    context: BackendContext,
    store: str,
    name: str,
    marker: str,
    directory: Path,
    open_engine: Callable[[Path], Engine],
    progress: RestoreProgress,
) -> Engine:
    group = f"backend.{name}"
    restored_bytes = context.metrics.new_counter(group, "bytes-restored")
    restore_ns = context.metrics.new_timer(group, "restore-ns")

    def report(size_bytes: int) -> None:
        restored_bytes.inc(size_bytes)
        progress.report(size_bytes)

    counted = replace(progress, report=report)

    def once() -> Engine:
        opener = LazyEngine(lambda: open_engine(directory))
        manager = backend_factory(name).restore_manager(context)
        try:
            with explained(f"`{directory}` could not be filled", "job.logged.store.base.dir"), restore_ns.time():
                make_empty(directory)
                manager.restore(store, marker, RestoreTarget(directory, opener), counted)
                return opener()
        except BaseException:
            opener.close()
            raise
        finally:
            manager.close()

    def tell(error: Exception) -> None:
        logger.warning("the restore of store `%s` of task %d is tried again: %s", store, context.task, error)

    return retry(once, _RESTORE, interrupt=progress.cancelled, on_failure=tell)


class LazyEngine:
    """Opens an engine at the first call. Thread-safe."""

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        self._open = open_engine
        self._lock = threading.Lock()
        self._engine: Engine | None = None

    def __call__(self) -> Engine:
        with self._lock:
            if self._engine is None:
                self._engine = self._open()
            return self._engine

    @property
    def opened(self) -> Engine | None:
        with self._lock:
            return self._engine

    def close(self) -> None:
        with self._lock:
            if self._engine is not None:
                self._engine.close()
                self._engine = None


_FORMAT = 2


def tasks_with_copies(base: Path) -> tuple[int, ...]:
    """The tasks that have copies of any store below the folder of a job's stores, or side stores that are filled
    there."""
    tasks = {path.parent.name for path in base.glob("*/*/copy-*.json")}
    tasks |= {path.parent.name.removeprefix("side-") for path in base.glob("*/side-*/CURRENT")}
    return tuple(sorted(int(task) for task in tasks if task.isdecimal()))


class LocalCopies:
    """The copies of one store of one task, in the folder of its working copies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._durable: set[tuple[int, int, int]] = set()
        """(inode, size, mtime) of the files of the last copy. Copies share their files by hard links."""

    def publish(self, checkpoint_id: CheckpointId, markers: Mapping[str, str], files: Path) -> None:
        """Make the folder `files` the copy of a checkpoint, with the store's marker of each backend. It is moved, and
        durable when this returns."""
        target = self._folder / f"copy-{checkpoint_id}"
        shutil.rmtree(target, ignore_errors=True)
        durable: set[tuple[int, int, int]] = set()
        listing: dict[str, tuple[int, str]] = {}
        for path in _files(files):
            stat = path.stat()
            key = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if key not in self._durable:
                sync_path(path)
            durable.add(key)
            listing[str(path.relative_to(files))] = (stat.st_size, known_files().hash_of(path))
        self._durable = durable
        files.rename(target)
        sync_path(self._folder)
        made = self._folder / f"copy-{checkpoint_id}.json.new"
        made.write_bytes(orjson.dumps({"format": _FORMAT, "markers": dict(markers), "files": listing}))
        sync_path(made)
        made.rename(self._description(checkpoint_id))
        sync_path(self._folder)

    def take(self, checkpoint_id: CheckpointId, markers: Mapping[str, str], target: Path) -> bool:
        """Link a verified copy of exactly this checkpoint, which has these markers of the store, into the new folder
        `target`; False if there is none.

        Files an engine never changes are linked, the others copied.

        Raises:
            CorruptError: there is one, but it is damaged; it is left for `keep_only` to remove.
        """
        try:
            description = self._description(checkpoint_id).read_bytes()
        except FileNotFoundError:
            return False
        written = read_description(description, str(self._description(checkpoint_id)))
        if written is None or not written.markers.items() & markers.items():
            return False
        listing = written.files
        source = self._folder / f"copy-{checkpoint_id}"
        target.mkdir(parents=True)
        for name, (size, expected) in listing.items():
            path = source / name
            if not path.is_file() or path.stat().st_size != size or known_files().hash_of(path) != expected:
                raise CorruptError(f"the file `{path}` of a local copy is missing or damaged")
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(".sst"):
                os.link(path, target / name)
            else:
                shutil.copy2(path, target / name)
        return True

    def keep_only(self, kept: CheckpointId | None) -> None:
        for path in self._folder.glob("copy-*"):
            if kept is None or path.name not in {f"copy-{kept}", f"copy-{kept}.json"}:
                _remove(path)

    def ids(self) -> list[CheckpointId]:
        found = []
        for path in self._folder.glob("copy-*.json"):
            try:
                found.append(CheckpointId.parse(path.name.removeprefix("copy-").removesuffix(".json")))
            except ConfigError:
                continue
        return sorted(found)

    def _description(self, checkpoint_id: CheckpointId) -> Path:
        return self._folder / f"copy-{checkpoint_id}.json"


class Description(Struct):
    """The description of a copy: the store's marker of each backend, and each file's size and hash."""

    markers: dict[str, str]
    files: dict[str, tuple[Count, str]]


def read_description(data: bytes, path: str) -> Description | None:
    """None if the description is of another format. Raises CorruptError naming the path."""
    what = f"the description of the local copy `{path}` is damaged"
    with decoding(what):
        if decode(VersionedDocument, data, what).format != _FORMAT:
            return None
        found = decode(Description, data, what)
        for name in found.files:
            if any(part in {"", ".", ".."} for part in name.split("/")) or "\0" in name:
                raise ValueError(f"{name!r} leads out of the copy")
        if not found.files:
            raise ValueError("no engine has no files: a store opened over nothing would be an empty one")
        return found


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
