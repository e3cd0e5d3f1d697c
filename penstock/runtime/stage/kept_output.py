"""Output that is kept with a task's state: from the End of its batch to a commit, which takes it with the state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.batch.batch import Batch
from penstock.graph.topology import Topology
from penstock.runtime.messages.packet import Packet
from penstock.runtime.messages.router import JointOutput
from penstock.runtime.steps import Step


class KeptAttempt(Protocol):
    """An attempt that processes nothing: what it takes is kept if End names it, and forgotten otherwise. A container
    treats it as a `PacketAttempt`."""

    stage: int
    task: int
    token: str
    batch: Batch
    step: Step | None
    processed: int
    process_ns: int
    operator: str

    def progress(self) -> object: ...

    def describe(self) -> str: ...

    def accept(self, packet: Packet) -> Iterable[Packet]: ...

    def finish(self, together: JointOutput | None = None) -> Iterable[Packet]: ...

    def apply(self) -> int:
        """Keep the packets: End names this attempt. Returns their bytes. Cannot fail half-way."""

    def close(self) -> None:
        """Forget the packets, unless they are kept."""


class KeptOutput(Protocol):
    """The output of one task that waits for a commit. Thread-safe."""

    def begin_attempt(self, topology: Topology, tasks: int, token: str, batch: Batch) -> KeptAttempt:
        """Begin an attempt of the stage `topology.outbox`."""

    def close(self) -> None:
        """Forget everything: the task leaves its container."""
