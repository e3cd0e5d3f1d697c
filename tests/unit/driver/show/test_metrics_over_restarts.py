"""Metrics while containers come and go: what Prometheus scrapes is valid, counters never fall, and nothing grows."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

import penstock as ps
from penstock.driver.show.exports import MetricsExports
from penstock.errors import ConfigError
from penstock.metrics.snapshot import GaugeValue
from penstock.testing.in_process import InProcessDriver
from tests.support.world.sums_job import TASKS, Sum, SumsWorld, drain

Sample = tuple[str, tuple[tuple[str, str], ...]]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SumsWorld]:
    with closing(SumsWorld(tmp_path)) as made:
        yield made


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
        drain(driver)
        driver.loop.commit()
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


def test_counters_do_not_fall_while_a_container_leaves_an_epoch(
    world: SumsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    driver = world.driver(state_snapshot_interval_commits=1)
    driver.loop.start()
    sizes = []
    for round_ in range(24):
        world.put(*range(1, 7))
        drain(driver)
        driver.loop.commit()
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
        driver = world.driver(job_id=stores)
        driver.loop.start()
        drain(driver)
        driver.loop.commit()
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
