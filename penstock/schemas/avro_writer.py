"""Writes Avro. Numbers are checked here: fastavro writes an `int` of more than 32 bits, and names no field."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from penstock.schemas.serde import Write

Check: TypeAlias = Callable[[Any], str]
"""Where a number is out of range, and why; empty if all fit. What has another type is not looked at."""

_INT = {"int": 31}
_ALL = {**_INT, "long": 63}
"""The bits of numbers, without the sign."""


def writer_of(schema: Any, head: bytes = b"") -> Write:
    """Writes objects of a schema.

    Args:
        schema: as `fastavro.parse_schema` returns it.
        head: what all bytes begin with.
    """
    from fastavro import schemaless_writer

    check, check_all = _Checks(_INT).of(schema), _Checks(_ALL).of(schema)

    def write(obj: Any) -> bytes:
        if check is not None and (why := check(obj)):
            raise _error(why)
        stream = io.BytesIO()
        try:
            schemaless_writer(stream, schema, obj, strict_allow_default=True)
        except OverflowError as error:  # of a long; it does not say which
            if check_all is not None and (why := check_all(obj)):
                raise _error(why) from error
            raise
        return head + stream.getvalue()

    return write


def _error(why: str) -> ValueError:
    place, _, reason = why.partition(": ")
    return ValueError(f"`{place.lstrip('.')}`: {reason}" if place else reason)


class _Checks:
    """Makes the check of a schema."""

    def __init__(self, bits: Mapping[str, int]) -> None:
        """
        Args:
            bits: of the numbers that are checked, without the sign, by type.
        """
        self._bits = bits
        self._named: dict[str, Check] = {}

    def of(self, schema: Any) -> Check | None:
        """None: the schema has no such numbers."""
        if isinstance(schema, list):
            # fastavro validates values of unions itself. An optional value is checked for the sake of the message.
            others = [each for each in schema if each != "null"]
            return self.of(others[0]) if len(others) == 1 else None
        if isinstance(schema, str):
            return self._named.get(schema) or self._number(schema, has_objects=False)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema)
        if kind in ("array", "map"):
            return self._many(schema["items" if kind == "array" else "values"])
        return self._number(kind, has_objects="logicalType" in schema) if isinstance(kind, str) else self.of(kind)

    def _number(self, kind: str, *, has_objects: bool) -> Check | None:
        """`has_objects`: it takes dates and the like, which fastavro converts."""
        bits = self._bits.get(kind)
        if bits is None:
            return None
        least, most = -(1 << bits), (1 << bits) - 1

        def check(value: Any) -> str:
            if has_objects and type(value) is not int:
                return ""
            try:
                fits = least <= value <= most
            except TypeError:
                return ""
            return "" if fits else f": {value} is out of the range of Avro's {kind}, -2^{bits} to 2^{bits} - 1"

        return check

    def _record(self, schema: Any) -> Check | None:
        checks: list[tuple[str, Check]] = []

        def check(value: Any) -> str:
            if isinstance(value, dict):
                for name, each in checks:
                    if (part := value.get(name)) is not None and (why := each(part)):
                        return f".{name}{why}"
            return ""

        self._named[schema["name"]] = check
        of_fields = ((field["name"], self.of(field["type"])) for field in schema["fields"])
        checks.extend((name, each) for name, each in of_fields if each is not None)
        return check if checks else None

    def _many(self, kind: Any) -> Check | None:
        check = self.of(kind)
        if check is None:
            return None
        are_numbers = isinstance(kind, str) and kind in self._bits

        def check_all(given: Any) -> str:
            if not given or not isinstance(given, list | tuple | dict):
                return ""
            values = given.values() if isinstance(given, dict) else given
            if are_numbers:
                try:
                    values = min(values), max(values)
                except TypeError:
                    return ""
            return next((f"[]{why}" for each in values if (why := check(each))), "")

        return check_all
