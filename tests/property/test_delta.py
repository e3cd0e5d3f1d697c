"""The `.delta` file: what goes in comes out, damage is noticed, and the bytes are those of the format's description."""

from __future__ import annotations

import hashlib
import struct

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptError, IncompatibleError
from penstock.state.backends.changelog_files.versions import DeltaHeader, decode_delta, encode_delta
from penstock.state.engines.engine import decode_records, encode_records
from tests.support.tools.places import GOLDEN
from tests.support.tools.profiles import examples

SAVED = GOLDEN / "delta-format1.delta"
HEADER = DeltaHeader(8, 3, ((1, 1, 5), (3, 6, 8)))
GOLDEN_CHANGES: dict[bytes, bytes | None] = {
    b"N14228": b'{"flights":111}',
    b"N24211": None,
    b"": b"",
    b"\xff": b"x" * 300,
}
SAMPLE = encode_delta(HEADER, GOLDEN_CHANGES)
CHANGES = st.dictionaries(st.binary(max_size=20), st.none() | st.binary(max_size=60), max_size=30)
"""The golden file was made once, without the package, as below. It is never made again: files like it exist.

    records = b""
    for key, value in GOLDEN_CHANGES.items():
        records += struct.pack(">i", len(key)) + key
        records += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    records += struct.pack(">i", -1)
    head = (b'{"format":1,"version":8,"epoch":3,"lineage":[[1,1,5],[3,6,8]],"size":%d}' % len(records))
    body = b"PSTDELTA" + struct.pack(">i", len(head)) + head + pyarrow.Codec("zstd", 1).compress(records, asbytes=True)
    file = body + hashlib.sha256(body).digest()
"""


def records_by_hand(changes: dict[bytes, bytes | None]) -> bytes:
    parts = []
    for key, value in changes.items():
        parts.append(struct.pack(">i", len(key)) + key)
        parts.append(struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value)
    return b"".join(parts) + b"\xff\xff\xff\xff"


def test_many_records_are_laid_out_as_few() -> None:
    changes = {b"%d" % key: None if key % 7 == 0 else b"v" * (key % 300) for key in range(5000)}
    assert encode_records(changes) == records_by_hand(changes)
    assert decode_records(records_by_hand(changes), "many") == changes


def test_the_golden_file_reads() -> None:
    assert decode_delta(SAVED.read_bytes(), "golden") == (HEADER, GOLDEN_CHANGES)


def test_what_is_written_today_is_laid_out_as_the_golden_file() -> None:
    """All but the compressed bytes, which another zstd may choose otherwise."""
    for data in (SAMPLE, SAVED.read_bytes()):
        assert data[:8] == b"PSTDELTA"
        (size,) = struct.unpack(">i", data[8:12])
        records = records_by_hand(GOLDEN_CHANGES)
        head = b'{"format":1,"version":8,"epoch":3,"lineage":[[1,1,5],[3,6,8]],"size":%d}' % len(records)
        assert data[12 : 12 + size] == head
        compressed = data[12 + size : -32]
        assert pa.Codec("zstd").decompress(compressed, decompressed_size=len(records), asbytes=True) == records
        assert data[-32:] == hashlib.sha256(data[:-32]).digest()


@given(CHANGES)
def test_round_trip(changes: dict[bytes, bytes | None]) -> None:
    assert encode_records(changes) == records_by_hand(changes)
    data = encode_delta(HEADER, changes)
    assert data == encode_delta(HEADER, dict(changes)), "the same changes give the same bytes"
    header, found = decode_delta(data, "file")
    assert header == HEADER
    assert list(found.items()) == list(changes.items())


@pytest.mark.parametrize("size", [4095, 4096, 65_535, 65_536])
def test_long_keys_and_values(size: int) -> None:
    changes: dict[bytes, bytes | None] = {b"k" * size: b"v" * size, b"j" * size: None}
    assert decode_delta(encode_delta(HEADER, changes), "f")[1] == changes


def test_many_records() -> None:
    changes: dict[bytes, bytes | None] = {b"%d" % n: b"%d" % (n * n) if n % 3 else None for n in range(20_000)}
    assert decode_delta(encode_delta(HEADER, changes), "f")[1] == changes


def test_a_value_of_64_megabytes() -> None:
    changes: dict[bytes, bytes | None] = {b"big": bytes(64 << 20)}
    assert decode_delta(encode_delta(HEADER, changes), "f")[1] == changes


@given(st.integers(0, len(SAMPLE) - 1), st.integers(1, 255))
@examples(3)
def test_any_byte_changed_is_noticed(position: int, change: int) -> None:
    damaged = bytearray(SAMPLE)
    damaged[position] ^= change
    with pytest.raises(CorruptError, match="a/b/8\\.3\\.delta"):
        decode_delta(bytes(damaged), "a/b/8.3.delta")


def test_any_cut_is_noticed() -> None:
    for size in range(len(SAMPLE)):
        with pytest.raises(CorruptError, match="the-name"):
            decode_delta(SAMPLE[:size], "the-name")


def test_anything_appended_is_noticed() -> None:
    for tail in (b"\0", b"x" * 32, SAMPLE):
        with pytest.raises(CorruptError, match="the-name"):
            decode_delta(SAMPLE + tail, "the-name")


def test_a_newer_format_is_not_damage() -> None:
    head = orjson.dumps({"format": 2, "something": "else"})
    body = b"PSTDELTA" + struct.pack(">i", len(head)) + head + b"other bytes"
    with pytest.raises(IncompatibleError, match="`f` has format 2; this Penstock reads formats up to 1"):
        decode_delta(body + hashlib.sha256(body).digest(), "f")


@given(CHANGES, st.data())
def test_records_that_break_off_or_go_on(changes: dict[bytes, bytes | None], data: st.DataObject) -> None:
    records = encode_records(changes)
    cut = data.draw(st.integers(0, len(records) - 1))
    for damaged in (records[:cut], records + b"\0", records + records):
        with pytest.raises(CorruptError, match="file"):
            decode_records(damaged, "file")
