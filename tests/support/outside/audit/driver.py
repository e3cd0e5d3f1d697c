"""The part in the driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from audit.facts import Audited, RunsOf, board
from audit.wing import AUDIT, COUNT_RUNS, RECORDED, AuditSettings, CountRuns, Recorded, Runs
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import SectionValues
from penstock.driver.feed.boundary import Boundary
from penstock.driver.part import DriverPart, RunContext
from penstock.job.board import Shown
from penstock.wire.protocol import Markers, load

logger = logging.getLogger(__name__)


class AuditDriver(DriverPart):
    """Counts commits, and asks the containers behind every so many of them."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._every = AuditSettings(run.job.config.resolved).every
        record = run.job.start.restore_from
        before = Recorded() if record is None else record.section(RECORDED)
        self._commits, self._runs = before.commits, before.runs
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="audit")

    def sections(self, boundary: Boundary, uploaded: Sequence[msgspec.Raw]) -> SectionValues:
        return {RECORDED: Recorded(self._commits + 1, sum(load(Runs, each).count for each in uploaded))}

    def publish(self, record: CheckpointRecord, abandoned: threading.Event) -> Future[None] | None:
        if record.section(RECORDED).commits % self._every != 0:
            return None
        return self._asking.submit(self._ask, record.epoch, abandoned)  # the commit thread waits for no container

    def recorded(self, record: CheckpointRecord, markers: Markers, *, abandoned: bool) -> None:
        self._commits = record.section(RECORDED).commits

    def _ask(self, epoch: int, abandoned: threading.Event) -> None:
        try:
            answers = self.run.fleet.ask(COUNT_RUNS, epoch, CountRuns(), abandoned=abandoned)
        except Exception as error:  # a lost container is found without us
            logger.warning("the runs were not counted, until the next time: %s", error)
        else:
            self._runs = sum(each.count for each in answers)

    def close(self) -> None:
        self._asking.shutdown(cancel_futures=True)

    def shown(self) -> Sequence[Shown]:
        job = self.run.job
        return (Shown("about the audit", board(job.objects, job.paths), self._document),)

    def _document(self) -> Audited:
        states = sorted(self.run.fleet.states(AUDIT.name, Runs).items())
        counted = tuple(RunsOf(container, runs.count) for container, runs in states)
        return Audited(self.run.job.claim.run_id, self._commits, self._runs, counted)
