"""Jobs that are started with spark-submit, or where spark-defaults.conf has something to say."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.support.jobs.home import Home, wait_until
from tests.support.jobs.submitted import submitted, watched, write_application
from tests.support.jobs.submitted_queries import SubmittedQuery
from tests.support.tools.places import ROOT

pytestmark = pytest.mark.spark

SCRIPT = """
import json
from penstock.config.load import load_config
from penstock.spark.session.session import create_session, idle_limit

config = load_config(overrides={overrides!r}, default_job_name="job")
session = create_session("job", config.spark, idle_limit(config.container))
print("found", json.dumps(dict(session.sparkContext.getConf().getAll())))
session.stop()
"""
DEFAULTS = "spark.locality.wait 7s\nspark.python.worker.idleTimeoutSeconds 4321\nspark.executor.cores 2\n"


def session_of(
    folder: Path, *command: str, defaults: str = DEFAULTS, overrides: dict[str, str] | None = None
) -> dict[str, str]:
    """The keys of the session of a script that is started like this."""
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(defaults, encoding="utf-8")
    script = folder / "script.py"
    script.write_text(SCRIPT.format(overrides=overrides or {}), encoding="utf-8")
    environ = {
        **os.environ,
        "SPARK_CONF_DIR": str(folder / "conf"),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run([*command, str(script)], env=environ, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    assert found, done.stderr
    conf: dict[str, str] = json.loads(found[0].removeprefix("found "))
    return conf


@pytest.mark.slow
def test_what_spark_submit_and_spark_defaults_say_is_kept(tmp_path: Path) -> None:
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    arguments = ("--master", "local[1]", "--name", "named", "--conf", "spark.ui.showConsoleProgress=true")
    conf = session_of(tmp_path, str(submit), *arguments, overrides={"spark.executor.cores": "1"})
    assert conf["spark.master"] == "local[1]"
    assert conf["spark.app.name"] == "named"
    assert conf["spark.ui.showConsoleProgress"] == "true"
    assert conf["spark.locality.wait"] == "7s"
    assert conf["spark.python.worker.idleTimeoutSeconds"] == "4321"
    assert conf["spark.python.worker.killOnIdleTimeout"] == "true", "nobody said otherwise"
    assert conf["spark.executor.cores"] == "1", "the job's own configuration counts most"


@pytest.mark.slow
def test_what_spark_defaults_say_is_kept_without_spark_submit(tmp_path: Path) -> None:
    conf = session_of(tmp_path, sys.executable, defaults=f"{DEFAULTS}spark.master local[1]\n")
    assert conf["spark.master"] == "local[1]"
    assert conf["spark.app.name"] == "job"
    assert conf["spark.locality.wait"] == "7s"
    assert conf["spark.python.worker.idleTimeoutSeconds"] == "4321"


def test_a_job_with_py_files_stops_at_a_sigterm_to_spark_submit(tmp_path: Path) -> None:
    """The process that others know is Spark's JVM: it hands the signal to the driver, which commits."""
    home = Home(tmp_path)
    shipped = write_application(tmp_path / "app")
    home.publish(400)
    with submitted(home, ("--master", "local[2]", *shipped)) as driver:
        wait_until(lambda: home.length("totals") >= 400 or not driver.running, "the output")
        assert driver.containers()
        driver.terminate()
        assert driver.ended() == 0
        # A line of the log may come between the two words that the script prints.
        assert re.search(rf"ended at(.|\n)* {home.checkpoints[-1].id}\n", driver.log)
        assert "py4j" not in driver.log, "the script logs at INFO: py4j's lines could block its end"
    assert home.checkpoints[-1].ended == "stopped"
    home.verify()


@pytest.mark.slow
def test_a_query_with_py_files_ends_at_a_sigterm_to_spark_submit(tmp_path: Path) -> None:
    """As every query of PySpark: every batch that has ended is committed, so there is nothing else to do."""
    query = SubmittedQuery(tmp_path)
    query.publish()
    query.publish()
    with watched(query.submit(["--master", "local[2]", "--py-files", query.py_files])) as driver:
        query.await_all(driver)
        driver.terminate()
        assert driver.ended() == 128 + signal.SIGTERM
        query.await_end()
    query.verify()
