"""What another user on the driver's machine can read of a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT

pytestmark = pytest.mark.spark

NOBODY = 65534
PROGRAM = """
import sys
from penstock.engine.session import create_context
given = {"spark.authenticate": "true", "spark.authenticate.secret": sys.stdin.readline().strip()}
context = create_context("guarded", {"spark.master": "local[1]", "spark.hadoop.some.text": "a b\\\\c", **given})
assert context.getConf().get("spark.hadoop.some.text") == "a b\\\\c"
assert context._jsc.sc().conf().get("spark.authenticate.secret") == given["spark.authenticate.secret"]
assert context.parallelize(range(10)).sum() == 45
print("runs", flush=True)
sys.stdin.readline()
context.stop()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_reads_no_secret_in_the_list_of_processes(tmp_path: Path) -> None:
    secret = "a-secret-of-the-deployment"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{secret}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "runs\n"
        files = [str(each / name) for each in Path("/proc").glob("[0-9]*") for name in ("cmdline", "environ")]
        seen = subprocess.run(["/bin/cat", *files], user=NOBODY, capture_output=True, check=False).stdout
        assert b"org.apache.spark.deploy.SparkSubmit" in seen, "the JVM of the driver is among them"
        assert secret.encode() not in seen
        assert process.communicate("\n", 60)[0] == ""
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
