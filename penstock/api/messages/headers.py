"""The headers of messages: names and bytes beside key and value, as Kafka has them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Pairs of name and value, in order. A name may occur more than once."""

HeadersLike: TypeAlias = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
"""Headers as applications give them. Text becomes UTF-8."""

OWN = "penstock."
"""Names that begin so are Penstock's own; applications neither give nor get them."""
UNREADABLE: Final[Headers] = ((f"{OWN}unreadable", None),)
"""In place of the headers of a message, one of which has a name that is not UTF-8. Such a message
fails. Nobody outside can send this, because readers leave out Penstock's own names."""
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
    """The headers of the bytes. Raises msgspec.DecodeError if they are damaged."""
    return _DECODER.decode(data)


def check_readable(headers: Headers) -> Headers:
    """The headers. Raises ValueError if they are those of `UNREADABLE`."""
    if headers == UNREADABLE:
        raise ValueError("its headers cannot be read: the name of one is not UTF-8. Correct what wrote it")
    return headers


def headers_size(headers: Headers) -> int:
    """The bytes of the names and values."""
    return sum(len(name) + len(value or b"") for name, value in headers)
