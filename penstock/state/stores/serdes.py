"""Serdes above a cache of bytes above the overlay of the running attempt: the innermost store that knows objects.

The cache has the bytes of the values used last, so that a hot key costs no read of the engine. A store scans between
bounds that are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import NoneType
from typing import Any

from penstock.api.serdes import Bytes, Serde, not_bytes
from penstock.api.serdes.base import end_of_prefix
from penstock.errors import ConfigError, Interrupted, SerdeError
from penstock.graph.serdes import SerdePlace, store_place
from penstock.graph.stores import StoreSpec
from penstock.state.engines.engine import Changes, Content, EngineFailedError
from penstock.state.engines.overlay import MISSING, Overlay
from penstock.state.stores.task_store import Reads, TaskStore


class ValueCache:
    """A bounded map from key bytes to value bytes, absent keys included (as None).

    It keeps bytes and no objects: `get` decodes them each time. An object that two calls shared could be changed
    through one key and seen through another, and the result of a read would depend on the content of the cache.

    Two generations instead of a list of uses: a hit costs one dict lookup. When the young one is full it becomes the
    old one, and entries of the old one that were not used since are forgotten. The last `entries` keys used are
    therefore always there, and at most twice as many.
    """

    def __init__(self, entries: int) -> None:
        self._entries = max(1, entries)
        self.young: dict[bytes, bytes | None] = {}
        """The young generation. A store looks here first, before it calls `get`."""
        self._old: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> Any:
        """The value's bytes, None if the key is known to be absent, or MISSING."""
        value: Any = self.young.get(key, MISSING)
        if value is MISSING:
            value = self._old.get(key, MISSING)
            if value is not MISSING:
                self.put(key, value)
        return value

    def put(self, key: bytes, value: bytes | None) -> None:
        young = self.young
        young[key] = value
        if len(young) >= self._entries:
            self._old = young
            self.young = {}

    def put_all(self, changes: Changes) -> None:
        """Remember every value; if there are too many, the last ones."""
        if len(changes) >= self._entries:
            self._old = {key: changes[key] for key in islice(changes, len(changes) - self._entries, None)}
            self.young = {}
            return
        if len(self.young) + len(changes) >= self._entries:
            self._old = self.young
            self.young = {}
        self.young.update(changes)

    def forget(self, keys: Iterable[bytes] | None) -> None:
        if keys is None:
            self.young, self._old = {}, {}
            return
        for key in keys:
            self.young.pop(key, None)
            self._old.pop(key, None)


def range_bounds(store: SerdePlace, serde: Serde[Any], from_key: Any, to_key: Any) -> tuple[bytes, bytes]:
    """The start (inclusive) and end (exclusive) of a range.

    Raises:
        ConfigError: the bytes of the store's keys do not sort as the keys do, or `from_key` comes after `to_key`.
        SerdeError: the serde does not take one of them.
    """
    if not serde.ordered:
        raise ConfigError(
            f"{store.name} has no ranges: the bytes of its keys (serde `{serde.name}`) do not sort as the keys do. "
            f"Declare {store.declaration.format(part='key', serde='...')} with {_ordered_instead(serde)}"
        )
    start, end = (_bytes(store, serde, serde.bound_to_bytes, key) for key in (from_key, to_key))
    if start > end:
        raise ConfigError(
            f"{store.name}: the range from {from_key!r} to {to_key!r} begins after its end: give the smaller first"
        )
    return start, end


def prefix_bounds(store: SerdePlace, serde: Serde[Any], prefix: Any) -> tuple[bytes, bytes | None]:
    """The start (inclusive) and end (exclusive; None: unbounded) of the keys with a prefix. Raises SerdeError if keys
    of this serde have no prefixes, or this is not one."""
    start = _bytes(store, serde, serde.prefix_to_bytes, prefix)
    return start, end_of_prefix(start)


def _bytes(store: SerdePlace, serde: Serde[Any], write: Callable[[Any], bytes], key: Any) -> bytes:
    try:
        data = write(key)
    except Exception as error:
        raise store.unwritable("key", serde, key, error) from error
    if type(data) is not bytes:
        raise not_bytes(serde, data, f"{store.name}, key {key!r}")
    return data


_SAMZA = {"integer": "ps.Integer()", "long": "ps.Long()", "double": "ps.Double()"}


def _ordered_instead(serde: Serde[Any]) -> str:
    own = not type(serde).__module__.startswith("penstock.")
    if not own and serde.name in _SAMZA:
        return f"{_SAMZA[serde.name]}, whose keys are not in the form that Samza reads"
    built_in = "ps.String(), ps.Bytes(), ps.Integer(), ps.Long(), ps.Double() or ps.Tuple() of these"
    return built_in + (
        f", or set `ordered = True` in `{type(serde).__qualname__}` if its bytes do sort so" if own else ""
    )


def _are_bytes(entries: Mapping[Any, Any]) -> bool:
    return {bytes}.issuperset(map(type, entries)) and {bytes, NoneType}.issuperset(map(type, entries.values()))


class SerdeStore(TaskStore):
    """Decodes at the call of `get` and encodes at the call of `put`; no objects are kept.

    Overlay and cache are dicts, and each get and put looks into them here: a call to a layer below would cost as much
    as all the rest.
    """

    def __init__(self, spec: StoreSpec, engine: Content, cache_entries: int) -> None:
        self.spec = spec
        self._place = store_place(spec.name)
        self._engine = engine
        self._cache = ValueCache(cache_entries)
        """The engine's values of the keys used last. This attempt's writes are in the overlay."""
        self._overlay = self._new_overlay()
        self._changes = self._overlay.changes
        """The dict of the overlay itself: each get and put goes here first."""
        self._fresh = True
        self._gets = self._engine_gets = self._scans = 0
        self._key_serde, self._value_serde = spec.key_serde, spec.value_serde
        self._encode_key = spec.key_serde.to_bytes
        self._decode_key = spec.key_serde.from_bytes
        self._encode = spec.value_serde.to_bytes
        self._decode = spec.value_serde.from_bytes
        self._puts_bytes = type(self).put is SerdeStore.put and all(
            type(serde).to_bytes is Bytes.to_bytes for serde in (spec.key_serde, spec.value_serde)
        )
        self._failure: EngineFailedError | None = None

    def __repr__(self) -> str:
        return f"<store {self.name}: {self._key_serde.name} keys, {self._value_serde.name} values>"

    @property
    def failure(self) -> EngineFailedError | None:
        return self._failure

    @property
    def overlay(self) -> Overlay:
        return self._overlay

    def begin(self, time_ms: int = 0) -> Overlay:
        if not self._fresh:
            self._cache.put_all(self._cacheable())
            self._overlay = self._new_overlay()
            self._changes = self._overlay.changes
        self._fresh = False
        return self._overlay

    def _new_overlay(self) -> Overlay:
        return Overlay(self._engine)

    def _cacheable(self) -> Changes:
        """Writes of the attempt before that may go into the cache."""
        return self._changes

    def take_reads(self) -> Reads:
        found = Reads(self._gets, self._engine_gets, self._scans)
        self._gets = self._engine_gets = self._scans = 0
        return found

    def take_expired(self) -> int:
        return 0

    def mark(self) -> None:
        """Does nothing: writes cannot be undone here; see UndoableStore."""

    def undo(self) -> None:
        raise AssertionError(f"store `{self.name}` was built without undo")

    def reclaim(self) -> None:
        """Does nothing: entries do not expire here; see ExpiringStore."""

    def check(self) -> None: ...

    def stored(self, key: bytes) -> bytes | None:
        return self._overlay.get(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self._gets += 1
        try:
            key_bytes = self._encode_key(key)
        except Exception as error:
            raise self._unwritable_key(key, error) from error
        try:
            data: Any = self._changes.get(key_bytes, MISSING)
        except TypeError:  # it cannot be hashed
            raise self._bad_key(key, key_bytes) from None
        if data is MISSING:
            data = self._cache.young.get(key_bytes, MISSING)
            if data is MISSING:
                data = self._load(key, key_bytes)
        if data is None:
            return default
        try:
            return self._decode(data)
        except Exception as error:
            raise self._place.unreadable("value", self._value_serde, data, error, key) from error

    def _load(self, key: Any, key_bytes: bytes) -> Any:
        if type(key_bytes) is not bytes:
            raise self._bad_key(key, key_bytes)
        data = self._cache.get(key_bytes)
        if data is MISSING:
            self._engine_gets += 1
            try:
                data = self._engine.get(key_bytes)
            except BaseException as error:
                raise self._engine_failed(error) from error
            self._cache.put(key_bytes, data)
        return data

    def put(self, key: Any, value: Any) -> None:
        try:
            key_bytes = self._encode_key(key)
        except Exception as error:
            raise self._unwritable_key(key, error) from error
        if type(key_bytes) is not bytes:
            raise self._bad_key(key, key_bytes)
        data = None
        if value is not None:
            try:
                data = self._encode(value)
            except Exception as error:
                raise self._place.unwritable("value", self._value_serde, value, error, key) from error
            if type(data) is not bytes:
                raise not_bytes(self._value_serde, data, f"store `{self.name}`, value of key {key!r}")
        self._changes[key_bytes] = data

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        if self._puts_bytes and type(self._changes) is dict and _are_bytes(entries):
            self._changes.update(entries)
        else:
            super().put_all(entries)

    def delete(self, key: Any) -> None:
        self.put(key, None)

    def range(self, from_key: Any, to_key: Any) -> Iterator[tuple[Any, Any]]:
        return self._scan(*range_bounds(self._place, self._key_serde, from_key, to_key))

    def all(self) -> Iterator[tuple[Any, Any]]:
        return self._scan(None, None)

    def items(self, *, prefix: Any = None) -> Iterator[tuple[Any, Any]]:
        if prefix is None:
            return self.all()
        return self._scan(*prefix_bounds(self._place, self._key_serde, prefix))

    def snapshot(self, from_key: Any, to_key: Any) -> list[tuple[Any, Any]]:
        return list(self.range(from_key, to_key))

    def key_bytes(self, key: Any) -> bytes:
        try:
            key_bytes = self._encode_key(key)
        except Exception as error:
            raise self._unwritable_key(key, error) from error
        if type(key_bytes) is not bytes:
            raise self._bad_key(key, key_bytes)
        return key_bytes

    def _scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[Any, Any]]:
        """The decoded entries. The scan begins now, not when the first entry is read."""
        self._scans += 1
        try:
            entries = self._entries(start, end)
        except BaseException as error:
            raise self._engine_failed(error) from error
        self._changes = self._overlay.changes
        return self._decoded(entries)

    def _entries(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return self._overlay.scan(start, end)

    def _decoded(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[Any, Any]]:
        decode_key, decode = self._decode_key, self._decode
        while True:
            try:
                key, data = next(entries)
            except StopIteration:
                return
            except BaseException as error:
                raise self._engine_failed(error) from error
            try:
                key_and_value = decode_key(key), decode(data)
            except Exception as error:
                raise self._unreadable(key, data) from error
            yield key_and_value

    def _unwritable_key(self, key: Any, error: Exception) -> SerdeError:
        return self._place.unwritable("key", self._key_serde, key, error)

    def _unreadable(self, key_bytes: bytes, data: bytes) -> SerdeError:
        try:
            key = self._decode_key(key_bytes)
        except Exception as error:
            return self._place.unreadable("key", self._key_serde, key_bytes, error)
        try:
            self._decode(data)
        except Exception as error:
            return self._place.unreadable("value", self._value_serde, data, error, key)
        return SerdeError(f"store `{self.name}`: the entry of key {key!r} did not decode, and then did")

    def _bad_key(self, key: Any, key_bytes: object) -> TypeError:
        return not_bytes(self._key_serde, key_bytes, f"store `{self.name}`, key {key!r}")

    def _engine_failed(self, error: BaseException) -> BaseException:
        """The error to raise for a failure of the engine, which is never the application's fault."""
        if isinstance(error, Interrupted):
            return error
        self._failure = EngineFailedError(f"store `{self.name}` cannot be read: {type(error).__name__}: {error}")
        return self._failure
