"""The partitions that every task reads: the value of `task.broadcast.inputs`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.config.values.kinds import ListOf, RefusedError
from penstock.errors import ConfigError

_NUMBER = "([0-9]{1,9})"
_FORM = re.compile(rf"([^#]+)#(?:{_NUMBER}|\[ *{_NUMBER} *- *{_NUMBER} *\])")


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Partitions `first` to `last` of a stream, both inclusive. Written as Samza does: `local.rates#0`,
    `local.rates#[0-3]`."""

    stream: SystemStream
    first: int
    last: int

    def __contains__(self, ssp: SystemStreamPartition) -> bool:
        return ssp.system_stream == self.stream and self.first <= ssp.partition <= self.last

    def __str__(self) -> str:
        numbers = f"{self.first}" if self.first == self.last else f"[{self.first}-{self.last}]"
        return f"{self.stream}#{numbers}"


class BroadcastInputs(ListOf[PartitionRange]):
    """Single partitions and ranges. A repeated entry counts once."""

    expected = "a list, separated by commas, of partitions: `system.stream#p`, or `system.stream#[first-last]`"

    def item(self, text: str) -> PartitionRange:
        match = _FORM.fullmatch(text)
        if match is None:
            raise RefusedError(f"`{text}` is not a partition" if text else "an empty entry")
        try:
            stream = SystemStream.parse(match[1])
        except ConfigError as error:
            raise RefusedError(str(error)) from error
        first, last = (int(match[2]),) * 2 if match[2] else (int(match[3]), int(match[4]))
        if first > last:
            raise RefusedError(f"`{text}` ends before it begins")
        return PartitionRange(stream, first, last)

    def checked(self, items: Sequence[PartitionRange]) -> tuple[PartitionRange, ...]:
        return super().checked(tuple(dict.fromkeys(items)))
