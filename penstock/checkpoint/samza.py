"""Checkpoints of Samza, from its checkpoint topic into a job's own terms. Pure.

The messages of the topic are in a file, each a line of JSON. They are read one by one, by the key of a task's
checkpoint (Samza's `KafkaCheckpointLogKey`), as the content of one checkpoint. `adopt` translates that for the job,
or says why it does not fit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypeVar

import orjson
from msgspec import Meta, Struct, field

from penstock.api.ssp import SystemStreamPartition
from penstock.base.documents import decode
from penstock.base.wording import argument, counted
from penstock.checkpoint.edit import MAX_OFFSET, Changelogs, CheckpointContent, inputs_text
from penstock.checkpoint.streams import ChangelogOffset, changelog_markers
from penstock.checkpoint.task_values import StoresOfChangelogs, TaskCheckpoint
from penstock.checkpoint.task_versions import format_of
from penstock.errors import ConfigError, CorruptError, IncompatibleError
from penstock.system.base import PartitionOffsets

GROUP_BY_PARTITION = "org.apache.samza.container.grouper.stream.GroupByPartitionFactory"
"""Samza's name for Penstock's assignment: partition i of every input to task i."""

_TYPES = {1: "checkpoint", 2: "checkpoint-v2"}
_VERSIONS = {name: version for version, name in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class CheckpointLogKey:
    """Grouper, task and type. Samza compacts the topic by these bytes, so equal keys are equal bytes."""

    grouper: str
    task_name: str
    type: str

    @classmethod
    def of(cls, task: int, version: int) -> CheckpointLogKey:
        """The key of a task of Penstock for checkpoint version 1 or 2."""
        return cls(GROUP_BY_PARTITION, f"Partition {task}", _TYPES[version])

    @property
    def version(self) -> int | None:
        """The checkpoint's version; None for a type of a later Samza, whose messages are to be skipped."""
        return _VERSIONS.get(self.type)

    def encode(self) -> str:
        """The JSON Samza writes; the order of the fields is part of the key."""
        return orjson.dumps(
            {
                "systemstreampartition-grouper-factory": self.grouper,
                "taskName": self.task_name,
                "type": self.type,
            }
        ).decode()

    @classmethod
    def decode(cls, text: str | bytes) -> CheckpointLogKey:
        """Read a key; unknown fields are ignored, unknown types are kept. Raises CorruptError if this is no key."""
        own = decode(_Fields, text, f"not a key of a checkpoint topic, {text[:200]!r}")
        return cls(own.grouper, own.task_name, own.type)


_Filled: TypeAlias = Annotated[str, Meta(min_length=1)]


class _Fields(Struct):
    """The fields of a key."""

    grouper: _Filled = field(name="systemstreampartition-grouper-factory")
    task_name: _Filled = field(name="taskName")
    type: _Filled


_Key = TypeVar("_Key")


class TopicMessage(Struct):
    """A message: two texts, each the JSON that Samza writes. Without a value it deletes its key."""

    key: str
    value: str | None


def read_topic_message(line: str) -> TopicMessage:
    """Read `{"key": ..., "value": ...}`. Raises CorruptError if the line is something else."""
    return decode(
        TopicMessage, line, f"key and value must be strings, each the JSON that Samza writes, in {line[:200]!r}"
    )


def numbered_messages(lines: Iterable[str], read_key: Callable[[str], _Key]) -> Iterator[tuple[int, _Key, str | None]]:
    """The number, key and value of each line that is not empty. Raises CorruptError, which names the line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            message = read_topic_message(line)
            key = read_key(message.key)
        except CorruptError as error:
            raise CorruptError(f"line {number}: {error}") from error
        yield number, key, message.value


_TASK = re.compile(r"Partition (0|[1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class SamzaCheckpoint:
    """The last checkpoint of every task, all in one version, and what was passed over on the way to it."""

    version: int
    tasks: Mapping[int, TaskCheckpoint]
    notes: tuple[str, ...]

    @property
    def backends(self) -> frozenset[str]:
        """Every backend that has a marker."""
        return frozenset(name for task in self.tasks.values() for name in task.markers)

    @property
    def stores(self) -> frozenset[str]:
        """Every store that has a marker."""
        return frozenset(store for task in self.tasks.values() for own in task.markers.values() for store in own)


def read_samza(lines: Iterable[str], read_versions: Sequence[int], changelogs: Changelogs) -> SamzaCheckpoint:
    """Read lines of `{"key": ..., "value": ...}`, two texts, in the order of the topic.

    As in compaction, the last message of a key counts, and one without a value deletes the key. Messages that do not
    count need not be readable. The first version of `read_versions` that every task has counts, once
    for all tasks; types of a later Samza, and versions that are not to be read, are noted and passed over.

    Raises:
        ConfigError: there is no checkpoint in it.
        CorruptError: a line, key, or value that counts cannot be read; it is named by its number.
        IncompatibleError: the tasks are not those of Samza's GroupByPartition, or have no version in common.
    """
    messages, passed_over = _last_messages(lines)
    tasks = {task for task, _ in messages}
    there = Counter(version for _, version in messages)
    notes = [f"skipped: {counted(count, 'message')} of type `{name}`" for name, count in sorted(passed_over.items())]
    if not tasks:
        raise ConfigError("; ".join(["there is no checkpoint in the file", *notes]))
    version = next((each for each in read_versions if there[each] == len(tasks)), None)
    if version is None:
        found = ", ".join(f"version {each} of {counted(count, 'task')}" for each, count in sorted(there.items()))
        raise IncompatibleError(
            f"the file has {counted(len(tasks), 'task')}, with {found}: it lacks a version that "
            f"task.checkpoint.read.versions allows ({','.join(map(str, read_versions))}) for all of them"
        )
    notes += [f"the file has version {each}, too, which was skipped" for each in sorted(there) if each != version]
    read = {}
    for task in sorted(tasks):
        number, value = messages[task, version]
        try:
            read[task] = _task(value, version, changelogs(task))
        except CorruptError as error:
            raise CorruptError(f"line {number}: {error}") from error
    return SamzaCheckpoint(version, read, tuple(notes))


def _last_messages(lines: Iterable[str]) -> tuple[dict[tuple[int, int], tuple[int, str]], Counter[str]]:
    """(task, version) -> number of the line and value; and how many messages were of which unknown type."""
    found: dict[tuple[int, int], tuple[int, str]] = {}
    passed_over: Counter[str] = Counter()
    for number, key, value in numbered_messages(lines, CheckpointLogKey.decode):
        version = key.version
        if version is None:
            passed_over[key.type] += 1
            continue
        task = _task_number(number, key)
        if value is None:
            found.pop((task, version), None)
        else:
            found[task, version] = number, value
    return found, passed_over


def _task_number(number: int, key: CheckpointLogKey) -> int:
    match = _TASK.fullmatch(key.task_name)
    if key.grouper != GROUP_BY_PARTITION or match is None:
        raise IncompatibleError(
            f"line {number} is of task `{key.task_name}` by {key.grouper}; tasks of Penstock are `Partition 0`, "
            f"`Partition 1`, ... by {GROUP_BY_PARTITION}: partition i of every input belongs to task i"
        )
    return int(match[1])


def _task(value: str, version: int, changelogs: StoresOfChangelogs) -> TaskCheckpoint:
    """Raises CorruptError if the value, or a marker of `changelog-stream`, is not one."""
    task = format_of(version).read(value, changelogs)
    changelog_markers(task.markers)
    return task


_NUMBER = re.compile(r"[0-9]{1,19}")


def adopt(
    found: SamzaCheckpoint,
    inputs: Mapping[int, Collection[SystemStreamPartition]],
    stores: Collection[str],
    ends: Mapping[SystemStreamPartition, PartitionOffsets],
    left_out: Mapping[str, str],
) -> tuple[CheckpointContent, list[str]]:
    """The content for the log of a job with these inputs by task, and notes for the user. Each of the stores needs a
    marker in every task. Samza's last processed offsets become next offsets, one more each.

    A partition without one was never processed: it begins at its oldest message, which skips nothing and, since no
    store knows anything of it, counts nothing twice. Markers of the backends in `left_out`, which maps each to the
    reason, are left out.

    Raises:
        IncompatibleError: the tasks, an input or a store are not the job's; an offset is no number; a store of a task
            would have no marker; or nothing tells where a partition begins.
    """
    _refuse_other_tasks(found, inputs)
    first_read: list[SystemStreamPartition] = []
    positions: dict[int, dict[SystemStreamPartition, int]] = {}
    markers: dict[int, dict[str, dict[str, str]]] = {}
    for number, task in found.tasks.items():
        _refuse_unknown(number, task, inputs[number], stores)
        positions[number] = {}
        for ssp in sorted(inputs[number]):
            last = task.offsets.get(ssp)
            if last is None:
                first_read.append(ssp)
            positions[number][ssp] = _oldest(ssp, ends) if last is None else _next(ssp, last)
        markers[number] = {name: dict(own) for name, own in task.markers.items() if name not in left_out}
        _refuse_bare_store(number, markers[number], stores, left_out)
    notes = [f"the markers of `{name}` are left out: {why}" for name, why in sorted(left_out.items())]
    if first_read:
        named = inputs_text(dict.fromkeys(first_read))
        notes.append(f"no message of {named} was processed yet: they begin at their oldest message")
    return CheckpointContent(positions, markers), notes


def _refuse_other_tasks(found: SamzaCheckpoint, inputs: Collection[int]) -> None:
    missing = sorted(set(inputs) - found.tasks.keys())
    more = sorted(found.tasks.keys() - set(inputs))
    if missing or more:
        which = [f"has nothing of {_tasks(missing)}"] if missing else []
        which += [f"has also {_tasks(more)}"] if more else []
        raise IncompatibleError(
            f"the job has {counted(len(inputs), 'task')}, 0 to {len(inputs) - 1}; the file "
            f"{' and '.join(which)}. "
            "Keys would move away from their state"
        )


def _tasks(numbers: list[int]) -> str:
    return f"task{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _refuse_unknown(
    number: int, task: TaskCheckpoint, known: Collection[SystemStreamPartition], stores: Collection[str]
) -> None:
    for ssp, offset in sorted(task.offsets.items()):
        if ssp in known:
            continue
        hint = ""
        if ChangelogOffset.is_one(offset or ""):
            hint = (
                f". `{offset}` is the position of a changelog: set `stores.<name>.changelog` to `{ssp.system_stream}`"
            )
        raise IncompatibleError(
            f"task {number} of the file reads `{ssp}`; the job's task reads {inputs_text(dict.fromkeys(known))}{hint}"
        )
    for backend, own in task.markers.items():
        for store in own:
            if store not in stores:
                has = ", ".join(f"`{name}`" for name in sorted(stores)) or "no stores"
                raise IncompatibleError(
                    f"task {number} of the file has a marker of store `{store}` (by {backend}), which would be lost: "
                    f"the job has {has}"
                )


def _refuse_bare_store(
    number: int, markers: Mapping[str, Mapping[str, str]], stores: Collection[str], left_out: Mapping[str, str]
) -> None:
    for store in sorted(stores):
        if not any(store in own for own in markers.values()):
            why = "".join(f"; {name} is left out: {reason}" for name, reason in sorted(left_out.items()))
            raise IncompatibleError(
                f"the file has no marker that store `{store}` of task {number} could be restored from, so its state "
                f"would be lost{why}"
            )


def _next(ssp: SystemStreamPartition, last: str) -> int:
    if not (_NUMBER.fullmatch(last) and int(last) < MAX_OFFSET):
        raise IncompatibleError(
            f"`{ssp}`: the last processed offset `{last}` is not a Penstock offset: offsets are integers"
        )
    return int(last) + 1


def _oldest(ssp: SystemStreamPartition, ends: Mapping[SystemStreamPartition, PartitionOffsets]) -> int:
    if ssp not in ends:
        raise IncompatibleError(
            f"the file has no offset of `{ssp}`, and its oldest message cannot be looked up, so there is no offset "
            f"to begin at. Give the configuration of its system with {argument('file')}"
        )
    return ends[ssp].oldest
