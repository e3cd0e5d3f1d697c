"""Calls between containers and their callers: requests and answers as plain values, their form on the wire, and the
table of all calls: for each its name, request, answer, and how long the driver waits.

The driver makes one request for all containers and asks for it (`Fleet.ask`); each container gets the part for its
tasks, checks that the call is meant for it, and passes it to the handler (`penstock.container.handlers`). A new
call is one request here, one line in the table, and one handler. A wing has its own calls (`penstock.wing`).

Errors of a container travel in messages. What gRPC has for errors, the metadata at a call's end, takes some kilobytes,
each byte of other scripts three times and all of it twice; with more, the caller learns nothing but that there was too
much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, Generic, Self, TypeAlias, TypeVar

import msgspec

from penstock.base.documents import decoder, decoding
from penstock.base.retry import Retry
from penstock.batch.batch import Batch, Due
from penstock.config.model import JobConfig
from penstock.host.log_lines import PassedLine
from penstock.job.shown import TaskWork
from penstock.metrics.snapshot import Row

END_OF_INPUT = b"end"
"""Metadata of the last message that a worker sends for its attempts."""
Markers: TypeAlias = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Task (as text) → backend → store → marker."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The target of a call: an incarnation of a container, in an epoch."""

    incarnation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class AttemptCall:
    """An execution of (batch, stage) for some tasks of one container, with an attempt for each. The only call that is
    not in the table: packets go both ways while it lasts."""

    identity: Identity
    batch: Batch
    stage: int
    tasks: list[int]
    starts: bool = False
    """True if it also admits the run, as `StartRun` does."""


class Request:
    """A request to all containers of the job together."""

    __slots__ = ()

    def for_tasks(self, tasks: Sequence[int]) -> Self:
        """The part for a container that has these tasks."""
        return self

    def for_container(self, tasks: Sequence[int], standbys: Sequence[int]) -> Self:
        """The part for a container that has these tasks and standbys."""
        return self.for_tasks(tasks)

    @property
    def waiting(self) -> str:
        return f"{type(self).__name__} is tried again"

    @property
    def too_late(self) -> str:
        return f"{type(self).__name__} did not succeed"


@dataclass(frozen=True, slots=True)
class RenewPort(Request):
    """Serve another port with a new certificate, and close the present one."""

    callers: str


@dataclass(frozen=True, slots=True)
class RenewedPort:
    """The replacement of a port."""

    tcp_uri: str
    certificate: str
    callers: str


@dataclass(frozen=True, slots=True)
class OpenEpoch(Request):
    """Enter an epoch: restore the tasks from their markers."""

    package: bytes
    """A pickled JobPackage."""
    last_ended: int
    checkpoint_id: str | None
    """None: there is no checkpoint, every store starts empty."""
    markers: Markers
    covered: tuple[str, ...]
    """The stores that the checkpoint covers: each must have a marker. Other stores start empty."""
    tasks: tuple[int, ...] = ()
    standbys: tuple[int, ...] = ()

    def for_container(self, tasks: Sequence[int], standbys: Sequence[int]) -> Self:
        return replace(
            self, tasks=tuple(tasks), standbys=tuple(standbys), markers=of_tasks(self.markers, [*tasks, *standbys])
        )


@dataclass(frozen=True, slots=True)
class OpenProgress:
    """Progress of the opening of an epoch."""

    size_bytes: int
    notes: tuple[str, ...] = ()
    """Failures that a restore has overcome."""
    next_due: Mapping[int, Mapping[str, Due]] = field(default_factory=dict)
    """By task and operator, the times of the oldest timers; empty until all tasks are restored."""
    in_place: tuple[int, ...] = ()
    """The tasks whose stores were all in this container, once all tasks are restored."""


@dataclass(frozen=True, slots=True)
class StartRun(Request):
    """Admit attempts of this run of this batch, and none of an earlier run of it."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class EndBatch(Request):
    """Apply exactly these attempts: task → stage → token."""

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
    """Take the changes since the last commit, the synchronous part of a commit."""

    checkpoint_id: str
    last: bool = False
    """True if no other commit is expected soon: the run ends with this one, or is idle."""


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
    """The durable part of a snapshot."""

    markers: Markers
    wings: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    """By wing, the value that its part has for the driver."""


@dataclass(frozen=True, slots=True)
class CleanUp(Request):
    """Release what was kept for the case that the checkpoint would not reach the log. It is in the log, with these
    markers."""

    checkpoint_id: str
    markers: Markers

    def for_tasks(self, tasks: Sequence[int]) -> Self:
        return replace(self, markers=of_tasks(self.markers, tasks))


@dataclass(frozen=True, slots=True)
class WindDown(Request):
    """The run has ended well: finish background work that makes the next start quicker within `task.shutdown.ms`."""


@dataclass(frozen=True, slots=True)
class NoArguments(Request):
    """A request without arguments."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life. `stalled_ms`: how long the slowest attempt has been processing one message; `processing`: that
    message in words; `pending_bytes`: bytes written to stores since the last commit; `processed`: messages of `batch`
    that each stage has processed."""

    container: str
    incarnation: str
    resident_bytes: int
    stalled_ms: int
    pending_bytes: int
    processing: str = ""
    batch: int = -1
    processed: Mapping[int, int] = field(default_factory=dict)
    metrics: list[Row] = field(default_factory=list)
    """Metrics that have changed since an earlier beat; not every beat looks for changes."""
    ready: tuple[int, ...] = ()
    """The tasks of other containers that this one could take over at once."""
    epoch: int = -1
    """The epoch that the container is in; -1 before the first one, and between two."""
    wings: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    """The states of the wings' parts in that epoch, by wing."""
    overdue: str = ""
    """A step of an attempt that exceeds its time limit, in words: the run fails with it."""
    lines: list[PassedLine] = field(default_factory=list)
    """Lines that the application has printed or logged since the last beat."""
    lines_left_out: int = 0
    """Further lines, which are in the container's log only."""
    lines_dropped: str = ""
    """The lines that the container's log has not taken since it began, in words; empty if it took all."""
    wants_commit: bool = False
    """True if backends have time-based work for which they need a commit."""
    work: list[TaskWork] = field(default_factory=list)
    """The work of tasks in `batch`: those with the most messages, and those that took the most time."""
    keys: list[tuple[int, bytes, int]] = field(default_factory=list)
    """(Stage, key, about how many messages) of the keys with the most messages."""
    keyed: dict[int, int] = field(default_factory=dict)
    """By stage, about how many messages the keys were counted in."""


def dump(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def raw(value: Any) -> msgspec.Raw:
    """A value as a part of another message that its carrier does not read."""
    return msgspec.Raw(dump(value))


def load(form: Any, data: bytes | msgspec.Raw) -> Any:
    """Raises CorruptError if the data is not of this form."""
    with decoding("a message between driver and container is damaged"):
        return decoder(form).decode(data)


def of_tasks(markers: Markers, tasks: Sequence[int]) -> Markers:
    """The markers of these tasks alone."""
    return {str(task): markers.get(str(task), {}) for task in tasks}


_MARK = b"\xc1penstock: failed\n"
"""No answer begins with it: 0xc1 is no type of MessagePack."""
LONGEST_ERROR = 1 << 18
"""The most characters of an error that travel; of a longer one, the middle is left out."""
_LONGEST_STATUS = 500


def carried(error: BaseException, *, kind: bool = True) -> bytes:
    """The message for an error; `kind`: its type stands in front of its text."""
    text = f"{type(error).__name__}: {error}" if kind else str(error)
    return _MARK + dump(cut(text, LONGEST_ERROR).encode(errors="backslashreplace").decode())


def carried_error(message: bytes | None) -> str | None:
    """The error that a message brings; None if it is an answer."""
    if message is None or not message.startswith(_MARK):
        return None
    text: str = load(str, message[len(_MARK) :])
    return text


def status_text(error: BaseException) -> str:
    """The beginning of an error, as much as gRPC takes as the status of a call."""
    return cut(str(error).encode("ascii", "backslashreplace").decode(), _LONGEST_STATUS)


def cut(text: str, longest: int) -> str:
    """The text, without its middle if it is longer.

    Example:
        >>> cut("0123456789" * 3, 10)
        '01234 ... (20 characters left out) ... 56789'
    """
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} ... ({len(text) - 2 * half:,} characters left out) ... {text[-half:]}"


Q = TypeVar("Q", bound=Request)
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

    def encode(self, identity: Identity, request: Q) -> bytes:
        return dump((identity, request))

    def parse(self, body: bytes) -> tuple[Identity, Q]:
        """Raises CorruptError if the call is malformed."""
        found: tuple[Identity, Q] = load(tuple[Identity, self.request], body)  # type: ignore[name-defined]
        return found

    def decode(self, answer: bytes) -> A:
        found: A = load(self.answer, answer)
        return found


OPEN = Call("open", OpenEpoch, OpenProgress, lambda config, _: config.container.restore_timeout_ms / 1000)
START_RUN = Call("start-run", StartRun, NoneType)
END = Call("end", EndBatch, NoneType, again=Retry(pause_s=0.02, growth=1.0))
SNAPSHOT = Call("snapshot", TakeSnapshot, NoneType)
UPLOAD = Call(
    "upload",
    UploadSnapshot,
    UploadResult,
    lambda config, spent_s: max(1.0, config.task.commit_timeout_ms / 1000 - spent_s),
    Retry(pause_s=0.2),
)
CLEAN_UP = Call("clean-up", CleanUp, NoneType)
WIND_DOWN = Call("wind-down", WindDown, list[Row], lambda c, _: c.task.shutdown_ms / 1000 + CLOSE_SECONDS)
CLOSE = Call("close", NoArguments, int, lambda config, spent_s: CLOSE_SECONDS)
RENEW_PORT = Call("renew-port", RenewPort, RenewedPort, lambda config, spent_s: CLOSE_SECONDS)
BEAT = Call("beat", NoArguments, Beat, lambda config, spent_s: None)

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
