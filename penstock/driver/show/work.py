"""The work of a run from the beats of its containers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.base.wording import printable
from penstock.job.shown_work import MOST_KEYS, KeyWork, RunWork, most_work
from penstock.wire.protocol import Beat


def work_of(beats: Sequence[Beat], running: tuple[int, int] | None, since_ms: int) -> RunWork:
    """The work of a run.

    Args:
        beats: the last ones of all containers.
        running: the number and the messages of the batch that runs; None between batches.
        since_ms: the begin of the batch, in epoch milliseconds.
    """
    keys = _keys(beats)
    if running is None:
        return RunWork(keys=keys)
    batch, messages = running
    own = [beat for beat in beats if beat.batch == batch]
    processed = Counter[int]()
    for beat in own:
        processed.update(beat.processed)
    tasks = most_work([each for beat in own for each in beat.work])
    return RunWork(batch, messages, since_ms, tuple(sorted(processed.items())), tuple(tasks), keys)


def _keys(beats: Sequence[Beat]) -> tuple[KeyWork, ...]:
    """The keys with the most messages. All messages of a key in a stage come to one container."""
    totals = Counter[int]()
    for beat in beats:
        totals.update(beat.keyed)
    found = sorted((each for beat in beats for each in beat.keys), key=lambda each: -each[2])[:MOST_KEYS]
    return tuple(KeyWork(stage, _text(key), count, count / max(1, totals[stage])) for stage, key, count in found)


def _text(key: bytes) -> str:
    text = printable(key)
    return f"0x{key.hex()}" if text is None else text
