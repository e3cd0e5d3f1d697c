"""Keys by column: from a column of Arrow to the bytes that their serde writes, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.serdes.base import Bytes, Serde, String
from penstock.api.serdes.compound import Tuple
from penstock.api.serdes.numbers import (
    DoubleKey,
    Integer,
    Long,
    OrderedDouble,
    OrderedInteger,
    OrderedLong,
    SamzaInteger,
    SamzaLong,
)
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.given import is_bytes, is_text
from penstock.errors import ConfigError

_DOUBLES = (DoubleKey, OrderedDouble)
_SIGN_4 = np.uint32(1 << 31)
_SIGN_8 = np.uint64(1 << 63)


def keys_to_bytes(serde: Serde[Any], keys: pa.Array) -> pa.Array:
    """The bytes of each key, as `serde.to_bytes` makes them; a null stays null.

    Raises:
        Exception: a key does not fit the serde.
    """
    if pa.types.is_dictionary(keys.type):
        keys = keys.cast(keys.type.value_type)
    if type(serde) is String and (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        return keys.cast(pa.large_binary() if pa.types.is_large_string(keys.type) else pa.binary())
    if type(serde) is Bytes and (pa.types.is_binary(keys.type) or pa.types.is_large_binary(keys.type)):
        return keys
    encode = _NUMBERS.get(type(serde))
    is_number = pa.types.is_integer(keys.type) or (type(serde) in _DOUBLES and pa.types.is_floating(keys.type))
    if encode is not None and is_number:
        valid = None if keys.null_count == 0 else ~keys.is_null().to_numpy(zero_copy_only=False)
        return ByteArray.matrix(encode(keys)).to_arrow(valid)
    objects = keys.to_pylist()
    if pa.types.is_struct(keys.type):
        objects = [None if each is None else tuple(each.values()) for each in objects]
    return pa.array([None if each is None else serde.to_bytes(each) for each in objects], pa.binary())


def key_type(serde: Serde[Any]) -> pa.DataType | None:
    """The type of a column of keys: of tuples, a struct with the fields `f0`, `f1`, ... None if the serde has objects
    of several types."""
    if not isinstance(serde, Tuple):
        return _TYPES.get(type(serde))
    kinds = [key_type(each) for each in serde.fields]
    return None if None in kinds else pa.struct([pa.field(f"f{n}", kind) for n, kind in enumerate(kinds)])


def check_key_type(serde: Serde[Any], kind: pa.DataType, what: str) -> None:
    """Raise ConfigError, which begins with `what`, if a column of this type cannot be the keys of one of Penstock's own
    serdes."""
    wanted = key_type(serde)
    if wanted is not None and not _fits(wanted, kind):
        own = f"ps.{type(serde).__name__}()"
        raise ConfigError(f"{what}: the column is {kind}, and the keys are of {own}: {_advice(kind)}")


def _fits(wanted: pa.DataType, kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return True
    if pa.types.is_struct(wanted):
        parts = list(kind) if pa.types.is_struct(kind) else []
        return len(parts) == len(list(wanted)) and all(map(_fits, (f.type for f in wanted), (f.type for f in parts)))
    if pa.types.is_floating(wanted):
        return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
    return any(is_one(wanted) and is_one(kind) for is_one in (is_text, is_bytes, pa.types.is_integer))


def _advice(kind: pa.DataType) -> str:
    serde = _serde_for(kind)
    if serde is None:
        return "no keys of Penstock have this type, so make one of text or a number: partition_by(lambda row: ...)"
    return f"give key={serde}"


def _serde_for(kind: pa.DataType) -> str | None:
    """The serde of such keys, as a program writes it."""
    if pa.types.is_struct(kind):
        parts = [_serde_for(field.type) for field in kind]
        return None if None in parts else f"ps.Tuple({', '.join(part or '' for part in parts)})"
    families = (
        (is_text, "ps.String()"),
        (pa.types.is_integer, "ps.Long()"),
        (pa.types.is_floating, "ps.Double()"),
        (is_bytes, "ps.Bytes()"),
    )
    return next((name for is_one, name in families if is_one(kind)), None)


def keys_from_bytes(serde: Serde[Any], keys: pa.Array) -> pa.Array:
    """The keys of these bytes, as a column of their type, or without one of the type that Arrow finds."""
    if type(serde) is String:
        return keys.cast(pa.large_string() if pa.types.is_large_binary(keys.type) else pa.string())
    if type(serde) is Bytes:
        return keys
    kind = key_type(serde)
    found = [None if each is None else serde.from_bytes(each) for each in keys.to_pylist()]
    if isinstance(serde, Tuple) and kind is not None:
        found = [None if each is None else {f"f{n}": part for n, part in enumerate(each)} for each in found]
    return pa.array(found, kind)


def _integers(keys: pa.Array, kind: pa.DataType) -> Any:
    """Raises ArrowInvalid for a number that is no such integer."""
    return keys.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)


def _doubles(keys: pa.Array) -> Any:
    doubles = keys.cast(pa.float64())
    if pa.types.is_integer(keys.type):
        doubles.cast(keys.type)  # raises if a double does not equal the integer
    return doubles.fill_null(0).to_numpy(zero_copy_only=False) + 0.0  # which makes 0.0 of -0.0


def _ordered_doubles(keys: pa.Array) -> Any:
    if pc.any(pc.is_nan(keys.cast(pa.float64())), min_count=0).as_py():
        raise ValueError("NaN cannot be the key of a store: it equals no key and has no place in their order")
    bits = _doubles(keys).view(np.uint64)
    return np.where(bits & _SIGN_8, ~bits, bits ^ _SIGN_8).astype(">u8")


_NUMBERS: Mapping[type, Callable[[pa.Array], Any]] = {
    **dict.fromkeys((Integer, SamzaInteger), lambda keys: _integers(keys, pa.int32()).astype(">i4")),
    **dict.fromkeys((Long, SamzaLong), lambda keys: _integers(keys, pa.int64()).astype(">i8")),
    OrderedInteger: lambda keys: (_integers(keys, pa.int32()).view(np.uint32) ^ _SIGN_4).astype(">u4"),
    OrderedLong: lambda keys: (_integers(keys, pa.int64()).view(np.uint64) ^ _SIGN_8).astype(">u8"),
    DoubleKey: lambda keys: _doubles(keys).astype(">f8"),
    OrderedDouble: _ordered_doubles,
}
_TYPES: Mapping[type, pa.DataType] = {
    String: pa.string(),
    Bytes: pa.binary(),
    **dict.fromkeys((Integer, SamzaInteger, OrderedInteger), pa.int32()),
    **dict.fromkeys((Long, SamzaLong, OrderedLong), pa.int64()),
    **dict.fromkeys(_DOUBLES, pa.float64()),
}
