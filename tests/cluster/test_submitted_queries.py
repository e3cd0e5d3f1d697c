"""Streaming queries that spark-submit starts on a standalone cluster of several hosts."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.integration.queries.test_query_applications import COLUMNS, Event, events, near
from tests.support.jobs.home import wait_until
from tests.support.jobs.submitted import Submitted, watched
from tests.support.jobs.submitted_queries import SubmittedQuery, spark_options
from tests.support.processes.hosts import why_no_hosts
from tests.support.processes.standalone import Standalone, environment, standalone
from tests.support.stores.s3 import BUCKET, s3_on
from tests.support.tools.fixtures import fixture_of
from tests.support.tools.packed import pack_environment, zip_penstock
from tests.support.tools.places import ROOT

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(why_no_hosts() is not None, reason=str(why_no_hosts())),
]


cluster = fixture_of(lambda tmp_path_factory: standalone(tmp_path_factory.mktemp("cluster") / "spark"), scope="module")


def submit(
    cluster: Standalone, query: SubmittedQuery, *more: str, py_files: str = "", environ: Mapping[str, str] | None = None
) -> Submitted:
    """Start the query on the cluster."""
    shipped = query.py_files + (f",{py_files}" if py_files else "")
    options = spark_options(cluster.config, "--conf", "spark.executor.instances=2", "--py-files", shipped, *more)
    return query.submit(options, prefix=cluster.main.prefix, environ={**environment(), **(environ or {})})


def test_a_query_with_py_files_is_stopped_and_continues(tmp_path: Path, cluster: Standalone) -> None:
    query = SubmittedQuery(tmp_path)
    query.publish()
    query.publish()
    for stop in ("SIGTERM", "penstock stop"):
        with watched(submit(cluster, query)) as driver:
            query.await_all(driver)
            assert all(map(cluster.containers, cluster.workers))
            query.publish()
            query.await_all(driver)
            if stop == "SIGTERM":
                driver.terminate()
                assert driver.ended() == 128 + signal.SIGTERM
            else:
                command = ["stop", "CountVisits", "-c", f"job.root={query.root}"]
                subprocess.run([sys.executable, "-m", "penstock.cli", *command], check=True, timeout=300)
                assert driver.ended() == 0
            query.await_end()
        query.publish()
    with watched(submit(cluster, query)) as driver:
        query.await_all(driver)
    query.verify()


def test_a_query_with_all_of_python_in_an_archive(tmp_path: Path, cluster: Standalone) -> None:
    archive = pack_environment(tmp_path, with_penstock=False)
    query = SubmittedQuery(tmp_path)
    query.publish()
    query.publish()
    environ = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": "./environment/bin/python"}
    shipped = ("--archives", f"{archive}#environment")
    zipped = str(zip_penstock(tmp_path))
    with watched(submit(cluster, query, *shipped, py_files=zipped, environ=environ)) as driver:
        query.await_all(driver)
        pythons = [p.cmdline()[0] for host in cluster.workers for p in cluster.containers(host)]
    assert len(pythons) == 2
    assert all(each.endswith("environment/bin/python") for each in pythons)
    query.verify()


def test_the_root_is_an_object_store(tmp_path: Path, cluster: Standalone) -> None:
    """The driver is killed, and the next start continues."""
    query = SubmittedQuery(tmp_path, root=f"s3://{BUCKET}/queries")
    query.publish()
    with s3_on(cluster.main) as environ:
        executors = [f"--conf=spark.executorEnv.{name}={value}" for name, value in environ.items()]
        with watched(submit(cluster, query, *executors, environ=environ)) as driver:
            query.await_all(driver)
        query.await_end()
        query.publish()
        with watched(submit(cluster, query, *executors, environ=environ)) as driver:
            query.await_all(driver)
    query.verify()


def test_a_host_is_lost_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    """Hosts talk over TLS, unless they are told not to."""
    query = SubmittedQuery(tmp_path)
    query.publish()
    with standalone(tmp_path / "spark") as cluster, watched(submit(cluster, query)) as driver:
        query.await_all(driver)
        (query.gate / "closed").touch()
        query.publish()
        lost = cluster.workers[1]
        for host in cluster.workers:
            wait_until((query.gate / host.name).exists, f"the batch in the processor on {host.name}")
        lost.kill()
        (query.gate / "closed").unlink()
        query.publish()
        query.await_all(driver)
        assert driver.log.count("Spark itself sends its tasks in clear") == 1
    query.verify()


APPLICATION = """
import sys

from pyspark.sql import SparkSession

source, lake, location, root = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
events = spark.readStream.schema("{columns}").option("maxFilesPerTrigger", 1).parquet(source)
{page}
query.awaitTermination()
"""


def test_the_application_of_the_page(tmp_path: Path, cluster: Standalone) -> None:
    page = (ROOT / "docs" / "pyspark-applications.md").read_text(encoding="utf-8")
    block = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "app.py").write_text(APPLICATION.format(columns=COLUMNS, page=block), encoding="utf-8")
    folders = [str(tmp_path / name) for name in ("source", "lake", "location", "root")]
    options = spark_options(cluster.config, "--conf", "spark.executor.instances=2")
    happened: list[Event] = []
    for numbers in ([0], [1, 2]):
        for number in numbers:
            happened += events(tmp_path / "source", number)
        with watched(Submitted(tmp_path, options, folders, cluster.main.prefix, environment())) as driver:
            assert driver.ended() == 0

    def rows(name: str) -> list[tuple[Any, ...]]:
        files = sorted((tmp_path / "lake" / name).glob("batch=*/*.parquet"))
        return sorted(tuple(row.values()) for file in files for row in pq.ParquetFile(file).read().to_pylist())

    clicks = [each for each in happened if each.kind == "click"]
    views = [each for each in happened if each.kind == "view"]
    seen = Counter[str]()
    totals = []
    for click in clicks:
        seen[click.user] += 1
        totals.append((click.user, seen[click.user], click.page))
    assert rows("totals") == sorted(totals)
    assert rows("pairs") == sorted((c.user, c.page, v.page) for c in clicks for v in views if near(c, v))
