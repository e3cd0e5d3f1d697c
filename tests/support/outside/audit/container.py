"""The part in a container."""

from __future__ import annotations

from collections.abc import Mapping

from audit.wing import COUNT_RUNS, CountRuns, Runs
from penstock.batch.batch import Batch
from penstock.container.part import Answers, ContainerPart, EpochContext, once


class AuditContainer(ContainerPart):
    """Counts runs of batches."""

    name = "audit"

    def __init__(self, epoch: EpochContext) -> None:
        super().__init__(epoch)
        self._runs = 0

    def start_run(self, batch: Batch) -> None:
        self._runs += 1

    def answers(self) -> Mapping[str, Answers]:
        return {COUNT_RUNS.name: once(self._count)}

    def state(self) -> Runs:
        return Runs(self._runs)

    def uploaded(self) -> Runs:
        return Runs(self._runs)

    def _count(self, request: CountRuns) -> Runs:
        return Runs(self._runs)
