"""Samza's checkpoints, message by message of its checkpoint topic, as the content of one checkpoint. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.base.wording import counted
from penstock.checkpoint.edit import Changelogs
from penstock.checkpoint.samza.log_key import GROUP_BY_PARTITION, CheckpointLogKey
from penstock.checkpoint.samza.topic import numbered_messages
from penstock.checkpoint.versions.changelog_marker import changelog_markers
from penstock.checkpoint.versions.table import format_of
from penstock.checkpoint.versions.value import StoresOfChangelogs, TaskCheckpoint
from penstock.errors import ConfigError, CorruptError, IncompatibleError

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
