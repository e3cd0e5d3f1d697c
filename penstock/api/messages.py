"""A message on its way into a task (Samza's IncomingMessageEnvelope), and the headers of messages.

Headers are names and bytes beside key and value, as Kafka has them. All is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeAlias

import msgspec

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import CorruptError

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Pairs of name and value, in order. A name may occur more than once."""

HeadersLike: TypeAlias = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
"""Headers as applications give them. Text becomes UTF-8."""

OWN = "penstock."
"""Names that begin so are Penstock's own; applications neither give nor get them."""
UNREADABLE: Final[Headers] = ((f"{OWN}unreadable", None),)
"""The headers of a message of which a header has a name that is not UTF-8. Such a message fails. No other program can
send these headers, because readers leave out Penstock's own names."""
_DECODER = msgspec.msgpack.Decoder(Headers)


def headers_of(given: HeadersLike) -> Headers:
    """The headers that an application gives.

    Args:
        given: a mapping from name to value, or pairs of them.

    Raises:
        TypeError: it is something else, a value is neither bytes nor text nor None, or a name is Penstock's own.

    Example:
        >>> headers_of({"trace": "7f", "retry": None})
        (('trace', b'7f'), ('retry', None))
    """
    try:
        pairs = [(name, value) for name, value in (given.items() if isinstance(given, Mapping) else given)]
    except (TypeError, ValueError) as error:
        raise TypeError(f"headers are a mapping from name to value, or pairs of them, not {given!r:.200}") from error
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, bytes | str | None):
            raise TypeError(f"a header is a name (str) and a value (bytes, str or None), not {name!r}: {value!r:.200}")
        if name.startswith(OWN):
            raise TypeError(f"the header `{name}` is Penstock's own: use a name that does not begin with `{OWN}`")
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)


def pack_headers(headers: Headers) -> bytes:
    """The bytes of headers, in which they travel between stages."""
    return msgspec.msgpack.encode(headers)


def unpack_headers(data: bytes) -> Headers:
    """The headers of the bytes. Raises CorruptError if they are damaged."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"headers of a message are not readable: {error}") from error


def check_readable(headers: Headers) -> Headers:
    """The headers. Raises ValueError if they are those of `UNREADABLE`."""
    if headers == UNREADABLE:
        raise ValueError("its headers cannot be read: the name of one is not UTF-8. Correct what wrote it")
    return headers


def headers_size(headers: Headers) -> int:
    """The bytes of the names and values."""
    return sum(len(name) + len(value or b"") for name, value in headers)


if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers know it: a type variable with a default is Python 3.13's

    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    V = TypeVar("V")


class MessageOrigins(Protocol):
    """The origins of messages, by row."""

    @property
    def timestamps(self) -> Sequence[int]:
        """Epoch milliseconds."""

    @property
    def offsets(self) -> Sequence[int]:
        """Offsets in their partitions."""

    def ssp(self, row: int) -> SystemStreamPartition: ...

    def headers(self, row: int) -> Headers: ...


class IncomingMessageEnvelope(NamedTuple, Generic[V]):
    """A message on its way into a task, as Samza's IncomingMessageEnvelope.

    `key` and `value` are decoded objects or None. `ssp`, `offset` and `timestamp` are those of the input message that
    this message is, or from which earlier operators made it. `timestamp` is in epoch milliseconds; it is the event time
    if the input has a function for it. `headers` are those of the input message, unless a task has set others. Only the
    runtime makes envelopes. They stay valid after the call.

    For type checkers, `IncomingMessageEnvelope[Trip]` has values of the type Trip.

    Example:
        >>> app = ps.StreamApplication("origins")
        >>> origins = app.input("local.trips").map(lambda m: [str(m.ssp), m.offset, m.timestamp], envelope=True)
        >>> _ = origins.send_to(app.output("local.origins"))
        >>> runner = TestRunner(app).input("local.trips", ["a", "b"], partition=1, timestamp=700).run()
        >>> [message.value for message in runner.output("local.origins")]
        [['local.trips.1', 0, 700], ['local.trips.1', 1, 700]]
    """

    key: Any
    value: V
    origins: MessageOrigins
    row: int

    @property
    def ssp(self) -> SystemStreamPartition:
        """The partition of the input from which the message comes."""
        return self.origins.ssp(self.row)

    @property
    def offset(self) -> int:
        """The offset of the input message in its partition."""
        return self.origins.offsets[self.row]

    @property
    def timestamp(self) -> int:
        """The timestamp of the input message, in epoch milliseconds."""
        return self.origins.timestamps[self.row]

    @property
    def headers(self) -> Headers:
        """The headers, pairs of name and value in order; empty if the message has none."""
        return self.origins.headers(self.row)

    def header(self, name: str) -> bytes | None:
        """The value of the last header of this name; None if there is none, or its value is null.

        Args:
            name: the header's name.

        Example:
            >>> app = ps.StreamApplication("tenants")
            >>> tenants = app.input("local.trips").map(lambda m: m.header("tenant").decode(), envelope=True)
            >>> _ = tenants.send_to(app.output("local.tenants"))
            >>> runner = TestRunner(app).input("local.trips", ["a"], headers={"tenant": "north"}).run()
            >>> [(message.value, message.headers) for message in runner.output("local.tenants")]
            [('north', (('tenant', b'north'),))]
        """
        return next((value for own, value in reversed(self.headers) if own == name), None)

    def __repr__(self) -> str:
        return (
            f"IncomingMessageEnvelope(ssp={self.ssp}, offset={self.offset}, key={self.key!r}, value={self.value!r}, "
            f"timestamp={self.timestamp})"
        )
