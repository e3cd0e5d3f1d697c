"""What is said to a container: plain values and their JSON form. Every call names who it is meant for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import orjson

from penstock.container.tls import TlsIdentity
from penstock.runtime.batch import Batch

AUTH_HEADER = "authorization"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ContainerAddress:
    """Where a container listens and which process it is. `incarnation` is random: a restarted process is another."""

    container: str
    incarnation: str
    machine: str
    """Equal on the same machine only: decides between the socket and the port."""
    pid: int
    executor_pid: int
    """The executor's JVM. Several containers of one executor have the same machine and executor_pid."""
    socket_uri: str
    tcp_uri: str
    log_path: str
    copies: tuple[int, ...] = ()
    """The tasks of which there were copies on its host when it started."""
    executor_id: str = "driver"
    """Spark's name of its executor."""

    def uri_from(self, machine: str) -> str:
        """How to reach it from `machine`."""
        return self.socket_uri if machine == self.machine else self.tcp_uri


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """How to start a container. Goes to its standard input, so that no process list shows the secret."""

    run_id: str
    secret: str
    host: str | None
    """The address its port listens on. None: the one by which Spark knows the executor."""
    log_directory: str
    copies_directory: str | None = None
    """Where copies of the job's stores lie on each host, if they are kept."""
    reached_at: str | None = None
    """The address by which others reach that port, if it is not `host`."""
    executor_id: str = "driver"
    tls: TlsIdentity | None = None
    """What its port proves who it is with, and asks of others. Its socket is on the same host, in a private folder."""


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """A container that did not start, and why."""

    executor_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Which incarnation of a container a call is meant for, in which epoch."""

    incarnation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class AttemptCall:
    """An execution of (batch, stage) for some tasks of one container, an attempt each."""

    identity: Identity
    batch: Batch
    stage: int
    tasks: list[int]


@dataclass(frozen=True, slots=True)
class OpenCall:
    """Enter an epoch: restore these tasks from these markers. The pickled application follows the JSON."""

    identity: Identity
    last_ended: int
    checkpoint_id: str | None
    """None: there is no checkpoint, everything starts empty."""
    markers: dict[str, dict[str, dict[str, str]]] | None
    """Task (as text) -> factory -> store -> marker; None without a checkpoint."""
    covered: list[str]
    """The stores the checkpoint covers: without a marker, each is an error. Others start empty."""
    tasks: list[int]


@dataclass(frozen=True, slots=True)
class StartRun:
    """Attempts of this run of this batch may come; those of an earlier run of it no longer."""

    identity: Identity
    batch: Batch


@dataclass(frozen=True, slots=True)
class EndCall:
    """Apply exactly these attempts: task (as text) -> stage (as text) -> token."""

    identity: Identity
    batch: Batch
    tokens: dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class CommitCall:
    """A step of a commit, `snapshot` or `upload`. `last`: the run is to end with this commit."""

    identity: Identity
    checkpoint_id: str
    last: bool = False


@dataclass(frozen=True, slots=True)
class CleanUpCall:
    """A checkpoint is in the log, with these markers: task (as text) -> factory -> store -> marker."""

    identity: Identity
    checkpoint_id: str
    markers: dict[str, dict[str, dict[str, str]]]


@dataclass(frozen=True, slots=True)
class PlainCall:
    """A call without arguments: `close`."""

    identity: Identity


@dataclass(frozen=True, slots=True)
class FinishCall:
    """The run has ended well: what runs in the background, and makes the next start quicker, has this long to end."""

    identity: Identity
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life. `stalled_ms` is how long the slowest attempt has been processing one message, `processing` which
    message that is, `pending_bytes` what was written to its stores since the last commit, `processed` how many
    messages of `batch` it has processed."""

    container: str
    incarnation: str
    resident_bytes: int
    stalled_ms: int
    pending_bytes: int
    processing: str = ""
    batch: int = -1
    processed: int = 0


def dump(call: Any) -> bytes:
    """A call as JSON."""
    return orjson.dumps(asdict(call))


def load(cls: type[T], data: bytes) -> T:
    """Read a call. Raises ValueError if it is not of this form."""
    fields = orjson.loads(data)
    if "identity" in fields:
        fields["identity"] = Identity(**fields["identity"])
    try:
        if isinstance(fields.get("batch"), dict):
            fields["batch"] = Batch(**fields["batch"])
        return cls(**fields)
    except TypeError as error:
        raise ValueError(f"not a {cls.__name__}: {error}") from error
