"""Lines of text with messages of Samza's topics, out and in.

Checkpoints are messages of the checkpoint topic, and requests to a job messages of the coordinator stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from penstock.admin.checkpoint.change import CheckpointChange
from penstock.admin.checkpoint.facts import find_checkpoint
from penstock.admin.checkpoint.target import ImportTarget, find_target, stream_ends
from penstock.admin.jobs import FoundJob
from penstock.api.requests import DrainNotification
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import decode
from penstock.base.wording import argument, counted, flag, listed
from penstock.checkpoint.edit import offset_changes, refuse_outside
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.samza import CheckpointLogKey, SamzaCheckpoint, adopt, numbered_messages, read_samza
from penstock.checkpoint.streams import CHANGELOG_STREAM, STREAMS, ChangelogStreamMarker, changelog_markers
from penstock.checkpoint.task_values import V1
from penstock.checkpoint.task_versions import format_of, markers_of, samza_value
from penstock.drain.requests import NAMESPACE as NAMESPACE_DRAINS
from penstock.drain.requests import decode_notification
from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError
from penstock.job.commands import new_uuid
from penstock.start.positions import operators_of
from penstock.start.startpoint_request import (
    NAMESPACE,
    NAMESPACE_FAN_OUT,
    RequestKey,
    StartpointRequest,
    decode_fan_out,
    decode_startpoint,
    encode_startpoint,
    task_number,
)
from penstock.start.startpoints import newest_of_keys

_VERSION = 1


class CoordinatorMessage(NamedTuple):
    """The last message of a key that is not a deletion, and the number of its line."""

    line: int
    namespace: str
    key: str
    value: str


def coordinator_line(namespace: str, key: str, value: str) -> str:
    """An object `key`, `value`: two texts, the very bytes of Samza's message."""
    return orjson.dumps({"key": coordinator_key(namespace, key), "value": value}).decode()


def last_messages(lines: Iterable[str], namespaces: Collection[str]) -> tuple[list[CoordinatorMessage], int]:
    """The messages of these namespaces, and how many others there are. Of equal keys the last one counts; one without a
    value deletes it.

    Raises:
        CorruptError: a line cannot be read; it is named by its number.
    """
    last: dict[tuple[str, str], tuple[int, str | None]] = {}
    others = 0
    for number, at, value in numbered_messages(lines, parse_coordinator_key):
        if at[0] in namespaces:
            last[at] = number, value
        else:
            others += 1
    found = [CoordinatorMessage(line, *at, value) for at, (line, value) in last.items() if value is not None]
    return found, others


def coordinator_key(namespace: str, key: str) -> str:
    """The key of a message in Samza's coordinator stream, which is compacted by these bytes."""
    return orjson.dumps([_VERSION, namespace, key]).decode()


def parse_coordinator_key(data: str) -> tuple[str, str]:
    """Namespace and key of a message of the coordinator stream. Raises CorruptError if it is no such key."""
    _, namespace, key = decode(tuple[Any, str, str], data, f"not a key of a coordinator stream, {data[:200]!r}")
    return namespace, key


def exported_lines(live: Iterable[StartpointRequest]) -> tuple[list[str], list[str]]:
    """A message for each key, and what they leave out."""
    newest = {str(key): request for key, request in newest_of_keys(live).items()}
    lines, notes = [], []
    for key, request in sorted(newest.items()):
        lines.append(coordinator_line(NAMESPACE, key, encode_startpoint(request.startpoint)))
        if request.with_state or request.with_output or request.clamp or request.accept_state:
            choices = [argument("with_state"), argument("with_output"), flag("clamp"), flag("accept_state")]
            notes.append(f"`{key}`: {listed(choices)} are left out")
    return lines, notes


def imported_requests(lines: Iterable[str]) -> tuple[list[StartpointRequest], list[str]]:
    """The requests in lines of `{"key": ..., "value": ...}`, in the order of the stream, and what was passed over.

    Of equal keys the last one counts; one without a value deletes it. What Samza has fanned out to a task is a request
    of that task.

    Raises:
        CorruptError: a line cannot be read; it is named by its number.
    """
    messages, others = last_messages(lines, {NAMESPACE, NAMESPACE_FAN_OUT})
    found: list[StartpointRequest] = []
    for line, namespace, key, value in messages:
        try:
            found += _requests(namespace, key, value)
        except (CorruptError, ConfigError) as error:
            raise CorruptError(f"line {line}: {error}") from error
    return found, [f"skipped: {counted(others, 'message')} without a startpoint"] if others else []


def _requests(namespace: str, key: str, value: str) -> list[StartpointRequest]:
    if namespace == NAMESPACE:
        return [StartpointRequest(RequestKey.parse(key), new_uuid().hex, decode_startpoint(value))]
    task_number(key)  # Penstock's tasks are those of GroupByPartition
    return [
        StartpointRequest(RequestKey(ssp, key), new_uuid().hex, startpoint)
        for ssp, startpoint in decode_fan_out(value).items()
    ]


def imported_notifications(lines: Iterable[str]) -> tuple[list[DrainNotification], list[str]]:
    """The notifications in lines of `{"key": ..., "value": ...}`, and what was passed over.

    Raises:
        CorruptError: a line cannot be read; it is named by its number.
    """
    messages, others = last_messages(lines, {NAMESPACE_DRAINS})
    found = []
    for line, _, key, value in messages:
        try:
            notification = decode_notification(value, key)
        except CorruptError as error:
            raise CorruptError(f"line {line}: {error}") from error
        if str(notification.uuid) != key:
            raise CorruptError(f"line {line}: the key is `{key}`, but the notification is {notification.uuid}")
        found.append(notification)
    return found, [f"skipped: {counted(others, 'message')} without a drain notification"] if others else []


def export_checkpoint(job: FoundJob, checkpoint_id: str | None = None, version: int = 2) -> list[str]:
    """A checkpoint in the form of Samza's checkpoint topic: one JSON text with `key` and `value` for each task.

    A version 1 that was not written is made from version 2, without the markers that only version 2 can hold.

    Args:
        job: the job.
        checkpoint_id: the checkpoint, retained or not; the last one, if None.
        version: the version of Samza's checkpoint values, 1 or 2. Version 1 has markers of `changelog-stream` alone.

    Raises:
        NotFoundError: there is no such checkpoint, or a task has no value of that version.
        CorruptError: a value does not decode.

    Example:
        >>> import json
        >>> with admin.open_job("flights") as job:
        ...     for line in admin.export_checkpoint(job):
        ...         print(json.loads(json.loads(line)["value"])["input-offsets"])
        {'local.trips.0': '2'}
        {'local.trips.1': '0'}
    """
    record, lines = _found(job, checkpoint_id), []
    for task in range(record.task_count):
        value = samza_value(record, task, version)
        if value is None:
            raise NotFoundError(
                f"checkpoint {record.id} has no version {version} of task {task}: it was not among "
                "task.checkpoint.write.versions when it was made"
            )
        lines.append(orjson.dumps({"key": CheckpointLogKey.of(task, version).encode(), "value": value}).decode())
    return lines


def left_out(job: FoundJob, checkpoint_id: str | None = None, version: int = 2) -> tuple[str, ...]:
    """Notes on the markers that an export in this version leaves out, because only version 2 has a place for them.

    Args:
        job: the job.
        checkpoint_id: the checkpoint; the last one, if None.
        version: the version of Samza's checkpoint values, 1 or 2.

    Raises:
        NotFoundError: there is no such checkpoint.
        CorruptError: a value does not decode.
    """
    record, form = _found(job, checkpoint_id), format_of(version)
    stores: dict[str, set[str]] = {}
    for task in range(record.task_count):
        markers = markers_of(record, task)
        kept = form.restorable(markers)
        for backend, own in markers.items():
            if lost := own.keys() - (kept if version != V1 or backend == CHANGELOG_STREAM else frozenset()):
                stores.setdefault(backend, set()).update(lost)
    return tuple(
        f"version {version} has no place for the markers of `{backend}`"
        + (" in which a store's history does not begin with its stream" if backend == CHANGELOG_STREAM else "")
        + f". It leaves out those of {listed([f'`{store}`' for store in sorted(own)])}"
        for backend, own in sorted(stores.items())
    )


def _found(job: FoundJob, checkpoint_id: str | None) -> CheckpointRecord:
    view = job.log.read("report")
    return find_checkpoint(view, checkpoint_id, job.paths.root)


def plan_import(job: FoundJob, lines: Iterable[str]) -> CheckpointChange:
    """Plan a checkpoint from messages of Samza's checkpoint topic, the inverse of `export_checkpoint`. Writes nothing.

    A job without a checkpoint restores from its beginning to its present end each changelog that it is configured to
    restore from, and that has no position in the messages: so does Samza.

    Args:
        job: the job, which must be stopped when the change is written. Open it with its application if it has no
            checkpoint yet.
        lines: JSON texts, `{"key": ..., "value": ...}`.

    Raises:
        ConfigError: the job has no checkpoint and was opened without its application.
        CorruptError: a line cannot be read.
        IncompatibleError: the messages do not fit the job; or a changelog without a position cannot be looked at.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     exported = admin.export_checkpoint(job)
        ...     admin.plan_import(job, exported).is_needed
        False
    """
    view = job.log.read()
    whole = find_target(job, view)
    read = read_samza(lines, job.config.task.checkpoint_read_versions, whole.changelogs)
    samza, from_beginning = with_whole_changelogs(whole, read)
    target, new_stores = whole.covering(samza)
    adopted, notes = adopt(samza, target.inputs, target.base.stores, target.ends.ends, target.unusable(samza))
    old = {} if target.before is None else target.before.next_offsets
    changes = offset_changes(old, adopted.next_offsets)
    moved = {change.ssp.system_stream for change in changes}
    now = {stream: identity for stream, identity in target.ends.identities.items() if stream in moved}
    content = replace(adopted, identities={**target.base.identities, **now, **_changelogs_now(target, samza)})
    refuse_outside(changes, target.ends.ends, target.ends.unknown)
    return CheckpointChange(
        job,
        "import",
        target.base,
        target.before,
        content,
        view,
        changes,
        notes=(*samza.notes, *from_beginning, *notes, *new_stores),
        warnings=(*target.ends.warnings(), *_foreign(view, target, samza), *_between(target)),
    )


def with_whole_changelogs(target: ImportTarget, samza: SamzaCheckpoint) -> tuple[SamzaCheckpoint, list[str]]:
    """Add a marker for each changelog without a position, up to its present end. Returns the checkpoint and notes.

    This is for a new job alone: the changelog of a job of Penstock has more than the store's present content. Raises
    IncompatibleError if a changelog cannot be looked at, because its store would begin empty.
    """
    if target.before is not None:
        return samza, []
    wanted = {
        store: stream
        for store in sorted(target.base.stores)
        if CHANGELOG_STREAM in (settings := target.config.store(store)).restore_factories
        and (stream := settings.changelog) is not None
        and not all(any(store in own for own in task.markers.values()) for task in samza.tasks.values())
    }
    ends = stream_ends(target.config, wanted.values())
    tasks, notes = {**samza.tasks}, []
    for store, stream in wanted.items():
        if stream in ends.unknown:
            if stream in ends.missing:
                continue  # nothing was ever written to it
            raise IncompatibleError(
                f"the file has no position of the changelog `{stream}` of store `{store}`, so it is restored from its "
                f"beginning to its present end, which is not known: {ends.unknown[stream]}"
            )
        own = {at.partition: end for at, end in ends.ends.items() if at.system_stream == stream}
        if not any(end.upcoming > end.oldest for end in own.values()):
            continue
        whole = [
            number
            for number, task in samza.tasks.items()
            if number in own and not any(store in each for each in task.markers.values())
        ]
        for number in whole:
            last = own[number].upcoming - 1 if own[number].upcoming > own[number].oldest else None
            marker = ChangelogStreamMarker(
                SystemStreamPartition(stream.system, stream.stream, number),
                None if last is None else str(last),
                stream_identity=ends.identities.get(stream),
            )
            markers = tasks[number].markers
            kept = {**markers.get(CHANGELOG_STREAM, {}), store: marker.serialize()}
            tasks[number] = replace(tasks[number], markers={**markers, CHANGELOG_STREAM: kept})
        notes.append(
            f"the file has no position of the changelog `{stream}` for {listed([f'task {each}' for each in whole])}: "
            f"store `{store}` is restored from the whole changelog, from its beginning to its present end. The job "
            "that wrote it must have stopped"
        )
    return replace(samza, tasks=tasks), notes


def _changelogs_now(target: ImportTarget, samza: SamzaCheckpoint) -> Mapping[SystemStream, str]:
    """The identities of the changelogs in the file. The importer vouches that they are the present streams."""
    markers = (marker for task in samza.tasks.values() for marker in changelog_markers(task.markers).values())
    return stream_ends(target.config, {marker.ssp.system_stream for marker in markers}).identities


def _between(target: ImportTarget) -> Iterator[str]:
    """Samza's checkpoints have positions in intermediate streams; Penstock's export leaves them out."""
    recorded = target.base.section(STREAMS)
    for stream, own in recorded.streams.items():
        if own.unread:
            yield (
                f"the file does not name the intermediate stream `{stream}`: the {counted(own.left(), 'message')} "
                f"that were not read yet at checkpoint {target.base.id} will be read. To drop them, start with "
                f"{argument('reset_operators', [operators_of(recorded.layouts[stream])[0]])}"
            )


def _foreign(view: LogView, target: ImportTarget, samza: SamzaCheckpoint) -> Iterator[str]:
    """Markers name what is in the folder of the job that made them, by names that another job's may have too."""
    known = {record.id for record in view.checkpoints}
    ids = sorted({task.id for task in samza.tasks.values() if task.id is not None} - known)
    if target.before is not None and ids and not target.finds_everywhere(samza):
        yield (
            f"checkpoint {ids[-1]} of the file is not in the log of this job. Its state can be restored only if this "
            "job wrote it and it still exists: run `penstock state verify` before you start the job"
        )
