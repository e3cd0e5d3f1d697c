"""The interface of serdes, the serdes of text and bytes, and the check that an application gives a serde: an instance,
and not a class, a name, or a type of Python."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, TypeVar

from penstock.api.messages import Headers
from penstock.base.application_code import check_all, methods
from penstock.errors import ConfigError

T = TypeVar("T")


class Serde(ABC, Generic[T]):
    """Turns objects into bytes and back, as Samza's Serde. Subclass it for a format of your own.

    `from_bytes(to_bytes(x))` equals `x`, and equal keys have equal bytes: partitioning and state compare bytes only.
    Both methods are called by one thread at a time, once for each message or state access, so they must be fast. The
    job pickles its serdes.

    Example:
        >>> class Celsius(ps.Serde[float]):
        ...     def to_bytes(self, obj):
        ...         return f"{obj}C".encode()
        ...
        ...     def from_bytes(self, data):
        ...         return float(data[:-1])
        >>> Celsius().to_bytes(21.5), Celsius().from_bytes(b"21.5C"), Celsius().name
        (b'21.5C', 21.5, 'celsius')
    """

    ordered: ClassVar[bool] = False
    """True if keys and their bytes sort in the same order. Ranges need keys of such a serde."""
    reads_headers: ClassVar[bool] = False
    """True if messages are read with their headers, by `from_message`."""

    @property
    def name(self) -> str:
        """The name that a checkpoint records. A job refuses a store that was written with a serde of another name."""
        return type(self).__qualname__.lower()

    def for_keys(self) -> Serde[T]:
        """The serde to use where this one is declared for the keys of messages. Equal keys have equal bytes."""
        return self

    def for_store_keys(self) -> Serde[T]:
        """The serde to use where this one is declared for the keys of a store."""
        return self.for_keys()

    def for_store_values(self) -> Serde[T]:
        """The serde to use where this one is declared for the values of a store."""
        return self

    def for_stream(self, topic: str, part: Literal["key", "value"]) -> Serde[T]:
        """The serde to use where this one is declared for the messages of a stream.

        Args:
            topic: the name of the stream in its system.
            part: the part of the messages that it is for.
        """
        return self

    def mapped(self, change: Callable[[Serde[Any]], Serde[Any]]) -> Serde[Any]:
        """The serde that `change` makes of this one. A serde that consists of others changes those, too.

        Args:
            change: the change.
        """
        return change(self)

    def continuing(self, before: str) -> Serde[T]:
        """The serde to use for a store that a checkpoint has, whose values were written with a serde of this name.

        Args:
            before: the name. A start is refused if the result has another one.

        Raises:
            IncompatibleError: this serde does not read these values, with the reason.
        """
        return self

    @abstractmethod
    def to_bytes(self, obj: T) -> bytes:
        """The bytes of the object.

        Args:
            obj: the object, never None.

        Returns:
            Exactly the type `bytes`.

        Raises:
            Exception: the object has no bytes. It is reported as a SerdeError.
        """

    @abstractmethod
    def from_bytes(self, data: bytes) -> T:
        """The object that the bytes were made of.

        Args:
            data: the bytes from `to_bytes`, or from another program that wrote to the stream.

        Raises:
            Exception: the bytes cannot be read. It is reported as a SerdeError.
        """

    def from_message(self, data: bytes, headers: Headers) -> T:
        """The object of a message that came with these headers. Called instead of `from_bytes` for the messages of
        streams, if the serde `reads_headers`.

        Args:
            data: as for `from_bytes`.
            headers: pairs of name and value.

        Raises:
            Exception: the bytes cannot be read. It is reported as a SerdeError.

        Example:
            >>> class Typed(ps.Serde[object]):
            ...     reads_headers = True
            ...
            ...     def to_bytes(self, obj):
            ...         return str(obj).encode()
            ...
            ...     def from_bytes(self, data):
            ...         return data.decode()
            ...
            ...     def from_message(self, data, headers):
            ...         return int(data) if ("type", b"int") in headers else self.from_bytes(data)
            >>> app = ps.StreamApplication("typed")
            >>> doubled = app.input("local.in", value=Typed()).map(lambda value: value * 2)
            >>> _ = doubled.send_to(app.output("local.out"))
            >>> runner = TestRunner(app, partitions=1).input("local.in", [7], headers={"type": "int"})
            >>> [message.value for message in runner.input("local.in", [7]).run().output("local.out")]
            [14, '77']
        """
        return self.from_bytes(data)

    def bound_to_bytes(self, bound: Any) -> bytes:
        """The bytes of a bound of a range: those of the key, unless a bound may be a part of a key.

        Args:
            bound: `from_key` or `to_key` of `KeyValueStore.range`.
        """
        return self.to_bytes(bound)

    def prefix_to_bytes(self, prefix: Any) -> bytes:
        """The bytes that all keys with the prefix begin with. A serde whose keys have prefixes overrides this.

        Args:
            prefix: that of `KeyValueStore.items`.

        Raises:
            TypeError: keys of this serde have no prefixes.
        """
        raise TypeError(f"keys of the serde `{self.name}` have no prefixes: ps.String(), ps.Bytes() and ps.Tuple() do")


def not_bytes(serde: Serde[Any], data: object, where: str) -> TypeError:
    """The error for a `to_bytes` that returned something else than bytes. `where` names the store or stream, and the
    key."""
    return TypeError(
        f"{where}: `{type(serde).__name__}.to_bytes` returned {type(data).__name__}, but a serde returns bytes; "
        "convert what it makes with bytes(...) or .encode()"
    )


class Bytes(Serde[bytes]):
    """Bytes, unchanged. Keys sort as bytes.

    Example:
        >>> ps.Bytes().to_bytes(b"N14228")
        b'N14228'
    """

    ordered = True

    def to_bytes(self, obj: bytes) -> bytes:
        if type(obj) is not bytes:
            raise TypeError(f"the bytes serde takes bytes, not {type(obj).__name__}")
        return obj

    def from_bytes(self, data: bytes) -> bytes:
        return data

    def prefix_to_bytes(self, prefix: bytes) -> bytes:
        return self.to_bytes(prefix)


# Where a C function does the whole work of a serde, the serde is that function: it is called for every message, and a
# Python frame around one would cost more than the function itself. mypy compares their optional parameters.


class BytesWithKey(Bytes):
    """Keys of a store that an operator makes of the bytes of a message's key and of something else."""

    def __init__(self, key: Serde[Any], find: Callable[[bytes], bytes]) -> None:
        """
        Args:
            key: the serde of the message's key.
            find: gives the bytes of the message's key.
        """
        self.key = key
        self.find = find

    @property
    def name(self) -> str:
        return Bytes().name


class String(Serde[str]):
    r"""Text, as UTF-8. Keys sort by code point, as Python's strings do.

    Example:
        >>> ps.String().to_bytes("Zürich")
        b'Z\xc3\xbcrich'
        >>> ps.String().from_bytes(b"N14228")
        'N14228'
    """

    ordered = True
    to_bytes = staticmethod(str.encode)  # type: ignore[assignment]
    from_bytes = staticmethod(bytes.decode)  # type: ignore[assignment]

    def prefix_to_bytes(self, prefix: str) -> bytes:
        return self.to_bytes(prefix)


def end_of_prefix(prefix: bytes) -> bytes | None:
    """The least bytes greater than all that begin with the prefix; None if there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


_TUPLE = "ps.Tuple(ps.String(), ps.Long())"
_MEANT = {
    "bytes": "ps.Bytes()",
    "str": "ps.String()",
    "string": "ps.String()",
    "int": "ps.Long()",
    "long": "ps.Long()",
    "integer": "ps.Integer()",
    "float": "ps.Double()",
    "double": "ps.Double()",
    "json": "ps.Json()",
    "dict": "ps.Json()",
    "list": "ps.Json()",
    "tuple": _TUPLE,
}


def given_serde(given: object, where: str, declaration: str = "{serde}") -> Serde[Any]:
    """Return the given object, if it is a serde.

    Args:
        given: the object from the application.
        where: the purpose of the serde, as "store `totals`: the serde of the keys".
        declaration: declares a serde there, as `app.store("totals", key={serde})`.

    Raises:
        ConfigError: it is not a serde; the message says what to write.
    """
    if isinstance(given, Serde):
        check_all(methods(given, ("to_bytes", "from_bytes")), where)
        return given
    if isinstance(given, type) and issubclass(given, Serde):
        made = _made(given)
        what = f"the class {made.partition('(')[0]}, not an instance of it"
    else:
        name = given.__name__ if isinstance(given, type) else given
        made = _MEANT.get(name.lower(), "ps.String()") if isinstance(name, str) else "ps.String()"
        what = f"{given!r}, which is not a serde"
    raise ConfigError(f"{where} is {what}: write {declaration.format(serde=made)}")


def _made(serde: type[Serde[Any]]) -> str:
    if not serde.__module__.startswith("penstock."):
        return f"{serde.__qualname__}()"
    package = "pss" if serde.__module__.startswith("penstock.spark.") else "ps"
    return _TUPLE if serde.__name__ == "Tuple" else f"{package}.{serde.__name__}()"
