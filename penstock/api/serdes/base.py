"""The interface of serdes, and the serdes of text and bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")


class Serde(ABC, Generic[T]):
    """Turns an object into bytes and back. Subclass it for a format of your own.

    `from_bytes(to_bytes(x))` equals `x`, and equal keys have equal bytes: partitioning and state look at bytes only.
    Both are called by one thread at a time, once per message or state access, so they should be quick.

    ```python
    class Celsius(ps.Serde[float]):
        def to_bytes(self, obj: float) -> bytes:
            return f"{obj}C".encode()

        def from_bytes(self, data: bytes) -> float:
            return float(data[:-1])
    ```
    """

    ordered: ClassVar[bool] = False
    """Whether a < b exactly where a's bytes are before b's. Only keys of such a serde have ranges."""

    @property
    def name(self) -> str:
        """What a checkpoint remembers of the serde. A store that was written with another name is refused."""
        return type(self).__qualname__.lower()

    def for_keys(self) -> Serde[T]:
        """The serde for the keys of messages, where this one is declared: it gives equal objects equal bytes."""
        return self

    def for_store_keys(self) -> Serde[T]:
        """The serde for the keys of a store, where this one is declared. Its `for_keys` is that of the messages."""
        return self.for_keys()

    @abstractmethod
    def to_bytes(self, obj: T) -> bytes:
        """The bytes of the object, of exactly the type `bytes`. May raise anything; the message is then reported as
        failed."""

    @abstractmethod
    def from_bytes(self, data: bytes) -> T:
        """The object of the bytes. May raise anything; the message is then reported as not decodable."""

    def bound_to_bytes(self, bound: Any) -> bytes:
        """The bytes of an end of a range: those of the key, unless keys have parts."""
        return self.to_bytes(bound)

    def prefix_to_bytes(self, prefix: Any) -> bytes:
        """What the bytes of all keys that begin with the prefix begin with. Raises TypeError if keys have no prefixes.

        A serde whose keys have them overrides this.
        """
        raise TypeError(f"keys of the serde `{self.name}` have no prefixes: ps.String(), ps.Bytes() and ps.Tuple() do")


def not_bytes(serde: Serde[Any], data: object, where: str) -> TypeError:
    """The error for what a serde's `to_bytes` returned instead of bytes. `where` names the store or stream, and the
    key."""
    return TypeError(
        f"{where}: `{type(serde).__name__}.to_bytes` returned {type(data).__name__}, but a serde returns bytes; "
        "convert what it makes with bytes(...) or .encode()"
    )


class Bytes(Serde[bytes]):
    """Bytes as they are."""

    ordered = True

    def to_bytes(self, obj: bytes) -> bytes:
        if type(obj) is not bytes:
            raise TypeError(f"the bytes serde takes bytes, not {type(obj).__name__}")
        return obj

    def from_bytes(self, data: bytes) -> bytes:
        return data

    def prefix_to_bytes(self, prefix: bytes) -> bytes:
        return self.to_bytes(prefix)


# The serdes of this package are C functions where one does the whole work: they are called for every message, and a
# Python frame around one would cost more than the function itself. mypy compares their optional parameters.


class String(Serde[str]):
    """UTF-8 text. Keys sort by code point, as Python's strings do."""

    ordered = True
    to_bytes = staticmethod(str.encode)  # type: ignore[assignment]
    from_bytes = staticmethod(bytes.decode)  # type: ignore[assignment]

    def prefix_to_bytes(self, prefix: str) -> bytes:
        return self.to_bytes(prefix)
