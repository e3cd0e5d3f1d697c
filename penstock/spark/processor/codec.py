"""The stored form of the rows of state variables: alone, and in lists.

The code for a row is made for each schema:

    fields   2 bytes: how many fields the row has
    nulls    a bit for each field
    fixed    the fields of fixed size and the lengths of the others, in the order of the schema
    varying  the bytes of the others

A row with fewer fields than the schema is from before the others were added: they are None.

A short list is one entry of a store. A long one is in pieces, so that appending does not rewrite it:

    key              its head: the number of the first piece and of the one behind the last, then the newest elements
    key, number      a piece: elements

An element is its length in four bytes and its bytes. In a store with a time to live the batch time at which it
expires comes before, in eight bytes: the store's own time to live drops a piece once its last element has expired.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql.types import StructType

from penstock.api.store import KeyValueStore
from penstock.errors import CorruptError
from penstock.spark.processor.fields import Field, FixedField, field_of
from penstock.spark.versions import plain


class RowCodec:
    """Encodes and decodes rows of a schema.

    Example:
        >>> from pyspark.sql.types import LongType, StringType, StructType
        >>> codec = RowCodec(StructType().add("n", LongType()).add("s", StringType()))
        >>> codec.decode(codec.encode((7, "seven")))
        (7, 'seven')
    """

    def __init__(self, schema: StructType, where: str = "state") -> None:
        """Raises ConfigError if state cannot hold values of one of the types. `where` names the state in errors."""
        self.schema = schema
        self._where = where
        self._fields = [field_of(f.dataType, f"{where}.{f.name}") for f in schema.fields]
        self._count = len(self._fields)
        self._null_bytes = (self._count + 7) // 8
        codes = "".join(f.code if isinstance(f, FixedField) else "I" for f in self._fields)
        self._head = struct.Struct(f"<H{self._null_bytes}s{codes}")
        self._shorter: dict[int, RowCodec] = {}
        self.encode: Callable[[Any], bytes] = _encoder(self._fields, self._head, self._null_bytes, self._encode_any)
        """The bytes of a row. Raises TypeError or ValueError if it does not fit the schema."""
        self.decode: Callable[[bytes], tuple[Any, ...]] = _decoder(
            self._fields, self._head, self._null_bytes, self._decode_any
        )

    def _encode_any(self, values: Any) -> bytes:
        """The bytes of any row: with nulls, with values to convert, or with an error."""
        given = tuple(map(plain, values))
        if len(given) != self._count:
            raise ValueError(
                f"`{self._where}` has {self._count} fields ({', '.join(self.schema.names)}), and {len(given)} values "
                f"were given: {given!r}"
            )
        nulls, head, rest = 0, [], []
        for number, (value, field) in enumerate(zip(given, self._fields, strict=True)):
            if value is None:
                nulls |= 1 << number
                head.append(0)
                continue
            try:
                if isinstance(field, FixedField):
                    found = value if field.to is None else field.to(value)
                    struct.pack(f"<{field.code}", found)
                    head.append(found)
                else:
                    data = field.to(value)
                    head.append(len(data))
                    rest.append(data)
            except Exception as error:
                kind = self.schema.fields[number]
                raise TypeError(
                    f"`{self._where}`: field `{kind.name}` of type {kind.dataType.simpleString()} cannot hold "
                    f"{value!r} of type {type(value).__name__}: {error}"
                ) from error
        return self._head.pack(self._count, nulls.to_bytes(self._null_bytes, "little"), *head) + b"".join(rest)

    def _decode_any(self, data: bytes) -> tuple[Any, ...]:
        count = int.from_bytes(data[:2], "little")
        if count != self._count:
            return self._decode_other(data, count)
        _, null_bits, *head = self._head.unpack_from(data)
        nulls, at = int.from_bytes(null_bits, "little"), self._head.size
        values: list[Any] = []
        for number, (found, field) in enumerate(zip(head, self._fields, strict=True)):
            if nulls >> number & 1:
                values.append(None)
            elif isinstance(field, FixedField):
                values.append(found if field.back is None else field.back(found))
            else:
                values.append(field.back(data[at : at + found]))
                at += found
        return tuple(values)

    def _decode_other(self, data: bytes, count: int) -> tuple[Any, ...]:
        if count > self._count:
            raise ValueError(f"`{self._where}` has {self._count} fields, and {count} are stored")
        shorter = self._shorter.get(count)
        if shorter is None:
            shorter = self._shorter[count] = RowCodec(StructType(self.schema.fields[:count]), self._where)
        return shorter.decode(data) + (None,) * (self._count - count)


def _encoder(
    fields: Sequence[Field], head: struct.Struct, null_bytes: int, any_row: Callable[[Any], bytes]
) -> Callable[[Any], bytes]:
    """Compile code for a row without nulls; other rows go to `any_row`."""
    names = [f"v{n}" for n in range(len(fields))]
    scope: dict[str, Any] = {"pack": head.pack, "any_row": any_row, "count": len(fields), "nulls": bytes(null_bytes)}
    lines, parts, rest = [], [], []
    for name, (number, field) in zip(names, enumerate(fields), strict=True):
        scope[f"to{number}"] = field.to
        if isinstance(field, FixedField):
            parts.append(name if field.to is None else f"to{number}({name})")
        else:
            lines.append(f"b{number} = to{number}({name})")
            parts.append(f"len(b{number})")
            rest.append(f"b{number}")
    null = " or ".join(f"{name} is None" for name in names)
    body = f"return pack(count, nulls, {', '.join(parts)})" + "".join(f" + {each}" for each in rest)
    return _compiled(
        "encode",
        [
            f"({', '.join(names)},) = row" if names else "() = row",
            f"if {null}: return any_row(row)" if names else "pass",
            *lines,
            body,
        ],
        scope,
    )


def _decoder(
    fields: Sequence[Field], head: struct.Struct, null_bytes: int, any_row: Callable[[bytes], tuple[Any, ...]]
) -> Callable[[bytes], tuple[Any, ...]]:
    names = [f"v{n}" for n in range(len(fields))]
    scope: dict[str, Any] = {
        "unpack": head.unpack_from,
        "any_row": any_row,
        "count": len(fields),
        "nulls": bytes(null_bytes),
        "size": head.size,
    }
    lines, values, at = [], [], "size"
    for name, (number, field) in zip(names, enumerate(fields), strict=True):
        scope[f"back{number}"] = field.back
        if isinstance(field, FixedField):
            values.append(name if field.back is None else f"back{number}({name})")
        else:
            lines.append(f"e{number} = {at} + {name}")
            values.append(f"back{number}(row[{at}:e{number}])")
            at = f"e{number}"
    return _compiled(
        "decode",
        [
            f"found, null, {''.join(f'{name}, ' for name in names)} = unpack(row)",
            "if found != count or null != nulls: return any_row(row)",
            *lines,
            f"return ({''.join(f'{value}, ' for value in values)})",
        ],
        scope,
    )


def _compiled(name: str, lines: Sequence[str], scope: dict[str, Any]) -> Callable[[Any], Any]:
    text = f"def {name}(row):\n  try:\n"
    text += "".join(f"    {line}\n" for line in lines)
    text += "  except Exception:\n    return any_row(row)\n"
    exec(compile(text, f"<{name}>", "exec"), scope)  # noqa: S102 - the text is made of numbers alone
    made: Callable[[Any], Any] = scope[name]
    return made


PIECE_BYTES = 8_192
"""Elements become a piece once they have this many bytes."""
_HEAD = struct.Struct("<II")
_NUMBER = struct.Struct(">I")
_LENGTH = struct.Struct("<I")
_TIMED = struct.Struct("<qI")


_MOST_PASSED = 256
"""Expired pieces that one `append` passes over; the next one goes on."""


def _bounds(head: bytes) -> tuple[int, int]:
    """The numbers of the first piece, and of the one behind the last."""
    first, end = _HEAD.unpack_from(head)
    if first > end:
        raise CorruptError(f"a stored list is damaged: its pieces are {first} to {end}")
    return first, end


def _broken_off(wanted: int, found: int) -> CorruptError:
    return CorruptError(f"a stored list is damaged: an element ends at byte {wanted} of {found}")


class StoredLists:
    """The lists of all keys."""

    def __init__(
        self, store: KeyValueStore[bytes, bytes], ttl_ms: int | None = None, now: Callable[[], int] = lambda: 0
    ) -> None:
        """`now` is the batch time, in epoch milliseconds."""
        self._store, self._read, self._write = store, store.get, store.put
        self._ttl_ms, self._now = ttl_ms, now

    def exists(self, key: bytes) -> bool:
        return next(self.get(key), None) is not None

    def get(self, key: bytes) -> Iterator[bytes]:
        """The elements, oldest first. Writes after the first one was taken do not change them."""
        head = self._read(key)
        if head is None:
            return iter(())
        first, end = _bounds(head)
        if first == end:
            return self._elements([head], _HEAD.size)
        return self._elements(
            [*(bytes(_HEAD.size) + piece for piece in self._pieces(key, first, end)), head], _HEAD.size
        )

    def put(self, key: bytes, elements: Sequence[bytes]) -> None:
        head = self._read(key)
        first, end = (0, 0) if head is None else _bounds(head)
        for number in range(end - len(self._pieces(key, first, end)), end):
            self._write(key + _NUMBER.pack(number), None)
        if not elements:
            if head is not None:
                self._write(key, None)
            return
        self._store_all(key, 0, 0, b"", elements)

    def append(self, key: bytes, elements: Sequence[bytes]) -> None:
        if not elements:
            return
        head = self._read(key)
        if head is None:
            self._store_all(key, 0, 0, b"", elements)
            return
        first, end = _bounds(head)
        until = first if self._ttl_ms is None else min(end, first + _MOST_PASSED)
        while first < until and self._read(key + _NUMBER.pack(first)) is None:
            first += 1
        newest = head[_HEAD.size :]
        self._store_all(key, first, end, newest if self._ttl_ms is None else self._still_alive(newest), elements)

    def _pieces(self, key: bytes, first: int, end: int) -> list[bytes]:
        """The pieces that are there, oldest first. They expire in this order, so the newest is looked for first, and
        nothing behind one that is missing: a damaged head may claim any number. Raises CorruptError if one is missing
        that does not expire."""
        found: list[bytes] = []
        for number in range(end - 1, first - 1, -1):
            piece = self._read(key + _NUMBER.pack(number))
            if piece is None:
                if self._ttl_ms is None:
                    raise CorruptError(f"a stored list is damaged: its piece {number} is missing")
                break
            found.append(piece)
        found.reverse()
        return found

    def _still_alive(self, piece: bytes) -> bytes:
        at, now = 0, self._now()
        while at < len(piece):
            expires, length = _TIMED.unpack_from(piece, at)
            if expires > now:
                break
            at += _TIMED.size + length
        return piece[at:]

    def _store_all(self, key: bytes, first: int, end: int, newest: bytes, elements: Sequence[bytes]) -> None:
        pieces = [newest]
        size = len(newest)
        expires = None if self._ttl_ms is None else self._now() + self._ttl_ms
        for element in elements:
            if size >= PIECE_BYTES:
                self._write(key + _NUMBER.pack(end), b"".join(pieces))
                end, pieces, size = end + 1, [], 0
            before = _LENGTH.pack(len(element)) if expires is None else _TIMED.pack(expires, len(element))
            pieces += (before, element)
            size += len(before) + len(element)
        self._write(key, _HEAD.pack(first, end) + b"".join(pieces))

    def _elements(self, pieces: Sequence[bytes], begin: int) -> Iterator[bytes]:
        if self._ttl_ms is not None:
            yield from self._alive(pieces, begin)
            return
        unpack = _LENGTH.unpack_from
        for piece in pieces:
            at, end = begin, len(piece)
            while at < end:
                at, last = at + 4, at + 4 + unpack(piece, at)[0]
                if last > end:
                    raise _broken_off(last, end)
                yield piece[at:last]
                at = last

    def _alive(self, pieces: Sequence[bytes], begin: int) -> Iterator[bytes]:
        now = self._now()
        for piece in pieces:
            at, end = begin, len(piece)
            while at < end:
                expires, length = _TIMED.unpack_from(piece, at)
                at += _TIMED.size
                if at + length > end:
                    raise _broken_off(at + length, end)
                if expires > now:
                    yield piece[at : at + length]
                at += length
