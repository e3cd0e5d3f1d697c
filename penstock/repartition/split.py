"""Gives the entries of one task's part of a store to the tasks that own them from now on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.base.wording import argument, printable
from penstock.errors import IncompatibleError
from penstock.repartition.placement import ByKey, CopiedPlacement, Placement, StayingPlacement
from penstock.state.engines.engine import Engine
from penstock.state.stores.expiry import (
    HEADER,
    META,
    UNINDEXED,
    adoption_of,
    application_key,
    engine_key,
    entries_with_header,
    has_begun,
    header,
    index_key,
    meta_bytes,
)
from penstock.system.partitioner import partitions_of

_AT_ONCE = 4096
_CHUNK_BYTES = 4 << 20
_SHOWN = 80


class MovedEntries(NamedTuple):
    """Entries of a store for one task."""

    task: int
    entries: dict[bytes, bytes]
    """By their keys in the engine."""


class _Entry(NamedTuple):
    key: bytes
    """As the store's writer has it."""
    place: bytes
    """The same in the engine."""
    data: bytes


@dataclass(frozen=True, slots=True)
class StorePart:
    """One task's part of a store."""

    store: str
    task: int
    expires_ms: int | None = None
    """The batch time from which on entries are expired that have no time yet. None: they have no time to live."""


def moved_entries(part: StorePart, engine: Engine, place: Placement, after: int) -> Iterator[MovedEntries]:
    """Every entry, in pieces of some megabytes.

    Args:
        part: what the engine holds.
        place: where the entries of the store move to.
        after: the number of tasks from now on.

    Raises:
        IncompatibleError: an entry is not in the task that owns the key of its messages: the placement is wrong.
    """
    pending = _Pending(expires=part.expires_ms is not None)
    if isinstance(place, ByKey):
        found = _by_key(part, _entries(part, engine), place, after)
    else:
        found = ((task, entry) for entry in _entries(part, engine) for task in _targets(part, place, after))
    for task, entry in found:
        yield from pending.add(task, entry)
    yield from pending.rest()


def merged(place: Placement, key: bytes, old: bytes, new: bytes) -> bytes | None:
    """The value of a key that two tasks had. None: they cannot have it in common."""
    if key == META:
        return new
    merge = place.merges.get(key) if isinstance(place, ByKey) else None
    return None if merge is None else merge(old, new)


class _Pending:
    """Entries by task, given out when there are enough of them."""

    def __init__(self, *, expires: bool) -> None:
        self._expires = expires
        self._entries: dict[int, dict[bytes, bytes]] = {}
        self._sizes: dict[int, int] = {}

    def add(self, task: int, entry: _Entry) -> Iterator[MovedEntries]:
        own = self._entries.get(task)
        if own is None:
            own = self._entries[task] = {META: meta_bytes(None)} if self._expires else {}
            self._sizes[task] = 0
        own[entry.place] = entry.data
        if self._expires:
            own[index_key(entry.data, entry.place)] = b""
        self._sizes[task] += len(entry.place) + len(entry.data)
        if self._sizes[task] >= _CHUNK_BYTES:
            del self._sizes[task]
            yield MovedEntries(task, self._entries.pop(task))

    def rest(self) -> Iterator[MovedEntries]:
        return (MovedEntries(task, own) for task, own in sorted(self._entries.items()))


def _entries(part: StorePart, engine: Engine) -> Iterator[_Entry]:
    """The entries; of a store whose entries have a time to live, each with a header that has a place in the index,
    whether it has expired or not."""
    if part.expires_ms is None:
        return (_Entry(key, key, data) for key, data in engine.scan(None, None))
    meta = engine.get(META)
    if meta is None or not has_begun(meta):
        found = _unbegun(engine, part.expires_ms)
    else:
        found = entries_with_header(engine, adoption_of(meta))
    return (_Entry(application_key(key), key, _indexed(data)) for key, data in found)


def _unbegun(engine: Engine, expires_ms: int) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a store in which no batch with a time to live has ended: their keys are the application's."""
    head = header(expires_ms, UNINDEXED)
    return ((engine_key(key), head + data) for key, data in engine.scan(None, None))


def _indexed(data: bytes) -> bytes:
    if data[HEADER - 1] != UNINDEXED:
        return data
    return header(int.from_bytes(data[: HEADER - 1], "big"), 0) + data[HEADER:]


def _targets(part: StorePart, place: Placement, after: int) -> Iterable[int]:
    if isinstance(place, CopiedPlacement):
        return range(after) if part.task == 0 else ()
    if not isinstance(place, StayingPlacement):
        return ()
    if part.task >= after:
        raise IncompatibleError(
            f"store `{part.store}` of task {part.task} has entries, which stay with their task, and there is no such "
            "task from now on. Nothing was changed"
        )
    return (part.task,)


def _by_key(part: StorePart, entries: Iterator[_Entry], place: ByKey, after: int) -> Iterator[tuple[int, _Entry]]:
    head = 0 if part.expires_ms is None else HEADER
    while block := list(islice(entries, _AT_ONCE)):
        shared = [entry for entry in block if entry.key in place.merges]
        for entry in shared:
            yield from ((task, entry) for task in range(after))
        own = [entry for entry in block if entry.key not in place.merges] if shared else block
        if place.by_value is None:
            keys = [place.find(entry.key) for entry in own]
        else:
            keys = [place.by_value(entry.key, entry.data[head:]) for entry in own]
        yield from _placed(part, own, pa.array(keys, pa.large_binary()), place, after)


def _placed(
    part: StorePart, entries: list[_Entry], keys: pa.Array, place: ByKey, after: int
) -> Iterable[tuple[int, _Entry]]:
    owners, targets = partitions_of(keys, place.before), partitions_of(keys, place.after)
    if place.keyless_of_task and keys.null_count:
        keyless = keys.is_null().to_numpy(zero_copy_only=False)
        owners[keyless] = targets[keyless] = part.task
    wrong = np.flatnonzero(owners != part.task)
    if len(wrong):
        first = int(wrong[0])
        if place.of_operator and not keys[first].is_valid:
            raise _of_whole_task(part)
        raise _misplaced(part, entries[first], int(owners[first]), of_operator=place.of_operator)
    return ((int(task), entry) for task, entry in zip(targets, entries, strict=True) if task < after)


def _of_whole_task(part: StorePart) -> IncompatibleError:
    operator, _, kind = part.store.rpartition(".")
    drop = argument("rules", [f"{part.store}=empty"])
    return IncompatibleError(
        f"store `{part.store}`: the {kind} of operator `{operator}` has entries without a key in task {part.task}, as "
        "an open window of a whole task has, and nothing says which task continues them. Drain the job, so that "
        f"nothing waits in the store, or drop what is in it with {drop}. Nothing was changed"
    )


def _misplaced(part: StorePart, entry: _Entry, owner: int, *, of_operator: bool) -> IncompatibleError:
    shown = printable(entry.key[:_SHOWN]) or repr(entry.key[:_SHOWN])
    found = (
        f"store `{part.store}`: the entry with the key `{shown}` is in task {part.task}, and messages of its key come "
        f"to task {owner}: "
    )
    if of_operator:
        drop = argument("rules", [f"{part.store}=empty"])
        return IncompatibleError(
            f"{found}the operator has entries under keys that are not those by which its messages came to the task. "
            f"Drain the job, so that nothing waits in the store, or drop what is in it with {drop}. Nothing was changed"
        )
    rule = argument("rules", [f"{part.store}=RULE"])
    return IncompatibleError(
        f"{found}its keys are not the keys of its messages, or not all of them. Say how the messages' key is found, or "
        f"what is to become of the entries, with {rule}. Nothing was changed"
    )
