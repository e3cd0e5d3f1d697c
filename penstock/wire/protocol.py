"""What containers and their callers say to each other: plain values, and their form on the wire.

A new call is one request here, one line in the table of `penstock.wire.calls`, and one handler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias

import msgspec

from penstock.batch.batch import Batch, Due
from penstock.checkpoint.id import CheckpointId
from penstock.documents import Count, decoder, decoding
from penstock.metrics.snapshot import Row
from penstock.outbox.unpublished import OutboxObject
from penstock.side.fill.failure import SideFailure

END_OF_INPUT = b"end"
"""The metadata of the last message that a worker sends for its attempts."""
Markers: TypeAlias = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Task (as text) -> backend -> store -> marker."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which incarnation of a container a call is meant for, in which epoch."""

    incarnation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class AttemptCall:
    """An execution of (batch, stage) for some tasks of one container, an attempt each. The only call that is not in
    the table: packets go both ways while it lasts."""

    identity: Identity
    batch: Batch
    stage: int
    tasks: list[int]


class Request:
    """What a call asks of all containers of the job together."""

    __slots__ = ()

    def for_tasks(self, tasks: Sequence[int]) -> Self:
        """What of it concerns a container that has these tasks."""
        return self

    def for_container(self, tasks: Sequence[int], standbys: Sequence[int]) -> Self:
        """What of it concerns a container that has these tasks, and is a standby of others."""
        return self.for_tasks(tasks)

    @property
    def waiting(self) -> str:
        """What is logged when it is tried again."""
        return f"{type(self).__name__} is tried again"

    @property
    def too_late(self) -> str:
        """What is said when it did not succeed in time."""
        return f"{type(self).__name__} did not succeed"


@dataclass(frozen=True, slots=True)
class RenewPort(Request):
    """Serve another port with a new certificate, and close the one there is."""

    callers: str
    """The certificate that callers must have from now on."""


@dataclass(frozen=True, slots=True)
class RenewedPort:
    """The port that took the place of another one."""

    tcp_uri: str
    certificate: str
    callers: str


@dataclass(frozen=True, slots=True)
class OpenEpoch(Request):
    """Enter an epoch: restore the tasks from their markers."""

    package: bytes
    """The pickled JobPackage."""
    last_ended: int
    checkpoint_id: str | None
    """None: there is no checkpoint, everything starts empty."""
    markers: Markers
    covered: tuple[str, ...]
    """The stores the checkpoint covers: without a marker, each is an error. Others start empty."""
    tasks: tuple[int, ...] = ()
    standbys: tuple[int, ...] = ()
    """The tasks whose standby the container is."""

    def for_container(self, tasks: Sequence[int], standbys: Sequence[int]) -> Self:
        return replace(
            self, tasks=tuple(tasks), standbys=tuple(standbys), markers=_of_tasks(self.markers, [*tasks, *standbys])
        )


@dataclass(frozen=True, slots=True)
class OpenProgress:
    """How far the opening of an epoch is."""

    size_bytes: int
    """How much was restored so far."""
    notes: tuple[str, ...] = ()
    """What went wrong on the way, though it went well in the end."""
    next_due: Mapping[int, Mapping[str, Due]] = field(default_factory=dict)
    """By task and operator, the times of the oldest timers; empty before all tasks are restored."""


@dataclass(frozen=True, slots=True)
class Bootstrap(Request):
    """Wait until the side inputs of the tasks are caught up."""


@dataclass(frozen=True, slots=True)
class BootstrapState:
    """How far that is."""

    done: Mapping[str, int] = field(default_factory=dict)
    """By store, how many messages were read."""
    total: Mapping[str, int] = field(default_factory=dict)
    """By store, how many are to be read. Where offsets have gaps there are fewer: they are differences of offsets."""
    failure: SideFailure | None = None
    """Why it ended without being caught up."""


@dataclass(frozen=True, slots=True)
class StartRun(Request):
    """Attempts of this run of this batch may come; those of an earlier run of it no longer."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class EndBatch(Request):
    """Apply exactly these attempts: task -> stage -> token."""

    batch: Batch
    tokens: Mapping[int, Mapping[int, str]]

    def for_tasks(self, tasks: Sequence[int]) -> Self:
        return replace(self, tokens={task: self.tokens.get(task, {}) for task in tasks})

    @property
    def waiting(self) -> str:
        return f"batch {self.batch.number} waits for its end"

    @property
    def too_late(self) -> str:
        return f"batch {self.batch.number} could not end"


@dataclass(frozen=True, slots=True)
class TakeSnapshot(Request):
    """The synchronous part of a commit: take what changed since the last one."""

    checkpoint_id: str
    last: bool = False
    """No other commit is to be expected soon: the run ends with this one, or is idle."""


@dataclass(frozen=True, slots=True)
class UploadSnapshot(Request):
    """Make the last snapshot durable."""

    checkpoint_id: str

    @property
    def waiting(self) -> str:
        return f"the upload of checkpoint {self.checkpoint_id} is tried again"

    @property
    def too_late(self) -> str:
        return f"checkpoint {self.checkpoint_id} was not uploaded"


@dataclass(frozen=True, slots=True)
class UploadResult:
    """What is durable of a snapshot."""

    markers: Markers
    outbox: tuple[OutboxObject, ...] = ()
    """What is to be published once the checkpoint is in the log, each task's objects in the order of publication."""


@dataclass(frozen=True, slots=True)
class Publish(Request):
    """Publish objects of one record, and return once readers see all of their messages. Idempotent."""

    slot: int
    """The number of the record that named them first. Slots are published one after the other."""
    objects: tuple[OutboxObject, ...]
    """Each task's in the order of publication."""
    newest: int
    """The number of the newest record of which anything can have been published before the call, or -1. An output that
    knows of a later one is newer than the checkpoint log."""

    def for_tasks(self, tasks: Sequence[int]) -> Self:
        return replace(self, objects=tuple(each for each in self.objects if each.task in tasks))


@dataclass(frozen=True, slots=True)
class PublishProgress:
    """How far a publication is. The last answer says that it is complete."""

    messages: int
    """How many of the messages readers see, those that they saw before the call included."""
    waits_for: str = ""
    """What it waits for, in words, while a system does not take messages."""


@dataclass(frozen=True, slots=True)
class CleanUp(Request):
    """A checkpoint is in the log, with these markers."""

    checkpoint_id: str
    markers: Markers

    def for_tasks(self, tasks: Sequence[int]) -> Self:
        return replace(self, markers=_of_tasks(self.markers, tasks))


@dataclass(frozen=True, slots=True)
class Follow(Request):
    """A checkpoint is in the log, with these markers: standbys bring their copies to it, in the background."""

    checkpoint_id: str
    markers: Markers
    """Those of the tasks whose standby the container is."""

    def for_container(self, tasks: Sequence[int], standbys: Sequence[int]) -> Self:
        return replace(self, markers=_of_tasks(self.markers, standbys))


@dataclass(frozen=True, slots=True)
class WindDown(Request):
    """The run has ended well: what runs in the background, and makes the next start quicker, has `task.shutdown.ms` to
    end."""


@dataclass(frozen=True, slots=True)
class LoadTable(Request):
    """Load this version of a pushed table beside the one in use. What of the table is neither of the two goes."""

    table: str
    in_use: int | None
    """The version that the next batches read until another one is loaded."""
    manifest: bytes
    """The version's, see `penstock.tables.versions.manifest`."""


@dataclass(frozen=True, slots=True)
class TableProgress:
    """How far a container is with a version of a pushed table."""

    table: str
    version: int
    state: Literal["loading", "loaded", "failed"]
    done_bytes: int
    total_bytes: int
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True, slots=True)
class NoArguments(Request):
    """A call without arguments."""


@dataclass(frozen=True, slots=True)
class EpochFailure:
    """What failed in the background of an epoch."""

    epoch: int
    failure: SideFailure


@dataclass(frozen=True, slots=True)
class StandbyState:
    """How far a standby of one task is."""

    task: Count
    checkpoint_id: str | None
    """The checkpoint that all of its stores are at or behind; None as long as one of them has no copy."""
    wanted: str
    """The checkpoint that it is to be at."""
    doing: str
    """What it does now, in a few words, or its last failure; empty if it waits for the next checkpoint."""

    @property
    def behind_ms(self) -> int | None:
        """The time between the checkpoint that it is at and the one that it is to be at."""
        if self.checkpoint_id is None:
            return None
        return CheckpointId.parse(self.wanted).millis - CheckpointId.parse(self.checkpoint_id).millis

    @property
    def is_ready(self) -> bool:
        """Whether it has a copy of every store: what is missing is a tail at most."""
        return self.checkpoint_id is not None


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life. `stalled_ms` is how long the slowest attempt has been processing one message, `processing` which
    message that is, `pending_bytes` what was written to its stores since the last commit, `processed` how many
    messages of `batch` each of its stages has processed."""

    container: str
    incarnation: str
    resident_bytes: int
    stalled_ms: int
    pending_bytes: int
    processing: str = ""
    batch: int = -1
    processed: Mapping[int, int] = field(default_factory=dict)
    metrics: list[Row] = field(default_factory=list)
    """Those that have changed since an earlier beat; not every beat looks."""
    side_failure: EpochFailure | None = None
    """Why side inputs do not fill a store any more: the run fails with it."""
    side_troubles: tuple[str, ...] = ()
    """Why side inputs do not fill stores now, which keep what they have meanwhile; see `Fleet.side_troubles`."""
    standbys: list[StandbyState] = field(default_factory=list)
    overdue: str = ""
    """What an attempt does that takes longer than it may, in words: the run fails with it."""
    wants_commit: bool = False
    """Backends have something to do by time, for which they need a commit."""


def dump(value: Any) -> bytes:
    """A value of this module as bytes."""
    return msgspec.msgpack.encode(value)


def load(form: Any, data: bytes) -> Any:
    """Read a value. Raises CorruptError if it is not of this form."""
    with decoding("a message between driver and container is damaged"):
        return decoder(form).decode(data)


def _of_tasks(markers: Markers, tasks: Sequence[int]) -> Markers:
    return {str(task): markers.get(str(task), {}) for task in tasks}
