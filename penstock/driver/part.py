"""The part of a wing in the driver of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import msgspec

from penstock.batch.batch import Ends
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import SectionValues
from penstock.driver.context import RunContext
from penstock.driver.feed.boundary import Boundary, DrainedOperators
from penstock.driver.feed.feed import Feed
from penstock.errors import KINDS, PenstockError
from penstock.job.board import Shown
from penstock.runtime.reports import Report
from penstock.wing import wings
from penstock.wire.protocol import Markers


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
