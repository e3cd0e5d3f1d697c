"""Watches of a run: on its lease on the job, and on the streams of its inputs.

The tenure renews the lease in the background, and knows the run that its holder continues. The gate gives the lease's
permission to start a batch or to begin a commit. Now and then, and before each record, the watch of inputs checks that
the streams are still those that the run began with.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from penstock import errors
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.retry import Clock
from penstock.base.wording import counted, listed
from penstock.batch.batch import Ends, Positions, TaskSsp, partitions_changed
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.job.lease import LeaseHolder, LeaseKeeper, acquire
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.start.job_streams import JobStreams
from penstock.start.positions import Identities, continue_in
from penstock.system.base import OpenTransaction

logger = logging.getLogger(__name__)
LOOK_SECONDS = 5.0
"""The interval of the looks: each costs a few requests for every stream."""
LIST_SECONDS = 30.0
"""The interval of the looks for streams that a pattern matches: each lists all streams of a system."""
STANDSTILL_SECONDS = 30.0
"""A transaction that is open for longer is logged."""
REFUSED_SECONDS = 300.0
"""The interval of the tries to begin again with streams that were refused: each is a start that writes nothing."""


@dataclass(frozen=True, slots=True)
class NextStart:
    """The start that follows if a run ends only to begin again."""

    check: Callable[[], object]
    """Raises the error by which it would be refused now."""
    begin: Callable[[], None]
    """Ends the run gracefully, and lets the job start again."""


class InputWatch:
    """Compares the streams of a run with those at its start. `ends` is for the thread of the run loop, `confirm` for
    the thread that writes records."""

    def __init__(
        self,
        streams: JobStreams,
        identities: Identities,
        partitions: Collection[SystemStreamPartition],
        output_partitions: Mapping[str, int],
        clock: Clock,
        next_start: NextStart | None = None,
    ) -> None:
        """
        Args:
            identities: those of the inputs.
            output_partitions: output → the number of partitions that the run writes to.
            next_start: begins once there are new streams that match a pattern of the application. None: the run does
                not look for them.
        """
        self._streams = streams
        self._identities = identities
        self._partitions = frozenset(partitions)
        self._counts = {stream: _count(self._partitions, stream) for stream in streams.inputs}
        self._outputs = {stream: output_partitions[str(stream)] for stream in streams.outputs}
        self._clock = clock
        self._next_look = clock.monotonic() + LOOK_SECONDS
        self._next_start = next_start if streams.patterns else None
        self._next_list = clock.monotonic() + LIST_SECONDS
        self._standing: dict[SystemStreamPartition, tuple[OpenTransaction, float]] = {}
        """The transaction that is open in a partition, and the time when it was first seen."""
        self._told: dict[SystemStreamPartition, int] = {}
        self._refused: set[SystemStream] = set()
        """The new streams with which the next start would be refused."""
        self._next_try = 0.0
        self._confirmed: dict[SystemStream, Mapping[TaskSsp, int]] = {}
        """Input → the positions up to which everything is known to come from the stream that the run began with."""

    def ends(self) -> Ends:
        """The ends of every partition of every input, at most every few seconds after a look at the streams.

        Raises:
            IncompatibleError: an input has another number of partitions, or was deleted and created again.
            NotFoundError: an input does not exist.
            RetryableError: an input that a pattern had found was deleted, and the run is to end.
        """
        try:
            return self._ends()
        except errors.NotFoundError as error:
            if self._next_start is None or not (gone := self._deleted_matches()):
                raise
            logger.warning("%s was deleted: the job commits, and begins again without it", listed(gone))
            self._next_start.begin()
            raise errors.RetryableError(f"{listed(gone)} was deleted while the job read it") from error

    def _ends(self) -> Ends:
        if self._clock.monotonic() >= self._next_look:
            self._look()
            self._next_look = self._clock.monotonic() + LOOK_SECONDS
        ends = self._streams.ends()
        if ends.keys() != self._partitions:
            for stream, count in self._counts.items():
                self._check_count(stream, count, _count(ends, stream))
        return ends

    def confirm(self, positions: Positions) -> None:
        """Check that everything before these positions came from the streams that the run began with. An input whose
        identity is that of the start was never deleted since, because identities do not come back.

        Raises:
            IncompatibleError: an input was deleted and created again.
            RetryableError: its system does not answer.
        """
        for stream in self._identities:
            own = {at: offset for at, offset in positions.items() if at.ssp.system_stream == stream}
            if own != self._confirmed.get(stream):
                try:
                    self._check_identity(stream)
                except errors.NotFoundError:
                    logger.warning("the input `%s` was deleted; what the job has read of it is committed", stream)
                self._confirmed[stream] = own

    def _look(self) -> None:
        for stream, count in self._counts.items():
            if stream in self._identities:
                self._check_identity(stream)
            admin = self._streams.admins[stream.system]
            self._check_count(stream, count, admin.partition_count(stream.stream))
            self._look_at_transactions(stream, admin.open_transactions(stream.stream))
        for stream, count in self._outputs.items():
            self._look_at_output(stream, count)
        if self._next_start is not None and self._clock.monotonic() >= self._next_list:
            self._look_for_matches(self._next_start)
            self._next_list = self._clock.monotonic() + LIST_SECONDS

    def _deleted_matches(self) -> list[str]:
        gone = []
        for stream in self._counts:
            if any(each.matches(stream) for each in self._streams.patterns):
                try:
                    self._streams.admins[stream.system].partition_count(stream.stream)
                except errors.NotFoundError:
                    gone.append(f"`{stream}`")
        return gone

    def _look_for_matches(self, start: NextStart) -> None:
        """Begin again with new streams. A start that would be refused must not end a run that works."""
        found, now = self._streams.new_matches(), self._clock.monotonic()
        if not found or (found == self._refused and now < self._next_try):
            return
        names = listed([f"`{stream}`" for stream in sorted(found)])
        try:
            start.check()
        except (errors.ConfigError, errors.IncompatibleError, errors.NotFoundError) as error:
            if found != self._refused:
                logger.warning(
                    "streams that match a pattern have come: %s. The job cannot begin again with them, and continues "
                    "without: %s",
                    names,
                    error,
                )
            self._refused, self._next_try = found, now + REFUSED_SECONDS
        else:
            logger.warning("streams that match a pattern have come: %s. The job commits, and begins again", names)
            start.begin()

    def _check_identity(self, stream: SystemStream) -> None:
        found = self._streams.admins[stream.system].stream_identity(stream.stream)
        if found is not None and found != self._identities[stream]:
            raise errors.IncompatibleError(
                f"the input `{stream}` was deleted and created again while the job ran: its positions belong to the "
                f"earlier stream, and no checkpoint has anything of the new one. {continue_in(stream)}"
            )

    def _check_count(self, stream: SystemStream, before: int, now: int) -> None:
        if now != before:
            raise partitions_changed(stream, before, now, "when this run began")

    def _look_at_output(self, stream: SystemStream, count: int) -> None:
        try:
            now = self._streams.admins[stream.system].partition_count(stream.stream)
        except errors.NotFoundError:
            return  # who writes to it says so
        if now < count:
            raise errors.IncompatibleError(
                f"the output `{stream}` had {counted(count, 'partition')} when this run began and has {now} now: it "
                "was deleted and created again. Nothing is lost. Start the job again: it processes and sends "
                "everything after the last checkpoint again, to the partitions that the stream has then"
            )
        if now > count:
            self._outputs[stream] = now
            logger.warning(
                "the output `%s` has %s now. This run writes to the %d that it had; the next start writes to all of "
                "them. Most keys then move to another partition: their messages before and after that start are in two "
                "partitions, without an order between them",
                stream,
                counted(now, "partition"),
                count,
            )

    def _look_at_transactions(self, stream: SystemStream, found: Mapping[int, OpenTransaction]) -> None:
        now = self._clock.monotonic()
        for partition in range(self._counts[stream]):
            ssp = SystemStreamPartition(stream.system, stream.stream, partition)
            transaction = found.get(partition)
            if transaction is None:
                self._standing.pop(ssp, None)
                continue
            before, since = self._standing.get(ssp, (transaction, now))
            if before.offset != transaction.offset:
                since = now
            self._standing[ssp] = transaction, since
            if now - since >= STANDSTILL_SECONDS and self._told.get(ssp) != transaction.offset:
                self._told[ssp] = transaction.offset
                logger.warning(
                    "stream `%s` partition %d: %s. They are read once its writer or the system ends it",
                    stream,
                    partition,
                    transaction,
                )


def _count(partitions: Collection[SystemStreamPartition], stream: SystemStream) -> int:
    return sum(ssp.system_stream == stream for ssp in partitions)


_LOOK_SECONDS = 0.05


class LeaseGate:
    """Holds back a driver whose lease was not renewed in time, and ends one that has lost it."""

    def __init__(self, keeper: LeaseKeeper, lease_ms: int, clock: Clock) -> None:
        self._keeper = keeper
        self._lease_ms = lease_ms
        self._clock = clock

    def check_commit(self) -> None:
        """Raise FencedError if the lease is lost."""
        if self._keeper.lease.lost is not None:
            raise errors.FencedError(f"{self._keeper.lease.lost}. This run stops")

    def await_batch(self, stop: threading.Event, look: Callable[[], None]) -> bool:
        """Wait until a batch may start. False if `stop` was set meanwhile; `look` is called from time to time.

        Raises:
            FencedError: the lease is lost.
            PenstockTimeoutError: it was not renewed for three times `job.lease.ms` and ten seconds.
        """
        lease = self._keeper.lease
        limit_s = 3 * self._lease_ms / 1000 + 10
        deadline = self._clock.monotonic() + limit_s
        while not lease.may_start_batch():
            if lease.lost is not None:
                raise errors.FencedError(
                    f"{lease.lost}. This run stops; what it did since its last checkpoint does not count"
                )
            if self._clock.monotonic() > deadline:
                raise errors.PenstockTimeoutError(
                    f"the lease of the job could not be renewed for {limit_s:.0f} s (job.lease.ms is "
                    f"{self._lease_ms}), so no batch may start. The last failure: "
                    f"{self._keeper.failure or 'none, the store has not answered yet'}"
                )
            look()
            if self._clock.wait(stop, _LOOK_SECONDS):
                return False
        return True


_LEAVE_SECONDS = 10


class Tenure:
    """A job that this process holds, until `leave`.

    The run id is read while the lease is held: a run that ended while this process waited for the lease is not
    continued.
    """

    def __init__(self, keeper: LeaseKeeper, run_id: str) -> None:
        self.keeper = keeper
        self.run_id = run_id

    @classmethod
    def begin(
        cls,
        objects: ObjectStore,
        paths: JobPaths,
        log: CheckpointLog,
        lease_ms: int,
        prefix: str = "",
        named: str | None = None,
    ) -> Tenure:
        """Take the lease and find out which run this is. Nothing is claimed.

        Args:
            log: its claims look for the lease first, from now on.
            lease_ms: `job.lease.ms`, in milliseconds. It waits at most three times as long, and ten seconds.
            prefix: what the id of a new run begins with.
            named: `app.run.id`; None if it is not set.

        Raises:
            ConfigError: the run of that name has drained.
            LeaseHeldError: the job runs; names the holder.
            FencedError: another process took the job over meanwhile.
            PenstockTimeoutError: the lease was not free in time.
            RetryableError: the store failed.
        """
        new_run = named or f"{prefix}{uuid.uuid4().hex[:12]}"
        deadline = time.monotonic() + 3 * lease_ms / 1000 + 10
        lease = acquire(objects, paths, LeaseHolder.of_this_process(new_run), lease_ms, deadline)
        tenure = cls(LeaseKeeper(lease), new_run)
        log.held_by(tenure.check)
        tenure.keeper.start()
        try:
            # Whether a fault in the log stops the run is decided later.
            tenure.run_id = run_of_start(log.read("report"), named) or new_run
            if tenure.run_id != new_run:
                lease.name_run(tenure.run_id)
                with suppress(errors.RetryableError):  # the next renewal says it as well
                    lease.renew()
            tenure.check()
        except BaseException:
            with suppress(errors.PenstockError):
                tenure.leave()
            raise
        return tenure

    def check(self) -> None:
        """Raise FencedError if the lease is lost: this process stood still, or the store did, and another one has the
        job."""
        if self.keeper.lease.lost is not None:
            raise errors.FencedError(f"{self.keeper.lease.lost}. This process claims nothing, and stops")

    def leave(self) -> None:
        """Give the lease back. Raises PenstockError if that failed: the lease then expires."""
        self.keeper.stop(_LEAVE_SECONDS)
        self.keeper.lease.release()


def run_of_start(view: LogView, named: str | None) -> str | None:
    """The id of the run that a start belongs to, by the log; None: a new one without a name.

    Without a name, a run goes on until a checkpoint says that it ended, or another run claims the log. A named run goes
    on with each start of that name, also after a stop: a deployment that moves to another host is stopped. Only once
    it has drained, it is over: a restart does not begin it again.

    Args:
        view: the log, read under the lease.
        named: `app.run.id`; None if it is not set.

    Raises:
        ConfigError: the run of that name has drained, and no run has come since.
    """
    unfinished, latest = view.unfinished_run, view.latest
    if named is None:
        return unfinished
    if latest is not None and (latest.run_id, latest.ended) == (named, "drained"):
        raise errors.ConfigError(
            f"run `{named}` has drained, so it does not start again. Set `app.run.id` to the name of the new deployment"
        )
    if unfinished not in (None, named):
        logger.info("run %s begins; run %s, which had not ended, is over", named, unfinished)
    return named
