"""The sentence about a job, and what a start would do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.admin.checkpoint.facts import CheckpointSummary
from penstock.admin.job.inputs import InputStatus, PartitionStatus
from penstock.admin.job.status import JobStatus, OutboxStatus, WatermarkStatus
from penstock.dashboard.rates import Interval
from penstock.dashboard.verdict import Verdict, next_start, verdict
from penstock.job.shown_failure import Failure
from penstock.job.shown_outage import Outage
from penstock.job.shown_phase import RunPhase

LAST = CheckpointSummary("17-42", "commit", None, 9, 1_700_000_000_000, 2, "r", 4, {"totals": "layout"})
INPUT = InputStatus("local.in", (PartitionStatus(0, 5, 12, 7, event_time_ms=1_000),), 7, None, held_back_by=0)
RUNNING = JobStatus(
    job="a-1", name="a", id="1", root="file:///jobs", logs="/logs", containers=(), status="running",
    reason="its lease is being renewed", holder=None, run_id="r", epoch=2, checkpoints=1, last_checkpoint=LAST,
    inputs=(INPUT,), backends=(), phase=RunPhase("r", "running", 0),
)  # fmt: skip


def lately(*lags: int, rate: float = 100.0, parts: dict[str, float] | None = None) -> list[Interval]:
    """Intervals of ten seconds, with the lag at the end of each."""
    return [
        Interval(10_000 * n, 10.0, 5, parts or {"stages": 90.0}, {"local.in": rate}, {}, {}, {"local.in": lag})
        for n, lag in enumerate(lags)
    ]


@pytest.mark.parametrize(
    ("lags", "level", "text"),
    [
        ((0, 0), "good", "Keeps up: 100 messages a second"),
        ((900, 950), "good", "Keeps up: 100 messages a second, 950 behind"),
        ((5_000, 6_000, 8_000), "warning", "Falls behind: 100 messages a second, 8,000 behind, 3,000 messages more"),
        ((8_000, 6_000), "warning", "Catches up: 100 messages a second, 6,000 behind, about 30.0 s left"),
        ((8_000, 8_000), "warning", "100 messages a second, 8,000 behind"),
    ],
)
def test_a_running_job(lags: tuple[int, ...], level: str, text: str) -> None:
    found = verdict(RUNNING, lately(*lags))
    assert found.level == level
    assert found.text.startswith(text)


def test_only_the_last_minute_counts() -> None:
    assert verdict(RUNNING, lately(90_000, *[50_000 + 100 * n for n in range(6)])).text.startswith("Falls behind")


@pytest.mark.parametrize(
    ("status", "level", "text"),
    [
        (replace(RUNNING, status="not running", reason="it was stopped"), "idle", "Not running: it was stopped"),
        (replace(RUNNING, status="not responding", reason="it is silent"), "bad", "Not responding: it is silent"),
        (replace(RUNNING, outage=Outage(1, "Kafka is away")), "bad", "Waits for a system: Kafka is away"),
        (
            replace(RUNNING, phase=RunPhase("r", "restoring", 0, "3.0 MB")),
            "warning",
            "Restoring (3.0 MB), since 1970-01-01T00:00:00.000Z",
        ),
        (
            replace(RUNNING, status="failed", failure=Failure(0, "KeyError: 'a'", "operator `x`")),
            "bad",
            "Failed at 1970-01-01T00:00:00.000Z: KeyError: 'a'",
        ),
    ],
)
def test_other_jobs(status: JobStatus, level: str, text: str) -> None:
    found = verdict(status, lately(0))
    assert (found.level, found.text) == (level, text)


def test_what_holds_it_back() -> None:
    late = replace(RUNNING, watermarks=(WatermarkStatus("window", 1, 90_000),), dead_letters=3)
    parts = {"stages": 50.0, "waiting for the last commit": 45.0, "other": 5.0}
    assert verdict(late, lately(0, parts=parts)).why == (
        "A batch takes 100 ms, of which 50 ms stages and 45 ms waiting for the last commit",
        "`local.in` partition 0 holds the watermark back: its highest event time is 1970-01-01T00:00:01.000Z",
        "3 messages went to the dead-letter stream in this run",
    )
    assert verdict(replace(RUNNING, failure=Failure(None, "E", "operator `x`")), ()) == Verdict(
        "bad", "Failed: E", ("In operator `x`",)
    )


def test_the_next_start() -> None:
    assert next_start(replace(RUNNING, outbox=OutboxStatus({"local.out": 3}, 3, 7, 1))) == (
        "A start continues from checkpoint 17-42 of 2023-11-14T22:13:20.000Z (batch 9), restores totals.",
        "It has 7 to read.",
        "It first publishes exactly-once output that readers do not see yet.",
    )
    assert "no checkpoint yet" in next_start(replace(RUNNING, last_checkpoint=None))[0]
