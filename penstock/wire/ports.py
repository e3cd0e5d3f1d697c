"""The run loop's ports to the outside: a fleet of containers, a runner of batches, and the job's parts that both get.

The job is pickled once for the containers, and once for the processes that read and write its streams. Spark's ports
are `ContainerDirectory` and `SparkRunner`; `penstock.testing.in_process` has both in one process.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from penstock.api.ssp import SystemStreamPartition
from penstock.base.application_code import read_shipped
from penstock.batch.batch import Batch, Due
from penstock.batch.portions import BatchRanges
from penstock.config.model import JobConfig
from penstock.errors import PenstockError, RetryableError
from penstock.graph.topology import Topology
from penstock.metrics.snapshot import Snapshot
from penstock.runtime.reports import Report
from penstock.runtime.settings import RuntimeSettings
from penstock.system.base import System
from penstock.wing import wings
from penstock.wire.containers import ProcessDeath
from penstock.wire.protocol import Beat, Call, Markers, Request, load


@dataclass(frozen=True, slots=True)
class JobPackage:
    """A job as the driver pickles it for its containers."""

    topology: Topology
    settings: RuntimeSettings
    config: JobConfig
    job_uid: str
    probe: str
    """Key of an object that the driver has just put under job.root: a container that cannot read it sees another root.
    """
    systems: Mapping[str, System]
    of_start: Mapping[str, Any] = field(default_factory=dict)
    """By wing, what its part of the start gives to its part in containers (`StartPart.for_containers`)."""
    partitions: Mapping[int, tuple[SystemStreamPartition, ...]] = field(default_factory=dict)
    writer: str = ""
    """The name under which the job writes its outputs (`WriterIdentity.name`)."""
    wings: tuple[str, ...] = field(default_factory=lambda: tuple(wing.name for wing in wings()))
    """The names of the driver's wings: each container needs the same ones."""


@dataclass(frozen=True, slots=True)
class WorkerPackage:
    """The part of a job that a process needs to read its inputs and to write its outputs."""

    topology: Topology
    settings: RuntimeSettings
    systems: Mapping[str, System]
    pages: str = ""
    """The folder on each host for the pages of its workers (`penstock.host.position_page`); empty: none are kept."""


@dataclass(frozen=True, slots=True)
class PackedPackage:
    """A pickled WorkerPackage. Unpickled once per process, however many batches it serves."""

    digest: str
    data: bytes = field(repr=False)

    def load(self) -> WorkerPackage:
        """Raises ConfigError if the application's code is not on this host."""
        if self.digest not in _packages:
            _packages.clear()
            _packages[self.digest] = read_shipped(self.data)
        return _packages[self.digest]


_packages: dict[str, WorkerPackage] = {}


Q = TypeVar("Q", bound=Request)
A = TypeVar("A")


class RunBrokenError(RetryableError):
    """A run of a batch broke off without its reports. The batch can be run again."""


class OtherWayError(RunBrokenError):
    """A run broke off, and the next run of the batch goes another way: this one says nothing about that."""

    def __init__(self, text: str, *, declined: bool = False) -> None:
        """`declined`: nothing failed, but the batch is not for this way."""
        super().__init__(text)
        self.declined = declined


def ignore_answer(container: str, answer: object) -> None: ...


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


class Fleet(Protocol):
    """The containers of a run, and the tasks of each.

    `open` and `ask` go to every container that the assignment concerns, and return when all have answered. Each raises
    ContainerLostError if a container is lost, refuses, or does not answer.
    """

    @property
    def overdue(self) -> str | None:
        """A step of the application that exceeds its time limit, in words; None if there is none. The run fails with
        it."""
        ...

    @property
    def any_lost(self) -> bool:
        """True if a container was lost since the last `drop_lost` or `ensure`."""
        ...

    def loss(self, otherwise: str = "a container was lost") -> str:
        """The lost container and the reason, in words."""
        ...

    def deaths(self) -> Sequence[ProcessDeath]:
        """The containers that ended, as far as it is known how. The same ones may be named again."""
        return ()

    def drop_lost(self) -> None: ...

    def ensure(self) -> None: ...

    def newcomers(self) -> list[str]:
        """Places that tasks or standbys could move to in another epoch, in words: containers that were started since,
        and containers whose standbys are ready."""
        ...

    def open(
        self, opening: EpochOpening, package: JobPackage, progress: Callable[[int], None]
    ) -> Mapping[int, Mapping[str, Due]]:
        """Enter an epoch and restore every task. `progress` gets the bytes restored so far. Returns, by task and
        operator, the times of the oldest timers."""
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
        """Make a call of the table in `penstock.wire.protocol` to every container that has tasks, each with the part
        for its tasks. Returns the last answer of each. `abandoned`: nothing is retried once it is set. `on_answer` gets
        a container's name and each of its answers, from several threads.

        The calls of a commit come from its own thread. Raises the handler's errors, and PenstockTimeoutError if a
        transient failure lasts longer than `task.commit.timeout.ms`.
        """
        ...

    def beats(self) -> list[Beat]:
        """The last beats of all containers. Called by any thread."""
        ...

    def metrics(self) -> Snapshot:
        """The metrics of all containers and their tasks, as of the last beats. Called by any thread."""
        ...

    def close(self) -> None:
        """Close every container. Uncommitted changes are lost."""
        ...

    # As of the last beats. Called by any thread.

    def states(self, wing: str, form: type[A]) -> dict[str, A]:
        """Container → the state of a wing's part in it. Raises CorruptError if a state is not of this form."""
        return {beat.container: load(form, beat.wings[wing]) for beat in self.beats() if wing in beat.wings}

    def ready(self) -> dict[int, set[str]]:
        """Task → the other containers that could take it over at once."""
        found = defaultdict[int, set[str]](set)
        for beat in self.beats():
            for task in beat.ready:
                found[task].add(beat.container)
        return dict(found)

    def waits_for(self) -> str:
        """The step of the slowest attempt, in words; empty if none runs."""
        busy = [beat for beat in self.beats() if beat.processing]
        return max(busy, key=lambda beat: beat.stalled_ms).processing if busy else ""

    def processed_messages(self, batch: int) -> Mapping[int, int]:
        """Messages of the batch that each stage with state has processed."""
        found = Counter[int]()
        for beat in self.beats():
            if beat.batch == batch:
                found.update(beat.processed)
        return dict(sorted(found.items()))

    def pending_bytes(self) -> int:
        """Bytes of keys and values written to stores since the last commit began."""
        return sum(beat.pending_bytes for beat in self.beats())

    def wants_commit(self) -> bool:
        """True if a backend waits for a commit although nothing may have changed."""
        return any(beat.wants_commit for beat in self.beats())

    def resident_bytes(self) -> int:
        """Memory of all containers."""
        return sum(beat.resident_bytes for beat in self.beats())


class BatchRunner(Protocol):
    """Runs batches. All methods but `cancel` and `waits_for` are called by the run loop's thread."""

    way: str = ""
    """The way of the last run, for jobs with several: `direct`, or `spark-` and the reason."""

    def run(self, epoch: int, batch: Batch, ranges: BatchRanges) -> list[Report]:
        """Run all stages of a batch once. Containers admit this run, and none of an earlier one, before its first
        attempt comes. Returns the report of every attempt that reported.

        Raises:
            RunBrokenError: the run broke off, or was cancelled.
            ContainerLostError: a container did not admit the run.
        """
        ...

    def deaths(self) -> Sequence[ProcessDeath]:
        """The processes of the last run that ended by themselves, with what they did in it. The same ones may be named
        again."""
        return ()

    def cancel(self) -> None:
        """Cancel the current run, if there is one. Called by any thread; never raises."""
        ...

    def close(self) -> None:
        """Cancel the current run, and end what runs batches. No call follows."""
        self.cancel()

    def waits_for(self) -> str:
        """The outputs that are being written, in words; empty if none are. Called by any thread."""
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
        """The error to report instead of `error` if nothing can run any more; None if something can."""
        ...
