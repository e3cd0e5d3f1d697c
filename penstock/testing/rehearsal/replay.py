"""Replays: what a job did with the messages of a key, with one input message, or for one output message.

A replay takes over the job's state as of a checkpoint, by reference, and processes the real messages from there in this
process. Nothing is written but to a folder that goes with it.

    with admin.open_job("flights") as job:
        replay_key(job, app, "N1", lambda step: print(step.as_json()))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise

from penstock.admin.jobs import FoundJob, choose_version
from penstock.api.ssp import SystemStreamPartition
from penstock.application.application import Application
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import ConfigError, IncompatibleError, NotFoundError, UserCodeError
from penstock.replay.wing import REPLAY, batches_of
from penstock.system.base import OffsetRange
from penstock.system.partitioner import partition_of
from penstock.system.registry import open_system
from penstock.testing.rehearsal.job import Positions, Rehearsal
from penstock.testing.rehearsal.passes import OutputMessage, Replayed, Step, Survey, Wanted, replay, run_whole

Tell = Callable[[Step], None]


def replay_key(
    job: FoundJob,
    app: Application,
    key: str,
    tell: Tell,
    from_checkpoint: str | None = None,
    to_checkpoint: str | None = None,
    *,
    debug: bool = False,
) -> Replayed:
    """Show each message of a key, with what it changed and sent.

    Args:
        job: the job. It may run.
        app: its application; or another one that can go on from the checkpoint.
        key: the key, as `penstock state get` takes it.
        tell: gets the steps, one after the other.
        from_checkpoint: the checkpoint to begin with, by its id or label; if None, the oldest that is retained and from
            which the job came to the end by reading alone.
        to_checkpoint: where to end; the last one, if None.
        debug: stop in a debugger where the application's code gets such a message.

    Raises:
        NotFoundError: a checkpoint is not retained, or no message has the key.
        ConfigError: no operator has keys that the text can be.
        IncompatibleError: the application cannot go on from the checkpoint, or the checkpoint cannot be forked; the
            job did not come from one checkpoint to the other by reading alone; or the application has durable streams.
    """
    retained = _retained(job)
    if from_checkpoint is None and to_checkpoint is None:
        line = next((line for line in _lines(retained) if _has_read(line[0], line[-1])), retained[-1:])
    else:
        line = _line_to(retained, choose_version(job, to_checkpoint or "latest"))
    begin = line[0] if from_checkpoint is None else choose_version(job, from_checkpoint)
    return replay(between(job, app, begin, line[-1]), lambda topology: Wanted.of_text(topology, key), tell, debug=debug)


def replay_input(
    job: FoundJob, app: Application, ssp: SystemStreamPartition, offset: int, tell: Tell, *, debug: bool = False
) -> Replayed:
    """Show what one message of an input changed and sent. It begins with the last checkpoint before the message.

    Raises:
        NotFoundError: there is no such message, or no retained checkpoint is before it.
        ConfigError: the job does not read the stream.
        IncompatibleError: as `replay_key`.
    """
    if not _is_input(job, ssp):
        raise ConfigError(f"job `{job.paths.root}` does not read `{ssp.system_stream}`")
    read_message(job, ssp, offset)
    wanted = Wanted(origin=(ssp, offset))
    for begin, end in _newest_first(_retained(job)):
        first = positions_of(begin).get(ssp, offset + 1)
        upto = offset + 1 if end is None else positions_of(end).get(ssp, 0)
        if first <= offset < upto:
            rehearsal = _over(job, app, begin, [] if end is None else [end])
            return replay(rehearsal, lambda _: wanted, tell, debug=debug, last=_shows(ssp, offset))
    raise NotFoundError(
        f"no retained checkpoint is before offset {offset} of `{ssp}`: the state in which the job met the message "
        "is gone. A checkpoint with a label is kept (`penstock checkpoint label`)"
    )


def _shows(ssp: SystemStreamPartition, offset: int) -> Callable[[Step], bool]:
    return lambda step: any(row.origin == (ssp, offset) for row in step.messages)


def _sends(output: OutputMessage) -> Callable[[Step], bool]:
    return lambda step: any(map(output.equals, step.outputs))


def replay_output(
    job: FoundJob, app: Application, ssp: SystemStreamPartition, offset: int, tell: Tell, *, debug: bool = False
) -> Replayed:
    """Show the messages that made one message of an output: those of its key, from the last checkpoint before it up to
    the step that sends it.

    Raises:
        NotFoundError: there is no such message, or the job does not make it again after any retained checkpoint.
        ConfigError: the stream is an input.
        IncompatibleError: as `replay_key`.
    """
    if _is_input(job, ssp):
        raise ConfigError(f"`{ssp.system_stream}` is an input of job `{job.paths.root}`, and not an output")
    message = read_message(job, ssp, offset)
    for rehearsal in _searches(job, app, message.key):
        with rehearsal.sharing() as shared:
            try:
                survey, _ = run_whole(shared, "search", lambda topology: Survey(topology, output=message))
            except UserCodeError:
                if shared.tasks is None:
                    raise
                continue  # perhaps it was in a task that has no state here
            if not survey.found:
                continue
            made, came = survey.found[-1]
            wanted = partial(Wanted.of_row, row=made if came is None else came)
            return replay(replace(shared, tasks=None), wanted, tell, debug=debug, last=_sends(message))
    raise NotFoundError(
        f"the message at offset {offset} of `{ssp}` is not made again from any retained checkpoint. Either it is older "
        "than they are, or this application makes another one, or one that depends on chance, on the time or on "
        "`is_shadow`: `penstock replay --key` shows what it does"
    )


def _searches(job: FoundJob, app: Application, key: bytes | None) -> Iterator[Rehearsal]:
    """Where to look for what made an output message with a key: most often it is in the task that owns the key."""
    retained = _retained(job)
    steps = [_over(job, app, begin, [] if end is None else [end]) for begin, end in _newest_first(retained)]
    if key is not None and retained[-1].task_count > 1:
        yield from (
            replace(each, tasks={partition_of(key, each.begin.task_count)}) for each in steps if each.is_divided
        )
    yield from steps


def read_message(job: FoundJob, ssp: SystemStreamPartition, offset: int) -> OutputMessage:
    """A message of a stream. Raises NotFoundError if it is not there."""
    system = open_system(job.config.system(ssp.system))
    with closing(system.admin()) as looks:
        ends = looks.offsets(ssp.stream).get(ssp.partition)
        if ends is None or offset >= ends.upcoming:
            upto = (
                f"the stream has the partitions 0 to {looks.partition_count(ssp.stream) - 1}"
                if ends is None
                else f"its next message will have offset {ends.upcoming}"
            )
            raise NotFoundError(f"`{ssp}` has no message at offset {offset}: {upto}")
    with closing(system.reader()) as reader:
        for messages in reader.read(OffsetRange(ssp, offset, offset + 1), 1):
            for _, _, key, value, *_ in messages:
                return OutputMessage(ssp, offset, key, value)
    raise NotFoundError(f"`{ssp}` has no message at offset {offset}")


def _is_input(job: FoundJob, ssp: SystemStreamPartition) -> bool:
    return any(ssp.system_stream in record.streams for record in _retained(job))


def positions_of(record: CheckpointRecord) -> Positions:
    """The next offset of each input partition."""
    found: dict[SystemStreamPartition, int] = {}
    for own in record.next_offsets.values():
        for ssp, offset in own.items():
            found[ssp] = max(offset, found.get(ssp, 0))
    return found


def _retained(job: FoundJob) -> list[CheckpointRecord]:
    found = list(job.log.read().restorable)
    if not found:
        raise NotFoundError(f"job `{job.paths.root}` has no checkpoint yet, so there is nothing to replay")
    return found


def _newest_first(
    retained: Sequence[CheckpointRecord],
) -> Iterator[tuple[CheckpointRecord, CheckpointRecord | None]]:
    """Each checkpoint with the next one, up to which was read; first the last one, without an end. Pure."""
    yield retained[-1], None
    for line in _lines(retained):
        yield from ((begin, end) for begin, end in reversed(list(pairwise(line))) if _has_read(begin, end))


def _lines(retained: Sequence[CheckpointRecord]) -> Iterator[list[CheckpointRecord]]:
    """The checkpoints of which each follows from the one before by reading alone, oldest first; the newest such line
    first. Pure."""
    left = list(retained)
    while left:
        line = _line_to(retained, left[-1])
        yield line
        left = [record for record in left if record not in line]


def _line_to(retained: Sequence[CheckpointRecord], end: CheckpointRecord) -> list[CheckpointRecord]:
    """The checkpoints that one follows from by reading alone, oldest first, and itself. Pure."""
    line = end.section(REPLAY).line
    if not line.epoch:
        return [end]
    own = [record for record in retained if record.id < end.id and record.section(REPLAY).line.epoch == line.epoch]
    before = [each for record in retained if str(record.id) == line.follows for each in _line_to(retained, record)]
    return [*before, *own, end]


def _over(job: FoundJob, app: Application, begin: CheckpointRecord, followers: Sequence[CheckpointRecord]) -> Rehearsal:
    """The rehearsal from a checkpoint to the last one of those that follow; up to the present ends, if none does."""
    if not followers:
        return Rehearsal(job, app, begin)
    batches, end = tuple(each for record in followers for each in batches_of(record)), followers[-1]
    return Rehearsal(job, app, begin, positions_of(end), end.batch_time_ms, batches, end.closing)


def between(job: FoundJob, app: Application, begin: CheckpointRecord, end: CheckpointRecord) -> Rehearsal:
    """The rehearsal of what was read between two checkpoints. Raises as `check_follows`."""
    return _over(job, app, begin, _followers(_line_to(_retained(job), end), begin))


def check_follows(job: FoundJob, begin: CheckpointRecord, end: CheckpointRecord) -> None:
    """Raise IncompatibleError if the job did not come from one checkpoint to another one by reading alone."""
    _followers(_line_to(_retained(job), end), begin)


def _followers(line: list[CheckpointRecord], begin: CheckpointRecord) -> list[CheckpointRecord]:
    """The checkpoints of a line behind one of them. Raises as `check_follows`. Pure."""
    end = line[-1]
    if begin.id >= end.id or not _has_read(begin, end):
        raise IncompatibleError(
            f"nothing was read between checkpoint {begin.id} and checkpoint {end.id}: name two checkpoints of which "
            "the second has read more"
        )
    if begin not in line:
        raise IncompatibleError(
            f"checkpoint {end.id} does not follow from checkpoint {begin.id} by reading alone: between them, a command "
            "or a start has changed state or positions, or went back to an older checkpoint. The oldest one that it "
            f"follows from so is {line[0].id}"
        )
    return line[line.index(begin) + 1 :]


def _has_read(begin: CheckpointRecord, end: CheckpointRecord) -> bool:
    return positions_of(begin) != positions_of(end)
