"""The value of a window: one running value, or the messages themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import Any

import msgspec

from penstock.api.serdes import Json, Serde
from penstock.api.time.aggregates import Aggregate, adder
from penstock.api.time.windows import Aggregates, Fold, Messages, Window
from penstock.base.exact_json import exact_bytes, exact_value
from penstock.errors import SerdeError
from penstock.graph.serde_failures import SerdePlace, unstorable_states


class WindowContent(ABC):
    """Makes, merges, stores and shows the value of a window."""

    appends = False
    """A stored value is only ever added to: it is kept in pieces, and the earlier pieces are not read."""
    operator = ""
    declaration = ""
    """The declaration of the value's serde, for errors; empty if it is not declared with the window."""
    serde: Serde[Any]

    def unwritable(self, content: Any, key: Any, error: Exception) -> SerdeError:
        """The error for a value, of this key, that `to_bytes` does not write."""
        place = SerdePlace(f"window operator `{self.operator}`", self.declaration)
        return place.unwritable("value", self.serde, content, error, key)

    @abstractmethod
    def initial(self) -> Any:
        """The value of no message."""

    @abstractmethod
    def add(self, content: Any, value: Any, time_ms: int) -> Any:
        """The value with one more message. The old one may change and is not used again."""

    @abstractmethod
    def merge(self, first: Any, second: Any) -> Any:
        """The value of the messages of two windows; neither is used again."""

    @abstractmethod
    def to_bytes(self, content: Any) -> bytes: ...

    @abstractmethod
    def from_bytes(self, data: bytes) -> Any: ...

    def shown(self, content: Any) -> Any:
        return content


class FoldContent(WindowContent):
    """The value of a fold."""

    declaration = "fold=..., {part}={serde}"

    def __init__(self, fold: Fold, serde: Serde[Any]) -> None:
        self._fold = fold
        self._add = fold.add
        self.serde = serde

    def initial(self) -> Any:
        return self._fold.initial()

    def add(self, content: Any, value: Any, time_ms: int) -> Any:
        return self._add(content, value)

    def merge(self, first: Any, second: Any) -> Any:
        if self._fold.merge is None:
            raise TypeError("this fold has no function that merges two values")
        return self._fold.merge(first, second)

    def to_bytes(self, content: Any) -> bytes:
        return self.serde.to_bytes(content)

    def from_bytes(self, data: bytes) -> Any:
        return self.serde.from_bytes(data)


class AggregateContent(WindowContent):
    """The states of several aggregates."""

    serde = Json()

    def __init__(self, aggregates: Aggregates) -> None:
        self._by_name = aggregates.by_name
        self._all = list(aggregates.by_name.values())
        self._adds = [adder(each) for each in self._all]
        self._results = [(name, each.result) for name, each in aggregates.by_name.items()]
        self._stored_as_is = all(type(each).to_json is Aggregate.to_json for each in self._all)
        self._read_as_is = all(type(each).from_json is Aggregate.from_json for each in self._all)

    def initial(self) -> Any:
        return [None] * len(self._all)

    def add(self, content: Any, value: Any, time_ms: int) -> Any:
        return [add(state, value, time_ms) for add, state in zip(self._adds, content, strict=True)]

    def merge(self, first: Any, second: Any) -> Any:
        return [
            b if a is None else a if b is None else each.merge(a, b)
            for each, a, b in zip(self._all, first, second, strict=True)
        ]

    def to_bytes(self, content: Any) -> bytes:
        if not self._stored_as_is:
            content = [each.to_json(state) for each, state in zip(self._all, content, strict=True)]
        return exact_bytes(content)

    def from_bytes(self, data: bytes) -> Any:
        stored = exact_value(data)
        if self._read_as_is:
            return stored
        return [each.from_json(state) for each, state in zip(self._all, stored, strict=True)]

    def unwritable(self, content: Any, key: Any, error: Exception) -> SerdeError:
        return unstorable_states(f"window operator `{self.operator}`", self._by_name, content, key, error)

    def shown(self, content: Any) -> Any:
        return {name: result(state) for (name, result), state in zip(self._results, content, strict=True)}


class MessageContent(WindowContent):
    """All values. Sessions whose fold cannot merge keep them too, and fold when they fire."""

    appends = True

    def __init__(self, serde: Serde[Any], shown: Callable[[list[Any]], Any] = list) -> None:
        self.serde = serde
        self._encode, self._decode = serde.to_bytes, serde.from_bytes
        self._shown = shown

    def initial(self) -> Any:
        return []

    def add(self, content: Any, value: Any, time_ms: int) -> Any:
        content.append(value)
        return content

    def merge(self, first: Any, second: Any) -> Any:
        first.extend(second)
        return first

    def to_bytes(self, content: Any) -> bytes:
        return msgspec.msgpack.encode([None if value is None else self._encode(value) for value in content])

    def unwritable(self, content: Any, key: Any, error: Exception) -> SerdeError:
        for value in content:
            try:
                self.to_bytes([value])
            except Exception as own:
                return super().unwritable(value, key, own)
        return super().unwritable(content, key, error)

    def from_bytes(self, data: bytes) -> Any:
        stored = msgspec.msgpack.decode(data, type=list[bytes | None])
        return [None if value is None else self._decode(value) for value in stored]

    def shown(self, content: Any) -> Any:
        return self._shown(content)


def content_of(window: Window, messages: Serde[Any]) -> WindowContent:
    contents = window.contents
    if isinstance(contents, Aggregates):
        return AggregateContent(contents)
    if isinstance(contents, Messages):
        return MessageContent(messages)
    if window.keeps_messages:
        return MessageContent(messages, lambda values: reduce(contents.add, values, contents.initial()))
    return FoldContent(contents, window.value)
