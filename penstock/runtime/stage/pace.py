"""The number of messages that an attempt processes at once."""

from __future__ import annotations

from penstock.runtime.messages.outlet import FLUSH_BYTES

AT_ONCE = 1024
"""Messages decoded before they are processed: enough that the cost of a block is small for each, and few enough that
they are still in the processor's cache."""

BLOCK = 1 << 15
"""As `AT_ONCE`, of messages that stay in columns."""


class AttemptPace:
    """The number of messages that an attempt processes at once, so that their output has a bounded size; and the time
    that they took. Used by one thread; any thread may read `process_ns`."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self.at_once = at_once
        self.process_ns = 0

    def of(self, *, by_column: bool) -> int:
        """The number to process next. `by_column`: they stay in columns."""
        return max(self.at_once, BLOCK) if by_column else self.at_once

    def sent(self, size_bytes: int) -> None:
        """The last ones led to output of this size."""
        if size_bytes > FLUSH_BYTES:
            self.at_once = max(1, self.at_once * FLUSH_BYTES // size_bytes)
        else:
            self.at_once = min(AT_ONCE, 2 * self.at_once)
