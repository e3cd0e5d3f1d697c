"""Decides if the content of a side store on a host can be continued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.side.store.positions import SidePositions
from penstock.system.contract.messages import PartitionOffsets


@dataclass(frozen=True, slots=True)
class ReuseTarget:
    """The sources of a side store in the present run, and the present state of its streams."""

    fingerprint: str
    """The fingerprint of serdes and processor."""
    ends: Mapping[SystemStreamPartition, PartitionOffsets]
    complete_from: Mapping[SystemStreamPartition, int]
    """The offset from which each partition has everything (`SystemAdmin.complete_from`)."""
    identities: Mapping[SystemStream, str | None]
    """Distinguishes each stream from others of its name (`SystemAdmin.stream_identity`)."""
    deletions_kept_ms: Mapping[SystemStream, int] = field(default_factory=dict)
    """For how long a stream keeps deletions, if it loses them with time (`SystemAdmin.deletions_kept_ms`)."""


@dataclass(frozen=True, slots=True)
class SideReuse:
    """The content is continued from its positions."""


@dataclass(frozen=True, slots=True)
class SideRebuild:
    """The content is made again from the beginning of the streams."""

    reason: str
    """A clause: `it was ...`."""
    expected: bool = False
    """True if nothing is lost by it: there was no content."""


Decision: TypeAlias = SideReuse | SideRebuild


def decide_reuse(found: SidePositions | None, wanted: ReuseTarget, now_ms: int, max_age_ms: int) -> Decision:
    """Reuse the content if reading on from its positions makes the same as reading the streams from the beginning.

    Args:
        found: the positions of the content; None if there is none.
        max_age_ms: content that was up to date longer ago is not continued.
    """
    if found is None or not found.next_offsets:
        return SideRebuild("nothing was kept yet", expected=True)
    reason = (
        _other_making(found, wanted)
        or _other_streams(found, wanted)
        or _too_old(found, wanted, now_ms, max_age_ms)
        or next(filter(None, (_cannot_continue(ssp, found, wanted) for ssp in sorted(found.next_offsets))), None)
    )
    return SideReuse() if reason is None else SideRebuild(reason)


def _other_making(found: SidePositions, wanted: ReuseTarget) -> str | None:
    if found.fingerprint == wanted.fingerprint:
        return None
    return "it was made by another processor or with other serdes"


def _other_streams(found: SidePositions, wanted: ReuseTarget) -> str | None:
    if gone := sorted(set(found.next_offsets) - set(wanted.ends)):
        return f"it was made from `{gone[0]}` as well, which is no longer a side input"
    if new := sorted(set(wanted.ends) - set(found.next_offsets)):
        return f"it was made without `{new[0]}`"
    for stream, identity in sorted(wanted.identities.items()):
        if found.identities.get(stream) != identity:
            return f"the stream `{stream}` was deleted and created again since"
    return None


def _too_old(found: SidePositions, wanted: ReuseTarget, now_ms: int, max_age_ms: int) -> str | None:
    age_ms = now_ms - found.updated_ms
    said = f"it was brought up to date {age_ms // 1000} s ago, which is more than"
    if age_ms > max_age_ms:
        return f"{said} side.inputs.max.age.ms={max_age_ms}"
    for ssp in sorted(found.next_offsets):
        kept_ms = wanted.deletions_kept_ms.get(ssp.system_stream)
        if kept_ms is not None and age_ms > kept_ms // 2:  # the other half is for reading
            return f"{said} half of delete.retention.ms={kept_ms} of `{ssp.system_stream}`: deletions may be missing"
    return None


def _cannot_continue(ssp: SystemStreamPartition, found: SidePositions, wanted: ReuseTarget) -> str | None:
    following, upcoming, complete_from = found.next_offsets[ssp], wanted.ends[ssp].upcoming, wanted.complete_from[ssp]
    if following > upcoming:
        return f"it was read up to offset {following} of `{ssp}`, which now ends at {upcoming}"
    if following < complete_from:
        return (
            f"it was read up to offset {following} of `{ssp}`, and what followed up to {complete_from} was deleted or "
            "compacted since: deletions may be missing"
        )
    return None
