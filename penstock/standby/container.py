"""The standbys of a container: copies of other containers' stores that follow the checkpoints."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.checkpoint.id import CheckpointId
from penstock.container.part import Answers, ContainerPart, EpochContext, once
from penstock.errors import RetryableError
from penstock.metrics.snapshot import GaugeValue, MetricId, Snapshot
from penstock.standby.wing import FOLLOW, Follow, StandbyState
from penstock.state.backends.base import BackendContext, RestoreProgress
from penstock.state.kept.store import StoreAtCheckpoint
from penstock.state.kept.stores import StorePlace, remove_of_the_dead

logger = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_WARN_EVERY_S = 60.0


@dataclass(slots=True)
class _Failure:
    """The last failure of a standby that has not succeeded since."""

    text: str
    again_at: float
    pause_s: float


class Standbys(ContainerPart):
    """One thread that follows the checkpoints. The copies are the process's and outlive it.

    Only the newest checkpoint counts: a standby that is slow goes from where it is to that one.
    """

    name = "standbys"

    def __init__(self, epoch: EpochContext) -> None:
        super().__init__(epoch)
        self._resources = epoch.resources
        self._moves_wait = epoch.moves_wait
        self._copies = epoch.resources.kept_stores
        self._changed = threading.Condition()
        self._follow: Follow | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._doing: tuple[StorePlace, str] | None = None
        self._failures: dict[StorePlace, _Failure] = {}
        self._warned: dict[StorePlace, float] = {}

    def start(self) -> None:
        """Remove the copies of dead processes, even if there are no standbys any more."""
        remove_of_the_dead(self._resources.folders.base)

    def answers(self) -> Mapping[str, Answers]:
        return {FOLLOW.name: once(self.follow)}

    def follow(self, request: Follow) -> None:
        """Bring the copies to this checkpoint. Returns at once."""
        with self._changed:
            if self._stopping.is_set() or (self._copies.is_empty and not request.markers):
                return
            self._follow = request
            self._changed.notify_all()
            if self._thread is None:
                name = f"standbys-{self._resources.epoch}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def state(self) -> list[StandbyState]:
        """The state of each standby."""
        follow, doing, failures = self._follow, self._doing, dict(self._failures)
        if follow is None:
            return []
        return [
            self._state(int(task), backends, follow.checkpoint_id, doing, failures)
            for task, backends in follow.markers.items()
        ]

    def _state(
        self,
        task: int,
        backends: Mapping[str, Mapping[str, str]],
        wanted: str,
        doing: tuple[StorePlace, str] | None,
        failures: dict[StorePlace, _Failure],
    ) -> StandbyState:
        places = _places(task, backends, self._resources.stores)
        held = [self._copies.checkpoint_of(place) for place in places]
        known = [CheckpointId.parse(each) for each in held if each is not None]
        at = str(min(known, default=wanted)) if len(known) == len(held) else None
        text = doing[1] if doing is not None and doing[0].task == task else ""
        if waits := self._moves_wait():
            at, text = None, text or waits
        failed = next((f"it failed: {failures[place].text}" for place in places if place in failures), "")
        return StandbyState(task, at, wanted, failed or text)

    def ready(self) -> list[int]:
        return [state.task for state in self.state() if state.is_ready]

    def stop(self) -> None:
        """Stop and join. A copy whose step was cut short can still be used."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def metrics(self) -> Snapshot:
        """Each standby's distance from the last checkpoint; none for standbys without a copy."""
        key = "standby", "behind-ms"
        known = {each.task: ms for each in self.state() if (ms := each.behind_ms) is not None}
        return Snapshot({MetricId(f"Standby {task}", *key): GaugeValue(ms) for task, ms in known.items()})

    def status(self) -> str:
        doing = self._doing
        return "" if doing is None else f"{doing[0]}: {doing[1]}"

    # On its thread.

    def _run(self) -> None:
        done: Follow | None = None
        while not self._stopping.is_set():
            with self._changed:
                while not self._stopping.is_set() and not self._is_due(done):
                    self._changed.wait(self._pause())
                follow = self._follow
            if self._stopping.is_set() or follow is None:
                return
            try:
                self._copies.open(self._resources.folders.base)
                self._copies.keep_only([int(task) for task in follow.markers])
                self._bring_all(follow)
            except Exception:
                logger.exception("the standbys failed, and try again")
                self._stopping.wait(_LONGEST_PAUSE_S)
            done = follow

    def _is_due(self, done: Follow | None) -> bool:
        return self._follow is not done or any(f.again_at <= time.monotonic() for f in self._failures.values())

    def _pause(self) -> float | None:
        if not self._failures:
            return None
        return max(0.0, min(failure.again_at for failure in self._failures.values()) - time.monotonic())

    def _bring_all(self, follow: Follow) -> None:
        """Bring every store to the checkpoint. Returns early when a newer checkpoint arrives."""
        checkpoint_id = CheckpointId.parse(follow.checkpoint_id)
        wanted = {
            place: backends
            for task, backends in follow.markers.items()
            for place in _places(int(task), backends, self._resources.stores)
        }
        self._failures = {place: failure for place, failure in self._failures.items() if place in wanted}
        self._warned = {place: at for place, at in self._warned.items() if place in wanted}
        for place, backends in wanted.items():
            if self._stopping.is_set() or self._follow is not follow:
                return
            failure = self._failures.get(place)
            if failure is not None and failure.again_at > time.monotonic():
                continue
            self._bring(place, self._resources.target(checkpoint_id, place.store, backends))

    def _bring(self, place: StorePlace, wanted: StoreAtCheckpoint) -> None:
        held = self._copies.checkpoint_of(place)
        metrics = self._resources.standby_metrics.of_task(place.task)
        folders = self._resources.folders
        restored_bytes = metrics.new_counter("standby", "bytes-restored")
        self._doing = place, "restoring" if held is None else "following"
        progress = RestoreProgress(self._stopping, restored_bytes.inc, lambda text: logger.warning("%s", text))
        try:
            with metrics.new_timer("standby", "follow-ns").time():
                self._copies.bring(
                    place,
                    wanted,
                    lambda name: self._context(name, place),
                    lambda directory: folders.open_restored(place.store, directory),
                    progress,
                    lambda directory: folders.copies(place.store, place.task).take(
                        wanted.checkpoint_id, wanted.markers, directory
                    ),
                )
            self._failures = {other: failure for other, failure in self._failures.items() if other != place}
        except BaseException as error:  # an engine that failed is no Exception
            if self._stopping.is_set():
                return
            self._failed(place, error)
        finally:
            self._doing = None

    def _context(self, backend: str, place: StorePlace) -> BackendContext:
        return self._resources.standby_context(backend, place.task, place.store)

    def _failed(self, place: StorePlace, error: BaseException) -> None:
        """Schedule another attempt, and log at most one failure a minute. The run needs no standby to go on."""
        now, before = time.monotonic(), self._failures.get(place)
        pause_s = _FIRST_PAUSE_S if before is None else min(2 * before.pause_s, _LONGEST_PAUSE_S)
        self._failures = {**self._failures, place: _Failure(str(error), now + pause_s, pause_s)}
        if now - self._warned.get(place, -_WARN_EVERY_S) >= _WARN_EVERY_S:
            self._warned[place] = now
            kind = "" if isinstance(error, RetryableError) else f"{type(error).__name__}: "
            logger.warning("the standby of %s is behind, and tries again: %s%s", place, kind, error)


def _places(task: int, backends: Mapping[str, Mapping[str, str]], stores: Collection[str]) -> list[StorePlace]:
    return [StorePlace(task, store) for store in stores if any(store in own for own in backends.values())]
