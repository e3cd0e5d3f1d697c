"""Which version of a pushed table the next batch reads, and which one containers are to load. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

LoadState: TypeAlias = Literal["loading", "loaded", "failed"]


@dataclass(frozen=True, slots=True)
class SwapFacts:
    """What is known of one table at a batch boundary. Versions are numbers."""

    wanted: int | None
    """The version that the table is to have; None: nothing can be used."""
    pinned: bool = False
    """Whether somebody chose that version."""
    current: int | None = None
    """The version that batches read, which every container has loaded in this epoch; None before the first one."""
    asked: int | None = None
    """The version that containers were asked for last in this epoch."""
    state: LoadState = "loading"
    """That of `asked`: loaded once every container has it, failed if one has failed."""
    may_retry: bool = False
    """Whether enough time has passed since the failure."""


@dataclass(frozen=True, slots=True)
class Swap:
    """What is to be done at the boundary."""

    use: int | None
    """The version that the next batch reads."""
    load: int | None = None
    """What containers are to be asked for now."""


def decide_swap(facts: SwapFacts) -> Swap:
    """The version that the next batch reads, and what to load for later ones.

    A version that is loading when a newer one comes is used first: otherwise a table that is pushed again and again
    would never change. If somebody chose a version, no other one is waited for. Only then a table goes back: that the
    version in use is not published any more is no reason.
    """
    current, asked, wanted = facts.current, facts.asked, facts.wanted
    if wanted is None or (current is not None and wanted < current and not facts.pinned):
        return Swap(current)
    if asked is None or not _is_meant(facts):
        return Swap(current, None if asked == wanted else wanted)
    if facts.state == "loaded":
        return Swap(asked, wanted if asked == current and asked != wanted else None)
    if facts.state == "failed" and (facts.may_retry or asked != wanted):
        return Swap(current, wanted)
    return Swap(current)


def _is_meant(facts: SwapFacts) -> bool:
    """Whether the version that is loading may still be used."""
    asked, wanted = facts.asked, facts.wanted
    if asked == wanted:
        return True
    if facts.pinned or asked is None or wanted is None:
        return False
    return (facts.current or 0) <= asked < wanted
