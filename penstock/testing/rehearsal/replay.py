"""Replays: what a job did with the messages of a key, with one input message, or for one output message.

A replay takes over the job's state as of a checkpoint, by reference, and processes the real messages from there in this
process. Nothing is written but to a folder that goes with it.

    with admin.open_job("flights") as job:
        replay_key(job, app, "N1", lambda step: print(step.as_json()))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise

from penstock.admin.jobs import FoundJob, choose_version
from penstock.api.ssp import SystemStreamPartition
from penstock.application.application import Application
from penstock.checkpoint.log_view import abandoned
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import IncompatibleError, NotFoundError
from penstock.graph.topology import Topology
from penstock.replay.wing import batches_of
from penstock.system.base import OffsetRange
from penstock.system.registry import open_system
from penstock.testing.rehearsal.job import Positions, Rehearsal
from penstock.testing.rehearsal.passes import OutputMessage, Replayed, Step, Survey, Wanted, replay, run_whole
from penstock.testing.rehearsal.trace import Row

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
        from_checkpoint: the checkpoint to begin with, by its id or label; the oldest that is retained, if None.
        to_checkpoint: where to end; the last one, if None.
        debug: stop in a debugger where the application's code gets such a message.

    Raises:
        NotFoundError: a checkpoint is not retained, or no message has the key.
        ConfigError: no operator has keys that the text can be.
        IncompatibleError: the application cannot go on from the checkpoint, or the checkpoint cannot be forked.
    """
    retained = _retained(job)
    begin = retained[0] if from_checkpoint is None else choose_version(job, from_checkpoint)
    end = retained[-1] if to_checkpoint is None else choose_version(job, to_checkpoint)
    wanted = _by_text(key)
    return replay(_between(job, app, begin, end), wanted, tell, debug=debug)


def replay_input(
    job: FoundJob, app: Application, ssp: SystemStreamPartition, offset: int, tell: Tell, *, debug: bool = False
) -> Replayed:
    """Show what one message of an input changed and sent. It begins with the last checkpoint before the message.

    Raises:
        NotFoundError: there is no such message, or no retained checkpoint is before it.
        IncompatibleError: as `replay_key`.
    """
    read_message(job, ssp, offset)
    before = [record for record in _retained(job) if ssp in (own := positions_of(record)) and own[ssp] <= offset]
    if not before:
        raise NotFoundError(
            f"no retained checkpoint is before offset {offset} of `{ssp}`: the state in which the job met the message "
            "is gone. A checkpoint with a label is kept (`penstock checkpoint label`)"
        )
    begin = before[-1]
    until = {**positions_of(begin), ssp: offset + 1}
    wanted = Wanted(origin=(ssp, offset))
    return replay(Rehearsal(job, app, begin, until, begin.batch_time_ms), lambda _: wanted, tell, debug=debug)


def replay_output(
    job: FoundJob, app: Application, ssp: SystemStreamPartition, offset: int, tell: Tell, *, debug: bool = False
) -> Replayed:
    """Show the messages that made one message of an output: those of its key, from the last checkpoint before it up to
    the step that sends it.

    Raises:
        NotFoundError: there is no such message, or the job does not make it again after any retained checkpoint.
        IncompatibleError: as `replay_key`.
    """
    message = read_message(job, ssp, offset)
    for rehearsal in _newest_first(job, app):
        survey, _ = run_whole(rehearsal, "search", lambda topology: Survey(topology, output=message))
        if not survey.found:
            continue
        made, came = survey.found[-1]
        row = made if came is None else came
        return replay(rehearsal, _by_key_of(row), tell, debug=debug, last=message.equals)
    raise NotFoundError(
        f"the message at offset {offset} of `{ssp}` is not made again from any retained checkpoint. Either it is older "
        "than they are, or this application makes another one: `penstock replay --key` shows what it does"
    )


def read_message(job: FoundJob, ssp: SystemStreamPartition, offset: int) -> OutputMessage:
    """A message of a stream. Raises NotFoundError if it is not there."""
    with closing(open_system(job.config.system(ssp.system)).reader()) as reader:
        for messages in reader.read(OffsetRange(ssp, offset, offset + 1), 1):
            for _, _, key, value, *_ in messages:
                return OutputMessage(ssp, offset, key, value)
    raise NotFoundError(f"`{ssp}` has no message at offset {offset}")


def positions_of(record: CheckpointRecord) -> Positions:
    """The next offset of each input partition."""
    found: dict[SystemStreamPartition, int] = {}
    for own in record.next_offsets.values():
        for ssp, offset in own.items():
            found[ssp] = max(offset, found.get(ssp, 0))
    return found


def _by_key_of(row: Row) -> Callable[[Topology], Wanted]:
    return lambda topology: Wanted.of_row(topology, row)


def _by_text(key: str) -> Callable[[Topology], Wanted]:
    return lambda topology: Wanted.of_text(topology, key)


def _retained(job: FoundJob) -> list[CheckpointRecord]:
    found = list(job.log.read().restorable)
    if not found:
        raise NotFoundError(f"job `{job.paths.root}` has no checkpoint yet, so there is nothing to replay")
    return found


def _newest_first(job: FoundJob, app: Application) -> Iterator[Rehearsal]:
    """What was read after each checkpoint, up to the next one; first what was read after the last."""
    retained = _retained(job)
    yield Rehearsal(job, app, retained[-1])
    for begin, end in reversed(list(pairwise(retained))):
        if _is_before(begin, end):
            yield _between(job, app, begin, end)


def _between(job: FoundJob, app: Application, begin: CheckpointRecord, end: CheckpointRecord) -> Rehearsal:
    if not _is_before(begin, end):
        raise IncompatibleError(
            f"nothing was read between checkpoint {begin.id} and checkpoint {end.id}, or the inputs were moved back "
            "between them: name two checkpoints of which the second has read more"
        )
    batches = tuple(each for record in _descent(job, begin, end) for each in batches_of(record))
    return Rehearsal(job, app, begin, positions_of(end), end.batch_time_ms, batches)


def _descent(job: FoundJob, begin: CheckpointRecord, end: CheckpointRecord) -> list[CheckpointRecord]:
    """The retained checkpoints behind one up to another one, oldest first, that the last one descends from."""
    view = job.log.read()
    found = {view.slot_of(record): record for record in view.restorable if begin.id < record.id < end.id}
    off = abandoned(found, end.parent)
    return [*(record for slot, record in found.items() if slot not in off), end]


def _is_before(begin: CheckpointRecord, end: CheckpointRecord) -> bool:
    first, last = positions_of(begin), positions_of(end)
    return first != last and all(last.get(ssp, offset) >= offset for ssp, offset in first.items())
