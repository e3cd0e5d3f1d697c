"""The runtime's part of the configuration, and the time limits of steps without a message. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.batch.batch import Batch
from penstock.errors import PenstockTimeoutError
from penstock.system.contract.messages import RecordLimits

if TYPE_CHECKING:  # the driver needs no stores
    from penstock.state.stores.task_store import StoreLayer


@dataclass(frozen=True, slots=True)
class StepLimit:
    """The time that one step of a batch may take."""

    key: str = "container.attempt.timeout.ms"
    ms: int | None = None
    """Milliseconds; 0 or less: no limit. None: a step that makes no progress is given up like a message that does not,
    and the batch runs again."""
    drains: bool = False

    @property
    def is_general(self) -> bool:
        return self.ms is None

    def is_over(self, began: float | None, now: float) -> bool:
        """True if a step has taken too long.

        Args:
            began, now: on the machine's monotonic clock, in seconds; None: nothing runs.
        """
        return began is not None and self.ms is not None and 0 < self.ms < (now - began) * 1000

    def error(self, what: str, took_s: float) -> PenstockTimeoutError:
        """The error for a step that took too long.

        Args:
            what: the step, in words.
            took_s: seconds so far.
        """
        then = " The run has not drained: its request stays, and the next start drains again." if self.drains else ""
        return PenstockTimeoutError(
            f"{what} has taken {took_s * 1000:,.0f} ms; {self.key} is {self.ms}.{then} Find out what it waits for, or "
            "set a longer time"
        )


GENERAL = StepLimit()


@dataclass(frozen=True, slots=True)
class StepLimits:
    """`task.callback.*.timeout.ms`, in milliseconds; 0 or less: no limit. None: the rule for messages holds."""

    drain_ms: int | None = None
    watermark_ms: int | None = None

    def of_operators(self, batch: Batch) -> StepLimit:
        """The limit for an operator of a task in its steps without a message."""
        if batch.ending == "drain":
            return self.of_outputs(batch)
        return StepLimit("task.callback.watermark.timeout.ms", self.watermark_ms)

    def of_outputs(self, batch: Batch) -> StepLimit:
        if batch.ending == "drain":
            return StepLimit("task.callback.drain.timeout.ms", self.drain_ms, drains=True)
        return GENERAL


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """The runtime's part of the configuration. Plain data, sent to every worker and container."""

    job_name: str
    tasks: int
    output_partitions: Mapping[str, int]
    """Partitions of every output stream, the dead-letter stream included, by `system.stream`."""
    cache_entries: Mapping[str, int] = field(default_factory=dict)
    dead_letter: bool = False
    identities: Mapping[str, str] = field(default_factory=dict)
    """By input (`system.stream`): the identity that dead letters carry, to tell it from later streams of its name."""
    store_layers: tuple[type[StoreLayer], ...] = ()
    """Layers around every store, from the inside to the outside."""
    config: Mapping[str, str] = field(default_factory=dict)
    max_ahead_ms: int | None = None
    """The limit of an event time, relative to the batch time, to count for the watermark; None: the application does
    not use event time."""
    window_ms: int = -1
    """The interval between calls of a task's `window`; below 1: never."""
    step_limits: StepLimits = field(default_factory=StepLimits)
    run_id: str = ""
    """The run named in the control messages of a drain."""
    output_limits: Mapping[str, RecordLimits] = field(default_factory=dict)
    """By exactly-once output, what its stream refuses of a message. An output that refuses nothing has no entry."""
    partial_aggregates: bool = True
    """Messages for an aggregate may be added up before they leave their stage."""
