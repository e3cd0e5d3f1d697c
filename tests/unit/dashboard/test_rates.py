"""Rates and parts of batches, from metrics at two moments."""

from __future__ import annotations

import pytest

from penstock.dashboard.work import MOMENTS, PARTS, STALE_MS, History, Interval, TaskShare, Totals, between, whole
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
