"""The benchmarks of commits and restores: how they count, the slow store, and each of them at a tiny size."""

import threading
import time
from contextlib import closing

import orjson
import pytest

from benchmarks import async_commit, restore_backends, snapshot
from benchmarks.side_state import settle
from benchmarks.slow_backend import NAME, Line, SlowStore, environment
from benchmarks.state_job import STORE, StateJob, files_below
from penstock.config.table import BACKENDS
from penstock.metadata.file_store import FileObjectStore
from penstock.state.backends.registry import backend_factory


def side(least_ms, most_ms=0.0):
    return {"snapshot": {"median_ms": least_ms}, "copies": {"median_ms": most_ms}}


def batch(number, ended, rows=100):
    return {"batch": number, "rows": rows, "ended": ended, "duration_ms": {"triggerExecution": 1}}


def commit(began, upload_ms=500.0):
    return {"began": began, "completed": began + 1, "upload_ms": upload_ms, "snapshot_ms": 2.0}


class TestStateJob:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_every_commit_restores_what_the_engine_holds(self, tmp_path, backend):
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

    def test_the_working_copy_is_gone_when_it_is_closed(self, tmp_path):
        with closing(StateJob(tmp_path, "blob", 20)) as job:
            job.fill(10)
            job.commit()
            assert files_below(tmp_path / "local" / "state-1-uid" / STORE)
        assert files_below(tmp_path / "local") == []

    def test_settling_changes_no_file(self, tmp_path):
        (tmp_path / "a").write_bytes(b"x" * 10_000)
        for page_cache in ("warm", "cold"):
            settle([tmp_path], page_cache)
            assert (tmp_path / "a").read_bytes() == b"x" * 10_000


class TestSlowStore:
    def test_calls_wait_side_by_side_and_their_bytes_one_after_the_other(self):
        line = Line(0.1, 1_000_000)
        began = time.monotonic()
        threads = [threading.Thread(target=line.call, args=(50_000,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 0.3 <= time.monotonic() - began < 0.6

    def test_without_a_bandwidth_only_the_latency_counts(self):
        began = time.monotonic()
        Line(0.05, 0).call(1 << 40)
        assert 0.05 <= time.monotonic() - began < 1

    def test_passes_calls_on(self, tmp_path):
        store = SlowStore(FileObjectStore(tmp_path), Line(0.0, 0.0))
        assert store.put_if_absent("a/b", b"x")
        assert store.get("a/b") == b"x"
        assert store.put_if_match("a/b", b"y", store.get_with_tag("a/b")[1])
        assert store.list("a") == ["a/b"]
        store.delete("a/b")
        assert store.list("a") == []
        store.close()

    def test_is_a_backend_that_the_environment_makes_slow(self, monkeypatch):
        assert backend_factory(NAME).name == NAME
        for name, value in environment(20, 1000).items():
            monkeypatch.setenv(name, value)
        began = time.monotonic()
        Line.of_environment().call(100)
        assert time.monotonic() - began >= 0.12


class TestCounting:
    def test_the_ratio_is_that_of_the_largest_and_the_smallest_state(self):
        sides = {1000: side(2.0, 4.0), 10: side(1.0, 2.0), 100: side(9.0, 9.0)}
        assert snapshot.ratios(sides) == {"snapshot": 2.0, "copies": 2.0}
        assert not snapshot.is_reached(sides)
        assert snapshot.is_reached({10: side(2.0), 100: side(3.0)})
        assert snapshot.is_reached({10: side(0.01), 100: side(0.9)})

    def test_a_restore_is_counted_with_the_medians(self):
        rounds = [
            {"cp_seconds": cp, "restore_seconds": seconds, "restored_bytes": 5, "verified": number != 1}
            for number, (cp, seconds) in enumerate([(1.0, 2.0), (2.0, 8.0), (2.0, 4.0)])
        ]
        found = restore_backends.summarise({"rounds": rounds})
        assert (found["ratio_to_cp"], found["slowest_restore_seconds"], found["verified"]) == (0.5, 8.0, False)

    def test_rows_and_commits_between_the_warm_up_and_the_last_batch_count(self):
        batches = [batch(number, ended=10.0 + number) for number in range(1, 9)]
        commits = [commit(1.0), commit(14.5, 100), commit(16.0, 300), commit(18.5)]
        found = async_commit.summarise({"batches": batches, "commits": commits})
        assert found["rows_per_second"] == 100.0
        assert (found["commits"], found["upload_ms"], found["snapshot_ms"]) == (2, 200.0, 2.0)

    def test_without_commits_nothing_is_said_of_them(self):
        found = async_commit.summarise({"batches": [batch(1, 1.0), batch(2, 2.0)], "commits": []})
        assert (found["rows_per_second"], found["commits"], found["upload_ms"]) == (100.0, 0, None)
        one = {**found, "peak": {"total_bytes": 7}, "verified": {"equal": True}}
        combined = async_commit.combine([one, {**one, "rows_per_second": 300.0}])
        assert (combined["rows_per_second"], combined["upload_ms"], combined["peak_bytes"]) == (200, None, 7)

    def test_the_side_without_commits_is_what_others_are_compared_with(self):
        sides = {"none": {"rows_per_second": 200}, "asynchronous": {"rows_per_second": 190}}
        assert async_commit.ratios(sides) == {"asynchronous": 0.95}
        assert async_commit.ratios({"asynchronous": {"rows_per_second": 190}}) == {}

    @pytest.mark.parametrize(
        ("benchmark", "given"),
        [
            (snapshot, ["--sizes", "0"]),
            (restore_backends, ["--megabytes", "0"]),
            (async_commit, ["--batches", "1"]),
            (async_commit, ["--events", "1001"]),
        ],
    )
    def test_senseless_numbers_are_refused(self, capsys, benchmark, given):
        with pytest.raises(SystemExit):
            benchmark.arguments(given)
        assert "must be" in capsys.readouterr().err


class TestSmoke:
    def test_snapshot(self, tmp_path):
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

    @pytest.mark.parametrize("page_cache", ["warm", "cold"])
    def test_restore_backends(self, tmp_path, page_cache):
        path = tmp_path / "restore.json"
        given = ["--megabytes", "1", "--commits", "2", "--changed", "100", "--repeat", "2", "--page-cache", page_cache]
        assert restore_backends.main([*given, "--json", str(path)]) == 0
        result = orjson.loads(path.read_bytes())
        assert list(result["sides"]) == list(BACKENDS)
        for found in result["sides"].values():
            assert found["verified"]
            assert found["durable_bytes"] >= found["base_bytes"] > 900_000
            assert found["restored_bytes"] > 900_000

    @pytest.mark.spark
    @pytest.mark.slow
    def test_async_commit(self, tmp_path):
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
