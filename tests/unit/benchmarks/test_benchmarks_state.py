"""The benchmarks of commits and restores: how they count, the slow store, and each of them at a tiny size."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from benchmarks import async_commit, commit, commit_figures, restore, slow_backend, snapshot
from benchmarks.side_state import settle
from benchmarks.slow_backend import NAME, Line, SlowStore, environment
from benchmarks.spark_loads import Load, first_load
from benchmarks.state_content import KEY_BYTES, VALUE_BYTES, StateContent, keys_of
from benchmarks.state_inputs import write_state_inputs
from benchmarks.state_job import STORE, StateJob, files_below
from penstock.config.table import BACKENDS
from penstock.objects.file import FileObjectStore
from penstock.state.backends.registry import backend_factory


def side(least_ms: float, most_ms: float = 0.0) -> dict[str, Any]:
    return {"snapshot": {"median_ms": least_ms}, "copies": {"median_ms": most_ms}}


def batch(number: int, ended: float, rows: int = 100) -> dict[str, Any]:
    return {"batch": number, "rows": rows, "ended": ended, "duration_ms": {"triggerExecution": 1}}


def commit_of(began: float, upload_ms: float = 500.0) -> dict[str, float]:
    return {"began": began, "completed": began + 1, "upload_ms": upload_ms, "snapshot_ms": 2.0}


def series(
    changed: int, wait_ms: float, durable_ms: float, written: int, zstd_bytes: int | None = None
) -> dict[str, Any]:
    """One with three commits of these and longer times."""
    times = [
        {"wait_ms": factor * wait_ms, "durable_ms": factor * durable_ms, "beside_snapshot": factor == 3}
        for factor in (3, 1, 1)
    ]
    zstd = {} if zstd_bytes is None else {"zstd_bytes": zstd_bytes}
    return {"changed": changed, "net_bytes": 100, "delta_bytes": written, "snapshot_bytes": 0, "times": times, **zstd}


def committed(*own: dict[str, Any]) -> dict[str, Any]:
    return commit_figures.summarise({"series": own}, changelog=True)


def loads(*events: tuple[int, str]) -> list[str]:
    store = "RocksDB StateStoreProviderId[ storeId=StateStoreId[ operatorId=0, partitionId=0 ], queryRunId=a ]"
    return [f"{moment} {store}: {what}" for moment, what in events]


class TestStateContent:
    def test_is_the_same_however_it_is_cut_and_asked_for(self) -> None:
        whole, cut = StateContent(20), StateContent(20)
        (one,) = whole.add(1000, at_once=1000)
        parts = list(cut.add(1000, at_once=7))
        assert one.keys == [key for part in parts for key in part.keys]
        assert one.values == [value for part in parts for value in part.values]
        first, second = whole.change(10), whole.change(10)
        cut.change(500)
        assert (cut.change(10), cut.change(10)) == (first, second)
        assert first != second

    def test_changes_are_of_different_keys_of_the_state(self) -> None:
        content = StateContent(20)
        keys = [key for part in content.add(100) for key in part.keys]
        assert sorted(content.change(100).keys) == sorted(keys)

    def test_sizes(self) -> None:
        content = StateContent()
        (entries,) = content.add(100)
        assert set(map(len, entries.keys)) == {KEY_BYTES}
        assert set(map(len, entries.values)) == {VALUE_BYTES}
        assert entries.size_bytes == 100 * (KEY_BYTES + VALUE_BYTES)
        assert keys_of(1) * (KEY_BYTES + VALUE_BYTES) <= 1 << 20 < (keys_of(1) + 1) * (KEY_BYTES + VALUE_BYTES)

    def test_the_files_hold_the_same_in_their_order(self, tmp_path: Path) -> None:
        inputs = write_state_inputs(tmp_path / "inputs", 100, 20, [5, 7, 5], fill_keys=40)
        assert (inputs.fill, inputs.changes) == (3, 3)
        files = sorted((tmp_path / "inputs").iterdir())
        assert files == [inputs.file(number) for number in range(6)]
        assert [path.stat().st_mtime for path in files] == sorted({path.stat().st_mtime for path in files})
        content = StateContent(20)
        expected = [*content.add(100, 40), *(content.change(count) for count in (5, 7, 5))]
        for path, entries in zip(files, expected, strict=True):
            table = pq.read_table(path)
            assert [key.encode() for key in table["key"].to_pylist()] == entries.keys
            assert table["value"].to_pylist() == entries.values


class TestStateJob:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_every_commit_restores_what_the_engine_holds(self, tmp_path: Path, backend: str) -> None:
        with closing(StateJob(tmp_path / "job", backend, 20)) as job:
            job.fill(500)
            for number in range(3):
                before = dict(job.engine.scan(None, None))
                job.change(50)
                after = dict(job.engine.scan(None, None))
                assert len(after) == 500
                assert sum(before[key] != value for key, value in after.items()) == 50
                times = job.commit()
                assert min(times.snapshot_ms, times.copies_ms, times.upload_ms) >= 0
                engine, counted = job.restore(tmp_path / f"restored-{number}")
                with closing(engine):
                    assert dict(engine.scan(None, None)) == after
                assert counted >= 500 * 20
            assert job.durable_bytes() > 500 * 20

    def test_the_working_copy_is_gone_when_it_is_closed(self, tmp_path: Path) -> None:
        with closing(StateJob(tmp_path, "blob", 20)) as job:
            job.fill(10)
            job.commit()
            assert files_below(tmp_path / "local" / "state-1-uid" / STORE)
        assert files_below(tmp_path / "local") == []

    def test_deltas_and_snapshots_are_counted_apart(self, tmp_path: Path) -> None:
        # Two is the largest interval that chance does not change: a quarter more or less of three is two to four.
        settings = {"state.snapshot.interval.commits": "2", "state.snapshot.interval.seconds": "0"}
        with closing(StateJob(tmp_path, "changelog-files", 1000, settings)) as job:
            job.fill(200)
            job.commit()
            base = job.written()
            assert (base.delta_bytes, base.snapshots) == (0, 1)
            assert base.snapshot_bytes == job.durable_bytes() > 200 * 1000
            job.change(10)
            job.commit()
            after = job.written()
            assert 10_000 < after.delta_bytes < 12_000
            assert after.snapshot_bytes == base.snapshot_bytes
            assert job.snapshots_under_way() == (False, 1)
            for _ in range(2):
                job.change(10)
                job.commit()
            job.finish_snapshots()
            assert job.snapshots_under_way() == (False, 2)
            assert job.written().snapshots == 2
            assert sum((job.written().delta_bytes, job.written().snapshot_bytes)) == job.durable_bytes()

    def test_settling_changes_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"x" * 10_000)
        for page_cache in ("warm", "cold"):
            settle([tmp_path], page_cache)
            assert (tmp_path / "a").read_bytes() == b"x" * 10_000


class TestSlowStore:
    def test_calls_wait_side_by_side_and_their_bytes_one_after_the_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waits: list[float] = []
        together = threading.Barrier(4, timeout=60)

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            together.wait()

        monkeypatch.setattr(slow_backend, "time", SimpleNamespace(monotonic=lambda: 10.0, sleep=sleep))
        line = Line(0.1, 1_000_000)
        threads = [threading.Thread(target=line.call, args=(50_000,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not together.broken
        assert sorted(waits) == pytest.approx([0.15, 0.2, 0.25, 0.3])

    def test_without_a_bandwidth_only_the_latency_counts(self, waits: list[float]) -> None:
        Line(0.05, 0).call(1 << 40)
        assert waits == pytest.approx([0.05])

    @pytest.fixture
    def waits(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """What a line would wait, on a clock that stands still."""
        waits: list[float] = []
        monkeypatch.setattr(slow_backend, "time", SimpleNamespace(monotonic=lambda: 10.0, sleep=waits.append))
        return waits

    def test_passes_calls_on(self, tmp_path: Path) -> None:
        store = SlowStore(FileObjectStore(tmp_path), Line(0.0, 0.0))
        assert store.put_if_absent("a/b", b"x")
        assert store.get("a/b") == b"x"
        assert store.put_if_match("a/b", b"y", store.get_with_tag("a/b")[1])
        assert store.list("a") == ["a/b"]
        store.delete("a/b")
        assert store.list("a") == []
        store.close()

    def test_is_a_backend_that_the_environment_makes_slow(
        self, monkeypatch: pytest.MonkeyPatch, waits: list[float]
    ) -> None:
        assert backend_factory(NAME).name == NAME
        for name, value in environment(20, 1000).items():
            monkeypatch.setenv(name, value)
        Line.of_environment().call(100)
        assert waits == pytest.approx([0.12])


class TestCounting:
    def test_the_ratio_is_that_of_the_largest_and_the_smallest_state(self) -> None:
        sides = {1000: side(2.0, 4.0), 10: side(1.0, 2.0), 100: side(9.0, 9.0)}
        assert snapshot.ratios(sides) == {"snapshot": 2.0, "copies": 2.0}
        assert not snapshot.is_reached(sides)
        assert snapshot.is_reached({10: side(2.0), 100: side(3.0)})
        assert snapshot.is_reached({10: side(0.01), 100: side(0.9)})

    def test_a_series_is_shorter_the_more_keys_it_changes(self) -> None:
        found = commit_figures.plan([1_000_000, 10, 1000], 100_000, most=50, budget_keys=5000)
        assert found == [{"changed": 10, "commits": 50}, {"changed": 1000, "commits": 5}]
        assert commit_figures.plan([100_000], 100_000, 50, 5000) == [{"changed": 100_000, "commits": 4}]

    def test_a_percentile_is_a_value_that_was_measured(self) -> None:
        values = list(range(1, 101))
        assert [commit_figures.percentile(values, share) for share in (0.01, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
        assert commit_figures.percentile([3, 1, 2], 0.99) == 3

    def test_a_series_is_counted_by_what_its_commits_wrote(self) -> None:
        found = commit_figures.summarise({"series": [series(7, 1.0, 4.0, 90, 80)]}, changelog=True)["series"][7]
        assert (found["wait"], found["durable"]["p99_ms"]) == ({"p50_ms": 1.0, "p99_ms": 3.0}, 12.0)
        assert (found["bytes_per_changed_byte"], found["of_zstd"], found["beside_snapshot"]) == (0.9, 1.125, 0.333)
        snapshots = {**series(7, 1.0, 4.0, 90), "snapshot_bytes": 500}
        found = commit_figures.summarise({"series": [snapshots]}, changelog=False)["series"][7]
        assert (found["bytes_per_changed_byte"], found["of_zstd"]) == (5.0, None)

    def test_commits_of_both_states_are_compared_where_they_changed_as_many_keys(self) -> None:
        small = committed(series(10, 0.1, 4.0, 90, 90))
        large = committed(series(10, 0.2, 6.0, 90, 90), series(1000, 9.0, 90.0, 99, 90))
        states = {1024: large, 10: small}
        assert commit_figures.growth(states) == {10: {"wait": 2.0, "durable": 1.5}}
        assert commit_figures.is_independent(states)
        slower = {1024: committed(series(10, 0.1, 6.1, 90, 90)), 10: small}
        assert not commit_figures.is_independent(slower)
        waiting = {1024: committed(series(10, 1.1, 4.0, 90, 90)), 10: small}
        assert not commit_figures.is_independent(waiting)
        assert commit_figures.of_zstd({"deltas": states, "snapshots": slower}) == 1.1
        assert commit_figures.of_zstd({}) is None

    def test_other_sides_are_counted_in_commits_of_deltas(self) -> None:
        sides = {
            "deltas": {5: committed(series(10, 0.1, 4.0, 90)), 50: committed(series(10, 0.1, 2.0, 90))},
            "spark": {50: committed(series(10, 9.0, 9.0, 180), series(20, 1, 1, 1))},
        }
        assert commit_figures.ratios(sides) == {"spark": {10: {"durable": 4.5, "bytes": 2.0}}}
        assert commit_figures.ratios({"spark": sides["spark"]}) == {"spark": {}}

    def test_the_fastest_restore_counts(self) -> None:
        rounds = [
            {"cp_seconds": cp, "restore_seconds": seconds, "verified": verified}
            for cp, seconds, verified in [(1.0, 2.0, True), (3.0, 8.0, False), (3.0, 4.0, None)]
        ]
        found = restore.summarise({"rounds": rounds})
        assert (found["ratio_to_cp"], found["slowest_restore_seconds"], found["verified"]) == (0.5, 8.0, False)
        assert (found["median_cp_seconds"], found["median_restore_seconds"]) == (3.0, 4.0)
        assert restore.summarise({"rounds": rounds[2:]})["verified"] is None
        assert restore.summarise({"rounds": [rounds[0], rounds[2]]})["verified"] is True

    def test_what_a_delta_adds_to_a_restore(self) -> None:
        own = {0: {"restore_seconds": 1.0}, 20: {"restore_seconds": 1.1}, 100: {"restore_seconds": 3.0}}
        assert restore.per_delta_ms(own) == 20.0
        assert restore.per_delta_ms({5: {"restore_seconds": 1.0}}) is None
        spark = {"points": {0: {"restore_seconds": 3.0}, 100: {"restore_seconds": 6.0}}}
        assert restore.ratios({"changelog-files": {"points": own}, "spark": spark}) == {0: 3.0, 100: 2.0}
        assert restore.ratios({"spark": spark}) == {}

    def test_the_first_load_that_spark_logs_counts(self) -> None:
        lines = loads(
            (1000, "Loading 6 with stateStoreCkptId: "),
            (1010, "some news"),
            (1100, "Replaying changelog from version 4 -> Some(6)"),
            (1101, "replaying changelog from version 5 with unique Id: None"),
            (1150, "replaying changelog from version 6 with unique Id: None"),
            (1200, "Loaded 6"),
            (1300, "Loading 6 with stateStoreCkptId: "),
            (1301, "Loaded 6"),
        )
        assert first_load(["1 StateStore: Loading 6 with", *lines]) == Load(200, 100, 2)
        assert first_load(lines[6:]) == Load(1, 1, 0)
        with pytest.raises(ValueError, match="no load"):
            first_load(lines[:5])

    def test_rows_and_commits_between_the_warm_up_and_the_last_batch_count(self) -> None:
        batches = [batch(number, ended=10.0 + number) for number in range(1, 9)]
        commits = [commit_of(1.0), commit_of(14.5, 100), commit_of(16.0, 300), commit_of(18.5)]
        found = async_commit.summarise({"batches": batches, "commits": commits})
        assert found["rows_per_second"] == 100.0
        assert (found["commits"], found["upload_ms"], found["snapshot_ms"]) == (2, 200.0, 2.0)

    def test_without_commits_nothing_is_said_of_them(self) -> None:
        found = async_commit.summarise({"batches": [batch(1, 1.0), batch(2, 2.0)], "commits": []})
        assert (found["rows_per_second"], found["commits"], found["upload_ms"]) == (100.0, 0, None)
        one = {**found, "peak": {"total_bytes": 7}, "verified": {"equal": True}}
        combined = async_commit.combine([one, {**one, "rows_per_second": 300.0}])
        assert (combined["rows_per_second"], combined["upload_ms"], combined["peak_bytes"]) == (200, None, 7)

    def test_a_side_is_compared_with_the_one_without_commits_of_the_same_round(self) -> None:
        sides = {
            mode: {"rounds": [{"rows_per_second": each} for each in rows]}
            for mode, rows in {"none": [200, 100, 300], "asynchronous": [190, 99, 270]}.items()
        }
        assert async_commit.ratios(sides) == {"asynchronous": 0.95}
        assert async_commit.ratios({"asynchronous": sides["asynchronous"]}) == {}

    @pytest.mark.parametrize(
        ("benchmark", "given"),
        [
            (snapshot, ["--sizes", "0"]),
            (commit, ["--changed", "10", "0"]),
            (commit, ["--megabytes", "10"]),
            (restore, ["--megabytes", "0"]),
            (restore, ["--deltas", "-1"]),
            (async_commit, ["--batches", "1"]),
            (async_commit, ["--events", "1001"]),
        ],
    )
    def test_senseless_numbers_are_refused(
        self, capsys: pytest.CaptureFixture[str], benchmark: ModuleType, given: list[str]
    ) -> None:
        with pytest.raises(SystemExit):
            benchmark.arguments(given)
        assert "must be" in capsys.readouterr().err

    def test_a_senseless_budget_of_changed_keys_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            commit.arguments(["--budget-keys", "0"])
        assert "must be" in capsys.readouterr().err


class TestSmoke:
    def test_snapshot(self, tmp_path: Path) -> None:
        path = tmp_path / "snapshot.json"
        given = ["--sizes", "50", "400", "--changed", "100", "--repeat", "2", "--backends", "blob", "changelog-files"]
        assert snapshot.main([*given, "--json", str(path)]) == 0
        result = orjson.loads(path.read_bytes())
        assert result["machine"]["cores"]
        for sides in result["sides"].values():
            assert {keys: len(side["commits"]) for keys, side in sides.items()} == {"50": 2, "400": 2}
            assert all(side["verified"] for side in sides.values())
        assert result["sides"]["blob"]["400"]["copies"]["median_ms"] > 0
        assert "snapshot" in result["ratios"]["blob"]

    def test_commit(self, tmp_path: Path) -> None:
        path = tmp_path / "commit.json"
        given = ["--megabytes", "2", "--small-megabytes", "1", "--changed", "50", "10000", "--commits", "30"]
        given += ["--budget-keys", "50000", "--sides", "deltas", "snapshots"]
        assert commit.main([*given, "--json", str(path)]) == 0
        result = orjson.loads(path.read_bytes())
        deltas, snapshots = (result["sides"][side] for side in ("deltas", "snapshots"))
        for states in (deltas, snapshots):
            assert {size: list(state["series"]) for size, state in states.items()} == {
                "2": ["50", "10000"],
                "1": ["50"],
            }
            assert len(states["2"]["series"]["50"]["times"]) == 30
            assert all(state["verified"] for state in states.values())
        assert 1 < result["of_zstd"] < 1.05
        few = deltas["2"]["series"]["50"]
        assert few["net_bytes"] == 30 * 50 * 116
        assert few["delta_bytes"] > 0.9 * few["net_bytes"]
        assert 0 < few["beside_snapshot"] < 1
        assert 0 < deltas["2"]["snapshots"] < 5
        commits = 2 * commit.WARM_UP + 30 + 5
        assert snapshots["2"]["snapshots"] == commits
        assert snapshots["2"]["series"]["10000"]["delta_bytes"] == 0
        assert result["growth"]["deltas"]["50"]["durable"] > 0
        assert result["ratios"]["snapshots"]["10000"]["bytes"] > 0.9

    @pytest.mark.parametrize("page_cache", ["cold", pytest.param("warm", marks=pytest.mark.slow)])
    def test_restore(self, tmp_path: Path, page_cache: str) -> None:
        path = tmp_path / "restore.json"
        given = ["--megabytes", "1", "--deltas", "0", "2", "--changed", "100", "--repeat", "2"]
        given += ["--page-cache", page_cache, "--sides", *BACKENDS]
        assert restore.main([*given, "--json", str(path)]) == 0
        result = orjson.loads(path.read_bytes())
        assert {name: list(side["points"]) for name, side in result["sides"].items()} == {
            "changelog-files": ["0", "2"],
            "blob": ["2"],
            "changelog-stream": ["2"],
        }
        for side in result["sides"].values():
            for point in side["points"].values():
                assert point["verified"]
                assert point["durable_bytes"] > 900_000
                assert all(one["restored_bytes"] > 900_000 for one in point["rounds"])
        none, two = result["sides"]["changelog-files"]["points"].values()
        assert 2 * 100 * 100 < two["durable_bytes"] - none["durable_bytes"] < 2 * 100 * 140
        read_without, read_with = (point["rounds"][0]["restored_bytes"] for point in (none, two))
        assert read_with - read_without == two["durable_bytes"] - none["durable_bytes"]

    @pytest.mark.spark
    @pytest.mark.slow
    def test_commit_by_spark(self, tmp_path: Path) -> None:
        path = tmp_path / "commit.json"
        given = ["--megabytes", "1", "--small-megabytes", "0", "--changed", "50", "500", "--spark-commits", "4"]
        assert commit.main([*given, "--sides", "spark", "--json", str(path)]) == 0
        state = orjson.loads(path.read_bytes())["sides"]["spark"]["1"]
        assert state["verified"]
        for changed, one in state["series"].items():
            assert len(one["times"]) == 4
            assert one["net_bytes"] == 4 * int(changed) * 116
            assert 0.8 < one["bytes_per_changed_byte"] < 2
            assert one["wait"]["p50_ms"] > 0

    @pytest.mark.spark
    @pytest.mark.slow
    def test_restore_by_spark(self, tmp_path: Path) -> None:
        path = tmp_path / "restore.json"
        given = ["--megabytes", "1", "--deltas", "0", "2", "--changed", "100", "--repeat", "2", "--sides", "spark"]
        assert restore.main([*given, "--json", str(path)]) == 0
        points = orjson.loads(path.read_bytes())["sides"]["spark"]["points"]
        assert points["2"]["verified"]
        for deltas, point in points.items():
            for one in point["rounds"]:
                assert one["replayed"] == int(deltas)
                assert 0 < one["restore_seconds"] < one["start_seconds"]

    @pytest.mark.spark
    @pytest.mark.slow
    def test_async_commit(self, tmp_path: Path) -> None:
        path = tmp_path / "async.json"
        given = ["--events", "4000", "--batches", "10", "--keys", "50", "--commit-ms", "1", "--latency-ms", "20"]
        assert async_commit.main([*given, "--repeat", "1", "--json", str(path)]) == 0
        sides = orjson.loads(path.read_bytes())["sides"]
        assert list(sides) == list(async_commit.MODES)
        assert all(found["verified"] for found in sides.values())
        assert sides["none"]["commits"] == [0]
        for mode in ("asynchronous", "synchronous"):
            assert sides[mode]["commits"][0] > 0
            assert sides[mode]["upload_ms"] >= 20
        # Whoever waits has its commits in the batches' own time, whoever does not commits as often as it can.
        assert sides["synchronous"]["commits"][0] == 6
