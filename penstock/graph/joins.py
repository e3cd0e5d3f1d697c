"""Joins of two streams, as values. `MessageStream.join` makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from penstock.api.serdes import Serde
from penstock.api.ssp import SystemStream
from penstock.base.wording import Duration, milliseconds
from penstock.errors import ConfigError

JoinKind: TypeAlias = Literal["inner", "left", "right", "outer"]
"""The messages without a partner that are emitted too: none, those of the left stream, of the right one, or of both."""

Keep: TypeAlias = Literal["all", "newest"]
"""The messages of a key that wait for partners: all of the span, or the newest of each stream."""

JoinFunction: TypeAlias = Callable[[Any, Any], Any]

_LONGEST_MS = 2**60


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One of the two streams."""

    source: str
    """The id of the operator that emits its messages."""
    key_serde: Serde[Any]
    value_serde: Serde[Any]


@dataclass(frozen=True, slots=True)
class Join:
    """The rule by which messages of two streams join."""

    before_ms: int
    """The most by which a right partner may be earlier than a left message."""
    after_ms: int
    """The most by which a right partner may be later than a left message."""
    kind: JoinKind
    keep: Keep
    late_to: SystemStream | None

    @property
    def emits_left(self) -> bool:
        """True if left messages without a partner are emitted."""
        return self.kind in ("left", "outer")

    @property
    def emits_right(self) -> bool:
        """True if right messages without a partner are emitted."""
        return self.kind in ("right", "outer")


def join_of(
    within_ms: Duration | tuple[Duration, Duration], kind: JoinKind, keep: Keep, late_to: SystemStream | None
) -> Join:
    """The join that these arguments of `MessageStream.join` describe. Raises ConfigError."""
    given = within_ms if isinstance(within_ms, tuple) else (within_ms, within_ms)
    if len(given) != 2:
        raise ConfigError(
            f"within_ms={within_ms!r}: give one duration, or two: how much earlier and how much later than a left "
            "message its right partners may be"
        )
    before, after = (milliseconds("within_ms", each, least=0, most=_LONGEST_MS) for each in given)
    if kind not in ("inner", "left", "right", "outer"):
        raise ConfigError(f'kind={kind!r}: a join is "inner", "left", "right" or "outer"')
    if keep not in ("all", "newest"):
        raise ConfigError(f'keep={keep!r}: a join keeps "all" messages of the span, or the "newest" of each key')
    return Join(before, after, kind, keep, late_to)


def definition_of(join: Join, key: Serde[Any], left: Serde[Any], right: Serde[Any]) -> str:
    """The properties that the bytes of a join's store depend on, as one word. The function is left out: it may
    change."""
    parts = (
        f"within={join.before_ms},{join.after_ms}",
        join.kind,
        join.keep,
        f"key={key.name}",
        f"left={left.name}",
        f"right={right.name}",
    )
    return ":".join(parts).replace(" ", "")
