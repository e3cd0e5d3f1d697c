"""Decides when a trigger fires. Pure."""

from __future__ import annotations

from penstock.api.time.triggers import (
    AllTrigger,
    AnyTrigger,
    CountTrigger,
    RepeatTrigger,
    SinceFirstTrigger,
    SinceLastTrigger,
    Trigger,
)
from penstock.batch.batch import END_OF_TIME as NEVER


def due_at(trigger: Trigger, messages: int, first_ms: int, last_ms: int) -> int:
    """The batch time at which the trigger fires if no further message comes, which may have passed; NEVER if it does
    not.

    Args:
        messages: messages since the window fired last.
        first_ms: the batch time of the first of them.
        last_ms: the batch time of the last of them.
    """
    if not messages:
        return NEVER
    match trigger:
        case CountTrigger(least):
            return last_ms if messages >= least else NEVER
        case SinceFirstTrigger(ms):
            return first_ms + ms
        case SinceLastTrigger(ms):
            return last_ms + ms
        case AnyTrigger(triggers):
            return min(due_at(each, messages, first_ms, last_ms) for each in triggers)
        case AllTrigger(triggers):
            return max(due_at(each, messages, first_ms, last_ms) for each in triggers)
        case RepeatTrigger(repeated):
            return due_at(repeated, messages, first_ms, last_ms)
    raise TypeError(f"{trigger!r} is not a trigger of `Triggers`")


def repeats(trigger: Trigger) -> bool:
    return isinstance(trigger, RepeatTrigger)
