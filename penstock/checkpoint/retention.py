"""The choice of checkpoints to keep (`task.checkpoint.retained`). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.checkpoint.id import CheckpointId
from penstock.config.values.retained import RetentionPolicy

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


def keep(
    retained: Mapping[int, CheckpointId],
    new: CheckpointId,
    policy: RetentionPolicy,
    abandoned: Mapping[int, int | None] | None = None,
    *,
    new_counts: bool = True,
) -> dict[int, CheckpointId]:
    """The retained checkpoints (slot -> id) that stay beside the new one, which always stays.

    The newest `policy.newest`, the new one being the first of them; of those before them the first one of every hour,
    for `policy.hours` hours back from the new one, its own hour included; and the first of every day, likewise. Hours
    and days are UTC's, times are those of the ids, so that every driver decides alike. What is dropped never comes
    back, and a checkpoint that outlived the newest ones by being its hour's first stays so for its whole term.

    `abandoned` has the checkpoints that the new one does not descend from, as `decide.abandoned` returns them. They
    stay only in the places that the live lineage leaves free, and no longer than the checkpoint that tells that they
    were abandoned, so that no later decision takes them for the lineage (`decide.traceable` drops more of them).

    Without `new_counts` the new one repeats one that is retained, and is none of the newest `policy.newest`.

    At most `newest - 1 + hours + days` are returned, or one more without `new_counts`.
    """
    off = abandoned or {}
    oldest_first = sorted(retained.items())
    lineage = [item for item in oldest_first if item[0] not in off]
    others = [item for item in oldest_first if item[0] in off]
    ranked = [*others, *lineage]
    split = max(0, len(ranked) - (policy.newest - 1 if new_counts else policy.newest))
    kept = dict(ranked[split:])
    older = [item for item in (*lineage, *others) if item[0] not in kept]
    for length_ms, count in ((_HOUR_MS, policy.hours), (_DAY_MS, policy.days)):
        kept.update(_first_of_each(older, length_ms, new.millis // length_ms - count))
    return {slot: kept[slot] for slot in sorted(kept) if (shown_by := off.get(slot)) is None or shown_by in kept}


def _first_of_each(preferred: list[tuple[int, CheckpointId]], length_ms: int, after: int) -> dict[int, CheckpointId]:
    """The first checkpoint of each period of that length, of the periods numbered higher than `after`."""
    first: dict[int, tuple[int, CheckpointId]] = {}
    for slot, checkpoint_id in preferred:
        period = checkpoint_id.millis // length_ms
        if period > after:
            first.setdefault(period, (slot, checkpoint_id))
    return dict(first.values())
