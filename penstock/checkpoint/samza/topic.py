"""Messages of Samza's topics in a file, each a line of JSON."""

from __future__ import annotations

from msgspec import Struct

from penstock.documents import decode


class TopicMessage(Struct):
    """A message: two texts, each the JSON that Samza writes. Without a value it deletes its key."""

    key: str
    value: str | None


def read_topic_message(line: str) -> TopicMessage:
    """Read `{"key": ..., "value": ...}`. Raises CorruptError if the line is something else."""
    return decode(
        TopicMessage, line, f"key and value must be strings, each the JSON that Samza writes, in {line[:200]!r}"
    )
