"""docs/metrics.md lists exactly what a job exports, whichever way."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.metrics.prometheus import prometheus_name
from penstock.metrics.snapshot import MetricId
from tests.support.apps import job_app
from tests.support.jobs.home import DEADLINE_S, Home, wait_until
from tests.support.oracles.metrics_page import (
    OF_EVENT_TIME,
    OF_LOSSES,
    OF_OPERATORS,
    OF_OUTBOXES,
    OF_PUSHED_TABLES,
    OF_SIDE_INPUTS,
    OF_STANDBYS,
    OF_THE_DIRECT_WAY,
    OF_TIME_TO_LIVE,
    PAGE,
    differences,
    exported,
)
from tests.support.tools.cli import call_json

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def settled(shown: dict[str, dict[str, dict[str, object]]]) -> dict[str, dict[str, dict[str, object]]]:
    """Without what changes until the run has ended: the containers and their memory, and the phase."""
    changing = {"physical-memory-bytes", "containers", "stalled-ms", "phase-since-ms", "active"}
    return {
        source: {group: {name: own[name] for name in own if name not in changing} for group, own in groups.items()}
        for source, groups in shown.items()
    }


def test_the_page_lists_what_a_job_exports(spark: SparkSession, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create("metrics", 1)
    exports = {"metrics.prometheus.port": 0, "metrics.reporter.snapshot.stream": "local.metrics"}
    home.publish(200, seed=1)
    assert job_app.totals_app().run(home.config, spark=spark, until="latest").await_termination(DEADLINE_S)
    home.publish(300, seed=2)
    job = job_app.totals_app().run({**home.config, **exports, "task.commit.ms": 200}, spark=spark)
    wait_until(lambda: job.progress and job.progress.total_input_rows == 300, "the messages")
    assert job.metrics().total("messages-actually-processed", "stage.0") == 300
    wait_until(lambda: job.metrics().total("gets", "store.totals") == 300, "the next beats")
    with urllib.request.urlopen(f"http://127.0.0.1:{job.prometheus_port}/metrics", timeout=20) as answer:
        scraped = answer.read().decode()
    job.stop()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{job.prometheus_port}/metrics", timeout=20)
    found = job.metrics()
    of_others = (
        OF_EVENT_TIME
        | OF_LOSSES
        | OF_OPERATORS
        | OF_TIME_TO_LIVE
        | OF_PUSHED_TABLES
        | OF_STANDBYS
        | OF_THE_DIRECT_WAY
        | OF_SIDE_INPUTS
        | OF_OUTBOXES
    )
    assert differences(PAGE.read_text("utf-8"), exported(found) | of_others) == []
    assert found.total("bytes-restored", "backend.changelog-files") > 0
    assert found.total("keys", "store.totals") >= len(home.stored("totals")), "RocksDB's estimate"
    assert found.total("commit-ns") == found.total("commit-calls") >= 2
    for key in (MetricId("Partition 0", "store.totals", "gets"), MetricId("job", "job", "batches")):
        assert f"\n{prometheus_name(key)[0]}_total{{" in scraped
    last = home.last_values("metrics")
    stages = [message["metrics"]["stage.0"] for message in last.values() if "stage.0" in message["metrics"]]
    assert sum(stage["messages-actually-processed"] for stage in stages) == 300
    shown = call_json("status", "totals", "--metrics", "-c", f"job.root={home.config['job.root']}")
    assert settled(shown) == settled(json.loads(json.dumps(found.to_dict())))
