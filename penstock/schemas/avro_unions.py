"""The branch of a union that a value is written with: the one of its type, and the nearest one if there is none.

A writer puts values into an `Output`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeAlias

from penstock.schemas.avro_types import NAMED, RECORDS, AvroTypes
from penstock.schemas.avro_values import MisfitError, logical_of, shown


class Output(bytearray):
    """The bytes of a message, and its budget."""

    __slots__ = ("empty", "levels", "tries")

    def __init__(self, head: bytes) -> None:
        super().__init__(head)
        self.levels = 0
        """Records that are being written, each in another one of its kind."""
        self.empty = 0
        """Values without bytes so far."""
        self.tries = 0
        """Branches of unions that did not take a value at the second look."""


Put: TypeAlias = Callable[[Any, Output], None]
"""Appends a value. Raises MisfitError."""


_MOST_TRIES = 1000
"""In a message. Records in one another, in unions of records with the same fields, could need any number of them."""


def is_whole(value: Any) -> bool:
    """True for an integer. A boolean is none here, although it is one in Python."""
    return isinstance(value, Integral) and value is not True and value is not False


def is_number(value: Any) -> bool:
    """True for an integer, and for any other real number."""
    return isinstance(value, Real) and value is not True and value is not False


class UnionWriter:
    """Writes the values of a union. A pair of a branch's name and a value names the branch."""

    @staticmethod
    def of(types: AvroTypes, branches: Sequence[Any], puts: Sequence[Put]) -> Put:
        """The writer of a union."""
        union = UnionWriter(types, branches, puts)
        kinds = [types.kind(each) for each in branches]
        if len(branches) == 2 and kinds.count("null") == 1:
            return union.optional(kinds.index("null"))
        return union.put

    def __init__(self, types: AvroTypes, branches: Sequence[Any], puts: Sequence[Put]) -> None:
        self._described = types.described(list(branches))
        self._puts = puts
        definitions = [types.resolved(each) for each in branches]
        self._ranks = [_rank_of(types, each) for each in definitions]
        self._names = {_name(each): number for number, each in enumerate(definitions)}

    def optional(self, null: int) -> Put:
        """The writer of a union of null and another type."""
        other = 1 - null
        put, put_any, names = self._puts[other], self.put, self._names

        def put_optional(value: Any, out: Output) -> None:
            if value is None:
                out.append(2 * null)
            elif type(value) is tuple and _named(value, names):
                put_any(value, out)
            else:
                out.append(2 * other)
                put(value, out)

        return put_optional

    def put(self, value: Any, out: Output) -> None:
        """Write a value. Raises MisfitError if no branch takes it."""
        if _named(value, self._names):
            self._put_branch(self._names[value[0]], value[1], out)
            return
        ranks = [(rank, number) for number, of in enumerate(self._ranks) if (rank := of(value)) is not None]
        ranks.sort()
        if len(ranks) == 1:
            self._put_branch(ranks[0][1], value, out)
            return
        reasons = []
        for _, number in ranks:
            before = len(out), out.empty, out.levels
            try:
                self._put_branch(number, value, out)
            except MisfitError as error:
                out.tries += 1
                if out.tries > _MOST_TRIES:
                    raise
                reasons.append(str(error.error()))
                del out[before[0] :]
                out.empty, out.levels = before[1:]
            else:
                return
        raise MisfitError(
            f"{shown(value)} fits no branch of {self._described}{': ' * bool(reasons)}{'; '.join(reasons)}"
        )

    def _put_branch(self, number: int, value: Any, out: Output) -> None:
        out.append(2 * number) if number < 64 else out.extend((2 * number & 127 | 128, number >> 6))
        self._puts[number](value, out)


def _named(value: Any, names: Mapping[str, int]) -> bool:
    return type(value) is tuple and len(value) == 2 and isinstance(value[0], str) and value[0] in names


def _name(definition: Any) -> str:
    return str(definition["name"] if definition["type"] in NAMED else definition["type"])


def _rank_of(types: AvroTypes, definition: Any) -> Callable[[Any], int | None]:
    """A function that says how near a value is to a type by a look at it: 0 is the type itself, None is another one."""
    kind = types.kind(definition)
    if kind in RECORDS:
        return _rank_of_record(definition)
    if kind == "enum":
        symbols = frozenset(definition["symbols"])
        return lambda value: 0 if isinstance(value, str) and value in symbols else None
    plain = _rank_of_fixed(definition["size"]) if kind == "fixed" else _RANKS[kind]
    logical = logical_of(definition)
    if logical is None:
        return plain
    takes, is_decimal = logical.takes, definition.get("logicalType") == "decimal"

    def rank(value: Any) -> int | None:
        if takes(value):
            return 0
        if is_decimal and type(value) is int:
            return 1
        return None if plain(value) is None else 9

    return rank


def _rank_of_record(definition: Any) -> Callable[[Any], int | None]:
    required = {field["name"] for field in definition["fields"] if "default" not in field}
    names = {field["name"] for field in definition["fields"]}

    def rank(value: Any) -> int | None:
        if not isinstance(value, Mapping) or not required <= value.keys() <= names:
            return None
        return len(names) - len(value)

    return rank


def _is_bytes(value: Any) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)


def _rank_of_fixed(size: int) -> Callable[[Any], int | None]:
    return lambda value: 0 if _is_bytes(value) and len(value) == size else None


def _rank_of_integer(value: Any) -> int | None:
    return 0 if is_whole(value) else None


def _rank_of_double(value: Any) -> int | None:
    if not is_number(value):
        return None
    return 3 if is_whole(value) else 0


def _rank_of_float(value: Any) -> int | None:
    rank = _rank_of_double(value)
    return None if rank is None else rank + 1


def _rank_of_array(value: Any) -> int | None:
    is_array = isinstance(value, Sequence) and not isinstance(value, str) and not _is_bytes(value)
    return 0 if is_array or hasattr(value, "tolist") else None


_RANKS: Mapping[str, Callable[[Any], int | None]] = {
    "null": lambda value: 0 if value is None else None,
    "boolean": lambda value: 0 if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") else None,
    "int": _rank_of_integer,
    "long": _rank_of_integer,
    "float": _rank_of_float,
    "double": _rank_of_double,
    "string": lambda value: 0 if isinstance(value, str) else None,
    "bytes": lambda value: 0 if _is_bytes(value) else None,
    "array": _rank_of_array,
    "map": lambda value: 1 if isinstance(value, Mapping) else None,
}
