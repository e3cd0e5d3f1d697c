"""The report of an attempt to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from penstock.base.documents import decoder, decoding
from penstock.batch.batch import Due
from penstock.batch.portions import PortionRead
from penstock.checkpoint.intermediate import Ranges
from penstock.errors import ContainerLostError, FailedMessage
from penstock.metrics.snapshot import Row
from penstock.runtime.messages.packet import REPORT_STAGE, Packet, PacketKind
from penstock.state.engines.engine import EngineFailedError


@dataclass(frozen=True, slots=True)
class Report:
    """The report of an attempt: who it was, whose rows it read, and its result."""

    stage: int
    task: int
    token: str
    read: Mapping[int, int]
    """Source stage -> the mark of its attempts that were read (`mark_of`). Empty if it failed before it read any."""
    messages: int = 0
    dead_letters: int = 0
    written: dict[str, int] = field(default_factory=dict)
    """Output stream -> messages written (sink stage)."""
    appended: dict[str, dict[int, Ranges]] = field(default_factory=dict)
    """Durable intermediate stream -> partition -> the ranges of offsets that were written (sink stage)."""
    commit: bool = False
    shutdown: bool = False
    failed: FailedMessage | None = None
    error: tuple[str, str] | None = None
    """Kind and text of an error that is not the application's: a range that no longer exists, a fenced writer, a store
    whose engine failed."""
    upstream_failed: bool = False
    """A source failed, so this attempt did nothing."""
    inputs: dict[int, PortionRead] = field(default_factory=dict)
    """Origin code of an input's partition -> the portion that was read (stage 0)."""
    next_due: dict[str, Due] = field(default_factory=dict)
    """By operator id, the times of its oldest timers that have not fired. Absent: it has none."""
    process_ns: int = 0
    metrics: list[Row] = field(default_factory=list)
    """The counts of the stores, and the metrics of the tasks. They count once the batch has ended."""
    changed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By store, the number of keys that the attempt wrote or deleted, and of those that it deleted."""
    dead_letter: FailedMessage | None = None
    """The first dead letter, without its traceback."""

    def packet(self) -> Packet:
        payload = msgspec.msgpack.encode(self)
        return Packet(
            self.task, REPORT_STAGE, PacketKind.REPORT, self.stage, self.task, self.token, -1, -1, 0, 0, payload
        )

    @classmethod
    def decode(cls, payload: bytes) -> Report:
        """Raises CorruptError if the payload is not a report."""
        with decoding("what an attempt reported is damaged"):
            return decoder(cls).decode(payload)


def engine_error(error: EngineFailedError, task: int) -> tuple[str, str]:
    """A failed engine as an attempt's error. It is treated as a lost container: a new epoch, in which the task is
    restored."""
    return ContainerLostError.__name__, f"task {task}: {error}"
