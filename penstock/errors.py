"""Every error Penstock raises, by what the caller should do about it.

PenstockError
├── ConfigError          correct the configuration or the call, then try again
├── NotFoundError        a stream, job, checkpoint or object that was named does not exist
├── IncompatibleError    what is stored and what was asked for do not fit: migrate or change the request
├── CorruptError         stored bytes are damaged: go back to an older checkpoint or another backend
├── SerdeError           a key or value does not fit its serde: declare another one, or change what is written
├── FencedError          another driver owns the job now: stop, write and delete nothing more
├── RetryableError       it may succeed when it is tried again
│   └── ContainerLostError   a container is gone: its tasks are restored in a new epoch
├── PenstockTimeoutError a deadline passed; the message names it and the key that sets it
└── UserCodeError        the application raised, or a message did not decode
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class PenstockError(Exception):
    """The root of all errors of Penstock. Its text says what happened, where, and what to do next."""

    exit_status = 1


class ConfigError(PenstockError):
    """The configuration, the application or the call is wrong; nothing was started."""

    exit_status = 2


class NotFoundError(PenstockError):
    """Something that was named does not exist."""


class IncompatibleError(PenstockError):
    """What is stored does not fit what was asked for."""


class CorruptError(PenstockError):
    """Stored bytes are damaged: a checksum, length or format marker does not match."""


class SerdeError(PenstockError):
    """A key or value does not fit the serde that its store or stream was declared with. The message names both, and
    what to declare."""


class FencedError(PenstockError):
    """Another writer owns this job or stream now. Never retried; the holder writes and deletes nothing more."""


class RetryableError(PenstockError):
    """A failure that may pass."""


class ContainerLostError(RetryableError):
    """A container no longer answers, answers as another incarnation, or stopped beating."""


class PenstockTimeoutError(PenstockError):
    """A deadline passed."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in this process, as `penstock.runtime.interrupts` raises it: never a failure of the application's code,
    whose own KeyboardInterrupt is one."""


FIRED_OFFSET = -2
"""The offset of what operators fire at the end of input."""


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """Where a message that could not be processed came from, and why it failed.

    `stream`, `partition` and `offset` name the input message the failing one was made from.
    `key` is the printable form of the failing message's key, `operator` the operator it failed in.
    Offset -1: the operator failed before any message, in its constructor or `init`; the partition is its task.
    Offset -2: it failed at something that was fired at the end of input, and no message led to; the partition is the
    task that fired it.
    """

    stream: str
    partition: int
    offset: int
    key: str
    operator: str
    reason: str
    traceback: str

    @property
    def place(self) -> str:
        """Where it failed, in words."""
        if self.offset == FIRED_OFFSET:
            return f"operator `{self.operator}`, at the end of input of task {self.partition}, key {self.key}"
        if self.offset < 0:
            return f"the constructor or `init` of operator `{self.operator}`, task {self.partition}, before any message"
        return (
            f"operator `{self.operator}`, at stream `{self.stream}` partition {self.partition} offset {self.offset} "
            f"key {self.key}"
        )

    def __str__(self) -> str:
        return f"{self.reason}\n  in {self.place}"


class UserCodeError(PenstockError):
    """The application's own code raised, or a message did not decode. `failed` says at which message."""

    def __init__(self, failed: FailedMessage) -> None:
        self.failed = failed
        super().__init__(f"{failed.traceback.rstrip()}\n\nThe application failed: {failed}")


KINDS: Mapping[str, type[PenstockError]] = {
    cls.__name__: cls
    for cls in (
        ConfigError,
        ContainerLostError,
        CorruptError,
        FencedError,
        IncompatibleError,
        NotFoundError,
        PenstockError,
        PenstockTimeoutError,
        RetryableError,
        SerdeError,
    )
}
"""By name, the kinds that are made of a text alone: how an error keeps its kind on its way between processes."""
