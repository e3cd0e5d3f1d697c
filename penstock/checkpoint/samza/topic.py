"""Messages of Samza's topics in a file, each a line of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from msgspec import Struct

from penstock.base.documents import decode
from penstock.errors import CorruptError

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
