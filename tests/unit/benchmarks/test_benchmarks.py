"""The benchmarks' own parts: what they make, how they count, and the processes they start and watch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest

from benchmarks.common import (
    MemoryPeak,
    SideFailedError,
    SideRun,
    Usage,
    UsageSampler,
    contention,
    run_side,
    write_json,
)
from benchmarks.keyed_fold import Form, Outcome, Side, arguments, chosen_sides, cpu_per_row, rate, ratios
from benchmarks.scans import growth as scan_growth
from benchmarks.scans import medians
from benchmarks.side_scans import rocksdb, store
from benchmarks.side_timers import in_process
from benchmarks.soak import growth
from benchmarks.window_workload import BOUND_MS, Panes, WindowWorkload, compare_panes
from benchmarks.windows import chosen_sides as window_sides
from benchmarks.workload import STREAM, Workload, compare, write_inputs
from penstock.system.local import LocalSystem

SMALL = Workload(events=400, batches=4, keys=20)


def echo(parameters: dict[str, Any]) -> dict[str, Any]:
    """A side that says what it got and which process it was."""
    return {**parameters, "pid": os.getpid()}


def fail(parameters: dict[str, Any]) -> None:
    raise ValueError(f"no {parameters['what']}")


def hold(parameters: dict[str, Any]) -> dict[str, Any]:
    """A side that holds memory and burns time long enough to be seen."""
    block = bytearray(os.urandom(1 << 20) * parameters["megabytes"])
    began = time.process_time()
    while time.process_time() < began + 1:
        sum(range(1000))
    return {"bytes": len(block)}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def outcome(kind: str, form: Form, rows_per_second: int, *, equal: bool = True) -> Outcome:
    duration = {"triggerExecution": 1000}
    batches = [{"rows": rows_per_second, "duration_ms": duration} for _ in range(5)]
    one = {"batches": batches, "verified": {"equal": equal}, "peak": {"total_bytes": 1}, "cpu_us_per_row": {"jvm": 2.0}}
    return Outcome(Side(kind, form), [one])


class TestWorkload:
    def test_is_the_same_for_the_same_seed(self) -> None:
        assert SMALL.totals() == Workload(400, 4, 20).totals()
        assert SMALL.totals() != Workload(400, 4, 20, seed=1).totals()

    def test_totals_are_those_of_its_records(self) -> None:
        totals: dict[str, tuple[int, float]] = {}
        for keys, amounts in SMALL.records():
            assert len(keys) == SMALL.batch_events
            for key, amount in zip(keys, amounts, strict=True):
                count, total = totals.get(key, (0, 0.0))
                totals[key] = (count + 1, total + amount)
        assert totals == SMALL.totals()

    def test_every_form_holds_the_same_events(self, tmp_path: Path) -> None:
        inputs = write_inputs(SMALL, tmp_path, 2)
        expected = [pair for keys, amounts in SMALL.records() for pair in zip(keys, amounts, strict=True)]
        lines = [orjson.loads(x) for f in sorted(inputs.files("json").iterdir()) for x in f.read_bytes().splitlines()]
        assert [(line["key"], line["amount"]) for line in lines] == expected
        tables = [pq.read_table(path).to_pylist() for path in sorted(inputs.files("parquet").iterdir())]
        assert [(row["key"], row["amount"]) for table in tables for row in table] == expected
        system = LocalSystem("local", str(inputs.streams))
        admin = system.admin()
        assert [ends.upcoming for ends in admin.offsets(STREAM).values()] == [200, 200]
        admin.close()

    def test_files_are_ordered_by_time(self, tmp_path: Path) -> None:
        files = sorted(write_inputs(SMALL, tmp_path, 2).files("json").iterdir())
        times = [path.stat().st_mtime for path in files]
        assert times == sorted(set(times))

    def test_compare_names_what_differs(self) -> None:
        expected = SMALL.totals()
        assert compare(expected, expected)["equal"]
        wrong = {**expected, "key-000003": (0, 0.0)}
        found = compare(wrong, expected)
        assert not found["equal"]
        assert found["wrong_keys"] == 1
        assert "key-000003" in found["examples"][0]


class TestWindows:
    SMALL = WindowWorkload(events=4000, batches=8, keys=20)

    def test_panes_are_those_of_the_events_in_time(self) -> None:
        cells: dict[tuple[int, int], list[float]] = {}
        for keys, times, amounts, late in self.SMALL.columns():
            for key, moment, amount, is_late in zip(keys, times, amounts, late, strict=True):
                if not is_late:
                    cells.setdefault((int(moment) // 60_000 * 60_000, int(key)), []).append(amount)
        rows = [(f"key-{key:06d}", start, len(some), sum(some) / len(some)) for (start, key), some in cells.items()]
        assert compare_panes(Panes.of_rows(rows), self.SMALL.panes())["equal"]
        assert not compare_panes(Panes.of_rows(rows[1:]), self.SMALL.panes())["equal"]

    def test_late_is_what_every_side_takes_for_late(self) -> None:
        """By the rule of all sides: the window ended at the watermark of the batch before, or earlier."""
        highest: list[int] = []
        for number, (_, times, _, late) in enumerate(self.SMALL.columns()):
            mark = highest[number - 2] - BOUND_MS if number >= 2 else 0
            assert ((times // 60_000 * 60_000 + 60_000 <= mark) == late).all()
            highest.append(int(times.max()))
        assert 0.02 < np.concatenate([late for *_, late in self.SMALL.columns()]).mean() < 0.08

    def test_the_short_side_gets_the_first_batches(self) -> None:
        short = self.SMALL.first(3)
        assert (short.events, short.batch_events) == (1500, 500)
        for mine, theirs in zip(short.columns(), self.SMALL.columns(), strict=False):
            assert all((a == b).all() for a, b in zip(mine, theirs, strict=True))

    def test_a_side_of_each_input(self) -> None:
        names = [side.name for side in window_sides(["fold", "aggregation", "transformWithState"])]
        assert names == ["penstock, fold", "aggregation, json", "aggregation, parquet", "transformWithState, parquet"]


class TestCounting:
    def test_a_batch_counts_with_the_longer_of_its_times(self) -> None:
        assert rate({"rows": 100, "duration_ms": {"triggerExecution": 100}}) == 1000
        assert rate({"rows": 100, "duration_ms": {"triggerExecution": 100}, "interval_ms": 200}) == 500

    def test_the_warm_up_does_not_count(self) -> None:
        own = outcome("penstock", "stream", 1000)
        own.rounds[0]["batches"][0] = {"rows": 1, "duration_ms": {"triggerExecution": 1000}}
        assert own.rates() == [1000.0] * 3

    def test_of_sparks_inputs_the_faster_one_counts(self) -> None:
        outcomes = [
            outcome("penstock", "stream", 3000),
            outcome("aggregation", "json", 1000),
            outcome("aggregation", "parquet", 2000),
        ]
        assert ratios(outcomes) == {"aggregation": 1.5}

    def test_one_wrong_round_is_not_verified(self) -> None:
        assert outcome("penstock", "stream", 1).verified
        assert not outcome("penstock", "stream", 1, equal=False).verified

    def test_sides(self) -> None:
        names = [side.name for side in chosen_sides(["penstock", "aggregation", "transformWithState"], "both")]
        assert names == ["penstock", "aggregation, json", "aggregation, parquet", "transformWithState, parquet"]
        assert [s.name for s in chosen_sides(["transformWithState"], "json")] == ["transformWithState, json"]

    def test_unequal_batches_are_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            arguments(["--events", "1001"])
        assert "multiple" in capsys.readouterr().err

    def test_processor_time_is_that_after_the_warm_up(self) -> None:
        series = ((0.0, {"jvm": 1.0}), (10.0, {"jvm": 5.0}), (20.0, {"jvm": 8.0, "containers": 1.0}))
        run = SideRun({}, Usage(MemoryPeak(), {}, 0.0, series), 20.0)
        batches = [
            {"rows": 10, "ended": ended, "duration_ms": {"triggerExecution": 1000}} for ended in (5, 10.1, 15, 20.1)
        ]
        assert cpu_per_row(run, batches) == {"jvm": 150_000.0, "containers": 50_000.0}

    def test_contention_is_told(self) -> None:
        quiet = {"seconds": 10.0, "others_cpu_seconds": 1.0}
        busy = {"seconds": 10.0, "others_cpu_seconds": 10.0}
        assert contention({"a": [quiet], "b": [quiet, busy]}, 2) == ["b: 5%, 50%"]


class TestSides:
    def test_runs_in_a_process_of_its_own(self, tmp_path: Path) -> None:
        run = run_side("test_benchmarks:echo", {"x": 1}, tmp_path)
        assert run.result["x"] == 1
        assert run.result["pid"] != os.getpid()

    def test_a_failure_shows_the_end_of_the_log(self, tmp_path: Path) -> None:
        with pytest.raises(SideFailedError, match="no luck"):
            run_side("test_benchmarks:fail", {"what": "luck"}, tmp_path)

    def test_memory_and_processor_time_are_seen(self, tmp_path: Path) -> None:
        run = run_side("test_benchmarks:hold", {"megabytes": 50}, tmp_path)
        assert run.usage.peak.by_kind["driver"] > 50 << 20
        assert run.usage.cpu_seconds["driver"] > 0.2

    def test_a_sampler_without_processes_says_nothing(self) -> None:
        usage = UsageSampler(2**22 + 1).close()
        assert usage.peak.total_bytes == 0
        assert usage.cpu_between(0, time.time()) == {}

    def test_what_the_benchmark_started_is_no_other_program(self) -> None:
        sampler = UsageSampler(2**22 + 1)
        spin = "import time\nwhile time.process_time() < 60: pass"
        with subprocess.Popen([sys.executable, "-c", spin], start_new_session=True) as process:
            while not (seen := sampler._beside.get(process.pid)) or seen[1] < 0.3:
                time.sleep(0.01)
            process.kill()
        sampler.close()
        first, last = sampler._beside[process.pid]
        assert first == 0
        assert last >= 0.3
        assert os.getpid() in sampler._beside

    def test_json_is_written_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "results" / "x.json"
        write_json(path, {"a": 1})
        assert orjson.loads(path.read_bytes()) == {"a": 1}
        assert [p.name for p in path.parent.iterdir()] == ["x.json"]


class TestSoak:
    def samples(self, *values: int, kind: str = "containers", figure: str = "memory_bytes") -> list[dict[str, Any]]:
        return [{"batches": n * 10, "figures": {kind: {figure: value}}} for n, value in enumerate(values, 1)]

    def test_a_steady_rise_is_growth(self) -> None:
        (found,) = growth(self.samples(*(n * (8 << 20) for n in range(7))))
        assert (found.early, found.late, found.batches) == (2 * (8 << 20), 5 * (8 << 20), 30)
        assert found.too_much
        assert str(found) == "memory_bytes of containers: 16 MB -> 40 MB in 30 batches"

    def test_warm_up_and_single_peaks_are_none(self) -> None:
        (found,) = growth(self.samples(0, 500 << 20, 500 << 20, 500 << 20, 505 << 20, 900 << 20, 501 << 20))
        assert not found.too_much

    def test_a_log_may_grow_with_the_batches(self) -> None:
        (slow,) = growth(self.samples(*(n * 500 for n in range(7)), figure="log_bytes"))
        (fast,) = growth(self.samples(*(n * 5000 for n in range(7)), figure="log_bytes"))
        assert (slow.too_much, fast.too_much) == (False, True)

    def test_a_kind_that_comes_later_counts_from_nothing(self) -> None:
        late = self.samples(*([30 << 20] * 3), kind="spark workers")
        (found,) = growth([*({"batches": 0, "figures": {}} for _ in range(4)), *late])
        assert found.too_much

    def test_too_few_samples_show_nothing(self) -> None:
        with pytest.raises(ValueError, match="at least 3"):
            growth(self.samples(1, 2))


class TestScans:
    @pytest.mark.parametrize("side", [store, rocksdb])
    def test_both_sides_find_the_same_entries(
        self, side: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
    ) -> None:
        found = side({"messages": 50, "waiting": 10, "limit_s": 30, "work": str(tmp_path)})
        assert set(found) == {"queue_us", "entry_us", "first_us"}
        assert all(value > 0 for value in found.values())
        assert list(tmp_path.iterdir()) == []

    def test_a_queue_that_takes_too_long_has_no_figure(self, tmp_path: Path) -> None:
        found = rocksdb({"messages": 50, "waiting": 10, "limit_s": 0, "work": str(tmp_path)})
        assert found["queue_us"] is None
        assert medians({"queue_us": [1.0, None], "entry_us": [3.0, 1.0, 2.0]}) == {"queue_us": None, "entry_us": 2.0}

    def test_growth_is_that_from_the_smallest_batch(self) -> None:
        assert scan_growth({1000: 50.0, 10_000: 40.0, 100_000: 75.0}) == 1.5
        assert scan_growth({1000: 50.0, 100_000: None}) is None


def test_timers_are_set_cancelled_and_fired(tmp_path: Path) -> None:
    found = in_process({"work": str(tmp_path), "timers": 300, "batch": 100})
    assert len(found) == 7
    assert min(found.values()) > 0
