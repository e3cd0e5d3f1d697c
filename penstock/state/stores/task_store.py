"""The interface of a task's store to the runtime, and layers around stores.

One layer can take back the writes of one message. A store that is filled from the outside has a view for each
attempt: one state of it, despite later writes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.api.store import KeyValueStore
from penstock.graph.stores import StoreSpec
from penstock.state.engines.engine import Changes, Engine, EngineFailedError
from penstock.state.engines.overlay import MISSING, Overlay

L = TypeVar("L", bound="TaskStore")


class Reads(NamedTuple):
    gets: int
    engine_gets: int
    scans: int


class TaskStore(KeyValueStore[Any, Any]):
    """One task's instance of a store. It lives as long as its stage instance."""

    spec: StoreSpec

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    @abstractmethod
    def failure(self) -> EngineFailedError | None:
        """The engine's error, if there was one: nothing that was processed since then may count, even if the
        application caught it."""

    @property
    @abstractmethod
    def overlay(self) -> Overlay:
        """The running attempt's writes, above the engine."""

    @abstractmethod
    def begin(self, time_ms: int = 0) -> Overlay:
        """Start an attempt. Writes go to the returned overlay from now on. The attempt before was applied.

        `time_ms` is the batch time, by which entries with a time to live expire. Writes of a task's `init` belong to
        the first attempt.
        """

    @abstractmethod
    def take_reads(self) -> Reads:
        """The reads since the last call."""

    @abstractmethod
    def take_expired(self) -> int:
        """The number of expired entries deleted since the last call."""

    @abstractmethod
    def mark(self) -> None:
        """Begin a message whose writes may be undone."""

    @abstractmethod
    def undo(self) -> None:
        """Undo all writes since the mark."""

    @abstractmethod
    def reclaim(self) -> None:
        """Delete some expired entries, a limited number. Called after an attempt's input is processed. Nobody reads the
        store after that before the next attempt. Raises EngineFailedError."""

    @abstractmethod
    def check(self) -> None:
        """Called after an attempt's input is processed. A store that watches its use raises here."""

    @abstractmethod
    def key_bytes(self, key: Any) -> bytes:
        """Raises SerdeError if the serde does not take the key, TypeError if it does not return bytes."""

    @abstractmethod
    def stored(self, key: bytes) -> bytes | None:
        """The bytes of the value under the bytes of a key, if there is one that has not expired."""

    def find(self, _kind: type[L]) -> L | None:
        """The layer of this kind in this store or one that it wraps; None if there is none."""
        return None


class StoreLayer(TaskStore):
    """A store around another one. A subclass replaces some calls; all others are the inner store's.

    These are bound to the inner store and cost nothing, except `delete`, `snapshot` and the calls that KeyValueStore
    derives from others: they pass through, so that a layer that replaces `put` and `range` sees them as well.
    """

    def __init__(self, inner: TaskStore) -> None:
        self.inner = inner
        self.spec = inner.spec
        for call in _BOUND:
            if getattr(type(self), call) is getattr(StoreLayer, call):
                setattr(self, call, getattr(inner, call))

    def __repr__(self) -> str:
        return repr(self.inner)

    def find(self, kind: type[L]) -> L | None:
        return self if isinstance(self, kind) else self.inner.find(kind)

    @property
    def failure(self) -> EngineFailedError | None:
        return self.inner.failure

    @property
    def overlay(self) -> Overlay:
        return self.inner.overlay

    def begin(self, time_ms: int = 0) -> Overlay:
        return self.inner.begin(time_ms)

    def take_reads(self) -> Reads:
        return self.inner.take_reads()

    def take_expired(self) -> int:
        return self.inner.take_expired()

    def mark(self) -> None:
        self.inner.mark()

    def undo(self) -> None:
        self.inner.undo()

    def reclaim(self) -> None:
        self.inner.reclaim()

    def check(self) -> None:
        self.inner.check()

    def stored(self, key: bytes) -> bytes | None:
        return self.inner.stored(key)

    def key_bytes(self, key: Any) -> bytes:
        return self.inner.key_bytes(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return self.inner.get(key, default)

    def put(self, key: Any, value: Any) -> None:
        self.inner.put(key, value)

    def delete(self, key: Any) -> None:
        self.put(key, None)

    def range(self, from_key: Any, to_key: Any) -> Iterator[tuple[Any, Any]]:
        return self.inner.range(from_key, to_key)

    def all(self) -> Iterator[tuple[Any, Any]]:
        return self.inner.all()

    def items(self, *, prefix: Any = None) -> Iterator[tuple[Any, Any]]:
        return self.inner.items(prefix=prefix)

    def snapshot(self, from_key: Any, to_key: Any) -> list[tuple[Any, Any]]:
        return list(self.range(from_key, to_key))


_BOUND = ("begin", "mark", "undo", "reclaim", "check", "stored", "key_bytes", "get", "put", "range", "all", "items")


class UndoableStore(StoreLayer):
    """The writes since the last `mark` can be undone, for jobs with a dead-letter stream."""

    def __init__(self, inner: TaskStore) -> None:
        super().__init__(inner)
        self._put = inner.put
        self._key_bytes = inner.key_bytes
        self._overlay = inner.overlay
        self._journal: list[tuple[bytes, Any]] = []
        """(key, its former change in the overlay or MISSING) of each write since the mark, in order."""

    def begin(self, time_ms: int = 0) -> Overlay:
        self._overlay = self.inner.begin(time_ms)
        return self._overlay

    def mark(self) -> None:
        self._journal.clear()

    def undo(self) -> None:
        self._overlay.undo(self._journal)

    def put(self, key: Any, value: Any) -> None:
        key_bytes = self._key_bytes(key)
        self._journal.append((key_bytes, self._overlay.changes.get(key_bytes, MISSING)))
        self._put(key, value)


class SideView(Engine):
    """One state of a store, which does not change. Used by the threads of attempts."""

    @property
    @abstractmethod
    def version(self) -> tuple[int, int]:
        """Identifies the state: views of one content with equal versions show the same. The first number changes when
        the content is replaced as a whole; the second grows with each update."""

    @abstractmethod
    def changed_since(self, version: tuple[int, int]) -> Iterable[bytes] | None:
        """The keys that may have another value than in an earlier view; None if unknown: any key may."""

    @abstractmethod
    def release(self) -> None:
        """Release the state. Reading then raises EngineFailedError. Idempotent."""

    def apply(self, changes: Changes) -> None:
        raise AssertionError("a view is only read")

    def copy_to(self, directory: Path) -> None:
        raise AssertionError("a view is not copied")

    def close(self) -> None:
        self.release()
