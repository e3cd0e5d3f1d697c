"""The sentence about a job, what a start would do, and rates and parts of batches from metrics at two moments."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.admin.checkpoint.facts import CheckpointSummary
from penstock.admin.job.inputs import InputStatus, PartitionStatus
from penstock.admin.job.running import DrainStatus
from penstock.admin.job.status import JobStatus, OutboxStatus, WatermarkStatus
from penstock.dashboard.view import Verdict, next_start, verdict
from penstock.dashboard.work import MOMENTS, PARTS, STALE_MS, History, Interval, TaskShare, Totals, between, whole
from penstock.job.shown import Failure, Outage, RunPhase
from penstock.metrics.snapshot import CounterValue, GaugeValue, MetricId, Snapshot, TimerValue

MS = 1_000_000


def totals(time_ms: int, count: int, run: str = "a") -> Totals:
    """The metrics of two tasks that have each processed `count` messages, after `count` batches of 10 ms."""
    tasks = ("Partition 0", "Partition 1")
    values: dict[MetricId, CounterValue | GaugeValue | TimerValue] = {
        **{MetricId(task, "stage.1", "messages-actually-processed"): CounterValue(count) for task in tasks},
        **{MetricId(task, "stream.local.in", "messages-read"): CounterValue(2 * count) for task in tasks},
        **{MetricId(task, "stream.local.out", "messages-sent"): CounterValue(count) for task in tasks},
        MetricId("job", "stream.local.in", "messages-behind-high-watermark"): GaugeValue(count + 5),
        MetricId("job", "job", "batches"): CounterValue(count),
        MetricId("job", "job", "batch-ns"): TimerValue(count, 10 * count * MS, 12 * MS),
        MetricId("job", "job", "run-ns"): TimerValue(count, 6 * count * MS, 7 * MS),
        MetricId("job", "job", "end-ns"): TimerValue(count, 1 * count * MS, 2 * MS),
    }
    return Totals.of(run, time_ms, Snapshot(values))


def test_what_happened_between_two_moments() -> None:
    found = between(totals(10_000, 100), totals(12_000, 300))
    assert found == Interval(
        start="a",
        end_ms=12_000,
        seconds=2.0,
        batches=200,
        batch_ms={"stages": 6.0, "applying": 1.0, "snapshot": 0.0, "waiting for the last commit": 0.0, "other": 3.0},
        read={"local.in": 400.0},
        sent={"local.out": 200.0},
        processed={1: 200.0},
        lag={"local.in": 305.0},
        tasks={(1, f"Partition {task}"): TaskShare(200, 0) for task in range(2)},
    )
    assert set(found.batch_ms) == {*PARTS.values(), "other"}


def test_a_long_batch_counts_over_all_of_its_time_and_is_no_rate_of_0() -> None:
    """Looks every two seconds at a job whose batches take ten: 1,000 messages each."""
    history = History()
    for second in range(0, 61, 2):
        ended = second // 10
        values: dict[MetricId, CounterValue | GaugeValue | TimerValue] = {
            MetricId("Partition 0", "stream.local.in", "messages-read"): CounterValue(1_000 * ended),
            MetricId("job", "job", "batches"): CounterValue(ended),
            MetricId("job", "job", "batch-since-ms"): GaugeValue(1 + second),
        }
        history.add(Totals.of("a", 1_000 * second, Snapshot(values)))
        live = history.live(1_000 * second)
        assert live is None or live.read == {"local.in": pytest.approx(100.0)}
    assert [each.read for each in whole(history.intervals)] == [{"local.in": pytest.approx(100.0)}] * 6
    assert history.live(60_000) is not None
    assert history.live(60_000 + STALE_MS + 1) is None, "rates of a driver that says nothing any more are not shown"


def test_an_idle_job_has_rates_of_0() -> None:
    history = History()
    for second in range(3):
        history.add(totals(1_000 * second, 5))
    live = history.live(2_000)
    assert live is not None
    assert live.read == {"local.in": 0.0}


def test_moments_that_give_no_rate() -> None:
    assert between(totals(1_000, 1), totals(1_000, 2)) is None
    assert between(totals(1_000, 1), totals(2_000, 2, run="b")) is None
    idle = between(totals(1_000, 1), totals(2_000, 1))
    assert idle is not None
    assert (idle.batches, idle.batch_ms, idle.read) == (0, {}, {"local.in": 0.0})


def test_sums_of_all_sources() -> None:
    found = totals(1_000, 4)
    assert found.get("stage.1", "messages-actually-processed") == 8
    assert found.mean_ms("job", "run-ns") == 6.0
    assert found.longest_ms["job", "run-ns"] == 7.0
    assert found.mean_ms("job", "commit-ns") is None
    assert found.subjects("stream.") == ["local.in", "local.out"]


def test_a_history_is_bounded_and_goes_on_with_the_next_run() -> None:
    history = History()
    for number in range(MOMENTS + 50):
        history.add(totals(1_000 * number, number))
    assert len(history.intervals) == MOMENTS
    history.add(totals(900_000, 1, run="b"))
    history.add(totals(901_000, 11, run="b"))
    (now,) = history.of_this_start
    assert now.read == {"local.in": 40.0}


def test_what_an_application_may_do_to_its_own_metrics() -> None:
    odd = Snapshot(
        {
            MetricId("Partition 0", "stage.mine", "messages-actually-processed"): CounterValue(3),
            MetricId("Partition 0", "store.x", "keys"): GaugeValue(float("nan")),
        }
    )
    found = between(Totals.of("a", 1_000, odd), Totals.of("a", 2_000, odd))
    assert found is not None
    assert found.processed == {}
    assert Totals.of("a", 1_000, odd).known("store.x", "keys") is None


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
