"""The table of calls to a container: for each its name, request, answer, and how long the driver waits.

The driver makes one request for all containers and asks for it (`Fleet.ask`); each container gets the part for its
tasks, checks that the call is meant for it, and passes it to the handler (`penstock.container.process.handlers`). A new
call is a request in `penstock.wire.protocol`, a line here, and a handler. A wing has its own calls (`penstock.wing`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, TypeVar

from penstock.base.retry import Retry
from penstock.config.model import JobConfig
from penstock.metrics.snapshot import Row
from penstock.wire import protocol

Q = TypeVar("Q", bound=protocol.Request)
A = TypeVar("A")
BEAT_SECONDS = 0.5
CLOSE_SECONDS = 15.0
BEATS_PER_METRICS = 4
METRICS_SHARE = 0.05
"""The share of a core that looking for changed metrics takes at most. A container with hundreds of stores looks less
often: the text with RocksDB's numbers takes a third of a millisecond for each."""
MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, A]):
    """A kind of call. Most calls have one answer, some have several."""

    name: str
    request: type[Q]
    answer: type[A]
    answer_s: Callable[[JobConfig, float], float | None] = lambda config, spent_s: MINUTE
    """(configuration, seconds spent on earlier tries) → the driver's wait for the last answer; None: until the stream
    ends."""
    again: Retry | None = None
    """Retries of transient failures; all tries together last at most `task.commit.timeout.ms`."""

    def encode(self, identity: protocol.Identity, request: Q) -> bytes:
        return protocol.dump((identity, request))

    def parse(self, body: bytes) -> tuple[protocol.Identity, Q]:
        """Raises CorruptError if the call is malformed."""
        found: tuple[protocol.Identity, Q] = protocol.load(tuple[protocol.Identity, self.request], body)  # type: ignore[name-defined]
        return found

    def decode(self, answer: bytes) -> A:
        found: A = protocol.load(self.answer, answer)
        return found


OPEN = Call(
    "open", protocol.OpenEpoch, protocol.OpenProgress, lambda config, _: config.container.restore_timeout_ms / 1000
)
START_RUN = Call("start-run", protocol.StartRun, NoneType)
END = Call("end", protocol.EndBatch, NoneType, again=Retry(pause_s=0.02, growth=1.0))
SNAPSHOT = Call("snapshot", protocol.TakeSnapshot, NoneType)
UPLOAD = Call(
    "upload",
    protocol.UploadSnapshot,
    protocol.UploadResult,
    lambda config, spent_s: max(1.0, config.task.commit_timeout_ms / 1000 - spent_s),
    Retry(pause_s=0.2),
)
CLEAN_UP = Call("clean-up", protocol.CleanUp, NoneType)
WIND_DOWN = Call("wind-down", protocol.WindDown, list[Row], lambda c, _: c.task.shutdown_ms / 1000 + CLOSE_SECONDS)
CLOSE = Call("close", protocol.NoArguments, int, lambda config, spent_s: CLOSE_SECONDS)
RENEW_PORT = Call("renew-port", protocol.RenewPort, protocol.RenewedPort, lambda config, spent_s: CLOSE_SECONDS)
BEAT = Call("beat", protocol.NoArguments, protocol.Beat, lambda config, spent_s: None)

CALLS: dict[str, Call[Any, Any]] = {
    call.name: call
    for call in (
        OPEN,
        START_RUN,
        END,
        SNAPSHOT,
        UPLOAD,
        CLEAN_UP,
        WIND_DOWN,
        CLOSE,
        BEAT,
        RENEW_PORT,
    )
}
