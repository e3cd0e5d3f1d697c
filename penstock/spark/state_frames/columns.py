"""Columns of the keys and values of a store, from their bytes. Knows Arrow, not Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from penstock.errors import SerdeError
from penstock.state.reading.diff import View

T = TypeVar("T")

_ROWS = 8192
_BYTES = 4 << 20
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class StateColumn:
    """A conversion of the bytes of keys or values to a column. Picklable."""

    what: str
    """`key`, `user_key` or `value`."""
    type: pa.DataType
    decode: Callable[[bytes], Any] | None = None
    """Decodes the element; None: it is the bytes."""

    def array(self, store: str, task: int, parts: Sequence[bytes | None]) -> pa.Array:
        """The column of these keys or values; null where one is None.

        Raises:
            SerdeError: one does not have the column's type, or is not of its serde.
        """
        decode = self.decode
        try:
            elements = parts if decode is None else [None if part is None else decode(part) for part in parts]
            return pa.array(elements, self.type)
        except Exception as error:
            for part in parts:
                self._check(store, task, part)
            raise SerdeError(f"the {self.what}s of store `{store}`, task {task}: {error}") from error

    def _check(self, store: str, task: int, part: bytes | None) -> None:
        if part is None:
            return
        place = f"store `{store}`, task {task}: the {self.what} {_shown(part)}"
        try:
            element = part if self.decode is None else self.decode(part)
        except Exception as error:
            raise SerdeError(f"{place} cannot be decoded: {type(error).__name__}: {error}") from error
        try:
            pa.array([element], self.type)
        except _UNFIT as error:
            raise SerdeError(
                f"{place} does not have the type {self.type}: {error}. Give another `{self.what}_type`, or a "
                f"`{self.what}_function` that makes what the column needs"
            ) from error


@dataclass(frozen=True, slots=True)
class StateColumns:
    """The columns of a store's entries. Picklable."""

    store: str
    keys: tuple[tuple[str, StateColumn], ...]
    value: StateColumn
    view: View | None = None
    """Makes the shown entries from the stored ones, where they differ."""

    def entries(self, task: int, entries: Iterable[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
        """Batches with the columns task, those of the key, value."""
        names = ["task", *(name for name, _ in self.keys), "value"]
        for some in pieces(entries, lambda each: len(each[0]) + len(each[1])):
            keys, values = zip(*some, strict=True)
            columns = [
                _tasks(task, len(some)),
                *self._key_arrays(task, keys),
                self.value.array(self.store, task, values),
            ]
            yield pa.record_batch(columns, names)

    def changes(
        self, task: int, changes: Iterable[tuple[str, bytes, bytes | None, bytes | None]]
    ) -> Iterator[pa.RecordBatch]:
        """Batches with the columns change, task, those of the key, before, after, from (change, key, before, after)."""
        names = ["change", "task", *(name for name, _ in self.keys), "before", "after"]
        for some in pieces(changes, lambda each: sum(map(len, filter(None, each[1:])))):
            kinds, keys, before, after = zip(*some, strict=True)
            columns = [
                pa.array(kinds, pa.string()),
                _tasks(task, len(some)),
                *self._key_arrays(task, keys),
                self.value.array(self.store, task, before),
                self.value.array(self.store, task, after),
            ]
            yield pa.record_batch(columns, names)

    def _key_arrays(self, task: int, keys: Sequence[bytes]) -> list[pa.Array]:
        return [column.array(self.store, task, keys) for _, column in self.keys]


def pieces(things: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """The things in lists of bounded length and size, in order; no list is empty."""
    some: list[T] = []
    held = 0
    for each in things:
        some.append(each)
        held += size(each)
        if len(some) >= _ROWS or held >= _BYTES:
            yield some
            some, held = [], 0
    if some:
        yield some


def _tasks(task: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(task, pa.int32()), count)


def _shown(part: bytes) -> str:
    text = repr(part[:60])
    return f"{text}..." if len(part) > 60 else text
