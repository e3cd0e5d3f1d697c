"""Sessions that a job may run on, and what its processes load."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from tests.support.jobs.home import Home
from tests.support.jobs.job_runs import finish, start
from tests.support.processes.python import run_python
from tests.support.tools.places import ROOT

pytestmark = pytest.mark.spark


SESSIONS = """
import json, logging, sys
from penstock.config.load import load_config
from penstock.spark.session.session import check_session, create_session, idle_limit
from penstock.errors import ConfigError
import penstock as ps

told = []
for key in ("spark.speculation", "spark.dynamicAllocation.enabled"):
    try:
        create_session("refused", {"spark.master": "local-cluster[1,1,1024]", key: "true"})
        told.append("accepted")
    except ConfigError as error:
        told.append(str(error))
session = create_session("good", {"spark.master": "local[1]"})
app = ps.StreamApplication("totals")
app.input("local.events").filter(bool)
try:
    app.run({**json.loads(sys.argv[1]), "spark.master": "local[2]"})
    told.append("accepted")
except ConfigError as error:
    told.append(str(error))
told.append(session.range(3).count())
heard = []
logging.getLogger("penstock").addHandler(handler := logging.Handler())
handler.emit = lambda record: heard.append(record.getMessage())
container = load_config(overrides=json.loads(sys.argv[1]), default_job_name="totals").container
check_session(session, container)
session.stop()
limit = idle_limit(container)
session = create_session("short", {"spark.master": "local[1]", **limit, "spark.python.worker.idleTimeoutSeconds": "2m"})
check_session(session, container)
session.stop()
open_to_all = {"spark.master": "local[1]", **limit, "spark.authenticate": "false"}
check_session(create_session("good", open_to_all), container)
print(json.dumps([*told, heard]))
"""


def test_sessions_that_could_lose_state_are_refused_and_left_alone(home: Home) -> None:
    found = run_python("-c", SESSIONS, json.dumps(home.config), environ={"PYTHONPATH": str(ROOT)})
    speculation, allocation, other, count, warnings = json.loads(found.stdout)
    assert "spark.speculation" in speculation
    assert "spark.dynamicAllocation.minExecutors" in allocation
    assert "spark=" in other, "a session of other settings runs already: say so instead of taking it over"
    assert count == 3
    hangs, short, made, checked = warnings
    assert made.startswith("`spark.authenticate` is not true in the Spark session: everybody who can connect to")
    assert re.search(r"can connect to 127\.0\.0\.1:\d+ can run code in this job", checked)
    assert "spark.python.worker.killOnIdleTimeout=true" in hangs
    assert "send nothing for 120 s" in short
    assert "`spark.python.worker.idleTimeoutSeconds=1205` or more" in short


class Loaded(ps.StreamTask):
    """Says what the container has loaded."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key="x", value={"worker": envelope.value, "container": loaded_modules(None)})


def loaded_modules(message: object) -> dict[str, Any]:
    """The heavy modules that this process has loaded, and the place of PySpark."""
    modules = sys.modules
    return {
        "pandas": "pandas" in modules,
        "pyspark": getattr(modules.get("pyspark"), "__file__", None),
        "parent": Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0"),
        "ancestors": [name for each in psutil.Process().parents() for name in each.cmdline()],
    }


def test_workers_and_containers_load_only_what_they_need(home: Home, spark: SparkSession) -> None:
    home.publish(10)
    app = ps.StreamApplication("loaded")
    facts = app.input("local.events", value=ps.Json()).map(loaded_modules)
    facts = facts.partition_by(lambda _: "x", key=ps.String(), value=ps.Json()).process(Loaded)
    facts.send_to(app.output("local.facts", key=ps.String(), value=ps.Json()))
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        finish(start(home, spark, app))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    found = [value for _, _, _, value in home.messages("facts")]
    assert len(found) == 10
    assert not any(each[process]["pandas"] for each in found for process in ("worker", "container"))
    assert {each["worker"]["pyspark"] for each in found} == {pyspark.__file__}
    assert all("penstock.spark.workers.worker_daemon" in each["worker"]["parent"] for each in found)
    below = [each["container"]["ancestors"] for each in found]
    assert all("penstock.spark.workers.worker_daemon" in each for each in below), (
        "YARN counts what is below an executor"
    )
