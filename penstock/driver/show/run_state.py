"""The state of a run as metrics, at the moment at which somebody asks: an idle run, one that waits, one that hangs and
one that cannot commit all look alike in counters of work."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.positions import Positions
from penstock.metrics.snapshot import GaugeValue, MetricId, Snapshot
from penstock.system.base import System

JOB = "job"
PHASES: Final = (
    "starting",
    "restoring",
    "bootstrapping",
    "publishing",
    "running",
    "draining",
    "stopping",
    "ended",
    "drained",
    "failed",
)
"""See `Job.phase`."""


@dataclass(slots=True)
class UncommittedTime:
    """Since when there is something that no complete checkpoint has, in epoch milliseconds; 0: there is nothing.

    Used by the run loop's thread; any thread may read `since_ms`.
    """

    since_ms: int = 0
    _behind_ms: int = 0
    """The same for what came after the commit in flight began."""

    def batch_ended(self, now_ms: int) -> None:
        """Note a batch that no commit has yet."""
        self.since_ms = self.since_ms or now_ms
        self._behind_ms = self._behind_ms or now_ms

    def commit_began(self) -> None:
        """Everything that has ended is in this commit."""
        self._behind_ms = 0

    def commit_completed(self) -> None:
        """Only batches behind the commit are left."""
        self.since_ms = self._behind_ms


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run at one moment. Times are in epoch milliseconds; 0 stands for none."""

    phase: str
    phase_since_ms: int
    epoch: int
    failures: int
    """Since the last checkpoint."""
    checkpoint_ms: int
    outage_since_ms: int
    batch_since_ms: int
    uncommitted_since_ms: int
    containers: int
    stalled_ms: int
    """The time that the slowest attempt has spent on one message or step."""


def run_state(facts: RunFacts, lags: Mapping[SystemStream, int]) -> Snapshot:
    """The gauges of a run. A time that is not there is 0, but that of a first checkpoint is left out."""
    values: dict[MetricId, Any] = {
        MetricId(JOB, f"phase.{phase}", "active"): GaugeValue(int(facts.phase == phase)) for phase in PHASES
    }
    gauges = {
        "phase-since-ms": facts.phase_since_ms,
        "epoch": facts.epoch,
        "failures-since-checkpoint": facts.failures,
        "outage-since-ms": facts.outage_since_ms,
        "batch-since-ms": facts.batch_since_ms,
        "uncommitted-since-ms": facts.uncommitted_since_ms,
        "containers": facts.containers,
        "stalled-ms": facts.stalled_ms,
    }
    if facts.checkpoint_ms:
        gauges["last-checkpoint-ms"] = facts.checkpoint_ms
    values |= {MetricId(JOB, JOB, name): GaugeValue(value) for name, value in gauges.items()}
    for stream, lag in lags.items():
        values[MetricId(JOB, f"stream.{stream}", "messages-behind-high-watermark")] = GaugeValue(lag)
    return Snapshot(values)


def lags_of(
    positions: Positions, ends: Mapping[SystemStreamPartition, int], systems: Mapping[str, System]
) -> dict[SystemStream, int]:
    """The unread messages of each input whose ends are all known, as far as they are. Of several tasks that read a
    partition, those of the slowest count. Inputs that count something else, such as files, are left out."""
    at: dict[SystemStreamPartition, int] = {}
    for place, offset in positions.items():
        at[place.ssp] = min(offset, at.get(place.ssp, offset))
    found: dict[SystemStream, int] = {}
    for stream, own in _by_stream(at):
        system = systems[stream.system]
        if system.lag_unit == "message" and all(ssp in ends for ssp in own):
            found[stream] = sum(system.lag(at[ssp], max(at[ssp], ends[ssp])) for ssp in own)
    return found


def _by_stream(
    ssps: Collection[SystemStreamPartition],
) -> Iterator[tuple[SystemStream, list[SystemStreamPartition]]]:
    streams: dict[SystemStream, list[SystemStreamPartition]] = {}
    for ssp in ssps:
        streams.setdefault(ssp.system_stream, []).append(ssp)
    yield from streams.items()
