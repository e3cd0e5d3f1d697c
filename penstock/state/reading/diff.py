"""Differences between two versions of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.state.reading.store_version import StoreVersion, VersionEntry

Change: TypeAlias = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A key of a task and its two values; None if it is absent. At least one is present, and they are not equal."""

    key: bytes
    task: int
    before: bytes | None
    after: bytes | None

    @property
    def change(self) -> Change:
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


View: TypeAlias = Callable[[Iterable[VersionEntry], int], Iterator[VersionEntry]]
"""Turns the entries of a store at a batch time into other entries, in the same order."""


def diff(
    before: StoreVersion, after: StoreVersion, tasks: Iterable[int] | None = None, view: View | None = None
) -> Iterator[Difference]:
    """The differences of these tasks (None: of all), in key order, between the views of each version. Both versions are
    restored before this returns, except for tasks that have the same content in both. Entries that have expired in a
    version are not in it. Raises as `StoreVersion.restore`."""
    wanted = before.tasks if tasks is None else tasks
    unlike = [task for task in wanted if not before.has_content_of(after, task)]
    old, new = before.scan(tasks=unlike), after.scan(tasks=unlike)
    if view is not None:
        old, new = view(old, before.record.batch_time_ms), view(new, after.record.batch_time_ms)
    return differences(old, new)


def differences(before: Iterator[VersionEntry], after: Iterator[VersionEntry]) -> Iterator[Difference]:
    """The differences of two sequences of entries, each in order and without duplicate places. Holds one entry of
    each."""
    old, new = next(before, None), next(after, None)
    while True:
        if old and (not new or old[:2] < new[:2]):
            yield Difference(old.key, old.task, old.value, None)
            old = next(before, None)
        elif new and (not old or new[:2] < old[:2]):
            yield Difference(new.key, new.task, None, new.value)
            new = next(after, None)
        elif old and new:
            if old.value != new.value:
                yield Difference(old.key, old.task, old.value, new.value)
            old, new = next(before, None), next(after, None)
        else:
            return
