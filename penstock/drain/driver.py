"""The drain of a run, as the run loop sees it: finds requests, notices that they were cancelled, and answers them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.api.requests import NEXT_RUN, DrainNotification
from penstock.base.wording import listed
from penstock.checkpoint.sections import SectionValues
from penstock.drain import requests
from penstock.drain.report import DrainReport, DrainTally
from penstock.drain.wing import DRAIN_WING, DrainProgress, drain_board
from penstock.driver.feed.boundary import Boundary, DrainedOperators
from penstock.driver.part import DriverPart, RunContext
from penstock.errors import PenstockError
from penstock.job.board import Shown
from penstock.runtime.reports import Report

logger = logging.getLogger(__name__)


class Drain(DriverPart):
    """The requests to drain one run. Used by the run loop's thread, but for `ask`, `drain` and `wants_step`.

    The requests are read at the first boundary of every epoch; from then on the monitor looks for them. A request may
    name an operator, or the id that its stores are named after.
    """

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        job = run.job
        self._requests = requests.DrainRequests(job.objects, job.paths)
        self._run_id = job.claim.run_id
        self._poll_ms = job.config.job.drain_poll_ms
        """The interval of the monitor; None: the run drains only if its own handle asks it to."""
        self._stop = run.stop
        self._board = run.board
        self._shown = drain_board(job.objects, job.paths)
        self._report = DrainReport(self._run_id, DrainTally(job.topology), self._shown, run.board, run.clock)
        operators = {op.state_id: op.id for op in job.topology.graph.operators}
        self._known = {**operators, **{op: op for op in operators.values()}}
        self._answered: tuple[str, ...] = ()
        """The uuids in the record of the last commit."""
        self._boundary = Boundary({})
        self._begun: frozenset[str] | None = frozenset()
        """The operators of the drain that has brought some to their end; empty: none has."""
        self._asked = threading.Event()
        self._monitor: requests.DrainPoller | None = None
        self._looked = False
        self._looked_before = False
        """True once the requests have been read at all."""
        self._drains_at_start = False
        self._is_recorded = False
        """True if the log says that nothing of the run is in flight any more."""
        self._woken: Callable[[], None] = lambda: None
        self.notifications: tuple[DrainNotification, ...] = ()

    def ask(self) -> None:
        """Note that a notification has been written. May be called from any thread."""
        self._stop.drains = True
        self._asked.set()
        self._woken()

    def drain(self, *, at_start: bool = False) -> None:
        """See `DriverPart.drain`. The request of a run that has not begun is written once the run has its start
        checkpoint: from then on any start continues the run, and finds the request.

        Raises:
            NotFoundError: the run has ended.
            PenstockError: the store failed.
        """
        if at_start:
            self._drains_at_start = True
        else:
            requests.write_drain_notification(self.run.job.objects, self.run.job.paths, only_run=self._run_id)
        self.ask()

    def watch(self, woken: Callable[[], None]) -> None:
        self._woken = woken
        self._watch()

    @property
    def wants_step(self) -> bool:
        """True if there is a request that the next `look` will find."""
        return self._asked.is_set()

    @property
    def active(self) -> bool:
        return bool(self.notifications)

    @property
    def draining(self) -> DrainedOperators | None:
        return DrainedOperators(self.operators) if self.active else None

    @property
    def operators(self) -> frozenset[str] | None:
        """The operators that the run drains; None: all, if it drains."""
        alone = requests.drained_together(self.notifications)
        return None if alone is None else frozenset(self._known.get(each, each) for each in alone)

    def is_done(self, boundary: Boundary) -> bool:
        """True if nothing is left to drain at this boundary. The end of a stream drains a run as well."""
        return DrainedOperators(self.operators).is_done_at(boundary) if self.active else boundary.closed

    def begin(self, boundary: Boundary) -> None:
        """Begin an epoch at this boundary. The requests are read again before its first batch.

        If the boundary is that of the run's last record, the run has drained already: that cannot be taken back.
        """
        self._looked = False
        self._begun = frozenset()
        self._is_recorded = boundary.ends
        self._boundary = boundary
        self._report.rewind(boundary)

    def look(self) -> bool:
        """True if the run drains. Raises RetryableError if the store fails."""
        if not self._looked or (self._asked.is_set() and not self.active):
            self._find()
            self._looked = True
        return self.active

    def before_batch(self) -> bool:
        return self.look() and self.begins_anew()

    def before_the_end(self, boundary: Boundary) -> bool:
        """True if the run, which is to end at this boundary, must drain first. A request may be younger than the
        monitor's last look, and no later run follows it. Raises RetryableError if the store fails."""
        if boundary.closed:
            return False
        self._looked = False
        if not self.look() or self.is_done(boundary):
            return False
        self._stop.drains_first()
        return True

    def begins_anew(self) -> bool:
        """True if the run is to go back to its last checkpoint: the drain was taken back, or a part of it; or requests
        are for other operators now, and some have come to their end: what others send to those would be in no
        checkpoint. Raises RetryableError if the store fails."""
        if self._taken_back():
            return True
        if self._is_recorded or self._begun in (frozenset(), self.operators):
            return False
        alone = self.operators
        what = "all operators" if alone is None else f"the operators {listed(sorted(alone))}"
        logger.info("the run is to drain %s now: it begins again at its last checkpoint", what)
        return True

    def _taken_back(self) -> bool:
        """True if the run is to go back to its last checkpoint, because requests of the drain were cancelled or
        deleted, and those that are left name fewer operators, or none is left. Raises RetryableError if the store
        fails; some of them may have been deleted by then."""
        if self._is_recorded:
            return False
        before = self.operators
        own = self._requests.find().of_run(self._run_id)
        cancelled = {each: who for each in own if (who := self._requests.cancelled_by(each)) is not None}
        if cancelled:
            self._requests.delete(cancelled)
        self.notifications = self._known_alone([each for each in own if each not in cancelled])
        who = listed(sorted(set(cancelled.values()))) or "somebody who deleted requests"
        if not self.notifications:
            logger.warning("%s cancelled the drain: the run continues from its last checkpoint", who)
            self._report.cancelled()
            self._stop.drain_is_over()
            self._watch()
            return True
        after = self.operators
        if after is None or (before is not None and before <= after):
            return False
        logger.warning(
            "%s cancelled a part of the drain: the run goes back to its last checkpoint, and drains %s alone",
            who,
            listed(sorted(after)),
        )
        return True

    def counted(self, reports: Sequence[Report], boundary: Boundary, committed: int) -> None:
        """Count a batch that has ended at this boundary, if the run was asked to drain before.

        Args:
            committed: the batch of the last checkpoint.
        """
        self._boundary = boundary
        if boundary.drained_operators:
            self._begun = self.operators
        if self.active or self._asked.is_set():
            self._report.count(boundary, reports, committed)

    def last_commit(self, boundary: Boundary) -> SectionValues:
        """Begin the last commit of the run. Its record names the requests that it answers."""
        self._answered = self.answered(boundary)
        if self._answered:
            self._report.committing(self._answered)
        return {requests.DRAIN: requests.DrainSection(self._answered)}

    def answered(self, boundary: Boundary) -> tuple[str, ...]:
        """The uuids of the requests that are answered if the run ends at this boundary. The end of a stream answers
        them as well, if they were seen before its record: nothing is in flight, and everything that waited for
        time has fired."""
        return tuple(str(each.uuid) for each in self.notifications) if self.is_done(boundary) else ()

    def close(self) -> None:
        if self._monitor is not None:
            self._monitor.stop()

    def ended(self) -> None:
        """Delete the run's notifications, which its last record in the log answers. An error is logged: no other run
        follows them, and the next start deletes them."""
        answered = self._answered
        if answered:
            self._report.finished()
        try:
            own = self._requests.find().of_run(self._run_id)
            if late := [str(each.uuid) for each in own if str(each.uuid) not in answered]:
                logger.warning("the run ended before it saw the request to drain it (%s): nothing drains", listed(late))
            self._requests.delete(own)
        except PenstockError as error:
            logger.warning("the requests to drain were not deleted; the next start does it: %s", error)

    def shown(self) -> Sequence[Shown]:
        return (Shown("about the drain", self._shown, self._document),)

    def _document(self) -> DrainProgress | None:
        """The progress now; None once it has drained: the summary is there."""
        now: DrainProgress | None = self._board.told(DRAIN_WING.name)
        return None if now is None or now.phase == "drained" else now

    def _find_own(self) -> tuple[DrainNotification, ...]:
        """The notifications that this run obeys. Deletes notifications that no run obeys any more."""
        found = self._requests.obey(self._requests.find(), self._run_id)
        if self._drains_at_start:
            request = self._requests.ask(self._run_id)
            self._drains_at_start = False
            found = replace(found, notifications=(*found.notifications, request))
        over: tuple[DrainNotification, ...] = ()
        if found.notifications and not self._is_recorded:  # otherwise its own record answers them
            over = self._requests.delete_over(found)
        for each in over:
            own = each.run_id == self._run_id
            why = "a checkpoint answers it" if own else f"the job belongs to run {self._run_id} now"
            logger.warning("the request %s to drain run %s is deleted: %s", each.uuid, each.run_id, why)
        self._requests.delete_remains()
        return self._known_alone([each for each in found.of_run(self._run_id) if each not in over])

    def _known_alone(self, own: Sequence[DrainNotification]) -> tuple[DrainNotification, ...]:
        """Delete the requests that name operators which the application does not have. Returns the others."""
        for each in own:
            if strangers := sorted(set(each.operators) - self._known.keys()):
                logger.warning(
                    "the request %s to drain %s is deleted, and nothing drains for it: the application has the "
                    "operators %s",
                    each.uuid,
                    listed([f"`{name}`" for name in strangers]),
                    listed([f"`{name}`" for name in sorted({*self._known.values()})]),
                )
                self._requests.delete([each])
        return tuple(each for each in own if self._known.keys() >= set(each.operators))

    def _refuse_next(self) -> None:
        """End the requests to drain the next run, because this is the next run and does not look for requests. A later
        run, which nobody meant, would drain otherwise. They become this run's first: if the process dies in between, no
        other run obeys them."""
        waiting = {str(each.uuid) for each in self._requests.find().of_run(NEXT_RUN)}
        if not waiting:
            return
        found = self._requests.obey(self._requests.find(), self._run_id)
        own = [each for each in found.of_run(self._run_id) if str(each.uuid) in waiting]
        for each in own:
            logger.warning(
                "the request %s to drain the next run is deleted: run %s is the next one, and does not look for "
                "requests (job.drain-monitor.enabled is false). To drain it, start it with `penstock run --drain`",
                each.uuid,
                self._run_id,
            )
        self._requests.delete(own)

    def _find(self) -> None:
        if self._poll_ms is None and not self._asked.is_set():
            self._refuse_next()
            return
        asked = self._asked.is_set()
        self._asked.clear()  # before the store is read: who asks from here on is not overlooked
        try:
            own = self._find_own()
        except PenstockError:
            if asked:
                self._asked.set()
            raise
        inherited, self._looked_before = not (asked or self._looked_before), True
        if not own:
            if not (self.active or self._asked.is_set()):
                self._report.cancelled()
                self._stop.drain_is_over()
            self._watch()
            return
        if not self.active:
            uuids = listed([str(each.uuid) for each in own])
            level = logging.WARNING if inherited else logging.INFO
            alone = requests.drained_together(own)
            what = "" if alone is None else f" of {listed(sorted(alone))}"
            begun = f"was asked to drain{what} before this start" if inherited else f"drains{what}"
            logger.log(level, "the run %s (request %s): nothing more is read from its inputs", begun, uuids)
        self.notifications = own
        self._stop.drains = True
        self._board.update(phase="draining")
        self._report.begin([str(each.uuid) for each in own], self._boundary)

    def _watch(self) -> None:
        if self._poll_ms is None or (self._monitor is not None and self._monitor.state.value != "STOPPED"):
            return
        self._monitor = requests.DrainPoller(self._requests, self._run_id, self._poll_ms)
        self._monitor.register_drain_callback(self.ask)
        self._monitor.start()
