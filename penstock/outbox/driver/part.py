"""The driver's part of exactly-once output: publishes it behind each record, and deletes what was published."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from penstock.checkpoint.record import CheckpointRecord
from penstock.driver.context import RunContext
from penstock.driver.feed.boundary import Boundary
from penstock.driver.part import DriverPart
from penstock.outbox.driver.garbage import OutboxGarbage
from penstock.outbox.driver.publishing import Publishing
from penstock.outbox.unpublished import OutboxObject
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

    def section(self, boundary: Boundary, uploaded: Sequence[msgspec.Raw]) -> Mapping[str, Any]:
        """The objects that the record is to publish, and what earlier ones leave."""
        objects = tuple(each for own in uploaded for each in load(tuple[OutboxObject, ...], own))
        owed = self.debts.now()
        keepers = {*owed.keepers, *(ssp.system for each in objects for ssp in each.parts)}
        return {
            "outbox": objects,
            "unpublished": owed.unpublished,
            "keepers": tuple(sorted(keepers)),
            "publisher": self.run.job.plan.publisher if keepers else "",
        }

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
