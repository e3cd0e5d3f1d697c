"""Comparisons of stored state: two versions of a store, or the backends of one checkpoint.

Each backend is restored to scratch and digested, key by key. Entries with a time to live are compared as they are
stored, and with the index of their times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import CorruptError, IncompatibleError, NotFoundError
from penstock.graph.stores import StoreLayout
from penstock.state.engines.engine import Content, Engine
from penstock.state.reading.reader import StateReader, StoreVersion, VersionEntry
from penstock.state.stores import timed_entries


def expiry_problem(source: Content) -> str | None:
    """The first inconsistency, or None. Reads everything."""
    meta = source.get(timed_entries.META)
    if meta is None or not timed_entries.has_begun(meta):
        return None
    adoption = timed_entries.adoption_of(meta)
    indexed = members = 0
    for key, data in timed_entries.entries_with_header(source, adoption):
        if len(data) < timed_entries.HEADER:
            return f"the entry of key {timed_entries.application_key(key)!r} does not say when it expires"
        if data[8] == timed_entries.UNINDEXED:
            continue
        if source.get(timed_entries.index_key(data, key)) is None:
            return f"the entry of key {timed_entries.application_key(key)!r} is not in the expiry index"
        indexed += 1
        members += adoption is not None and key >= adoption.cursor
    for what, expected, start, end in (
        ("the expiry index", indexed, timed_entries.INDEX, timed_entries.INDEX_END),
        ("the list of adopted entries", members, timed_entries.MEMBER, timed_entries.MEMBERS_END),
    ):
        if (found := sum(1 for _ in source.scan(start, end))) != expected:
            return f"{what} names {found:,} entries, and there are {expected:,}"
    return None


@dataclass(frozen=True, slots=True)
class Digest:
    """The content of one store in one backend: entries, bytes of keys and values, and a SHA-256 over all of them."""

    entries: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BackendVerdict:
    """The result for one backend of one store. `digest` is None if it could not be restored, or has no marker in every
    task."""

    backend: str
    digest: Digest | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class StoreVerdict:
    """The results for all backends of one store."""

    store: str
    backends: tuple[BackendVerdict, ...]

    @property
    def agrees(self) -> bool:
        digests = {verdict.digest for verdict in self.backends}
        return len(digests) == 1 and None not in digests


def verify(
    reader: StateReader, record: CheckpointRecord, stores: Iterable[str], looked_at: Callable[[str, str, int], None]
) -> list[StoreVerdict]:
    """Restore every store of the checkpoint from each backend that has a marker of it, and compare.

    `looked_at(store, backend, task)` is called after each restore.

    Raises:
        RetryableError, ConfigError: a backend could not be read for now, which proves nothing about its content.
    """
    verdicts = []
    for store in stores:
        found = {
            name: None for task in record.tasks for name, own in reader.markers(record, task).items() if store in own
        }
        verdicts.append(
            StoreVerdict(store, tuple(_look(reader, record, store, backend, looked_at) for backend in found))
        )
    return verdicts


def _look(
    reader: StateReader,
    record: CheckpointRecord,
    store: str,
    backend: str,
    looked_at: Callable[[str, str, int], None],
) -> BackendVerdict:
    missing = [task for task in record.tasks if store not in reader.markers(record, task).get(backend, {})]
    if missing:
        tasks = ", ".join(map(str, missing))
        return BackendVerdict(backend, None, f"no marker yet in task {tasks}: its base is not complete")
    total, entries, size = hashlib.sha256(), 0, 0
    layout = StoreLayout.parse(record.stores[store])
    for task in sorted(record.tasks):
        try:
            with reader.open(record, store, task, backend) as engine:
                own = digest(engine)
                problem = expiry_problem(engine) if layout.expires else None
                if layout.holds_timers:
                    problem = timed_entries.timer_problem(engine)
        except (CorruptError, NotFoundError, IncompatibleError) as error:
            return BackendVerdict(backend, None, str(error))
        if problem is not None:
            return BackendVerdict(backend, None, f"store `{store}` of task {task}: {problem}")
        entries, size = entries + own.entries, size + own.size_bytes
        total.update(f"{task}:{own.sha256}\n".encode())
        looked_at(store, backend, task)
    return BackendVerdict(backend, Digest(entries, size, total.hexdigest()))


def digest(engine: Engine) -> Digest:
    """The digest of an engine's whole content. Equal only for equal content."""
    total, entries, size = hashlib.sha256(), 0, 0
    for key, value in engine.scan(None, None):
        # The lengths keep two entries from looking like one.
        total.update(b"%d %d " % (len(key), len(value)))
        total.update(key)
        total.update(value)
        entries += 1
        size += len(key) + len(value)
    return Digest(entries, size, total.hexdigest())


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
