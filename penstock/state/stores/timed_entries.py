"""The stored form of entries that have times: those of a store with a time to live, and those of a store of timers.

`R` is a prefix that a store with a time to live reserves.

| key in the engine | value |
|---|---|
| the entry's key | its header, its value |
| `R` 0, the rest of the entry's key | the same, for an entry whose key begins with `R` |
| `R` 1, time, the entry's key in the engine | empty: the expiry index, in the order of times |
| `R` 2 | the state of the adoption, see `Adoption` |
| `R` 3, the entry's key in the engine | empty: the entry has a header, though the adoption has not come to it |

A header is the batch time from which on the entry is expired (8 bytes, big-endian), and one byte: the entry's place
in the index is that time rounded up to a multiple of 2 to the power of this byte. An entry that is written again soon
therefore keeps its place, and the index is not written. Entries keep the order of the application's keys, with a hole
for the other keys that begin with `R`.

The entries of timers are written by `penstock/runtime/timers.py`; here is a check of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from penstock.errors import IncompatibleError
from penstock.state.engines.engine import Content, Engine

RESERVED = b"\xffTTL"
"""No text in UTF-8 begins with it."""
RESERVED_END = b"\xffTTM"
INDEX = RESERVED + b"\x01"
INDEX_END = META = RESERVED + b"\x02"
MEMBER = RESERVED + b"\x03"
MEMBERS_END = RESERVED + b"\x04"
HEADER = 9
UNINDEXED = 255
"""The last byte of the header of an entry that has no place in the index. No such header is stored."""
_SKIP = len(RESERVED)
_VERSION = b"penstock ttl 1"

Entry = tuple[bytes, bytes]


# Keys.


def engine_key(key: bytes) -> bytes:
    return RESERVED + b"\x00" + key[_SKIP:] if RESERVED <= key < RESERVED_END else key


def application_key(key: bytes) -> bytes:
    return RESERVED + key[_SKIP + 1 :] if RESERVED <= key < RESERVED_END else key


def _ranges(start: bytes | None, end: bytes | None) -> list[tuple[bytes | None, bytes | None]]:
    """The parts of a range of the engine's keys that hold entries."""
    if (end is not None and end <= INDEX) or (start is not None and start >= RESERVED_END):
        return [(start, end)]
    return [(start, INDEX), (RESERVED_END, end)]


# Times.


def time_bytes(ms: int) -> bytes:
    """A time as bytes that sort as times do."""
    return ms.to_bytes(8, "big")


def header(expires_ms: int, shift: int) -> bytes:
    return time_bytes(expires_ms) + bytes((shift,))


def index_time(expires_ms: int, shift: int) -> int:
    """The entry's place in the index: never before it expires."""
    return -(-expires_ms >> shift) << shift


def index_key(data: bytes, key: bytes) -> bytes:
    return INDEX + time_bytes(index_time(int.from_bytes(data[:8], "big"), data[8])) + key


def alive_from(now_ms: int) -> bytes:
    """The least header, as bytes, of an entry that is seen at a batch time."""
    return time_bytes(now_ms + 1)


# Entries from before the store had a time to live.


@dataclass(frozen=True, slots=True)
class Adoption:
    """Progress in giving headers to entries from before the store had a time to live. From the cursor on, in the order
    of the engine's keys, they have no header yet, unless they were written since. All of them expire together."""

    expires_ms: int
    cursor: bytes = b""

    @property
    def header(self) -> bytes:
        """The header for reading an entry that has none yet."""
        return header(self.expires_ms, UNINDEXED)


def meta_bytes(adoption: Adoption | None) -> bytes:
    """The value of META; None: every entry has a header."""
    if adoption is None:
        return _VERSION + b"\x00"
    return _VERSION + b"\x01" + time_bytes(adoption.expires_ms) + adoption.cursor


def has_begun(meta: bytes | None) -> bool:
    """True if `meta` is the value of META in a store with a time to live in which a batch has ended. Raises
    IncompatibleError if a newer Penstock wrote it."""
    if meta is None or not meta.startswith(_VERSION[:-1]):
        return False
    if not meta.startswith(_VERSION):
        raise IncompatibleError(
            f"a store with a time to live has the form `{meta[: len(_VERSION)].decode(errors='replace')}`; this "
            f"Penstock reads `{_VERSION.decode()}`. Run the version that wrote it, or a newer one"
        )
    return True


def adoption_of(meta: bytes) -> Adoption | None:
    """The pending adoption, from the value of META; None once it is done."""
    rest = meta[len(_VERSION) :]
    return None if rest[:1] == b"\x00" else Adoption(int.from_bytes(rest[1:9], "big"), rest[9:])


def is_adopted(source: Content, adoption: Adoption, key: bytes) -> bool:
    """True if the entry with this key in the engine, if it exists, has a header."""
    return key < adoption.cursor or source.get(MEMBER + key) is not None


# Reading.


def entries_with_header(
    source: Content, adoption: Adoption | None, start: bytes | None = None, end: bytes | None = None
) -> Iterator[Entry]:
    """Every entry of a range of the engine's keys, expired or not, each with a header. The scan begins now."""
    entries = chain.from_iterable([source.scan(*part) for part in _ranges(start, end)])
    if adoption is None:
        return entries
    return _with_header(entries, source.scan(MEMBER + (start or b""), MEMBERS_END), adoption)


def _with_header(entries: Iterator[Entry], members: Iterator[Entry], adoption: Adoption) -> Iterator[Entry]:
    member = next(members, None)
    for key, data in entries:
        if key >= adoption.cursor:
            place = MEMBER + key
            while member is not None and member[0] < place:
                member = next(members, None)
            if member is None or member[0] != place:
                yield key, adoption.header + data
                continue
        yield key, data


def live_entries(
    source: Content, adoption: Adoption | None, alive: bytes, start: bytes | None, end: bytes | None
) -> Iterator[Entry]:
    """The entries with start <= key < end that are not expired, as the application wrote them. The scan begins now."""
    first = None if start is None else engine_key(start)
    last = None if end is None else engine_key(end)
    found = entries_with_header(source, adoption, first, last)
    return ((application_key(key), data[HEADER:]) for key, data in found if data >= alive)


class LiveEntries:
    """The entries of a store with a time to live, as its task would see them at a batch time."""

    def __init__(self, source: Content, adoption: Adoption | None, now_ms: int) -> None:
        self._source = source
        self._adoption = adoption
        self._alive = alive_from(now_ms)

    def get(self, key: bytes, /) -> bytes | None:
        place = engine_key(key)
        data = self._source.get(place)
        if data is None:
            return None
        if self._adoption is not None and not is_adopted(self._source, self._adoption, place):
            data = self._adoption.header + data
        return data[HEADER:] if data >= self._alive else None

    def scan(self, start: bytes | None, end: bytes | None, /) -> Iterator[Entry]:
        return live_entries(self._source, self._adoption, self._alive, start, end)


def live_view(source: Content, now_ms: int) -> Content:
    """The entries of a store with a time to live at a batch time. Before its first batch with a time to live has ended,
    nothing in it expires."""
    meta = source.get(META)
    return LiveEntries(source, adoption_of(meta), now_ms) if meta is not None and has_begun(meta) else source


BY_TIME = b"t"
"""Domain, time, key and name: one for each timer, without a value."""
BY_KEY = b"k"
"""Domain, key and name: one for each timer, with the time as its value."""
TIME = slice(2, 10)
"""The time in an entry by time."""
NAMED = 10
"""The position of key and name in an entry by time."""


def in_other_order(by_key: bytes, time: bytes) -> bytes:
    """The entry by time of a timer, from its entry by key."""
    return BY_TIME + by_key[1:2] + time + by_key[2:]


def timer_problem(engine: Engine) -> str | None:
    """The first difference between the two orders of entries, or None. Reads everything."""
    by_key = by_time = 0
    for entry, value in engine.scan(None, None):
        if entry[:1] == BY_KEY:
            if engine.get(in_other_order(entry, value)) is None:
                return f"a timer is found by its key, not by its time: {entry[2:]!r}"
            by_key += 1
        elif entry[:1] == BY_TIME:
            by_time += 1
        else:
            return f"an entry is of no timer: {entry!r}"
    if by_key != by_time:
        return f"{by_time:,} timers are found by their times, and {by_key:,} by their keys"
    return None
