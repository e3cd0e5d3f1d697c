"""The cause of a failed Spark job, and the message when Spark's JVM has died, found in errors as Spark made them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.java_gateway import JavaClass, JavaPackage, JVMView
from py4j.protocol import ERROR, STRING_TYPE, Py4JError, get_return_value
from pyspark import SparkContext

from penstock.errors import ContainerLostError
from penstock.spark.session import gateway
from penstock.spark.session.gateway import SparkDiedError, SparkJvm, cause_of, spark_died

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


def chain(*errors: BaseException) -> BaseException:
    """Each error is the cause of the one before."""
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


def test_a_broken_connection_anywhere_in_the_chain_counts() -> None:
    died = spark_died(chain(ContainerLostError("lost"), RuntimeError(), ConnectionRefusedError()), "7-1")
    assert isinstance(died, SparkDiedError)
    assert "checkpoint 7-1" in str(died)


@pytest.mark.parametrize(
    ("answer", "is_dead"),
    [
        (ERROR, True),  # what py4j makes of a connection that breaks while it waits for an answer
        (ERROR + STRING_TYPE + r"java.lang.NoSuchMethodError: gone\n at x", False),
    ],
)
def test_a_call_that_got_no_answer_is_a_broken_connection(answer: str, is_dead: bool) -> None:
    with pytest.raises(Py4JError) as caught:
        get_return_value(answer, None, "None", "org.apache.spark.api.python.SimplePythonFunction")
    assert (spark_died(caught.value, "7-1") is not None) == is_dead


@pytest.mark.parametrize("length", [1, 2, 3])
def test_an_error_may_be_in_its_own_chain(length: int) -> None:
    """One that was raised again while another one was handled that it had caused."""
    errors = [ContainerLostError(str(number)) for number in range(length)]
    assert spark_died(chain(*errors, errors[0]), "7-1") is None


class Unanswered:
    """A py4j client whose connection breaks at every command."""

    converters: tuple[object, ...] = ()
    gateway_property = SimpleNamespace(auto_field=False, pool=None)

    def send_command(self, command: str) -> str:
        return str(ERROR)


LOOK_UPS: dict[str, Callable[[Any], object]] = {
    "of a package": lambda client: JVMView(client, "jvm", id="rj").org,
    "in a package": lambda client: JavaPackage("org.apache", client, "rj").spark,
    "in a class": lambda client: JavaClass("org.apache.spark.util.Utils", client).getProcessName,
    "of a constructor": lambda client: JavaClass("org.apache.spark.SparkConf", client)._java_lang_class,
}


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkJvm]:
    """The JVM of this process, which ends a moment after its connections broke."""
    process = subprocess.Popen(["/bin/sh", "-c", "sleep 0.2; exit 7"])
    jvm = SparkJvm(process)
    monkeypatch.setattr(gateway._CurrentGateway, "jvm", jvm)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    yield jvm
    process.wait()


@pytest.mark.parametrize("name", LOOK_UPS)
def test_a_name_that_is_looked_up_in_vain_may_be_a_dead_jvm(dying: SparkJvm, name: str) -> None:
    with pytest.raises(Py4JError) as caught:
        LOOK_UPS[name](Unanswered())
    assert f"Spark's JVM (process {dying.process.pid}) " in str(spark_died(caught.value, "7-1"))


def test_results_that_break_off_may_be_a_dead_jvm(dying: SparkJvm) -> None:
    died = spark_died(chain(RuntimeError("no reports"), EOFError("a frame of 9 bytes ends after 3")), "7-1")
    assert f"Spark's JVM (process {dying.process.pid}) " in str(died)


def test_a_name_that_the_jvm_of_another_process_does_not_have_is_reported_as_that() -> None:
    assert spark_died(Py4JError("org.apache.spark.Gone does not exist in the JVM"), "7-1") is None
    assert spark_died(EOFError("a frame of 9 bytes ends after 3"), "7-1") is None
