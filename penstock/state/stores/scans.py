"""The bounds of a store's scans, as bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.api.serdes import Serde, not_bytes
from penstock.api.serdes.base import end_of_prefix
from penstock.errors import ConfigError
from penstock.graph.serde_failures import SerdePlace


def range_bounds(store: SerdePlace, serde: Serde[Any], from_key: Any, to_key: Any) -> tuple[bytes, bytes]:
    """The start (inclusive) and end (exclusive) of a range.

    Raises:
        ConfigError: the bytes of the store's keys do not sort as the keys do, or `from_key` comes after `to_key`.
        SerdeError: the serde does not take one of them.
    """
    if not serde.ordered:
        raise ConfigError(
            f"{store.name} has no ranges: the bytes of its keys (serde `{serde.name}`) do not sort as the keys do. "
            f"Declare {store.declaration.format(part='key', serde='...')} with {_ordered_instead(serde)}"
        )
    start, end = (_bytes(store, serde, serde.bound_to_bytes, key) for key in (from_key, to_key))
    if start > end:
        raise ConfigError(
            f"{store.name}: the range from {from_key!r} to {to_key!r} begins after its end: give the smaller first"
        )
    return start, end


def prefix_bounds(store: SerdePlace, serde: Serde[Any], prefix: Any) -> tuple[bytes, bytes | None]:
    """The start (inclusive) and end (exclusive; None: unbounded) of the keys with a prefix. Raises SerdeError if keys
    of this serde have no prefixes, or this is not one."""
    start = _bytes(store, serde, serde.prefix_to_bytes, prefix)
    return start, end_of_prefix(start)


def _bytes(store: SerdePlace, serde: Serde[Any], write: Callable[[Any], bytes], key: Any) -> bytes:
    try:
        data = write(key)
    except Exception as error:
        raise store.unwritable("key", serde, key, error) from error
    if type(data) is not bytes:
        raise not_bytes(serde, data, f"{store.name}, key {key!r}")
    return data


_SAMZA = {"integer": "ps.Integer()", "long": "ps.Long()", "double": "ps.Double()"}


def _ordered_instead(serde: Serde[Any]) -> str:
    own = not type(serde).__module__.startswith("penstock.")
    if not own and serde.name in _SAMZA:
        return f"{_SAMZA[serde.name]}, whose keys are not in the form that Samza reads"
    built_in = "ps.String(), ps.Bytes(), ps.Integer(), ps.Long(), ps.Double() or ps.Tuple() of these"
    return built_in + (
        f", or set `ordered = True` in `{type(serde).__qualname__}` if its bytes do sort so" if own else ""
    )
