"""Spark's executors as the driver sees them: listing them, running a task on one, having Spark give one up.

With Spark's dynamic allocation, executors come and go with the load of Spark's tasks. Those with containers stay.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext, StorageLevel
from pyspark.core.rdd import RDD
from pyspark.serializers import CPickleSerializer

logger = logging.getLogger(__name__)
LOCAL_ID = "driver"
_KILL_SECONDS = 5.0
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


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


ENABLED = "spark.dynamicAllocation.enabled"
MINIMUM = "spark.dynamicAllocation.minExecutors"
_CACHED_IDLE = "spark.dynamicAllocation.cachedExecutorIdleTimeout"
_FETCH_CACHED = "spark.shuffle.service.fetch.rdd.enabled"
_EVER_SECONDS = 2**31 - 1
"""Spark's text for "never" as the time after which executors with cached blocks go, which is its default."""


def is_dynamic(conf: Mapping[str, str]) -> bool:
    """True if Spark adds and removes executors. With a local master, there are none, and it ignores the key."""
    master = conf.get("spark.master", "local[*]")
    return is_true(conf, ENABLED) and not (master == "local" or master.startswith("local["))


def fault_in_allocation(conf: Mapping[str, str]) -> str | None:
    """The reason why executors with containers would not stay, and the remedy; None if they do."""
    if not is_dynamic(conf):
        return None
    if kept_executors(conf) < 1:
        minimum = conf.get(MINIMUM, "not set")
        return (
            f"`{ENABLED}` is true, and `{MINIMUM}` is {minimum}. Containers, and the state in them, live and die with "
            f"executors, so a job keeps a fixed number of them. Set `{MINIMUM}` to that number, or `{ENABLED}` to false"
        )
    if _CACHED_IDLE in conf and seconds(conf[_CACHED_IDLE]) < _EVER_SECONDS:
        return (
            f"`{ENABLED}` is true, and `{_CACHED_IDLE}` is {conf[_CACHED_IDLE]}: Spark would remove executors with "
            "containers, and the state in them, once no data has come for that long. Leave the key out, or set it to "
            f"{_EVER_SECONDS}s"
        )
    if is_true(conf, _FETCH_CACHED):
        return (
            f"`{ENABLED}` and `{_FETCH_CACHED}` are true: Spark would remove executors with containers, and the state "
            f"in them, as idle. Set `{_FETCH_CACHED}` to false"
        )
    return None


def kept_executors(conf: Mapping[str, str]) -> int:
    """The number of executors that Spark always keeps, and replaces if they are lost."""
    number = conf.get(MINIMUM, "0")
    return int(number) if number.isdecimal() else 0


def default_minimum(conf: Mapping[str, str]) -> dict[str, str]:
    """The `spark.*` key that makes Spark keep as many executors as the session began with."""
    begins = conf.get("spark.executor.instances")
    return {MINIMUM: begins} if begins and is_dynamic(conf) else {}


class KeptExecutors:
    """Keeps executors that Spark does not take for idle, because each has a cached block: the answer of the task that
    started the containers there. Used by several threads."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        conf = dict(context.getConf().getAll())
        self.number = kept_executors(conf) if is_dynamic(conf) else None
        """The number of executors that get containers. None: all, since Spark removes none."""
        self._blocks: dict[str, RDD[Any]] = {}

    def __contains__(self, executor_id: str) -> bool:
        return executor_id in self._blocks

    def caching(self, answers: RDD[Any]) -> RDD[Any]:
        """The same answers, cached where they are made."""
        if self.number is None:
            return answers
        # On disk, because other blocks cannot push it out there.
        return answers.setName("Penstock containers").persist(StorageLevel.DISK_ONLY)

    def keep(self, executor_ids: Collection[str], answers: RDD[Any]) -> None:
        """Keep these executors, from which the answers have come. The answers of lost executors are forgotten."""
        if self.number is None:
            return
        here = {*executor_ids, *(each.id for each in live_executors(self._context))}
        self._blocks.update(dict.fromkeys(executor_ids, answers))
        self._forget(self._blocks.keys() - here)

    def release(self) -> None:
        self._forget(list(self._blocks))  # a late launch may add one

    def _forget(self, executor_ids: Iterable[str]) -> None:
        for each in executor_ids:
            if (answers := self._blocks.pop(each, None)) is None:
                continue
            try:
                answers.unpersist()
            except Exception as error:  # Spark is ending or dead
                logger.debug("Spark was not told that executor %s is no longer needed: %s", each, error)


def is_true(conf: Mapping[str, str], key: str) -> bool:
    """True if a key is present and true."""
    return conf.get(key, "false").strip().lower() == "true"


def seconds(text: str) -> float:
    """A time of Spark's configuration in seconds, its default unit."""
    found = re.fullmatch(r"\s*(\d{1,18})\s*([a-z]*)\s*", text.lower())
    if found is None:
        return 0  # Spark refuses it
    return int(found[1]) * _UNITS.get(found[2], 1)
