"""The errors of Penstock, by what the caller should do about them.

PenstockError
├── ConfigError          correct the configuration or the call, then try again
│   └── SystemRefusedError   a system refuses it, such as Kafka's brokers: change it there, or what is asked for
├── NotFoundError        a stream, job, checkpoint or object that was named does not exist
├── IncompatibleError    what is stored and what was asked for do not fit: migrate or change the request
├── CorruptError         stored bytes are damaged: go back to an older checkpoint or another backend
├── SerdeError           a key or value does not fit its serde: declare another one, or change what is written
├── FencedError          another driver owns the job now: stop, write and delete nothing more
├── RetryableError       it may succeed when it is tried again
│   ├── SystemAwayError      a system does not answer for now: a running job waits for it
│   └── ContainerLostError   a container is gone: its tasks are restored in a new epoch
├── PenstockTimeoutError a deadline passed; the message names it and the key that sets it
└── UserCodeError        the application raised, or a message did not decode

Example:
    >>> app = ps.StreamApplication("ratios")
    >>> ratios = app.input("local.trips").map(lambda trip: trip["miles"] / trip["hours"])
    >>> _ = ratios.send_to(app.output("local.ratios"))
    >>> runner = TestRunner(app).input("local.trips", [{"miles": 500, "hours": 0}])
    >>> try:
    ...     runner.run()
    ... except ps.UserCodeError as error:
    ...     print(error.failed)
    ZeroDivisionError: division by zero
      in operator `map-1`, at stream `local.trips` partition 0 offset 0 key None
    >>> app.store("trips", key=str)
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: store `trips`: the serde of the keys is <class 'str'>, which is not a serde: ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.base.secrets import without_secrets


class PenstockError(Exception):
    """The base of all errors of Penstock. The message says what happened, where, and what to do next. It has no
    secrets: those in the texts that it is made of, such as URLs in errors of libraries, become `...`."""

    exit_status = 1
    refusals: tuple[PenstockError, ...] = ()
    """The refusals that the error is made of, if it says several at once."""

    def __init__(self, *args: object) -> None:
        """
        Args:
            args: the message. Texts are kept without secrets.
        """
        super().__init__(*(without_secrets(each) if isinstance(each, str) else each for each in args))


class ConfigError(PenstockError):
    """The configuration, the application or the call is wrong; nothing was started."""

    exit_status = 2


class SystemRefusedError(ConfigError):
    """A system refuses what was asked of it, such as Kafka's brokers a user without the right. The message says what to
    change there or in the configuration."""

    exit_status = 1


class NotFoundError(PenstockError):
    """A stream, job, checkpoint or object that was named does not exist."""


class IncompatibleError(PenstockError):
    """Stored data and the request do not fit each other. Migrate the data, or change the request."""


class CorruptError(PenstockError):
    """Stored bytes are damaged: a checksum, length or format marker does not match. Go back to an older checkpoint, or
    restore from another backend."""


class SerdeError(PenstockError):
    """A key or value does not fit the serde that its store or stream is declared with. The message names both, and
    says what to declare."""


class FencedError(PenstockError):
    """Another writer owns this job or stream now. It is never retried: stop, and write and delete nothing more."""


class RetryableError(PenstockError):
    """A failure that may pass: the same call may succeed when it is repeated."""


class SystemAwayError(RetryableError):
    """A system cannot be reached for now, such as Kafka while its brokers are away. Readers, writers and admins of any
    system may raise it. A running job then waits until the system answers, however long that takes; its attempts
    meanwhile do not count for `job.retry.max`. The message names the system, its address, the request, and the reason
    why there is no answer."""


class ContainerLostError(RetryableError):
    """A container no longer answers, answers as another incarnation, or has stopped beating. Its tasks are restored in
    a new epoch."""


class PenstockTimeoutError(PenstockError):
    """A deadline passed. The message names it, and the key that sets it."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in this process, as `penstock.host.process` raises it. Never a failure of the application: its own
    KeyboardInterrupt is one."""


FIRED_OFFSET = -2
"""The offset of firings, which have no message: timers, windows that close, the end of a batch. Messages that they make
have it too."""


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """The origin of a message that could not be processed, and why it failed.

    `stream`, `partition` and `offset` name the input message that the failing message was made from. `key` is the
    printable form of the failing message's key, `operator` the operator that failed.
    Offset -1: the operator failed in its constructor or `init`, before any message; the partition is its task.
    Offset -2: no input message led to it. The operator failed at a timer, a window or the end of a batch, and `what`
    says more of a timer; or for a message that was made there, and `sender` names the operator that it came from. The
    partition is the task in which that was.
    """

    stream: str
    partition: int
    offset: int
    key: str
    operator: str
    reason: str
    traceback: str
    what: str = ""
    store: str = ""
    """The store that the message was to fill, as one of its side inputs; empty if an operator failed."""
    name: str = ""
    """The input message's name, as people know it, such as its file, row and line; empty if it has none."""
    sender: str = ""
    """The operator that the failing message came from, if it is of no input message; empty otherwise."""

    @property
    def place(self) -> str:
        named = f" ({self.name})" if self.name else ""
        if self.store:
            return (
                f"the side inputs of store `{self.store}`, at stream `{self.stream}` partition {self.partition} offset "
                f"{self.offset}{named} key {self.key}"
            )
        if self.sender:
            return (
                f"operator `{self.operator}`, at a message from operator `{self.sender}` that a timer, a window or the "
                f"end of a batch made in task {self.partition}, key {self.key}"
            )
        if self.offset == FIRED_OFFSET:
            what = self.what or "the end of a batch"
            return f"operator `{self.operator}`, at {what} of task {self.partition}, key {self.key}"
        if self.offset < 0:
            return f"the constructor or `init` of operator `{self.operator}`, task {self.partition}, before any message"
        return (
            f"operator `{self.operator}`, at stream `{self.stream}` partition {self.partition} offset {self.offset}"
            f"{named} key {self.key}"
        )

    def __str__(self) -> str:
        return f"{self.reason}\n  in {self.place}"


class UserCodeError(PenstockError):
    """The application's code raised, or a message did not decode. `failed` (a FailedMessage) names the message."""

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
        SystemAwayError,
        SystemRefusedError,
    )
}
"""The errors that can be made from their message alone, by name: an error keeps its type between processes."""


REFUSALS = (ConfigError, IncompatibleError, NotFoundError)
"""The kinds of errors that refuse: the caller has to change something."""


class Refusals:
    """Collects refusals of steps that do not need each other.

    Example:
        >>> refusals = Refusals("the start is refused")
        >>> with refusals.noted():
        ...     raise ConfigError("no input")
        >>> with refusals.noted():
        ...     raise ConfigError("no output")
        >>> refusals.check()
        Traceback (most recent call last):
        ...
        penstock.errors.ConfigError: the start is refused for 2 reasons:
          - no input
          - no output
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._found: list[PenstockError] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep a refusal that the block raises. Other errors pass through."""
        try:
            yield
        except REFUSALS as error:
            self.note(error)

    def note(self, error: PenstockError) -> None:
        """Keep a refusal; of one that was made of several, each of them. The same text counts once."""
        known = {str(each) for each in self._found}
        self._found += [each for each in (error.refusals or (error,)) if str(each) not in known]

    def note_all(self, errors: Iterable[PenstockError]) -> None:
        for error in errors:
            self.note(error)

    def check(self) -> None:
        """Raise what was kept: a single refusal as it is, several as one error of the first one's kind."""
        if not self._found:
            return
        if len(self._found) == 1:
            raise self._found[0]
        first = self._found[0]
        kind = next(kind for kind in REFUSALS if isinstance(first, kind))
        lines = "".join(f"\n  - {each}" for each in self._found)
        whole = kind(f"{self._what} for {len(self._found)} reasons:{lines}")
        whole.refusals = tuple(self._found)
        raise whole from first
