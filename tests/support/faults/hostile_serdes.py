"""Every serde of Penstock, and bytes from somebody who wants to end the process that reads them.

As a program, it lets each serde read all of them, and prints which ones took too much time or memory. A serde that
crashes ends it.
"""

from __future__ import annotations

import importlib
import inspect
import re
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import msgspec.msgpack
import pyarrow as pa
from google.protobuf import struct_pb2
from pyspark.sql.types import ArrayType, DecimalType, LongType, MapType, StringType, StructType

import penstock as ps
from penstock.admin.state.serdes import ColumnStates, JsonStates
from penstock.api.serdes import JsonKey, PackedColumns
from penstock.api.serdes.base import BytesWithKey
from penstock.api.serdes.values import DoubleKey, OrderedDouble, OrderedInteger, OrderedLong
from penstock.api.time.firing import Panes
from penstock.graph.event_time import LatestFirst, VersionKey, VersionValue
from penstock.graph.stores import OperatorBytes
from penstock.schemas.avro import AvroState
from penstock.spark.row_serde import Rows
from tests.support.faults.damaged_bytes import LENGTHS
from tests.support.tools.places import ROOT
from tests.support.tools.quick_imports import without_grammars

SECONDS = 1.5
MEMORY_BYTES = 160 << 20
"""For one message of 100 KB: values of Python take many times as much as their bytes."""
_PRIME = 2**61 - 1
"""Python's hash of an integer is its rest by this number."""


@dataclass
class Node:
    """A value with all that a message may be large in."""

    d: Decimal | None = None
    m: dict[int, int] | None = None
    s: set[int] | None = None
    r: Node | None = None


class NodeStruct(msgspec.Struct):
    """The same, with decimals within others."""

    d: list[Decimal] | None = None
    m: dict[Decimal, int] | None = None
    r: NodeStruct | None = None


AVRO = {
    "type": "record",
    "name": "Node",
    "fields": [
        {"name": "next", "type": ["null", "Node"]},
        {"name": "none", "type": {"type": "array", "items": "null"}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 100}},
        {"name": "m", "type": {"type": "map", "values": "double"}},
    ],
}
JSON_SCHEMA = {
    "properties": {
        "r": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        "d": {"pattern": "^(a+)+$"},
        "s": {"uniqueItems": True, "unevaluatedItems": False},
        "t": {"pattern": "[a-z]+b"},
    },
    "patternProperties": {"^(a|aa)+$": {"type": "integer"}},
    "additionalProperties": {"type": ["object", "array", "number", "string"]},
}
COLUMNS = pa.schema(
    {
        "d": pa.decimal128(20, 2),
        "l": pa.list_(pa.decimal128(20, 2)),
        "f": pa.list_(pa.list_(pa.int8(), 100_000)),
        "b": pa.list_(pa.binary(100_000)),
        "m": pa.map_(pa.uint64(), pa.int64()),
        "s": pa.list_(pa.struct({f"c{n}": pa.int64() for n in range(100)})),
        "t": pa.timestamp("us", "UTC"),
    }
)
PACKED = [pa.list_(pa.decimal128(20, 2)), pa.list_(pa.list_(pa.int8(), 100_000)), pa.map_(pa.int64(), pa.binary(9999))]
ROWS = (
    StructType()
    .add("a", ArrayType(LongType()))
    .add("d", DecimalType(20, 2))
    .add("m", MapType(LongType(), StringType()))
)
REGISTERED = ps.SchemaRegistry()


def serdes() -> Mapping[str, list[ps.Serde[Any]]]:
    """Serdes of each class, by its name."""
    avro, json_schema = ps.Avro(AVRO), ps.JsonSchema(JSON_SCHEMA)
    found: list[ps.Serde[Any]] = [
        ps.Bytes(), ps.String(), ps.Json(), JsonKey(), Panes(),
        ps.Integer(), ps.Long(), ps.Double(), ps.SamzaInteger(), ps.SamzaLong(), ps.SamzaDouble(),
        OrderedInteger(), OrderedLong(), OrderedDouble(), DoubleKey(), LatestFirst(),
        ps.Tuple(ps.String(), ps.Long(), ps.Bytes()), VersionKey(ps.String()), VersionValue(ps.Json()),
        BytesWithKey(ps.String(), bytes), OperatorBytes("counts"), ps.IntermediateMessageSerde(ps.Json()),
        ps.Columns(COLUMNS), *(PackedColumns(pa.schema({"l": kind})) for kind in PACKED),
        avro, ps.Avro(AVRO, registry=REGISTERED), avro.for_store_values(),
        json_schema, ps.JsonSchema(JSON_SCHEMA, registry=REGISTERED),
        ps.Protobuf(struct_pb2.Value), ps.Protobuf(struct_pb2.Struct, registry=REGISTERED),
        ps.Struct(Node), ps.Struct(NodeStruct), ps.Struct(dict[int, Any]), ps.Struct(set[int]),
        JsonStates(["n"]), ColumnStates([("n", "n")], [pa.int64()]), Rows(ROWS),
    ]  # fmt: skip
    named: dict[str, list[ps.Serde[Any]]] = {}
    for each in found:
        named.setdefault(type(each).__qualname__, []).append(each)
    assert isinstance(avro.for_store_values(), AvroState)
    return named


def classes() -> Iterator[type]:
    """All classes of serdes that Penstock has, abstract ones excluded."""
    declared = [
        (file, match[1], re.findall(r"\w+", match[2]))
        for file in (ROOT / "penstock").rglob("*.py")
        for match in re.finditer(r"^class (\w+)\(([^)]*)\)", file.read_text("utf-8"), re.MULTILINE)
    ]
    names, before = {"Serde"}, 0
    while len(names) > before:
        before = len(names)
        names |= {name for _, name, bases in declared if names & {*bases}}
    for file in sorted({file for file, name, _ in declared if name in names}):
        module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        for each in vars(module).values():
            is_one = isinstance(each, type) and issubclass(each, ps.Serde) and not inspect.isabstract(each)
            if is_one and each.__module__ == module.__name__:
                yield each


def hostile(size: int) -> dict[str, bytes]:
    """Messages of about this size, and small ones, by what is hostile in them."""
    half = size // 2
    colliding = [b"%d" % (number * _PRIME) for number in range(1, size // 25)]
    pairs = b"{%b}" % b",".join(b'"%b":1' % each for each in colliding)
    repeated = {
        bytes([each]).hex(): bytes([each]) * size for each in (0, 1, 2, 0x0A, 0x0B, 0x12, 0x32, 0x80, 0x91, 0xFF)
    }
    deep = {
        "deep lists": b"[" * half + b"]" * half,
        "deep objects": b'{"r":' * (size // 5),
        "a hundred levels": b'{"r":' * 100 + b'{"d":"!"}' + b"}" * 100,
        "deep where nobody looks": b'{"zz":' + b"[" * half + b"]" * half + b"}",
    }
    wide = {
        "many lists": b"[%b[]]" % (b"[]," * (size // 3)),
        "many objects": b'{"s":[%b{}]}' % (b"{}," * (size // 3)),
        **{f"many nulls in {name}": b'{"%b":[%bnull]}' % (name.encode(), b"null," * (size // 5)) for name in "flsb"},
        "many fields": b"{%b}" % b",".join(b'"a%d":1' % number for number in range(size // 10)),
        "keys of one hash": pairs,
        "keys of one hash in m": b'{"m":%b}' % pairs,
        "values of one hash": b"[%b]" % b",".join(colliding),
        "values of one hash in s": b'{"s":[%b]}' % b",".join(colliding),
        "dict of one hash": b'!{"$dict":[%b]}' % b",".join(b"[%b,1]" % each for each in colliding),
    }
    numbers = [
        b"1" * size,
        b"1." + b"1" * size,
        b"1e400",
        b"-1e400",
        b"1e-300000000",
        b"1e300000000",
        b"0." + b"0" * size,
    ]
    digits = {
        f"{name} {number[:12].decode()}": form % number
        for number in numbers
        for name, form in {
            "number": b"%b", "text": b'"%b"', "d": b'{"d":%b}', "text d": b'{"d":"%b"}', "many d": b'{"d":["%b"]}',
            "l": b'{"l":["%b"]}', "t": b'{"t":"%b"}', "marked": b'!{"$Decimal":"%b"}',
            "time": b'!{"$Timestamp":["%b",null]}',
        }.items()
    }  # fmt: skip
    lying = {f"length {each.hex()} at {at}": b"\x00" * at + each + b"\x01" for each in LENGTHS for at in (0, 1, 5)}
    lying |= {
        f"varint {field.hex()}": field + b"\xff\xff\xff\xff\x07" + b"\x00" * 100
        for field in (b"", b"\x0a", b"\x32", b"\x00")
    }
    texts = {
        "text for a pattern": b'{"d":"%b!"}' % (b"a" * 40),
        "long text for a pattern": b'{"t":"%b"}' % (b"a" * size),
        "name for a pattern": b'{"%b!":1}' % (b"a" * 40),
        "no text": b'"\\ud800"',
    }
    packs = {
        f"packed {name}": _packed(data)
        for name, data in {
            "exponent": msgspec.msgpack.encode(["1e-300000000"]),
            "other exponent": msgspec.msgpack.encode(["1e300000000"]),
            "digits": msgspec.msgpack.encode(["1" * size]),
            "nulls": msgspec.msgpack.encode([None] * size),
            "pairs": msgspec.msgpack.encode([[number, None] for number in range(size // 4)]),
            "levels": b"\x91" * size,
            "length": b"\xdd\xff\xff\xff\xff",
            "map": b"\xdf\x7f\xff\xff\xff",
        }.items()
    }
    return {**repeated, **deep, **wide, **digits, **lying, **texts, **packs}


def _packed(data: bytes) -> bytes:
    return b"\x01\x00\x00" + len(data).to_bytes(4, "little") + data


_HEADS = {"IntermediateMessageSerde": b"\x00", "VersionValue": b"\x01", "AvroState": b"\x00"}


def head_of(serde: ps.Serde[Any]) -> bytes:
    """The bytes before a message, without which it is not looked at: the number of its schema, or its kind."""
    if getattr(serde, "registry", None) is None:
        return _HEADS.get(type(serde).__qualname__, b"")
    return b"\x00" * (6 if isinstance(serde, ps.Protobuf) else 5)


def seconds_of(serde: ps.Serde[Any], data: bytes) -> float:
    """The time that it takes to read the bytes, or to refuse them."""
    began = time.process_time()
    try:
        serde.from_bytes(data)
    except MemoryError:
        return float("inf")
    except Exception as error:
        str(error)
    return time.process_time() - began


def forget_peak() -> int:
    """The memory of this process in bytes, which is the highest so far from now on."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main(size: int) -> None:
    """Let each serde read messages of this size, in bytes, and print what is wrong."""
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    named, found = serdes(), hostile(size)
    for missing in sorted({each.__qualname__ for each in classes()} - named.keys()):
        print(f"{missing} is not here")
    for serde in (each for those in named.values() for each in those):
        before = forget_peak()
        for kind, data in found.items():
            seconds = seconds_of(serde, head_of(serde) + data)
            if seconds > SECONDS or peak() - before > MEMORY_BYTES:
                print(f"{serde!r}, {kind}: {seconds:.1f} s, {peak() - before >> 20} MiB")
                before = forget_peak()
    print(f"{sum(map(len, named.values()))} serdes have read {len(found)} messages")


if __name__ == "__main__":
    without_grammars()
    main(int(sys.argv[1]))
