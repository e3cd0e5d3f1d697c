"""The messages that the two runs of a comparison send, in files, and the keys for which they are not the same."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from xxhash import xxh3_64_intdigest

from penstock.graph.topology import Topology
from penstock.runtime.messages.packet import Packet
from penstock.runtime.stage.task_instance import TaskAttempt, TaskInstance
from penstock.testing.rehearsal.trace import Origin, rows_of

ROW = np.dtype(
    [("output", "<u4"), ("source", "<u4"), ("key", "<u8"), ("content", "<u8"), ("offset", "<i8"), ("at", "<u8")]
)
_PACKED = struct.Struct("<IIQQqQ")
_BUCKETS = 32
"""The rows are compared in so many parts, by their keys, so that memory is bounded."""
NOTHING = 0xFFFFFFFF
"""No source: a message fired. No output: a run has not sent to it."""
EXAMPLES = 5
"""Differences that are shown, of each output and store."""


class SentRows:
    """Keeps what is sent in two files: a row of fixed size for each message, and keys and values."""

    def __init__(self, topology: Topology, folder: Path) -> None:
        folder.mkdir()
        self._topology = topology
        self.folder = folder
        self._rows: BinaryIO = (folder / "rows").open("wb")
        self._contents: BinaryIO = (folder / "contents").open("wb")
        self._at = 0
        self.outputs: dict[str, int] = {}
        self.sources: list[str] = []
        self._source_of: dict[object, int] = {}
        self.serdes: dict[str, tuple[Any, Any]] = {}

    def arrived(self, batch: int, packets: Sequence[Packet]) -> None:
        for row in rows_of(self._topology, packets):
            if row.channel.output is None:
                continue
            name = str(row.channel.output)
            number = self.outputs.setdefault(name, len(self.outputs))
            self.serdes[name] = (row.channel.key_serde, row.channel.value_serde)
            source, offset = (NOTHING, -1) if row.origin is None else (self._source(row.origin), row.origin[1])
            content = row.content
            digest = xxh3_64_intdigest(content)
            # Messages without keys are compared one by one.
            key = digest if row.key is None else xxh3_64_intdigest(row.key)
            self._rows.write(_PACKED.pack(number, source, key, digest, offset, self._at))
            self._contents.write(struct.pack("<I", len(content)) + content)
            self._at += 4 + len(content)

    def _source(self, origin: Origin) -> int:
        found = self._source_of.get(origin[0])
        if found is None:
            found = self._source_of[origin[0]] = len(self.sources)
            self.sources.append(str(origin[0]))
        return found

    def processed(self, attempt: TaskAttempt, task: TaskInstance) -> None: ...

    def read(self) -> Any:
        """All rows, in the order in which they were sent, not yet in memory."""
        self._rows.close()
        self._contents.close()
        path = self.folder / "rows"
        return np.memmap(path, ROW, "r") if path.stat().st_size else np.empty(0, ROW)

    def content(self, at: int) -> tuple[bytes | None, bytes | None]:
        """The key and the value of a row."""
        with (self.folder / "contents").open("rb") as file:
            file.seek(at)
            (size,) = struct.unpack("<I", file.read(4))
            key, rest = _part(file.read(size))
            return key, _part(rest)[0]


def _part(data: bytes) -> tuple[bytes | None, bytes]:
    """The first part of a `Row.content`, and what is behind it."""
    if data[:1] == b"-":
        return None, data[1:]
    size, _, rest = data.partition(b":")
    return rest[: int(size)], rest[int(size) :]


@dataclass(frozen=True, slots=True)
class First:
    """The first rows of a key that differ: their numbers, and None where there is none."""

    before: int | None
    after: int | None

    @property
    def number(self) -> int:
        return min(each for each in (self.before, self.after) if each is not None)


def compare(both: Sequence[Any], outputs: Sequence[int]) -> tuple[int, list[First]]:
    """The number of keys whose messages differ, and the first rows of some of them. Pure.

    Each bucket has the rows of some keys, so the rows of the two runs are never in memory as a whole.

    Args:
        both: the rows of both runs.
        outputs: the number of one output in each of them.
    """
    count, firsts = 0, list[First]()
    for bucket in range(_BUCKETS):
        numbers = [
            np.flatnonzero((rows["output"] == output) & (rows["key"] >> np.uint64(59) == bucket))
            for rows, output in zip(both, outputs, strict=True)
        ]
        rows = np.concatenate([each[own] for each, own in zip(both, numbers, strict=True)])
        if not len(rows):
            continue
        signs = np.repeat(np.array([1, -1]), [len(own) for own in numbers])
        order = np.lexsort((rows["content"], rows["key"]))
        pairs = rows[order][["key", "content"]]
        starts = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]]))
        unlike = np.add.reduceat(signs[order], starts) != 0
        lengths = np.diff(np.concatenate([starts, [len(rows)]]))
        members = order[np.repeat(unlike, lengths)]
        keys = rows["key"][members]
        count += len(np.unique(keys))
        firsts += _firsts(members, keys, numbers)
        firsts = heapq.nsmallest(EXAMPLES, firsts, key=lambda each: each.number)
    return count, firsts


def _firsts(members: Any, keys: Any, numbers: Sequence[Any]) -> Iterator[First]:
    """The first differing rows of each key. `members`: places among the rows of both, those of `before` first."""
    of_before = len(numbers[0])
    found: dict[int, list[int | None]] = {}
    for side, own in enumerate((members < of_before, members >= of_before)):
        order = np.argsort(members[own])[: 1000 * EXAMPLES]
        for place, key in zip(members[own][order].tolist(), keys[own][order].tolist(), strict=True):
            rows = found.setdefault(key, [None, None])
            if rows[side] is None:
                rows[side] = int(numbers[side][place - side * of_before])
    return (First(before, after) for before, after in found.values())
