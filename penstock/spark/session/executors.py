"""Spark's executors as the driver sees them: listing them, running a task on one, having Spark give one up."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.core.rdd import RDD
from pyspark.serializers import CPickleSerializer

logger = logging.getLogger(__name__)
LOCAL_ID = "driver"
_KILL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Executor:
    """An executor as Spark knows it. In local mode the driver is the only one."""

    id: str
    host: str
    """The name or address by which Spark reaches it."""
    slots: int

    @property
    def is_local(self) -> bool:
        return self.id == LOCAL_ID

    @property
    def address(self) -> str:
        """The address of its host, as the driver resolves it; the name if it does not."""
        try:
            return str(socket.getaddrinfo(self.host.strip("[]"), None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            return self.host

    def __str__(self) -> str:
        return f"executor {self.id} on {self.host}"


def live_executors(context: SparkContext) -> list[Executor]:
    store: Any = context._jsc.sc().statusStore()  # noqa: SLF001 - no public way
    listed = store.executorList(True)
    found = [listed.apply(i) for i in range(listed.size())]
    return [Executor(str(e.id()), host_of(str(e.hostPort())), int(e.totalCores())) for e in found if e.totalCores()]


def host_of(text: str) -> str:
    """The host of `host:port` or `[address]:port`; the port is missing as long as the executor stores no blocks."""
    return re.sub(r":\d+$", "", text)


def configured_executors(context: SparkContext) -> int | None:
    """The number of executors that the session asked for; None if it does not say."""
    if cluster := re.match(r"local-cluster\[\s*(\d+)", str(context.master)):
        return int(cluster[1])
    if str(context.master).startswith("local"):
        return 1
    asked = context.getConf().get("spark.executor.instances", None)
    return int(asked) if asked else None


def rdd_on(context: SparkContext, executor: Executor) -> RDD[Any]:
    """An RDD of one element that prefers the executor; Spark may run it on another one all the same."""
    if executor.is_local:
        return context.parallelize([0], 1)
    jvm: Any = context._jvm  # noqa: SLF001 - preferred locations exist in the JVM's API only
    serializer = CPickleSerializer()
    wanted = jvm.java.util.ArrayList()
    wanted.add(f"executor_{executor.host}_{executor.id}")
    elements = jvm.java.util.ArrayList()
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    elements.add(jvm.scala.Tuple2(serializer.dumps(0), to_seq(wanted)))  # type: ignore[no-untyped-call]
    scala_rdd = context._jsc.sc().makeRDD(to_seq(elements), jvm.scala.reflect.ClassTag.Any())  # noqa: SLF001
    return RDD(scala_rdd.toJavaRDD(), context, serializer)


@contextmanager
def job_group(context: SparkContext, group: str, description: str) -> Iterator[None]:
    """Put this thread's jobs into another job group while the block runs, so that they are not cancelled with a
    batch."""
    names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = {name: context.getLocalProperty(name) for name in names}
    context.setJobGroup(group, description)
    try:
        yield
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None takes it away


def give_up_executor(context: SparkContext, executor_id: str, reason: str) -> bool:
    """Have Spark drop an executor now and look for a new one, as Spark itself does once `spark.network.timeout` has
    passed without a heartbeat. False if the cluster's scheduler has no way to do so.

    From then on, Spark ignores what the executor's tasks report, and ends the executor when it comes back.
    """
    scala: Any = context._jsc.sc()  # noqa: SLF001 - no public way
    backend = scala.schedulerBackend()
    # The cluster manager may be as slow to answer as the host.
    killing = threading.Thread(target=_kill, args=(scala, executor_id), name=f"kill-{executor_id}", daemon=True)
    killing.start()
    killing.join(_KILL_SECONDS)
    jvm: Any = context._jvm  # noqa: SLF001
    nowhere = getattr(jvm.scala, "None$").__getattr__("MODULE$")
    lost = jvm.org.apache.spark.scheduler.ExecutorProcessLost(reason, nowhere, False)
    try:
        backend.removeExecutor(executor_id, lost)
    except Py4JError as error:
        logger.warning("Spark cannot be asked to give up executor %s, and waits for it: %s", executor_id, error)
        return False
    return True


def _kill(scala: Any, executor_id: str) -> None:
    try:
        scala.killAndReplaceExecutor(executor_id)
    except Exception as error:  # the executor is dropped all the same
        logger.info("the cluster manager could not be asked to end executor %s: %s", executor_id, error)
