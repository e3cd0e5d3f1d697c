"""The partition of a key: Kafka's default partitioner, murmur2 over the key's bytes.

The scalar and the Arrow form give the same answers, and the same as Kafka's `Utils.murmur2` and
`Utils.toPositive`, so a stream can move between systems without its keys changing partition.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import ConfigError

_SEED = 0x9747B28C
_M = 0x5BD1E995
_WORD = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_BLOCK_KEYS = 1 << 14  # a block's words and hashes stay in the processor's cache through all steps

Words: TypeAlias = npt.NDArray[np.uint32]
Integers: TypeAlias = npt.NDArray[Any]


def murmur2(data: bytes) -> int:
    """Kafka's `Utils.murmur2`: the hash as a signed 32-bit integer."""
    length = len(data)
    h = _SEED ^ (length & _WORD)
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _WORD
        k = (k ^ k >> 24) * _M & _WORD
        h = h * _M & _WORD ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _WORD
    h = (h ^ h >> 13) * _M & _WORD
    h ^= h >> 15
    return h - (1 << 32) if h > _POSITIVE else h


def partition_of(key: bytes | None, partitions: int) -> int:
    """The partition of a key: `(murmur2 & 0x7fffffff) % partitions`; 0 without a key, as Samza's partitionBy."""
    if key is None:
        return 0
    return (murmur2(key) & _POSITIVE) % partitions


def partitions_of(keys: pa.Array, partitions: int) -> npt.NDArray[np.int64]:
    """`partition_of` for a whole Arrow array, one number per key, in the array's order.

    The array is binary, large_binary, string or large_string (its UTF-8 bytes count), sliced or not, with or without
    nulls. Keys of one length are hashed together, so few different lengths are fastest.

    Raises:
        ConfigError: the array has another type.
    """
    result = np.zeros(len(keys), np.int64)
    if len(keys) == 0:
        return result
    data, starts = _layout(keys)
    lengths = np.diff(starts)
    if keys.null_count == 0 and (lengths == lengths[0]).all():
        length = int(lengths[0])
        rows = data[int(starts[0]) : int(starts[-1])].reshape(len(keys), length)
        for at in range(0, len(keys), _BLOCK_KEYS):
            block = slice(at, at + _BLOCK_KEYS)
            result[block] = _partitions(rows[block], partitions)
        return result
    wanted = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False)) if keys.null_count else None
    if wanted is not None:
        starts, lengths = starts[wanted], lengths[wanted]
    for group in _by_length(lengths):
        length = int(lengths[group[0]])
        for at in range(0, len(group), _BLOCK_KEYS):
            block_keys = group[at : at + _BLOCK_KEYS]
            rows = _gather(data, starts[block_keys], length)
            result[block_keys if wanted is None else wanted[block_keys]] = _partitions(rows, partitions)
    return result


def _by_length(lengths: Integers) -> list[npt.NDArray[np.intp]]:
    if len(lengths) == 0:
        return []
    if int(lengths.max()) < 1 << 16:
        lengths = lengths.astype(np.uint16)  # numpy sorts 16-bit numbers by radix, several times as fast
    order = np.argsort(lengths, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1)


def _gather(data: npt.NDArray[np.uint8], starts: Integers, length: int) -> npt.NDArray[np.uint8]:
    """The keys of one length as a contiguous matrix of bytes; each key is copied as one item."""
    if length == 0:
        return np.zeros((len(starts), 0), np.uint8)
    keys_at_every_byte = np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))
    rows: npt.NDArray[np.uint8] = keys_at_every_byte[starts].view(np.uint8).reshape(len(starts), length)
    return rows


def _layout(keys: pa.Array) -> tuple[npt.NDArray[np.uint8], Integers]:
    if pa.types.is_binary(keys.type) or pa.types.is_string(keys.type):
        width: npt.DTypeLike = np.int32
    elif pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type):
        width = np.int64
    else:
        raise ConfigError(f"keys to be partitioned are bytes; found an Arrow array of {keys.type}")
    _, offsets, data = keys.buffers()
    starts = np.frombuffer(offsets, width)[keys.offset : keys.offset + len(keys) + 1]
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), starts


def _partitions(rows: npt.NDArray[np.uint8], partitions: int) -> npt.NDArray[np.int64]:
    hashes = _hashes(rows) & np.uint32(_POSITIVE)
    return (hashes % np.uint32(partitions)).astype(np.int64)


def _hashes(rows: npt.NDArray[np.uint8]) -> Words:
    count, length = rows.shape
    m = np.uint32(_M)
    h = np.full(count, (_SEED ^ length) & _WORD, np.uint32)
    whole = length & ~3
    if whole:
        # Only whole words may be viewed as words; for other lengths the tail is cut off by a copy.
        words = np.ascontiguousarray(rows[:, :whole]).view("<u4")
        for i in range(whole // 4):
            k = words[:, i] * m
            k ^= k >> np.uint32(24)
            k *= m
            h *= m
            h ^= k
    if length > whole:
        tail = np.zeros(count, np.uint32)
        for i in range(whole, length):
            tail |= rows[:, i].astype(np.uint32) << np.uint32(8 * (i - whole))
        h ^= tail
        h *= m
    h ^= h >> np.uint32(13)
    h *= m
    h ^= h >> np.uint32(15)
    return h
