"""What a store's scans are over, as bytes."""

from __future__ import annotations

from typing import Any

from penstock.api.serdes import Serde, not_bytes
from penstock.errors import ConfigError


def range_bounds(store: str, serde: Serde[Any], from_key: Any, to_key: Any) -> tuple[bytes, bytes]:
    """Where a range begins (inclusive) and ends (exclusive).

    Raises:
        ConfigError: the bytes of the store's keys do not sort as the keys do, or `from_key` comes after `to_key`.
    """
    if not serde.ordered:
        raise ConfigError(
            f"store `{store}` has no ranges: the bytes of its keys (serde `{serde.name}`) do not sort as the keys do. "
            f'Declare app.store("{store}", key=...) with {_ordered_instead(serde)}'
        )
    start, end = serde.bound_to_bytes(from_key), serde.bound_to_bytes(to_key)
    for key, bound in ((from_key, start), (to_key, end)):
        if type(bound) is not bytes:
            raise not_bytes(serde, bound, f"store `{store}`, key {key!r}")
    if start > end:
        raise ConfigError(
            f"store `{store}`: the range from {from_key!r} to {to_key!r} begins after its end: give the smaller first"
        )
    return start, end


_SAMZA = {"integer": "ps.Integer()", "long": "ps.Long()", "double": "ps.Double()"}


def _ordered_instead(serde: Serde[Any]) -> str:
    own = not type(serde).__module__.startswith("penstock.")
    if not own and serde.name in _SAMZA:
        return f"{_SAMZA[serde.name]}, whose keys are not in the form that Samza reads"
    built_in = "ps.String(), ps.Bytes(), ps.Integer(), ps.Long(), ps.Double() or ps.Tuple() of these"
    return built_in + (
        f", or set `ordered = True` in `{type(serde).__qualname__}` if its bytes do sort so" if own else ""
    )
