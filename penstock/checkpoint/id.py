"""The id of a checkpoint (SEP-28, `CheckpointId`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.errors import ConfigError

_FORM = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_NANOS = 1_000_000


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """Written `<epoch millis>-<nanos % 1000000>` without padding, as Samza does; compared as two numbers."""

    millis: int
    nanos: int

    def __str__(self) -> str:
        return f"{self.millis}-{self.nanos}"

    @classmethod
    def parse(cls, text: str) -> CheckpointId:
        """Read the written form. Raises ConfigError if the text has another one."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise ConfigError(f"`{text}` is not a checkpoint id, which looks like `1614147487244-33577`")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def next_after(cls, last: CheckpointId | None, now_ms: int, nanos: int) -> CheckpointId:
        """An id for now, and at least one millisecond after `last`, however far the clock went back.

        `now_ms` is the wall clock in epoch milliseconds, `nanos` any counter of nanoseconds.
        """
        millis = now_ms if last is None else max(now_ms, last.millis + 1)
        return cls(millis, nanos % _NANOS)
