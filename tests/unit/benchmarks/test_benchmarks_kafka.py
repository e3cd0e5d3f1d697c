"""The parts of the benchmark of Kafka that need no broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from benchmarks.common import SideRun, UsageSampler
from benchmarks.kafka import per_message, rates
from benchmarks.kafka_flow import check, percentile
from benchmarks.kafka_load import EVERY, first_sent, sends
from benchmarks.kafka_report import equal, report, save
from benchmarks.workload import key_name

RUN = {
    "rows_per_second": 10,
    "cpu_us_per_row": 1.0,
    "peak": {"total_bytes": 1},
    "verified": {"equal": True},
    "seconds": 1.0,
    "others_cpu_seconds": 1.0,
}


def side_run(samples: list[tuple[float, int]]) -> SideRun:
    return SideRun({"samples": samples}, UsageSampler(2**22 + 1).close(), 1.0)


def test_a_tenth_of_the_counts_is_sent_from_the_start() -> None:
    sent = [sum(sends(key_name(key), number) for key in range(100)) for number in range(1, 21)]
    assert sent == [100 // EVERY] * 20
    assert [first_sent(key_name(key)) for key in (0, 1, 2)] == [2, 1, 10]


def test_rows_count_from_the_last_ones_within_the_warm_up_to_the_last_ones() -> None:
    steady = [(float(n), max(0, n - 3) * 100) for n in range(15)]
    found = rates(side_run(steady), 4)
    assert (found["rows"], found["measured_s"], found["rows_per_second"]) == (600, 6.0, 100)
    batches = [(0.0, 0), (1.0, 0), (9.0, 1000), (15.0, 1000), (19.0, 2000), (24.0, 2000)]
    found = rates(side_run(batches), 4)
    assert (found["rows"], found["measured_s"], found["rows_per_second"]) == (1000, 10.0, 100)


def test_what_is_lost_or_repeated_is_seen() -> None:
    assert check(3, [-1, 0, 2, 1]) == {"equal": True, "sent": 3, "lost": 0, "repeated": 0}
    assert check(3, [0, 2, 2]) == {"equal": False, "sent": 3, "lost": 1, "repeated": 1}
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0


def test_bytes_of_the_outbox_are_by_message_and_commit() -> None:
    found = per_message({"outbox_messages": 10, "commits_with_output": 2, "outbox_bytes": 640})
    assert found == {"outbox_bytes_per_message": 64.0, "outbox_bytes_per_commit": 320}
    none = per_message({"outbox_messages": 0, "commits_with_output": 0, "outbox_bytes": 0})
    assert set(none.values()) == {None}


def test_a_part_leaves_the_others_in_the_file(tmp_path: Path) -> None:
    path, facts = tmp_path / "kafka.json", {"cores": 2}
    restart: dict[str, list[dict[str, Any]]] = {"penstock": [{"restart_ms": 5}]}
    save(path, "restart", facts, {}, restart)
    save(path, "throughput", facts, {}, {"penstock, 1 s": [RUN]})
    save(path, "throughput", facts, {}, {"quix, 1 s": [RUN]})
    found = orjson.loads(path.read_bytes())
    assert found["restart"]["runs"] == restart
    assert list(found["throughput"]["runs"]) == ["quix, 1 s"]
    assert found["throughput"]["contention"] == ["quix, 1 s: 50%"]


def test_a_run_that_is_wrong_is_not_equal() -> None:
    runs = {"penstock, 1 s": [RUN], "quix, 1 s": [RUN, {**RUN, "verified": {"equal": False}}]}
    report("throughput", runs)
    assert not equal(runs)
    assert equal({"penstock": [{"restart_ms": 1}]})
