"""Messages of Samza's coordinator stream as lines of text, out and in. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import orjson

from penstock.checkpoint.topic import read_topic_message
from penstock.errors import CorruptError
from penstock.startpoint.serde import coordinator_key, parse_coordinator_key


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
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            message = read_topic_message(line)
            namespace, key = parse_coordinator_key(message.key)
        except CorruptError as error:
            raise CorruptError(f"line {number}: {error}") from error
        if namespace in namespaces:
            last[namespace, key] = number, message.value
        else:
            others += 1
    found = [CoordinatorMessage(line, *at, value) for at, (line, value) in last.items() if value is not None]
    return found, others
