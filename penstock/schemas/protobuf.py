"""Protobuf: messages of generated classes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from penstock.api.serdes import Serde
from penstock.base.budgets import MESSAGE_LEVELS
from penstock.errors import ConfigError
from penstock.schemas.registry import UNKNOWN_VERSION, Reference, Schema, SchemaRegistry
from penstock.schemas.serde import Read, SchemaSerde, Write

_BUILT_IN = "google/protobuf/"
"""Files that every registry knows."""
_MORE = 0x80


class Protobuf(SchemaSerde):
    """Messages of a class that `protoc` has generated. Fields are read and written by their numbers, so a class with
    more or with fewer fields reads what another one wrote.

    Without a registry, bytes are those of the message alone. With one, they are in Confluent's wire format, which also
    says which message of its file it is; the file is registered with those that it imports.

    Example:
        >>> from google.protobuf.wrappers_pb2 import Int64Value
        >>> serde = ps.Protobuf(Int64Value)
        >>> serde.to_bytes(Int64Value(value=1400))
        b'\\x08\\xf8\\n'
        >>> serde.from_bytes(b"\\x08\\xf8\\n").value
        1400
    """

    kind = "PROTOBUF"

    def __init__(self, message: type[Any], *, registry: SchemaRegistry | None = None) -> None:
        """Make a serde of Protobuf.

        Args:
            message: the generated class.
            registry: keeps the schemas of messages.

        Raises:
            ConfigError: it is no such class.
        """
        super().__init__(registry)
        if not (isinstance(message, type) and hasattr(message, "DESCRIPTOR") and hasattr(message, "FromString")):
            raise ConfigError(f"ps.Protobuf({message!r}) takes a message class that protoc has generated")
        self._message = message

    def __repr__(self) -> str:
        return f"ps.Protobuf({self.record}{', registry=ps.SchemaRegistry()' if self.registry else ''})"

    @property
    def name(self) -> str:
        """See `Serde.name`."""
        return f"protobuf-{self.record}"

    @property
    def record(self) -> str:
        """The full name of the message."""
        return str(self._message.DESCRIPTOR.full_name)

    def for_store_values(self) -> Serde[Any]:
        """See `Serde.for_store_values`."""
        return Protobuf(self._message)

    @cached_property
    def schema(self) -> Schema | None:
        """See `SchemaSerde.schema`."""
        return _schema_of(self._message.DESCRIPTOR.file)

    def _reader(self, written: Schema | None) -> Read:
        read: Read = self._message.FromString
        if self.registry is None:
            return read
        own = _indexes(self._message.DESCRIPTOR)

        def read_framed(data: bytes) -> Any:
            found, begin = _read_indexes(data)
            if found != own:
                raise ValueError(f"it is message {found} of its file, and {self.record} is message {own}")
            return read(data[begin:])

        return read_framed

    def _writer(self) -> Write:
        message, head = self._message, b""
        if self.registry is not None:
            own = _indexes(message.DESCRIPTOR)
            head = b"\x00" if own == [0] else b"".join(map(_varint, [len(own), *own]))

        def write(obj: Any) -> bytes:
            if not isinstance(obj, message):
                raise TypeError(f"ps.Protobuf() takes a {message.__name__}, not a {type(obj).__name__}")
            data: bytes = obj.SerializeToString(deterministic=True)
            return head + data

        return write


def _schema_of(file: Any) -> Schema:
    """The file of a message with its imports, in the form in which registries take descriptors."""
    references = tuple(
        Reference(each.name, each.name, UNKNOWN_VERSION, _schema_of(each))
        for each in file.dependencies
        if not each.name.startswith(_BUILT_IN)
    )
    return Schema("PROTOBUF", base64.standard_b64encode(file.serialized_pb).decode(), references)


def _indexes(descriptor: Any) -> list[int]:
    """The place of a message in its file: its number, after those of the messages around it."""

    def up(each: Any) -> Iterator[int]:
        around = each.containing_type
        siblings = each.file.message_types_by_name.values() if around is None else around.nested_types
        if around is not None:
            yield from up(around)
        yield next(number for number, other in enumerate(siblings) if other.full_name == each.full_name)

    return list(up(descriptor))


def _read_indexes(data: bytes) -> tuple[list[int], int]:
    """The indexes, and where the message begins."""
    count, begin = _read_varint(data, 0)
    if count == 0:
        return [0], begin
    if not 0 < count <= MESSAGE_LEVELS:
        raise ValueError(f"it is a message within {count:,} others")
    found = []
    for _ in range(count):
        number, begin = _read_varint(data, begin)
        found.append(number)
    return found, begin


def _varint(number: int) -> bytes:
    """A number in Protobuf's zigzag form."""
    rest, made = number << 1 ^ number >> 63, bytearray()
    while rest >= _MORE:
        made.append(rest & 0x7F | _MORE)
        rest >>= 7
    return bytes([*made, rest])


def _read_varint(data: bytes, begin: int) -> tuple[int, int]:
    rest, shift = 0, 0
    while True:
        if begin >= len(data) or shift > 63:
            raise ValueError("its head breaks off")
        byte = data[begin]
        rest |= (byte & 0x7F) << shift
        begin, shift = begin + 1, shift + 7
        if byte < _MORE:
            return rest >> 1 ^ -(rest & 1), begin
