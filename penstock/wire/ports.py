"""What the run loop needs of the outside: a fleet of containers, and something that runs batches.

Spark's are `ContainerDirectory` and `SparkRunner`; `penstock.testing.in_process` has both in one process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from penstock.batch.batch import Batch, Due
from penstock.batch.ranges import BatchRanges
from penstock.errors import PenstockError, RetryableError
from penstock.metrics.snapshot import Snapshot
from penstock.runtime.reports import Report
from penstock.tables.versions.manifest import TableManifest
from penstock.wire.calls import Call
from penstock.wire.package import JobPackage
from penstock.wire.protocol import EpochFailure, Markers, Request, StandbyState

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")


class RunBrokenError(RetryableError):
    """A run of a batch broke off without its reports. The batch can be run again."""


def ignore_answer(container: str, answer: object) -> None:
    """What is done with answers that nobody waits for."""


@dataclass(frozen=True, slots=True)
class EpochOpening:
    """An epoch as containers enter it."""

    epoch: int
    last_ended: int
    """The last batch that had ended at the checkpoint."""
    checkpoint_id: str | None
    """None: there is no checkpoint, every store begins empty."""
    markers: Markers
    covered: tuple[str, ...]
    """The stores that are restored; the others begin empty."""


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """What is published of a pushed table."""

    manifest: TableManifest | None
    """The version that the job is to use; None: there is none that it can use."""
    pinned: bool = False
    """Whether somebody chose it with `penstock table use`."""
    note: str = ""
    """Why there is none, or what else should be said."""


class PublishedTables(Protocol):
    """The versions of pushed tables, as of the last time that somebody looked."""

    def start(self) -> None:
        """Every container is up, and has its tasks: from now on versions may be built. Earlier, a build could hold the
        slots of Spark in which containers are started. Idempotent."""
        ...

    def published(self, table: str) -> PublishedVersion:
        """Which version a table is to have. Answers at once; never raises."""
        ...


class Fleet(Protocol):
    """The containers of a run, and which task is in which.

    `open` and `ask` go to every container that the assignment concerns, and return when all have answered. Each
    raises ContainerLostError if a container is lost, refuses, or does not answer.
    """

    @property
    def overdue(self) -> str | None:
        """What the application does in a container that takes longer than it may, in words; None if nothing does. The
        run fails with it."""
        ...

    @property
    def side_failure(self) -> EpochFailure | None:
        """Why side inputs do not fill a store any more, in which epoch; None if they do, as of the last beats."""
        ...

    @property
    def side_troubles(self) -> frozenset[str]:
        """Why side inputs do not fill stores now, as of the last beats. The run continues with what the stores have."""
        ...

    @property
    def any_lost(self) -> bool:
        """Whether a container was lost since the last `drop_lost` or `ensure`."""
        ...

    def loss(self, otherwise: str = "a container was lost") -> str:
        """Which container was lost, and why."""
        ...

    def drop_lost(self) -> None:
        """Forget the lost containers."""
        ...

    def ensure(self) -> None:
        """Start the containers that are missing, and give every task a home."""
        ...

    def newcomers(self) -> list[str]:
        """Where tasks or standbys could be in another epoch, in words: on executors that have no containers yet, in
        containers that were started since, and in those whose standbys are ready."""
        ...

    def standby_states(self) -> Mapping[str, Sequence[StandbyState]]:
        """By container, how far its standbys are, as of the last beats. Called by any thread."""
        ...

    def open(
        self, opening: EpochOpening, package: JobPackage, progress: Callable[[int], None]
    ) -> Mapping[int, Mapping[str, Due]]:
        """Enter an epoch and restore every task. `progress` gets the bytes restored so far. Returns by task and
        operator the times of the oldest timers."""
        ...

    def ask(
        self,
        call: Call[Q, A],
        epoch: int,
        request: Q,
        *,
        abandoned: threading.Event | None = None,
        on_answer: Callable[[str, A], None] = ignore_answer,
    ) -> list[A]:
        """Make a call of the table `penstock.wire.calls` to every container that has tasks, each with what
        concerns its tasks; the last answer of each. `abandoned`: nothing is tried again once it is set. `on_answer`
        gets a container's name and each of its answers, from several threads.

        The calls of a commit come from its own thread. Raises what the handler raises, and PenstockTimeoutError if what
        may pass did not pass within `task.commit.timeout.ms`.
        """
        ...

    def waits_for(self) -> str:
        """What the slowest attempt does, in words, as of the last beats; empty if none runs. Called by any thread."""
        ...

    def pending_bytes(self) -> int:
        """Keys and values written to stores since the last commit began, as of the last beats."""
        ...

    def wants_commit(self) -> bool:
        """Whether a backend waits for a commit although nothing may change, as of the last beats."""
        ...

    def resident_bytes(self) -> int:
        """Memory of all containers, as of the last beats."""
        ...

    def metrics(self) -> Snapshot:
        """The metrics of all containers and their tasks, as of the last beats. Called by any thread."""
        ...


class BatchRunner(Protocol):
    """Runs batches. All methods but `cancel` and `waits_for` are called by the run loop's thread."""

    def run(self, epoch: int, batch: Batch, ranges: BatchRanges) -> list[Report]:
        """One run of a batch, all stages; the report of every attempt that reported.

        Raises:
            RunBrokenError: it broke off, or was cancelled.
        """
        ...

    def cancel(self) -> None:
        """Cancel the run that is under way, if there is one. Called by any thread; never raises."""
        ...

    def waits_for(self) -> str:
        """Which outputs are being written, in words; empty if none are. Called by any thread."""
        ...

    def cancel_rest(self) -> None:
        """Cancel the tasks of earlier runs that still run, without waiting for their end."""
        ...

    def await_quiet(self) -> None:
        """Cancel the tasks of earlier runs that still run, and wait until all have ended.

        Raises:
            ContainerLostError: a container was lost meanwhile.
            PenstockTimeoutError: something does not end.
        """
        ...

    def death(self, error: BaseException, last_checkpoint: str | None) -> PenstockError | None:
        """What to say instead of the error if nothing can run any more; None if something can."""
        ...
