"""The error for states of aggregates that cannot be stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.api.serdes.exact import exact_bytes
from penstock.api.serdes.failures import unstorable
from penstock.api.time.aggregates import Aggregate
from penstock.errors import SerdeError


def unstorable_states(
    operator: str, aggregates: Mapping[str, Aggregate], states: Sequence[Any], key: Any, error: Exception
) -> SerdeError:
    """The error for states of this key. It names the first aggregate whose state is refused."""
    for (name, each), state in zip(aggregates.items(), states, strict=True):
        try:
            exact_bytes(each.to_json(state))
        except Exception as own:
            return unstorable(operator, f"aggregate `{name}`", state, own, key)
    return unstorable(operator, "its aggregates", states, error, key)
