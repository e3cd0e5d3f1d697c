"""The exports of metrics: the endpoint for Prometheus, the stream of snapshots, and the object that commands read."""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.config.load import load_config
from penstock.driver.show.exports import Export, ExportThread, SnapshotReporter
from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.job.shown import MetricsBoard, ShownRun
from penstock.metrics.prometheus import PrometheusEndpoint
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.snapshot import Snapshot
from penstock.objects.open import open_store
from penstock.system.base import OffsetRange
from penstock.system.memory import MemorySystem


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


def scrape(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: (sample.labels, sample.value) for sample in samples}


def test_prometheus_scrapes_what_there_is(registry: MetricsRegistry) -> None:
    endpoint = PrometheusEndpoint("totals-1", "127.0.0.1", 0, registry.snapshot)
    try:
        found = scrape(endpoint.port)
        labels: dict[str, str] = {"job": "totals-1", "source": "Partition 0", "store": "totals"}
        assert found["penstock_store_cache_hits_total"] == (labels, 3)
        assert found["penstock_store_keys"] == (labels, 7)
        assert found["penstock_backend_upload_seconds_count"][1] == 2
        assert found["penstock_backend_upload_seconds_sum"][1] == 2
        assert found["penstock_user_orders_late_total"] == ({"job": "totals-1", "source": "Partition 0"}, 1)
        registry.new_counter("store.totals", "cache-hits").inc()
        assert scrape(endpoint.port)["penstock_store_cache_hits_total"] == (labels, 4)
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


def test_one_thread_makes_each_export_at_its_interval_and_once_more_at_the_end(
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
