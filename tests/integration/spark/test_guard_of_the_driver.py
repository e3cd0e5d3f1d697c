"""A job as another user on the driver's machine sees it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.tools.places import ROOT

pytestmark = [
    pytest.mark.attack,
    pytest.mark.spark,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user"),
]

NOBODY = 65534
SECRET = "a-secret-of-the-deployment"
PROGRAM = """
import operator, os, sys
os.umask(0)
from penstock.spark.session.session import create_context
secret, folder = sys.stdin.readline().strip(), sys.argv[1]
given = {
    "spark.master": "local[1]",
    "spark.local.dir": folder,
    "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -XX:-UsePerfData",
    "spark.authenticate": "true",
    "spark.authenticate.secret": secret,
    "spark.hadoop.some.text": "a b\\\\c",
}
context = create_context("guarded", given)
assert context.getConf().get("spark.hadoop.some.text") == given["spark.hadoop.some.text"]
assert context._jsc.sc().conf().get("spark.authenticate.secret") == secret
pairs = context.parallelize(range(10), 2).map(lambda n: (n % 2, n))
assert dict(pairs.reduceByKey(operator.add).collect()) == {0: 20, 1: 25}
print("runs", flush=True)
sys.stdin.readline()
context.stop()
"""


@contextmanager
def driver(folder: Path) -> Iterator[None]:
    """A program that has run a job of Spark, and stays."""
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{SECRET}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "runs\n"
        yield
        assert process.communicate("\n", 60)[0] == ""
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def as_nobody(*command: str) -> bytes:
    return subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=False).stdout


def test_another_user_reads_no_secret_no_file_and_reaches_no_worker() -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # folders of tests cannot be entered by others
    folder.chmod(0o777)
    try:
        with driver(folder):
            files = [str(each / name) for each in Path("/proc").glob("[0-9]*") for name in ("cmdline", "environ")]
            seen = as_nobody("/bin/cat", *files)
            assert b"org.apache.spark.deploy.SparkSubmit" in seen, "the JVM of the driver is among them"
            assert SECRET.encode() not in seen
            sockets = [each for each in folder.rglob("*") if each.is_socket()]
            assert len(sockets) >= 2, "of the Python workers, and of accumulators"
            assert list(folder.rglob("*.data")), "and here are the shuffled rows"
            for kind, right in (("f", "-readable"), ("f", "-writable"), ("s", "-writable"), ("d", "-readable")):
                found = as_nobody("find", str(folder), "-mindepth", "1", "-type", kind, right)
                assert found == b"", (kind, right)
        assert list(folder.iterdir()) == [], "nothing is left"
    finally:
        shutil.rmtree(folder)
