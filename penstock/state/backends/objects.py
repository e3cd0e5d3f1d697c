"""The common part of the admins of backends that keep objects under the job root: finding garbage and deleting it."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from penstock.errors import CorruptError, NotFoundError, PenstockError
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import AdminContext, Garbage, Retention, StateBackendAdmin, StoreMarker

_CACHED_KEYS = 1_000_000


class ObjectBackendAdmin(StateBackendAdmin):
    """Deletes objects that no retained marker reaches. The keys of a task's store lie in its state folder."""

    def __init__(self, context: AdminContext) -> None:
        self.context = context
        self._reached: dict[str, frozenset[str]] = {}
        """Key of an index -> that key and all the keys it names. An index never changes; the next one names mostly the
        same."""
        self._cached_keys = 0

    @abstractmethod
    def reach(self, markers: Sequence[StoreMarker]) -> set[str]:
        """The keys of every object the markers need. Raises NotFoundError or CorruptError if that cannot be
        determined."""

    @abstractmethod
    def epoch_of(self, key: str) -> int | None:
        """The epoch in a key that a sweep may find dead; None for any other key."""

    def order(self, key: str) -> tuple[int, ...]:
        """Smaller keys are deleted first."""
        return (self.epoch_of(key) or 0, len(key))

    def plan(self, retention: Retention) -> set[str]:
        """The keys to delete. They stay garbage, so they may be deleted at any later time, even if another driver has
        taken the job over since: see "One retention for all" in penstock/state/README.md. That holds only if every
        retained marker could be read.

        Raises NotFoundError or CorruptError if one could not.
        """
        keep = self.reach(retention.retained)
        gone = self._reach_of_left(retention.left) - keep
        if retention.sweep:
            gone |= dead(self._listing(), self.epoch_of, keep, retention.epoch)
        return gone

    def collect(self, retention: Retention, *, dry_run: bool) -> Garbage:
        names = tuple(sorted(self.plan(retention), key=lambda key: (*self.order(key), key)))
        if not dry_run:
            for name in names:
                self.context.objects.delete(name)
        return Garbage(names)

    def reach_of_index(self, key: str, read: Callable[[], Iterable[str]]) -> frozenset[str]:
        """The key of an index and all the keys it names. `read` is called for these if they are not cached."""
        if key not in self._reached:
            reached = frozenset({key, *map(sys.intern, read())})
            self._reached[key] = reached
            self._cached_keys += len(reached)
            while self._cached_keys > _CACHED_KEYS and len(self._reached) > 1:
                self._cached_keys -= len(self._reached.pop(next(iter(self._reached))))
        return self._reached[key]

    def _reach_of_left(self, markers: Sequence[StoreMarker]) -> set[str]:
        """As `reach`, without markers that cannot be read: an interrupted collection may have deleted their objects. A
        sweep by a later epoch finds the rest."""
        found: set[str] = set()
        for own in markers:
            with suppress(NotFoundError, CorruptError):
                found |= self.reach([own])
        return found

    def _listing(self) -> Iterable[str]:
        for store in self.context.stores:
            yield from self.context.objects.list(self.context.paths.store_folder(store))


def put_once(objects: ObjectStore, key: str, data: bytes, epoch: int) -> None:
    """Create an object of this epoch; a retry finds its own. Raises PenstockError if the key has other content."""
    if not objects.put_if_absent(key, data) and objects.get(key) != data:
        raise PenstockError(
            f"`{key}` exists with other content: two containers write as epoch {epoch}. Nothing was overwritten; stop "
            "every copy of the job and start one"
        )


def dead(listing: Iterable[str], epoch_of: Callable[[str], int | None], keep: set[str], epoch: int) -> set[str]:
    """The keys of epochs before `epoch` that nothing keeps: nobody writes them any more, so nothing will need them."""
    found: set[str] = set()
    for key in listing:
        of = epoch_of(key)
        if of is not None and of < epoch and key not in keep:
            found.add(key)
    return found
