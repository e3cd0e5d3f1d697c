"""Messages of Samza's coordinator stream as lines of text, out and in. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import orjson

from penstock.base.documents import decode
from penstock.checkpoint.samza import numbered_messages

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
