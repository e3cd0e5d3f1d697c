"""The sentence about a job, and what a start would do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.admin.checkpoint.facts import CheckpointSummary
from penstock.admin.job.drain_status import DrainStatus
from penstock.admin.job.inputs import InputStatus, PartitionStatus
from penstock.admin.job.status import JobStatus, OutboxStatus, WatermarkStatus
from penstock.dashboard.verdict import Verdict, next_start, verdict
from penstock.dashboard.work import History, Interval, Totals
from penstock.job.shown import Failure, Outage, RunPhase
from penstock.metrics.snapshot import Snapshot

LAST = CheckpointSummary("17-42", "commit", None, 9, 1_700_000_000_000, 2, "r", 4, {"totals": "layout"})
RUNNING = JobStatus(
    job="a-1", name="a", id="1", root="file:///jobs", logs="/logs", containers=(), status="running",
    reason="its lease is being renewed", holder=None, run_id="r", epoch=2, checkpoints=1, last_checkpoint=LAST,
    inputs=(), backends=(), phase=RunPhase("r", "running", 0, "driver"),
)  # fmt: skip


def reading(left: int | None, unit: str = "message", problem: str | None = None) -> JobStatus:
    """A job that runs, with so much to read in its input."""
    part = PartitionStatus(0, 5, 12, 7, event_time_ms=1_000, read=5, unread=left)
    return replace(RUNNING, inputs=(InputStatus("local.in", (part,), 7, problem, held_back_by=0, lag_unit=unit),))


def looks(*lags: int, rate: float = 100.0, batches: int = 5, parts: dict[str, float] | None = None) -> History:
    """A look every ten seconds, with what was unread at each. The job also reads its own intermediate stream."""
    history = History(last=Totals.of("s", 10_000 * len(lags), Snapshot()))
    read = {"local.in": rate, "local.between": 1_000.0}
    for number, lag in enumerate(lags):
        history.lags.append((10_000 * number, float(lag)))
        own = parts or {"stages": 90.0}
        history.intervals.append(Interval("s", 10_000 * number, 10.0, batches, own, read, {}, {}, {}))
    return history


@pytest.mark.parametrize(
    ("lags", "level", "text"),
    [
        ((0, 0), "good", "Keeps up: 100 messages a second"),
        ((900, 950), "good", "Keeps up: 100 messages a second"),
        (
            (5_000, 6_000, 7_000, 8_000),
            "warning",
            "Falls behind: 100 messages a second, 8,000 not read yet, and more than 20 s ago",
        ),
        (
            (8_000, 7_000, 6_000),
            "warning",
            "Catches up: 100 messages a second, 6,000 not read yet, about 60.0 s left",
        ),
        (
            (1_000, 9_000, 8_000, 7_000),
            "warning",
            "Catches up: 100 messages a second, 7,000 not read yet, about 70.0 s left",
        ),
        ((8_000, 8_010, 8_020), "warning", "Behind: 100 messages a second, 8,020 not read yet"),
        ((1_000, 8_000), "warning", "Behind: 100 messages a second, 8,000 not read yet"),
    ],
)
def test_a_running_job(lags: tuple[int, ...], level: str, text: str) -> None:
    found = verdict(reading(lags[-1]), looks(*lags))
    assert (found.level, found.text) == (level, text)


def test_only_the_last_minute_counts() -> None:
    history = looks(90_000, *[50_000 + 5_000 * n for n in range(8)])
    assert verdict(reading(85_000), history).text.startswith("Falls behind")
    for slow in range(5, 9):
        history.intervals[slow] = replace(history.intervals[slow], read={"local.in": 0.0})
    assert "33 messages a second" in verdict(reading(85_000), history).text


def test_it_does_not_say_that_it_keeps_up_if_it_does_not_know() -> None:
    stuck = History(last=Totals.of("s", 0, Snapshot()))
    for second in range(0, 40, 10):
        stuck.saw(1_000 * second, 20_001.0)
    stuck.intervals.append(Interval("s", 30_000, 10.0, 0, {}, {"local.in": 0.0}, {}, {}, {}))
    assert verdict(reading(20_001), stuck).text == "No batch has ended for 30.0 s, 20,001 not read yet"
    stuck.saw(40_000, 0.0)  # it was idle, and got something to read a moment ago
    stuck.saw(50_000, 40.0)
    assert "No batch" not in verdict(reading(40), stuck).text
    unknown = verdict(reading(None, problem="its ends are unknown: Kafka is away"), looks(0, 0))
    assert (unknown.level, unknown.text) == ("warning", "Runs with 100 messages a second; how far behind is not known")
    assert unknown.why[0] == "Stream `local.in`: its ends are unknown: Kafka is away"
    assert verdict(reading(5_000, "file"), looks(5_000, 5_000)).level == "warning"
    assert verdict(reading(0, "file"), looks(0, 0)).level == "good"
    assert verdict(reading(500), History()).text == "Running, 500 not read yet; rates follow in some seconds"
    assert verdict(reading(500)) == Verdict("plain", "Running, 500 not read yet")


def test_a_start_says_nothing_of_the_one_before() -> None:
    history = looks(0, 0, 0)
    history.last = Totals.of("another start of this run", 40_000, Snapshot())
    history.lags.clear()
    assert verdict(reading(9_000_000), history).level == "plain"


@pytest.mark.parametrize(
    ("status", "level", "text"),
    [
        (replace(RUNNING, status="not running", reason="it was stopped"), "idle", "Not running: it was stopped"),
        (
            replace(RUNNING, status="not running", last_checkpoint=replace(LAST, ended="drained")),
            "idle",
            "Not running: it has drained, and nothing is in flight",
        ),
        (replace(RUNNING, phase=None), "warning", "Starting"),
        (
            replace(RUNNING, drain=DrainStatus("draining")),
            "warning",
            "Drains: it reads no more, and ends once everything in flight is processed",
        ),
        (replace(RUNNING, status="not responding", reason="it is silent"), "bad", "Not responding: it is silent"),
        (replace(RUNNING, outage=Outage(1, "Kafka is away")), "bad", "Waits for a system: Kafka is away"),
        (
            replace(RUNNING, phase=RunPhase("r", "restoring", 0, "driver", "3.0 MB")),
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
    found = verdict(status, looks(0))
    assert (found.level, found.text) == (level, text)


def test_what_holds_it_back() -> None:
    late = replace(reading(0), watermarks=(WatermarkStatus("window", 1, 90_000),), dead_letters=3)
    parts = {"stages": 50.0, "waiting for the last commit": 45.0, "other": 5.0}
    assert verdict(late, looks(0, parts=parts)).why == (
        "A batch takes 100 ms, of which 50 ms stages and 45 ms waiting for the last commit",
        "`local.in` partition 0 holds the watermark back: its highest event time is 1970-01-01T00:00:01.000Z",
        "3 messages went to the dead-letter stream since the last start",
    )
    assert verdict(replace(RUNNING, failure=Failure(None, "E", "operator `x`")), History()) == Verdict(
        "bad", "Failed: E", ("In operator `x`",)
    )


def test_the_next_start() -> None:
    assert next_start(replace(reading(3), outbox=OutboxStatus({"local.out": 3}, 3, 7, 1))) == (
        "A start continues from checkpoint 17-42 of 2023-11-14T22:13:20.000Z (batch 9), restores totals.",
        "It has 7 to read.",
        "It first publishes exactly-once output that readers do not see yet.",
    )
    assert "no checkpoint yet" in next_start(replace(RUNNING, last_checkpoint=None))[0]
