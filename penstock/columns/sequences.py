"""Arrow arrays in the place of lists of objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import pyarrow as pa


class ArrowSequence(Sequence[Any]):
    """The values of an Arrow array, as Python objects. They are made when the first one is asked for."""

    __slots__ = ("_objects", "array")

    def __init__(self, array: pa.Array) -> None:
        self.array = array
        self._objects: list[Any] | None = None

    @property
    def objects(self) -> list[Any]:
        if self._objects is None:
            self._objects = self.array.to_pylist()
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
