"""The work of a run at one moment: its running batch by stage and task, and the keys with the most messages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from heapq import nlargest

from penstock.base.documents import Count

MOST_TASKS = 20
MOST_KEYS = 10


@dataclass(frozen=True, slots=True)
class TaskWork:
    """The work of a task in one stage of the running batch, so far."""

    stage: Count
    task: Count
    messages: Count
    process_ms: Count
    """The time that its messages and timers took."""
    operator: str = ""
    """The operator that is busy now, by its id; empty if none is, and once the task has finished the stage."""


@dataclass(frozen=True, slots=True)
class KeyWork:
    """A key with many messages, by a sample of the last minute."""

    stage: Count
    key: str
    """As text; `0x...` if it is none. A long key is cut, and has a digest at its end."""
    messages: Count
    """About how many."""
    share: float
    """Its part of all messages with a key that came into the stage."""


@dataclass(frozen=True, slots=True)
class RunWork:
    """The work of a run. Times are in epoch milliseconds."""

    batch: Count | None = None
    """The batch that runs; None between batches."""
    messages: Count = 0
    """The messages of the batch."""
    since_ms: Count = 0
    """The begin of the batch."""
    processed: tuple[tuple[Count, Count], ...] = ()
    """(Stage, messages that it has processed), of the stages in containers."""
    tasks: tuple[TaskWork, ...] = ()
    """The tasks with the most messages, and those that took the most time."""
    keys: tuple[KeyWork, ...] = ()
    """The keys with the most messages, of all stages behind an exchange."""


def most_work(work: Collection[TaskWork]) -> list[TaskWork]:
    """The work with the most messages, and that which took the most time, ordered by stage and messages.

    Example:
        >>> [each.task for each in most_work([TaskWork(1, task, 10 * task, 0) for task in range(50)])][:3]
        [49, 48, 47]
    """
    half = MOST_TASKS // 2
    chosen = {
        *nlargest(half, work, key=lambda each: (each.messages, each.process_ms)),
        *nlargest(half, work, key=lambda each: (each.process_ms, each.messages)),
    }
    return sorted(chosen, key=lambda each: (each.stage, -each.messages, -each.process_ms, each.task))
