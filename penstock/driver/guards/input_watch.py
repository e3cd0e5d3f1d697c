"""Checks now and then, and before each record, that the streams of a run are still those that it began with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.retry import Clock
from penstock.base.wording import counted, listed
from penstock.batch.positions import Ends, Positions, TaskSsp, partitions_changed
from penstock.errors import ConfigError, IncompatibleError, NotFoundError, RetryableError
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
        except NotFoundError as error:
            if self._next_start is None or not (gone := self._deleted_matches()):
                raise
            logger.warning("%s was deleted: the job commits, and begins again without it", listed(gone))
            self._next_start.begin()
            raise RetryableError(f"{listed(gone)} was deleted while the job read it") from error

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
                except NotFoundError:
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
                except NotFoundError:
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
        except (ConfigError, IncompatibleError, NotFoundError) as error:
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
            raise IncompatibleError(
                f"the input `{stream}` was deleted and created again while the job ran: its positions belong to the "
                f"earlier stream, and no checkpoint has anything of the new one. {continue_in(stream)}"
            )

    def _check_count(self, stream: SystemStream, before: int, now: int) -> None:
        if now != before:
            raise partitions_changed(stream, before, now, "when this run began")

    def _look_at_output(self, stream: SystemStream, count: int) -> None:
        try:
            now = self._streams.admins[stream.system].partition_count(stream.stream)
        except NotFoundError:
            return  # who writes to it says so
        if now < count:
            raise IncompatibleError(
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
