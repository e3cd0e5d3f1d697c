"""What a store's scans are over, as bytes."""

from __future__ import annotations

from typing import Any

from penstock.api.serdes import Serde, not_bytes
from penstock.api.serdes.failures import Place
from penstock.errors import ConfigError


def range_bounds(store: Place, serde: Serde[Any], from_key: Any, to_key: Any) -> tuple[bytes, bytes]:
    """Where a range begins (inclusive) and ends (exclusive).

    Raises:
        ConfigError: the bytes of the store's keys do not sort as the keys do, or `from_key` comes after `to_key`.
        SerdeError: the serde does not take one of them.
    """
    if not serde.ordered:
        raise ConfigError(
            f"{store.name} has no ranges: the bytes of its keys (serde `{serde.name}`) do not sort as the keys do. "
            f"Declare {store.declaration.format(part='key', serde='...')} with {_ordered_instead(serde)}"
        )
    start, end = (_bound(store, serde, key) for key in (from_key, to_key))
    if start > end:
        raise ConfigError(
            f"{store.name}: the range from {from_key!r} to {to_key!r} begins after its end: give the smaller first"
        )
    return start, end


def _bound(store: Place, serde: Serde[Any], key: Any) -> bytes:
    try:
        bound = serde.bound_to_bytes(key)
    except Exception as error:
        raise store.unwritable("key", serde, key, error) from error
    if type(bound) is not bytes:
        raise not_bytes(serde, bound, f"{store.name}, key {key!r}")
    return bound


_SAMZA = {"integer": "ps.Integer()", "long": "ps.Long()", "double": "ps.Double()"}


def _ordered_instead(serde: Serde[Any]) -> str:
    own = not type(serde).__module__.startswith("penstock.")
    if not own and serde.name in _SAMZA:
        return f"{_SAMZA[serde.name]}, whose keys are not in the form that Samza reads"
    built_in = "ps.String(), ps.Bytes(), ps.Integer(), ps.Long(), ps.Double() or ps.Tuple() of these"
    return built_in + (
        f", or set `ordered = True` in `{type(serde).__qualname__}` if its bytes do sort so" if own else ""
    )
