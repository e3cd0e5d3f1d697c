"""The exports of metrics, also while containers come and go: valid for Prometheus, and no counter falls."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

import penstock as ps
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.config.load import load_config
from penstock.driver.show.exports import Export, ExportThread, MetricsExports, SnapshotReporter
from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.job.shown import MetricsBoard, ShownRun
from penstock.metrics.prometheus import PrometheusEndpoint
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.snapshot import GaugeValue, Snapshot
from penstock.objects.open import open_store
from penstock.system.base import OffsetRange
from penstock.system.memory import MemorySystem
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.fixtures import fixture_of
from tests.support.world.sums_job import TASKS, Sum, SumsWorld, drain, drain_and_commit


@pytest.fixture
def registry() -> MetricsRegistry:
    registry = MetricsRegistry("Partition 0")
    registry.new_counter("store.totals", "cache-hits").inc(3)
    registry.new_gauge("store.totals", "keys").set(7)
    timer = registry.new_timer("backend.blob", "upload-ns")
    timer.update(500_000_000)
    timer.update(1_500_000_000)
    registry.new_counter("user.orders", "late").inc()
    registry.new_gauge("user.orders", "la-te")
    registry.new_counter("user.orders", "la_te").inc()
    return registry


def samples_of(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: (sample.labels, sample.value) for sample in samples}


def test_prometheus_scrapes_what_there_is(registry: MetricsRegistry) -> None:
    endpoint = PrometheusEndpoint("totals-1", "127.0.0.1", 0, registry.snapshot)
    try:
        found = samples_of(endpoint.port)
        labels: dict[str, str] = {"job": "totals-1", "source": "Partition 0", "store": "totals"}
        assert found["penstock_store_cache_hits_total"] == (labels, 3)
        assert found["penstock_store_keys"] == (labels, 7)
        assert found["penstock_backend_upload_seconds_count"][1] == 2
        assert found["penstock_backend_upload_seconds_sum"][1] == 2
        assert found["penstock_user_orders_late_total"] == ({"job": "totals-1", "source": "Partition 0"}, 1)
        registry.new_counter("store.totals", "cache-hits").inc()
        assert samples_of(endpoint.port)["penstock_store_cache_hits_total"] == (labels, 4)
        with pytest.raises(ConfigError, match="Choose a free port"):
            PrometheusEndpoint("totals-1", "127.0.0.1", endpoint.port, registry.snapshot)
    finally:
        endpoint.close()


def test_a_stream_of_snapshots_in_samzas_format(registry: MetricsRegistry) -> None:
    job = load_config(overrides={"job.name": "totals"}, environ={}).job
    system = MemorySystem("m")
    with pytest.raises(NotFoundError):
        SnapshotReporter(job, "run", system, SystemStream("m", "metrics"), registry.snapshot)
    system.admin().create_stream("metrics", 1)
    SnapshotReporter(job, "run", system, SystemStream("m", "metrics"), registry.snapshot).report()
    (chunk,) = system.reader().read(OffsetRange(SystemStreamPartition("m", "metrics", 0), 0, 1), 10)
    message = json.loads(chunk[0][3] or b"")
    said = {"job-name": "totals", "job-id": "1", "source": "TaskName-Partition 0", "samza-epoch-id": "run"}
    assert message["header"].items() >= said.items()
    assert chunk[0][2] == b"TaskName-Partition 0", "a compacted stream keeps the last one of each source"
    assert message["metrics"]["store.totals"] == {"cache-hits": 3, "keys": 7}
    assert message["metrics"]["backend.blob"] == {"upload-ns": 1e9}, "a timer's average, as in Samza"


def test_a_run_ends_though_its_metrics_cannot_be_put_anywhere(caplog: pytest.LogCaptureFixture) -> None:
    reached, gate = threading.Event(), threading.Event()

    def export() -> None:
        reached.set()
        gate.wait()

    later = Export("to a board", 60, lambda: None)
    thread = ExportThread(Export("in stream `m.metrics`", 0.001, export), later)
    try:
        assert reached.wait(20)
        thread.close(0.01)
    finally:
        gate.set()
    assert "the last metrics were not written in stream `m.metrics` within" in caplog.text
    assert "the last metrics were not written to a board within" in caplog.text, "it would have come after the other"


def test_one_thread_makes_each_export_at_its_interval_and_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = threading.Semaphore(0)
    counts = {"often": 0, "rarely": 0}

    def count(name: str) -> None:
        counts[name] += 1

    def fail() -> None:
        failed.release()
        raise ValueError("no such gauge")

    thread = ExportThread(
        Export("nowhere", 0.001, fail),
        Export("often", 0.001, lambda: count("often")),
        Export("rarely", 60, lambda: count("rarely")),
    )
    for _ in range(3):
        assert failed.acquire(timeout=20)
    thread.close()
    assert counts["often"] > 1
    assert counts["rarely"] == 1, "the last one"
    assert "the metrics were not written nowhere; the next interval tries again: no such gauge" in caplog.text


def test_the_end_of_a_run_waits_as_long_as_its_last_exports_go_on(caplog: pytest.LogCaptureFixture) -> None:
    written: list[int] = []

    def export(number: int) -> None:
        threading.Event().wait(0.3)
        written.append(number)

    ExportThread(*(Export(f"to {n}", 60, lambda n=n: export(n)) for n in range(3))).close(0.6)  # type: ignore[misc]
    assert written == [0, 1, 2]
    assert caplog.text == ""


def test_the_object_that_commands_read(tmp_path: Path, registry: MetricsRegistry) -> None:
    objects, paths = open_store(str(tmp_path)), JobPaths("totals", "1")
    shown = MetricsBoard(objects, paths)
    assert shown.get() is None
    shown.put(ShownRun("run", 1, Snapshot()))
    reached = {(1, SystemStreamPartition("local", "clicks", 0)): 7}
    shown.put(ShownRun("run", 2, registry.snapshot(), reached))
    found = shown.get()
    assert found is not None
    assert dict(found.metrics) == dict(registry.snapshot())
    assert (found.run_id, found.reached) == ("run", reached)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{}",
        b'{"format":1,"run_id":"r","time_ms":1,"metrics":[["a"]],"reached":[]}',
        b'{"format":1,"run_id":"r","time_ms":1,"metrics":[["a","b","c","meter",[1]]],"reached":[]}',
        b'{"format":1,"run_id":"r","time_ms":1,"metrics":[["a","b","c","timer",[1]]],"reached":[]}',
        b'{"format":1,"run_id":"r","time_ms":1,"metrics":[],"reached":[[0,"local","clicks",0,"7"]]}',
    ],
)
def test_an_object_that_holds_no_metrics_is_named(tmp_path: Path, damaged: bytes) -> None:
    objects, paths = open_store(str(tmp_path)), JobPaths("totals", "1")
    key = paths.metadata("metrics", "last-run")
    objects.put_if_absent(key, damaged)
    with pytest.raises(CorruptError, match=f"{key}.*Delete it"):
        MetricsBoard(objects, paths).get()


def test_an_object_of_a_newer_penstock_is_not_read(tmp_path: Path) -> None:
    objects, paths = open_store(str(tmp_path)), JobPaths("totals", "1")
    objects.put_if_absent(paths.metadata("metrics", "last-run"), b'{"format":2}')
    with pytest.raises(IncompatibleError, match="has format 2"):
        MetricsBoard(objects, paths).get()


def test_one_name_is_one_metric(registry: MetricsRegistry) -> None:
    assert registry.new_counter("user.orders", "late") is registry.new_counter("user.orders", "late")
    with pytest.raises(ValueError, match="is a counter already"):
        registry.new_gauge("user.orders", "late")
    assert registry.take().total("late") == 1
    assert registry.take().total("late") == 0
    assert registry.snapshot().total("keys") == 7


Sample = tuple[str, tuple[tuple[str, str], ...]]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


world = fixture_of(SumsWorld)


def exporting(driver: InProcessDriver) -> tuple[MetricsExports, int]:
    exports = MetricsExports(driver.job, "run", driver.board, lambda: True)
    assert exports.prometheus_port is not None
    return exports, exports.prometheus_port


def scrape(port: int, accept: str = "text/plain") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


def cumulative(text: str) -> dict[Sample, float]:
    """Every sample of a counter or a summary."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        if family.type in {"counter", "summary"}
        for sample in family.samples
    }


def listening() -> set[tuple[str, int]]:
    return {
        (c.laddr.ip, c.laddr.port) for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN
    }


def test_all_that_is_scraped_is_valid_and_counters_never_fall(world: SumsWorld) -> None:
    driver = world.driver(metrics_prometheus_port=0, stores_sums_factory="rocksdb")
    exports, port = exporting(driver)
    driver.loop.start()
    before: dict[Sample, float] = {}
    for round_ in range(4):
        world.put(*range(1, 10))
        drain_and_commit(driver)
        families = list(text_string_to_metric_families(scrape(port)))
        assert len(families) > 40
        assert len({family.name for family in families}) == len(families)
        for family in families:
            assert family.type in {"counter", "gauge", "summary"}
            assert "docs/metrics.md" in family.documentation
            assert family.samples
            for sample in family.samples:
                assert sample.labels.keys() >= {"job", "source"}
                assert sample.labels["job"] == "sums-1"
        strict = list(openmetrics_families(scrape(port, OPENMETRICS)))  # type: ignore[no-untyped-call]
        assert {family.name for family in strict} == {family.name for family in families}
        now = cumulative(scrape(port))
        assert now.keys() >= before.keys()
        assert {sample for sample, value in before.items() if now[sample] < value} == set()
        before = now
        driver.fleet.lose(round_ % TASKS)
    exports.close()


def test_counters_do_not_fall_as_a_container_leaves_an_epoch(world: SumsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world.driver()
    seen: list[float] = []

    def close(_: Any) -> None:
        seen.append(sum(c.metrics().total("gets", "store.sums") for c in containers))

    driver.loop.start()
    world.put(*range(1, 10))
    drain(driver)
    containers = {driver.fleet.container_of(task) for task in range(TASKS)}
    monkeypatch.setattr(Sum, "close", close)
    driver.fleet.lose(0)
    driver.loop.step()
    assert seen
    assert set(seen) == {9}


@pytest.mark.slow
def test_nothing_grows_over_many_restarts(world: SumsWorld) -> None:
    driver = world.started(state_snapshot_interval_commits=1)
    sizes = []
    for round_ in range(24):
        world.put(*range(1, 7))
        drain_and_commit(driver)
        shown = driver.board.metrics.snapshot()
        sizes.append(sum(key.name != "busy-ns" for key in shown))  # an operator has one once it took 10 ms
        driver.fleet.lose(round_ % TASKS)
    assert set(sizes[3:]) == {sizes[3]}
    kept = driver.fleet._past_metrics
    assert not [key for key, value in kept.items() if isinstance(value, GaugeValue)], "gauges go with their container"
    assert {key.source for key in kept} == {f"Partition {task}" for task in range(TASKS)}


def test_many_stores_have_so_many_metrics_each(world: SumsWorld) -> None:
    counted: dict[int, int] = {}
    for stores in (1, 3, 5):
        app = ps.StreamApplication("sums")
        for number in range(stores):
            app.store(f"sums{number}" if number else "sums", key=ps.String(), value=ps.Integer())
        source = app.input("m.events", key=ps.String(), value=ps.Integer())
        source.partition_by(lambda envelope: envelope.key, envelope=True).process(
            Sum, stores=["sums", *(f"sums{number}" for number in range(1, stores))], id="sum"
        )
        world.app = app
        driver = world.started(job_id=stores)
        drain_and_commit(driver)
        counted[stores] = sum(key.group.startswith("store.") for key in driver.board.metrics.snapshot())
    assert counted[5] - counted[3] == counted[3] - counted[1] > 0


def test_two_jobs_of_a_process_have_endpoints_of_their_own_and_leave_nothing(world: SumsWorld) -> None:
    threads, sockets = set(threading.enumerate()), listening()
    first, second = world.driver(metrics_prometheus_port=0), world.driver(job_id=2, metrics_prometheus_port=0)
    (a, port_a), (b, port_b) = exporting(first), exporting(second)
    assert {('job="sums-1"' in scrape(port_a)), ('job="sums-2"' in scrape(port_b))} == {True}
    assert listening() - sockets == {("127.0.0.1", port_a), ("127.0.0.1", port_b)}
    a.close()
    assert 'job="sums-2"' in scrape(port_b)
    b.close()
    assert listening() - sockets == set()
    assert [thread for thread in set(threading.enumerate()) - threads if "metrics" in thread.name] == []
    with socket.create_server(("127.0.0.1", port_a)):
        pass
    again, port = exporting(world.driver(job_id=3, metrics_prometheus_port=port_a))
    assert port == port_a
    again.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host.invalid"])
def test_an_address_that_nothing_can_listen_on(world: SumsWorld, host: str) -> None:
    threads = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        driver = world.driver(metrics_prometheus_port=port, metrics_prometheus_host=host)
        with pytest.raises(ConfigError, match=rf"nothing can listen on {host}:{port}: .*Choose a free port"):
            MetricsExports(driver.job, "run", driver.board, lambda: True)
    assert [thread for thread in set(threading.enumerate()) - threads if "metrics" in thread.name] == []
