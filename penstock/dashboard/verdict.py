"""The first things that a person wants to know: does the job keep up, what holds it back, and what will a start do?
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.admin.job.status import JobStatus
from penstock.batch.watermarks import holds_back_text
from penstock.dashboard.rates import Interval
from penstock.wording import counted, duration_text, lag_text, listed, utc_text

Level: TypeAlias = Literal["good", "warning", "bad", "idle"]

_TREND = 6
"""Intervals that tell whether the lag grows."""
_SMALL_S = 10.0
"""A lag of what the job reads in this time is no lag."""
_LATE_MS = 60_000
"""A watermark that is further behind is explained."""
_PART = 0.3
"""A part of a batch as large as this share of it is named."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A sentence, how bad it is, and what explains it."""

    level: Level
    text: str
    why: tuple[str, ...] = ()


def verdict(status: JobStatus, intervals: Sequence[Interval]) -> Verdict:
    """The state of a job in a sentence.

    Args:
        status: the job's.
        intervals: what its run did lately, the newest last.
    """
    if status.failure is not None:
        since = "" if status.failure.since_ms is None else f" at {utc_text(status.failure.since_ms)}"
        return Verdict("bad", f"Failed{since}: {status.failure.error}", tuple(_place(status)))
    if status.status == "not running":
        return Verdict("idle", f"Not running: {status.reason}")
    if status.outage is not None:
        return Verdict("bad", f"Waits for a system: {status.outage.reason}")
    if status.status == "not responding":
        return Verdict("bad", f"Not responding: {status.reason}")
    phase = status.phase
    if phase is not None and phase.phase != "running":
        progress = f" ({phase.progress})" if phase.progress else ""
        return Verdict("warning", f"{phase.phase.capitalize()}{progress}, since {utc_text(phase.since_ms)}")
    return _running(status, intervals[-_TREND:])


def _place(status: JobStatus) -> Iterator[str]:
    if status.failure is not None and status.failure.place is not None:
        yield f"In {status.failure.place}"


def _running(status: JobStatus, lately: Sequence[Interval]) -> Verdict:
    why = (*_large_parts(lately), *_held_back(status), *_others(status))
    if not lately:
        return Verdict("good", "Running; how fast follows in some seconds", why)
    now = lately[-1]
    rate = f"{now.rate:,.0f} messages a second"
    first, last = (sum(each.lag.values()) for each in (lately[0], now))
    files = lag_text((each.lag or 0, each.lag_unit) for each in status.inputs if each.lag_unit != "message")
    behind = " and ".join(filter(None, [f"{last:,.0f}" if last else "", files]))
    spent = (now.end_ms - lately[0].end_ms) / 1000
    if last <= max(now.rate * _SMALL_S, 1):
        return Verdict("good", f"Keeps up: {rate}{f', {behind} behind' if behind else ''}", why)
    if spent and last > first:
        grew = counted(round(last - first), "message")
        return Verdict("warning", f"Falls behind: {rate}, {behind} behind, {grew} more than {spent:.0f} s ago", why)
    if spent and last < first:
        left = duration_text(round(last / (first - last) * spent * 1000))
        return Verdict("warning", f"Catches up: {rate}, {behind} behind, about {left} left", why)
    return Verdict("warning", f"{rate.capitalize()}, {behind} behind", why)


def _large_parts(lately: Sequence[Interval]) -> Iterator[str]:
    parts = next((each.batch_ms for each in reversed(lately) if each.batch_ms), {})
    total = sum(parts.values())
    large = [f"{ms:,.0f} ms {part}" for part, ms in parts.items() if total and ms >= _PART * total]
    if large:
        yield f"A batch takes {total:,.0f} ms, of which {listed(large)}"


def _held_back(status: JobStatus) -> Iterator[str]:
    late = any((each.delay_ms or 0) > _LATE_MS for each in status.watermarks)
    for each in status.inputs:
        for part in each.partitions:
            if late and part.partition == each.held_back_by:
                yield holds_back_text(each.stream, part.partition, part.event_time_ms)
            if part.open_transaction is not None:
                yield f"{each.stream} partition {part.partition}: {part.open_transaction}"


def _others(status: JobStatus) -> Iterator[str]:
    if status.dead_letters:
        yield f"{counted(status.dead_letters, 'message')} went to the dead-letter stream in this run"
    for side in status.side_inputs:
        if side.failing:
            yield f"The side inputs of store {side.store} fail, and are tried again"
    for table in status.tables:
        if table.failing:
            yield f"A version of table {table.table} cannot be loaded, and is tried again"


def next_start(status: JobStatus) -> tuple[str, ...]:
    """The effect of a start of the job now, in sentences."""
    last = status.last_checkpoint
    if last is None:
        return ("There is no checkpoint yet: a start begins where the configuration says.",)
    at = f" of {utc_text(last.batch_time_ms)}" if last.batch_time_ms else ""
    stores = f", restores {listed(sorted(last.stores))}" if last.stores else ""
    sentences = [f"A start continues from checkpoint {last.id}{at} (batch {last.batch}){stores}."]
    if behind := lag_text((each.lag or 0, each.lag_unit) for each in status.inputs):
        sentences.append(f"It has {behind} to read.")
    if status.outbox is not None and status.outbox.published != status.outbox.messages:
        sentences.append("It first publishes exactly-once output that readers do not see yet.")
    waiting = [each for each in status.startpoints if each.status != "unreadable"]
    if waiting:
        sentences.append(f"It applies {counted(len(waiting), 'startpoint')}.")
    if status.drain.awaiting:
        sentences.append("It drains, because that was asked for.")
    sentences += [f"Stream {each.stream}: {each.problem}" for each in status.inputs if each.problem is not None]
    return tuple(sentences)
