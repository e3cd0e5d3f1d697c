"""Arrow arrays in the place of lists of objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import pyarrow as pa


class NoObjectError(ValueError):
    """No object of Python can hold a value, as a time of the year 10000.

    Args:
        row: the row of the page that it was made from, if it is the value of a message.
        text: the reason.
    """

    def __init__(self, row: int | None, text: str) -> None:
        self.row = row
        super().__init__(text)


class ArrowSequence(Sequence[Any]):
    """The values of an Arrow array, as Python objects. They are made when the first one is asked for, which raises
    NoObjectError if one cannot be made."""

    __slots__ = ("_objects", "array", "rows")

    def __init__(self, array: pa.Array) -> None:
        self.array = array
        self._objects: list[Any] | None = None
        self.rows: Sequence[int] | None = None
        """The row of the page that each was made from, if they are the values of messages."""

    @property
    def objects(self) -> list[Any]:
        if self._objects is None:
            try:
                self._objects = self.array.to_pylist()
            except Exception as error:
                raise _not_made(self.array, self.rows) from error
        return self._objects

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> ArrowSequence: ...
    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            return self.objects[index]
        begin, end, _ = index.indices(len(self.array))
        if begin == 0 and end == len(self.array):
            return self
        return ArrowSequence(self.array.slice(begin, max(0, end - begin)))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.objects)


def _not_made(array: pa.Array, rows: Sequence[int] | None) -> NoObjectError:
    for number in range(len(array)):
        one = array.slice(number, 1)
        row = None if rows is None else int(rows[number])
        if (reason := _reason(one)) is not None:
            for field in one.type if pa.types.is_struct(one.type) else ():
                if _reason(one.field(field.name)) is not None:
                    shown = f"the value of column `{field.name}`, of the type {field.type}, cannot be an object"
                    return NoObjectError(row, f"{shown} of Python: {reason}")
            return NoObjectError(row, f"the value, of the type {one.type}, cannot be an object of Python: {reason}")
    raise RuntimeError("each value by itself can be an object of Python")


def _reason(one: pa.Array) -> Exception | None:
    try:
        one.to_pylist()
    except Exception as error:
        return error
    return None
