"""Rows of a schema as bytes, many at once: the form in which a store keeps them.

    count       if rows are counted: 2 bytes with the number of fields
    nulls       a bit for each field, 1 for a null; the first field is the lowest bit of the first byte
    fixed       the fields of a fixed size, in order, little-endian as in Arrow; of a null, zeros
    ends        4 bytes for each other field: where its bytes end, counted from the end of this part
    varying     the bytes of these fields: text as UTF-8, nested values as MessagePack

Equal rows have equal bytes. A row without varying fields always has the same length, and takes the place of the one
before it. Rows that are counted may have fewer fields than the schema that reads them: the others are null.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import accumulate
from typing import Any

import msgspec.msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.arrays.byte_arrays import ByteArray, Integers, write_at
from penstock.arrays.types import CODES, deep_fit, row_fits, spend_of
from penstock.base.budgets import MessageBudget

_FORMATS = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}
_LONGEST = (1 << 32) - 1
_COUNT_BYTES = 2
_pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_unpack: Callable[[bytes], Any] = msgspec.msgpack.Decoder().decode


class PackedRows:
    """Packs and unpacks rows with these fields."""

    def __init__(self, fields: Sequence[pa.Field], *, counted: bool = False) -> None:
        """`counted`: rows say how many fields they have, so that fields can be added at the end later.

        Raises TypeError if there are no fields, or for a type whose values cannot be packed.
        """
        if not fields:
            raise TypeError("a row has at least one field")
        self.fields = tuple(fields)
        self.type = pa.struct(self.fields)
        self._counted = counted
        self._fewer: dict[int, PackedRows] = {}
        begin = _COUNT_BYTES if counted else 0
        self._null_bytes = (len(self.fields) + 7) // 8
        self._nulls = slice(begin, begin + self._null_bytes)
        self._codecs = [_codec(field.type, field.name) for field in self.fields]
        names, formats, offsets, place = list[str](), list[str](), list[int](), self._nulls.stop
        for number, codec in enumerate(self._codecs):
            if codec.width is not None:
                names.append(f"f{number}")
                formats.append(_FORMATS.get(codec.width, f"V{codec.width}"))
                offsets.append(place)
                place += codec.width
        self._varying = [number for number, codec in enumerate(self._codecs) if codec.width is None]
        for number in self._varying:
            names.append(f"f{number}")
            formats.append("<u4")
            offsets.append(place)
            place += 4
        self._head_bytes = place
        self._fits = row_fits(self.fields, finite=False)
        self._fixed = [number for number, codec in enumerate(self._codecs) if codec.width is not None]
        codes = "".join(CODES.get(self.fields[number].type, "") for number in self._fixed)
        self._count = len(self.fields).to_bytes(_COUNT_BYTES, "little") if counted else b""
        self._struct = struct.Struct(f"<{begin}s{self._null_bytes}s{codes}{'I' * len(self._varying)}")
        self._head: Any = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": place})

    def pack_one(self, row: Mapping[str, Any]) -> bytes | None:
        """The bytes of a dict that is a row of the fields as it is; None if Arrow has to make one of it."""
        if self._fits is None or not self._fits(row):
            return None
        values: list[Any] = [row.get(field.name) for field in self.fields]
        nulls = sum(1 << number for number, value in enumerate(values) if value is None)
        varying = [b"" if values[number] is None else values[number].encode() for number in self._varying]
        fixed = [0 if values[number] is None else values[number] for number in self._fixed]
        bits = nulls.to_bytes(self._null_bytes, "little")
        head = self._struct.pack(self._count, bits, *fixed, *accumulate(map(len, varying)))
        return b"".join((head, *varying)) if varying else head

    def unpack_one(self, data: bytes) -> dict[str, Any] | None:
        """The row as a dict; None if Arrow has to make one. Raises ValueError if the bytes are not a row."""
        if self._fits is None:
            return None
        if self._counted and data[:_COUNT_BYTES] != self._count:
            if len(data) < _COUNT_BYTES:
                raise _uncounted(len(data))
            fewer = self._with_fewer(int.from_bytes(data[:_COUNT_BYTES], "little")).unpack_one(data)
            return None if fewer is None else {**{field.name: None for field in self.fields}, **fewer}
        size = self._head_bytes
        if len(data) < size:
            raise ValueError(f"a row has {len(data)} bytes; at least {size} were expected")
        _, bits, *found = self._struct.unpack_from(data)
        values: list[Any] = [None] * len(self.fields)
        for number, value in zip(self._fixed, found, strict=False):
            values[number] = value
        begin = size
        for number, end in zip(self._varying, found[len(self._fixed) :], strict=True):
            values[number] = data[begin : size + end].decode()
            begin = size + end
        if begin != len(data):
            raise ValueError("a row has another length than its fields")
        nulls = int.from_bytes(bits, "little")
        return {
            field.name: None if nulls >> number & 1 else value
            for number, (field, value) in enumerate(zip(self.fields, values, strict=True))
        }

    def pack(self, rows: pa.StructArray) -> ByteArray:
        """The bytes of each row; of a null, those of a row of nulls.

        Raises:
            ValueError: a field that must not be null is, or a row is too long.
        """
        columns = rows.flatten()
        count = len(rows)
        heads = np.zeros(count, self._head)
        nulls = np.zeros((count, self._null_bytes), np.uint8)
        varying: list[ByteArray] = []
        ends = np.zeros(count, np.int64)
        for number, (column, codec, field) in enumerate(zip(columns, self._codecs, self.fields, strict=True)):
            null = _is_null(column)
            if null is not None:
                if not field.nullable and not pa.types.is_null(field.type):
                    raise ValueError(f"field `{field.name}` must not be null")
                nulls[:, number // 8] |= null.astype(np.uint8) << np.uint8(number % 8)
            if codec.width is not None:
                if codec.width:
                    heads[f"f{number}"] = codec.numbers(column, null)
            else:
                elements = codec.bytes(column, null)
                varying.append(elements)
                ends += elements.lengths
                if count and int(ends.max()) > _LONGEST:
                    raise ValueError(f"a row of {int(ends.max())} bytes is too long")
                heads[f"f{number}"] = ends
        matrix = heads.view(np.uint8).reshape(count, self._head_bytes)
        matrix[:, self._nulls] = nulls
        if self._counted:
            matrix[:, : self._nulls.start] = np.frombuffer(self._count, np.uint8)
        return _joined(matrix, varying) if self._varying and count else ByteArray.matrix(matrix)

    def unpack(self, rows: ByteArray, valid: npt.NDArray[np.bool_] | None = None) -> pa.StructArray:
        """The rows of these bytes; where `valid` is false, a null and no bytes are looked at.

        Raises:
            ValueError: the bytes are not a row.
        """
        count = len(rows)
        if valid is not None and not valid.all():
            there = np.flatnonzero(valid)
            places = np.full(count, -1, np.int64)
            places[there] = np.arange(len(there))
            found = self.unpack(rows.take(there))
            return found.take(pa.array(places, mask=~valid))
        if self._counted and (counts := self._other_counts(rows)) is not None:
            return self._unpack_each(rows, counts)
        size = self._head_bytes
        self._check_head(rows)
        matrix = rows.rows(size)
        heads = matrix.reshape(-1).view(self._head) if count else np.zeros(0, self._head)
        self._check_ends(heads, rows.lengths - size)
        columns = []
        begin = np.zeros(count, np.int64)
        for number, codec in enumerate(self._codecs):
            bits = matrix[:, self._nulls.start + number // 8]
            null = (bits >> np.uint8(number % 8) & 1).astype(np.bool_) if count else None
            mask = None if null is None or not null.any() else ~null
            if codec.width is not None:
                columns.append(codec.array(heads[f"f{number}"] if codec.width else None, count, mask))
            else:
                end = heads[f"f{number}"].astype(np.int64)
                columns.append(codec.varying(ByteArray(rows.data, rows.starts + size + begin, end - begin), mask))
                begin = end
        return pa.StructArray.from_arrays(columns, fields=list(self.fields))

    def sizes(self, rows: ByteArray) -> Integers:
        """The number of bytes of each element that are a row: all of them, or the first ones. Rows are not counted.

        Raises:
            ValueError: an element has too few bytes.
        """
        self._check_head(rows)
        found: Integers = np.full(len(rows), self._head_bytes, np.int64)
        if self._varying:
            heads = rows.rows(self._head_bytes).reshape(-1).view(self._head)
            found += heads[f"f{self._varying[-1]}"]
        return found

    def _check_head(self, rows: ByteArray) -> None:
        if len(rows) and int(rows.lengths.min()) < self._head_bytes:
            raise ValueError(f"a row has {int(rows.lengths.min())} bytes; at least {self._head_bytes} were expected")

    def _other_counts(self, rows: ByteArray) -> Integers | None:
        """The number of fields that each row has; None if all have those of the schema."""
        if not len(rows):
            return None
        if int(rows.lengths.min()) < _COUNT_BYTES:
            raise _uncounted(int(rows.lengths.min()))
        counts: Integers = rows.rows(_COUNT_BYTES).reshape(-1).view("<u2").astype(np.int64)
        return counts if (counts != len(self.fields)).any() else None

    def _unpack_each(self, rows: ByteArray, counts: Integers) -> pa.StructArray:
        parts, order = [], []
        for count in np.unique(counts).tolist():
            where = np.flatnonzero(counts == count)
            codec = self if count == len(self.fields) else self._with_fewer(count)
            found = codec.unpack(rows.take(where)).flatten()
            found += [pa.nulls(len(where), field.type) for field in self.fields[count:]]
            parts.append(pa.StructArray.from_arrays(found, fields=list(self.fields)))
            order.append(where)
        places = np.empty(len(rows), np.int64)
        places[np.concatenate(order)] = np.arange(len(rows))
        return pa.concat_arrays(parts).take(pa.array(places))

    def _with_fewer(self, count: int) -> PackedRows:
        """The rows of the first fields. Raises ValueError if there are not so many."""
        if not 0 < count < len(self.fields):
            raise ValueError(f"a row has {count} fields, and the schema has {len(self.fields)}")
        if count not in self._fewer:
            self._fewer[count] = PackedRows(self.fields[:count], counted=True)
        return self._fewer[count]

    def _check_ends(self, heads: Any, lengths: Integers) -> None:
        """Raise ValueError unless the bytes behind the head are those of the varying fields."""
        before: Any = 0
        for number in self._varying:
            end = heads[f"f{number}"].astype(np.int64)
            if (end < before).any():
                raise ValueError("a row has a field that ends before it begins")
            before = end
        if (lengths != before).any():
            raise ValueError("a row has another length than its fields")


def _uncounted(size: int) -> ValueError:
    return ValueError(f"a row has {size} bytes, and no number of fields")


def _joined(heads: npt.NDArray[np.uint8], varying: Sequence[ByteArray]) -> ByteArray:
    """The head of each row, and its bytes of each column behind it."""
    count, size = heads.shape
    lengths: Integers = np.full(count, size, np.int64)
    for column in varying:
        lengths += column.lengths
    starts = np.cumsum(lengths) - lengths
    data = np.empty(int(lengths.sum()), np.uint8)
    write_at(data, starts, ByteArray.matrix(heads))
    places = starts + size
    for column in varying:
        write_at(data, places, column)
        places = places + column.lengths
    return ByteArray(data, starts, lengths)


def _is_null(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    """None if there is no null."""
    if column.null_count == 0:
        return None
    found: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return found


class _Codec:
    """Values of one type. Either `width` is None, and they are bytes of varying length, or they are fixed."""

    width: int | None = None

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind

    def numbers(self, column: pa.Array, null: npt.NDArray[np.bool_] | None) -> Any:
        raise NotImplementedError

    def array(self, numbers: Any, count: int, mask: npt.NDArray[np.bool_] | None) -> pa.Array:
        raise NotImplementedError

    def bytes(self, column: pa.Array, null: npt.NDArray[np.bool_] | None) -> ByteArray:
        raise NotImplementedError

    def varying(self, elements: ByteArray, mask: npt.NDArray[np.bool_] | None) -> pa.Array:
        raise NotImplementedError


class _Nothing(_Codec):
    """The type null."""

    width = 0

    def array(self, numbers: Any, count: int, mask: npt.NDArray[np.bool_] | None) -> pa.Array:
        return pa.nulls(count, self.kind)


class _Flags(_Codec):
    width = 1

    def numbers(self, column: pa.Array, null: npt.NDArray[np.bool_] | None) -> Any:
        return column.fill_null(False).to_numpy(zero_copy_only=False)

    def array(self, numbers: Any, count: int, mask: npt.NDArray[np.bool_] | None) -> pa.Array:
        return pa.array(numbers != 0, self.kind, mask=None if mask is None else ~mask)


class _Fixed(_Codec):
    """Values that Arrow keeps in a block, one after the other."""

    def __init__(self, kind: pa.DataType, width: int) -> None:
        super().__init__(kind)
        self.width = width
        self._format = _FORMATS.get(width, f"V{width}")

    def numbers(self, column: pa.Array, null: npt.NDArray[np.bool_] | None) -> Any:
        found = np.frombuffer(column.buffers()[1], self._format)[column.offset : column.offset + len(column)]
        if null is not None:
            found = found.copy()
            found[null] = np.zeros((), self._format)
        return found

    def array(self, numbers: Any, count: int, mask: npt.NDArray[np.bool_] | None) -> pa.Array:
        valid = None if mask is None else pa.py_buffer(np.packbits(mask, bitorder="little"))
        return pa.Array.from_buffers(self.kind, count, [valid, pa.py_buffer(np.ascontiguousarray(numbers))])


class _Texts(_Codec):
    """Text or bytes."""

    def bytes(self, column: pa.Array, null: npt.NDArray[np.bool_] | None) -> ByteArray:
        found = ByteArray.of(column)
        return found if null is None else ByteArray(found.data, found.starts, np.where(null, 0, found.lengths))

    def varying(self, elements: ByteArray, mask: npt.NDArray[np.bool_] | None) -> pa.Array:
        return elements.to_arrow(mask).cast(self.kind)


class _Nested(_Codec):
    """Lists, structs and maps: their values as plain ones, of Python."""

    def __init__(self, kind: pa.DataType, plain: pa.DataType) -> None:
        super().__init__(kind)
        self._plain = plain
        self._decode = _decoder(plain)
        self._fit = deep_fit(plain)
        self._spend = spend_of(plain, lambda value, _, name: value.get(name))

    def bytes(self, column: pa.Array, null: npt.NDArray[np.bool_] | None) -> ByteArray:
        values = column.cast(self._plain).to_pylist()
        packed = [b"" if value is None else _pack(value) for value in values]
        if self._spend is not None:
            for value, data in zip(values, packed, strict=True):
                self._spend(value, MessageBudget(len(data)))  # nobody could read what exceeds it
        return ByteArray.of(pa.array(packed, pa.large_binary()))

    def varying(self, elements: ByteArray, mask: npt.NDArray[np.bool_] | None) -> pa.Array:
        values = [None if each is None else self._value(each) for each in elements.to_arrow(mask).to_pylist()]
        return pa.array(values, self._plain).cast(self.kind)

    def _value(self, data: Any) -> Any:
        """Raises an error for one that the type cannot hold: Arrow trusts what it is given."""
        found = _unpack(data)
        if self._spend is not None:
            self._spend(found, MessageBudget(len(data)))
        value = self._decode(found)
        return value if self._fit is None else self._fit(value)


def _codec(kind: pa.DataType, name: str) -> _Codec:
    if pa.types.is_null(kind):
        return _Nothing(kind)
    if pa.types.is_boolean(kind):
        return _Flags(kind)
    if any(is_one(kind) for is_one in _TEXTS):
        return _Texts(kind)
    if any(is_one(kind) for is_one in _NESTED):
        return _Nested(kind, _plain(kind, name))
    if any(is_one(kind) for is_one in _FIXED):
        return _Fixed(kind, kind.bit_width // 8)
    raise TypeError(f"field `{name}` has the type {kind}, whose values cannot be stored")


_FIXED = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_temporal,
    pa.types.is_decimal128,
    pa.types.is_decimal256,
    pa.types.is_fixed_size_binary,
)
_NESTED = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_struct, pa.types.is_map)
_TEXTS = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)


def _decoder(kind: pa.DataType) -> Callable[[Any], Any]:
    """Turns what MessagePack reads into what Arrow takes."""
    if pa.types.is_map(kind):
        key, item = _decoder(kind.key_type), _decoder(kind.item_type)
        return lambda value: None if value is None else [(key(each[0]), item(each[1])) for each in value]
    if pa.types.is_struct(kind):
        fields = {field.name: _decoder(field.type) for field in kind}
        return lambda value: None if value is None else {name: fields[name](each) for name, each in value.items()}
    if pa.types.is_nested(kind):
        element = _decoder(kind.value_type)
        return lambda value: None if value is None else [*map(element, value)]
    if pa.types.is_decimal(kind):
        return lambda value: None if value is None else Decimal(value)
    return _itself


def _itself(value: Any) -> Any:
    return value


def _plain(kind: pa.DataType, name: str) -> pa.DataType:
    """The type to which nested values are cast to become plain objects, without losing anything."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type, name)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type, name), _plain(kind.item_type, name))
    if any(is_one(kind) for is_one in _NESTED):
        inner = _plain(kind.value_type, name)
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(inner, kind.list_size)
        return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)
    for is_one, plain in _PLAIN:
        if is_one(kind):
            return plain or kind
    raise TypeError(f"field `{name}` has values of the type {kind}, which cannot be stored")


_PLAIN: Sequence[tuple[Callable[[pa.DataType], bool], pa.DataType | None]] = (
    (pa.types.is_timestamp, pa.int64()),
    (pa.types.is_duration, pa.int64()),
    (pa.types.is_date64, pa.int64()),
    (pa.types.is_date32, pa.int32()),
    (pa.types.is_time64, pa.int64()),
    (pa.types.is_time32, pa.int32()),
    (pa.types.is_float16, pa.float32()),
    *((is_one, None) for is_one in (*_FIXED, *_TEXTS, pa.types.is_boolean)),
)
