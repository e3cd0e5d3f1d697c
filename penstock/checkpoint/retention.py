"""Which checkpoints are kept (`task.checkpoint.retained`), as a pure function."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.checkpoint.id import CheckpointId
from penstock.config.retained import RetentionPolicy

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


def keep(retained: Mapping[int, CheckpointId], new: CheckpointId, policy: RetentionPolicy) -> dict[int, CheckpointId]:
    """What of the checkpoints retained so far (slot -> id) stays beside the new one, which always stays.

    The newest `policy.newest`, the new one being the first of them; of those before them the first one of every hour,
    for `policy.hours` hours back from the new one, its own hour included; and the first of every day, likewise. Hours
    and days are UTC's, times are those of the ids, so that every driver decides alike. What is dropped never comes
    back, and a checkpoint that outlived the newest ones by being its hour's first stays so for its whole term.

    At most `newest - 1 + hours + days` are returned.
    """
    oldest_first = sorted(retained.items(), key=lambda item: (item[1], item[0]))
    split = max(0, len(oldest_first) - (policy.newest - 1))
    older, kept = oldest_first[:split], dict(oldest_first[split:])
    for length_ms, count in ((_HOUR_MS, policy.hours), (_DAY_MS, policy.days)):
        kept.update(_first_of_each(older, length_ms, new.millis // length_ms - count))
    return dict(sorted(kept.items()))


def _first_of_each(oldest_first: list[tuple[int, CheckpointId]], length_ms: int, after: int) -> dict[int, CheckpointId]:
    """The first checkpoint of each period of that length, of the periods numbered higher than `after`."""
    first: dict[int, tuple[int, CheckpointId]] = {}
    for slot, checkpoint_id in oldest_first:
        period = checkpoint_id.millis // length_ms
        if period > after:
            first.setdefault(period, (slot, checkpoint_id))
    return dict(first.values())
