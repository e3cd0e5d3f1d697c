"""Stores that catch what a task may do wrong with the values that a store gave it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.state.stores.task_store import StoreLayer, TaskStore

_UNCHANGEABLE = (str, bytes, int, float, bool, type(None))
_OURS = 2
"""References to a value that nobody but its `_Handed` holds: that one, and the argument of `getrefcount`."""


class UnwrittenChangeError(AssertionError):
    """A value that a store had handed out was changed in place and not put back."""


class StaleValueError(AssertionError):
    """A value was put that no longer belongs to what the store holds: another one was put under its key meanwhile, or
    the message that it comes from failed."""


@dataclass(slots=True)
class _Handed:
    """A value that the application got from the store, or gave to it."""

    value: Any
    key: bytes
    data: bytes
    """Its bytes at that time."""
    stored: bytes | None
    """What the store held under the key at that time."""
    of_this_call: bool = True
    undone: bool = False
    """The message failed, and its writes were undone."""


class CheckedStore(StoreLayer):
    """Remembers every value it hands out or takes, and looks at it again when the call of `process` has ended.

    A value that was changed must be put afterwards, under whatever key, unless its own key has got another value or was
    deleted. A value that was kept from an earlier call is watched for as long as somebody holds it.
    """

    def __init__(self, inner: TaskStore) -> None:
        super().__init__(inner)
        self._encode_key, self._encode = self.spec.key_serde.to_bytes, self.spec.value_serde.to_bytes
        self._handed: dict[int, _Handed] = {}
        """By the identity of the value."""
        self._depth = 0
        self.mistakes: list[AssertionError] = []
        """What was found: the application, or a dead-letter stream, may swallow what is raised."""

    def enter(self) -> None:
        """An operator that uses the store is called. Calls nest where one emits to another of its stage."""
        self._depth += 1

    def leave(self, *, failed: bool = False) -> None:
        """The operator has returned. Raises UnwrittenChangeError after the outermost one, unless it failed."""
        self._depth -= 1
        if not self._depth and not failed:
            self.check()

    def get(self, key: Any, default: Any = None) -> Any:
        value = self.inner.get(key)
        self._note(key, value)
        return default if value is None else value

    def put(self, key: Any, value: Any) -> None:
        known = self._handed.get(id(value))
        if known is not None:
            self._check_fresh(key, known)
        self.inner.put(key, value)
        self._note(key, value)

    def range(self, from_key: Any, to_key: Any) -> Iterator[tuple[Any, Any]]:
        return self._noted(self.inner.range(from_key, to_key))

    def all(self) -> Iterator[tuple[Any, Any]]:
        return self._noted(self.inner.all())

    def items(self, *, prefix: Any = None) -> Iterator[tuple[Any, Any]]:
        return self._noted(self.inner.items(prefix=prefix))

    def _noted(self, entries: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        for key, value in entries:
            self._note(key, value)
            yield key, value

    def undo(self) -> None:
        self.inner.undo()
        for known in self._handed.values():
            known.undone = known.undone or known.of_this_call

    def check(self) -> None:
        self.inner.check()
        for known in self._handed.values():
            if not known.undone and known.stored == self._stored(known.key) and self._changed(known):
                self._handed = {}
                key = self.spec.key_serde.from_bytes(known.key)
                self._found(
                    UnwrittenChangeError(
                        f"store `{self.name}`: the value of key {key!r} was changed after get or put without a put; "
                        "call put once it has its final value"
                    )
                )
        self._handed = {i: known for i, known in self._handed.items() if sys.getrefcount(known.value) > _OURS}
        for known in self._handed.values():
            known.of_this_call = False

    def _check_fresh(self, key: Any, known: _Handed) -> None:
        """A changed value may be put only if nothing else was put since it was got."""
        if known.key != self.key_bytes(key) or not self._changed(known):
            return
        if known.undone:
            why = "it was got by a message that failed, whose changes are undone"
        elif known.stored != self._stored(known.key):
            why = "another value was put under the key since it was got, and would be lost"
        else:
            return
        self._found(
            StaleValueError(f"store `{self.name}`, put of key {key!r}: {why}. Call get again before you change it")
        )

    def _found(self, error: AssertionError) -> NoReturn:
        self.mistakes.append(error)
        raise error

    def _note(self, key: Any, value: Any) -> None:
        if not isinstance(value, _UNCHANGEABLE):
            key_bytes = self._encode_key(key)
            self._handed[id(value)] = _Handed(value, key_bytes, self._encode(value), self._stored(key_bytes))

    def _stored(self, key: bytes) -> bytes | None:
        return self.overlay.get(key)

    def _changed(self, known: _Handed) -> bool:
        try:
            return self._encode(known.value) != known.data
        except Exception:  # it cannot be written any more
            return True
