"""Exactly-once output in the start of a job: whether debts can be published, and whether outputs are as they were."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import counted, listed
from penstock.batch.batch import to_positions
from penstock.checkpoint.log_view import LogView
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.outbox.wing import OwedOutput, owed_of, own_debt
from penstock.start.job_streams import JobStreams, forgetful
from penstock.start.part import DecidedStart, StartPart
from penstock.start.plan import StartPlan
from penstock.start.positions import Identities, recreated
from penstock.system.base import Progress, System
from penstock.system.contract.definition import QUERY_SYSTEM
from penstock.system.registry import open_system

if TYPE_CHECKING:  # brings Arrow
    from penstock.start.job import JobPlan

logger = logging.getLogger(__name__)


class OutboxStart(StartPart):
    """The part of exactly-once output in a start."""

    def settle(self, start: DecidedStart) -> DecidedStart:
        """Refuse a start that could not publish what earlier records leave, or would publish it twice or into an output
        that it makes again. The job keeps the name that it has published under."""
        view = start.facts.view
        left = owed_of(view)
        owed = own_debt(left, start.uid, start.paths)
        streams, publisher = with_owed(start, owed.streams), owed.publisher or start.publisher
        warn_of_copy(left, owed)
        check_keepers(owed, publisher, streams)
        check_streams(owed, streams)  # before outputs are created
        check_age(view, publisher, streams, start.read_log)
        is_copy = left.publisher != owed.publisher
        recorded = {} if view.latest is None or is_copy else view.latest.identities
        check_outputs(recorded, start.tasks, streams)
        warn_of_new_outputs(owed, recorded, streams)
        warn_of_going_back(streams.exactly_once, start.plan, view)
        return replace(start, streams=streams, publisher=publisher)

    def before_fences(self, plan: JobPlan, streams: JobStreams, view: LogView) -> None:
        """Raise IncompatibleError if a system has lost how far the job has published."""
        check_keepers(own_debt(owed_of(view), plan.uid, plan.paths), plan.publisher, streams)


def with_owed(start: DecidedStart, owed: Iterable[SystemStream]) -> JobStreams:
    """The streams of a start, and those that something is still to be published to. Their systems are opened if need
    be, for the start's streams as well: `close` of either closes all.

    Raises:
        ConfigError: a system is not configured, or no output of it can be exactly once.
    """
    streams = start.streams
    others = tuple(sorted(set(owed) - set(streams.outputs)))
    for stream in others:
        if stream.system not in streams.systems:
            system = streams.given.get(stream.system) or _open(stream, start.facts.config)
            streams.systems[stream.system], streams.admins[stream.system] = system, system.admin()
        if (error := forgetful(stream, streams.systems[stream.system])) is not None:
            raise error
    return replace(streams, owed=others)


def _open(stream: SystemStream, config: JobConfig) -> System:
    try:
        return open_system(config.system(stream.system))
    except ConfigError as error:
        raise ConfigError(
            f"the last checkpoint left messages to be published to `{stream}`, and its system cannot be opened: "
            f"{error}. Configure the system as it was, even if the application no longer has this output: this start "
            "publishes them, and later ones do not need it"
        ) from error


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
    """Say that this job, whose folder is a copy, does not publish the output that the original job has left.

    Args:
        owed: the output that the last record names.
        own: the part of it that is this job's.
    """
    if others := owed.messages - own.messages:
        logger.warning(
            "the job's folder was copied, and its last checkpoint left up to %s to be published. The original job "
            "publishes them; this one does not",
            counted(others, "message"),
        )
