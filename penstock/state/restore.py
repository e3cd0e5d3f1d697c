"""Restores a store from the first backend that has a marker for it and works."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.base.files import explained
from penstock.base.retry import Retry, retry
from penstock.errors import ConfigError, CorruptError, PenstockError, RetryableError, SystemAwayError
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
    that may pass outweighs a refusal, and a refusal outweighs damage."""
    if any(isinstance(each, RetryableError) for each in errors):
        away = next((each for each in reversed(errors) if isinstance(each, SystemAwayError)), None)
        kind = RetryableError if away is None else SystemAwayError
        return kind(f"{what} could not be restored for now. Tried {tried}"), away
    if refused := [each for each in errors if isinstance(each, ConfigError)]:  # nothing says that it is damaged
        return ConfigError(f"{what} could not be restored. Tried {tried}"), refused[-1]
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
