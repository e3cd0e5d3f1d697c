"""The cause of a failed Spark job, found in texts that Spark made."""

from __future__ import annotations

import pytest

from penstock.errors import ContainerLostError
from penstock.spark.session.gateway import cause_of

CALL = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
FRAMES = (
    "\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\n\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
)
RAISED = (
    "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
    "Traceback (most recent call last):\n"
)
ABORTED = "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, "
CRASHED = "Python worker exited unexpectedly (crashed)."
FRAME = """  File "/app/worker.py", line 4327, in invoke
    run_process()
    ^^^^^^^^^^^^^
"""
CHAIN = f"""{FRAME}sqlite3.OperationalError: disk I/O error

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
{FRAME}{FRAME}penstock.errors.RetryableError: no space is left for `/data/out/0.db`:
  free some space
and try again
 SQLSTATE: 38000
"""
TEXTS = {
    "python": (
        f"{CALL}: {RAISED}{FRAME}NotADirectoryError: [Errno 20] Not a directory: '/x/logs'\n SQLSTATE: 38000\n{FRAMES}",
        "NotADirectoryError: [Errno 20] Not a directory: '/x/logs'",
    ),
    "python, caused by another one": (
        f"{CALL}: {RAISED}{CHAIN}{FRAMES}",
        "no space is left for `/data/out/0.db`: free some space and try again",
    ),
    "python, after several tries": (
        (
            f"{CALL}: {ABORTED}most recent failure: {RAISED}{FRAME}ValueError: no\n\n{FRAMES}\t... 1 more\n\n"
            f"Driver stacktrace:\n{FRAMES}Caused by: {RAISED}{FRAME}ValueError: no\n\n{FRAMES}\t... 1 more\n"
        ),
        "ValueError: no",
    ),
    "a worker that ended": (
        (
            f"{CALL}: {ABORTED}most recent failure: Lost task: org.apache.spark.SparkException: {CRASHED}\n{FRAMES}"
            f"Caused by: java.io.EOFException\n{FRAMES}\nDriver stacktrace:\n{FRAMES}"
            f"Caused by: org.apache.spark.SparkException: {CRASHED}\n{FRAMES}Caused by: java.io.EOFException\n{FRAMES}"
        ),
        CRASHED,
    ),
    "the JVM's own": (
        f"{CALL}: {ABORTED}x\n{FRAMES}Caused by: java.io.IOException: No space left on device\n{FRAMES}",
        "java.io.IOException: No space left on device",
    ),
    "a job that is cancelled": (
        f"{CALL}: org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 3 cancelled SQLSTATE: XXKDA\n{FRAMES}",
        "[SPARK_JOB_CANCELLED] Job 3 cancelled SQLSTATE: XXKDA",
    ),
    "nothing of Spark's": ("first\nsecond\nthird", "first second"),
    "nothing at all": ("", "RuntimeError"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_failed_job_is_explained_by_its_cause(name: str) -> None:
    text, cause = TEXTS[name]
    assert cause_of(RuntimeError(text)) == cause


def test_an_error_of_penstock_is_said_as_it_is() -> None:
    assert cause_of(ContainerLostError("one\ntwo")) == "one\ntwo"
