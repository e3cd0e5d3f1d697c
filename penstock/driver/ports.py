"""What the run loop needs of the outside: a fleet of containers, and something that runs batches.

Spark's are `ContainerDirectory` and `SparkRunner`; `penstock.testing.in_process` has both in one process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.container.package import JobPackage
from penstock.container.protocol import Markers
from penstock.errors import PenstockError, RetryableError
from penstock.plan.ranges import BatchRanges
from penstock.runtime.batch import Batch
from penstock.runtime.reports import Report


class RunBrokenError(RetryableError):
    """A run of a batch broke off without its reports. The batch can be run again."""


@dataclass(frozen=True, slots=True)
class Opening:
    """An epoch as containers enter it."""

    epoch: int
    last_ended: int
    """The last batch that had ended at the checkpoint."""
    checkpoint_id: str | None
    """None: there is no checkpoint, every store begins empty."""
    markers: Markers
    covered: tuple[str, ...]
    """The stores that are restored; the others begin empty."""


class Fleet(Protocol):
    """The containers of a run, and which task is in which.

    The calls from `open` to `clean_up` go to every container that has tasks, and return when all have answered. Each
    raises ContainerLostError if a container is lost, refuses, or does not answer.
    """

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
        """Where containers could be started that have not been yet."""
        ...

    def open(self, opening: Opening, package: JobPackage, progress: Callable[[int], None]) -> None:
        """Enter an epoch and restore every task. `progress` gets the bytes restored so far."""
        ...

    def start_run(self, epoch: int, batch: Batch) -> None:
        """A run of a batch begins: drop what an earlier run left."""
        ...

    def end(self, epoch: int, batch: Batch, tokens: Mapping[int, Mapping[int, str]]) -> None:
        """Apply exactly these attempts: task -> stage -> token."""
        ...

    def snapshot(self, epoch: int, checkpoint_id: str, *, last: bool) -> None:
        """The synchronous part of a commit. `last`: the run ends with it."""
        ...

    def upload(self, epoch: int, checkpoint_id: str, abandoned: threading.Event) -> Markers:
        """Make the snapshot durable. Called on the commit's thread; gives up once `abandoned` is set."""
        ...

    def clean_up(self, epoch: int, checkpoint_id: str, markers: Markers) -> None:
        """The checkpoint is in the log. Called on the commit's thread."""
        ...

    def finish(self, epoch: int) -> None:
        """The last checkpoint is in the log: end what runs in the background. Never raises PenstockError."""
        ...

    def pending_bytes(self) -> int:
        """Keys and values written to stores since the last commit began, as of the last beats."""
        ...

    def resident_bytes(self) -> int:
        """Memory of all containers, as of the last beats."""
        ...


class BatchRunner(Protocol):
    """Runs batches. All methods but `cancel` are called by the run loop's thread."""

    def run(self, epoch: int, batch: Batch, ranges: BatchRanges) -> list[Report]:
        """One run of a batch, all stages; the report of every attempt that reported.

        Raises:
            RunBrokenError: it broke off, or was cancelled.
        """
        ...

    def cancel(self) -> None:
        """Cancel the run that is under way, if there is one. Called by any thread; never raises."""
        ...

    def cancel_rest(self) -> None:
        """Cancel what is left of earlier runs, without waiting for its end."""
        ...

    def await_quiet(self) -> None:
        """Cancel what is left of earlier runs, and wait until none of it goes on.

        Raises:
            ContainerLostError: a container was lost meanwhile.
            PenstockTimeoutError: something does not end.
        """
        ...

    def death(self, error: BaseException, last_checkpoint: str | None) -> PenstockError | None:
        """What to say instead of the error if nothing can run any more; None if something can."""
        ...
