"""Next offsets in a file: what `penstock checkpoint set --offsets` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.edit import OffsetKey
from penstock.documents import convert
from penstock.errors import ConfigError

_FORM = (
    'expected stream -> partition -> next offset, for example {"local.flights": {"3": 1200, "5": 0}}, or what '
    "`penstock checkpoint show --json` prints"
)


def parse_offsets(text: str, name: str) -> dict[OffsetKey, int]:
    """The next offset of each partition that is named, task by task where the text is so; `name` is the file's, for
    messages.

    Raises:
        ConfigError: the text has another form, or names a partition twice.
    """
    try:
        document = json.loads(text, object_pairs_hook=_once)
        if not isinstance(document, dict):
            raise TypeError("it is not an object")
        found: dict[OffsetKey, int] = {}
        for key, offset in _shown(document) if "tasks" in document else _given(document):
            if found.setdefault(key, offset) != offset:
                raise ValueError(f"{key} has two offsets, {found[key]} and {offset}")
    except (ValueError, TypeError, ConfigError) as error:
        raise ConfigError(f"`{name}` does not name next offsets: {error}; {_FORM}") from error
    if not found:
        raise ConfigError(f"`{name}` names no offset; {_FORM}")
    return found


def _given(document: Mapping[str, Any]) -> Iterator[tuple[OffsetKey, int]]:
    for name, partitions in document.items():
        stream = SystemStream.parse(name)
        if not isinstance(partitions, dict):
            raise TypeError(f"`{name}` needs an object of partitions and offsets, found {partitions!r}")
        for partition, offset in partitions.items():
            ssp = SystemStreamPartition.parse(f"{stream}.{partition}")
            if str(ssp.partition) != partition:
                raise ValueError(f"`{name}`: `{partition}` is not a partition number")
            yield OffsetKey(ssp), _offset(ssp, offset)


class _Task(Struct, rename="camel"):
    next_offsets: dict[str, int]
    task: int


class _Shown(Struct):
    tasks: list[_Task]


def _shown(document: Mapping[str, Any]) -> Iterator[tuple[OffsetKey, int]]:
    for task in convert(_Shown, document).tasks:
        for name, offset in task.next_offsets.items():
            yield OffsetKey(SystemStreamPartition.parse(name), task.task), offset


def _offset(ssp: SystemStreamPartition, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"`{ssp}` has {value!r}, which is not an integer")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"`{next(name for name in names if names.count(name) > 1)}` is listed twice")
    return found
