"""The checkpoints of another job that a run follows. Those of one line follow from each other by reading alone; a
change of state or positions begins another line, and a run does not follow beyond it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.batch.batch import to_positions
from penstock.checkpoint.forks import read_home
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.settings import JobSettings
from penstock.errors import IncompatibleError, NotFoundError
from penstock.replay.wing import REPLAY, Followed, Line, of_other
from penstock.start.job import ClaimedJob


def accepted_lines(records: Sequence[CheckpointRecord], line: int) -> frozenset[int]:
    """The lines that continue one by reading alone, and itself. Pure.

    Args:
        records: checkpoints, oldest first.
        line: the epoch of the line.
    """
    lines, ids = {line}, set[str]()
    for record in records:
        own = record.section(REPLAY).line
        if own.epoch in lines or own.follows in ids:
            lines.add(own.epoch)
            ids.add(str(record.id))
    return frozenset(lines)


def new_records(records: Sequence[CheckpointRecord], followed: Followed) -> Iterator[CheckpointRecord]:
    """The checkpoints that continue what is followed, oldest first. Pure.

    Raises:
        IncompatibleError: the last one does not: positions or state were changed in between.
    """
    lines = accepted_lines(records, followed.line)
    if records and records[-1].section(REPLAY).line.epoch not in lines:
        raise IncompatibleError(
            f"checkpoint {records[-1].id} of job `{followed.job}` does not follow by reading alone from where this job "
            "began to make its batches: a command or a start has changed state or positions, or an input is new. Begin "
            "with a fork of that checkpoint"
        )
    return (record for record in records if record.section(REPLAY).line.epoch in lines)


def lineage(view: LogView) -> list[CheckpointRecord]:
    """The checkpoints on the way to the last one that are in the log, oldest first. Pure.

    Also those that are not retained any more: the last record of a run takes the place of the commit at the same
    boundary, and that one alone names the batches before it.
    """
    known, record = {each.id: each for each in view.checkpoints}, view.latest
    found: list[CheckpointRecord] = []
    while record is not None:
        found.append(record)
        record = None if record.parent is None else known.get(record.parent)
    return found[::-1]


def begin_to_follow(job: ClaimedJob, wanted: str, log: CheckpointLog) -> Followed:
    """Find the line of another job whose batches a run makes.

    Args:
        wanted: the name and id of that job.
        log: its log.

    Raises:
        IncompatibleError: this job does not begin where a checkpoint of that one is.
        PenstockError: the log cannot be read.
    """
    record = job.start.restore_from
    if record is not None and not goes_on_from(job, record, or_adds_inputs=True):
        raise IncompatibleError(
            f"`{JobSettings.replay_follows.name}`: this start of job `{job.paths.root}` moves positions, clears state "
            f"or follows a drain, so it would never be where job `{wanted}` was. Delete the startpoints of the job, or "
            "begin with another fork"
        )
    own = Followed() if record is None else record.section(REPLAY).followed
    if own.job == wanted:
        return own
    records, home = log.read("report").restorable, read_home(job.objects, job.paths)
    line = Line() if not records else records[-1].section(REPLAY).line
    if record is not None and line.epoch and line.follows == of_other(job.paths.root, str(record.id)):
        return Followed(wanted, line.epoch)  # that one has taken over from this one
    base = None if home is None or home.parent.root != wanted else home.checkpoint
    line = next((each.section(REPLAY).line for each in records if str(each.id) == base), Line())
    if not line.epoch:
        raise IncompatibleError(
            f"`{JobSettings.replay_follows.name}`: job `{job.paths.root}` is no fork of a retained checkpoint of job "
            f"`{wanted}` that says which batches came before it. Fork that job (`penstock fork {wanted} NAME`)"
        )
    return Followed(wanted, line.epoch)


def goes_on_from(job: ClaimedJob, record: CheckpointRecord, *, or_adds_inputs: bool = False) -> bool:
    """True if a start continues just where a checkpoint is. `or_adds_inputs`: it may read more inputs."""
    start = job.start
    if start.clears_state or start.reset.operators or record.is_closed or record.drained_operators:
        return False
    before = to_positions(record.next_offsets)
    return all(
        before[at] == offset if at in before else or_adds_inputs and at.ssp.system_stream not in record.streams
        for at, offset in start.positions.items()
    )


class ParentLog:
    """The checkpoints of the job that is followed."""

    def __init__(self, log: CheckpointLog, followed: Followed) -> None:
        self._log = log
        self.followed = followed

    def behind(self, made: str) -> list[CheckpointRecord]:
        """The checkpoints behind the one with this id, oldest first; all that are in the log, if it is empty.

        Raises:
            IncompatibleError: they do not follow by reading alone.
            NotFoundError: there is no such job any more.
            PenstockError: its log cannot be read.
        """
        records = lineage(self._log.read("report"))
        if not records:
            raise NotFoundError(f"job `{self.followed.job}` has no checkpoint any more: it was deleted")
        found = list(new_records(records, self.followed))
        ids = [str(record.id) for record in found]
        return found[ids.index(made) + 1 :] if made in ids else found
