"""The order in which inputs are read (Samza's bootstrap and priority), in terms of batches. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.pace import BatchPace
from penstock.batch.portions import Portion
from penstock.batch.positions import Ends, Positions, TaskSsp
from penstock.batch.ranges import plan_ranges
from penstock.config.model import JobConfig


@dataclass(frozen=True, slots=True)
class InputOrder:
    """The order of the inputs of a run."""

    priorities: Mapping[SystemStream, int] = field(default_factory=dict)
    """By input; 0 is left out."""
    bootstrap: frozenset[SystemStream] = frozenset()

    @classmethod
    def of(cls, inputs: Collection[SystemStream], config: JobConfig) -> InputOrder:
        priorities = {stream: priority for stream in inputs if (priority := config.stream(stream).priority)}
        return cls(priorities, frozenset(stream for stream in inputs if config.stream(stream).bootstrap))

    def targets(self, ends: Ends) -> dict[SystemStreamPartition, int]:
        """The offsets up to which the bootstrap inputs are read before the others: their ends at the start of the
        run."""
        return {ssp: end.upcoming for ssp, end in ends.items() if ssp.system_stream in self.bootstrap}

    def lagging(
        self, positions: Positions, ends: Ends, targets: Mapping[SystemStreamPartition, int]
    ) -> dict[TaskSsp, int]:
        """The partitions of bootstrap inputs that are not read up to their targets, with their positions."""
        return {
            at: start
            for at, start in positions.items()
            if at.ssp in targets and start < min(targets[at.ssp], ends[at.ssp].upcoming)
        }

    def plan(
        self,
        positions: Positions,
        ends: Ends,
        pace: BatchPace,
        until: Mapping[SystemStreamPartition, int] | None,
        targets: Mapping[SystemStreamPartition, int],
    ) -> dict[TaskSsp, Portion]:
        """Plan the portions of a batch, in the order in which a task reads them. Bootstrap inputs are read alone, until
        they have reached their targets. Then each priority gets the pace that the higher ones leave, if they leave no
        message unread.

        Raises:
            NotFoundError: as `plan_ranges`.
        """
        if lagging := self.lagging(positions, ends, targets):
            to = {at.ssp: min(targets[at.ssp], until[at.ssp]) if until else targets[at.ssp] for at in lagging}
            positions, until = lagging, to
        portions: dict[TaskSsp, Portion] = {}
        for tier in self._tiers(positions):
            found = plan_ranges(tier, ends, pace, until)
            portions |= found
            messages = sum(portion.messages for portion in found.values())
            size = sum(portion.messages * pace.size_of(at.task, at.ssp.system_stream) for at, portion in found.items())
            pace = replace(pace, messages=pace.messages - messages, bytes=pace.bytes - math.ceil(size))
            unread = any(portion.messages < len(portion.offsets) for portion in found.values())
            if unread or (portions and (pace.messages < 1 or pace.bytes < 1)):
                break
        return portions

    def _tiers(self, positions: Positions) -> Iterator[Positions]:
        if not self.priorities:
            yield positions
            return
        tiers: dict[int, dict[TaskSsp, int]] = {}
        for at, start in positions.items():
            tiers.setdefault(self.priorities.get(at.ssp.system_stream, 0), {})[at] = start
        for priority in sorted(tiers, reverse=True):
            yield tiers[priority]
