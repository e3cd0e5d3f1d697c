"""Debts: messages that earlier records left to be published. Whose they are, and whether they can be published."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.positions import to_positions
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.errors import IncompatibleError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.outbox.unpublished import OwedOutput, Unpublished, outbox_name, owed_of
from penstock.start.plan import StartPlan
from penstock.start.streams.identities import Identities, recreated
from penstock.start.streams.job_streams import JobStreams
from penstock.system.base import Progress
from penstock.system.spark import QUERY_SYSTEM
from penstock.wording import counted, listed

logger = logging.getLogger(__name__)


def own_debt(owed: OwedOutput, uid: str, paths: JobPaths) -> OwedOutput:
    """The part of a debt that is this job's, with the keys of objects in this job's folder.

    The uid ends the name of who publishes. A folder that was moved keeps its uid, and with it the name. The folder of a
    job with another uid is a copy: what its original had not published is the original's to publish. Rows for
    DataFrames are also the copy's, because it has a handler that may not have finished with them. Pure.
    """
    if owed.publisher and not owed.publisher.endswith(f"-{uid}"):
        rows = (_for_query(each) for each in owed.unpublished)
        owed = OwedOutput(tuple(each for each in rows if each.objects))
    return replace(owed, unpublished=tuple(_here(each, paths) for each in owed.unpublished))


def _for_query(owed: Unpublished) -> Unpublished:
    """The rows for DataFrames."""
    found = []
    for each in owed.objects:
        parts = {ssp: part for ssp, part in each.parts.items() if ssp.system == QUERY_SYSTEM}
        if parts:
            found.append(replace(each, parts=parts))
    return replace(owed, objects=tuple(found))


def publisher_name(owed: OwedOutput, uid: str, paths: JobPaths) -> str:
    """The name that the job publishes under. `owed`: what of the job's debt is its own."""
    return owed.publisher or f"{paths.root}-{uid}"


def _here(owed: Unpublished, paths: JobPaths) -> Unpublished:
    objects = tuple(replace(each, key=paths.outbox(outbox_name(each.key))) for each in owed.objects)
    return replace(owed, objects=objects)


class Debts:
    """The debt in the log, less the messages that this driver has published. Thread-safe.

    Outputs that a query takes over (`keeps`) count as owed until it has taken them, so that every record names their
    objects.
    """

    def __init__(self, log: CheckpointLog, uid: str, paths: JobPaths, *, keeps: bool = False) -> None:
        """`keeps`: the job runs inside a query, which takes over what a batch has sent to its DataFrames."""
        self._log = log
        self._uid = uid
        self._paths = paths
        self._lock = threading.Lock()
        self._published = -1
        """Everything up to the record of this number is published."""
        self._taken: float = -1 if keeps else math.inf
        """Everything up to the record of this number was taken over."""

    def now(self) -> OwedOutput:
        """Ascending by slot."""
        with self._lock:
            through = min(self._published, self._taken)
        return own_debt(owed_of(self._log.known()), self._uid, self._paths).after(through)

    def newest(self) -> int:
        """The number of the newest record of which anything can have been published: the last one that leaves
        anything, or one that is damaged or missing now."""
        view = self._log.known()
        left = own_debt(owed_of(view), self._uid, self._paths).unpublished
        return max(left[-1].slot if left else -1, *view.damaged, *view.faults, -1)

    def published(self, slot: int) -> None:
        """Everything up to the record of this number is published."""
        with self._lock:
            self._published = max(self._published, slot)

    def taken(self) -> None:
        """The query has taken over everything that the last record names."""
        with self._lock:
            self._taken = max(self._taken, self.newest())

    def keep(self) -> None:
        """The job has gone back to the last record, and continues with all that it names."""
        with self._lock:
            self._taken = -1


def check_keepers(owed: OwedOutput, publisher: str, streams: JobStreams) -> None:
    """Raise IncompatibleError if a system has lost how far the job has published: messages could be published twice.

    Asked are the systems that the job publishes to.
    """
    used = {stream.system for stream in (*streams.exactly_once, *streams.owed)}
    for name in owed.keepers:
        if name in used and not streams.admins[name].keeps_progress_of(publisher):
            place = streams.admins[name].progress_place(publisher)
            raise IncompatibleError(
                f"the system `{name}` has lost {place}, which records how far this job has published its exactly-once "
                "outputs. Nothing was started, because messages could be published a second time. Bring it back. If "
                f"this is impossible, create it by hand and empty: the next start then publishes {_all(owed)} of the "
                "last checkpoint, including messages that readers have already seen, and nothing of earlier ones. If "
                "the outputs are lost as well, create them too, and let the job send everything again: "
                f"{_again(streams)}"
            )


def _again(streams: JobStreams) -> str:
    """The commands after which the next start reads all inputs from their beginnings."""
    inputs = [
        f"`penstock startpoint set JOB --all-partitions --oldest --with-state clear --stream {stream}`"
        for stream in streams.inputs
        if stream.system != QUERY_SYSTEM
    ]
    return f"{listed(inputs)}, then start it" if inputs else "clear its state, and start it"


def _all(owed: OwedOutput) -> str:
    return f"all {counted(owed.messages, 'message')}" if owed.messages else "nothing more"


def check_age(view: LogView, publisher: str, streams: JobStreams, read_again: Callable[[], LogView]) -> None:
    """Raise IncompatibleError if an exactly-once output has messages of a record that the log does not have: it is
    older than its outputs, and the job would send again what they have. Fences nobody, and writes nothing.

    Asked are all partitions, because the last record may have left nothing to be published, or nothing to some.

    Args:
        view: the log, read before.
        publisher: the name of who writes the outputs.
        streams: the streams of the job. Those that do not exist have no messages.
        read_again: the log, read now: a driver that was replaced may have appended and published meanwhile.
    """
    last = _last(view)
    found = {ssp: mark.slot for ssp, mark in _marks(publisher, streams) if mark.slot > last}
    if not found or max(found.values()) <= (last := _last(read_again())):
        return  # the claim refuses what another driver appended
    ssp = max(sorted(found), key=lambda each: found[each])
    known = f"the last record of the checkpoint log is {last}" if last >= 0 else "the checkpoint log has no record"
    raise IncompatibleError(
        f"`{ssp}` has output of record {found[ssp]} of this job, and {known}: the job's folder is older than its "
        "output, as after a backup was restored. Nothing was started, because messages would be published a second "
        "time. Bring the newer folder back, or give the job a new `job.id`"
    )


def _last(view: LogView) -> int:
    """The slot of the last record, or of one behind it that is damaged or missing now; -1 if there is none."""
    latest = view.latest
    return max(-1 if latest is None else view.slot_of(latest), *view.damaged, *view.faults, -1)


def _marks(publisher: str, streams: JobStreams) -> Iterator[tuple[SystemStreamPartition, Progress]]:
    """The progress of publishing in every partition of every exactly-once output, with one question to each system."""
    parts: dict[str, list[SystemStreamPartition]] = {}
    for stream in sorted({*streams.exactly_once, *streams.owed}):
        if stream.system != QUERY_SYSTEM:  # its rows are published by the record that names them
            parts.setdefault(stream.system, []).extend(_partitions(stream, streams))
    for system, own in parts.items():
        try:
            yield from streams.admins[system].progress_of(publisher, own).items()
        except IncompatibleError as error:
            logger.warning(
                "the system `%s` was not asked how far its outputs are published, so a job folder that is older than "
                "its output, as after a backup was restored, may not be noticed: %s. Its class must define "
                "`SystemAdmin.progress_of`",
                system,
                error,
            )


def _partitions(stream: SystemStream, streams: JobStreams) -> list[SystemStreamPartition]:
    try:
        count = streams.admins[stream.system].partition_count(stream.stream)
    except NotFoundError:
        return []
    return [SystemStreamPartition(stream.system, stream.stream, partition) for partition in range(count)]


def check_streams(owed: OwedOutput, streams: JobStreams) -> None:
    """Raise NotFoundError if a partition is missing that something is still to be published to."""
    needed: dict[str, int] = {}
    for stream in sorted(owed.streams):
        parts = [ssp for own in owed.unpublished for each in own.objects for ssp in each.parts]
        needed[str(stream)] = count = 1 + max(ssp.partition for ssp in parts if ssp.system_stream == stream)
        try:
            there = streams.admins[stream.system].partition_count(stream.stream)
        except NotFoundError:
            there = 0
        if there < count:
            found = "does not exist" if there == 0 else f"has {counted(there, 'partition')}"
            raise NotFoundError(
                f"the last checkpoint left messages to be published to `{stream}`, which {found}. Nothing was started, "
                f"and nothing is lost. Create the stream as it was, with at least {counted(count, 'partition')} "
                f"(`penstock stream create {stream} --partitions {count}`): the next start publishes them first"
            )


def check_outputs(recorded: Identities, tasks: int, streams: JobStreams) -> None:
    """Raise NotFoundError if an exactly-once output was deleted since the last record: a start would make it again,
    empty.

    Args:
        recorded: the identities of streams in that record.
        tasks: how many tasks the job has.
        streams: the streams of the job.
    """
    for stream in sorted(streams.exactly_once.intersection(recorded)):
        try:
            streams.admins[stream.system].partition_count(stream.stream)
        except NotFoundError as error:
            raise NotFoundError(
                f"the exactly-once output `{stream}` was deleted since the last checkpoint: it does not exist. Nothing "
                "was started. Bring it back. Or create it "
                f"(`penstock stream create {stream} --partitions {tasks}`), and it gets each later message once, and "
                f"none of the earlier ones. To send everything again as well: {_again(streams)}"
            ) from error


def warn_of_new_outputs(owed: OwedOutput, recorded: Identities, streams: JobStreams) -> None:
    """Say which outputs were created since the last record: their readers get the last commit as far as the system does
    not know it as published, whatever was in the earlier stream.

    Args:
        owed: what the last record leaves to be published.
        recorded: the identities of streams in that record.
        streams: the streams of the job.
    """
    known = owed.streams | streams.exactly_once.intersection(recorded)
    present = {each: streams.admins[each.system].stream_identity(each.stream) for each in known}
    for stream in recreated(recorded, {each: found for each, found in present.items() if found is not None}):
        logger.warning(
            "the output `%s` was deleted and created again since the last checkpoint. Messages of the earlier stream "
            "are not published again, except those of that checkpoint if the system has forgotten that they were",
            stream,
        )


def warn_of_going_back(exactly_once: Collection[object], start: StartPlan, view: LogView) -> None:
    """Say that output is sent again, if the job has exactly-once outputs and reads something a second time.

    A job inside a query says that by itself. A run that is quiet until it is at the old positions sends nothing again.
    """
    if not exactly_once or start.quiet_until:
        return
    outputs = listed([f"`{stream}`" for stream in sorted(map(str, exactly_once))])
    latest = view.latest
    if view.faults:
        logger.warning(
            "the end of the checkpoint log is damaged. Output to %s that it left to be published may not be published; "
            "the job sends it again as far as it processes the same input again",
            outputs,
        )
    elif latest is not None:
        before = to_positions(latest.next_offsets)
        positions = {at: offset for at, offset in start.positions.items() if at.ssp.system != QUERY_SYSTEM}
        if back := sorted({at.ssp for at, offset in positions.items() if offset < before.get(at, 0)}):
            logger.warning(
                "this start goes back in %s: everything sent to %s from there on is sent again. Exactly once holds "
                "along one line of checkpoints",
                listed([f"`{ssp}`" for ssp in back]),
                outputs,
            )


def warn_of_copy(owed: OwedOutput, own: OwedOutput) -> None:
    """Say that this job does not publish what the job has left of whose folder this one is a copy.

    Args:
        owed: what the last record says.
        own: what of it is this job's.
    """
    if others := owed.messages - own.messages:
        logger.warning(
            "the job's folder was copied, and its last checkpoint left up to %s to be published. The original job "
            "publishes them; this one does not",
            counted(others, "message"),
        )
