"""Avro in stores: each value says with which of the store's schemas it was written."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, unquote

from penstock.api.serdes import Serde
from penstock.errors import IncompatibleError
from penstock.schemas.avro_resolution import why_unreadable
from penstock.schemas.avro_resolved import reader_of
from penstock.schemas.avro_types import AvroTypes
from penstock.schemas.avro_writer import writer_of
from penstock.schemas.serde import Read, Write

_MOST = 255
"""Schemas that a store can have: one byte counts them."""
_SAFE = "[]{}\":,.'*+-_/"
"""The characters of a schema, besides letters and digits, that a name has unchanged."""


class AvroState(Serde[Any]):
    """Values of a store. Its name has all schemas that values were written with: it is in every checkpoint, so that the
    state can be read with nothing else. A value begins with the number of its schema, in one byte."""

    def __init__(self, schemas: tuple[str, ...], number: int | None = None) -> None:
        """
        Args:
            schemas: as JSON without docs, in the order in which the store got them.
            number: of the one that is written and read with; by default the last one.
        """
        self.schemas = schemas
        self.number = len(schemas) - 1 if number is None else number
        self._reads: dict[int, Read] = {}
        self._write: Write | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reads": {}, "_write": None}

    @classmethod
    def of(cls, schema: Any) -> AvroState:
        return cls((json.dumps(_without_docs(schema), separators=(",", ":")),))

    @classmethod
    def named(cls, name: str) -> AvroState | None:
        """The serde with this name; None if it is the name of another one."""
        if not (name.startswith("avro(") and name.endswith(")")):
            return None
        try:
            found = json.loads(f"[{unquote(name.removeprefix('avro(')[:-1])}]")
            return cls(tuple(json.dumps(each, separators=(",", ":")) for each in found))
        except ValueError:
            return None

    @property
    def name(self) -> str:
        """See `Serde.name`."""
        return f"avro({','.join(quote(each, safe=_SAFE) for each in self.schemas)})"

    def continuing(self, before: str) -> Serde[Any]:
        """See `Serde.continuing`.

        Raises:
            IncompatibleError: values of the store cannot be read with this schema.
        """
        known = AvroState.named(before)
        if known is None:
            return self
        own = self.schemas[self.number]
        for written in known.schemas:
            if why := why_unreadable(json.loads(written), json.loads(own)):
                raise IncompatibleError(
                    f"values that were written with an earlier schema cannot be read with this one: {why}"
                )
        if own in known.schemas:
            return AvroState(known.schemas, known.schemas.index(own))
        if len(known.schemas) == _MOST:
            raise IncompatibleError(f"it has had {_MOST} schemas, and can have no more. Copy it to another store")
        return AvroState((*known.schemas, own))

    def to_bytes(self, obj: Any) -> bytes:
        """See `Serde.to_bytes`."""
        write = self._write
        if write is None:
            write = self._write = self._writer()
        return write(obj)

    def _writer(self) -> Write:
        return writer_of(self._types(self.number), head=bytes([self.number]))

    def _types(self, number: int) -> AvroTypes:
        return AvroTypes(json.loads(self.schemas[number]))

    def from_bytes(self, data: bytes) -> Any:
        """See `Serde.from_bytes`."""
        number = data[0]
        return (self._reads.get(number) or self._read(number))(data)

    def _read(self, number: int) -> Read:
        if number >= len(self.schemas):
            raise ValueError(f"it has schema {number}, and the store has had {len(self.schemas)}")
        read = reader_of(self._types(number), self._types(self.number), start=1)
        self._reads[number] = read
        return read


def _without_docs(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_docs(each) for each in schema]
    if isinstance(schema, dict):
        return {key: each if key == "default" else _without_docs(each) for key, each in schema.items() if key != "doc"}
    return schema
