"""The driver's part of exactly-once output: publishes it behind each record, and deletes what was published."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

import msgspec

from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import SectionValues
from penstock.driver.context import RunContext
from penstock.driver.feed.boundary import Boundary
from penstock.driver.part import DriverPart
from penstock.outbox.driver.garbage import OutboxGarbage
from penstock.outbox.driver.publishing import Publishing
from penstock.outbox.unpublished import OUTBOX, OutboxObject, outbox_section
from penstock.wire.protocol import Markers, load


class OutboxDriver(DriverPart):
    """Publishes the output of a run."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._publishing = Publishing(run)
        self.debts = self._publishing.debts
        self._garbage = OutboxGarbage(run.job.objects, run.job.paths, run.job.log)

    def enter(self, epoch: int) -> None:
        """Publish first what the last record of the log leaves."""
        self._publishing.settle(epoch)

    def sections(self, boundary: Boundary, uploaded: Sequence[msgspec.Raw]) -> SectionValues:
        """The objects that the record is to publish, and what earlier ones leave."""
        objects = [each for own in uploaded for each in load(tuple[OutboxObject, ...], own)]
        return {OUTBOX: outbox_section(self.debts.now(), objects, self.run.job.plan.publisher)}

    def publish(self, record: CheckpointRecord, abandoned: threading.Event) -> Future[None]:
        return self._publishing.begin(record.epoch, abandoned)

    def waits_for(self) -> str:
        return self._publishing.waits_for

    def recorded(self, record: CheckpointRecord, markers: Markers, *, abandoned: bool) -> None:
        self._garbage.note(record)

    def collect(self, record: CheckpointRecord) -> None:
        self._garbage.collect(record)

    def close(self) -> None:
        self._publishing.close()
