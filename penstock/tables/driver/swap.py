"""Decides which version of a pushed table the next batch reads, and which one containers load. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

LoadState: TypeAlias = Literal["loading", "loaded", "failed"]


@dataclass(frozen=True, slots=True)
class SwapFacts:
    """One table at a batch boundary. Versions are numbers."""

    wanted: int | None
    """The version that the table should have; None: none can be used."""
    pinned: bool = False
    """True if somebody chose that version."""
    current: int | None = None
    """The version that batches read, which every container has loaded in this epoch; None before the first one."""
    asked: int | None = None
    """The version that containers were asked for last in this epoch."""
    state: LoadState = "loading"
    """The state of `asked`: loaded once every container has it, failed if one has failed."""
    may_retry: bool = False
    """True if enough time has passed since the failure."""


@dataclass(frozen=True, slots=True)
class Swap:
    """The decision at the boundary."""

    use: int | None
    load: int | None = None


def decide_swap(facts: SwapFacts) -> Swap:
    """Decide which version the next batch reads, and which one to load for later batches.

    A version that is loading when a newer one comes is used first: otherwise a table that is pushed again and again
    would never change. If somebody chose a version, no other one is waited for. Only a chosen version makes a table
    go back: it keeps a version in use that is not published any more.
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
    """True if the version that is loading may still be used."""
    asked, wanted = facts.asked, facts.wanted
    if asked == wanted:
        return True
    if facts.pinned or asked is None or wanted is None:
        return False
    return (facts.current or 0) <= asked < wanted
