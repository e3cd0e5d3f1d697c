"""Messages that end the process in which they are processed. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.host.position_page import MessageId, Span


@dataclass(frozen=True, slots=True)
class WatchedTask:
    """A task in which a process has ended. It processes the messages that may have been the cause one at a time, and
    names each firing, and nothing beside them in its process, so that another end names its message."""

    stage: int
    task: int
    spans: tuple[Span, ...]
    """The messages that may have been it."""

    def suspects(self, span: Span) -> bool:
        """True if one of these messages may have been it."""
        return any(each.meets(span) for each in self.spans)


@dataclass(frozen=True, slots=True)
class Culprit:
    """A message that ended its process again and again. It is not processed any more, and becomes a dead letter."""

    message: MessageId
    why: str
    """The end of the processes, in words."""
