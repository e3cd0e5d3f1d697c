"""The one thread of a container that fills its side stores: it catches them up, then follows their streams."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.base.retry import may_pass
from penstock.config.optional_settings import OnSideError
from penstock.errors import ContainerLostError, Interrupted, NotFoundError, PenstockTimeoutError
from penstock.runtime.context import OperatorFailedError
from penstock.side.entries import MessageFailedError, StoppedError
from penstock.side.group import FollowResult, SideGroup
from penstock.side.replica import GoneError
from penstock.side.wing import SideFailure
from penstock.state.engines.engine import EngineFailedError

logger = logging.getLogger(__name__)
PAUSE_SECONDS = 0.15
"""The pause between two looks at the streams, unless there is more to read. Messages that come meanwhile are written
together."""
TOUCH_SECONDS = 600.0
"""The interval at which a silent store is noted as up to date."""
PATIENCE_SECONDS = 60.0
"""Failures that may pass are tried again for this long before they count."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class FillSettings:
    """The settings of a fill."""

    timeout_ms: int
    on_error: OnSideError
    flush_ms: int
    """The interval at which written entries are made to survive the process; below 1: only at the end."""


@dataclass(slots=True)
class _Trouble:
    """The failures of one group since it last succeeded."""

    since: float
    next_try: float
    pause_s: float
    what: SideFailure
    logged: bool = False


class SideFiller:
    """Fills the groups of a container. `run` is the thread's; everything else may be used by any thread."""

    def __init__(
        self,
        groups: Callable[[], Sequence[SideGroup]],
        settings: FillSettings,
        stop: threading.Event,
        monotonic: Callable[[], float] = time.monotonic,
        name: str = "side inputs",
    ) -> None:
        """`groups` makes the groups. It is called in the thread, because it looks at the streams. `name` is for the
        log."""
        self._name = name
        self._make = groups
        self._settings = settings
        self._stop = stop
        self._monotonic = monotonic
        self.groups: tuple[SideGroup, ...] = ()
        self.caught_up = threading.Event()
        """Set once attempts may read."""
        self.failure: SideFailure | None = None
        """The reason why the thread has ended; the run fails with it."""
        self.began = monotonic()
        self.bootstrap_s: float | None = None
        self._troubles: dict[SideGroup, _Trouble] = {}
        self._flushed = self._touched = monotonic()
        self.failures: Counter[SideGroup] = Counter()
        self._wake = threading.Event()
        self._changed = threading.Condition()
        self._quiet_from = self._quiet = 0
        """The numbers of the latest pass, and of the latest pass that found nothing new."""
        self._waiting = 0
        self._ended = False

    def troubles(self) -> dict[SideGroup, str]:
        """Group → a failure that is being tried again. Its stores keep their content meanwhile."""
        return {group: trouble.what.text for group, trouble in list(self._troubles.items())}

    def run(self) -> None:
        """Catch up and follow, until stopped or failed."""
        try:
            self.began = self._monotonic()  # the restore of other stores came before, and does not count
            self._bootstrap()
            with self._changed:
                self.caught_up.set()
                self._changed.notify_all()
            while not self._stop.is_set():
                self._wake.clear()
                with self._changed:
                    self._quiet_from += 1
                    number = self._quiet_from
                found = self._pass()
                if found is FollowResult.NOTHING:
                    with self._changed:
                        self._quiet = number
                        self._changed.notify_all()
                if found is not FollowResult.A_PART and not self._waiting:
                    self._wake.wait(PAUSE_SECONDS)
                self._flush_if_due()
            self._touch()
        except StoppedError:
            pass
        except BaseException as error:
            if not self._stop.is_set():
                self._fail(error)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def close(self) -> None:
        """Close all stores. `run` has ended, and nobody reads."""
        for group in self.groups:
            group.close()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def await_caught_up(self, timeout_s: float) -> bool:
        """Wait until everything is caught up, or `run` has ended. Returns False if the time was too short."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended or self.caught_up.is_set(), timeout_s)

    def catch_up(self, timeout_s: float) -> bool:
        """Wait until all messages that are in the streams now are written. Returns False if the time was too short."""
        with self._changed:
            wanted = self._quiet_from + 1
            self._waiting += 1
            self._wake.set()
            try:
                return self._changed.wait_for(lambda: self._ended or self._quiet >= wanted, timeout_s)
            finally:
                self._waiting -= 1

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, EngineFailedError):  # its folder is marked: the next epoch fills it again
            self.failure = SideFailure(str(error), ContainerLostError.__name__)
        else:
            self.failure = _failure(error)
        cause = error.cause if isinstance(error, MessageFailedError) else error
        logger.error("%s fill the stores no longer: %s", self._name, self.failure.text, exc_info=cause)

    # Catching up.

    def _bootstrap(self) -> None:
        self.groups = tuple(self._make())
        for group in self.groups:
            group.aim(lambda group=group: self._check(group))  # type: ignore[misc]
        for group in self.groups:
            group.bootstrap(lambda group=group: self._check(group))  # type: ignore[misc]
        self.bootstrap_s = self._monotonic() - self.began
        if self.groups:
            logger.info("%s: all stores are caught up after %.1f s", self._name, self.bootstrap_s)

    def _check(self, group: SideGroup) -> None:
        """Raise StoppedError, or PenstockTimeoutError once catching up has taken too long."""
        if self._stop.is_set():
            raise StoppedError
        timeout_ms = self._settings.timeout_ms
        if not self.caught_up.is_set() and self._monotonic() > self.began + timeout_ms / 1000:
            raise PenstockTimeoutError(
                f"side inputs were not caught up within side.inputs.bootstrap.timeout.ms={timeout_ms}: "
                f"{group.missing()}. Set a longer time, or see the container's log for what it waits for"
            )

    # Following.

    def _pass(self) -> FollowResult:
        found = FollowResult.NOTHING
        for group in self.groups:
            if self._stop.is_set():
                break
            trouble = self._troubles.get(group)
            if trouble is None or self._monotonic() >= trouble.next_try:
                found = max(found, self._try(group))
        return found

    def _try(self, group: SideGroup) -> FollowResult:
        try:
            try:
                found = group.follow()
            except GoneError as error:
                group.rebuild(str(error), lambda: self._check(group))
                found = FollowResult.A_PART
        except (StoppedError, Interrupted, EngineFailedError):
            raise
        except Exception as error:
            self._failed(group, error)
            return FollowResult.NOTHING
        if self._troubles.pop(group, None) is not None:
            logger.warning("side inputs fill store %s again", group.name)
        return found

    def _failed(self, group: SideGroup, error: Exception) -> None:
        """Schedule another attempt. Raises the error if it counts and the configuration says so."""
        now = self._monotonic()
        self.failures[group] += 1
        trouble = self._troubles.get(group)
        if trouble is None:
            trouble = _Trouble(now, now, _FIRST_PAUSE_S, _failure(error))
            self._troubles[group] = trouble
        trouble.what = _failure(error)
        counts = not _may_pass(error) or now - trouble.since >= PATIENCE_SECONDS
        if counts and self._settings.on_error == "fail":
            raise error
        text = "side inputs cannot fill store %s, which keeps what it has (side.inputs.on.error=continue): %s"
        if counts:
            cause = error.cause if isinstance(error, MessageFailedError) else None
            logger.error(text, group.name, trouble.what.text, exc_info=cause)
        else:
            logger.warning("the side inputs of store %s are tried again: %s", group.name, trouble.what.text)
        trouble.next_try = now + trouble.pause_s
        trouble.pause_s = min(2 * trouble.pause_s, _LONGEST_PAUSE_S)

    def _flush_if_due(self) -> None:
        flush_ms, now = self._settings.flush_ms, self._monotonic()
        if now - self._touched >= TOUCH_SECONDS:
            self._touch()
        if flush_ms > 0 and now - self._flushed >= flush_ms / 1000:
            for group in self.groups:
                self._keep(group, group.flush)
            self._flushed = now

    def _touch(self) -> None:
        """Note in each store that it is up to date. Otherwise the store of a silent stream would become too old."""
        for group in self.groups:
            if group not in self._troubles:
                self._keep(group, group.touch)
        self._touched = self._monotonic()

    def _keep(self, group: SideGroup, write: Callable[[], None]) -> None:
        """Write the progress that a later start continues from. Readers do not depend on it, so a full disk only
        delays it."""
        try:
            write()
        except EngineFailedError:
            raise
        except Exception as error:
            self.failures[group] += 1
            logger.warning(
                "what side inputs brought to store %s cannot be kept on this host, and the container keeps trying; a "
                "start before this succeeds reads it again: %s",
                group.name,
                error,
            )


def _may_pass(error: Exception) -> bool:
    """True if the failure is tried again for a while: a missing stream may be about to be created again."""
    return may_pass(error) or isinstance(error, NotFoundError | PenstockTimeoutError)


def _failure(error: BaseException) -> SideFailure:
    if isinstance(error, MessageFailedError):
        offset, _, key, *_ = error.message
        failed = OperatorFailedError("", error.cause).describe(error.ssp, offset, key)
        failed = replace(failed, store=error.part.spec.name)
        return SideFailure(str(failed), "UserCodeError", failed)
    return SideFailure(str(error) or type(error).__name__, type(error).__name__)
