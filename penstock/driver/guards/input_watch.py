"""Checks now and then, and before each record, that the streams of a run are still those that it began with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from penstock.api.ssp import StreamPattern, SystemStream, SystemStreamPartition
from penstock.batch.positions import Ends, Positions, TaskSsp, partitions_changed
from penstock.clock import Clock
from penstock.errors import IncompatibleError, NotFoundError, RetryableError
from penstock.start.streams.identities import Identities, continue_in
from penstock.start.streams.job_streams import JobStreams
from penstock.system.base import OpenTransaction
from penstock.wording import counted, listed

logger = logging.getLogger(__name__)
LOOK_SECONDS = 5.0
"""The interval of the looks: each costs a few requests for every stream."""
LIST_SECONDS = 30.0
"""The interval of the looks for streams that a pattern matches: each lists all streams of a system."""
STANDSTILL_SECONDS = 30.0
"""A transaction that is open for longer is logged."""


class InputWatch:
    """Compares the streams of a run with those at its start. `ends` is for the thread of the run loop, `confirm` for
    the thread that writes records."""

    def __init__(
        self,
        streams: JobStreams,
        identities: Identities,
        partitions: Collection[SystemStreamPartition],
        output_partitions: Mapping[str, int],
        tasks: int,
        clock: Clock,
        begin_again: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            identities: those of the inputs.
            output_partitions: output → the number of partitions that the run writes to.
            begin_again: called once there are streams that match a pattern of the application. None: the run does not
                look for them.
        """
        self._streams = streams
        self._identities = identities
        self._partitions = frozenset(partitions)
        self._counts = {stream: _count(self._partitions, stream) for stream in streams.inputs}
        self._outputs = {stream: output_partitions[str(stream)] for stream in streams.outputs}
        self._clock = clock
        self._next_look = clock.monotonic() + LOOK_SECONDS
        self._begin_again = begin_again if streams.patterns else None
        self._tasks = tasks
        self._next_list = clock.monotonic() + LIST_SECONDS
        self._standing: dict[SystemStreamPartition, tuple[OpenTransaction, float]] = {}
        """The transaction that is open in a partition, and the time when it was first seen."""
        self._told: dict[SystemStreamPartition, int] = {}
        self._refused: set[SystemStream] = set()
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
            if self._begin_again is None or not (gone := self._deleted_matches()):
                raise
            logger.warning("%s was deleted: the job commits, and begins again without it", listed(gone))
            self._begin_again()
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
        if self._begin_again is not None and self._clock.monotonic() >= self._next_list:
            self._look_for_matches(self._begin_again)
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

    def _look_for_matches(self, begin_again: Callable[[], None]) -> None:
        """Begin again with new streams, unless the next start would refuse one of them."""
        found, refused = self._streams.new_matches(), False
        for stream, patterns in sorted(found.items()):
            try:
                count = self._streams.admins[stream.system].partition_count(stream.stream)
            except NotFoundError:
                continue  # it was deleted meanwhile
            if count <= self._tasks and len(patterns) == 1:
                continue
            refused = True
            if stream not in self._refused:
                self._refused.add(stream)
                logger.error("%s", self._refusal(stream, patterns, count))
        if found and not refused:
            names = listed([f"`{stream}`" for stream in sorted(found)])
            logger.warning("streams that match a pattern have come: %s. The job commits, and begins again", names)
            begin_again()

    def _refusal(self, stream: SystemStream, patterns: Sequence[StreamPattern], count: int) -> str:
        if len(patterns) > 1:
            why = f"matches {listed([f'`{each}`' for each in patterns])}, and a job reads a stream once"
            instead = "Delete it, or narrow a pattern"
        else:
            why = (
                f"matches `{patterns[0]}` and has {counted(count, 'partition')}, and the job has "
                f"{counted(self._tasks, 'task')}, whose state belongs to the keys in these"
            )
            instead = f"Delete it and create it with at most {self._tasks} partitions, or narrow the pattern"
        return f"`{stream}` {why}. No new stream is read while it is there, and the next start is refused. {instead}"

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
