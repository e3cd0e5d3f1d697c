"""The values that all parts of one run share, with the request to end it; and the part of a wing in the driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.base.retry import Clock
from penstock.batch.batch import Ends
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import SectionValues
from penstock.driver.feed.boundary import Boundary, DrainedOperators
from penstock.driver.feed.feed import Feed
from penstock.driver.show.progress import ProgressBoard
from penstock.errors import KINDS, PenstockError
from penstock.job.board import Shown
from penstock.job.lease import LeaseKeeper
from penstock.runtime.reports import Report
from penstock.start.job import ClaimedJob
from penstock.wing import wings
from penstock.wire.ports import BatchRunner, Fleet
from penstock.wire.protocol import Markers

logger = logging.getLogger(__name__)


class StopRequest:
    """Asks a run to end: after the current batch with a commit, or at once."""

    def __init__(self) -> None:
        self.graceful = threading.Event()
        self.immediate = threading.Event()
        self.drains = False
        """True if the run drains: a graceful request then changes nothing, because the run ends with the drain."""
        self._asked = False
        self._is_last = False
        self._begins_again = False
        self._lock = threading.RLock()

    def request(self) -> None:
        """Ask the run to end. The first request is graceful, the second immediate."""
        with self._lock:
            if self._asked:
                self.at_once()
            else:
                self.ask()

    def at_once(self) -> None:
        """Ask the run to end at once, whatever was asked before."""
        with self._lock:
            self._asked = True
            self.is_last()
            self.immediate.set()
            self.graceful.set()

    def ask(self) -> None:
        """Ask gracefully, however often."""
        with self._lock:
            self._asked = True
            self.is_last()
            if self.drains:
                logger.info(
                    "the run drains and then ends; a second signal ends it at once, and the next start drains it"
                )
            else:
                self.graceful.set()

    def is_last(self) -> None:
        """The run does not begin again."""
        with self._lock:
            self._is_last, self._begins_again = True, False

    def begin_again(self) -> None:
        """End the run gracefully, and let it begin again. Does nothing if somebody has asked for its end."""
        with self._lock:
            if not (self._is_last or self.drains):
                self._begins_again = True
                self.graceful.set()

    @property
    def goes_on(self) -> bool:
        """True if the run ends here only to begin again."""
        return self._begins_again

    def begins_again(self) -> bool:
        """True, once, if the run is to begin again. No request to end it was made then."""
        with self._lock:
            again, self._begins_again = self._begins_again, False
            if again:
                self.graceful.clear()
            return again

    def drains_first(self) -> None:
        """Let the run drain before it ends, although a graceful request came."""
        self.drains = True
        self.graceful.clear()
        if self.immediate.is_set():  # it came meanwhile
            self.graceful.set()

    def drain_is_over(self) -> None:
        """Let the run continue after a drain. A graceful request that came meanwhile counts now."""
        self.drains = False
        if self._asked or self._begins_again:
            self.graceful.set()


@dataclass(frozen=True, slots=True)
class RunContext:
    """A claimed job, its lease, the two ports of its run, its progress, and the request to end it."""

    job: ClaimedJob
    keeper: LeaseKeeper
    fleet: Fleet
    runner: BatchRunner
    stop: StopRequest
    board: ProgressBoard
    check_next: Callable[[], object] | None = None
    """Raises the error by which a start would be refused now. None: the job never begins again by itself."""

    tools: Mapping[str, Any] = field(default_factory=dict)
    """Wing → the tool that the host has made for it (`Wing.on_host`)."""

    @property
    def clock(self) -> Clock:
        return self.job.clock


class DriverPart:
    """The part of a wing in the driver of one run. By default it does nothing.

    The run loop's thread calls all methods that do not say otherwise. An error ends the epoch or the run, as errors of
    the loop do: a `RetryableError` leads to another try, a `ContainerLostError` to a new epoch.
    """

    wing: str = ""
    """The name of the wing, which is set once the part is made."""

    def __init__(self, run: RunContext) -> None:
        self.run = run

    def feed(self, feed: Feed, ends: Callable[[], Ends]) -> Feed:
        """The feed of the run; another one in its place, if the wing chooses the batches. Called once, before the run
        begins.

        Args:
            feed: the one that the run has.
            ends: returns the present ends of every input partition. Raises PenstockError.
        """
        return feed

    def restored(self, epoch: int, checkpoint_id: str, markers: Markers) -> None:
        """Every task is restored from this checkpoint. Not called if there is none. May raise nothing."""

    def enter(self, epoch: int) -> None:
        """An epoch is open, and its first batch waits for this. May wait, and raise what ends the epoch."""

    def before_step(self, epoch: int) -> None:
        """A step of the loop begins. Does not wait."""

    def versions(self) -> Mapping[str, int]:
        """The versions of tables that the next batch reads. Called before a batch that has not begun: one that is
        repeated has those of its first run."""
        return {}

    # Draining a run: at most one wing says that there is something to drain.

    def begin(self, boundary: Boundary) -> None:
        """An epoch is open, and the run continues at this boundary."""

    def before_batch(self) -> bool:
        """Called before a batch is planned. True if the run has to go back to its last checkpoint first. After a
        RetryableError no batch begins, and this is called again."""
        return False

    @property
    def draining(self) -> DrainedOperators | None:
        """The operators that the run drains now, as of the last call of `before_batch`; None: it drains nothing."""
        return None

    def before_the_end(self, boundary: Boundary) -> bool:
        """The run is about to end at this boundary. True if it has to drain something first. After a RetryableError it
        does not end yet."""
        return False

    def counted(self, reports: Sequence[Report], boundary: Boundary, committed: int) -> None:
        """A batch has ended at this boundary, with these reports. `committed`: the batch of the last checkpoint."""

    def last_commit(self, boundary: Boundary) -> SectionValues:
        """The last commit of the run begins. Returns the sections of its record alone."""
        return {}

    def ended(self) -> None:
        """The last commit is in the log, and the run does not begin again."""

    def drain(self, *, at_start: bool = False) -> None:
        """The program that runs the job asks for a drain. Called by any thread.

        Args:
            at_start: the run has not begun, and is to drain before it reads anything.

        Raises:
            PenstockError: it cannot be asked for.
        """

    def watch(self, woken: Callable[[], None]) -> None:
        """The next step of the loop may be long in coming: look for what needs one in a thread from now on, and call
        `woken` then."""

    @property
    def wants_step(self) -> bool:
        """True if the part waits for a step of the loop. May be asked by any thread."""
        return False

    # Commits.

    def sections(self, boundary: Boundary, uploaded: Sequence[msgspec.Raw]) -> SectionValues:
        """The section of the wing in the record of a commit. Called on the commit thread, before the record is written.

        Args:
            boundary: the commit is of everything up to it.
            uploaded: what the parts in containers have uploaded for it (`ContainerPart.uploaded`).
        """
        return {}

    def publish(self, record: CheckpointRecord, abandoned: threading.Event) -> Future[None] | None:
        """A commit's record is in the log: begin what has to follow before the next commit, in the background. The
        commit is in flight until it is done; None: there is nothing. Called on the commit thread.

        Args:
            record: the record.
            abandoned: set once the epoch ends.
        """
        return None

    def waits_for(self) -> str:
        """Why the work that `publish` began is not done yet, in words; empty if it is done. Called by any thread."""
        return ""

    def recorded(self, record: CheckpointRecord, markers: Markers, *, abandoned: bool) -> None:
        """A commit's record is in the log, with these markers. Called on the commit thread. Returns at once, and may
        raise nothing.

        Args:
            record: the record.
            markers: by task, backend and store.
            abandoned: True if its epoch has ended meanwhile.
        """

    def collect(self, record: CheckpointRecord) -> None:
        """Delete what no checkpoint needs any more, now that this record is the newest. Called on the thread of the
        collection, for some of the records. May raise nothing."""

    def shown(self) -> Sequence[Shown]:
        """The documents that commands read. Called once."""
        return ()

    def close(self) -> None:
        """End. No other call follows. Idempotent."""


def sections_of(part: DriverPart, give: Callable[[], SectionValues]) -> SectionValues:
    """The sections that a part gives for a record, by one of its methods.

    Raises:
        PenstockError: the method failed, with an error of its kind that names the wing; or a section is not of the
            part's wing: a start could not tell that it knows it.
    """
    try:
        sections = dict(give())
    except Exception as error:
        kind = KINDS.get(type(error).__name__) if isinstance(error, PenstockError) else PenstockError
        if kind is None:
            raise
        said = str(error) if isinstance(error, PenstockError) else repr(error)
        raise kind(f"the wing `{part.wing}` gives no section for a checkpoint's record: {said}") from error
    names = [getattr(section, "name", repr(section)) for section in sections]
    if strangers := sorted(name for name in names if name != part.wing):
        raise PenstockError(
            f"the wing `{part.wing}` gives the section `{strangers[0]}` for a checkpoint's record, and a wing may give "
            f"one of the name `{part.wing}` alone. Mend the wing, or remove the distribution that brings it"
        )
    return sections


def driver_parts(run: RunContext) -> tuple[DriverPart, ...]:
    """The parts of all wings in a run."""
    return tuple(wing.part(DriverPart, wing.driver, run) for wing in wings() if wing.driver)
