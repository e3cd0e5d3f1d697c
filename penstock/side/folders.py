"""The folders of side stores on a host, and the decision if the content of one can be continued.

    <base>/<store>/side-<task>                    of a task
    <base>/<store>/side-all-<number>              of a container, where every task has everything
    <base>/<store>/side-<task>-private-...        of a container that found the task's folder in use

They outlive epochs and processes, but for the private ones. One process at a time has one; see
`penstock.host.process`.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TypeAlias

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.files import explained
from penstock.config.settings import StoreSettings
from penstock.errors import CorruptError, IncompatibleError, PenstockError, RetryableError
from penstock.host.process import HostFolder, beside
from penstock.side.engine import SideEngine, SidePositions
from penstock.state.engines.memory import MemoryEngine
from penstock.state.engines.open import open_rocksdb
from penstock.system.contract.messages import PartitionOffsets


@dataclass(frozen=True, slots=True)
class ReuseTarget:
    """The sources of a side store in the present run, and the present state of its streams."""

    fingerprint: str
    """The fingerprint of serdes and processor."""
    ends: Mapping[SystemStreamPartition, PartitionOffsets]
    complete_from: Mapping[SystemStreamPartition, int]
    """The offset from which each partition has everything (`SystemAdmin.complete_from`)."""
    identities: Mapping[SystemStream, str | None]
    """Distinguishes each stream from others of its name (`SystemAdmin.stream_identity`)."""
    deletions_kept_ms: Mapping[SystemStream, int] = field(default_factory=dict)
    """For how long a stream keeps deletions, if it loses them with time (`SystemAdmin.deletions_kept_ms`)."""


@dataclass(frozen=True, slots=True)
class SideReuse:
    """The content is continued from its positions."""


@dataclass(frozen=True, slots=True)
class SideRebuild:
    """The content is made again from the beginning of the streams."""

    reason: str
    """A clause: `it was ...`."""
    expected: bool = False
    """True if nothing is lost by it: there was no content."""


Decision: TypeAlias = SideReuse | SideRebuild


def decide_reuse(found: SidePositions | None, wanted: ReuseTarget, now_ms: int, max_age_ms: int) -> Decision:
    """Reuse the content if reading on from its positions makes the same as reading the streams from the beginning.

    Args:
        found: the positions of the content; None if there is none.
        max_age_ms: content that was up to date longer ago is not continued.
    """
    if found is None or not found.next_offsets:
        return SideRebuild("nothing was kept yet", expected=True)
    reason = (
        _other_making(found, wanted)
        or _other_streams(found, wanted)
        or _too_old(found, wanted, now_ms, max_age_ms)
        or next(filter(None, (_cannot_continue(ssp, found, wanted) for ssp in sorted(found.next_offsets))), None)
    )
    return SideReuse() if reason is None else SideRebuild(reason)


def _other_making(found: SidePositions, wanted: ReuseTarget) -> str | None:
    if found.fingerprint == wanted.fingerprint:
        return None
    return "it was made by another processor or with other serdes"


def _other_streams(found: SidePositions, wanted: ReuseTarget) -> str | None:
    if gone := sorted(set(found.next_offsets) - set(wanted.ends)):
        return f"it was made from `{gone[0]}` as well, which is no longer a side input"
    if new := sorted(set(wanted.ends) - set(found.next_offsets)):
        return f"it was made without `{new[0]}`"
    for stream, identity in sorted(wanted.identities.items()):
        if found.identities.get(stream) != identity:
            return f"the stream `{stream}` was deleted and created again since"
    return None


def _too_old(found: SidePositions, wanted: ReuseTarget, now_ms: int, max_age_ms: int) -> str | None:
    age_ms = now_ms - found.updated_ms
    said = f"it was brought up to date {age_ms // 1000} s ago, which is more than"
    if age_ms > max_age_ms:
        return f"{said} side.inputs.max.age.ms={max_age_ms}"
    for ssp in sorted(found.next_offsets):
        kept_ms = wanted.deletions_kept_ms.get(ssp.system_stream)
        if kept_ms is not None and age_ms > kept_ms // 2:  # the other half is for reading
            return f"{said} half of delete.retention.ms={kept_ms} of `{ssp.system_stream}`: deletions may be missing"
    return None


def _cannot_continue(ssp: SystemStreamPartition, found: SidePositions, wanted: ReuseTarget) -> str | None:
    following, upcoming, complete_from = found.next_offsets[ssp], wanted.ends[ssp].upcoming, wanted.complete_from[ssp]
    if following > upcoming:
        return f"it was read up to offset {following} of `{ssp}`, which now ends at {upcoming}"
    if following < complete_from:
        return (
            f"it was read up to offset {following} of `{ssp}`, and what followed up to {complete_from} was deleted or "
            "compacted since: deletions may be missing"
        )
    return None


logger = logging.getLogger(__name__)

_BASE_DIR = "job.logged.store.base.dir"
_WAIT_SECONDS = 3.0
"""Time for an older process of this job to release a folder."""
_POLL_SECONDS = 0.05
_PRIVATE = "-private-"
_EMPTY = SideRebuild("it begins again", expected=True)


_Decide: TypeAlias = Callable[[SidePositions], Decision]
_Fill: TypeAlias = Callable[[Path], bool] | None


class SideFolder(HostFolder):
    """A folder for one process at a time. Beside it are `<name>.damaged`, once its content turned out to be damaged,
    and `<name>.load`, a sorted file that RocksDB was about to take over when its process died."""

    @property
    def is_damaged(self) -> bool:
        return beside(self.path, "damaged").exists()

    def mark_damaged(self) -> None:
        """Keep everybody from using the content again. Any thread may call it."""
        try:
            beside(self.path, "damaged").touch()
        except OSError:
            logger.exception("`%s` is damaged, and this could not be recorded in it. Remove the folder", self.path)

    def empty(self) -> None:
        super().empty()
        beside(self.path, "damaged").unlink(missing_ok=True)
        beside(self.path, "load").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class SideFolders:
    """The folders of a container's side stores."""

    base: Path
    epoch: int
    container: str

    def of_task(self, store: str, task: int) -> Path:
        return self.base / store / f"side-{task}"

    def of_all(self, store: str, number: int) -> Path:
        """A folder for the whole store, shared by all tasks of a container."""
        return self.base / store / f"side-all-{number}"

    def private(self, store: str, task: int | None) -> Path:
        """A folder for this epoch that nobody else opens."""
        whose = "all" if task is None else str(task)
        return self.base / store / f"side-{whose}{_PRIVATE}{self.epoch}-{self.container}"


@dataclass(frozen=True, slots=True)
class OpenedSide:
    """A side store that was opened."""

    engine: SideEngine
    folder: SideFolder | None = None
    """None in memory."""
    outlives: bool = False
    """True if the folder is used again after this."""
    decision: Decision = _EMPTY
    """`SideReuse` if it has content to continue from; otherwise it is empty."""

    def give_up(self) -> None:
        """Let no later start continue it, however this process ends. It stays readable."""
        if self.folder is not None:
            self.folder.mark_damaged()

    def close(self) -> None:
        """Flush and close the engine, then release the folder, or remove it. Idempotent."""
        try:
            self.engine.close(flush=self.outlives)
        finally:
            if self.folder is not None:
                self.folder.release() if self.outlives else self.folder.remove()


def open_side_engine(
    settings: StoreSettings,
    folders: SideFolders,
    task: int | None,
    wanted: ReuseTarget,
    *,
    now_ms: int,
    max_age_ms: int,
    wait_s: float = _WAIT_SECONDS,
    fill: Callable[[Path], bool] | None = None,
) -> OpenedSide:
    """Open a side store on this host, with its content if that can be continued, otherwise empty.

    Args:
        task: the task of the part; None if it has everything.
        max_age_ms: content that was up to date longer ago is not continued.
        wait_s: time for a process that is ending to release a task's folder.
        fill: fills an empty folder with the files of a backup, and returns False if it could not; None if there is no
            backup.

    Raises:
        PenstockError: the folder cannot be written; says what to do.
    """
    if settings.factory == "memory":
        return _in_memory()

    def decide(positions: SidePositions) -> Decision:
        return decide_reuse(positions, wanted, now_ms, max_age_ms)

    with explained(f"the folder of store `{settings.name}` cannot be used", _BASE_DIR):
        folder = _shared(settings.name, folders, task, wait_s)
        if folder is not None:
            try:
                return _open_shared(settings, folder, decide, fill)
            except _InUseError:
                folder.release()
            except BaseException:
                folder.release()
                raise
        folder = _private(settings.name, folders, task)
        try:
            return _open(settings, folder, decide, fill, outlives=False)
        except BaseException:
            folder.remove()
            raise


def emptied(settings: StoreSettings, opened: OpenedSide) -> OpenedSide:
    """Empty a place that nobody reads. Raises PenstockError if the folder cannot be written; says what to do."""
    opened.engine.close(flush=False)
    if opened.folder is None:
        return _in_memory()
    with explained(f"the folder of store `{settings.name}` cannot be used", _BASE_DIR):
        gc.collect()  # an error that was handled may hold the old files open, which are written when they are closed
        opened.folder.empty()
        return replace(opened, engine=_open_files(settings, opened.folder), decision=_EMPTY)


def open_beside(settings: StoreSettings, folders: SideFolders, task: int | None, number: int) -> OpenedSide:
    """Open an empty side store beside the one that is in use, for content that replaces it. `close` removes it: the
    next start fills the store from the beginning. Raises PenstockError if the folder cannot be written; says what to
    do.

    Args:
        task: the task of the part; None if it has everything.
        number: tells the stores that this container opens so apart.
    """
    if settings.factory == "memory":
        return _in_memory()
    with explained(f"the folder of store `{settings.name}` cannot be used", _BASE_DIR):
        own = folders.private(settings.name, task)
        folder = _empty_folder(own.with_name(f"{own.name}-{number}"))
        return OpenedSide(_open_files(settings, folder), folder)


def remove_others(folders: SideFolders, stores: Mapping[str, bool], tasks: int) -> None:
    """Remove the folders of side stores that the job no longer has, or has in another form, if nobody uses them.

    Args:
        stores: store kept in folders → True if each task has everything of it.
        tasks: the number of the job's tasks.
    """
    for lock in folders.base.glob("*/side-*.lock"):
        path = lock.with_suffix("")
        whose = path.name.removeprefix("side-")
        broadcast = stores.get(path.parent.name)
        if broadcast is not None and _PRIVATE not in whose:
            if broadcast and whose.startswith("all-"):
                continue
            if not broadcast and whose.isdecimal() and int(whose) < tasks:
                continue
        if (folder := SideFolder.lock_beside(path)) is not None:
            folder.remove()
            if path.parent.name not in stores:
                with suppress(OSError):  # it has something else
                    path.parent.rmdir()


class _InUseError(Exception):
    """RocksDB says that the files are in use."""


def _shared(store: str, folders: SideFolders, task: int | None, wait_s: float) -> SideFolder | None:
    """Lock the folder that is used again and again; None if somebody has it."""
    if task is None:
        return next(filter(None, (SideFolder.lock_beside(folders.of_all(store, number)) for number in count())))
    path, deadline = folders.of_task(store, task), time.monotonic() + wait_s
    while (folder := SideFolder.lock_beside(path)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return folder


def _open_shared(settings: StoreSettings, folder: SideFolder, decide: _Decide, fill: _Fill) -> OpenedSide:
    try:
        return _open(settings, folder, decide, fill, outlives=True)
    except _InUseError:
        gc.collect()  # what this process has closed may be held by an error that was handled
        return _open(settings, folder, decide, fill, outlives=True)


def _private(store: str, folders: SideFolders, task: int | None) -> SideFolder:
    path = folders.private(store, task)
    logger.warning(
        "store `%s` of %s is in use by another process on this host: it is filled from the beginning of its side "
        "inputs, in `%s`, which is removed afterwards",
        *(store, "all tasks" if task is None else f"task {task}", path),
    )
    return _empty_folder(path)


def _empty_folder(path: Path) -> SideFolder:
    folder = SideFolder.lock_beside(path)
    if folder is None:
        raise RetryableError(f"`{path}` is in use, although no other process should know it")
    folder.empty()
    return folder


def _in_memory() -> OpenedSide:
    return OpenedSide(SideEngine(MemoryEngine(), "memory"))


def _open(settings: StoreSettings, folder: SideFolder, decide: _Decide, fill: _Fill, *, outlives: bool) -> OpenedSide:
    engine, decision = _open_content(settings, folder, decide, "on this host")
    if engine is None and fill is not None:
        folder.empty()
        if fill(folder.path):
            engine, decision = _open_content(settings, folder, decide, "in its backup")
    if engine is None:
        folder.empty()
        engine = _open_files(settings, folder)
    return OpenedSide(engine, folder, outlives, decision)


def _open_content(
    settings: StoreSettings, folder: SideFolder, decide: _Decide, where: str
) -> tuple[SideEngine | None, Decision]:
    why = SideRebuild("it was found to be damaged, or to lack messages that its streams no longer have")
    if not folder.is_damaged:
        try:
            engine = _open_files(settings, folder)
            decision = decide(engine.positions)
            if not isinstance(decision, SideRebuild):
                logger.info("store `%s` continues from what was kept %s (`%s`)", settings.name, where, folder.path)
                return engine, decision
            engine.close(flush=False)
            why = decision
        except CorruptError as error:
            why = SideRebuild(f"it is damaged: {error}")
        except IncompatibleError as error:
            why = SideRebuild(str(error))
    logger.log(
        logging.INFO if why.expected else logging.WARNING,
        "store `%s` does not continue from what was kept %s (`%s`): %s",
        *(settings.name, where, folder.path, why.reason),
    )
    return None, why


def _open_files(settings: StoreSettings, folder: SideFolder) -> SideEngine:
    try:
        files = open_rocksdb(settings, folder.path)
    except PenstockError as error:
        if "lock hold by current process" in str(error) or "While lock file" in str(error):
            raise _InUseError from error
        raise
    try:
        return SideEngine(files, str(folder.path), folder.mark_damaged)
    except BaseException:
        files.close()
        raise
